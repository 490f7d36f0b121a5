//! The snapshot files of a node: which there are, which are good, and what the log may forget.
//!
//! A file's name is `snapshot-INDEX-SEQUENCE.semel`; the sequence tells files of one index apart and grows with every
//! attempt, so that no two attempts share a name. A file without its final name has `.tmp` after it.
//!
//! A file is good once this process has read it to its end: the files found at start are read when they are first needed or
//! by [`SnapshotStore::verify_all`], and until then the log is not purged on their account.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};

use super::{
    SnapshotError, SnapshotMeta, SnapshotOwner,
    format::Damage,
    read::{self, SnapshotPieces, SnapshotRows},
    scrub::{SnapshotScrub, Which, in_full},
    write::write_rows,
};
use crate::{
    disk::{Disk, File, Mode},
    limits::{SNAPSHOT_PIECE_BYTES, SNAPSHOTS_KEPT},
    store::engine::{Batch, Engine, EngineCause, EngineError, EngineSnapshot, Row},
};

/// A snapshot file that was found whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// What it is a snapshot of.
    pub meta: SnapshotMeta,
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
}

/// What is known of a file.
#[derive(Clone, Debug)]
pub enum Condition {
    /// Found at start and not read yet.
    Unchecked,
    /// Read to its end and whole.
    Good(Snapshot),
    /// Not what was once written, or not readable.
    Bad(SnapshotError),
}

/// Index and sequence: the order of age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) index: u64,
    sequence: u64,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "snapshot-{:020}-{:08}.semel", self.index, self.sequence)
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let (index, sequence) = text.strip_prefix("snapshot-")?.strip_suffix(".semel")?.split_once('-')?;
        let name = Self { index: index.parse().ok()?, sequence: sequence.parse().ok()? };
        // Not every text that parses is one that is written: `+7` is a number too.
        (name.to_string() == text).then_some(name)
    }
}

const TEMPORARY: &str = ".tmp";

/// The files in `dir` that bear a snapshot's name, the newest first, each with the index in its name. None of them was
/// read, and nothing is changed. No directory holds none.
///
/// # Errors
/// The disk's.
pub fn found(disk: &dyn Disk, dir: &Path) -> Result<Vec<(u64, PathBuf)>, SnapshotError> {
    let names = match disk.list(dir) {
        Err(error) if error.is_not_found() => Vec::new(),
        names => names?,
    };
    let mut names: Vec<Name> = names.iter().filter_map(|text| Name::parse(text)).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names.into_iter().map(|name| (name.index, dir.join(name.to_string()))).collect())
}

/// The snapshot files in one directory. All methods block on the disk; call them where that is allowed.
pub struct SnapshotStore {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    owner: SnapshotOwner,
    local_keys: BTreeSet<Bytes>,
    /// Held by whoever reads files to find out what they are worth, for as long as that takes.
    checking: Mutex<()>,
    files: Mutex<Files>,
}

struct Files {
    known: BTreeMap<Name, Condition>,
    next_sequence: u64,
    /// A file was found bad, and none was written since.
    is_one_lost: bool,
}

impl Files {
    /// The good files, the newest first.
    fn good(&self) -> impl Iterator<Item = (Name, &Snapshot)> {
        self.known.iter().rev().filter_map(|(name, condition)| match condition {
            Condition::Good(snapshot) => Some((*name, snapshot)),
            Condition::Unchecked | Condition::Bad(_) => None,
        })
    }
}

