//! The log with its threads.

use std::sync::mpsc;

use super::*;
use crate::disk::fault::Failure;
use crate::disk::{Call, OsDisk};

#[test]
fn a_disk_that_hangs_keeps_everyone_waiting_and_acknowledges_nothing() {
    let disk = FaultDisk::new();
    let wal = Wal::create(Arc::new(disk.clone()), Path::new(DIR), identity(), &Options::small(65536)).unwrap();
    let (tell, told) = mpsc::channel();
    let append = |index: u64| {
        let tell = tell.clone();
        wal.append(entries(index..index + 1, 1), move |done| tell.send((index, done.is_ok())).unwrap());
    };
    append(0);
    assert_eq!(told.recv().unwrap(), (0, true));
    for call in [Call::Write, Call::Sync] {
        disk.fail(call, 0, Failure::Hang);
        let next = wal.bounds().end;
        append(next);
        disk.wait_until_hanging();
        // Calls don't block while the writer hangs, and reads go on.
        append(next + 1);
        assert!(told.try_recv().is_err());
        assert_eq!(wal.read(0..9, 9).unwrap().len(), 1);
        disk.release();
        assert_eq!(told.recv().unwrap(), (next, true));
        assert_eq!(told.recv().unwrap(), (next + 1, true));
    }
    wal.close();
    append(99);
    assert_eq!(told.recv().unwrap(), (99, false));
}

#[test]
fn a_quiet_log_is_sealed_by_itself_and_closing_finishes_what_waits() {
    let disk = FaultDisk::new();
    let wal = Wal::create(Arc::new(disk.clone()), Path::new(DIR), identity(), &Options::small(65536)).unwrap();
    let (tell, told) = mpsc::channel();
    for index in 0..200 {
        let tell = tell.clone();
        wal.append(entries(index..index + 1, 1), move |done| tell.send((index, done.is_ok())).unwrap());
    }
    wal.close();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), (0..200).map(|index| (index, true)).collect::<Vec<_>>());
    drop(wal);
    let end = Rig::open(&disk, 65536).unwrap();
    assert_eq!(end.all(), entries(0..200, 1));
    // The last frame is a seal: a flip in the last entry can't hide.
    let at = end.wal().end() - 60;
    disk.flip_bit(path_of(1), at, 0);
    assert!(matches!(Rig::open(&disk, 65536), Err(WalError::Damaged(_))));
}

#[test]
fn appends_reads_and_purges_run_side_by_side_on_a_real_disk() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("wal");
    let options = Options::small(32768);
    let wal = Wal::create(Arc::new(OsDisk), &dir, identity(), &options).unwrap();
    std::thread::scope(|scope| {
        let reader = wal.clone();
        let (tell, told) = mpsc::channel::<u64>();
        scope.spawn(move || {
            for next in told {
                let from = next.saturating_sub(60);
                match reader.read(from..next, 1 << 20) {
                    Ok(found) => {
                        assert!(found.iter().enumerate().all(|(at, e)| *e == entry(from + at as u64, 1, 200)));
                    }
                    Err(WalError::NotThere { first, .. }) => assert!(first > from),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for round in 0..60 {
            let tell = tell.clone();
            let (from, next) = (round * 20, round * 20 + 20);
            wal.append((from..next).map(|i| entry(i, 1, 200)).collect(), move |done| {
                done.unwrap();
                tell.send(next).unwrap();
            });
            if round % 5 == 4 {
                wal.purge(Purged { index: next - 50, term: 1, payload: Bytes::new() }, |done| done.unwrap());
                let (done, waited) = mpsc::channel();
                wal.save_vote_then(Bytes::from(round.to_string()), move |saved| done.send(saved).unwrap());
                waited.recv().unwrap().unwrap();
            }
        }
    });
    wal.close();
    drop(wal);
    let (wal, found) = Wal::open(Arc::new(OsDisk), &dir, identity(), &options).unwrap();
    assert_eq!((found.first, found.next, found.vote), (1151, 1200, Some(Bytes::from_static(b"59"))));
    assert_eq!(wal.read(1151..1200, usize::MAX).unwrap().len(), 49);
    assert!(wal.scrub().all(|step| step.unwrap().damage.is_none()));
    assert!(std::fs::read_dir(&dir).unwrap().count() < 12, "segments are used again or removed");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(wal.save_vote(Bytes::from_static(b"60"))).unwrap();
    assert_eq!(Wal::identity(&OsDisk, &dir).unwrap(), Some(identity()));
}
