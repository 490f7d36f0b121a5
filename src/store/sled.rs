//! The second engine: sled 0.34, pinned. It has no views of its own, so a view here remembers what is overwritten before
//! its scan has come by: the *pre-images*.
//!
//! sled's `flush` does not call fsync and its files never shrink. Neither matters to an index that is rebuilt from a
//! snapshot file when it is damaged or has grown too far above what it holds.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::{
    directory::Place,
    engine::{
        Ascending, Batch, Engine, EngineCause, EngineError, EngineSnapshot, KeyRange, LoadRows, Row, Scan, successor,
    },
};
use crate::limits::{
    SLED_CACHE_BYTES, SLED_CHANGES_PER_COLLECTION, SLED_COLLECTIONS_MIN, SLED_LOAD_BATCH_BYTES, SLED_LOCK_PAUSE,
    SLED_LOCK_TRIES, SLED_ROOM_BYTES, SLED_ROOM_FACTOR, SLED_VIEW_BYTES, STORE_SCAN_PAGE_BYTES, STORE_SCAN_PAGE_ROWS,
};

/// The engine's name in errors, options and directory names.
pub(super) const NAME: &str = "sled";

/// The engine on sled.
pub struct SledEngine {
    files: Arc<Files>,
}

/// What the engine and its views share. The fields are dropped in this order: the directory goes when nothing uses it.
struct Files {
    tree: sled::Tree,
    database: sled::Db,
    /// Held over a whole write, pre-images included, and while a view is opened: so a view begins between two batches (E3).
    views: Mutex<Vec<Weak<View>>>,
    stopped: AtomicBool,
    place: Place,
}

impl SledEngine {
    /// Opens the engine at `path`, which is created where it is missing.
    ///
    /// # Errors
    /// [`EngineError::Locked`], or [`EngineError::Damaged`] for everything else that keeps it from opening.
    ///
    /// # Panics
    /// On some damage: callers go through [`super::directory::open`], which reports that as damage too.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        // No flush by time: sled writes a buffer out when it is full, and what it had not is in the log.
        let config = sled::Config::new().path(path).cache_capacity(SLED_CACHE_BYTES).flush_every_ms(None);
        let database = open_unlocked(&config)?;
        let tree = sled::Tree::clone(&database);
        let files = Files {
            tree,
            database,
            views: Mutex::new(Vec::new()),
            stopped: AtomicBool::new(false),
            place: Place::new(path),
        };
        Ok(Self { files: Arc::new(files) })
    }
}

/// sled's background threads keep its lock for a moment after the last handle is gone, so an engine that is opened again in
/// the same process has to ask more than once. A lock that stays is another process's.
fn open_unlocked(config: &sled::Config) -> Result<sled::Db, EngineError> {
    let mut tries = SLED_LOCK_TRIES;
    loop {
        tries -= 1;
        match config.open().map_err(not_opened) {
            Err(EngineError::Locked { .. }) if tries > 0 => thread::sleep(SLED_LOCK_PAUSE),
            opened => return opened,
        }
    }
}

impl Files {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let value = self.tree.get(key).map_err(not_read)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn apply(&self, batch: sled::Batch, changes: usize) -> Result<(), EngineError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(EngineError::Stopped { engine: NAME });
        }
        self.tree.apply_batch(batch).map_err(|error| {
            self.stopped.store(true, Ordering::Release);
            EngineError::Write { engine: NAME, source: EngineCause::new(error) }
        })?;
        collect_garbage(changes);
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.stopped.load(Ordering::Acquire) {
            // After a failed write sled's own end can wait for good, for bytes that never become stable. So it has none: its
            // memory, threads and open files stay until the process ends.
            std::mem::forget((self.tree.clone(), self.database.clone()));
        }
    }
}