impl SnapshotStore {
    /// Opens the directory `dir`, which is created where it is missing, and deletes what unfinished attempts have left.
    /// Files of anyone but `owner` are refused. `local_keys` are the keys that never leave this node: they are in no
    /// snapshot.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: impl Into<PathBuf>,
        owner: SnapshotOwner,
        local_keys: impl IntoIterator<Item = Bytes>,
    ) -> Result<Self, SnapshotError> {
        let dir = dir.into();
        disk.create_dir_all(&dir)?;
        let mut known = BTreeMap::new();
        for text in disk.list(&dir)? {
            if text.ends_with(TEMPORARY) {
                disk.remove(&dir.join(&text))?;
            } else if let Some(name) = Name::parse(&text) {
                known.insert(name, Condition::Unchecked);
            }
        }
        let next_sequence = known.keys().map(|name| name.sequence + 1).max().unwrap_or(1);
        Ok(Self {
            disk,
            dir,
            owner,
            local_keys: local_keys.into_iter().collect(),
            checking: Mutex::new(()),
            files: Mutex::new(Files { known, next_sequence, is_one_lost: false }),
        })
    }

    /// The files and what is known of them, the newest first.
    pub fn list(&self) -> Vec<(PathBuf, Condition)> {
        let files = self.files.lock();
        files.known.iter().rev().map(|(name, condition)| (self.path(*name), condition.clone())).collect()
    }

    pub(super) fn path(&self, name: Name) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// The newest good file. Files that were not read yet are read until one is found good, the newest first.
    ///
    /// # Errors
    /// [`SnapshotError::UnknownVersion`], [`SnapshotError::Foreign`]; a damaged or unreadable file is passed over.
    pub fn newest_verified(&self) -> Result<Option<Snapshot>, SnapshotError> {
        let checking = self.checking.lock();
        let names: Vec<Name> = self.files.lock().known.keys().rev().copied().collect();
        for name in names {
            self.check(name, &checking)?;
            let newest = self.files.lock().good().next().map(|(_, snapshot)| snapshot.clone());
            if newest.is_some() {
                self.prune();
                return Ok(newest);
            }
        }
        Ok(None)
    }

    /// Reads every file that was not read yet. Then [`SnapshotStore::older_verified_index`] counts all that is good.
    ///
    /// # Errors
    /// [`SnapshotError::UnknownVersion`], [`SnapshotError::Foreign`]; what is wrong with damaged and unreadable files is in [`SnapshotStore::list`].
    pub fn verify_all(&self) -> Result<(), SnapshotError> {
        let checking = self.checking.lock();
        let names: Vec<Name> = self.files.lock().known.keys().rev().copied().collect();
        names.into_iter().try_for_each(|name| self.check(name, &checking))?;
        self.prune();
        Ok(())
    }

    /// The index of the older of the two newest good files: the log may be purged up to and including that entry, and
    /// not beyond (S2). `None` while there are not two.
    pub fn older_verified_index(&self) -> Option<u64> {
        self.files.lock().good().nth(SNAPSHOTS_KEPT - 1).map(|(name, _)| name.index)
    }

    /// Reads a file that was not read yet, and notes what it is worth.
    fn check(&self, name: Name, _checking: &MutexGuard<'_, ()>) -> Result<(), SnapshotError> {
        if !matches!(self.files.lock().known.get(&name), Some(Condition::Unchecked)) {
            return Ok(());
        }
        let found = self.verified(&self.path(name), Some(name.index));
        self.judge(name, found)
    }

    /// Notes what reading a file to its end came to, if it is still there.
    ///
    /// # Errors
    /// [`SnapshotError::UnknownVersion`], [`SnapshotError::Foreign`]: of those nothing is noted.
    pub(super) fn judge(&self, name: Name, found: Result<Snapshot, SnapshotError>) -> Result<(), SnapshotError> {
        let mut files = self.files.lock();
        if !files.known.contains_key(&name) {
            return Ok(());
        }
        let condition = match found {
            Ok(snapshot) => Condition::Good(snapshot),
            Err(error @ (SnapshotError::UnknownVersion { .. } | SnapshotError::Foreign { .. })) => return Err(error),
            Err(error) => {
                tracing::error!(path = %self.path(name).display(), error = %in_full(&error), "a snapshot file is bad");
                files.is_one_lost = true;
                Condition::Bad(error)
            }
        };
        files.known.insert(name, condition);
        Ok(())
    }

    /// Reads a good file again, because a reader could not use it, and notes what it is worth.
    ///
    /// # Errors
    /// Those of [`SnapshotStore::verify_all`]; of a file that is damaged or can't be read none: it is passed over from now on.
    pub fn doubt(&self, snapshot: &Snapshot) -> Result<(), SnapshotError> {
        let _checking = self.checking.lock();
        let name = self.files.lock().good().find(|(_, good)| *good == snapshot).map(|(name, _)| name);
        let Some(name) = name else { return Ok(()) };
        let found = self.verified(&self.path(name), Some(name.index));
        self.judge(name, found)
    }

    /// Whether a file was found bad and none was written since: then another is to be, in its place.
    pub fn is_one_lost(&self) -> bool {
        self.files.lock().is_one_lost
    }

    /// Reads every file anew, or those alone that were not read yet, the newest first and in steps.
    pub fn scrub(self: &Arc<Self>, which: Which) -> SnapshotScrub {
        let is_wanted = |condition: &Condition| match which {
            Which::All => true,
            Which::Unread => matches!(condition, Condition::Unchecked),
        };
        let files = self.files.lock();
        let wanted = files.known.iter().rev().filter(|(_, condition)| is_wanted(condition));
        let names = wanted.map(|(name, _)| *name).collect();
        drop(files);
        SnapshotScrub::new(Arc::clone(self), names)
    }

    /// Reads the file at `path` to its end. Its name decides what the log may forget, so a file under a name that is not its
    /// own is not believed.
    fn verified(&self, path: &Path, index: Option<u64>) -> Result<Snapshot, SnapshotError> {
        let (meta, bytes) = read::verify(&*self.disk, path)?;
        admitted(self.owner, path, index, meta, bytes)
    }

    pub(super) fn owner(&self) -> SnapshotOwner {
        self.owner
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Deletes what is no longer needed: what is older than the two newest good files, and damaged files while there is a
    /// good one (S3). A file that cannot be read may be readable again, so it stays until it is old. A file that cannot be
    /// deleted stays on the list, for the next time.
    pub(super) fn prune(&self) {
        let mut files = self.files.lock();
        let Some((newest, _)) = files.good().next() else { return };
        let oldest_kept = files.good().nth(SNAPSHOTS_KEPT - 1).map(|(name, _)| name);
        let doomed: Vec<Name> = files
            .known
            .iter()
            .filter(|(name, condition)| {
                let damaged = matches!(condition, Condition::Bad(SnapshotError::Damaged { .. }));
                **name != newest && (damaged || oldest_kept.is_some_and(|oldest| **name < oldest))
            })
            .map(|(name, _)| *name)
            .collect();
        for name in doomed {
            let path = self.path(name);
            match self.disk.remove(&path) {
                Ok(()) => {
                    files.known.remove(&name);
                }
                Err(error) => tracing::warn!(path = %path.display(), %error, "a snapshot file could not be deleted"),
            }
        }
    }

    /// Writes the rows of `view`, but for the local keys, as the snapshot that `meta` describes. `meta` must be of the same
    /// moment as the view: take it from the view's own keys.
    ///
    /// # Errors
    /// Of the disk or the engine, both final; [`SnapshotError::TooLarge`]. The files from before are as they were.
    pub fn build(&self, meta: &SnapshotMeta, view: Box<dyn EngineSnapshot>) -> Result<Snapshot, SnapshotError> {
        self.build_of(meta, &mut view.into_scan()?)
    }

    /// Writes these rows, which come in key order, but for the local keys, as the snapshot that `meta` describes.
    ///
    /// # Errors
    /// Those of [`SnapshotStore::build`], and of the rows.
    pub fn build_of(
        &self,
        meta: &SnapshotMeta,
        rows: &mut dyn Iterator<Item = Result<Row, EngineError>>,
    ) -> Result<Snapshot, SnapshotError> {
        let unfinished = self.begin()?;
        let is_local =
            |row: &Result<Row, EngineError>| row.as_ref().is_ok_and(|(key, _)| self.local_keys.contains(key));
        write_rows(Arc::clone(&unfinished.file), meta, &mut rows.filter(|row| !is_local(row)))?;
        self.finish(unfinished)
    }

    /// Begins to receive a snapshot of `bytes` bytes from a peer.
    ///
    /// # Errors
    /// The disk's.
    pub fn receive(self: &Arc<Self>, bytes: u64) -> Result<SnapshotReceiver, SnapshotError> {
        Ok(SnapshotReceiver { unfinished: self.begin()?, store: Arc::clone(self), bytes, received: 0 })
    }

    /// A new file under a temporary name.
    fn begin(&self) -> Result<Unfinished, SnapshotError> {
        let sequence = {
            let mut files = self.files.lock();
            files.next_sequence += 1;
            files.next_sequence - 1
        };
        let path = self.dir.join(format!("snapshot-{sequence:08}{TEMPORARY}"));
        let file = self.disk.open(&path, Mode::CreateNew)?;
        Ok(Unfinished { disk: Arc::clone(&self.disk), file, path, sequence, named: false })
    }

    /// Reads a synced file to its end and gives it its name (S1). The name comes last: a file that bears it was whole.
    fn finish(&self, mut unfinished: Unfinished) -> Result<Snapshot, SnapshotError> {
        let found = self.verified(&unfinished.path, None)?;
        let name = Name { index: found.meta.index, sequence: unfinished.sequence };
        let snapshot = Snapshot { path: self.path(name), ..found };
        self.disk.rename(&unfinished.path, &snapshot.path)?;
        unfinished.named = true;
        self.disk.sync_dir(&self.dir)?;
        let mut files = self.files.lock();
        files.known.insert(name, Condition::Good(snapshot.clone()));
        files.is_one_lost = false;
        drop(files);
        self.prune();
        Ok(snapshot)
    }

    /// Opens a snapshot to send it to a peer, in pieces of the size that [`SnapshotReceiver`] takes.
    ///
    /// # Errors
    /// The disk's.
    pub fn pieces(&self, snapshot: &Snapshot) -> Result<SnapshotPieces, SnapshotError> {
        SnapshotPieces::open(&*self.disk, &snapshot.path)
    }

    /// Loads a snapshot into an empty engine. The row under `whole_key` is written last, in one batch with the rows of
    /// `local`, so that an engine without it was loaded half. Returns the number of rows. A file that turns out damaged is
    /// noted as bad: ask for the newest good one again, and start over with another empty engine.
    ///
    /// # Errors
    /// [`SnapshotError::Damaged`], [`SnapshotError::NotWhole`]; of the disk; of the engine, final.
    pub fn load(
        &self,
        snapshot: &Snapshot,
        engine: &dyn Engine,
        whole_key: &[u8],
        local: impl IntoIterator<Item = Row>,
    ) -> Result<u64, SnapshotError> {
        let loaded = self.load_checked(snapshot, engine, whole_key, local);
        if let Err(error @ (SnapshotError::Damaged { .. } | SnapshotError::Disk(_))) = &loaded {
            let name = self.files.lock().good().find(|(_, good)| *good == snapshot).map(|(name, _)| name);
            if let Some(name) = name {
                self.judge(name, Err(error.clone()))?;
            }
        }
        loaded
    }

    fn load_checked(
        &self,
        snapshot: &Snapshot,
        engine: &dyn Engine,
        whole_key: &[u8],
        local: impl IntoIterator<Item = Row>,
    ) -> Result<u64, SnapshotError> {
        let mut last: BTreeMap<Bytes, Bytes> = local.into_iter().collect();
        let mut whole = None;
        let mut failed = None;
        let mut file = SnapshotRows::open(&*self.disk, &snapshot.path)?;
        if *file.meta() != snapshot.meta {
            return Err(SnapshotError::damaged(&snapshot.path, 0, Damage::Fields));
        }
        let mut rows = std::iter::from_fn(|| {
            loop {
                return match file.next()? {
                    Ok((key, value)) if key == whole_key => {
                        whole = Some((key, value));
                        continue;
                    }
                    Ok(row) => Some(Ok(row)),
                    Err(error) => {
                        failed = Some(error.clone());
                        Some(Err(EngineError::Source(EngineCause::new(error))))
                    }
                };
            }
        });
        let loaded = engine.load_sorted(&mut rows, Batch::new());
        if let Some(error) = failed {
            return Err(error);
        }
        let loaded = loaded?;
        last.extend(whole);
        if !last.contains_key(whole_key) {
            return Err(SnapshotError::NotWhole);
        }
        let rows = loaded + last.len() as u64;
        let mut finish = Batch::with_capacity(last.len());
        for (key, value) in last {
            finish.put(key, value);
        }
        engine.write(finish)?;
        Ok(rows)
    }
}

