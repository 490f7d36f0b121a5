//! A disk that is full for a while, under a node that stands alone.

use super::*;

/// Bytes that all files take now.
fn used(disk: &FaultDisk) -> u64 {
    disk.set_capacity(Some(u64::MAX));
    u64::MAX - disk.free_bytes(Path::new(DIR)).unwrap()
}

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(tokio::time::Instant::now() < until, "{what}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_claims_and_nothing_else_and_goes_on_by_itself() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let first = fence(&node.claim(1).await);
    let is_full = || node.consensus.disk_room().unwrap().is_full;
    assert!(!is_full() && node.consensus.lacks_room().is_none());
    // Three of the four segments' worth that are held back.
    node.disk.set_capacity(Some(used(&node.disk) + (3 << 20)));
    wait_until("it is found out", is_full).await;
    let refusal = node.consensus.propose(claim(2)).await.unwrap_err();
    assert_eq!(refusal.code, Code::Unavailable);
    assert!(refusal.detail.contains("the disk of node 1 is full") && refusal.retry_after_ms.is_some(), "{refusal:?}");
    assert!(node.consensus.lacks_room().is_some());
    // Reads, time and what operators do go on.
    node.consensus.read_barrier().await.unwrap();
    node.consensus.tick_to(Time(u64::MAX)).await.unwrap();
    let deed = crate::records::command::Deed::BackupMade;
    node.consensus.note(deed, "ops", &crate::json::Json::Null).await.unwrap();
    assert!(node.consensus.records().read().head(&record(2)).is_none(), "nothing of it was decided");
    node.disk.set_capacity(None);
    wait_until("it goes on", || !is_full()).await;
    assert!(is_in_progress(&node.claim(1).await));
    assert!(fence(&node.claim(2).await) > first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_without_room_keeps_a_part_for_what_must_be_written() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    // A quota: the disk tells of room, and gives none.
    let mut granted = 0;
    node.disk.set_capacity(Some(used(&node.disk)));
    let refusal = loop {
        // As many as find room in the segment that is there.
        match node.consensus.propose(claim(granted)).await {
            Ok(_) => granted += 1,
            Err(refusal) => break refusal,
        }
        assert!(granted < 100_000);
    };
    assert_eq!(refusal.code, Code::Unavailable);
    node.consensus.read_barrier().await.unwrap();
    let disk = node.disk.clone();
    disk.set_capacity(None);
    wait_until("it goes on", || !node.consensus.disk_room().unwrap().is_full).await;
    for key in [0, granted - 1] {
        if granted > 0 {
            assert!(is_in_progress(&node.claim(key).await), "{key}");
        }
    }
    fence(&node.claim(granted).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_finds_no_room_is_taken_later() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    for key in 0..200 {
        node.claim(key).await;
    }
    let metrics = &node.consensus.shared.options.metrics;
    node.disk.fail_on(Call::Write, "snapshot", 0, Failure::Enospc);
    let refusal = node.consensus.snapshot_now().await.unwrap_err();
    assert_eq!((refusal.code, metrics.snapshot_failures.get(), metrics.snapshots.get()), (Code::Unavailable, 1, 0));
    assert!(!node.disk.paths().iter().any(|path| path.to_string_lossy().contains("snapshot")), "nothing is left of it");
    fence(&node.claim(1000).await);
    let taken = node.consensus.snapshot_now().await.unwrap();
    assert_eq!((metrics.snapshot_failures.get(), metrics.snapshots.get()), (1, 1));
    assert_eq!(wait_for(|| node.consensus.status().snapshot).await, taken);
}
