//! What every storage engine under the state machine promises: one ordered key space of bytes, atomic batches, scans and
//! a read view that does not stop writers.
//!
//! The engine is a rebuildable index. Nothing here is a durable truth: the log and the snapshot files are, and whoever
//! finds an engine damaged deletes it and loads it again from them. So no engine is ever asked for an fsync, and no
//! engine decides what the log may forget.
//!
//! # Invariants
//!
//! - E1. A batch is visible entirely or not at all, to readers and after a crash.
//! - E2. Batches survive a killed process in the order written: what is found after it is the state after some batch, and
//!   every batch before that one is in it. Which batch that was, the batch itself says (`last_applied` is one of its keys).
//! - E3. A read view holds the state between two batches, whatever is written while it is read.
//! - E4. After an error nothing more is written: the error is final and the node stops.

use std::{path::Path, sync::Arc};

use bytes::Bytes;

/// One row: a key and its value.
pub type Row = (Bytes, Bytes);

/// Rows in ascending order of their keys. Read lazily: what is held in memory does not grow with the range.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<Row, EngineError>> + Send + 'a>;

/// An ordered key space of bytes under the state machine. See the invariants E1 to E4 of this module.
pub trait Engine: Send + Sync + 'static {
    /// The value stored under `key`.
    ///
    /// # Errors
    /// When the engine cannot read: final (E4).
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// The rows in `range`, in key order.
    ///
    /// Weaker than a read view: a key that no batch touches while the scan runs is returned exactly once; one that a
    /// batch touches meanwhile may be returned as it was before or after that batch. Whoever merges a scan with newer
    /// values in memory takes those first and the scan second; then the newer values shadow all that is in doubt.
    ///
    /// # Errors
    /// When the engine cannot read: final (E4). An error in the middle is an item, and the last one.
    fn scan(&self, range: &KeyRange) -> Result<Scan<'_>, EngineError>;

    /// Applies all of `batch` or nothing (E1).
    ///
    /// # Errors
    /// When the engine cannot write: final (E4), and how much of the batch is found after a restart is all or nothing.
    fn write(&self, batch: Batch) -> Result<(), EngineError>;

    /// A view of the state as it is now (E3). Writers go on; an engine that has to remember what they overwrite makes them
    /// wait when that memory is used up, so a view is read to its end or dropped, and not by the thread that writes.
    ///
    /// # Errors
    /// When the engine cannot read: final (E4).
    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError>;

    /// Fills an empty engine with `rows`, which come in strictly ascending order, and then writes `finish` as one batch.
    /// Put the keys that make a state whole (`last_applied`) into `finish` and not into `rows`: an engine that lacks them
    /// after a crash was loaded half and is good for nothing. Returns the number of rows loaded, those of `finish` apart.
    ///
    /// # Errors
    /// [`EngineError::NotEmpty`], [`EngineError::OutOfOrder`], the first error among `rows`, or a failed write.
    fn load_sorted(&self, rows: LoadRows<'_>, finish: Batch) -> Result<u64, EngineError>;

    /// Bytes this engine takes on the disk (in memory, for an engine without one).
    ///
    /// # Errors
    /// When the engine cannot be asked.
    fn disk_bytes(&self) -> Result<u64, EngineError>;

    /// Free bytes that the disk must have before a batch of `bytes` bytes is written. An engine that can't be read any more
    /// once a write has failed asks for more than it takes.
    fn room_for(&self, bytes: u64) -> u64 {
        bytes
    }

    /// The node ends in order: what was written is handed to the system now, where an engine would keep it until its last user
    /// lets go. Nothing hangs on it but how much of the log the next start reads.
    fn settle(&self) {}

    /// Another engine has taken the place of this one: its files are deleted once its last user, views included, lets go.
    fn retire(&self);

    /// As [`Engine::retire`], but its files are moved into the directory `to` instead of deleted. Where there are no files,
    /// nothing is to be done.
    fn put_aside(&self, to: &Path);
}

