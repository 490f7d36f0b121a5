use std::path::Path;
use std::sync::Arc;
use std::thread;

use super::fault::{Crash, Failure, FaultDisk};
use super::{Call, Disk, DiskError, File, Mode, OsDisk, Space, is_full};

fn both(check: impl Fn(&dyn Disk, &Path)) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    check(&OsDisk, dir.path());
    check(&FaultDisk::new(), Path::new("/data"));
}

fn disk() -> FaultDisk {
    let disk = FaultDisk::new();
    disk.create_dir_all(Path::new("/d")).expect("create");
    disk
}

fn synced(disk: &FaultDisk, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.open(Path::new(path), Mode::CreateNew).expect("create");
    file.write_at(bytes, 0).expect("write");
    file.sync_data().expect("sync");
    disk.sync_dir(Path::new("/d")).expect("sync the directory");
    file
}

#[test]
fn both_disks_keep_the_contract() {
    both(|disk, root| {
        let dir = root.join("a/b");
        disk.create_dir_all(&dir).unwrap();
        disk.create_dir_all(&dir).unwrap();
        let (one, two) = (dir.join("one"), dir.join("two"));
        assert!(disk.open(&one, Mode::Read).err().unwrap().is_not_found());
        let file = disk.open(&one, Mode::CreateNew).unwrap();
        assert_eq!(disk.open(&one, Mode::CreateNew).err().unwrap().kind(), std::io::ErrorKind::AlreadyExists);
        assert!(file.is_empty().unwrap());
        file.write_at(b"hello", 3).unwrap();
        file.zero_fill(6, 5000).unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.len().unwrap(), 5000);
        let mut buf = [1; 8];
        file.read_exact_at(&mut buf, 0).unwrap();
        assert_eq!(&buf, b"\0\0\0hel\0\0");
        assert_eq!(file.read_at(&mut buf, 4998).unwrap(), 2);
        assert_eq!(file.read_at(&mut buf, 9000).unwrap(), 0);
        assert_eq!(file.read_exact_at(&mut buf, 4998).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        file.set_len(4).unwrap();
        disk.rename(&one, &two).unwrap();
        disk.sync_dir(&dir).unwrap();
        assert_eq!(disk.list(&dir).unwrap(), ["two"]);
        assert_eq!(disk.list(root).unwrap(), Vec::<String>::new());
        let read = disk.open(&two, Mode::Read).unwrap();
        assert_eq!((read.len().unwrap(), read.path()), (4, two.as_path()));
        assert!(read.write_at(b"x", 0).is_err());
        disk.rename(&dir, &root.join("a/c")).unwrap();
        disk.remove(&root.join("a/c/two")).unwrap();
        assert_eq!(disk.list(&root.join("a/c")).unwrap(), Vec::<String>::new());
        assert!(disk.list(&dir).unwrap_err().is_not_found());
        assert!(disk.remove(&two).unwrap_err().is_not_found());
    });
}

#[test]
fn a_lock_is_held_by_one_and_ends_with_its_guard() {
    both(|disk, root| {
        disk.create_dir_all(root).unwrap();
        let path = root.join("lock");
        let guard = disk.try_lock(&path).unwrap();
        assert_eq!(disk.try_lock(&path).err().unwrap().kind(), std::io::ErrorKind::WouldBlock);
        drop(guard);
        disk.try_lock(&path).unwrap();
    });
}

#[test]
fn a_crash_keeps_what_was_synced_and_no_more_than_was_written() {
    let disk = disk();
    let file = synced(&disk, "/d/f", &[1; 2000]);
    file.write_at(&[2; 1500], 1000).unwrap();
    assert_eq!(disk.unsynced_bytes(), 1500);
    assert_eq!(disk.crashed(Crash::LoseUnsynced).contents("/d/f").unwrap(), [1; 2000]);
    let kept = disk.crashed(Crash::KeepUnsynced).contents("/d/f").unwrap();
    assert_eq!((kept.len(), &kept[..1000], &kept[1000..]), (2500, &[1; 1000][..], &[2; 1500][..]));
    let torn = disk.crashed(Crash::KeepBytes(7)).contents("/d/f").unwrap();
    assert_eq!((torn.len(), &torn[1000..1007], &torn[1007..]), (2000, &[2; 7][..], &[1; 993][..]));
    let mut shapes = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let torn = disk.crashed(Crash::Tear(seed)).contents("/d/f").unwrap();
        assert_eq!(torn, disk.crashed(Crash::Tear(seed)).contents("/d/f").unwrap(), "a seed is a fate");
        assert_eq!(&torn[..1000], &[1; 1000][..]);
        assert!(torn.iter().enumerate().all(|(i, b)| *b == 2 || *b == 0 && i >= 2000 || *b == 1 && i < 2000));
        shapes.insert(torn);
    }
    assert!(shapes.len() > 20, "the seeds differ: {}", shapes.len());
    disk.crash(Crash::LoseUnsynced);
    assert!(file.len().is_err(), "a handle doesn't outlive the crash");
}

