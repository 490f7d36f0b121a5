//! The only way to files. The log and the snapshot files reach the disk through [`Disk`] and [`File`], so that a test or
//! the simulation can lose, tear, flip, fill and hang what a real disk loses, tears, flips, fills and hangs.
//!
//! What the callers may rely on, and no more:
//!
//! - A write is in the page cache when it returns, and on the disk once [`File::sync_data`] has returned after it.
//!   Between the two, a crash may leave any part of it, in any order.
//! - A file's name is durable once [`Disk::sync_dir`] of its directory has returned. A synced file whose directory
//!   was not synced may be gone after a crash.
//! - After a failed [`File::sync_data`] nothing is known about what reached the disk, and a later success proves
//!   nothing about the earlier writes (the kernel drops the dirty pages and reports the error once). So callers never
//!   sync again after a failure: they stop.
//!
//! [`OsDisk`] is the real one. [`fault::FaultDisk`] lives in memory and does what a bad day does.

pub mod fault;
mod os;
mod space;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use os::{EntryKind, OsDisk};
pub use space::{Space, is_full};

/// What was asked of the disk: named in errors, and counted and failed by [`fault::FaultDisk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// [`Disk::open`] of a file that exists.
    Open,
    /// [`Disk::open`] with [`Mode::CreateNew`].
    Create,
    /// [`File::read_at`].
    Read,
    /// [`File::write_at`].
    Write,
    /// [`File::sync_data`].
    Sync,
    /// [`File::set_len`].
    SetLen,
    /// [`File::zero_fill`].
    ZeroFill,
    /// [`File::len`].
    Len,
    /// [`Disk::rename`].
    Rename,
    /// [`Disk::remove`].
    Remove,
    /// [`Disk::remove_dir_all`].
    RemoveDir,
    /// [`Disk::list`], [`Disk::dirs`].
    List,
    /// [`Disk::sync_dir`].
    SyncDir,
    /// [`Disk::create_dir_all`].
    CreateDir,
    /// [`Disk::try_lock`].
    Lock,
    /// [`Disk::free_bytes`].
    Free,
}

impl Call {
    /// Every call, for tests that fail each of them in turn.
    pub const ALL: [Self; 16] = [
        Self::Open,
        Self::Create,
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::SetLen,
        Self::ZeroFill,
        Self::Len,
        Self::Rename,
        Self::Remove,
        Self::RemoveDir,
        Self::List,
        Self::SyncDir,
        Self::CreateDir,
        Self::Lock,
        Self::Free,
    ];
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Create => "create",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::SetLen => "set the length of",
            Self::ZeroFill => "zero-fill",
            Self::Len => "measure",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::RemoveDir => "remove the directory",
            Self::List => "list",
            Self::SyncDir => "sync the directory",
            Self::CreateDir => "create the directory",
            Self::Lock => "lock",
            Self::Free => "measure the free space of",
        })
    }
}

/// A call that failed: which, on what, and why. Cheap to clone, because a poisoned log repeats its first error for good.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot {call} {}: {source}", path.display())]
pub struct DiskError {
    /// What was asked.
    pub call: Call,
    /// The file or directory it was asked of.
    pub path: PathBuf,
    /// What the operating system answered.
    #[source]
    pub source: Arc<io::Error>,
}

impl DiskError {
    /// An error of `call` on `path`.
    pub fn new(call: Call, path: &Path, source: io::Error) -> Self {
        Self { call, path: path.to_owned(), source: Arc::new(source) }
    }

    /// The operating system's kind of error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }

    /// Whether there was no room for what was to be written.
    pub fn is_full(&self) -> bool {
        space::is_of_full_disk(self.kind())
    }

    /// Whether the file is not there.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It must exist; reading only.
    Read,
    /// It must exist; reading and writing.
    ReadWrite,
    /// It must not exist; reading and writing. Durable only after [`Disk::sync_dir`].
    CreateNew,
}

