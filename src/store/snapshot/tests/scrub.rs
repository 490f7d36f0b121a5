//! Files that rot after they were verified.

use super::{
    super::{
        SnapshotError,
        scrub::{Which, verify_files},
        store::Condition,
    },
    DIR, OWNER, build, meta, open, rows, write_file,
};
use crate::{
    disk::fault::FaultDisk,
    limits::{SCRUB_STEP_BYTES, SNAPSHOT_CHUNK_BYTES},
};
use std::path::Path;

#[test]
fn a_file_that_rots_is_found_deleted_and_missed() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let older = build(&store, 10).expect("built");
    let newest = build(&store, 20).expect("built");
    assert!(store.scrub(Which::Unread).next().is_none(), "both were read when they were written");
    let read: u64 = store.scrub(Which::All).map(|bytes| bytes.expect("read")).sum();
    assert_eq!((read, store.is_one_lost()), (older.bytes + newest.bytes, false));
    assert!(disk.flip_bit(&newest.path, newest.bytes / 2, 3));
    assert!(store.scrub(Which::All).all(|step| step.is_ok()));
    assert!(store.is_one_lost());
    assert_eq!(store.newest_verified().expect("read"), Some(older.clone()));
    assert_eq!(store.older_verified_index(), None, "nothing is purged on account of one");
    assert_eq!(disk.contents(&newest.path), None, "a good one is beside it");
    build(&store, 21).expect("built");
    assert!(!store.is_one_lost());
    assert_eq!(store.older_verified_index(), Some(10));
    // The last good one stays under its name, for whoever wants to look at it.
    for (path, _) in store.list() {
        assert!(disk.flip_bit(&path, 100, 3));
    }
    assert!(store.scrub(Which::All).all(|step| step.is_ok()));
    assert_eq!(store.newest_verified().expect("read"), None);
    assert!(store.list().iter().all(|(_, condition)| matches!(condition, Condition::Bad(_))));
    assert_eq!(store.list().len(), 2);
}

#[test]
fn a_large_file_is_read_in_steps_also_beside_a_prune() {
    let disk = FaultDisk::new();
    let wide: Vec<_> =
        rows(40, 3).into_iter().map(|(key, _)| (key, vec![7; SNAPSHOT_CHUNK_BYTES / 8].into())).collect();
    write_file(&disk, format!("{DIR}/snapshot-{:020}-{:08}.semel", 5, 1), &meta(5), &wide, SNAPSHOT_CHUNK_BYTES);
    let store = open(&disk).expect("opened");
    let steps: Vec<u64> = store.scrub(Which::Unread).map(|bytes| bytes.expect("read")).collect();
    assert!(steps.len() >= 4, "{steps:?}");
    assert!(steps.iter().all(|bytes| *bytes < 2 * SCRUB_STEP_BYTES), "{steps:?}");
    let file = store.newest_verified().expect("read").expect("it is good");
    assert_eq!(steps.iter().sum::<u64>(), file.bytes);
    let mut pass = store.scrub(Which::All);
    pass.next().expect("a step").expect("read");
    for index in [6, 7] {
        build(&store, index).expect("built");
    }
    assert!(pass.all(|step| step.is_ok()), "what was deleted meanwhile is no damage");
    assert!(!store.is_one_lost());
}

#[test]
fn files_of_a_stopped_node_are_judged_one_by_one() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let older = build(&store, 10).expect("built");
    let newest = build(&store, 20).expect("built");
    drop(store);
    assert!(disk.flip_bit(&older.path, older.bytes - 1, 0));
    let found = verify_files(&disk, Path::new(DIR), OWNER).expect("listed");
    let [first, second] = &found[..] else { panic!("{found:?}") };
    assert_eq!(first.found.as_ref().expect("whole"), &newest);
    assert!(matches!(second.found, Err(SnapshotError::Damaged { .. })), "{second:?}");
    assert!(disk.contents(&older.path).is_some(), "nothing is deleted");
    assert!(verify_files(&disk, Path::new("/elsewhere"), OWNER).expect("nothing there").is_empty());
}