/// What [`Engine::load_sorted`] reads: rows, or the reason why there are no more, usually a damaged source.
pub type LoadRows<'a> = &'a mut (dyn Iterator<Item = Result<Row, EngineError>> + Send);

/// A read view on an engine: the state between two batches (E3).
pub trait EngineSnapshot: Send {
    /// The value stored under `key` in this view. Only before the scan: the view of some engines is used up by it.
    ///
    /// # Errors
    /// When the engine cannot read: final (E4).
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError>;

    /// All rows of this view, in key order. Dropping the scan ends the view.
    ///
    /// # Errors
    /// When the engine cannot read: final (E4).
    fn into_scan(self: Box<Self>) -> Result<Scan<'static>, EngineError>;
}

/// The keys from `start` up to and without `end`; without an `end`, all keys from `start` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    start: Bytes,
    end: Option<Bytes>,
}

impl KeyRange {
    /// Every key.
    pub const fn all() -> Self {
        Self { start: Bytes::new(), end: None }
    }

    /// The keys from `start` up to and without `end`. Empty where `end` is not above `start`.
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// The keys from `start` on.
    pub fn starting_at(start: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: None }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        // The first key after them is the prefix with its last byte raised; bytes that are at their largest are cut
        // first, and a prefix of nothing else has no key after it.
        let end = start.iter().rposition(|byte| *byte != u8::MAX).map(|last| {
            let mut end = start[..=last].to_vec();
            end[last] += 1;
            Bytes::from(end)
        });
        Self { start, end }
    }

    /// What is left of this range after `key`: where a scan goes on that stopped there.
    #[must_use]
    pub fn after(&self, key: &[u8]) -> Self {
        let start = successor(key);
        Self { start: start.max(self.start.clone()), end: self.end.clone() }
    }

    /// The first key that may be in this range.
    pub fn start(&self) -> &Bytes {
        &self.start
    }

    /// The first key that is no longer in this range, if it has an end.
    pub fn end(&self) -> Option<&Bytes> {
        self.end.as_ref()
    }

    /// Whether `key` lies in this range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_ref() && self.end.as_ref().is_none_or(|end| key < end.as_ref())
    }

    /// Whether no key can lie in this range. The ordered maps of the standard library panic on a range that runs
    /// backwards, so whoever hands one over asks first.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// The smallest key above `key`.
pub(super) fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}

/// Puts and deletes that are applied together. The keys come in strictly ascending order: sorted runs are what the engines
/// write fastest, and one key twice in one batch would leave its value to the engine's taste.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    changes: Vec<(Bytes, Option<Bytes>)>,
    bytes: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for `changes` of them.
    pub fn with_capacity(changes: usize) -> Self {
        Self { changes: Vec::with_capacity(changes), bytes: 0 }
    }

    /// Sets `key` to `value`.
    ///
    /// # Panics
    /// When `key` is not above the last key of this batch.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(key.into(), Some(value.into()));
    }

    /// Removes `key`, whether it is there or not.
    ///
    /// # Panics
    /// When `key` is not above the last key of this batch.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.push(key.into(), None);
    }

    fn push(&mut self, key: Bytes, value: Option<Bytes>) {
        if let Some((last, _)) = self.changes.last() {
            assert!(*last < key, "the keys of a batch ascend strictly");
        }
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        self.changes.push((key, value));
    }

    /// The number of puts and deletes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The changes in key order: `Some` value for a put, `None` for a delete.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = (&Bytes, Option<&Bytes>)> {
        self.changes.iter().map(|(key, value)| (key, value.as_ref()))
    }
}

impl IntoIterator for Batch {
    type Item = (Bytes, Option<Bytes>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.changes.into_iter()
    }
}

/// Checks the order of rows on their way into an empty engine, which for some engines is what keeps their files sound.
pub(super) struct Ascending {
    last: Option<Bytes>,
}

