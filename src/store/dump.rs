//! The logical dump: a state as text, the same on every replica, engine and machine (R10).
//!
//! The first line is `position P`. Then a line a key, in key order: the key in hex, the length of its value, the SHA-256 of
//! its value, and for people what it says. Contents of callers and secrets are told by their length alone, the hash
//! tells whether they are equal. What is one node's own (how far its log is applied, and who its members are) is left out.

use std::io;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    StoreError,
    engine::{EngineError, Row},
    records::META_MARK,
};
use crate::{
    id::Position,
    records::{
        codec::{self, CodecError},
        command::{Sealed, Token},
        keys::{META_ENDED, META_GLOBALS, StoreKey},
        policy::PolicyLevel,
        record::{self, Head},
        state::{AuditRow, Counters, Deadline, Ended, Globals, TenantState},
    },
};

/// Why a state can't be dumped.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The state can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The text can't be written.
    #[error("the dump can't be written")]
    Output(#[from] io::Error),
}

impl From<EngineError> for DumpError {
    fn from(error: EngineError) -> Self {
        Self::Store(error.into())
    }
}

/// Writes the dump of these rows, which come in key order, of a state at `position`.
///
/// # Errors
/// Of the rows, or of `out`.
pub fn write(
    position: Position,
    rows: impl Iterator<Item = Result<Row, EngineError>>,
    out: &mut dyn io::Write,
) -> Result<(), DumpError> {
    writeln!(out, "position {position}")?;
    for row in rows {
        let (key, value) = row?;
        if !is_local(&key) {
            writeln!(out, "{}", line(&key, &value))?;
        }
    }
    Ok(())
}

/// Whether a key holds what is one node's own, and not the records'.
pub fn is_local(key: &[u8]) -> bool {
    matches!(StoreKey::decode(key), Ok(StoreKey::Meta(name)) if name == META_MARK)
}

fn line(key: &Bytes, value: &Bytes) -> String {
    format!("{} {} {} {}", hex(key), value.len(), hex(&Sha256::digest(value)), describe(key, value))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A row of the store on one line: its key, and its value without contents.
pub fn describe(key: &[u8], value: &[u8]) -> String {
    match StoreKey::decode(key) {
        Err(_) => format!("unknown key {}: {} bytes", hex(key), value.len()),
        Ok(key) => match describe_value(&key, value) {
            Ok(shown) => format!("{key:?}: {shown}"),
            Err(error) => format!("{key:?}: {} bytes that can't be read: {error}", value.len()),
        },
    }
}

fn describe_value(key: &StoreKey, value: &[u8]) -> Result<String, CodecError> {
    fn shown<T: bincode::Decode<()> + std::fmt::Debug>(value: &[u8]) -> Result<String, CodecError> {
        Ok(format!("{:?}", codec::decode::<T>(value)?))
    }
    match key {
        StoreKey::Head(_) => shown::<Head>(value),
        StoreKey::Body(_) => shown::<Sealed>(value),
        StoreKey::Deadline(..) => shown::<Deadline>(value),
        StoreKey::Since(..) => shown::<Position>(value),
        StoreKey::Counters(..) => shown::<Counters>(value),
        StoreKey::Row(..) => shown::<record::Row>(value),
        StoreKey::Audit(..) => shown::<AuditRow>(value),
        StoreKey::Policy(..) => shown::<PolicyLevel>(value),
        StoreKey::Tenant(_) => shown::<TenantState>(value),
        StoreKey::Meta(name) if name == META_GLOBALS => shown::<Globals>(value),
        StoreKey::Meta(name) if name == META_ENDED => shown::<Ended>(value),
        StoreKey::Meta(_) => Ok(format!("{} bytes", value.len())),
        StoreKey::Token(_) => shown::<Token>(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{id::Tenant, store::records::Mark};

    #[test]
    fn rows_are_told_without_what_they_hold() {
        let key = StoreKey::Policy(Tenant::parse("acme").unwrap(), None).encode();
        let told = describe(&key, &codec::encode(&PolicyLevel::default()));
        assert!(told.starts_with("Policy(Tenant(acme), None): PolicyLevel"), "{told}");
        assert_eq!(describe(&key, b"\xff\xff")[..28], *"Policy(Tenant(acme), None): ");
        assert_eq!(describe(&[250, 1], b"xyz"), "unknown key fa01: 3 bytes");
    }

    #[test]
    fn a_dump_begins_with_the_position_and_leaves_out_what_is_the_nodes_own() {
        let rows = [
            (StoreKey::Meta(META_GLOBALS.into()).encode(), codec::encode(&Globals::default())),
            (StoreKey::Meta(META_MARK.into()).encode(), Mark::default().encode()),
        ];
        let rows = rows.map(|(key, value)| Ok((Bytes::from(key), value)));
        let mut text = Vec::new();
        write(Position(7), rows.into_iter(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, "position 7"));
        assert!(lines[1].starts_with("0a676c6f62616c73 "), "{text}");
    }
}