/// A file system, or something that behaves like one.
pub trait Disk: Send + Sync + 'static {
    /// Opens one file.
    ///
    /// # Errors
    /// `NotFound` where it must exist and doesn't, `AlreadyExists` where it must not and does; whatever else the disk says.
    fn open(&self, path: &Path, mode: Mode) -> Result<Arc<dyn File>, DiskError>;

    /// Gives a file another name, replacing what had that name, atomically. Durable after [`Disk::sync_dir`] of the
    /// directory of `to`. Works on directories too.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError>;

    /// Removes a file's name. Handles that are open stay usable. Durable after [`Disk::sync_dir`].
    ///
    /// # Errors
    /// Whatever the disk says.
    fn remove(&self, path: &Path) -> Result<(), DiskError>;

    /// The names of the files (not the directories) directly in `dir`, sorted. Names that aren't UTF-8 are left out:
    /// none of ours is like that.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn list(&self, dir: &Path) -> Result<Vec<String>, DiskError>;

    /// The names of the directories directly in `dir`, sorted, as [`Disk::list`] gives those of the files.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn dirs(&self, dir: &Path) -> Result<Vec<String>, DiskError>;

    /// Removes a directory with everything in it. Not atomic: a crash in between leaves a part of it, and the call can be
    /// repeated.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn remove_dir_all(&self, dir: &Path) -> Result<(), DiskError>;

    /// Makes the names in `dir` durable.
    ///
    /// # Errors
    /// Whatever the disk says. Final, like a failed [`File::sync_data`].
    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError>;

    /// Creates `dir` and what is missing above it, for the owner alone. Unlike the others this one is durable on
    /// return: each directory that got a new entry has been synced.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn create_dir_all(&self, dir: &Path) -> Result<(), DiskError>;

    /// Takes the exclusive lock on the file `path`, creating it where it's missing. Held until the guard is dropped or
    /// the process ends, however it ends.
    ///
    /// # Errors
    /// `WouldBlock` where another holds it; whatever else the disk says.
    fn try_lock(&self, path: &Path) -> Result<Box<dyn Lock>, DiskError>;

    /// Bytes that may still be written below `dir`, as far as the disk tells: a quota may allow fewer.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn free_bytes(&self, dir: &Path) -> Result<u64, DiskError>;
}

/// Holds a lock of [`Disk::try_lock`] until it's dropped.
pub trait Lock: Send + Sync {}

/// One open file. Offsets are in bytes from its start; no call moves a shared position.
pub trait File: Send + Sync {
    /// Where it is, for messages.
    fn path(&self) -> &Path;

    /// Reads at most `buf.len()` bytes; 0 at the end of the file. May read less than it could.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError>;

    /// Writes all of `buf`, growing the file where needed. After an error any part of it may have been written.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError>;

    /// Makes every write so far durable, and the length where reading them needs it.
    ///
    /// # Errors
    /// Whatever the disk says. Final: see the module's text.
    fn sync_data(&self) -> Result<(), DiskError>;

    /// Cuts the file, or grows it with a hole that reads as zeros.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn set_len(&self, bytes: u64) -> Result<(), DiskError>;

    /// Writes zeros over `from..to`, growing the file where needed. The zeros really are written: a later write into a
    /// region that was zero-filled and synced changes no metadata of the file system, so its sync has only data to flush.
    ///
    /// # Errors
    /// Whatever the disk says; a full disk shows here.
    fn zero_fill(&self, from: u64, to: u64) -> Result<(), DiskError>;

    /// The length in bytes.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn len(&self) -> Result<u64, DiskError>;

    /// Whether the length is 0.
    ///
    /// # Errors
    /// Those of [`File::len`].
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf`, or fails with `UnexpectedEof` where the file ends before.
    ///
    /// # Errors
    /// Whatever the disk says.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DiskError> {
        let mut done = 0;
        while done < buf.len() {
            let read = self.read_at(&mut buf[done..], offset + done as u64)?;
            if read == 0 {
                return Err(DiskError::new(Call::Read, self.path(), io::ErrorKind::UnexpectedEof.into()));
            }
            done += read;
        }
        Ok(())
    }
}
