use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{
    disk::fault::FaultDisk,
    id::{ClusterId, DiskId, LineageId},
    store::{
        engine::{Batch, Engine},
        memory::MemoryEngine,
        snapshot::{
            SnapshotMeta,
            store::{Snapshot, SnapshotStore},
        },
    },
    wal::{Identity, Options, Purged, Wal, WalEntry},
};

const DIR: &str = "/node";

/// A stopped node's directory: 40 entries in several segments, purged up to 9, and snapshots at 9 and 20.
fn directory() -> (FaultDisk, Vec<Snapshot>) {
    let disk = FaultDisk::new();
    let identity = Identity {
        lineage_id: LineageId([1; 16]),
        cluster_id: ClusterId([2; 16]),
        node_id: 1,
        disk_id: DiskId([3; 16]),
    };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let wal = Wal::create(Arc::clone(&shared), Path::new("/node/wal"), identity, &Options::small(6144)).unwrap();
    for index in 0..40 {
        wal.append(vec![WalEntry { index, term: 1, payload: Bytes::from(vec![7; 500]) }], |done| done.unwrap());
    }
    wal.purge(Purged { index: 9, term: 1, payload: Bytes::new() }, |done| done.unwrap());
    wal.close();
    let owner = SnapshotOwner { lineage: [1; 16], cluster: [2; 16] };
    let store = SnapshotStore::open(shared, "/node/snapshots", owner, []).unwrap();
    let engine = MemoryEngine::new();
    let mut batch = Batch::new();
    batch.put(&b"key"[..], &b"value"[..]);
    engine.write(batch).unwrap();
    let build = |index| {
        let meta = SnapshotMeta {
            lineage: owner.lineage,
            cluster: owner.cluster,
            index,
            term: 1,
            position: index,
            cluster_time_ms: 1,
            log_id: Bytes::new(),
            membership: Bytes::new(),
        };
        store.build(&meta, engine.snapshot().unwrap()).unwrap()
    };
    (disk.clone(), vec![build(9), build(20)])
}

fn problems(disk: &FaultDisk) -> Vec<String> {
    let found = Found::read(disk, Path::new(DIR)).unwrap();
    let json = Json::parse(found.json().to_text().as_bytes()).unwrap();
    let Some(Json::Array(damage)) = json.member("damage") else { panic!("{json:?}") };
    assert_eq!(damage.len(), found.problems.len());
    found.problems.iter().map(Problem::line).collect()
}

#[test]
fn a_whole_directory_is_whole() {
    let (disk, snapshots) = directory();
    let found = Found::read(&disk, Path::new(DIR)).unwrap();
    assert_eq!(found.problems, []);
    let text = found.text();
    assert!(text.contains("entries 10..40: whole") && text.contains("entry 20") && text.contains("entry 9"), "{text}");
    assert_eq!(found.snapshots.len(), snapshots.len());
}

#[test]
fn damage_is_told_with_file_offset_and_what_to_do() {
    let (disk, snapshots) = directory();
    let wal = disk.paths().into_iter().find(|path| path.starts_with("/node/wal")).unwrap();
    assert!(disk.flip_bit(&wal, 4096 + 700, 1));
    let told = problems(&disk);
    let [line] = &told[..] else { panic!("{told:?}") };
    assert!(line.starts_with(&format!("{} at byte ", wal.display())) && line.contains("backup"), "{line}");

    let (disk, _) = directory();
    assert!(disk.flip_bit(&snapshots[1].path, 60, 1));
    let told = problems(&disk);
    let [line] = &told[..] else { panic!("{told:?}") };
    assert!(line.starts_with(&snapshots[1].path.display().to_string()) && line.contains("nothing is lost"), "{line}");

    assert!(disk.flip_bit(&snapshots[0].path, 60, 1));
    let told = problems(&disk);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().all(|line| line.contains("backup")), "{told:?}");
    assert!(told[2].contains("reaches entry 10"), "{told:?}");
}
