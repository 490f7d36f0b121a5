//! The replicated state as the node holds it: applied in memory, flushed to an engine behind the hot path, and handed to
//! snapshots as of a flush boundary.
//!
//! # Invariants
//!
//! - S1. Every flush is one batch that holds the final values of what changed, the mark (last applied, membership) and
//!   the small state as of one log id. So an engine found after a crash is the state at its own mark, and the log from
//!   there on makes it whole.
//! - S2. A snapshot's mark and content come from the same view of the engine, never from live state.
//! - S3. A full overlay slows proposals ([`Records::room`]); it never drops anything.
//! - S4. Where the disk has no room, a flush is put off and the overlay keeps what it would have written: the log has it too.
//! - S5. Nothing reaches the engine that the log here does not hold durably: what a member applies may be decided before its own
//!   disk has it, and a store that is ahead of its log is taken for one whose log was lost.

mod anew;
mod put_off;

use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::{Duration, Instant},
};

use bincode::{Decode, Encode};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use prometheus_client::metrics::{counter::Counter, histogram::Histogram};
use tokio::sync::Notify;

use super::{
    StoreError,
    dump::{self, DumpError},
    engine::{Batch, Engine, EngineError, EngineSnapshot, Row},
    layer::{Changes, Layer},
    overlay::Overlay,
};
use crate::{
    fatal,
    id::{Position, Time},
    limits,
    records::{
        self,
        answer::Applied,
        audit,
        codec::{self, Blob},
        command::{Entry, RecordRef},
        keys::{self, META_GLOBALS, StoreKey},
        state::{Event, Globals, State},
    },
};

/// The meta value that holds the mark.
pub const META_MARK: &str = "mark";

/// How far the log is applied, and the membership that holds there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Index of the last applied entry; 0 with term 0 before the first.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The node that led then.
    pub node: u64,
    /// The last membership and its log id, as the consensus module encodes them.
    pub membership: Bytes,
}

/// The mark in the shape in which it is stored.
#[derive(Encode, Decode)]
struct StoredMark {
    index: u64,
    term: u64,
    node: u64,
    membership: Blob,
}

impl Mark {
    /// As it is stored, under [`META_MARK`].
    pub(crate) fn encode(&self) -> Bytes {
        let Self { index, term, node, membership } = self.clone();
        codec::encode(&StoredMark { index, term, node, membership: Blob(membership) })
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let StoredMark { index, term, node, membership } = codec::decode(bytes)?;
        Ok(Self { index, term, node, membership: membership.0 })
    }
}

/// A state as of one log id, to be written into a snapshot.
pub struct View {
    /// How far the log is applied in it.
    pub mark: Mark,
    /// Its small state: position, cluster time, cluster and lineage id.
    pub globals: Globals,
    /// Its keys and values.
    pub rows: Box<dyn EngineSnapshot>,
}

/// Where engines come from: the newest whole one, and an empty one to load a snapshot into.
pub trait OpenEngine: Send + Sync + 'static {
    /// The engine that is in use.
    ///
    /// # Errors
    /// When it is damaged, in use or can't be opened.
    fn open(&self) -> Result<Arc<dyn Engine>, EngineError>;

    /// An empty engine that takes the place of the one in use once it is whole ([`OpenEngine::adopt`]).
    ///
    /// # Errors
    /// When it can't be made.
    fn fresh(&self) -> Result<Arc<dyn Engine>, EngineError>;

    /// From now on the engine last made by [`OpenEngine::fresh`] is the one in use.
    ///
    /// # Errors
    /// When that can't be made to last.
    fn adopt(&self) -> Result<(), EngineError>;
}

/// Who hears what an entry changed. Called while the state is locked: it must only take note.
pub trait Listener: Send + Sync {
    /// The records whose heads were written, the events with their positions, and the state as it is now.
    fn applied(&self, touched: Vec<RecordRef>, events: Vec<(Position, Event)>, state: &Overlay);

