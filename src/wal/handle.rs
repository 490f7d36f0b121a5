//! The log as its callers hold it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::error::WalError;
use super::frame::PeerMark;
use super::map::Map;
use super::queue::{Shared, Work};
use super::recovery::{self, Candidate, Mending, Newest, Replay};
use super::reserve::{Reserve, Spare};
use super::scrub::Scrub;
use super::segment::Identity;
use super::writer::{Repeated, Writer, begin_segment};
use super::{Options, Purged, Recovered, WalEntry};
use crate::disk::{Call, Disk, DiskError, Mode};
use crate::id::NodeId;
use crate::limits::WAL_ROOM_AGAIN;
use crate::work::Worker;

/// The log. Clones are the same log; when the last one is gone, the writer finishes what waits and ends.
#[derive(Clone)]
pub struct Wal {
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<Shared>,
    dir: PathBuf,
    workers: Mutex<Vec<Worker>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Makes segments ready ahead of use, by thread or by task.
pub struct Preparer {
    shared: Arc<Shared>,
}

/// A log without threads: whoever holds the parts drives them.
pub struct Parts {
    /// The handle.
    pub wal: Wal,
    /// To be stepped whenever something arrives.
    pub writer: Writer,
    /// To be stepped now and then; the writer makes what it needs where this has not.
    pub preparer: Preparer,
}

impl Preparer {
    /// Makes the next segment ready, if it isn't, and removes what is more than enough.
    pub fn step(&self) {
        // Nothing is written any more once the log is poisoned, not even ahead of use.
        if self.shared.failed().is_some() {
            return;
        }
        let was_lacking = self.shared.reserve.is_lacking();
        match self.shared.reserve.fill() {
            Err(error) => self.shared.fail(error.into()),
            Ok(()) if was_lacking && !self.shared.reserve.is_lacking() => {
                tracing::info!("the disk has room for the log again");
                self.shared.has_room_again();
            }
            Ok(()) => {}
        }
    }

    /// Waits for something to do without a thread.
    pub async fn due(&self) {
        let reserve = &self.shared.reserve;
        let due = reserve.wake_task.notified();
        if !reserve.is_lacking() {
            due.await;
        } else if tokio::time::timeout(WAL_ROOM_AGAIN, due).await.is_err() {
            reserve.look_again();
        }
    }

    fn run(&self) {
        while self.shared.reserve.wait() {
            self.step();
        }
    }

    async fn run_as_task(self) {
        while let Some(is_due) = self.shared.reserve.take_due() {
            match is_due {
                true => self.step(),
                false => self.due().await,
            }
        }
    }
}

impl Wal {
    /// Begins a log in `dir`, which is created where it's missing. Durable on return.
    ///
    /// # Errors
    /// [`WalError::AlreadyCreated`] where there is one; whatever the disk says.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, identity: Identity, options: &Options) -> Result<Self, WalError> {
        Self::create_parts(disk, dir, identity, options)?.start()
    }

    /// [`Wal::create`] without threads.
    ///
    /// # Errors
    /// Those of [`Wal::create`].
    pub fn create_parts(
        disk: Arc<dyn Disk>,
        dir: &Path,
        identity: Identity,
        options: &Options,
    ) -> Result<Parts, WalError> {
        disk.create_dir_all(dir)?;
        let survey = recovery::survey(&*disk, dir, &identity, Mode::ReadWrite)?;
        if !survey.used.is_empty() {
            return Err(WalError::AlreadyCreated(dir.to_owned()));
        }
        recovery::remove_all(&*disk, dir, &survey.unused)?;
        let reserve = Reserve::new(disk, dir, options.segment_bytes, 1, None);
        let repeated = Repeated::default();
        let segment = Arc::new(begin_segment(reserve.take_now(options.segment_bytes)?, identity, 0, 0, &repeated)?);
        let end = super::segment::HEADER_BYTES as u64;
        let mut map = Map::default();
        map.begin(segment.clone(), end);
        let shared = Arc::new(Shared::new(map, reserve, Default::default()));
        let mut writer = Writer::new(shared.clone(), identity, segment, end, repeated, true);
        writer.measure(options.measured.clone());
        // Sealed at once: from now on a header that is lost counts as damage, not as a log that was never created.
        writer.seal();
        if let Some(error) = shared.failed() {
            return Err(error);
        }
        Ok(Parts::new(shared, dir, writer))
    }

