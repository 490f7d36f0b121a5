//! Reading snapshot files again, to find damage while it can be made good; and those of a stopped node, once.

use std::{
    collections::VecDeque,
    error::Error,
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    SnapshotError, SnapshotOwner,
    read::{self, SnapshotRows},
    store::{self, Name, Snapshot, SnapshotStore, admitted},
};
use crate::{disk::Disk, limits::SCRUB_STEP_BYTES};

/// Which files a pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every one.
    All,
    /// Those that this process has not read yet.
    Unread,
}

/// One pass over the snapshot files there were when it began, in steps of about
/// [`SCRUB_STEP_BYTES`].
/// What it finds is noted in the [`SnapshotStore`]; at the end, bad files are deleted where there is a good one.
pub struct SnapshotScrub {
    store: Arc<SnapshotStore>,
    left: VecDeque<Name>,
    /// What is being read of the first of them.
    open: Option<SnapshotRows>,
}

impl SnapshotScrub {
    pub(super) fn new(store: Arc<SnapshotStore>, left: VecDeque<Name>) -> Self {
        Self { store, left, open: None }
    }

    /// Reads on in the first file; `None` once it is read to its end.
    fn read_on(&mut self, path: &Path) -> Result<Option<u64>, SnapshotError> {
        let before = self.open.as_ref().map_or(0, SnapshotRows::offset);
        let rows = match &mut self.open {
            Some(rows) => rows,
            None => self.open.insert(SnapshotRows::open(self.store.disk(), path)?),
        };
        while let Some(row) = rows.next() {
            row?;
            // The rows of a chunk lie in memory: only where the next is read does the file's offset move.
            if rows.offset() - before >= SCRUB_STEP_BYTES {
                return Ok(Some(rows.offset() - before));
            }
        }
        Ok(None)
    }
}

impl Iterator for SnapshotScrub {
    /// Bytes read.
    type Item = Result<u64, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        let name = *self.left.front()?;
        let path = self.store.path(name);
        let before = self.open.as_ref().map_or(0, SnapshotRows::offset);
        let found = match self.read_on(&path) {
            Ok(Some(bytes)) => return Some(Ok(bytes)),
            Ok(None) => {
                let rows = self.open.take().expect("what was read to its end is open");
                admitted(self.store.owner(), &path, Some(name.index), rows.meta().clone(), rows.bytes())
            }
            Err(error) => Err(error),
        };
        let bytes = match &found {
            Ok(snapshot) => snapshot.bytes - before,
            Err(_) => self.open.take().map_or(0, |rows| rows.offset() - before),
        };
        self.left.pop_front();
        let judged = self.store.judge(name, found);
        if self.left.is_empty() {
            self.store.prune();
        }
        Some(judged.map(|()| bytes))
    }
}

/// A snapshot file of a stopped node, read to its end.
#[derive(Debug)]
pub struct VerifiedFile {
    /// The file.
    pub path: PathBuf,
    /// The snapshot, or what is wrong with it.
    pub found: Result<Snapshot, SnapshotError>,
}

/// Reads every snapshot file in `dir` to its end, the newest first. Changes nothing.
///
/// # Errors
/// Where the directory can't be read; what is wrong with a file stands beside it.
pub fn verify_files(disk: &dyn Disk, dir: &Path, owner: SnapshotOwner) -> Result<Vec<VerifiedFile>, SnapshotError> {
    let named = store::found(disk, dir)?.into_iter();
    let verified = named.map(|(index, path)| {
        let read = read::verify(disk, &path);
        let found = read.and_then(|(meta, bytes)| admitted(owner, &path, Some(index), meta, bytes));
        VerifiedFile { path, found }
    });
    Ok(verified.collect())
}

/// An error with its causes, on one line.
pub fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}
