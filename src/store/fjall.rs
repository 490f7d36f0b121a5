//! The default engine: fjall, a log-structured merge tree. Batches are atomic through its journal, views are sequence
//! numbers, and a bulk load writes sorted tables that appear all at once.
//!
//! Its journal is handed to the operating system after each batch and synced only when fjall itself rotates a memtable: a
//! power cut costs the last batches, which the log still has. Nothing here waits for a disk.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, Readable};

use super::{
    directory::Place,
    engine::{Ascending, Batch, Engine, EngineCause, EngineError, EngineSnapshot, KeyRange, LoadRows, Row, Scan},
};
use crate::limits::{
    FJALL_CACHE_BYTES, FJALL_JOURNAL_BYTES, FJALL_MEMTABLE_BYTES, FJALL_OPEN_FILES, FJALL_WORKER_THREADS,
};

/// The engine's name in errors, options and directory names.
pub(super) const NAME: &str = "fjall";
/// The one key space. Its name is on the disk.
const KEYSPACE: &str = "semel";

/// The engine on fjall.
pub struct FjallEngine {
    files: Arc<Files>,
}

/// What the engine and its views share. The fields are dropped in this order: the directory goes when nothing uses it.
struct Files {
    keyspace: Keyspace,
    database: Database,
    place: Place,
}

impl FjallEngine {
    /// Opens the engine at `path`, which is created where it is missing.
    ///
    /// # Errors
    /// [`EngineError::Locked`], or [`EngineError::Damaged`] for everything else that keeps it from opening.
    ///
    /// # Panics
    /// On some damage: callers go through [`super::directory::open`], which reports that as damage too.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let database = Database::builder(path)
            .cache_size(FJALL_CACHE_BYTES)
            .max_cached_files(Some(FJALL_OPEN_FILES))
            .max_journaling_size(FJALL_JOURNAL_BYTES)
            .worker_threads(FJALL_WORKER_THREADS)
            .open()
            .map_err(not_opened)?;
        // Filters stay on at every level, the last one too: most look-ups of a new claim are for a key that is absent.
        let options = || KeyspaceCreateOptions::default().max_memtable_size(FJALL_MEMTABLE_BYTES);
        let keyspace = database.keyspace(KEYSPACE, options).map_err(not_opened)?;
        Ok(Self { files: Arc::new(Files { keyspace, database, place: Place::new(path) }) })
    }
}

impl Files {
    /// Every read goes through a view: the key space's own reads see the keys of a batch as they arrive one by one (E1).
    fn read_at(&self, view: &fjall::Snapshot, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        let value = view.get(&self.keyspace, key).map_err(not_read)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.files.read_at(&self.files.database.snapshot(), key)
    }

    fn scan(&self, range: &KeyRange) -> Result<Scan<'_>, EngineError> {
        if range.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        let (view, start) = (self.files.database.snapshot(), range.start().clone());
        let rows = match range.end() {
            Some(end) => view.range(&self.files.keyspace, start..end.clone()),
            None => view.range(&self.files.keyspace, start..),
        };
        Ok(Box::new(rows.map(row)))
    }

    fn write(&self, batch: Batch) -> Result<(), EngineError> {
        let mut writes = fjall::OwnedWriteBatch::with_capacity(self.files.database.clone(), batch.len())
            .durability(Some(fjall::PersistMode::Buffer));
        for (key, value) in batch.changes() {
            match value {
                Some(value) => writes.insert(&self.files.keyspace, key.as_ref(), value.as_ref()),
                None => writes.remove(&self.files.keyspace, key.as_ref()),
            }
        }
        // fjall poisons itself when this fails, and refuses every later write (E4).
        writes.commit().map_err(not_written)
    }

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError> {
        let view = self.files.database.snapshot();
        Ok(Box::new(FjallSnapshot { view, files: Arc::clone(&self.files) }))
    }

    fn load_sorted(&self, rows: LoadRows<'_>, finish: Batch) -> Result<u64, EngineError> {
        if !self.files.keyspace.is_empty().map_err(not_read)? {
            return Err(EngineError::NotEmpty);
        }
        let mut tables = self.files.keyspace.start_ingestion().map_err(not_written)?;
        let mut order = Ascending::new();
        let mut loaded = 0;
        for row in rows {
            let (key, value) = row?;
            order.admit(&key)?;
            tables.write(key.as_ref(), value.as_ref()).map_err(not_written)?;
            loaded += 1;
        }
        tables.finish().map_err(not_written)?;
        self.write(finish)?;
        Ok(loaded)
    }

    fn disk_bytes(&self) -> Result<u64, EngineError> {
        self.files.database.disk_space().map_err(not_read)
    }

    fn retire(&self) {
        self.files.place.retire();
    }

    fn put_aside(&self, to: &Path) {
        self.files.place.put_aside(to);
    }
}

struct FjallSnapshot {
    view: fjall::Snapshot,
    files: Arc<Files>,
}

impl EngineSnapshot for FjallSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        self.files.read_at(&self.view, key)
    }

    fn into_scan(self: Box<Self>) -> Result<Scan<'static>, EngineError> {
        let rows = self.view.iter(&self.files.keyspace);
        // The rows keep the view, and the files must outlive both.
        let files = self.files;
        Ok(Box::new(rows.map(move |guard| {
            let _held = &files;
            row(guard)
        })))
    }
}

/// Copied out of the block it lies in: a slice would keep the whole block in memory for as long as the row is held.
fn row(guard: Guard) -> Result<Row, EngineError> {
    let (key, value) = guard.into_inner().map_err(not_read)?;
    Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
}

fn not_opened(error: fjall::Error) -> EngineError {
    match error {
        fjall::Error::Locked => EngineError::Locked { engine: NAME },
        error => EngineError::Damaged { engine: NAME, reason: error.to_string() },
    }
}

fn not_read(error: fjall::Error) -> EngineError {
    EngineError::Read { engine: NAME, source: EngineCause::new(error) }
}

fn not_written(error: fjall::Error) -> EngineError {
    match error {
        fjall::Error::Poisoned => EngineError::Stopped { engine: NAME },
        error => EngineError::Write { engine: NAME, source: EngineCause::new(error) },
    }
}
