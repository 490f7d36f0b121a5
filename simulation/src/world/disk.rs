//! A node's disk: the product's own fault-injecting disk, with every call noted, and traps at which the node dies.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel::disk::{
    Call, Disk, DiskError, File, Lock, Mode,
    fault::{Crash, FaultDisk},
};

use super::trace;
use crate::fault::FaultKind;

/// Where a node dies: at a call on such a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// While it writes or takes a snapshot.
    Snapshot,
    /// While the log gives away what it needs no more.
    Purge,
    /// While it reads its log at the start.
    Recovery,
    /// As it writes or syncs its log.
    Sync,
    /// At whatever it does next, as it takes over a state.
    Install,
}

impl Trap {
    /// The kind of fault that it is.
    pub fn kind(self) -> FaultKind {
        match self {
            Self::Snapshot => FaultKind::CrashInSnapshotBuild,
            Self::Purge => FaultKind::CrashInPurge,
            Self::Recovery => FaultKind::CrashInRecovery,
            Self::Sync => FaultKind::CrashInSync,
            Self::Install => FaultKind::CrashInInstall,
        }
    }

    fn springs(self, call: Call, path: &Path) -> bool {
        let is_below = |dir: &str| path.components().any(|part| part.as_os_str() == dir);
        match self {
            Self::Snapshot => {
                is_below("snapshots") && matches!(call, Call::Write | Call::Sync | Call::Rename | Call::SyncDir)
            }
            Self::Purge => is_below("wal") && matches!(call, Call::Rename | Call::Remove),
            Self::Recovery => is_below("wal") && matches!(call, Call::Open | Call::Read),
            Self::Sync => is_below("wal") && matches!(call, Call::Write | Call::Sync),
            Self::Install => true,
        }
    }
}

#[derive(Default)]
struct State {
    /// What kills the node, after so many calls that it fits.
    trap: Option<(Trap, u32)>,
    /// What it has died of: nothing reaches the disk any more.
    died_of: Option<Trap>,
    /// A call was made to fail: the node may end itself.
    has_failed: bool,
}

/// The disk as one life of a node sees it.
#[derive(Clone)]
pub struct SimDisk {
    node: u64,
    inner: FaultDisk,
    state: Arc<Mutex<State>>,
}

impl SimDisk {
    /// The disk of this node, in a new life.
    pub fn new(node: u64, inner: FaultDisk) -> Self {
        Self { node, inner, state: Arc::default() }
    }

    /// The bytes below.
    pub fn inner(&self) -> &FaultDisk {
        &self.inner
    }

    /// The node dies at the so many-th call that fits from now on.
    pub fn arm(&self, trap: Trap, after: u32) {
        self.lock().trap = Some((trap, after));
    }

    /// The trap that it has died of.
    pub fn died_of(&self) -> Option<Trap> {
        self.lock().died_of
    }

    /// No trap any more.
    pub fn disarm(&self) {
        self.lock().trap = None;
    }

    /// Calls will fail: the node may end itself.
    pub fn will_fail(&self) {
        self.lock().has_failed = true;
    }

    /// Whether the node has a reason to end itself.
    pub fn may_end(&self) -> bool {
        let state = self.lock();
        state.has_failed || state.died_of.is_some()
    }

    /// The disk of the next life.
    pub fn reborn(&self, how: Crash) -> Self {
        Self::new(self.node, self.inner.crashed(how))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, call: Call, path: &Path, detail: u64) -> Result<(), DiskError> {
        trace::note(self.node, "disk", detail << 8 | call as u64, path.as_os_str().as_encoded_bytes());
        let mut state = self.lock();
        if let Some((trap, after)) = state.trap
            && trap.springs(call, path)
        {
            if after == 0 {
                (state.trap, state.died_of) = (None, Some(trap));
                trace::tell(|| format!("n{} dies at {call} {}", self.node, path.display()));
            } else {
                state.trap = Some((trap, after - 1));
            }
        }
        match state.died_of.is_some() {
            true => Err(DiskError::new(call, path, std::io::Error::other("the process is gone"))),
            false => Ok(()),
        }
    }
}

struct SimFile {
    disk: SimDisk,
    path: PathBuf,
    inner: Arc<dyn File>,
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: Mode) -> Result<Arc<dyn File>, DiskError> {
        self.enter(if mode == Mode::CreateNew { Call::Create } else { Call::Open }, path, 0)?;
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(SimFile { disk: self.clone(), path: path.to_owned(), inner }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        self.enter(Call::Rename, from, 0)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        self.enter(Call::Remove, path, 0)?;
        self.inner.remove(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        self.enter(Call::List, dir, 0)?;
        self.inner.list(dir)
    }

    fn dirs(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        self.enter(Call::List, dir, 1)?;
        self.inner.dirs(dir)
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        self.enter(Call::RemoveDir, dir, 0)?;
        self.inner.remove_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        self.enter(Call::SyncDir, dir, 0)?;
        self.inner.sync_dir(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        self.enter(Call::CreateDir, dir, 0)?;
        self.inner.create_dir_all(dir)
    }

    fn free_bytes(&self, dir: &Path) -> Result<u64, DiskError> {
        self.enter(Call::Free, dir, 0)?;
        self.inner.free_bytes(dir)
    }

    fn try_lock(&self, path: &Path) -> Result<Box<dyn Lock>, DiskError> {
        self.enter(Call::Lock, path, 0)?;
        self.inner.try_lock(path)
    }
}

impl File for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.disk.enter(Call::Read, &self.path, offset)?;
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.disk.enter(Call::Write, &self.path, offset)?;
        trace::note(self.disk.node, "write", offset, buf);
        self.inner.write_at(buf, offset)
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        self.disk.enter(Call::Sync, &self.path, 0)?;
        self.inner.sync_data()
    }

    fn set_len(&self, bytes: u64) -> Result<(), DiskError> {
        self.disk.enter(Call::SetLen, &self.path, bytes)?;
        self.inner.set_len(bytes)
    }

    fn zero_fill(&self, from: u64, to: u64) -> Result<(), DiskError> {
        self.disk.enter(Call::ZeroFill, &self.path, from)?;
        self.inner.zero_fill(from, to)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.disk.enter(Call::Len, &self.path, 0)?;
        self.inner.len()
    }
}
