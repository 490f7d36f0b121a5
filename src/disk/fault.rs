//! A disk in memory that has bad days on demand.
//!
//! It keeps, for every file, the bytes that are durable and the writes that no sync has covered yet, and for every
//! directory the names that no sync of the directory has covered yet. A crash keeps the first and any part of the
//! second. Everything it does follows from the calls and the seeds: two runs of the same calls see the same disk.
//!
//! What it models more harshly than most disks: unsynced writes survive in any subset, also within a sector; a failed
//! sync dooms the writes it should have covered, so that a later sync that succeeds doesn't make them durable; a failed
//! write leaves half of itself. What it models more kindly: a directory that was created or renamed is durable at once.

mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Call, Disk, DiskError, File, Lock, Mode};
use state::{Admission, State};

/// What a call that was chosen to fail does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// Answers EIO. A write has done half of its work; a sync has doomed what it should have covered.
    Eio,
    /// Answers ENOSPC, in the same way.
    Enospc,
    /// Doesn't return until [`FaultDisk::release`]; then does its work.
    Hang,
}

/// What a crash leaves of the writes and names that were not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// Nothing: the power failed before the cache was written back.
    LoseUnsynced,
    /// All of it: the process was killed, the machine lived.
    KeepUnsynced,
    /// The first so many bytes of what was written, in the order of the calls, and all names.
    KeepBytes(u64),
    /// Any subset, in pieces of sectors and now and then of bytes, chosen by the seed.
    Tear(u64),
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// The disk. Clones share it; [`FaultDisk::copy`] doesn't.
#[derive(Clone)]
pub struct FaultDisk {
    shared: Arc<Shared>,
}

impl Default for FaultDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl FaultDisk {
    /// An empty disk without limits or faults.
    pub fn new() -> Self {
        Self::of(State::default())
    }

    fn of(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// The `nth` call of this kind from now on (0 is the next) fails in this way, once.
    pub fn fail(&self, call: Call, nth: u64, failure: Failure) {
        self.shared.state.lock().plan(Some(call), None, nth, failure);
    }

    /// The `nth` call of any kind from now on (0 is the next) fails in this way, once: counting `nth` up until
    /// [`FaultDisk::fired`] stays 0 visits every call site.
    pub fn fail_any(&self, nth: u64, failure: Failure) {
        self.shared.state.lock().plan(None, None, nth, failure);
    }

    /// The `nth` call of this kind on a path that contains `part` fails in this way, once.
    pub fn fail_on(&self, call: Call, part: &str, nth: u64, failure: Failure) {
        self.shared.state.lock().plan(Some(call), Some(part.to_owned()), nth, failure);
    }

    /// Forgets the failures that have not fired.
    pub fn heal(&self) {
        self.shared.state.lock().plans.clear();
    }

    /// How many planned failures have fired.
    pub fn fired(&self) -> u64 {
        self.shared.state.lock().fired
    }

    /// How many calls of this kind were made.
    pub fn calls(&self, call: Call) -> u64 {
        self.shared.state.lock().counts.get(&call).copied().unwrap_or(0)
    }

    /// How many calls hang at this moment.
    pub fn hanging(&self) -> usize {
        self.shared.state.lock().hanging
    }

    /// Waits until a call hangs.
    pub fn wait_until_hanging(&self) {
        let mut state = self.shared.state.lock();
        while state.hanging == 0 {
            self.shared.changed.wait(&mut state);
        }
    }

    /// Lets every call that hangs go on.
    pub fn release(&self) {
        self.shared.state.lock().release();
        self.shared.changed.notify_all();
    }

    /// Bounds the bytes of all files together: growing beyond it answers ENOSPC. `None` is no bound.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity = bytes;
    }

    /// The machine crashes and is back: locks are gone, and every handle opened before fails from now on.
    pub fn crash(&self, how: Crash) {
        self.shared.state.lock().crash(how);
        self.shared.changed.notify_all();
    }

    /// The process ends and the machine lives: locks are gone and handles fail, but everything written is still there,
    /// synced or not, as the next process reads it.
    pub fn crash_process(&self) {
        self.shared.state.lock().crash_process();
        self.shared.changed.notify_all();
    }

    /// Another disk that holds what a crash at this moment would leave; this one goes on.
    pub fn crashed(&self, how: Crash) -> Self {
        let copy = self.copy();
        copy.crash(how);
        copy
    }

    /// Another disk with the same content, unsynced writes included, without locks and planned failures.
    pub fn copy(&self) -> Self {
        Self::of(self.shared.state.lock().copy())
    }

