//! The log on disk: everything this node has ever promised to remember.
//!
//! Raft's entries and votes are acknowledged once they are here, and "here" means that fdatasync has returned. The log
//! is a row of segment files of 64 MiB, filled with zeros ahead of use, so that a sync has nothing but data to flush.
//! One writer takes all that waits, writes it with one call, syncs it with one call, and tells everyone in the order
//! in which they came. FORMAT.md beside this file draws the bytes.
//!
//! What holds:
//!
//! - W1 A call is acknowledged only after a sync that covers all its frames has returned.
//! - W2 Calls take effect and are acknowledged in the order in which they were made.
//! - W3 After a crash the log is a prefix of what was written, and the prefix holds all that was acknowledged.
//! - W4 A failed write or sync is final. The log answers every later call with that error; nothing is tried again.
//! - W5 Damage to what was acknowledged is never taken for a torn tail. The one gap: the last batch before a crash that
//!   came within 10 ms, where a flipped bit looks like a tear. It's reported, and peers who remember more decide.
//! - W6 The newest vote, purge and peer marks are repeated at the head of each segment, so that older ones can go.
//! - W7 A frame of an earlier life of a recycled file never counts: its salt differs.
//!
//! Reading order: `frame` and `segment` (bytes), `map` (where entries lie), `queue` and `writer` (appending), `reserve`
//! (segments ahead of use), `tape` and `recovery` (opening), `read`, `scrub`, `inspect`; of a stopped node's log `verify`
//! and `view`, which leave it as it lies.

mod error;
mod frame;
mod handle;
mod inspect;
mod map;
mod queue;
mod read;
mod recovery;
mod reserve;
mod scrub;
mod segment;
mod tape;
#[cfg(test)]
mod tests;
mod verify;
mod view;
mod writer;

use std::path::PathBuf;

use bytes::Bytes;
use prometheus_client::metrics::{counter::Counter, histogram::Histogram};

pub use error::{Damage, Flaw, WalError};
pub use frame::{Kind, NoFrame, PeerMark};
pub use handle::{Parts, Preparer, Wal};
pub use inspect::inspect;
pub use scrub::{Scrub, Scrubbed};
pub use segment::Identity;
pub use verify::{Verified, verify};
pub use view::WalView;
pub use writer::{Step, Writer};

use crate::limits::{WAL_SEGMENT_BYTES_DEFAULT, WAL_SEGMENT_BYTES_MIN};

/// One log entry. The payload is opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalEntry {
    /// Its index: each entry's is one above the last one's.
    pub index: u64,
    /// The term in which it was proposed.
    pub term: u64,
    /// What it says.
    pub payload: Bytes,
}

/// Up to where entries are no longer needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purged {
    /// The last entry that isn't needed.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// What the caller wants to know of it later; opaque.
    pub payload: Bytes,
}

/// How a log is laid out.
#[derive(Debug, Clone)]
pub struct Options {
    segment_bytes: u64,
    measured: Option<Measured>,
}

/// What the log counts of its writes. Clones share it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Times that a batch was made durable.
    pub syncs: Counter,
    /// Time that writing and syncing a batch took, s.
    pub seconds: Histogram,
    /// Bytes written in batches.
    pub bytes: Counter,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: WAL_SEGMENT_BYTES_DEFAULT, measured: None }
    }
}

impl Options {
    /// Segments of so many bytes.
    ///
    /// # Errors
    /// [`WalError::SegmentBytes`] below the least.
    pub fn new(segment_bytes: u64) -> Result<Self, WalError> {
        if segment_bytes < WAL_SEGMENT_BYTES_MIN {
            return Err(WalError::SegmentBytes { bytes: segment_bytes, bytes_min: WAL_SEGMENT_BYTES_MIN });
        }
        Ok(Self { segment_bytes, measured: None })
    }

    /// The same log, measured.
    #[must_use]
    pub fn measured(self, measured: Measured) -> Self {
        Self { measured: Some(measured), ..self }
    }

    /// Segments so small that tests roll through many.
    #[cfg(test)]
    pub(crate) fn small(segment_bytes: u64) -> Self {
        Self { segment_bytes, measured: None }
    }
}

/// What was cut behind the last frame when a log was opened. Nothing of it was acknowledged, as far as the log can know
/// (see W5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub file: PathBuf,
    /// Where the tail began, bytes.
    pub offset: u64,
    /// Its length as copied, bytes.
    pub bytes: u64,
    /// Whole frames that lay behind the tear.
    pub frames: u64,
    /// Where it was copied to.
    pub copy: PathBuf,
}

/// What a log held when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The newest vote.
    pub vote: Option<Bytes>,
    /// The newest purge.
    pub purged: Option<Purged>,
    /// The first entry there is, if `first < next`.
    pub first: u64,
    /// One above the last entry.
    pub next: u64,
    /// Term of the last entry, or of the last one purged; 0 where there was none.
    pub last_term: u64,
    /// What each peer has acknowledged, by node id.
    pub peer_marks: Vec<PeerMark>,
    /// Whose log it is.
    pub identity: Identity,
    /// What was cut.
    pub torn: Option<TornTail>,
}

impl Recovered {
    /// Index of the last entry, `None` where there is none.
    pub fn last(&self) -> Option<u64> {
        (self.first < self.next).then(|| self.next - 1)
    }
}