/// Frees the pages that a batch has replaced. sled does so by the way, a few pages every so many calls, and a batch is one
/// call however large: with batches of 16,384 changes the process grew by 6 KB a change and never shrank again.
fn collect_garbage(changes: usize) {
    for _ in 0..SLED_COLLECTIONS_MIN + changes / SLED_CHANGES_PER_COLLECTION {
        sled::pin().flush();
    }
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.files.get(key)
    }

    fn scan(&self, range: &KeyRange) -> Result<Scan<'_>, EngineError> {
        if range.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        let start = range.start().clone();
        let rows = match range.end() {
            Some(end) => self.files.tree.range(start..end.clone()),
            None => self.files.tree.range(start..),
        };
        Ok(Box::new(rows.map(row)))
    }

    fn write(&self, batch: Batch) -> Result<(), EngineError> {
        let mut views = self.files.views.lock();
        views.retain(|view| view.strong_count() > 0);
        for view in views.iter().filter_map(Weak::upgrade) {
            view.keep_pre_images(&self.files, &batch)?;
        }
        let (mut writes, changes) = (sled::Batch::default(), batch.len());
        for (key, value) in batch.changes() {
            match value {
                Some(value) => writes.insert(key.as_ref(), value.as_ref()),
                None => writes.remove(key.as_ref()),
            }
        }
        self.files.apply(writes, changes)
    }

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError> {
        let view = Arc::new(View::default());
        self.files.views.lock().push(Arc::downgrade(&view));
        Ok(Box::new(SledSnapshot { files: Arc::clone(&self.files), view }))
    }

    fn load_sorted(&self, rows: LoadRows<'_>, finish: Batch) -> Result<u64, EngineError> {
        if !self.files.tree.is_empty() {
            return Err(EngineError::NotEmpty);
        }
        let mut order = Ascending::new();
        let (mut loaded, mut waiting, mut waiting_rows, mut waiting_bytes) = (0, sled::Batch::default(), 0, 0);
        for row in rows {
            let (key, value) = row?;
            order.admit(&key)?;
            waiting.insert(key.as_ref(), value.as_ref());
            waiting_bytes += key.len() + value.len();
            waiting_rows += 1;
            loaded += 1;
            if waiting_bytes >= SLED_LOAD_BATCH_BYTES {
                self.files.apply(std::mem::take(&mut waiting), waiting_rows)?;
                (waiting_rows, waiting_bytes) = (0, 0);
            }
        }
        self.files.apply(waiting, waiting_rows)?;
        self.write(finish)?;
        Ok(loaded)
    }

    fn disk_bytes(&self) -> Result<u64, EngineError> {
        self.files.place.bytes().map_err(|error| not_read(error.into()))
    }

    fn room_for(&self, bytes: u64) -> u64 {
        // After a failed write sled reads nothing that is not in its cache, and then the node has to end.
        bytes.saturating_mul(SLED_ROOM_FACTOR).saturating_add(SLED_ROOM_BYTES)
    }

    fn settle(&self) {
        if !self.files.stopped.load(Ordering::Acquire)
            && let Err(error) = self.files.tree.flush()
        {
            tracing::warn!(%error, "sled did not hand over what it holds");
        }
    }

    fn retire(&self) {
        self.files.place.retire();
    }

    fn put_aside(&self, to: &Path) {
        self.files.place.put_aside(to);
    }
}

/// One view: how far its scan has come, and what was overwritten beyond that point.
///
/// V1. Every key at or above `next` that a batch has changed since the view began has its pre-image in `kept`, put there
/// before the batch was applied. V2. No key below `next` is in `kept`. V3. `kept_bytes` is the sum of what `kept` holds.
#[derive(Default)]
struct View {
    state: Mutex<ViewState>,
    moved: Condvar,
}

struct ViewState {
    /// The first key the scan has not reached; `None` when nothing is left to scan.
    next: Option<Bytes>,
    /// Values as of the beginning of the view, `None` for keys that were absent.
    kept: BTreeMap<Bytes, Option<Bytes>>,
    kept_bytes: usize,
}

impl Default for ViewState {
    fn default() -> Self {
        Self { next: Some(Bytes::new()), kept: BTreeMap::new(), kept_bytes: 0 }
    }
}

impl ViewState {
    fn must_keep(&self, key: &Bytes) -> bool {
        self.next.as_ref().is_some_and(|next| next <= key) && !self.kept.contains_key(key)
    }
}

fn kept_size(key: &Bytes, value: Option<&Bytes>) -> usize {
    key.len() + value.map_or(0, Bytes::len)
}