/// A file that was read to its end, as a snapshot of this owner's.
pub(super) fn admitted(
    owner: SnapshotOwner,
    path: &Path,
    index: Option<u64>,
    meta: SnapshotMeta,
    bytes: u64,
) -> Result<Snapshot, SnapshotError> {
    if index.is_some_and(|index| index != meta.index) {
        return Err(SnapshotError::damaged(path, 0, Damage::Fields));
    }
    if (SnapshotOwner { lineage: meta.lineage, cluster: meta.cluster }) != owner {
        return Err(SnapshotError::Foreign { path: path.to_owned() });
    }
    Ok(Snapshot { meta, path: path.to_owned(), bytes })
}

/// A file under its temporary name. Dropped without its final one, it is deleted; if that fails, at the next start.
struct Unfinished {
    disk: Arc<dyn Disk>,
    file: Arc<dyn File>,
    path: PathBuf,
    sequence: u64,
    named: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.named
            && let Err(error) = self.disk.remove(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "an unfinished snapshot could not be deleted");
        }
    }
}

/// A snapshot on its way from a peer. Dropped before [`SnapshotReceiver::finish`], nothing is left of it.
pub struct SnapshotReceiver {
    store: Arc<SnapshotStore>,
    unfinished: Unfinished,
    bytes: u64,
    received: u64,
}

