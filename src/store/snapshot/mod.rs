//! Snapshot files: the state as of one log entry, whole, ordered and checked. With the log above them they are the durable
//! truth, and whatever engine lies under the state machine is rebuilt from them.
//!
//! - [`mod@format`] is pure: bytes to and from header, rows and footer. `FORMAT.md` draws it.
//! - [`read`] goes through a file from its first byte to its last and believes nothing it has not checked.
//! - [`mod@write`] puts rows into a file.
//! - [`store`] knows which files there are, which of them are good, and what the log may forget; it builds files
//!   from an engine, receives them from a peer and loads them into an engine.
//! - [`inspect`] prints one.
//!
//! # Invariants
//!
//! - S1. A file bears its name only after it was synced, read back to its last byte and found whole; the name is synced too
//!   before anyone hears of it. What a crash leaves of an unfinished file has a temporary name and is deleted.
//! - S2. The log is purged only below the older of two such files ([`store::SnapshotStore::older_verified_index`]), so that
//!   one of them may rot unseen.
//! - S3. The last good file is never deleted, nor is a damaged one while there is no good one.
//! - S4. Neither side ever holds more of the state in memory than one chunk and one row.

pub mod format;
pub mod inspect;
pub mod read;
pub mod scrub;
pub mod store;
pub mod write;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::engine::EngineError;
use crate::disk::DiskError;
use format::Damage;

/// What a snapshot is a snapshot of: the state as of one log entry, and whose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The lineage: drawn at init, kept by every restore.
    pub lineage: [u8; 16],
    /// The cluster: drawn at init and by every restore.
    pub cluster: [u8; 16],
    /// The index of the last log entry that is in the state.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The position of the state.
    pub position: u64,
    /// Cluster time as of the state, ms.
    pub cluster_time_ms: u64,
    /// The identity of that entry in the consensus core's own encoding; opaque here.
    pub log_id: Bytes,
    /// The membership as of the state in the consensus core's own encoding; opaque here.
    pub membership: Bytes,
}

/// Whose snapshots these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOwner {
    /// The lineage of the cluster.
    pub lineage: [u8; 16],
    /// The cluster in its present incarnation.
    pub cluster: [u8; 16],
}

/// Why a snapshot could not be written, read or received.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The disk failed. Of a write or a sync: final, the node stops.
    #[error("a snapshot file could not be used")]
    Disk(#[from] DiskError),
    /// The engine whose state was to be written or loaded failed.
    #[error("the store under a snapshot failed")]
    Engine(#[from] EngineError),
    /// The file is not what was once written.
    #[error("{} is damaged at byte {offset}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the part begins that does not check.
        offset: u64,
        /// What is wrong with it.
        #[source]
        damage: Damage,
    },
    /// A newer release wrote this file. It is whole and may be the only truth there is: nothing is deleted, nothing started.
    #[error("{} has format version {version}, which this release does not know", path.display())]
    UnknownVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u16,
    },
    /// The file is of another cluster, or of another incarnation of this one. Not damage: nothing is deleted.
    #[error("{} belongs to another cluster", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A row, or a part of the meta, is larger than a snapshot holds.
    #[error("{bytes} bytes are too many for a snapshot's {what}, which holds {bytes_max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// The engine's view handed its rows out of order.
    #[error("the rows of a snapshot must ascend strictly")]
    OutOfOrder,
    /// A piece from a peer is not the next one.
    #[error("a piece at byte {got} came where byte {expected} comes next")]
    OutOfTurn {
        /// Where the piece should begin.
        expected: u64,
        /// Where it begins.
        got: u64,
    },
    /// A peer sent more or fewer bytes than it had announced.
    #[error("{got} bytes came of a snapshot of {announced}")]
    WrongLength {
        /// The announced length.
        announced: u64,
        /// What came.
        got: u64,
    },
    /// A snapshot to be loaded lacks the key that makes an engine whole.
    #[error("the snapshot lacks the key that makes a store whole")]
    NotWhole,
    /// The report of an inspection could not be written.
    #[error("the report could not be written: {0}")]
    Report(std::io::ErrorKind),
}

impl SnapshotError {
    fn damaged(path: &Path, offset: u64, damage: Damage) -> Self {
        Self::Damaged { path: path.to_owned(), offset, damage }
    }
}