impl View {
    /// Establishes V1 for `batch`. Waits for the scan while the memory for pre-images is used up.
    fn keep_pre_images(&self, files: &Files, batch: &Batch) -> Result<(), EngineError> {
        let mut state = self.state.lock();
        for (key, _) in batch.changes() {
            while state.must_keep(key) && state.kept_bytes >= SLED_VIEW_BYTES {
                self.moved.wait(&mut state);
            }
            if state.must_keep(key) {
                let value = files.get(key)?;
                state.kept_bytes += kept_size(key, value.as_ref());
                state.kept.insert(key.clone(), value);
            }
        }
        Ok(())
    }

    /// The next rows of the view; none when it is at its end.
    fn page(&self, files: &Files) -> Result<Vec<Row>, EngineError> {
        // A page of keys that were all absent when the view began is empty and yet not the last one.
        loop {
            let mut state = self.state.lock();
            let Some(next) = state.next.clone() else { return Ok(Vec::new()) };
            let mut found = Vec::new();
            let mut found_bytes = 0;
            let mut end = None;
            for item in files.tree.range(next..) {
                let (key, value) = row(item)?;
                found_bytes += key.len() + value.len();
                found.push((key, value));
                if found.len() == STORE_SCAN_PAGE_ROWS || found_bytes >= STORE_SCAN_PAGE_BYTES {
                    end = found.last().map(|(key, _)| successor(key));
                    break;
                }
            }
            let beyond = end.as_ref().map(|end| state.kept.split_off(end)).unwrap_or_default();
            let here = std::mem::replace(&mut state.kept, beyond);
            state.kept_bytes -= here.iter().map(|(key, value)| kept_size(key, value.as_ref())).sum::<usize>();
            state.next = end;
            let at_end = state.next.is_none();
            drop(state);
            self.moved.notify_all();
            let rows = overlay(found, here);
            if at_end || !rows.is_empty() {
                return Ok(rows);
            }
        }
    }

    /// Ends the view: nothing is kept for it any more, and no writer waits for it.
    fn close(&self) {
        *self.state.lock() = ViewState { next: None, ..ViewState::default() };
        self.moved.notify_all();
    }
}

/// Rows as found in the tree, with the pre-images in place of what is newer.
fn overlay(found: Vec<Row>, kept: BTreeMap<Bytes, Option<Bytes>>) -> Vec<Row> {
    if kept.is_empty() {
        return found;
    }
    let mut rows: BTreeMap<Bytes, Option<Bytes>> = found.into_iter().map(|(key, value)| (key, Some(value))).collect();
    rows.extend(kept);
    rows.into_iter().filter_map(|(key, value)| value.map(|value| (key, value))).collect()
}

struct SledSnapshot {
    files: Arc<Files>,
    view: Arc<View>,
}

impl EngineSnapshot for SledSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        // Under the lock of the view: a batch that changes the key now has to keep its pre-image first.
        let state = self.view.state.lock();
        match state.kept.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.files.get(key),
        }
    }

    fn into_scan(self: Box<Self>) -> Result<Scan<'static>, EngineError> {
        let mut page = Vec::new().into_iter();
        Ok(Box::new(std::iter::from_fn(move || {
            if page.len() == 0 {
                match self.view.page(&self.files) {
                    Ok(rows) => page = rows.into_iter(),
                    Err(error) => {
                        self.view.close();
                        return Some(Err(error));
                    }
                }
            }
            page.next().map(Ok)
        })))
    }
}

impl Drop for SledSnapshot {
    fn drop(&mut self) {
        self.view.close();
    }
}

fn row(item: sled::Result<(sled::IVec, sled::IVec)>) -> Result<Row, EngineError> {
    let (key, value) = item.map_err(not_read)?;
    Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
}

fn not_opened(error: sled::Error) -> EngineError {
    let reason = error.to_string();
    // sled has no error of its own for this; the version is pinned, and a test holds the words.
    if reason.contains("could not acquire lock") {
        return EngineError::Locked { engine: NAME };
    }
    EngineError::Damaged { engine: NAME, reason }
}

fn not_read(error: sled::Error) -> EngineError {
    EngineError::Read { engine: NAME, source: EngineCause::new(error) }
}