    /// The whole state was replaced by a snapshot's.
    fn replaced(&self, _state: &Overlay) {}
}

/// Who is shown every entry with its answers: what is applied can be applied elsewhere, and compared. Called while the state
/// is locked: it must only take note.
pub trait Observer: Send + Sync {
    /// The entry, the answers to its commands, and the position that it led to.
    fn applied(&self, entry: &Entry, answers: &[Applied], position: Position);
}

struct Inner {
    overlay: Overlay,
    mark: Mark,
}

/// The replicated state of this node.
pub struct Records {
    inner: RwLock<Inner>,
    /// Held by a flush, a snapshot or an install from begin to end: one at a time.
    boundary: Mutex<()>,
    wanted: Mutex<Wanted>,
    wake: Condvar,
    /// The same for a flusher without a thread.
    wake_task: Notify,
    room: Notify,
    listener: OnceLock<Arc<dyn Listener>>,
    observer: OnceLock<Arc<dyn Observer>>,
    measured: OnceLock<Measured>,
    /// A flush that was begun and has not reached the engine.
    unfinished: Mutex<Option<Unfinished>>,
    /// How far the log is durable.
    durable: RwLock<Option<Durable>>,
    room_for: OnceLock<put_off::RoomFor>,
    is_put_off: AtomicBool,
    /// The engine has failed for want of room, and writes no more: another takes its place once there is room.
    is_spent: AtomicBool,
}

/// Tells the first index that the log is not known to hold durably.
pub type Durable = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a flush writes: a layer, and the small state with the mark as of the same moment.
struct Unfinished {
    layer: Arc<Layer>,
    small: Changes,
    /// The first index after what is in it; 0 where nothing was applied.
    end: u64,
}

/// What flushes count. Clones share it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Batches given to the engine.
    pub flushes: Counter,
    /// Time that one took, s.
    pub seconds: Histogram,
    /// Rows in them.
    pub rows: Counter,
}

#[derive(Default)]
struct Wanted {
    is_wanted: bool,
    is_over: bool,
}

/// Figures of the overlay, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct OverlayFigures {
    /// Memory of what is not flushed yet, roughly, bytes.
    pub bytes: usize,
    /// The small state's position.
    pub position: Position,
    /// The last applied time.
    pub time: Time,
}

impl Records {
    /// The state as an engine holds it.
    ///
    /// # Errors
    /// When the engine can't be read or holds something else.
    pub fn open(engine: Arc<dyn Engine>) -> Result<Self, StoreError> {
        let mark = match engine.get(&StoreKey::Meta(META_MARK.into()).encode())? {
            Some(bytes) => Mark::decode(&bytes)?,
            None => Mark::default(),
        };
        Ok(Self {
            inner: RwLock::new(Inner { overlay: Overlay::open(engine)?, mark }),
            boundary: Mutex::new(()),
            wanted: Mutex::new(Wanted::default()),
            wake: Condvar::new(),
            wake_task: Notify::new(),
            room: Notify::new(),
            listener: OnceLock::new(),
            observer: OnceLock::new(),
            measured: OnceLock::new(),
            unfinished: Mutex::default(),
            durable: RwLock::default(),
            room_for: OnceLock::new(),
            is_put_off: AtomicBool::new(false),
            is_spent: AtomicBool::new(false),
        })
    }

    /// Who hears of changes from now on. Only the first call counts.
    pub fn listen(&self, listener: Arc<dyn Listener>) {
        if self.listener.set(listener).is_ok() {
            self.inner.write().overlay.is_heard = true;
        }
    }

    /// Who is shown what is applied from now on. Only the first call counts.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    /// From now on nothing reaches the engine that this log does not hold durably (S5).
    pub fn follow(&self, durable: Durable) {
        *self.durable.write() = Some(durable);
    }

    /// How far the log is applied.
    pub fn mark(&self) -> Mark {
        self.inner.read().mark.clone()
    }

