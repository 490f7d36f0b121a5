//! One suite for every engine: what `engine` promises is tested once and must hold for each of them.

mod conformance;
mod crash;
mod model;

use std::{path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    directory::{self, EngineKind},
    engine::{Batch, Engine, KeyRange, Row, Scan},
};

/// Makes one test per engine out of functions that take the kind.
macro_rules! on_every_engine {
    ($($name:ident),* $(,)?) => {
        mod on_fjall { $(#[test] fn $name() { super::$name($crate::store::directory::EngineKind::Fjall) })* }
        mod on_sled { $(#[test] fn $name() { super::$name($crate::store::directory::EngineKind::Sled) })* }
        mod on_memory { $(#[test] fn $name() { super::$name($crate::store::directory::EngineKind::Memory) })* }
    };
}
use on_every_engine;

fn open(kind: EngineKind, path: &Path) -> Arc<dyn Engine> {
    directory::open(kind, path).expect("the engine opens")
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number:06}"))
}

fn value(number: u64) -> Bytes {
    Bytes::from(format!("value-{number:06}"))
}

/// A batch of puts of numbered keys with numbered values.
fn puts(numbers: impl IntoIterator<Item = u64>, to: impl Fn(u64) -> u64) -> Batch {
    let mut batch = Batch::new();
    for number in numbers {
        batch.put(key(number), value(to(number)));
    }
    batch
}

fn deletes(numbers: impl IntoIterator<Item = u64>) -> Batch {
    let mut batch = Batch::new();
    for number in numbers {
        batch.delete(key(number));
    }
    batch
}

fn collected(scan: Scan<'_>) -> Vec<Row> {
    scan.collect::<Result<_, _>>().expect("the scan reads")
}

fn everything(engine: &dyn Engine) -> Vec<Row> {
    collected(engine.scan(&KeyRange::all()).expect("the scan begins"))
}

fn numbered(rows: impl IntoIterator<Item = (u64, u64)>) -> Vec<Row> {
    rows.into_iter().map(|(k, v)| (key(k), value(v))).collect()
}