    /// Opens the log in `dir`, and says what it holds. Reads the headers, the footers and the newest segment; makes
    /// durable what it found, and cuts a torn tail.
    ///
    /// # Errors
    /// [`WalError::NotCreated`] where there is none, [`WalError::Identity`] where it's another's,
    /// [`WalError::Damaged`] where it must not be served; whatever the disk says.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        identity: Identity,
        options: &Options,
    ) -> Result<(Self, Recovered), WalError> {
        let (parts, recovered) = Self::open_parts(disk, dir, identity, options)?;
        Ok((parts.start()?, recovered))
    }

    /// [`Wal::open`] without threads.
    ///
    /// # Errors
    /// Those of [`Wal::open`].
    pub fn open_parts(
        disk: Arc<dyn Disk>,
        dir: &Path,
        identity: Identity,
        options: &Options,
    ) -> Result<(Parts, Recovered), WalError> {
        let survey = recovery::survey(&*disk, dir, &identity, Mode::ReadWrite)?;
        if survey.used.is_empty() {
            return Err(WalError::NotCreated(dir.to_owned()));
        }
        // Names that a crash has left in the cache alone.
        disk.sync_dir(dir)?;
        let (mut replay, mut newest) = recovery::replay(&*disk, dir, survey.used, Mending::Mend)?;
        if newest.sealed {
            newest.torn = recovery::torn_beginning(&*disk, dir, &survey.unused)?;
        }
        recovery::remove_all(&*disk, dir, &survey.before)?;
        let recovered = recovered(&replay, &newest, identity);
        let sequence = newest.segment.header.sequence + 1;
        let spare = keep_spare(&*disk, dir, survey.unused, sequence, options.segment_bytes)?;
        let reserve = Reserve::new(disk, dir, options.segment_bytes, sequence, spare);
        reserve.retire(replay.map.retire());
        let marked = replay.repeated.marks.keys().copied().collect();
        let shared = Arc::new(Shared::new(replay.map, reserve, marked));
        let Newest { segment, end, sealed, ends_in_seal, .. } = newest;
        let mut writer = Writer::new(shared.clone(), identity, segment, end, replay.repeated, !ends_in_seal && !sealed);
        writer.measure(options.measured.clone());
        if sealed {
            // The process ended between the footer and the next header.
            let spare = shared.reserve.take_now(0)?;
            writer.begin(spare)?;
        }
        Ok((Parts::new(shared, dir, writer), recovered))
    }

    /// Whose log lies in `dir`, as its newest segment tells; `None` where there is none.
    ///
    /// # Errors
    /// Whatever the disk says.
    pub fn identity(disk: &dyn Disk, dir: &Path) -> Result<Option<Identity>, WalError> {
        recovery::identity(disk, dir)
    }

    /// Appends entries, which follow the last one and each other. Never waits: `done` is told once they're durable, on
    /// the writer's thread, or why they never will be; a call that's refused tells it before it returns. `done` must
    /// not block.
    pub fn append(&self, entries: Vec<WalEntry>, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        self.owner.shared.submit(Work::Append(entries), Box::new(done));
    }

    /// Waits until the log takes another call. For callers that must not be refused.
    ///
    /// # Errors
    /// The error that poisoned the log, or [`WalError::Closed`].
    pub async fn room(&self) -> Result<(), WalError> {
        self.owner.shared.room().await
    }

    /// Where the disk has no room for the next segment: bytes of entries that still fit, with something left for votes and
    /// memberships. `None` while there is room. What is appended beyond waits until there is.
    pub fn last_room(&self) -> Option<u64> {
        self.owner.shared.last_room()
    }

    /// Saves the vote, and returns once it's durable.
    ///
    /// # Errors
    /// Why it isn't.
    pub async fn save_vote(&self, vote: Bytes) -> Result<(), WalError> {
        let (done, told) = oneshot::channel();
        self.save_vote_then(vote, |saved| {
            // Whoever has stopped waiting needs no answer.
            let _ = done.send(saved);
        });
        told.await.unwrap_or(Err(WalError::Closed))
    }

    /// Saves the vote, and tells `done`, like [`Wal::append`].
    pub fn save_vote_then(&self, vote: Bytes, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        self.owner.shared.submit(Work::Vote(vote), Box::new(done));
    }

    /// Makes every entry behind `last_kept` void; all of them for `None`. What was purged stays so. Told like
    /// [`Wal::append`].
    pub fn truncate_after(&self, last_kept: Option<u64>, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        let from = last_kept.map_or(0, |index| index + 1);
        self.owner.shared.submit(Work::Truncate(from), Box::new(done));
    }

    /// Says that entries up to `purged` are no longer needed; a log that ends before goes on behind it. Segments that
    /// hold nothing else are used again. Told like [`Wal::append`]; nobody needs to wait.
    pub fn purge(&self, purged: Purged, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        self.owner.shared.submit(Work::Purge(purged), Box::new(done));
    }

    /// Notes what a peer has acknowledged, in place of what was noted of that node before. Told like [`Wal::append`].
    pub fn note_peer(&self, mark: PeerMark, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        self.owner.shared.submit(Work::Mark(mark), Box::new(done));
    }

    /// Forgets what was noted of a peer: it has been removed.
    pub fn forget_peer(&self, node_id: NodeId, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        self.owner.shared.submit(Work::Forget(node_id), Box::new(done));
    }

    /// Goes on in the next segment, so that everything before lies in segments that a purge frees; where the disk has no room
    /// for one, nothing happens. Told like [`Wal::append`].
    pub fn roll(&self, done: impl FnOnce(Result<(), WalError>) + Send + 'static) {
        self.owner.shared.submit(Work::Roll, Box::new(done));
    }

    /// The index with which the newest segment begins: no entry from there on lies in an older one.
    pub fn newest_first(&self) -> u64 {
        self.owner.shared.map.read().newest_first()
    }

    /// Overwrites with zeros and removes what is kept of segments that are no longer needed, and from now on does so with each
    /// that comes to be. Blocks on the disk.
    ///
    /// # Errors
    /// Whatever the disk says: the log stops then.
    pub fn erase_freed(&self) -> Result<(), WalError> {
        self.owner.shared.reserve.erase().map_err(|error| {
            self.owner.shared.fail(error.into());
            self.owner.shared.failed().unwrap_or(WalError::Closed)
        })
    }

    /// From now on segments that are no longer needed are used again as they are.
    pub fn reuse_freed(&self) {
        self.owner.shared.reserve.reuse();
    }

    /// The durable entries of `range`, from its start up to its end, the end of the log, or `bytes_max` of payload,
    /// whichever comes first, but at least one. Blocks on the disk.
    ///
    /// # Errors
    /// [`WalError::NotThere`] where the log doesn't have the first one, [`WalError::Damaged`] where an entry isn't what
    /// was written; whatever the disk says.
    pub fn read(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<WalEntry>, WalError> {
        super::read::read(&self.owner.shared.map, range, bytes_max)
    }

    /// The durable entries there are.
    pub fn bounds(&self) -> Range<u64> {
        let bounds = self.owner.shared.map.read().bounds;
        bounds.first..bounds.next
    }

    /// Segments in use.
    pub fn segments(&self) -> usize {
        self.owner.shared.map.read().segments()
    }

    /// The term of a durable entry, `None` where the log doesn't have it.
    pub fn term(&self, index: u64) -> Option<u64> {
        self.owner.shared.map.read().term(index)
    }

    /// Reads every durable byte, segment by segment, and reports what is damaged.
    pub fn scrub(&self) -> Scrub {
        Scrub::new(self.owner.shared.map.read().extracts())
    }

    /// Why the log takes no calls any more, where it doesn't.
    pub fn stopped(&self) -> Option<WalError> {
        self.owner.shared.stopped()
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.owner.dir
    }

    /// Where the synced frames of the newest segment end.
    #[cfg(test)]
    pub(super) fn end(&self) -> u64 {
        self.owner.shared.map.read().extracts().last().map_or(0, |newest| newest.end)
    }

    /// Takes no more calls, finishes those that wait, and returns when the threads have ended. Blocks. Must not be called by
    /// a `done`.
    pub fn close(&self) {
        for worker in self.begin_end() {
            // One that panicked has told everyone already: its writer was dropped.
            worker.join();
        }
    }

    /// [`Wal::close`] for those who must not block.
    pub async fn closed(&self) {
        for worker in self.begin_end() {
            worker.ended().await;
        }
    }

    fn begin_end(&self) -> Vec<Worker> {
        self.owner.shared.close();
        std::mem::take(&mut *self.owner.workers.lock())
    }
}