#[test]
fn a_process_that_ends_leaves_its_unsynced_writes_to_the_next() {
    let disk = disk();
    let file = synced(&disk, "/d/f", b"aaaa");
    file.write_at(b"b", 0).unwrap();
    let _lock = disk.try_lock(Path::new("/d/lock")).unwrap();
    disk.crash_process();
    assert!(file.sync_data().is_err());
    assert_eq!(disk.contents("/d/f").unwrap(), b"baaa");
    assert!(disk.try_lock(Path::new("/d/lock")).is_ok());
    assert_eq!(disk.crashed(Crash::LoseUnsynced).contents("/d/f").unwrap(), b"aaaa");
}

#[test]
fn names_need_a_sync_of_their_directory() {
    let disk = disk();
    synced(&disk, "/d/old", b"old");
    disk.open(Path::new("/d/new"), Mode::CreateNew).unwrap().write_at(b"new", 0).unwrap();
    disk.rename(Path::new("/d/new"), Path::new("/d/old")).unwrap();
    assert_eq!(disk.crashed(Crash::LoseUnsynced).contents("/d/old").unwrap(), b"old");
    assert_eq!(disk.crashed(Crash::KeepUnsynced).contents("/d/old").unwrap(), b"new");
    let fates: std::collections::BTreeSet<_> = (0..64).map(|seed| disk.crashed(Crash::Tear(seed)).paths()).collect();
    assert!(fates.len() > 1, "some crashes keep the creation alone: {fates:?}");
    disk.sync_dir(Path::new("/d")).unwrap();
    let lost = disk.crashed(Crash::LoseUnsynced);
    assert_eq!(lost.contents("/d/old").unwrap(), b"", "the name is durable, the bytes are not");
}

#[test]
fn a_failed_sync_is_not_made_good_by_the_next() {
    let disk = disk();
    let file = synced(&disk, "/d/f", b"aaaa");
    file.write_at(b"b", 0).unwrap();
    disk.fail(Call::Sync, 0, Failure::Eio);
    assert_eq!(file.sync_data().unwrap_err().source.raw_os_error(), Some(5));
    file.write_at(b"c", 1).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.contents("/d/f").unwrap(), b"bcaa");
    assert_eq!(disk.crashed(Crash::LoseUnsynced).contents("/d/f").unwrap(), b"acaa");
    assert_eq!(disk.crashed(Crash::KeepUnsynced).contents("/d/f").unwrap(), b"bcaa");
    // What is written over it and synced stays, whatever becomes of the doomed bytes around it.
    file.write_at(b"1234", 0).unwrap();
    disk.fail(Call::Sync, 0, Failure::Eio);
    file.sync_data().unwrap_err();
    file.write_at(b"xy", 1).unwrap();
    file.sync_data().unwrap();
    assert_eq!(disk.crashed(Crash::LoseUnsynced).contents("/d/f").unwrap(), b"axya");
    assert_eq!(disk.crashed(Crash::KeepUnsynced).contents("/d/f").unwrap(), b"1xy4");
}

