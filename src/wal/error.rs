//! What can go wrong with a log.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::frame::NoFrame;
use super::segment::Identity;
use crate::disk::DiskError;

/// Why a call on the log failed. Cheap to clone: a log that has failed once answers the same for good.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// The disk failed. Where it was a write or a sync, the log is poisoned: nothing is tried again, the process ends.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Bytes that were acknowledged are damaged or gone. The log must not be served.
    #[error("the log is damaged: {}", Lines(.0))]
    Damaged(Arc<Vec<Damage>>),
    /// The log is another node's, another cluster's or another disk's.
    #[error("the log in {} belongs to another: it is of {found:?}, expected {expected:?}", dir.display())]
    Identity {
        /// Where it lies.
        dir: PathBuf,
        /// Whose it should be.
        expected: Box<Identity>,
        /// Whose it is.
        found: Box<Identity>,
    },
    /// There is no log here: none was created.
    #[error("no log in {}", .0.display())]
    NotCreated(PathBuf),
    /// There is a log here already.
    #[error("there is a log in {} already", .0.display())]
    AlreadyCreated(PathBuf),
    /// Too much waits for the disk. Nothing was appended.
    #[error("too much waits to be written to the log")]
    Full,
    /// An entry that doesn't follow the last one. Nothing was appended.
    #[error("entry {found} can't be appended: the next is {expected}")]
    Gap {
        /// The index that comes next.
        expected: u64,
        /// The index that came.
        found: u64,
    },
    /// A payload beyond its limit. Nothing was appended.
    #[error("a payload of {bytes} bytes is larger than {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The entry isn't in the log: purged, void or not yet written.
    #[error("entry {index} is not in the log, which holds {first}..{next}")]
    NotThere {
        /// The entry asked for.
        index: u64,
        /// The first entry there is.
        first: u64,
        /// One above the last entry.
        next: u64,
    },
    /// The options don't fit the limits.
    #[error("segments of {bytes} bytes are smaller than {bytes_min}")]
    SegmentBytes {
        /// The size asked for.
        bytes: u64,
        /// The least.
        bytes_min: u64,
    },
    /// The log was closed, or its writer is gone.
    #[error("the log is closed")]
    Closed,
}

/// A place where the log isn't what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// The offset in it, bytes.
    pub offset: u64,
    /// What is wrong there.
    pub what: Flaw,
}

/// What is wrong with a place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flaw {
    /// The header doesn't match its checksum.
    Header,
    /// The header or a frame was written by a newer version.
    Version(u32),
    /// A sealed segment's footer is missing or doesn't match its checksum or its frames.
    Footer,
    /// No frame where one must be.
    Frame(NoFrame),
    /// A frame whose content contradicts what precedes it.
    Order,
    /// A segment that is needed is missing, or doesn't follow the one before.
    Chain,
}

impl Flaw {
    /// What is wrong, in a few words.
    pub fn text(&self) -> String {
        match self {
            Self::Header => "the header doesn't match its checksum".into(),
            Self::Version(version) => format!("written by a newer version of the format ({version})"),
            Self::Footer => "the footer is missing or damaged".into(),
            Self::Frame(NoFrame::Kind(kind)) => format!("a frame of kind {kind}, unknown to this version"),
            Self::Frame(no) => format!("no valid frame ({no:?}) although it was synced"),
            Self::Order => "a frame that contradicts the one before".into(),
            Self::Chain => "a segment is missing or doesn't follow the one before".into(),
        }
    }

    /// What the operator can do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Version(_) | Self::Frame(NoFrame::Kind(_)) => "start the version that wrote it, or a newer one",
            _ => "keep a copy of the directory; in a cluster the node heals from its peers, alone it needs a backup",
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}: {}; {}", self.file.display(), self.offset, self.what.text(), self.what.advice())
    }
}

struct Lines<'a>(&'a [Damage]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, damage) in self.0.iter().enumerate() {
            write!(f, "{}{damage}", if at == 0 { "" } else { " | " })?;
        }
        Ok(())
    }
}

impl From<Damage> for WalError {
    fn from(damage: Damage) -> Self {
        Self::damaged(damage)
    }
}

impl WalError {
    /// Whether what looks like damage was written by a newer version: nothing is wrong with it.
    pub fn is_of_newer_version(&self) -> bool {
        let is_newer = |damage: &Damage| matches!(damage.what, Flaw::Version(_) | Flaw::Frame(NoFrame::Kind(_)));
        matches!(self, Self::Damaged(damages) if damages.iter().any(is_newer))
    }

    pub(super) fn damaged(damage: Damage) -> Self {
        Self::Damaged(Arc::new(vec![damage]))
    }
}
