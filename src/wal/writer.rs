//! The one who writes. It takes all that waits, writes it once, syncs it once and tells everyone, in order.
//!
//! It has no thread, and no clock but to be measured: [`Writer::step`] does what there is to do and says what to wait for, so that a thread
//! drives it in production and a task in the simulation.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;

use super::error::WalError;
use super::frame::{Frame, Kind, PeerMark, frame_bytes};
use super::queue::{Done, Request, Shared, Work};
use super::reserve::Spare;
use super::segment::{HEADER_BYTES, Header, Identity, Segment, footer_bytes};
use super::{Measured, Purged, WalEntry};
use crate::id::{DiskId, NodeId};
use crate::limits::{WAL_BATCH_BYTES_MAX, WAL_POINT_BYTES, WAL_ROOM_AGAIN, WAL_SEAL_AFTER};
use crate::work;

/// What to wait for before the next [`Writer::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing: there may be more to do.
    Again,
    /// A call, for at most [`WAL_SEAL_AFTER`](crate::limits::WAL_SEAL_AFTER); where none comes, [`Writer::seal`].
    SealDue,
    /// A call.
    Idle,
    /// Room on the disk for the next segment, or a while.
    NoRoom,
    /// Nothing any more: the log is closed or poisoned.
    Stopped,
}

/// What every segment repeats at its head, so that recycling the older ones loses none of it.
#[derive(Default)]
pub(super) struct Repeated {
    pub(super) vote: Option<Bytes>,
    pub(super) purged: Option<Purged>,
    pub(super) marks: BTreeMap<NodeId, PeerMark>,
}

/// A change of the map, made once its frame is synced.
enum Change {
    Entry { index: u64, term: u64, offset: u64 },
    Truncate(u64),
    Purge { index: u64, term: u64 },
}

/// Writes the log. There is one for each log.
pub struct Writer {
    shared: Arc<Shared>,
    identity: Identity,
    segment: Arc<Segment>,
    /// Where the next write begins: the end of what is written and synced.
    at: u64,
    frames: Vec<u8>,
    changes: Vec<Change>,
    /// Taken from the queue, not yet in `frames`.
    waiting: VecDeque<Request>,
    /// The call whose frames are being encoded.
    current: Option<Done>,
    /// All frames of these calls are in `frames` or before.
    finished: Vec<Done>,
    repeated: Repeated,
    seal_due: bool,
    /// Terms and points that the segment's footer has, or will have at most once `frames` is written.
    terms: usize,
    points: usize,
    last_term: u64,
    measured: Option<Measured>,
}

impl Writer {
    /// Goes on in `segment` at `at`, up to where everything is synced.
    pub(super) fn new(
        shared: Arc<Shared>,
        identity: Identity,
        segment: Arc<Segment>,
        at: u64,
        repeated: Repeated,
        seal_due: bool,
    ) -> Self {
        let mut writer = Self {
            shared,
            identity,
            segment,
            at,
            frames: Vec::new(),
            changes: Vec::new(),
            waiting: VecDeque::new(),
            current: None,
            finished: Vec::new(),
            repeated,
            seal_due,
            terms: 0,
            points: 0,
            last_term: 0,
            measured: None,
        };
        writer.recount();
        writer
    }

    /// From now on its writes are counted here.
    pub(super) fn measure(&mut self, measured: Option<Measured>) {
        self.measured = measured;
    }

    /// Writes, syncs and acknowledges what waits.
    pub fn step(&mut self) -> Step {
        if self.shared.failed().is_some() {
            return Step::Stopped;
        }
        // What was held back for want of room goes before what came after it (W2).
        let closed = match self.waiting.is_empty() {
            true => self.shared.take(WAL_BATCH_BYTES_MAX as u64, &mut self.waiting),
            false => self.shared.is_closed(),
        };
        if !self.waiting.is_empty() {
            return match self.write_waiting() {
                Ok(true) => Step::Again,
                Ok(false) if closed => self.settle(Err(WalError::Closed), Step::Stopped),
                Ok(false) => Step::NoRoom,
                Err(error) => self.settle(Err(error), Step::Stopped),
            };
        }
        match (closed, self.seal_due) {
            (true, _) => {
                self.seal();
                Step::Stopped
            }
            (false, true) => Step::SealDue,
            (false, false) => Step::Idle,
        }
    }