#[test]
fn directories_are_listed_and_removed_with_what_is_in_them() {
    both(|disk, root| {
        disk.create_dir_all(&root.join("two/inner")).unwrap();
        disk.create_dir_all(&root.join("one")).unwrap();
        let file = disk.open(&root.join("two/inner/file"), Mode::CreateNew).unwrap();
        file.write_at(b"x", 0).unwrap();
        disk.open(&root.join("beside"), Mode::CreateNew).unwrap();
        assert_eq!(disk.dirs(root).unwrap(), ["one", "two"]);
        assert_eq!(disk.list(root).unwrap(), ["beside"]);
        disk.remove_dir_all(&root.join("two")).unwrap();
        assert_eq!(disk.dirs(root).unwrap(), ["one"]);
        assert!(disk.open(&root.join("two/inner/file"), Mode::Read).is_err_and(|error| error.is_not_found()));
        assert!(disk.remove_dir_all(&root.join("two")).unwrap_err().is_not_found());
        assert!(disk.dirs(&root.join("two")).unwrap_err().is_not_found());
    });
}

#[test]
fn failures_fire_once_at_their_call() {
    let disk = disk();
    let file = synced(&disk, "/d/f", b"aaaa");
    disk.fail(Call::Write, 1, Failure::Enospc);
    file.write_at(b"bb", 0).unwrap();
    assert_eq!(file.write_at(b"cc", 2).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    file.write_at(b"d", 0).unwrap();
    assert_eq!(disk.contents("/d/f").unwrap(), b"dbca", "a failed write has done a part of its work");
    disk.fail_on(Call::Open, "other", 0, Failure::Eio);
    assert!(disk.open(Path::new("/d/f"), Mode::Read).is_ok());
    assert_eq!(disk.fired(), 1);
    for call in Call::ALL {
        assert!(disk.calls(call) < 10, "{call}");
    }
    disk.set_capacity(Some(6));
    assert_eq!(file.write_at(b"eeee", 4).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert!(file.zero_fill(0, 7).is_err());
    disk.set_capacity(None);
    file.zero_fill(0, 7).unwrap();
}

#[test]
fn a_hanging_call_waits_for_its_release_or_the_crash() {
    let disk = disk();
    let file = synced(&disk, "/d/f", b"aaaa");
    for crash in [false, true] {
        let file = file.clone();
        disk.fail(Call::Sync, 0, Failure::Hang);
        let hung = thread::spawn(move || file.sync_data());
        disk.wait_until_hanging();
        assert!(!hung.is_finished());
        if crash {
            disk.crash(Crash::LoseUnsynced);
        } else {
            disk.release();
        }
        assert_eq!(hung.join().unwrap().is_err(), crash);
    }
}

#[test]
fn a_disk_rolled_back_has_the_older_content() {
    let disk = disk();
    let file = synced(&disk, "/d/f", b"old");
    let image = disk.copy();
    file.write_at(b"new", 0).unwrap();
    file.sync_data().unwrap();
    disk.roll_back(&image);
    assert!(file.sync_data().is_err());
    assert_eq!(disk.contents("/d/f").unwrap(), b"old");
}

#[test]
fn room_is_short_below_the_reserve_until_there_is_a_good_deal_more() {
    let disk = disk();
    synced(&disk, "/d/f", &[1; 1000]);
    let space = Space::new(Arc::new(disk.clone()), Path::new("/d"), 400);
    for (capacity, is_short) in [(None, false), (Some(1400), false), (Some(1399), true), (Some(1499), true)] {
        disk.set_capacity(capacity);
        assert_eq!(space.look(), is_short, "{capacity:?}");
        assert_eq!((space.is_short(), space.free()), (is_short, capacity.map_or(u64::MAX, |bytes| bytes - 1000)));
    }
    disk.set_capacity(Some(1500));
    assert!(!space.look());
    assert_eq!((space.fits(300), space.fits(301)), (true, false), "half of the reserve stays");
    both(|disk, root| {
        disk.create_dir_all(root).unwrap();
        assert!(disk.free_bytes(root).unwrap() > 0);
    });
    assert!(OsDisk.free_bytes(Path::new("/nowhere/at/all")).unwrap_err().is_not_found());
}

#[test]
fn a_full_disk_is_known_behind_other_errors() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] DiskError);
    let error = |kind: std::io::ErrorKind| Outer(DiskError::new(Call::Write, Path::new("/d/f"), kind.into()));
    for kind in [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded] {
        assert!(error(kind).0.is_full() && is_full(&error(kind)));
        assert!(is_full(&std::io::Error::other(error(kind))), "wrapped as the consensus core wraps it");
    }
    let other = error(std::io::ErrorKind::PermissionDenied);
    assert!(!other.0.is_full() && !is_full(&other) && !is_full(&std::io::Error::other(other)));
}