    /// Goes back to the content that another disk has now: a backup put back, a virtual machine rolled back. Handles
    /// opened before fail.
    pub fn roll_back(&self, to: &Self) {
        let copy = to.shared.state.lock().copy();
        self.shared.state.lock().become_like(copy);
        self.shared.changed.notify_all();
    }

    /// How many bytes were written and not synced: the range of [`Crash::KeepBytes`].
    pub fn unsynced_bytes(&self) -> u64 {
        self.shared.state.lock().unsynced_bytes()
    }

    /// The whole content of a file as a reader sees it.
    pub fn contents(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.shared.state.lock().contents(path.as_ref())
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.shared.state.lock().paths()
    }

    /// Turns one bit of a file over, durably, as a bad cell does. Returns false where there is no such byte.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u8) -> bool {
        self.shared.state.lock().damage(path.as_ref(), |bytes| match bytes.get_mut(offset as usize) {
            Some(byte) => {
                *byte ^= 1 << (bit % 8);
                true
            }
            None => false,
        })
    }

    /// Writes over a part of a file, durably, behind everyone's back. Returns false where the file is shorter.
    pub fn overwrite(&self, path: impl AsRef<Path>, offset: u64, with: &[u8]) -> bool {
        let from = offset as usize;
        self.shared.state.lock().damage(path.as_ref(), |bytes| match bytes.get_mut(from..from + with.len()) {
            Some(part) => {
                part.copy_from_slice(with);
                true
            }
            None => false,
        })
    }

    /// Cuts a file, durably, behind everyone's back. Returns false where there is no such file.
    pub fn cut(&self, path: impl AsRef<Path>, len: u64) -> bool {
        self.shared.state.lock().damage(path.as_ref(), |bytes| {
            bytes.truncate(len as usize);
            true
        })
    }

    /// Counts a call, waits while it's chosen to hang, and says whether it's chosen to fail.
    fn enter(
        &self,
        call: Call,
        path: &Path,
        life: Option<u64>,
    ) -> Result<(MutexGuard<'_, State>, Option<Failure>), DiskError> {
        let mut state = self.shared.state.lock();
        let admission = state.admit(call, path);
        if let Admission::Hang { until } = admission {
            let began = state.life;
            state.hanging += 1;
            self.shared.changed.notify_all();
            while state.releases < until && state.life == began {
                self.shared.changed.wait(&mut state);
            }
            state.hanging -= 1;
            if state.life != began {
                return Err(state::broken(call, path, Failure::Eio));
            }
        }
        if life.is_some_and(|life| life != state.life) {
            return Err(state::broken(call, path, Failure::Eio));
        }
        match admission {
            Admission::Fail(failure) => Ok((state, Some(failure))),
            Admission::Pass | Admission::Hang { .. } => Ok((state, None)),
        }
    }

    /// Like [`FaultDisk::enter`], for calls that do nothing when they fail.
    fn enter_whole(&self, call: Call, path: &Path, life: Option<u64>) -> Result<MutexGuard<'_, State>, DiskError> {
        match self.enter(call, path, life)? {
            (_, Some(failure)) => Err(state::broken(call, path, failure)),
            (state, None) => Ok(state),
        }
    }
}

struct FaultFile {
    disk: FaultDisk,
    path: PathBuf,
    inode: u64,
    life: u64,
    writable: bool,
}

struct FaultLock {
    disk: FaultDisk,
    path: PathBuf,
    life: u64,
}

impl Lock for FaultLock {}

