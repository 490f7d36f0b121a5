//! The log as the consensus core sees it: the log on disk below, the newest entries in memory above it.
//!
//! # Invariants
//!
//! - L1. An append or a vote is acknowledged only after the log on disk has said that it is durable; both go through the one
//!   queue of its writer, so they keep their order.
//! - L2. The tail holds every entry that is not known to be durable: what the disk can't hand out yet is always in memory.
//!   An entry leaves the tail from the front, and, while there is room, only once it is applied too.
//! - L3. The entries in the tail follow each other, and the last of them is the last of the log.
//! - L4. The disk is never asked for an index that the tail has: a truncation holds for the tail at once, and for the disk
//!   only when its writer has come to it.

use std::{
    collections::VecDeque,
    fmt::Debug,
    io,
    ops::{Bound, Range, RangeBounds},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::{Stream, stream};
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{
    codec,
    types::{LogEntry, LogId, Payload, Types, Vote},
};
use crate::{
    fatal,
    id::Time,
    limits,
    store::records::Durable,
    wal::{Purged, Recovered, Wal, WalEntry, WalError},
    work,
};

/// How far the state machine is: it tells, and the log evicts below it and measures against it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// One above the last applied index.
    applied: AtomicU64,
    /// The last applied time, ms.
    time: AtomicU64,
    /// Bytes of entries appended since the last snapshot, about.
    since_snapshot: AtomicU64,
}

