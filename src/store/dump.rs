//! The logical dump: a state as text, the same on every replica, engine and machine (R10).
//!
//! The first line is `position P`, the second the version of the text. Then a line a key, in key order: the key in hex, the
//! length of its value, the SHA-256 of its value, and what it says ([`describe`]; FORMAT.md). Contents of callers and secrets are told by their length alone, the hash
//! tells whether they are equal. What is one node's own (how far its log is applied, and who its members are) is left out.

use std::io;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    StoreError,
    describe::{TEXT_VERSION, describe},
    engine::{EngineError, Row},
    records::META_MARK,
};
use crate::{
    id::{Position, hex},
    records::keys::StoreKey,
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
    writeln!(out, "position {position}\ntext {TEXT_VERSION}")?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        records::{codec, keys::META_GLOBALS, state::Globals},
        store::records::Mark,
    };

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
        assert_eq!((lines.len(), lines[0], lines[1]), (3, "position 7", "text 1"));
        assert!(lines[2].starts_with("0a676c6f62616c73 ") && lines[2].contains(" meta globals position=0 "), "{text}");
    }
}
