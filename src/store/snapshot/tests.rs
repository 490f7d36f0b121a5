//! Files that are cut, flipped and half written; disks that fail at every call; and the one good file that must be left.

mod damage;
mod faults;
mod golden;
mod life;
mod scrub;

use std::{path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    SnapshotError, SnapshotMeta, SnapshotOwner,
    store::{Snapshot, SnapshotStore},
    write::RowsWriter,
};
use crate::{
    disk::{Disk, Mode, fault::FaultDisk},
    store::{
        engine::{Batch, Engine, KeyRange, Row},
        memory::MemoryEngine,
    },
};

const DIR: &str = "/node/snapshots";
const OWNER: SnapshotOwner = SnapshotOwner { lineage: [0x11; 16], cluster: [0x22; 16] };

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta {
        lineage: OWNER.lineage,
        cluster: OWNER.cluster,
        index,
        term: 3,
        position: index * 2,
        cluster_time_ms: 1_700_000_000_000 + index,
        log_id: Bytes::from_static(b"\x03\x00\x07"),
        membership: Bytes::from_static(b"one, two, three"),
    }
}

fn rows(count: u64, salt: u64) -> Vec<Row> {
    (0..count)
        .map(|n| (Bytes::from(format!("key-{n:06}")), Bytes::from(format!("value {} of {salt}", n * salt))))
        .collect()
}

/// An engine that holds `rows`, and nothing else.
fn engine_with(rows: &[Row]) -> MemoryEngine {
    let engine = MemoryEngine::new();
    engine.load_sorted(&mut rows.iter().cloned().map(Ok), Batch::new()).expect("memory takes all");
    engine
}

fn open(disk: &FaultDisk) -> Result<Arc<SnapshotStore>, SnapshotError> {
    let local = [Bytes::from_static(b"local")];
    SnapshotStore::open(Arc::new(disk.clone()), DIR, OWNER, local).map(Arc::new)
}

fn build(store: &SnapshotStore, index: u64) -> Result<Snapshot, SnapshotError> {
    store.build(&meta(index), engine_with(&rows(40, index)).snapshot().expect("a view"))
}

/// What a snapshot holds, loaded into an engine. The key that makes it whole is the last of the rows.
fn loaded(store: &SnapshotStore, snapshot: &Snapshot) -> Result<Vec<Row>, SnapshotError> {
    let engine = MemoryEngine::new();
    store.load(snapshot, &engine, b"key-000039", [])?;
    let rows = engine.scan(&KeyRange::all())?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// A file of many small chunks at `path`, of the owner's.
fn write_file(disk: &FaultDisk, path: impl AsRef<Path>, meta: &SnapshotMeta, rows: &[Row], chunk_bytes: usize) {
    let path = path.as_ref();
    disk.create_dir_all(path.parent().expect("it has one")).expect("created");
    let file = disk.open(path, Mode::CreateNew).expect("created");
    let mut writer = RowsWriter::begin_with_chunks(file, meta, chunk_bytes).expect("begun");
    for (key, value) in rows {
        writer.row(key, value).expect("written");
    }
    writer.end().expect("ended");
    disk.sync_dir(path.parent().expect("it has one")).expect("synced");
}
