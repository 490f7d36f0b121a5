//! A disk that is full for a while.

use super::*;
use crate::disk::Disk;
use crate::disk::fault::Crash;

fn used(disk: &FaultDisk) -> u64 {
    u64::MAX - {
        disk.set_capacity(Some(u64::MAX));
        disk.free_bytes(Path::new(DIR)).unwrap()
    }
}

/// A log whose disk has room for nothing that isn't there.
fn full() -> Rig {
    let disk = FaultDisk::new();
    let mut rig = Rig::create(&disk, SMALL).unwrap();
    rig.append(entries(0..4, 1)).unwrap();
    assert_eq!(rig.wal().last_room(), None);
    disk.set_capacity(Some(used(&disk)));
    rig.parts.preparer.step();
    rig
}

#[test]
fn a_full_disk_holds_appends_back_and_fails_nothing() {
    let mut rig = full();
    let left = rig.wal().last_room().expect("the next segment has no room");
    assert!(left > 1000 && left < SMALL, "{left}");
    // What fits the present segment is taken, votes too.
    rig.append(entries(4..8, 1)).unwrap();
    rig.vote("7").unwrap();
    assert!(rig.wal().last_room().unwrap() < left);
    // What doesn't waits, and what comes after it waits behind it.
    let (large, done) = told();
    rig.wal().append((8..40).map(|index| entry(index, 1, 500)).collect(), done);
    let (vote, done) = told();
    rig.wal().save_vote_then(Bytes::from_static(b"8"), done);
    assert_eq!(rig.settle(), Step::NoRoom);
    assert!(large.lock().is_none() && vote.lock().is_none() && rig.wal().stopped().is_none());
    assert_eq!(rig.wal().last_room(), Some(0));
    // What was acknowledged is there after a crash at this moment.
    let disk = rig.disk.crashed(Crash::LoseUnsynced);
    disk.set_capacity(None);
    let mut found = Rig::open(&disk, SMALL).unwrap();
    assert_eq!(found.recovered().vote.as_deref(), Some(&b"7"[..]));
    assert!(found.wal().bounds().end >= 8);
    found.append(entries(found.wal().bounds().end..found.wal().bounds().end + 2, 2)).unwrap();
    // With room again it all goes on, in order.
    rig.disk.set_capacity(None);
    rig.settle();
    assert!(matches!(*large.lock(), Some(Ok(()))) && matches!(*vote.lock(), Some(Ok(()))));
    assert_eq!((rig.wal().bounds(), rig.wal().last_room()), (0..40, None));
    let rig = rig.reopen();
    assert_eq!(rig.recovered().vote.as_deref(), Some(&b"8"[..]));
    assert_eq!(rig.all().len(), 40);
    assert_eq!(rig.damage(), []);
}

#[test]
fn a_try_for_room_leaves_nothing_behind() {
    let rig = full();
    let before = rig.disk.paths();
    // A quota that the disk does not tell of: the zeros fail half way.
    rig.disk.set_capacity(None);
    for failed in [crate::disk::Call::Create, crate::disk::Call::ZeroFill, crate::disk::Call::Sync] {
        rig.disk.fail(failed, 0, crate::disk::fault::Failure::Enospc);
        rig.parts.preparer.step();
        assert_eq!(rig.disk.paths(), before, "{failed}");
        assert!(rig.wal().last_room().is_some() && rig.wal().stopped().is_none(), "{failed}");
    }
    rig.parts.preparer.step();
    assert_eq!((rig.disk.paths().len(), rig.wal().last_room()), (before.len() + 1, None));
}

#[test]
fn a_log_that_is_closed_while_it_waits_for_room_says_so() {
    let mut rig = full();
    let (large, done) = told();
    rig.wal().append((4..40).map(|index| entry(index, 1, 500)).collect(), done);
    assert_eq!(rig.settle(), Step::NoRoom);
    rig.wal().close();
    assert_eq!(rig.settle(), Step::Stopped);
    assert!(matches!(*large.lock(), Some(Err(WalError::Closed))));
}

#[test]
fn threads_go_on_by_themselves_when_there_is_room() {
    let disk = FaultDisk::new();
    let wal = Wal::create(Arc::new(disk.clone()), Path::new(DIR), identity(), &Options::small(SMALL)).unwrap();
    let (sender, told) = std::sync::mpsc::channel();
    let append = |range: std::ops::Range<u64>| {
        let sender = sender.clone();
        wal.append(range.map(|index| entry(index, 1, 500)).collect(), move |done| sender.send(done).unwrap());
    };
    append(0..2);
    told.recv().unwrap().unwrap();
    disk.set_capacity(Some(used(&disk)));
    append(2..100);
    let short = std::time::Duration::from_millis(600);
    assert!(told.recv_timeout(short).is_err(), "it waits");
    assert!(wal.last_room().is_some() && wal.stopped().is_none());
    disk.set_capacity(None);
    told.recv_timeout(std::time::Duration::from_secs(30)).expect("it goes on").unwrap();
    assert_eq!(wal.bounds(), 0..100);
    wal.close();
}
