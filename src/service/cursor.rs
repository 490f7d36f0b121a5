//! Cursors of lists and histories: a place, bound to the tenant and to what was asked for, so that a foreign or damaged
//! one is refused and never read as another place.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bincode::{Decode, Encode};

use super::names::Names;
use crate::{
    id::{KeyedHash, Time},
    records::codec,
    refusal::Refusal,
};

/// Bytes of the mark that binds a cursor.
const MARK_BYTES: usize = 16;

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the since index: which list, and the last record examined.
    Since { list: u8, at: Time, operation: KeyedHash, record: KeyedHash },
    /// Among the heads.
    Head { operation: KeyedHash, record: KeyedHash },
    /// Among the events of a history: how many came before.
    Event(u64),
}

#[derive(Encode, Decode)]
struct Stored {
    kind: u8,
    list: u8,
    number: u64,
    operation: KeyedHash,
    record: KeyedHash,
}

/// A place and what was asked for.
pub(super) struct Cursor<'a> {
    pub place: Place,
    pub filter: &'a [u8],
}

/// The refusal of a cursor that this call did not give out.
pub(super) fn invalid() -> Refusal {
    Refusal::invalid("cursor is not one that this list gave out; begin again without it")
}

impl<'a> Cursor<'a> {
    /// The cursor as text.
    pub fn encode(&self, names: &Names) -> String {
        let none = KeyedHash([0; 16]);
        let stored = match &self.place {
            Place::Since { list, at, operation, record } => {
                Stored { kind: 1, list: *list, number: at.0, operation: *operation, record: *record }
            }
            Place::Head { operation, record } => {
                Stored { kind: 2, list: 0, number: 0, operation: *operation, record: *record }
            }
            Place::Event(before) => Stored { kind: 3, list: 0, number: *before, operation: none, record: none },
        };
        let mut bytes = codec::encode(&stored).to_vec();
        let mark = names.mark(&bytes, self.filter);
        bytes.extend_from_slice(&mark[..MARK_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The place of a cursor that was given out for the same tenant and the same question.
    pub fn parse(text: &str, names: &Names, filter: &'a [u8]) -> Result<Self, Refusal> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
        let split = bytes.len().checked_sub(MARK_BYTES).ok_or_else(invalid)?;
        let (content, mark) = bytes.split_at(split);
        if names.mark(content, filter)[..MARK_BYTES] != *mark {
            return Err(invalid());
        }
        let stored: Stored = codec::decode(content).map_err(|_| invalid())?;
        let place = match stored.kind {
            1 => Place::Since {
                list: stored.list,
                at: Time(stored.number),
                operation: stored.operation,
                record: stored.record,
            },
            2 => Place::Head { operation: stored.operation, record: stored.record },
            3 => Place::Event(stored.number),
            _ => return Err(invalid()),
        };
        Ok(Self { place, filter })
    }
}
