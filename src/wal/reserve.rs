//! Segments made ready ahead of use, and segments that are no longer needed.
//!
//! Filling 64 MiB with zeros takes longer than anybody should wait for an append, so it's done by a thread of its own,
//! one segment ahead. A retired segment spares the zeros: its blocks are written already, and the salt of its next life
//! makes what lies in it meaningless.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::segment::{HEADER_BYTES, Segment, file_name};
use crate::disk::{Disk, DiskError, File, Mode};
use crate::limits::WAL_RETIRED_MAX;

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
    segment_bytes: u64,
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
            ready: Mutex::new(Ready { sequence, spare }),
            retired: Mutex::new(VecDeque::new()),
            due: Mutex::new(Due { work: true, closed: false }),
            wake: Condvar::new(),
            wake_task: Notify::new(),
        }
    }

    /// The next segment's file, of at least so many bytes. Waits for the one being made, or makes it.
    pub(super) fn take(&self, bytes_min: u64) -> Result<Spare, DiskError> {
        let mut ready = self.ready.lock();
        let mut spare = match ready.spare.take() {
            Some(spare) => spare,
            None => self.make(ready.sequence)?,
        };
        if spare.bytes < bytes_min {
            // A frame larger than a segment: this one segment grows.
            let bytes_min = bytes_min.next_multiple_of(HEADER_BYTES as u64);
            spare.file.zero_fill(spare.bytes, bytes_min)?;
            spare.file.sync_data()?;
            spare.bytes = bytes_min;
        }
        ready.sequence += 1;
        drop(ready);
        self.wake();
        Ok(spare)
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
            ready.spare = Some(self.make(ready.sequence)?);
        }
        drop(ready);
        let excess: Vec<Arc<Segment>> = {
            let mut retired = self.retired.lock();
            let excess = retired.len().saturating_sub(WAL_RETIRED_MAX);
            retired.drain(..excess).collect()
        };
        if excess.is_empty() {
            return Ok(());
        }
        for segment in excess {
            self.disk.remove(segment.file.path())?;
        }
        self.disk.sync_dir(&self.dir)
    }

    fn make(&self, sequence: u64) -> Result<Spare, DiskError> {
        let path = self.dir.join(file_name(sequence));
        // A reader may still hold the file: then it keeps its bytes, and only its name goes.
        let retired = self.retired.lock().pop_front();
        match retired.map(Arc::try_unwrap) {
            Some(Ok(segment)) if segment.bytes() == self.segment_bytes => {
                return self.recycle(&segment, &path, sequence);
            }
            Some(Ok(segment)) => self.disk.remove(segment.file.path())?,
            Some(Err(shared)) => self.disk.remove(shared.file.path())?,
            None => {}
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

    /// Whether there is something to do, which then counts as begun; `None` when the end has come.
    pub(super) fn take_due(&self) -> Option<bool> {
        let mut due = self.due.lock();
        (!due.closed).then(|| std::mem::take(&mut due.work))
    }

    /// Waits until there is something to do; false when the end has come.
    pub(super) fn wait(&self) -> bool {
        let mut due = self.due.lock();
        while !due.work && !due.closed {
            self.wake.wait(&mut due);
        }
        due.work = false;
        !due.closed
    }
}