    /// Writes down that the last batch was acknowledged, so that a later hole in it can't pass for a torn tail.
    pub fn seal(&mut self) -> Step {
        if !self.seal_due || self.shared.failed().is_some() {
            return Step::Idle;
        }
        self.encode(Kind::Seal, 0, 0, &[]);
        let written = self.flush();
        self.seal_due = false;
        self.settle(written, Step::Idle)
    }

    /// Waits for a call without a thread.
    pub async fn arrived(&self) {
        self.shared.arrived_task.notified().await;
    }

    /// Runs until the log is closed or poisoned: the thread's body.
    pub(super) fn run(mut self) {
        loop {
            match self.step() {
                Step::Again => {}
                Step::Idle => self.shared.wait(),
                Step::NoRoom => self.shared.wait_for_room(),
                Step::SealDue => {
                    if self.shared.wait_before_seal() {
                        self.seal();
                    }
                }
                Step::Stopped => return,
            }
        }
    }

    /// [`Writer::run`] without a thread, for the log in this directory.
    pub(super) async fn run_as_task(mut self, dir: &Path) {
        let shared = Arc::clone(&self.shared);
        loop {
            match self.step() {
                Step::Again => {}
                Step::Idle => shared.arrived_task.notified().await,
                Step::NoRoom => drop(tokio::time::timeout(WAL_ROOM_AGAIN, shared.arrived_task.notified()).await),
                Step::SealDue => {
                    if tokio::time::timeout(WAL_SEAL_AFTER, shared.arrived_task.notified()).await.is_err() {
                        self.seal();
                    }
                }
                Step::Stopped => return,
            }
            work::pause(dir).await;
        }
    }

    fn settle(&mut self, written: Result<(), WalError>, then: Step) -> Step {
        match written {
            Ok(()) => then,
            Err(error) => {
                self.fail(error);
                Step::Stopped
            }
        }
    }

    /// Poisons the log: nothing is written any more, and nobody who waits is told anything but this.
    fn fail(&mut self, error: WalError) {
        self.shared.fail(error);
        let error = self.shared.failed().unwrap_or(WalError::Closed);
        let waiting = self.waiting.drain(..).map(|request| request.done);
        for done in self.finished.drain(..).chain(self.current.take()).chain(waiting) {
            done(Err(error.clone()));
        }
    }

    /// Answers whether all of it is written; what isn't found no room, and stays in front of what comes.
    fn write_waiting(&mut self) -> Result<bool, WalError> {
        while let Some(Request { work, bytes, done }) = self.waiting.pop_front() {
            self.current = Some(done);
            if let Some(work) = self.write_work(work)? {
                if let Some(done) = self.current.take() {
                    self.waiting.push_front(Request { work, bytes, done });
                }
                self.flush()?;
                return Ok(false);
            }
            self.finished.extend(self.current.take());
        }
        self.flush()?;
        Ok(true)
    }