impl Parts {
    fn new(shared: Arc<Shared>, dir: &Path, writer: Writer) -> Self {
        let owner = Owner { shared: shared.clone(), dir: dir.to_owned(), workers: Mutex::new(Vec::new()) };
        Self { wal: Wal { owner: Arc::new(owner) }, writer, preparer: Preparer { shared } }
    }

    /// Gives the writer and the preparer a thread each; in a simulation, a task.
    ///
    /// # Errors
    /// Where the operating system has no thread to give.
    pub fn start(self) -> Result<Wal, WalError> {
        let Self { wal, writer, preparer } = self;
        let fail = |e| WalError::from(DiskError::new(Call::Open, wal.dir(), e));
        // Either the thread or the task gets it, and the other is dropped without having begun.
        let (writer, preparer) = (Arc::new(Mutex::new(Some(writer))), Arc::new(Mutex::new(Some(preparer))));
        let (by_task, dir) = (Arc::clone(&writer), wal.dir().to_owned());
        let writing =
            Worker::begin("wal-writer", move || writer.lock().take().into_iter().for_each(Writer::run), async move {
                let writer = by_task.lock().take();
                if let Some(writer) = writer {
                    writer.run_as_task(&dir).await;
                }
            });
        let by_task = Arc::clone(&preparer);
        let preparing =
            Worker::begin("wal-preparer", move || preparer.lock().take().iter().for_each(Preparer::run), async move {
                let preparer = by_task.lock().take();
                if let Some(preparer) = preparer {
                    preparer.run_as_task().await;
                }
            });
        wal.owner.workers.lock().extend([writing.map_err(fail)?, preparing.map_err(fail)?]);
        Ok(wal)
    }
}

