//! The disk fails at each call in turn, and the machine crashes there. A good file from before stays good, and one that was
//! promised is found.

use std::sync::Arc;

use super::{
    super::{
        SnapshotError,
        store::{Snapshot, SnapshotStore},
    },
    DIR, build, loaded, open, rows,
};
use crate::disk::{
    Call,
    fault::{Crash, Failure, FaultDisk},
};

/// Does `attempt` on a disk that fails at its `nth` call, for every `nth`, in every way, and crashes afterwards in every way.
fn at_every_call(attempt: impl Fn(&Arc<SnapshotStore>) -> Result<Snapshot, SnapshotError>) {
    let mut sites = 0;
    for failure in [Failure::Eio, Failure::Enospc] {
        for nth in 0.. {
            let disk = FaultDisk::new();
            let store = open(&disk).expect("opened");
            let before = build(&store, 10).expect("built");
            disk.fail_any(nth, failure);
            let result = attempt(&store);
            if disk.fired() == 0 {
                result.expect("nothing failed");
                break;
            }
            disk.heal();
            sites += 1;
            assert_eq!(loaded(&store, &before).expect("what was good is good"), rows(40, 10), "call {nth}");
            for crash in [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::Tear(nth), Crash::Tear(nth + 1000)] {
                let disk = disk.crashed(crash);
                let store = open(&disk).expect("opened after the crash");
                let newest = store.newest_verified().expect("read").expect("one is left");
                let index = newest.meta.index;
                assert_eq!(loaded(&store, &newest).expect("loaded"), rows(40, index), "call {nth}, {crash:?}");
                assert!(index == 10 || index == 20);
                if result.is_ok() {
                    assert_eq!(index, 20, "call {nth}, {crash:?}: what was promised is there");
                }
                store.verify_all().expect("read");
                let left = disk.paths();
                assert!(left.iter().all(|path| !path.to_string_lossy().ends_with(".tmp")), "{left:?}");
            }
        }
    }
    assert!(sites > 16, "only {sites} calls were made to fail");
}

#[test]
fn a_build_survives_a_failure_at_every_call() {
    at_every_call(|store| build(store, 20));
}

#[test]
fn a_delivery_survives_a_failure_at_every_call() {
    let source = FaultDisk::new();
    let sender = open(&source).expect("opened");
    let contents = source.contents(build(&sender, 20).expect("built").path).expect("there");
    at_every_call(|store| {
        let mut delivery = store.receive(contents.len() as u64)?;
        for piece in contents.chunks(300) {
            delivery.piece(delivery.received(), piece)?;
        }
        delivery.finish()
    });
}

#[test]
fn a_failed_sync_is_a_failed_snapshot() {
    for call in [Call::Sync, Call::SyncDir] {
        let disk = FaultDisk::new();
        let store = open(&disk).expect("opened");
        build(&store, 10).expect("built");
        disk.fail(call, 0, Failure::Eio);
        build(&store, 20).expect_err("not durable");
        assert_eq!(store.newest_verified().expect("read").expect("one").meta.index, 10, "{call:?}");
        assert_eq!(store.older_verified_index(), None, "{call:?}: the log forgets nothing for it");
    }
}

#[test]
fn a_full_disk_refuses_the_snapshot_and_nothing_else() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let before = build(&store, 10).expect("built");
    disk.set_capacity(Some(before.bytes + before.bytes / 2));
    let full = build(&store, 20);
    assert!(matches!(full, Err(SnapshotError::Disk(_))), "{full:?}");
    assert_eq!(disk.paths().len(), 1, "the space is given back");
    disk.set_capacity(None);
    build(&store, 20).expect("with room again it works");
}

#[test]
fn a_crash_before_the_rename_leaves_the_older_file_alone() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    build(&store, 10).expect("built");
    disk.fail(Call::Rename, 0, Failure::Eio);
    disk.fail(Call::Remove, 0, Failure::Eio);
    build(&store, 20).expect_err("it has no name");
    assert_eq!(disk.paths().len(), 2, "the temporary file is still there");
    disk.crash(Crash::KeepUnsynced);
    let store = open(&disk).expect("opened");
    assert_eq!(disk.paths().len(), 1, "and is deleted at the next start");
    assert_eq!(store.newest_verified().expect("read").expect("one").meta.index, 10);
}

#[test]
fn a_crash_between_rename_and_directory_sync_leaves_one_or_the_other() {
    let mut seen = [false; 2];
    for seed in 0..40 {
        let disk = FaultDisk::new();
        let store = open(&disk).expect("opened");
        build(&store, 10).expect("built");
        disk.fail(Call::SyncDir, 0, Failure::Eio);
        build(&store, 20).expect_err("its name is not durable");
        disk.crash(Crash::Tear(seed));
        let store = open(&disk).expect("opened");
        let newest = store.newest_verified().expect("read").expect("one is left");
        assert_eq!(loaded(&store, &newest).expect("loaded"), rows(40, newest.meta.index));
        seen[usize::from(newest.meta.index == 20)] = true;
    }
    assert_eq!(seen, [true, true], "the crashes went both ways");
}

#[test]
fn files_that_cannot_be_deleted_are_deleted_later() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    build(&store, 10).expect("built");
    build(&store, 20).expect("built");
    disk.fail(Call::Remove, 0, Failure::Eio);
    build(&store, 30).expect("built all the same");
    assert_eq!(disk.paths().len(), 3);
    assert_eq!(store.older_verified_index(), Some(20));
    build(&store, 40).expect("built");
    assert_eq!(disk.paths().len(), 2, "in {DIR}");
}