    /// Answers what of it found no room.
    fn write_work(&mut self, work: Work) -> Result<Option<Work>, WalError> {
        match work {
            Work::Append(entries) => return self.write_entries(entries),
            Work::Vote(payload) => {
                if !self.make_room(payload.len())? {
                    return Ok(Some(Work::Vote(payload)));
                }
                self.encode(Kind::Vote, 0, 0, &payload);
                self.repeated.vote = Some(payload);
            }
            Work::Truncate(from) => {
                if !self.make_room(0)? {
                    return Ok(Some(Work::Truncate(from)));
                }
                self.encode(Kind::Truncate, from, 0, &[]);
                self.changes.push(Change::Truncate(from));
                self.points += 1;
                self.terms += 1;
            }
            Work::Purge(purged) => {
                if !self.make_room(purged.payload.len())? {
                    return Ok(Some(Work::Purge(purged)));
                }
                self.encode(Kind::Purge, purged.index, purged.term, &purged.payload);
                self.changes.push(Change::Purge { index: purged.index, term: purged.term });
                self.points += 1;
                self.terms += 1;
                if self.repeated.purged.as_ref().is_none_or(|last| last.index < purged.index) {
                    self.repeated.purged = Some(purged);
                }
            }
            Work::Mark(mark) => {
                let payload = mark.payload(false);
                if !self.make_room(payload.len())? {
                    return Ok(Some(Work::Mark(mark)));
                }
                let (index, term) = mark.position();
                self.encode(Kind::PeerMark, index, term, &payload);
                self.repeated.marks.insert(mark.node_id, mark);
            }
            Work::Roll => {
                self.flush()?;
                // Whoever asked looks whether there was room.
                self.roll(0)?;
            }
            Work::Forget(node_id) => {
                let gone = PeerMark { node_id, disk_id: DiskId::default(), vote: Bytes::new(), log: None };
                let payload = gone.payload(true);
                if !self.make_room(payload.len())? {
                    return Ok(Some(Work::Forget(node_id)));
                }
                self.encode(Kind::PeerMark, 0, 0, &payload);
                self.repeated.marks.remove(&node_id);
            }
        }
        Ok(None)
    }

    fn write_entries(&mut self, entries: Vec<WalEntry>) -> Result<Option<Work>, WalError> {
        let mut entries = entries.into_iter();
        while let Some(entry) = entries.next() {
            if !self.make_room(entry.payload.len())? {
                return Ok(Some(Work::Append(std::iter::once(entry).chain(entries).collect())));
            }
            let offset = self.encode(Kind::Entry, entry.index, entry.term, &entry.payload);
            self.changes.push(Change::Entry { index: entry.index, term: entry.term, offset });
            self.terms += usize::from(entry.term != self.last_term);
            self.last_term = entry.term;
        }
        Ok(None)
    }

    /// Makes sure that a frame of this payload fits the buffer and the segment, with a seal and the footer behind it.
    /// Answers false where it would take the next segment, and the disk has no room for that.
    fn make_room(&mut self, payload: usize) -> Result<bool, WalError> {
        let bytes = frame_bytes(payload);
        let end = self.at + self.frames.len() as u64 + bytes + frame_bytes(0);
        let points = self.points + (self.frames.len() as u64 / WAL_POINT_BYTES) as usize + 2;
        let fits = end + footer_bytes(self.terms + 1, points) <= self.segment.bytes();
        if fits && self.frames.len() + bytes as usize <= WAL_BATCH_BYTES_MAX.max(bytes as usize) {
            return Ok(true);
        }
        self.flush()?;
        if fits { Ok(true) } else { self.roll(bytes) }
    }

    fn encode(&mut self, kind: Kind, index: u64, term: u64, payload: &[u8]) -> u64 {
        let offset = self.at + self.frames.len() as u64;
        let frame = Frame { kind, index, term, durable_upto: self.at, payload };
        frame.encode(self.segment.header.salt, &mut self.frames);
        offset
    }

    /// Writes and syncs the frames, publishes them to readers, and tells the calls that are finished.
    fn flush(&mut self) -> Result<(), WalError> {
        if !self.frames.is_empty() {
            let began = self.measured.is_some().then(Instant::now);
            self.segment.file.write_at(&self.frames, self.at)?;
            if !planted!(SyncLeftToSeal) || self.finished.is_empty() {
                self.segment.file.sync_data()?;
            }
            self.at += self.frames.len() as u64;
            if let (Some(measured), Some(began)) = (&self.measured, began) {
                measured.syncs.inc();
                measured.bytes.inc_by(self.frames.len() as u64);
                measured.seconds.observe(began.elapsed().as_secs_f64());
            }
            self.frames.clear();
            self.frames.shrink_to(WAL_BATCH_BYTES_MAX);
            self.seal_due = true;
            self.publish();
        }
        for done in self.finished.drain(..) {
            done(Ok(()));
        }
        Ok(())
    }