impl Drop for FaultLock {
    fn drop(&mut self) {
        let mut state = self.disk.shared.state.lock();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

impl Disk for FaultDisk {
    fn open(&self, path: &Path, mode: Mode) -> Result<Arc<dyn File>, DiskError> {
        let call = if mode == Mode::CreateNew { Call::Create } else { Call::Open };
        let mut state = self.enter_whole(call, path, None)?;
        let inode = if mode == Mode::CreateNew { state.create(path) } else { state.find(path) };
        let inode = inode.map_err(|kind| DiskError::new(call, path, kind.into()))?;
        let (life, path) = (state.life, path.to_owned());
        Ok(Arc::new(FaultFile { disk: self.clone(), path, inode, life, writable: mode != Mode::Read }))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        let mut state = self.enter_whole(Call::Rename, from, None)?;
        state.rename(from, to).map_err(|kind| DiskError::new(Call::Rename, from, kind.into()))
    }

    fn remove(&self, path: &Path) -> Result<(), DiskError> {
        let mut state = self.enter_whole(Call::Remove, path, None)?;
        state.remove(path).map_err(|kind| DiskError::new(Call::Remove, path, kind.into()))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        let state = self.enter_whole(Call::List, dir, None)?;
        state.list(dir).map_err(|kind| DiskError::new(Call::List, dir, kind.into()))
    }

    fn dirs(&self, dir: &Path) -> Result<Vec<String>, DiskError> {
        let state = self.enter_whole(Call::List, dir, None)?;
        state.dirs_in(dir).map_err(|kind| DiskError::new(Call::List, dir, kind.into()))
    }

    fn remove_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        let mut state = self.enter_whole(Call::RemoveDir, dir, None)?;
        state.remove_dir_all(dir).map_err(|kind| DiskError::new(Call::RemoveDir, dir, kind.into()))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), DiskError> {
        self.enter_whole(Call::SyncDir, dir, None)?.sync_dir(dir);
        Ok(())
    }

    fn create_dir_all(&self, dir: &Path) -> Result<(), DiskError> {
        self.enter_whole(Call::CreateDir, dir, None)?.create_dir_all(dir);
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> Result<Box<dyn Lock>, DiskError> {
        let mut state = self.enter_whole(Call::Lock, path, None)?;
        if !state.locks.insert(path.to_owned()) {
            return Err(DiskError::new(Call::Lock, path, std::io::ErrorKind::WouldBlock.into()));
        }
        Ok(Box::new(FaultLock { disk: self.clone(), path: path.to_owned(), life: state.life }))
    }

    /// Not counted, and never chosen to fail: it is asked now and then, and who counts calls counts what is done.
    fn free_bytes(&self, _: &Path) -> Result<u64, DiskError> {
        Ok(self.shared.state.lock().free())
    }
}

impl FaultFile {
    fn deny_if_read_only(&self, call: Call) -> Result<(), DiskError> {
        match self.writable {
            true => Ok(()),
            false => Err(DiskError::new(call, &self.path, std::io::ErrorKind::PermissionDenied.into())),
        }
    }
}

impl File for FaultFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        let state = self.disk.enter_whole(Call::Read, &self.path, Some(self.life))?;
        let live = &state.inode(self.inode).live;
        let from = (offset as usize).min(live.len());
        let count = buf.len().min(live.len() - from);
        buf[..count].copy_from_slice(&live[from..from + count]);
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.deny_if_read_only(Call::Write)?;
        let (mut state, failure) = self.disk.enter(Call::Write, &self.path, Some(self.life))?;
        let failure = failure.or_else(|| state.full(self.inode, offset + buf.len() as u64));
        // A write that fails has done a part of its work: half, which is as good as any.
        let done = if failure.is_some() { buf.len() / 2 } else { buf.len() };
        if !state.is_full(self.inode, offset + done as u64) {
            state.write(self.inode, offset, &buf[..done]);
        }
        failure.map_or(Ok(()), |failure| Err(state::broken(Call::Write, &self.path, failure)))
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        let (mut state, failure) = self.disk.enter(Call::Sync, &self.path, Some(self.life))?;
        match failure {
            Some(failure) => {
                state.doom(self.inode);
                Err(state::broken(Call::Sync, &self.path, failure))
            }
            None => {
                state.sync(self.inode);
                Ok(())
            }
        }
    }

    fn set_len(&self, bytes: u64) -> Result<(), DiskError> {
        self.deny_if_read_only(Call::SetLen)?;
        self.disk.enter_whole(Call::SetLen, &self.path, Some(self.life))?.set_len(self.inode, bytes);
        Ok(())
    }

    fn zero_fill(&self, from: u64, to: u64) -> Result<(), DiskError> {
        self.deny_if_read_only(Call::ZeroFill)?;
        let (mut state, failure) = self.disk.enter(Call::ZeroFill, &self.path, Some(self.life))?;
        let failure = failure.or_else(|| state.full(self.inode, to));
        let done = if failure.is_some() { from + to.saturating_sub(from) / 2 } else { to };
        if !state.is_full(self.inode, done) && done > from {
            state.write(self.inode, from, &vec![0; (done - from) as usize]);
        }
        failure.map_or(Ok(()), |failure| Err(state::broken(Call::ZeroFill, &self.path, failure)))
    }

    fn len(&self) -> Result<u64, DiskError> {
        let state = self.disk.enter_whole(Call::Len, &self.path, Some(self.life))?;
        Ok(state.inode(self.inode).live.len() as u64)
    }
}
