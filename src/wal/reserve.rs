//! Segments made ready ahead of use, and segments that are no longer needed.
//!
//! Filling 64 MiB with zeros takes longer than anybody should wait for an append, so it's done by a thread of its own,
//! one segment ahead. A retired segment spares the zeros: its blocks are written already, and the salt of its next life
//! makes what lies in it meaningless.
//!
//! A full disk shows here and nowhere else: what is written to the log goes into blocks that are there. A segment that
//! can't be made holds nothing yet, so its file is removed, and another is tried later.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::segment::{HEADER_BYTES, Segment, file_name};
use crate::disk::{Call, Disk, DiskError, File, Mode};
use crate::limits::{WAL_RETIRED_MAX, WAL_ROOM_AGAIN};

/// A file that bears the name of the next segment, is synced, as is its name, and has no header of that segment.
pub(super) struct Spare {
    pub(super) file: Arc<dyn File>,
    pub(super) sequence: u64,
    pub(super) bytes: u64,
    pub(super) recycled_from: u64,
}

struct Ready {
    sequence: u64,
    spare: Option<Spare>,
}

pub(super) struct Reserve {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    pub(super) segment_bytes: u64,
    /// The last try to make a segment found no room for it.
    is_lacking: AtomicBool,
    /// Whether what was written is to be gone with its segment.
    erases: AtomicBool,
    ready: Mutex<Ready>,
    retired: Mutex<VecDeque<Arc<Segment>>>,
    /// Something is to be done, or the end has come.
    due: Mutex<Due>,
    wake: Condvar,
    /// The same for those who wait without a thread.
    pub(super) wake_task: Notify,
}

#[derive(Default)]
struct Due {
    work: bool,
    closed: bool,
}

