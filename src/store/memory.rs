//! An engine that holds everything in memory: for the simulation and for tests. It has no files, no threads and no order of
//! its own that could differ from run to run.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use parking_lot::RwLock;

use super::engine::{Ascending, Batch, Engine, EngineError, EngineSnapshot, KeyRange, LoadRows, Row, Scan};
use crate::limits::STORE_SCAN_PAGE_ROWS;

type Map = BTreeMap<Bytes, Bytes>;

/// The engine in memory.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    /// Copied as a whole by the first write after a view was taken, and only then.
    map: RwLock<Arc<Map>>,
}

impl MemoryEngine {
    /// An empty engine.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.map.read().get(key).cloned())
    }

    fn scan(&self, range: &KeyRange) -> Result<Scan<'_>, EngineError> {
        Ok(Box::new(Pages { engine: self, rest: range.clone(), page: Vec::new().into_iter() }))
    }

    fn write(&self, batch: Batch) -> Result<(), EngineError> {
        let mut map = self.map.write();
        let map = Arc::make_mut(&mut map);
        for (key, value) in batch {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, EngineError> {
        Ok(Box::new(MemorySnapshot { map: Arc::clone(&self.map.read()) }))
    }

    fn room_for(&self, _: u64) -> u64 {
        0
    }

    fn load_sorted(&self, rows: LoadRows<'_>, finish: Batch) -> Result<u64, EngineError> {
        if !self.map.read().is_empty() {
            return Err(EngineError::NotEmpty);
        }
        let mut order = Ascending::new();
        let mut loaded = 0;
        for row in rows {
            let (key, value) = row?;
            order.admit(&key)?;
            Arc::make_mut(&mut self.map.write()).insert(key, value);
            loaded += 1;
        }
        self.write(finish)?;
        Ok(loaded)
    }

    fn disk_bytes(&self) -> Result<u64, EngineError> {
        Ok(self.map.read().iter().map(|(key, value)| (key.len() + value.len()) as u64).sum())
    }

    fn retire(&self) {}

    fn put_aside(&self, _: &std::path::Path) {}
}

/// A scan that takes a page at a time: held over the whole scan, a reference to the map would make the next write copy it.
struct Pages<'a> {
    engine: &'a MemoryEngine,
    rest: KeyRange,
    page: std::vec::IntoIter<Row>,
}

impl Iterator for Pages<'_> {
    type Item = Result<Row, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.len() == 0 {
            let page = rows(&self.engine.map.read(), &self.rest);
            if let Some((last, _)) = page.last() {
                self.rest = self.rest.after(last);
            }
            self.page = page.into_iter();
        }
        self.page.next().map(Ok)
    }
}

/// The first page of `range`.
fn rows(map: &Map, range: &KeyRange) -> Vec<Row> {
    if range.is_empty() {
        return Vec::new();
    }
    let end = range.end().map_or(Bound::Unbounded, |end| Bound::Excluded(end.clone()));
    map.range((Bound::Included(range.start().clone()), end))
        .take(STORE_SCAN_PAGE_ROWS)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

struct MemorySnapshot {
    map: Arc<Map>,
}

impl EngineSnapshot for MemorySnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, EngineError> {
        Ok(self.map.get(key).cloned())
    }

    fn into_scan(self: Box<Self>) -> Result<Scan<'static>, EngineError> {
        let mut rest = KeyRange::all();
        let mut page = Vec::new().into_iter();
        Ok(Box::new(std::iter::from_fn(move || {
            if page.len() == 0 {
                let next = rows(&self.map, &rest);
                if let Some((last, _)) = next.last() {
                    rest = rest.after(last);
                }
                page = next.into_iter();
            }
            page.next().map(Ok)
        })))
    }
}
