//! The disk says no, once, at every place where it's asked.

use super::*;
use crate::disk::fault::{Crash, Failure};
use crate::disk::{Call, Disk};

/// What a run was told is durable.
#[derive(Debug, Default, Clone)]
struct Acknowledged {
    created: bool,
    next: u64,
    vote: u32,
    purged: u64,
}

/// A life with everything in it: creation, appends, votes, rolls, a truncation, purges, segments used again, a restart.
/// Ends at the first error, which it answers.
fn live(disk: &FaultDisk, seen: &mut Acknowledged) -> Result<(), WalError> {
    let mut rig = Rig::create(disk, SMALL)?;
    seen.created = true;
    for round in 1..=3_u64 {
        for _ in 0..6 {
            let next = seen.next;
            rig.append(vec![entry(next, round, 500), entry(next + 1, round, 30)])?;
            seen.next += 2;
        }
        rig.vote(&round.to_string())?;
        seen.vote = round as u32;
        // From here on the model knows no more than that what follows may or may not be void.
        rig.append(entries(seen.next..seen.next + 4, round))?;
        rig.truncate_after(Some(seen.next - 1))?;
        rig.purge(seen.next - 3, round)?;
        seen.purged = seen.next - 3;
        rig.parts.preparer.step();
        if let Some(error) = rig.wal().stopped() {
            return Err(error);
        }
        rig.rest();
        if let Some(error) = rig.wal().stopped() {
            return Err(error);
        }
        if round == 2 {
            drop(rig);
            rig = Rig::open(disk, SMALL)?;
        }
        rig.wal().read(seen.next - 1..seen.next, 100)?;
    }
    Ok(())
}

fn check(disk: &FaultDisk, seen: &Acknowledged, what: &str) {
    let mut rig = match Rig::open(disk, SMALL) {
        Ok(rig) => rig,
        Err(WalError::NotCreated(_)) if !seen.created => Rig::create(disk, SMALL).expect("a fresh start"),
        Err(error) => {
            let _ = crate::wal::inspect(disk, Path::new(DIR), &|_, _| String::new(), &mut |line| println!("{line}"));
            panic!("{what}: {error}; {seen:?}")
        }
    };
    let bounds = rig.wal().bounds();
    assert!(bounds.end >= seen.next, "{what}: {bounds:?} {seen:?}");
    assert!(bounds.start <= seen.next.saturating_sub(1), "{what}: {bounds:?} {seen:?}");
    for found in rig.all() {
        let payload = String::from_utf8_lossy(&found.payload[..6.min(found.payload.len())]).into_owned();
        assert!(payload.starts_with(&format!("{}@{}/", found.index, found.term)), "{what}: {payload}");
    }
    let recovered = rig.recovered.take();
    let vote = recovered.as_ref().and_then(|found| found.vote.clone());
    let vote: u32 = vote.map_or(0, |vote| std::str::from_utf8(&vote).unwrap().parse().unwrap());
    assert!(vote >= seen.vote, "{what}: vote {vote} {seen:?}");
    let purged = recovered.and_then(|found| found.purged).map_or(0, |purged| purged.index);
    assert!(purged >= seen.purged, "{what}");
    rig.append(entries(bounds.end..bounds.end + 20, 9)).unwrap();
    assert_eq!(rig.damage(), [], "{what}");
}

#[test]
fn an_error_at_any_call_is_final_and_costs_nothing_that_was_acknowledged() {
    for failure in [Failure::Eio, Failure::Enospc] {
        let mut nth = 0;
        loop {
            let disk = FaultDisk::new();
            disk.fail_any(nth, failure);
            let mut seen = Acknowledged::default();
            let end = live(&disk, &mut seen);
            if disk.fired() == 0 {
                end.unwrap();
                break;
            }
            // A segment that finds no room is tried again, and costs nothing.
            let is_tried_again = failure == Failure::Enospc && end.is_ok();
            assert!(is_tried_again || matches!(end, Err(WalError::Disk(_))), "call {nth}: {end:?}");
            let crashes = [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::Tear(nth), Crash::Tear(nth + 1000)];
            for crash in crashes {
                let what = format!("{failure:?} at call {nth}, then {crash:?}");
                check(&disk.crashed(crash), &seen, &what);
                // A process that dies of the error and is started again reads what the cache holds; then the power
                // fails.
                if crash == Crash::KeepUnsynced {
                    let cached = disk.copy();
                    check(&cached, &seen, &what);
                    check(&cached.crashed(Crash::LoseUnsynced), &seen, &what);
                }
            }
            nth += 1;
        }
        assert!(nth > 150, "every call site was visited: {nth}");
    }
}