impl Progress {
    pub fn set_applied(&self, index: u64) {
        self.applied.store(index + 1, Ordering::Release);
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> Option<u64> {
        self.applied.load(Ordering::Acquire).checked_sub(1)
    }

    /// The records' time is now at least this.
    pub fn set_applied_time(&self, time: Time) {
        self.time.fetch_max(time.0, Ordering::AcqRel);
    }

    /// The last applied time.
    pub fn applied_time(&self) -> Time {
        Time(self.time.load(Ordering::Acquire))
    }

    /// Bytes of entries since the last snapshot, about.
    pub fn since_snapshot(&self) -> u64 {
        self.since_snapshot.load(Ordering::Relaxed)
    }

    /// A snapshot was taken when so many bytes had been appended since the one before.
    pub fn snapshot_taken(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let _ = self.since_snapshot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// What the log held at start above the newest snapshot.
    pub fn found(&self, bytes: u64) {
        self.since_snapshot.store(bytes, Ordering::Relaxed);
    }
}

/// The newest entries, and what is known of the whole log.
struct Tail {
    entries: VecDeque<LogEntry>,
    /// Index of the first entry in the tail, of the next one to come where it is empty.
    first: u64,
    bytes: usize,
    /// One above the last index known to be durable.
    durable: u64,
    /// The last entry known to be durable.
    durable_last: Option<LogId>,
    /// Counts truncations: what became durable before one proves nothing about indexes after it.
    epoch: u64,
    last: Option<LogId>,
    purged: Option<LogId>,
    vote: Option<Vote>,
}

impl Tail {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn push(&mut self, entry: LogEntry) {
        if self.entries.is_empty() {
            self.first = entry.log_id.index;
        }
        assert_eq!(entry.log_id.index, self.next(), "L3: entries follow each other");
        self.bytes += entry_bytes(&entry);
        self.last = Some(entry.log_id);
        self.entries.push_back(entry);
    }

    /// Evicts what is durable, while there is more than enough (L2). A node that catches up takes entries in faster than it
    /// applies them: how many of those stay in memory is bounded too, and the others are read again when it comes to them.
    fn evict(&mut self, applied: u64) {
        while self.first < self.durable
            && (self.bytes > limits::LOG_TAIL_UNAPPLIED_BYTES_MAX
                || (self.bytes > limits::LOG_TAIL_BYTES_MAX && self.first < applied))
        {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry_bytes(&entry);
            self.first += 1;
        }
    }

    fn truncate(&mut self, last_kept: Option<LogId>) {
        if last_kept >= self.last {
            return;
        }
        let next = last_kept.map_or(0, |id| id.index + 1);
        while self.next() > next
            && let Some(entry) = self.entries.pop_back()
        {
            self.bytes -= entry_bytes(&entry);
        }
        if self.entries.is_empty() {
            self.first = next;
        }
        self.durable = self.durable.min(next);
        self.epoch += 1;
        self.last = last_kept.max(self.purged);
        self.durable_last = self.durable_last.min(self.last);
    }

    fn purge(&mut self, upto: LogId) {
        while self.first <= upto.index && !self.entries.is_empty() {
            self.pop();
        }
        if self.entries.is_empty() {
            self.first = self.first.max(upto.index + 1);
        }
        self.purged = self.purged.max(Some(upto));
        self.last = self.last.max(self.purged);
    }
}

/// What an entry takes in memory, roughly.
fn entry_bytes(entry: &LogEntry) -> usize {
    const FIXED: usize = 128;
    match &entry.payload {
        // The commands and their encoding are both held.
        Payload::Normal(proposal) => FIXED + 2 * proposal.bytes.len(),
        Payload::Blank | Payload::Membership(_) => FIXED,
    }
}

/// The log. Clones are the same log.
#[derive(Clone)]
pub(super) struct LogStore {
    wal: Wal,
    tail: Arc<Mutex<Tail>>,
    progress: Arc<Progress>,
}

impl LogStore {
    /// The log over what was found on the disk.
    ///
    /// # Errors
    /// When the disk holds what this release can't read, or can't be read.
    pub fn open(wal: Wal, recovered: &Recovered, progress: Arc<Progress>) -> io::Result<Self> {
        let purged = recovered.purged.as_ref().map(|purged| codec::decode_log_id(&purged.payload));
        let purged = purged.transpose().map_err(io::Error::other)?;
        let last = match recovered.last() {
            Some(index) => read_wal(&wal, index..index + 1, 0)?.last().map(|entry| entry.log_id),
            None => purged,
        };
        let vote = recovered.vote.as_ref().map(|bytes| codec::decode_vote(bytes)).transpose();
        let tail = Tail {
            entries: VecDeque::new(),
            first: recovered.next,
            bytes: 0,
            durable: recovered.next,
            durable_last: last,
            epoch: 0,
            last,
            purged,
            vote: vote.map_err(io::Error::other)?,
        };
        Ok(Self { wal, tail: Arc::new(Mutex::new(tail)), progress })
    }

    /// The last entry there is.
    pub fn last(&self) -> Option<LogId> {
        self.tail.lock().last
    }

    /// The last entry known to be durable: what this node has held to, come what may.
    pub fn durable_last(&self) -> Option<LogId> {
        self.tail.lock().durable_last
    }

    /// Tells the first index that is not known to be durable.
    pub fn durable(&self) -> Durable {
        let tail = Arc::clone(&self.tail);
        Arc::new(move || tail.lock().durable)
    }

    /// Up to where the log was purged.
    pub fn purged(&self) -> Option<LogId> {
        self.tail.lock().purged
    }

    /// Waits until what was purged is known to be so after a crash too.
    ///
    /// # Errors
    /// When the log can't be written, or is closed.
    pub async fn keep_purged(&self) -> io::Result<()> {
        let Some(purged) = self.purged() else { return Ok(()) };
        let (told, kept) = oneshot::channel();
        self.wal.room().await.map_err(io::Error::other)?;
        // Whoever has given up waiting needs no word.
        self.wal.purge(purged_frame(&purged), move |written| drop(told.send(written)));
        kept.await.map_err(io::Error::other)?.map_err(stop)
    }

    /// The last vote that was saved.
    pub fn vote(&self) -> Option<Vote> {
        self.tail.lock().vote
    }

    /// The entries of `range` that there are, up to about so many bytes.
    pub async fn read(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        self.entries(range, bytes_max).await
    }

    /// The entries of `range` that there are, from the tail where it has them.
    async fn entries(&self, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
        let range = {
            let tail = self.tail.lock();
            let durable = self.wal.bounds();
            let begin = if durable.is_empty() { tail.first } else { durable.start.min(tail.first) };
            let first = tail.purged.map_or(begin, |id| id.index + 1);
            let range = range.start.max(first)..range.end.min(tail.next());
            if range.start >= range.end {
                return Ok(Vec::new());
            }
            if range.start >= tail.first {
                return Ok(bounded(tail.entries.range(offsets(&range, tail.first)), bytes_max));
            }
            // Not a step into the tail: where it is ahead of the disk, the disk still holds what the tail has replaced.
            if planted!(TailCrossed) { range } else { range.start..range.end.min(tail.first) }
        };
        // Entries below the tail are durable (L2). A purge may take them away meanwhile: then nobody needs them.
        let wal = self.wal.clone();
        work::run(move || read_wal(&wal, range, bytes_max)).await.map_err(io::Error::other)?
    }

    /// All entries of `range`, however many.
    async fn all_entries(&self, range: Range<u64>) -> io::Result<Vec<LogEntry>> {
        let mut entries: Vec<LogEntry> = Vec::new();
        let mut range = range;
        loop {
            let more = self.entries(range.clone(), limits::LOG_READ_BYTES_MAX).await?;
            let Some(last) = more.last() else { return Ok(entries) };
            range.start = last.log_id.index + 1;
            entries.extend(more);
        }
    }
}

fn offsets(range: &Range<u64>, first: u64) -> Range<usize> {
    let offset = |index: u64| usize::try_from(index - first).expect("the tail is held in memory");
    offset(range.start)..offset(range.end)
}

/// As many entries as fit, but at least one.
fn bounded<'a>(entries: impl Iterator<Item = &'a LogEntry>, bytes_max: usize) -> Vec<LogEntry> {
    let mut bytes = 0;
    let mut taken = Vec::new();
    for entry in entries {
        bytes += entry_bytes(entry);
        if bytes > bytes_max && !taken.is_empty() {
            break;
        }
        taken.push(entry.clone());
    }
    taken
}

fn read_wal(wal: &Wal, range: Range<u64>, bytes_max: usize) -> io::Result<Vec<LogEntry>> {
    let entries = match wal.read(range, bytes_max) {
        Err(WalError::NotThere { .. }) => return Ok(Vec::new()),
        entries => entries.map_err(io::Error::other)?,
    };
    let decode = |entry: WalEntry| codec::decode_entry(entry.index, entry.term, &entry.payload);
    entries.into_iter().map(|entry| decode(entry).map_err(io::Error::other)).collect()
}

fn to_range(range: &impl RangeBounds<u64>) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(index) => index + 1,
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    start..end
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<LogEntry>> {
        self.all_entries(to_range(&range)).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<LogEntry>> {
        let end = end.min(start.saturating_add(limits::LOG_READ_ENTRIES_MAX));
        self.entries(start..end, limits::LOG_READ_BYTES_MAX).await
    }

    /// In pieces: what is replayed after a restart is as long as the log, and need not be in memory at once.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<LogEntry>> + Send
    where
        RB: RangeBounds<u64> + Clone + Debug + Send,
    {
        let range = to_range(&range);
        let log = self.clone();
        let state = (log, range, VecDeque::<LogEntry>::new());
        stream::try_unfold(state, |(log, mut range, mut piece)| async move {
            if piece.is_empty() {
                piece = log.entries(range.clone(), limits::LOG_READ_BYTES_MAX).await?.into();
            }
            Ok(piece.pop_front().map(|entry| {
                range.start = entry.log_id.index + 1;
                (entry, (log, range, piece))
            }))
        })
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.tail.lock().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let tail = self.tail.lock();
        Ok(LogState { last_purged_log_id: tail.purged, last_log_id: tail.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.wal.room().await.map_err(io::Error::other)?;
        if planted!(VoteNotSynced) {
            self.wal.save_vote_then(codec::encode_vote(vote), stop_if_failed);
            self.tail.lock().vote = Some(*vote);
            return Ok(());
        }
        self.wal.save_vote(codec::encode_vote(vote)).await.map_err(stop)?;
        self.tail.lock().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = LogEntry> + Send,
        I::IntoIter: Send,
    {
        let entries = entries.into_iter().collect::<Vec<_>>();
        self.wal.room().await.map_err(io::Error::other)?;
        let frames: Vec<WalEntry> = entries.iter().map(frame).collect();
        let bytes: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        let (epoch, next, last) = {
            let mut tail = self.tail.lock();
            entries.into_iter().for_each(|entry| tail.push(entry));
            tail.evict(self.progress.applied.load(Ordering::Acquire));
            (tail.epoch, tail.next(), tail.last)
        };
        self.progress.since_snapshot.fetch_add(bytes as u64, Ordering::Relaxed);
        if planted!(AckBeforeFsync) {
            callback.io_completed(Ok(()));
            self.wal.append(frames, stop_if_failed);
            return Ok(());
        }
        let tail = Arc::clone(&self.tail);
        self.wal.append(frames, move |written| {
            if written.is_ok() {
                let mut tail = tail.lock();
                if tail.epoch == epoch {
                    tail.durable = tail.durable.max(next);
                    tail.durable_last = tail.durable_last.max(last);
                }
            }
            callback.io_completed(written.map_err(stop));
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        self.wal.room().await.map_err(io::Error::other)?;
        self.tail.lock().truncate(last_log_id);
        self.wal.truncate_after(last_log_id.map(|id| id.index), stop_if_failed);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.wal.room().await.map_err(io::Error::other)?;
        let far = if planted!(PurgePastSnapshot) { self.progress.applied() } else { None };
        let log_id = LogId { index: far.unwrap_or(log_id.index), ..log_id };
        self.tail.lock().purge(log_id);
        // Lazy: the core must not wait for it, and after a crash the purge only has to be said again. One that stands for a
        // snapshot which was sent is waited for before that is acknowledged ([`LogStore::keep_purged`]).
        self.wal.purge(purged_frame(&log_id), stop_if_failed);
        Ok(())
    }
}

fn purged_frame(upto: &LogId) -> Purged {
    Purged { index: upto.index, term: upto.leader_id.term, payload: codec::encode_log_id(upto) }
}

pub(super) fn frame(entry: &LogEntry) -> WalEntry {
    WalEntry { index: entry.log_id.index, term: entry.log_id.leader_id.term, payload: codec::encode_entry(entry) }
}

/// A log that can't be written is the end of the process, unless it was closed on purpose.
fn stop(error: WalError) -> io::Error {
    if !matches!(error, WalError::Closed) {
        fatal::end(format!("the log can't be written: {error}"));
    }
    io::Error::other(error)
}

fn stop_if_failed(written: Result<(), WalError>) {
    if let Err(error) = written {
        let _ = stop(error);
    }
}

#[cfg(test)]
mod tests;
