//! A stopped node's state at a position is what the node itself held there.

use super::*;
use crate::raft::replay::{ReplayError, state_at};

fn memory(_: u64) -> Result<Arc<dyn Engine>, EngineError> {
    Ok(Arc::new(MemoryEngine::new()))
}

fn replayed(disk: &FaultDisk, position: Option<u64>) -> Result<Records, ReplayError> {
    state_at(disk, Path::new(DIR), position.map(Position), None, &memory)
}

fn dumped(records: &Records) -> String {
    let mut text = Vec::new();
    records.dump(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Claims and ticks; every third key twice.
async fn work(node: &Node, from: u64) {
    for key in from..from + 20 {
        node.claim(key).await;
        if key % 3 == 0 {
            node.claim(key).await;
        }
    }
    node.consensus.propose_many((from + 20..from + 40).map(claim).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dump_after_a_crash_is_that_of_the_uninterrupted_twin() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    work(&node, 0).await;
    node.consensus.snapshot_now().await.unwrap();
    work(&node, 100).await;
    // What was acknowledged is durable; what the node holds beyond is not asked for.
    let crashed = node.disk.crashed(Crash::LoseUnsynced);
    let before: Vec<String> = crashed.paths().iter().map(|path| path.display().to_string()).collect();
    let records = node.consensus.records();
    let lived = dumped(&records);
    let position = records.read().globals().position;
    assert!(lived.starts_with(&format!("position {position}\n")) && lived.lines().count() > 160, "{lived}");
    assert_eq!(
        dumped(&replayed(&crashed, None).unwrap()),
        lived,
        "the whole log of a node that votes alone is committed"
    );
    assert_eq!(dumped(&replayed(&crashed, Some(position.0)).unwrap()), lived);
    let after: Vec<String> = crashed.paths().iter().map(|path| path.display().to_string()).collect();
    assert_eq!(before, after, "nothing in the directory is touched");

    // From the log alone it is the same, and every position on the way is there, within entries too.
    let without = crashed.copy();
    node.snapshots().iter().for_each(|path| without.remove(path).unwrap());
    assert_eq!(dumped(&replayed(&without, None).unwrap()), lived);
    for below in [position.0 / 2, position.0 - 7] {
        let one = replayed(&crashed, Some(below)).unwrap();
        assert_eq!(one.read().globals().position, Position(below));
        assert_eq!(dumped(&one), dumped(&replayed(&without, Some(below)).unwrap()), "at {below}");
    }
    let beyond = replayed(&crashed, Some(position.0 + 1)).err().unwrap();
    assert!(matches!(beyond, ReplayError::NotCommitted { highest, .. } if highest == position), "{beyond}");
    node.consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_passed_over_and_a_purged_position_is_refused() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let early = node.claim(1).await.index.0;
    for round in 1..=2 {
        for key in 0..limits::PURGE_MARGIN_ENTRIES + 10 {
            node.claim(round * 100_000 + key).await;
        }
        node.consensus.snapshot_now().await.unwrap();
    }
    while node.consensus.status().purged.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lived = dumped(&node.consensus.records());
    let crashed = loop {
        // A purge is written without anybody waiting for it.
        let crashed = node.disk.crashed(Crash::LoseUnsynced);
        match replayed(&crashed, Some(early)) {
            Err(ReplayError::Purged { .. }) => break crashed,
            found => assert!(found.is_ok()),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(dumped(&replayed(&crashed, None).unwrap()), lived);
    let newest = node.snapshots().into_iter().max().unwrap();
    assert!(crashed.flip_bit(&newest, 200, 1));
    assert_eq!(dumped(&replayed(&crashed, None).unwrap()), lived, "the older one and the log hold all of it");
    for path in node.snapshots() {
        crashed.flip_bit(&path, 200, 3);
    }
    assert!(matches!(replayed(&crashed, None), Err(ReplayError::NoSnapshot { .. })));
    node.consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_without_a_log_has_no_state() {
    let disk = FaultDisk::new();
    disk.create_dir_all(Path::new(DIR)).unwrap();
    assert!(matches!(replayed(&disk, None), Err(ReplayError::NoLog)));
}
