//! Tears and holes: what may be cut, what must be refused.

use super::*;
use crate::disk::Call;
use crate::disk::fault::{Crash, Failure};
use crate::limits::WAL_TORN_COPIES_MAX;
use crate::wal::Flaw;

/// A log whose newest segment is in its first (`lives` 0) or a later life, with acknowledged entries and a vote, and one
/// batch written and not synced.
fn with_unsynced_batch(lives: u64) -> (FaultDisk, u64) {
    let mut rig = Rig::create(&FaultDisk::new(), 16384).unwrap();
    let mut next = 0;
    for _ in 0..lives * 12 {
        rig.append((next..next + 4).map(|i| entry(i, 1, 500)).collect()).unwrap();
        next += 4;
        rig.purge(next - 1, 1).unwrap();
        rig.parts.preparer.step();
    }
    rig.append(entries(next..next + 5, 1)).unwrap();
    rig.vote("acknowledged").unwrap();
    rig.append(entries(next + 5..next + 8, 1)).unwrap();
    next += 8;
    rig.disk.fail(Call::Sync, 0, Failure::Eio);
    let (first, done) = told();
    rig.wal().append(entries(next..next + 3, 2), done);
    rig.wal().save_vote_then(Bytes::from_static(b"unsynced"), |_| {});
    rig.wal().append(entries(next + 3..next + 4, 2), |_| {});
    assert_eq!(rig.settle(), Step::Stopped);
    assert!(first.lock().take().unwrap().is_err());
    (rig.disk.clone(), next)
}

#[test]
fn a_tear_at_every_byte_of_the_last_batch_costs_only_what_was_not_acknowledged() {
    for lives in [0, 3] {
        let (disk, next) = with_unsynced_batch(lives);
        let unsynced = disk.unsynced_bytes();
        assert!(unsynced > 300);
        let mut tails = 0;
        for kept in 0..=unsynced {
            let disk = disk.crashed(Crash::KeepBytes(kept));
            let rig = Rig::open(&disk, 16384).unwrap_or_else(|e| panic!("{kept} bytes kept: {e}"));
            let found = rig.recovered().clone();
            assert!(found.next >= next && found.next <= next + 4, "{kept}: {found:?}");
            let vote = found.vote.as_deref().unwrap();
            let late = vote == b"unsynced";
            assert!(late || vote == b"acknowledged");
            assert!(!late || found.next >= next + 3, "the vote was behind the entries");
            assert!(found.next < next + 4 || late, "an entry behind the vote without the vote");
            let all = rig.all();
            assert!(all.iter().rev().take(8).all(|e| *e == entry(e.index, if e.index < next { 1 } else { 2 }, 40)));
            tails += u64::from(found.torn.is_some());
            assert_eq!(found.torn.is_some(), disk.paths().iter().any(|p| p.to_string_lossy().contains("torn-")));
            // What was cut doesn't come back, and the log goes on.
            let mut rig = reopen(rig);
            assert_eq!((rig.recovered().torn.clone(), rig.recovered().next), (None, found.next), "{kept}");
            rig.append(entries(found.next..found.next + 6, 3)).unwrap();
            let rig = reopen(rig);
            assert_eq!((rig.recovered().torn.clone(), rig.recovered().next), (None, found.next + 6), "{kept}");
        }
        // In a file in a later life, a frame shows only once its salt is written.
        let least = if lives == 0 { unsynced * 9 / 10 } else { unsynced / 3 };
        assert!(tails > least, "most tears are seen and reported: {tails} of {unsynced}");
    }
}

fn reopen(rig: Rig) -> Rig {
    let disk = rig.disk.clone();
    drop(rig);
    Rig::open(&disk, 16384).unwrap()
}

#[test]
fn a_tear_of_any_shape_costs_only_what_was_not_acknowledged() {
    for lives in [0, 3] {
        let (disk, next) = with_unsynced_batch(lives);
        for seed in 0..300 {
            let rig = Rig::open(&disk.crashed(Crash::Tear(seed)), 16384).unwrap();
            assert!(rig.recovered().next >= next, "seed {seed}");
            let next = rig.recovered().next;
            let mut rig = reopen(rig);
            assert_eq!((rig.recovered().torn.clone(), rig.recovered().next), (None, next));
            rig.append(entries(next..next + 1, 2)).unwrap();
        }
    }
}

#[test]
fn whole_frames_behind_a_tear_go_with_it() {
    // The batch is larger than a sector, so a tear can lose its head and keep its tail.
    let mut rig = Rig::create(&FaultDisk::new(), 32768).unwrap();
    rig.append(entries(0..3, 1)).unwrap();
    rig.disk.fail(Call::Sync, 0, Failure::Eio);
    rig.wal().append((3..40).map(|i| entry(i, 1, 100)).collect(), |_| {});
    rig.settle();
    let most = (0..200)
        .map(|seed| {
            let disk = rig.disk.crashed(Crash::Tear(seed));
            let rig = Rig::open(&disk, 32768).unwrap();
            assert!(rig.recovered().next >= 3);
            rig.recovered().torn.as_ref().map_or(0, |torn| torn.frames)
        })
        .max();
    assert!(most.unwrap() > 5, "{most:?}");
}