    /// The state as of the last applied entry. Hold it briefly: applying waits.
    pub fn read(&self) -> impl std::ops::Deref<Target = Overlay> + '_ {
        RwLockReadGuard::map(self.inner.read(), |inner| &inner.overlay)
    }

    /// Applies an entry (none: a blank or membership entry, which only moves the mark).
    pub fn apply(&self, mark: Mark, entry: Option<&Entry>) -> Vec<Applied> {
        let mut inner = self.inner.write();
        let answers = entry.map_or_else(Vec::new, |entry| records::apply(&mut inner.overlay, entry));
        inner.mark = mark;
        if let (Some(observer), Some(entry)) = (self.observer.get(), entry) {
            observer.applied(entry, &answers, inner.overlay.globals().position);
        }
        if inner.overlay.is_heard {
            let touched = std::mem::take(&mut inner.overlay.touched);
            let events = std::mem::take(&mut inner.overlay.events);
            if let Some(listener) = self.listener.get() {
                listener.applied(touched, events, &inner.overlay);
            }
        }
        let is_due = inner.overlay.active.bytes >= limits::OVERLAY_FLUSH_BYTES && inner.overlay.flushing.is_none();
        drop(inner);
        if is_due {
            self.want_flush();
        }
        answers
    }

    /// From now on flushes are counted here; where that is set already, it stays.
    pub fn measure(&self, measured: Measured) {
        let _ = self.measured.set(measured);
    }

    /// When something is due next, if ever.
    pub fn next_due(&self) -> Option<Time> {
        let inner = self.inner.read();
        inner.overlay.next_due().into_iter().chain(audit::cluster_due(inner.overlay.globals())).min()
    }

    /// Figures of the overlay.
    pub fn figures(&self) -> OverlayFigures {
        let inner = self.inner.read();
        let globals = inner.overlay.globals();
        OverlayFigures { bytes: unflushed(&inner.overlay), position: globals.position, time: globals.time }
    }

    /// Whether the overlay takes more.
    pub fn has_room(&self) -> bool {
        unflushed(&self.inner.read().overlay) < limits::OVERLAY_BYTES_MAX
    }

    /// Waits until the overlay takes more.
    pub async fn room(&self) {
        while !self.has_room() {
            let notified = self.room.notified();
            self.want_flush();
            if self.has_room() {
                return;
            }
            notified.await;
        }
    }

    /// Bytes that the engine takes on the disk.
    ///
    /// # Errors
    /// When it can't be asked.
    pub fn disk_bytes(&self) -> Result<u64, StoreError> {
        let engine = Arc::clone(&self.inner.read().overlay.engine);
        Ok(engine.disk_bytes()?)
    }

    /// Writes what changed since the last flush into the engine, as one batch (S1). What the log does not hold durably yet is
    /// kept, and written by a later flush (S5).
    ///
    /// # Errors
    /// When the engine can't be written: final.
    pub fn flush(&self) -> Result<(), StoreError> {
        let boundary = self.boundary.lock();
        let result = self.flush_at(&boundary);
        drop(boundary);
        result
    }

    fn flush_at(&self, _boundary: &parking_lot::MutexGuard<'_, ()>) -> Result<(), StoreError> {
        // What has come since a flush was begun is a flush of its own: each is as of one log id (S1).
        while self.flush_once()? {}
        Ok(())
    }

    /// Finishes the flush that was begun, or begins one and finishes it. Answers whether it had been begun, and is finished.
    fn flush_once(&self) -> Result<bool, StoreError> {
        let begun = self.unfinished.lock().take();
        let was_begun = begun.is_some();
        let flush = begun.unwrap_or_else(|| self.begin_flush());
        let is_durable = self.durable.read().as_ref().is_none_or(|durable| flush.end <= durable());
        if !is_durable {
            *self.unfinished.lock() = Some(flush);
            return Ok(false);
        }
        if let Err(error) = self.write(&flush) {
            *self.unfinished.lock() = Some(flush);
            return Err(error.into());
        }
        let flushed = self.inner.write().overlay.end_flush();
        self.room.notify_waiters();
        drop((flush, flushed));
        Ok(was_begun)
    }

    fn begin_flush(&self) -> Unfinished {
        let mut inner = self.inner.write();
        let is_any = !inner.mark.membership.is_empty();
        let (mark, end) = (inner.mark.encode(), if is_any { inner.mark.index + 1 } else { 0 });
        let (layer, mut small) = inner.overlay.start_flush();
        small.push((StoreKey::Meta(META_MARK.into()).encode(), Some(mark)));
        Unfinished { layer, small, end }
    }

    fn write(&self, Unfinished { layer, small, .. }: &Unfinished) -> Result<(), EngineError> {
        let engine = Arc::clone(&self.inner.read().overlay.engine);
        let began = Instant::now();
        let changes = layer.changes(small.clone());
        let rows = changes.len() as u64;
        let mut batch = Batch::with_capacity(changes.len());
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        engine.write(batch)?;
        if let Some(measured) = self.measured.get() {
            measured.flushes.inc();
            measured.rows.inc_by(rows);
            measured.seconds.observe(began.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// The state as of a flush boundary, while applies go on (S2).
    ///
    /// # Errors
    /// When the engine can't be read or written, or the disk has no room for what is to be flushed.
    pub fn snapshot(&self) -> Result<View, StoreError> {
        let boundary = self.boundary.lock();
        self.have_room()?;
        self.flush_at(&boundary)?;
        let engine = Arc::clone(&self.inner.read().overlay.engine);
        let rows = engine.snapshot()?;
        drop(boundary);
        let meta = |name: &str| rows.get(&StoreKey::Meta(name.into()).encode());
        let mark = meta(META_MARK)?.map_or_else(|| Ok(Mark::default()), |bytes| Mark::decode(&bytes))?;
        let globals = meta(META_GLOBALS)?.map_or_else(|| Ok(Globals::default()), |bytes| codec::decode(&bytes))?;
        Ok(View { mark, globals, rows })
    }

    /// Writes the state as of a flush boundary as text, the same for every replica at its position, which is answered.
    ///
    /// # Errors
    /// When the engine can't be read or written, or `out` takes no more.
    pub fn dump(&self, out: &mut dyn io::Write) -> Result<Position, DumpError> {
        let View { globals, rows, .. } = self.snapshot()?;
        dump::write(globals.position, rows.into_scan()?, out)?;
        Ok(globals.position)
    }

    /// When another engine takes the place of the present one, its files are moved into the directory `to`, not deleted.
    pub fn keep_in(&self, to: &Path) {
        self.inner.read().overlay.engine.put_aside(to);
    }

    /// Replaces the state by a snapshot's rows, loaded into `engine`, which is empty.
    ///
    /// # Errors
    /// When rows can't be read or the engine can't be written; the state is then as it was.
    pub fn install(
        &self,
        engine: Arc<dyn Engine>,
        rows: &mut (dyn Iterator<Item = Result<Row, EngineError>> + Send),
    ) -> Result<(), StoreError> {
        let _boundary = self.boundary.lock();
        load(&*engine, rows)?;
        let loaded = Self::open(engine)?.inner.into_inner();
        let mut inner = self.inner.write();
        let is_heard = inner.overlay.is_heard;
        let old = std::mem::replace(&mut *inner, loaded);
        inner.overlay.is_heard = is_heard;
        if let Some(listener) = self.listener.get() {
            listener.replaced(&inner.overlay);
        }
        drop(inner);
        self.forget_put_off();
        old.overlay.engine.retire();
        self.room.notify_waiters();
        Ok(())
    }

    fn want_flush(&self) {
        self.wanted.lock().is_wanted = true;
        self.wake.notify_one();
        self.wake_task.notify_one();
    }

    /// Flushes by size and by age until [`Records::end_flusher`]: the body of the flusher's thread. An error of the engine
    /// ends the process.
    pub fn run_flusher(&self) {
        loop {
            let mut wanted = self.wanted.lock();
            if !wanted.is_wanted && !wanted.is_over {
                self.wake.wait_for(&mut wanted, Duration::from_millis(limits::OVERLAY_FLUSH_MS));
            }
            drop(wanted);
            if self.flush_as_wanted() {
                return;
            }
        }
    }

    /// [`Records::run_flusher`] without a thread.
    pub async fn run_flusher_as_task(&self) {
        loop {
            let pause = Duration::from_millis(limits::OVERLAY_FLUSH_MS);
            // Too long without a word is as good as one.
            let _ = tokio::time::timeout(pause, self.wake_task.notified()).await;
            if self.flush_as_wanted() {
                return;
            }
        }
    }

    /// One round of the flusher; true where it was the last one.
    fn flush_as_wanted(&self) -> bool {
        let mut wanted = self.wanted.lock();
        wanted.is_wanted = false;
        let is_over = wanted.is_over;
        drop(wanted);
        // Entries that change nothing move the mark alone: the last flush takes it along, and the next start reads less.
        let is_moved = is_over && !self.inner.read().mark.membership.is_empty();
        if (is_moved || !self.is_flushed())
            && let Err(error) = self.flush_or_put_off()
        {
            fatal::end(format!("the store can't be written: {error}"));
            return true;
        }
        if is_over {
            let engine = Arc::clone(&self.inner.read().overlay.engine);
            engine.settle();
        }
        is_over
    }

    /// A flusher is about to run, perhaps after an earlier one has ended.
    pub fn begin_flusher(&self) {
        self.wanted.lock().is_over = false;
    }

    /// Ends the flusher after a last flush.
    pub fn end_flusher(&self) {
        self.wanted.lock().is_over = true;
        self.wake.notify_one();
        self.wake_task.notify_one();
    }
}

/// Loads a snapshot's rows into an empty engine and opens the state in it.
///
/// # Errors
/// When rows can't be read or the engine can't be written.
pub fn loaded(
    engine: Arc<dyn Engine>,
    rows: &mut (dyn Iterator<Item = Result<Row, EngineError>> + Send),
) -> Result<Records, StoreError> {
    load(&*engine, rows)?;
    Records::open(engine)
}

/// Loads a snapshot's rows into an empty engine; the mark and the small state come last, as one batch, so that an engine
/// that was loaded half is known by their absence.
fn load(
    engine: &dyn Engine,
    rows: &mut (dyn Iterator<Item = Result<Row, EngineError>> + Send),
) -> Result<(), EngineError> {
    let names = [META_GLOBALS, META_MARK].map(|name| StoreKey::Meta(name.into()).encode());
    let mut finish = Vec::new();
    let mut error = None;
    let mut others = std::iter::from_fn(|| {
        loop {
            match rows.next()? {
                Ok((key, value)) if names.iter().any(|name| *name == key[..]) => finish.push((key, value)),
                Ok((key, _)) if planted!(SnapshotWithoutRecount) && key.first() == Some(&keys::COUNTERS) => {}
                Ok((key, _)) if planted!(SnapshotWithoutDeadlines) && key.first() == Some(&keys::DEADLINES) => {}
                row => return Some(row),
            }
        }
    });
    // The rows behind the meta values in key order are few: tokens. They pass through like all others.
    if let Err(failed) = engine.load_sorted(&mut others, Batch::new()) {
        error = Some(failed);
    }
    if let Some(error) = error {
        return Err(error);
    }
    let mut batch = Batch::with_capacity(finish.len());
    for (key, value) in finish {
        batch.put(key, value);
    }
    engine.write(batch)
}

fn unflushed(overlay: &Overlay) -> usize {
    overlay.active.bytes + overlay.flushing.as_ref().map_or(0, |layer| layer.bytes)
}

#[cfg(test)]
mod tests;