/// Wherever making a log breaks off: it is there and can be opened, or it is not and can be made.
#[test]
fn a_log_that_was_about_to_be_made_is_none_or_opens() {
    let mut nth = 0;
    loop {
        let disk = FaultDisk::new();
        disk.fail_any(nth, Failure::Eio);
        let made = Rig::create(&disk, SMALL);
        if disk.fired() == 0 {
            made.unwrap();
            break;
        }
        drop(made);
        for crash in [Crash::LoseUnsynced, Crash::KeepUnsynced, Crash::Tear(nth), Crash::Tear(nth + 1000)] {
            let after = disk.crashed(crash);
            let found = match Wal::identity(&after, Path::new(DIR)) {
                Err(WalError::Disk(error)) if error.is_not_found() => None,
                found => found.unwrap(),
            };
            let rig = match found {
                Some(found) => {
                    assert_eq!(found, identity());
                    Rig::open(&after, SMALL)
                }
                None => Rig::create(&after, SMALL),
            };
            let mut rig = rig.unwrap_or_else(|error| panic!("call {nth}, then {crash:?}: {error}"));
            rig.append(entries(0..2, 1)).unwrap();
        }
        nth += 1;
    }
    assert!(nth > 5, "every call was visited: {nth}");
}

#[test]
fn a_sync_that_fails_once_poisons_the_log_for_good() {
    let mut rig = Rig::new();
    rig.append(entries(0..3, 1)).unwrap();
    rig.disk.fail(Call::Sync, 0, Failure::Eio);
    let first = rig.append(entries(3..4, 1)).unwrap_err().to_string();
    assert!(first.contains("cannot sync /data/wal/00000000000000000001.wal"), "{first}");
    let syncs = rig.disk.calls(Call::Sync);
    for later in [rig.append(entries(3..4, 1)), rig.vote("v"), rig.truncate_after(None), rig.purge(1, 1)] {
        assert_eq!(later.unwrap_err().to_string(), first);
    }
    assert_eq!(rig.wal().stopped().unwrap().to_string(), first);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert_eq!(runtime.block_on(rig.wal().room()).unwrap_err().to_string(), first);
    assert_eq!(runtime.block_on(rig.wal().save_vote(Bytes::new())).unwrap_err().to_string(), first);
    rig.rest();
    rig.parts.preparer.step();
    assert_eq!(rig.disk.calls(Call::Sync), syncs, "nothing is tried again");
    assert_eq!(rig.wal().bounds(), 0..3, "what failed is not read");
}

#[test]
fn what_a_restart_found_in_the_cache_alone_is_made_durable_before_it_counts() {
    let mut rig = Rig::new();
    rig.append(entries(0..3, 1)).unwrap();
    rig.disk.fail(Call::Sync, 0, Failure::Eio);
    rig.append(entries(3..6, 1)).unwrap_err();
    // The failed sync has left the pages clean: another sync alone would not write them.
    let rig = rig.reopen();
    assert_eq!(rig.wal().bounds(), 0..6);
    let disk = rig.disk.crashed(Crash::LoseUnsynced);
    assert_eq!(Rig::open(&disk, SMALL).unwrap().all(), entries(0..6, 1));
}

#[test]
fn everyone_who_waits_behind_a_failure_is_told() {
    let rig = &mut Rig::new();
    rig.disk.fail(Call::Write, 0, Failure::Enospc);
    let told: Vec<Told> = (0..5)
        .map(|index| {
            let (told, done) = told();
            rig.wal().append(entries(index..index + 1, 1), done);
            told
        })
        .collect();
    assert_eq!(rig.settle(), Step::Stopped);
    for told in told {
        let answer = told.lock().take();
        assert!(matches!(answer, Some(Err(WalError::Disk(error))) if error.kind() == std::io::ErrorKind::StorageFull));
    }
}

#[test]
fn a_crash_on_a_full_disk_loses_only_what_waited_for_room() {
    let disk = FaultDisk::new();
    let mut rig = Rig::create(&disk, SMALL).unwrap();
    disk.set_capacity(Some(3 * SMALL));
    let mut next = 0;
    let waiting = loop {
        let (told, done) = told();
        rig.wal().append(vec![entry(next, 1, 300)], done);
        rig.settle();
        match told.lock().take() {
            Some(written) => written.unwrap(),
            None => break Arc::clone(&told),
        }
        next += 1;
    };
    assert!(next > 10 && rig.wal().stopped().is_none());
    drop(rig);
    assert!(matches!(waiting.lock().take(), Some(Err(WalError::Closed))));
    disk.crash(Crash::Tear(1));
    disk.set_capacity(None);
    let mut rig = Rig::open(&disk, SMALL).unwrap();
    assert_eq!(rig.wal().bounds(), 0..next);
    rig.append(vec![entry(next, 1, 300)]).unwrap();
}

#[test]
fn a_writer_that_is_gone_refuses_and_its_waiters_know() {
    let rig = Rig::new();
    let wal = rig.wal().clone();
    let (waiting, done) = told();
    wal.append(entries(0..1, 1), done);
    drop(rig.parts.writer);
    assert!(matches!(waiting.lock().take(), Some(Err(WalError::Closed))));
    wal.append(entries(0..1, 1), |done| assert!(matches!(done, Err(WalError::Closed))));
    assert!(!rig.disk.list(Path::new(DIR)).unwrap().is_empty());
}