impl Reserve {
    /// `sequence` is that of the next segment, which `spare` is ready for, where there is one.
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        segment_bytes: u64,
        sequence: u64,
        spare: Option<Spare>,
    ) -> Self {
        debug_assert!(spare.as_ref().is_none_or(|spare| spare.sequence == sequence));
        Self {
            disk,
            dir: dir.to_owned(),
            segment_bytes,
            is_lacking: AtomicBool::new(false),
            erases: AtomicBool::new(false),
            ready: Mutex::new(Ready { sequence, spare }),
            retired: Mutex::new(VecDeque::new()),
            due: Mutex::new(Due { work: true, closed: false }),
            wake: Condvar::new(),
            wake_task: Notify::new(),
        }
    }

    /// Whether the last try to make a segment found no room for it.
    pub(super) fn is_lacking(&self) -> bool {
        self.is_lacking.load(Ordering::Acquire)
    }

    /// The next segment's file, of at least so many bytes. Waits for the one being made, or makes it. `None` where the disk
    /// has no room for it at the moment.
    pub(super) fn take(&self, bytes_min: u64) -> Result<Option<Spare>, DiskError> {
        let mut ready = self.ready.lock();
        let spare = match ready.spare.take() {
            Some(spare) => Some(spare),
            None => self.try_make(ready.sequence)?,
        };
        let spare = match spare {
            // A frame larger than a segment: this one segment grows.
            Some(spare) if spare.bytes < bytes_min => {
                self.or_lacking(ready.sequence, grown(spare, bytes_min.next_multiple_of(HEADER_BYTES as u64)))?
            }
            spare => spare,
        };
        if spare.is_some() {
            ready.sequence += 1;
        }
        drop(ready);
        self.wake();
        Ok(spare)
    }

    /// The same, where it can't be waited for.
    pub(super) fn take_now(&self, bytes_min: u64) -> Result<Spare, DiskError> {
        let full = || DiskError::new(Call::ZeroFill, &self.dir, std::io::ErrorKind::StorageFull.into());
        self.take(bytes_min)?.ok_or_else(full)
    }

    /// Segments that nothing needs any more, the oldest first.
    pub(super) fn retire(&self, segments: Vec<Arc<Segment>>) {
        if !segments.is_empty() {
            self.retired.lock().extend(segments);
            self.wake();
        }
    }

    /// Makes the next segment ready and removes what is more than enough.
    pub(super) fn fill(&self) -> Result<(), DiskError> {
        let mut ready = self.ready.lock();
        if ready.spare.is_none() {
            ready.spare = self.try_make(ready.sequence)?;
        }
        drop(ready);
        let excess: Vec<Arc<Segment>> = {
            let mut retired = self.retired.lock();
            let kept_max = if self.erases.load(Ordering::Acquire) { 0 } else { WAL_RETIRED_MAX };
            let excess = retired.len().saturating_sub(kept_max);
            retired.drain(..excess).collect()
        };
        if excess.is_empty() {
            return Ok(());
        }
        for segment in excess {
            self.discard(segment)?;
        }
        self.disk.sync_dir(&self.dir)
    }

    /// Nothing of what was written in segments that are no longer needed stays: neither in those that wait to be used again, nor
    /// in the next one.
    pub(super) fn erase(&self) -> Result<(), DiskError> {
        self.erases.store(true, Ordering::Release);
        let mut ready = self.ready.lock();
        if let Some(spare) = ready.spare.take_if(|spare| spare.recycled_from != 0) {
            overwrite(&*spare.file, spare.bytes)?;
            self.disk.remove(spare.file.path())?;
        }
        drop(ready);
        self.fill()
    }

    /// From now on segments are used again as they are.
    pub(super) fn reuse(&self) {
        self.erases.store(false, Ordering::Release);
    }

    /// Removes a segment. A reader may still hold the file: then it keeps its bytes, and only its name goes.
    fn discard(&self, segment: Arc<Segment>) -> Result<(), DiskError> {
        let path = segment.file.path().to_owned();
        if self.erases.load(Ordering::Acquire)
            && let Ok(segment) = Arc::try_unwrap(segment)
        {
            overwrite(&*segment.file, segment.bytes())?;
        }
        self.disk.remove(&path)
    }

    fn try_make(&self, sequence: u64) -> Result<Option<Spare>, DiskError> {
        self.or_lacking(sequence, self.make(sequence))
    }

    /// Takes a segment for which there was no room for one that is to be tried later. What failed while names were made to
    /// last is no such thing: other names may have gone with it.
    fn or_lacking(&self, sequence: u64, made: Result<Spare, DiskError>) -> Result<Option<Spare>, DiskError> {
        match made {
            Ok(spare) => {
                self.is_lacking.store(false, Ordering::Release);
                Ok(Some(spare))
            }
            Err(error) if error.is_full() && matches!(error.call, Call::Create | Call::ZeroFill | Call::Sync) => {
                if !self.is_lacking.swap(true, Ordering::AcqRel) {
                    tracing::error!(%error, "the disk has no room for the next segment of the log");
                }
                match self.disk.remove(&self.dir.join(file_name(sequence))) {
                    Err(error) if !error.is_not_found() => Err(error),
                    _ => Ok(None),
                }
            }
            Err(error) => Err(error),
        }
    }

    fn make(&self, sequence: u64) -> Result<Spare, DiskError> {
        let path = self.dir.join(file_name(sequence));
        // A reader may still hold the file: then it keeps its bytes, and only its name goes.
        let retired = if self.erases.load(Ordering::Acquire) { None } else { self.retired.lock().pop_front() };
        match retired.map(Arc::try_unwrap) {
            Some(Ok(segment)) if segment.bytes() == self.segment_bytes => {
                return self.recycle(&segment, &path, sequence);
            }
            Some(Ok(segment)) => self.disk.remove(segment.file.path())?,
            Some(Err(shared)) => self.disk.remove(shared.file.path())?,
            None => {}
        }
        // Found out before anything is written: what is left on the disk is not taken away from others meanwhile.
        if self.disk.free_bytes(&self.dir).is_ok_and(|free| free < self.segment_bytes) {
            return Err(DiskError::new(Call::ZeroFill, &path, std::io::ErrorKind::StorageFull.into()));
        }
        let file = self.disk.open(&path, Mode::CreateNew)?;
        file.zero_fill(0, self.segment_bytes)?;
        file.sync_data()?;
        self.disk.sync_dir(&self.dir)?;
        Ok(Spare { file, sequence, bytes: self.segment_bytes, recycled_from: 0 })
    }

    fn recycle(&self, segment: &Segment, path: &Path, sequence: u64) -> Result<Spare, DiskError> {
        self.disk.rename(segment.file.path(), path)?;
        self.disk.sync_dir(&self.dir)?;
        let file = self.disk.open(path, Mode::ReadWrite)?;
        Ok(Spare { file, sequence, bytes: segment.bytes(), recycled_from: segment.header.sequence })
    }

    fn wake(&self) {
        self.due.lock().work = true;
        self.wake.notify_one();
        self.wake_task.notify_one();
    }

    pub(super) fn close(&self) {
        self.due.lock().closed = true;
        self.wake.notify_one();
        self.wake_task.notify_one();
    }

    /// There may be room by now.
    pub(super) fn look_again(&self) {
        self.due.lock().work = true;
    }

    /// Whether there is something to do, which then counts as begun; `None` when the end has come.
    pub(super) fn take_due(&self) -> Option<bool> {
        let mut due = self.due.lock();
        (!due.closed).then(|| std::mem::take(&mut due.work))
    }

    /// Waits until there is something to do; false when the end has come.
    pub(super) fn wait(&self) -> bool {
        let mut due = self.due.lock();
        while !due.work && !due.closed {
            if !self.is_lacking() {
                self.wake.wait(&mut due);
            } else if self.wake.wait_for(&mut due, WAL_ROOM_AGAIN).timed_out() {
                break;
            }
        }
        due.work = false;
        !due.closed
    }
}

/// Zeros in the place of everything. Where that takes room (a file system that copies on write) and there is none, removing the
/// file has to do.
fn overwrite(file: &dyn File, bytes: u64) -> Result<(), DiskError> {
    match file.zero_fill(0, bytes).and_then(|()| file.sync_data()) {
        Err(error) if error.is_full() => {
            tracing::warn!(%error, "a segment of the log was not overwritten before it was removed");
            Ok(())
        }
        overwritten => overwritten,
    }
}

/// The file of a spare, made larger.
fn grown(spare: Spare, bytes: u64) -> Result<Spare, DiskError> {
    spare.file.zero_fill(spare.bytes, bytes)?;
    spare.file.sync_data()?;
    Ok(Spare { bytes, ..spare })
}
