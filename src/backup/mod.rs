//! A backup: the state of a cluster at one position, in a directory of plain files that outlives it.
//!
//! - `FORMAT.md` draws the directory: `manifest.json` and the parts, which joined are one snapshot file.
//! - [`source`] writes that file on a node, from a read view of its store, and reads it back.
//! - [`parts`] puts it into parts as it arrives, and reads the parts as one file again.
//! - [`manifest`] says what the directory holds; [`verify`](mod@verify) believes none of it before it has read every byte.
//! - [`keyed`] joins a sealed backup and its key ring again.
//! - [`ring`] is the file of root keys that goes beside a backup, never into it.
//!
//! # Invariants
//!
//! - B1. A directory bears its final name only after every byte of it was read back and found whole.
//! - B2. A backup is a whole state: every row of one position, but for what is a node's own and the key ring.
//! - B3. What is read from a directory is opened without following a link, and its size is known to be in bounds before a
//!   byte of it is read.

pub mod keyed;
pub mod manifest;
pub mod parts;
pub mod ring;
pub mod source;
pub mod verify;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::{
    disk::DiskError,
    id::{ClusterId, LineageId, Position, Time},
    records::codec::CodecError,
    store::{StoreError, engine::EngineError, snapshot::SnapshotError},
};

pub use verify::{Verified, verify};

/// What a backup is a backup of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The lineage: kept by a restore.
    pub lineage_id: LineageId,
    /// The cluster that it was made of: a restore draws another.
    pub cluster_id: ClusterId,
    /// Where the state stands.
    pub position: Position,
    /// Cluster time of the state.
    pub cluster_time: Time,
    /// Whether the cluster's writes had ended for good: then nothing is missing in it.
    pub is_final: bool,
}

/// What is wrong with a place in a backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// A name that no backup holds.
    #[error("a backup holds manifest.json and part-000000, part-000001 and so on, and nothing else")]
    Name,
    /// A link, a directory or a device, where a file must be.
    #[error("it is not a plain file")]
    NotPlain,
    /// It is missing.
    #[error("it is missing")]
    Missing,
    /// It has another size than it may, or than the manifest says.
    #[error("it has {found} bytes where {expected} belong")]
    Size {
        /// What it has.
        found: u64,
        /// What the manifest says, or the most there may be.
        expected: u64,
    },
    /// The manifest is not what a manifest is.
    #[error("the manifest can't be read: {0}")]
    Manifest(String),
    /// The manifest says something that is not so.
    #[error("the manifest says another {0} than the parts")]
    Differs(&'static str),
    /// The SHA-256 of a file is another one.
    #[error("the SHA-256 is not the one in the manifest")]
    Checksum,
    /// The parts, joined, are no whole snapshot.
    #[error("{0}")]
    Snapshot(crate::store::snapshot::format::Damage),
    /// A row that no backup holds.
    #[error("a row that is a node's own, or of the key ring, stands in it")]
    Row,
    /// A row that this release can't read.
    #[error("a row can't be read: {0}")]
    Unreadable(CodecError),
    /// The small state is missing, or of a cluster that was never formed.
    #[error("it holds no formed cluster")]
    Unformed,
    /// A newer release made it.
    #[error("a newer release made it: format {0}")]
    Version(u64),
}

/// Why a backup can't be made, read or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The state can't be read.
    #[error("the state can't be read")]
    Store(#[from] StoreError),
    /// The state can't be written down.
    #[error("the state can't be written down")]
    Snapshot(#[from] SnapshotError),
    /// The node is in no cluster.
    #[error("there is no cluster to back up")]
    Unformed,
    /// It is not what was written.
    #[error("{} at byte {offset}: {flaw}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What.
        flaw: Flaw,
    },
}

impl From<EngineError> for BackupError {
    fn from(error: EngineError) -> Self {
        Self::Store(error.into())
    }
}

impl BackupError {
    fn damaged(path: &Path, offset: u64, flaw: Flaw) -> Self {
        Self::Damaged { path: path.to_owned(), offset, flaw }
    }
}