pub(super) fn recovered(replay: &Replay, newest: &Newest, identity: Identity) -> Recovered {
    let bounds = replay.map.bounds;
    Recovered {
        vote: replay.repeated.vote.clone(),
        purged: replay.repeated.purged.clone(),
        first: bounds.first,
        next: bounds.next,
        last_term: replay.map.last_term(),
        peer_marks: replay.repeated.marks.values().cloned().collect(),
        identity,
        torn: newest.torn.clone(),
    }
}

/// Keeps the file that was prepared to be the next segment, if it was a segment before, and removes the others. Zeros
/// are written anew: the process that wrote them may have ended because they couldn't be synced, and the cache would
/// show them all the same.
fn keep_spare(
    disk: &dyn Disk,
    dir: &Path,
    mut unused: Vec<Candidate>,
    sequence: u64,
    segment_bytes: u64,
) -> Result<Option<Spare>, WalError> {
    let fits = |candidate: &Candidate| {
        candidate.sequence == sequence && candidate.bytes == segment_bytes && candidate.earlier_life().is_some()
    };
    let kept = unused.iter().position(fits).map(|at| unused.remove(at));
    recovery::remove_all(disk, dir, &unused)?;
    Ok(kept.map(|candidate| Spare {
        recycled_from: candidate.earlier_life().unwrap_or_default(),
        file: candidate.file,
        sequence,
        bytes: segment_bytes,
    }))
}