impl Ascending {
    pub(super) const fn new() -> Self {
        Self { last: None }
    }

    pub(super) fn admit(&mut self, key: &Bytes) -> Result<(), EngineError> {
        if self.last.as_ref().is_some_and(|last| last >= key) {
            return Err(EngineError::OutOfOrder);
        }
        self.last = Some(key.clone());
        Ok(())
    }
}

/// Why an engine could not do what was asked. All of these are final for the engine they come from (E4).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The files could not be opened or are inconsistent. Delete them and build the engine again.
    #[error("the {engine} store is damaged: {reason}")]
    Damaged {
        /// The engine's name.
        engine: &'static str,
        /// What it said, or its panic message.
        reason: String,
    },
    /// Another process, or another handle of this one, holds the files. Not damage: nothing may be deleted.
    #[error("the {engine} store is in use by another process")]
    Locked {
        /// The engine's name.
        engine: &'static str,
    },
    /// A read failed.
    #[error("the {engine} store could not be read")]
    Read {
        /// The engine's name.
        engine: &'static str,
        /// What the engine said.
        #[source]
        source: EngineCause,
    },
    /// A write failed.
    #[error("the {engine} store could not be written")]
    Write {
        /// The engine's name.
        engine: &'static str,
        /// What the engine said.
        #[source]
        source: EngineCause,
    },
    /// An earlier write failed, and the engine takes no more.
    #[error("the {engine} store stopped after a failed write")]
    Stopped {
        /// The engine's name.
        engine: &'static str,
    },
    /// Rows were to be loaded into an engine that holds some.
    #[error("rows can only be loaded into an empty store")]
    NotEmpty,
    /// Rows to be loaded did not come in strictly ascending order.
    #[error("the rows to load are not in strictly ascending order")]
    OutOfOrder,
    /// The source of rows to be loaded failed.
    #[error("the rows to load could not be read")]
    Source(#[source] EngineCause),
    /// The directory of the store could not be made, listed or emptied.
    #[error("the directory of the store could not be used")]
    Directory(#[source] EngineCause),
}

/// The error of an engine's own kind below an [`EngineError`], shared so that the error can be handed to all who wait.
#[derive(Clone, Debug, thiserror::Error)]
#[error(transparent)]
pub struct EngineCause(Arc<dyn std::error::Error + Send + Sync>);

impl EngineCause {
    /// Wraps the error of an engine's own kind.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_range_holds_the_keys_with_that_prefix_and_no_others() {
        for (prefix, inside, outside) in [
            (&b"ab"[..], vec![&b"ab"[..], b"ab\0", b"ab\xff\xff"], vec![&b"aa\xff"[..], b"ac", b"b", b"a"]),
            (b"a\xff", vec![b"a\xff", b"a\xff\xff"], vec![b"a\xfe", b"b", b"b\0"]),
            (b"\xff\xff", vec![b"\xff\xff", b"\xff\xff\x01"], vec![b"\xff\xfe"]),
            (b"", vec![b"", b"\0", b"\xff"], vec![]),
        ] {
            let range = KeyRange::prefix(prefix);
            for key in inside {
                assert!(range.contains(key), "{key:?} under {prefix:?}");
            }
            for key in outside {
                assert!(!range.contains(key), "{key:?} not under {prefix:?}");
            }
        }
    }

    #[test]
    fn a_range_after_a_key_starts_behind_it_and_never_grows() {
        let range = KeyRange::new(&b"c"[..], &b"f"[..]);
        assert!(!range.after(b"d").contains(b"d"));
        assert!(range.after(b"d").contains(b"d\0"));
        assert_eq!(range.after(b"a"), range);
        assert!(range.after(b"f").is_empty());
    }

    #[test]
    #[should_panic(expected = "ascend strictly")]
    fn a_batch_refuses_one_key_twice() {
        let mut batch = Batch::new();
        batch.put(&b"a"[..], &b"1"[..]);
        batch.delete(&b"a"[..]);
    }
}