#[test]
fn a_hole_that_later_frames_cover_is_damage_whatever_frame_it_was() {
    let mut rig = Rig::new();
    let mut starts = vec![rig_end(&rig)];
    rig.append(entries(0..2, 1)).unwrap();
    starts.push(rig_end(&rig));
    rig.vote("v").unwrap();
    starts.push(rig_end(&rig));
    rig.truncate_after(Some(0)).unwrap();
    starts.push(rig_end(&rig));
    rig.append(entries(1..2, 2)).unwrap();
    starts.push(rig_end(&rig));
    rig.purge(0, 1).unwrap();
    // Each batch is proven by the next one; the last by its seal.
    for (at, start) in starts.iter().enumerate() {
        if at + 1 == starts.len() {
            rig.rest();
        }
        let disk = rig.disk.copy();
        assert!(disk.flip_bit(path_of(1), start + 20, 3));
        match Rig::open(&disk, SMALL) {
            Err(WalError::Damaged(damage)) => {
                assert_eq!((damage[0].offset, damage.len()), (*start, 1));
                assert!(matches!(damage[0].what, Flaw::Frame(_)), "{damage:?}");
                assert!(damage[0].to_string().contains("heals from its peers"));
            }
            other => panic!("{at}: opened {:?}", other.map(|rig| rig.recovered().clone())),
        }
    }
}

fn rig_end(rig: &Rig) -> u64 {
    rig.wal().end()
}

#[test]
fn a_log_that_rested_has_no_gap_that_a_flip_could_hide_in() {
    let mut rig = Rig::new();
    rig.append(entries(0..2, 1)).unwrap();
    let unsealed = rig.disk.copy();
    let end = rig_end(&rig);
    // Within the 10 ms the last batch looks like a tear: it's cut, but not without a word.
    assert!(unsealed.flip_bit(path_of(1), end - 10, 0));
    let opened = Rig::open(&unsealed, SMALL).unwrap();
    assert_eq!((opened.recovered().next, opened.recovered().torn.is_some()), (1, true));
    rig.rest();
    let syncs = rig.disk.calls(Call::Sync);
    rig.rest();
    assert_eq!(rig.disk.calls(Call::Sync), syncs, "sealed once");
    assert!(rig.disk.flip_bit(path_of(1), end - 10, 0));
    assert!(matches!(Rig::open(&rig.disk, SMALL), Err(WalError::Damaged(_))));
}

#[test]
fn copies_of_torn_tails_are_kept_and_bounded() {
    let disk = FaultDisk::new();
    let mut rig = Rig::create(&disk, SMALL).unwrap();
    rig.append(entries(0..1, 1)).unwrap();
    for round in 0..WAL_TORN_COPIES_MAX + 4 {
        let end = rig_end(&rig);
        drop(rig);
        assert!(disk.overwrite(path_of(1), end, b"a half-written frame"));
        rig = Rig::open(&disk, SMALL).unwrap();
        let torn = rig.recovered().torn.clone().unwrap();
        assert_eq!((torn.offset, torn.frames), (end, 0));
        assert!(disk.contents(&torn.copy).unwrap().starts_with(b"a half-written frame"));
        let copies = disk.paths().iter().filter(|path| path.to_string_lossy().contains("torn-")).count();
        assert_eq!(copies, (round + 1).min(WAL_TORN_COPIES_MAX));
    }
}

#[test]
fn a_segment_that_is_missing_short_or_anothers_is_damage() {
    let mut rig = Rig::new();
    for i in 0..20 {
        rig.append(vec![entry(i, 1, 700)]).unwrap();
    }
    rig.rest();
    let newest = rig.segments().len() as u64;
    assert!(newest > 4);
    let damaged = |disk: &FaultDisk| matches!(Rig::open(disk, SMALL), Err(WalError::Damaged(_)));
    let remove = |disk: &FaultDisk, sequence| {
        use crate::disk::Disk;
        disk.remove(Path::new(&path_of(sequence))).unwrap();
    };
    for sequence in 1..newest {
        let disk = rig.disk.copy();
        remove(&disk, sequence);
        assert!(damaged(&disk), "segment {sequence} is gone");
        let disk = rig.disk.copy();
        disk.overwrite(path_of(sequence), 0, &[0; 4096]);
        assert!(damaged(&disk), "the header of {sequence} is gone");
    }
    let disk = rig.disk.copy();
    disk.overwrite(path_of(newest), 0, &[0; 4096]);
    assert!(damaged(&disk), "the newest header is gone, but frames prove that it was there");
    let disk = rig.disk.copy();
    disk.cut(path_of(newest), 4200);
    assert!(damaged(&disk), "the newest is cut short");
    let disk = rig.disk.copy();
    let third = disk.contents(path_of(3)).unwrap();
    disk.overwrite(path_of(2), 0, &third);
    assert!(damaged(&disk), "a segment in the place of another");
}