    fn publish(&mut self) {
        let retired = {
            let mut map = self.shared.map.write();
            for change in self.changes.drain(..) {
                match change {
                    Change::Entry { index, term, offset } => map.entry(index, term, offset),
                    Change::Truncate(from) => map.truncate(from),
                    Change::Purge { index, term } => map.purge(index, term),
                }
            }
            map.synced(self.at);
            map.retire()
        };
        self.shared.reserve.retire(retired);
        self.recount();
    }

    fn recount(&mut self) {
        self.shared.left.store(self.segment.bytes().saturating_sub(self.at), Ordering::Release);
        let map = self.shared.map.read();
        (self.terms, self.points) = map.footer_counts();
        self.last_term = map.last_term();
    }

    /// Seals the segment and goes on in the next one, where a frame of so many bytes fits; if there is room for one.
    fn roll(&mut self, bytes: u64) -> Result<bool, WalError> {
        let least = HEADER_BYTES as u64 + self.repeated.bytes() + bytes + frame_bytes(0) + footer_bytes(4, 4);
        // First of all: a sealed segment without a next one could take no vote.
        let Some(spare) = self.shared.reserve.take(least)? else { return Ok(false) };
        let footer = self.shared.map.read().footer().encode();
        let old = &self.segment;
        old.file.write_at(&footer, old.bytes() - footer.len() as u64)?;
        old.file.sync_data()?;
        self.begin(spare)?;
        Ok(true)
    }

    /// Begins the next segment. Its head is synced by itself, so that every later frame proves that it was there.
    pub(super) fn begin(&mut self, spare: Spare) -> Result<(), WalError> {
        let (first_index, previous_term) = {
            let map = self.shared.map.read();
            (map.bounds.next, map.last_term())
        };
        let head = self.repeated.bytes();
        let segment = begin_segment(spare, self.identity, first_index, previous_term, &self.repeated)?;
        (self.segment, self.at) = (Arc::new(segment), HEADER_BYTES as u64 + head);
        let retired = {
            let mut map = self.shared.map.write();
            map.begin(self.segment.clone(), self.at);
            map.retire()
        };
        self.shared.reserve.retire(retired);
        self.seal_due = true;
        self.recount();
        Ok(())
    }
}

impl Drop for Writer {
    /// A writer that is gone writes nothing any more, however it went.
    fn drop(&mut self) {
        self.fail(WalError::Closed);
    }
}

/// Writes and syncs a segment's header and head.
pub(super) fn begin_segment(
    spare: Spare,
    identity: Identity,
    first_index: u64,
    previous_term: u64,
    repeated: &Repeated,
) -> Result<Segment, WalError> {
    let header = Header {
        identity,
        sequence: spare.sequence,
        first_index,
        previous_term,
        salt: identity.salt(spare.sequence),
        recycled_from: spare.recycled_from,
        bytes: spare.bytes,
    };
    let mut bytes = header.encode();
    repeated.encode(header.salt, &mut bytes);
    spare.file.write_at(&bytes, 0)?;
    spare.file.sync_data()?;
    Ok(Segment { file: spare.file, header })
}

impl Repeated {
    /// Bytes of the frames that repeat it.
    pub(super) fn bytes(&self) -> u64 {
        let vote = self.vote.as_ref().map_or(0, |vote| frame_bytes(vote.len()));
        let purged = self.purged.as_ref().map_or(0, |purged| frame_bytes(purged.payload.len()));
        let marks: u64 = self.marks.values().map(|mark| frame_bytes(mark.payload(false).len())).sum();
        vote + purged + marks
    }

    fn encode(&self, salt: u32, out: &mut Vec<u8>) {
        let mut frame = |kind, index, term, payload: &[u8]| {
            Frame { kind, index, term, durable_upto: 0, payload }.encode(salt, out);
        };
        if let Some(vote) = &self.vote {
            frame(Kind::Vote, 0, 0, vote);
        }
        if let Some(purged) = &self.purged {
            frame(Kind::Purge, purged.index, purged.term, &purged.payload);
        }
        for mark in self.marks.values() {
            let (index, term) = mark.position();
            frame(Kind::PeerMark, index, term, &mark.payload(false));
        }
    }
}