impl SnapshotReceiver {
    /// Where the next piece begins.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Takes the next piece, which begins at `offset`. The same piece again is not taken: whoever lost count asks
    /// [`SnapshotReceiver::received`].
    ///
    /// # Errors
    /// [`SnapshotError::OutOfTurn`]; [`SnapshotError::WrongLength`] or [`SnapshotError::TooLarge`] for more than was
    /// announced or than a piece holds; the disk's.
    pub fn piece(&mut self, offset: u64, piece: &[u8]) -> Result<(), SnapshotError> {
        if offset != self.received {
            return Err(SnapshotError::OutOfTurn { expected: self.received, got: offset });
        }
        if piece.len() > SNAPSHOT_PIECE_BYTES {
            let (bytes, bytes_max) = (piece.len() as u64, SNAPSHOT_PIECE_BYTES as u64);
            return Err(SnapshotError::TooLarge { what: "piece", bytes, bytes_max });
        }
        let received = self.received + piece.len() as u64;
        if received > self.bytes {
            return Err(SnapshotError::WrongLength { announced: self.bytes, got: received });
        }
        self.unfinished.file.write_at(piece, offset)?;
        self.received = received;
        Ok(())
    }

    /// Syncs what came, reads it to its end, and counts it among the good files.
    ///
    /// # Errors
    /// [`SnapshotError::WrongLength`] when pieces are missing; [`SnapshotError::Damaged`], [`SnapshotError::Foreign`],
    /// [`SnapshotError::UnknownVersion`]: nothing is left of what came; the disk's.
    pub fn finish(self) -> Result<Snapshot, SnapshotError> {
        if self.received != self.bytes {
            return Err(SnapshotError::WrongLength { announced: self.bytes, got: self.received });
        }
        self.unfinished.file.sync_data()?;
        self.store.finish(self.unfinished)
    }
}
