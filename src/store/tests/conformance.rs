//! What every engine must do, one behaviour a test.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use bytes::Bytes;

use super::{
    super::{
        directory::{EngineDirectory, EngineKind},
        engine::{Batch, EngineCause, EngineError, KeyRange},
    },
    collected, deletes, everything, key, numbered, on_every_engine, open, puts, value,
};

on_every_engine!(
    a_batch_puts_and_deletes_together,
    a_scan_returns_the_range_in_order,
    a_scan_passes_every_untouched_key_once_while_others_change,
    a_view_holds_the_state_between_two_batches,
    a_view_hides_what_came_and_keeps_what_went,
    two_views_hold_two_states,
    a_view_is_whole_while_a_thread_writes,
    readers_never_see_half_a_batch,
    rows_load_into_an_empty_engine_only,
    rows_out_of_order_are_refused,
    a_failing_source_leaves_no_whole_engine,
    values_of_every_size_come_back,
);

fn a_batch_puts_and_deletes_together(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts(0..3, |n| n)).expect("written");
    let mut batch = Batch::new();
    batch.delete(key(0));
    batch.put(key(1), value(11));
    batch.delete(key(7));
    batch.put(key(8), value(8));
    engine.write(batch).expect("written");
    assert_eq!(engine.get(&key(0)).expect("read"), None);
    assert_eq!(engine.get(&key(1)).expect("read"), Some(value(11)));
    assert_eq!(everything(&*engine), numbered([(1, 11), (2, 2), (8, 8)]));
    engine.write(Batch::new()).expect("an empty batch is written");
    assert_eq!(everything(&*engine).len(), 3);
}

fn a_scan_returns_the_range_in_order(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts((0..1000).step_by(2), |n| n)).expect("written");
    engine.write(puts((1..1000).step_by(2), |n| n)).expect("written");
    assert_eq!(everything(&*engine), numbered((0..1000).map(|n| (n, n))));
    let scan = |range: KeyRange| collected(engine.scan(&range).expect("the scan begins"));
    assert_eq!(scan(KeyRange::new(key(10), key(13))), numbered((10..13).map(|n| (n, n))));
    assert_eq!(scan(KeyRange::starting_at(key(998))), numbered((998..1000).map(|n| (n, n))));
    assert_eq!(scan(KeyRange::prefix(&b"key-00099"[..])), numbered((990..1000).map(|n| (n, n))));
    assert_eq!(scan(KeyRange::all().after(&key(998))), numbered([(999, 999)]));
    assert_eq!(scan(KeyRange::new(key(13), key(13))), vec![]);
    assert_eq!(scan(KeyRange::new(key(13), key(10))), vec![]);
    assert_eq!(scan(KeyRange::prefix(&b"kez"[..])), vec![]);
}

fn a_scan_passes_every_untouched_key_once_while_others_change(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts(0..2000, |n| n)).expect("written");
    let mut seen = Vec::new();
    for (count, item) in engine.scan(&KeyRange::all()).expect("the scan begins").enumerate() {
        seen.push(item.expect("read").0);
        if count % 100 == 0 {
            let turn = count as u64 / 100;
            engine.write(deletes((0..2000).filter(|n| n % 40 == 2 * turn + 1))).expect("written");
        }
    }
    let untouched = |k: &Bytes| k.last().is_some_and(|digit| (digit - b'0').is_multiple_of(2));
    let seen: Vec<_> = seen.into_iter().filter(untouched).collect();
    assert_eq!(seen, (0..2000).step_by(2).map(key).collect::<Vec<_>>());
}

fn a_view_holds_the_state_between_two_batches(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts(0..1500, |n| n)).expect("written");
    let view = engine.snapshot().expect("a view");
    engine.write(puts((0..1500).step_by(3), |_| 9)).expect("written");
    assert_eq!(view.get(&key(3)).expect("read"), Some(value(3)));
    assert_eq!(view.get(&key(4)).expect("read"), Some(value(4)));
    let mut rows = Vec::new();
    for item in view.into_scan().expect("the scan begins") {
        rows.push(item.expect("read"));
        if rows.len() % 200 == 0 {
            let turn = rows.len() as u64;
            engine.write(puts((0..1500).filter(|n| n % 7 == turn % 7), |n| n + turn)).expect("written");
        }
    }
    assert_eq!(rows, numbered((0..1500).map(|n| (n, n))));
    assert!(engine.get(&key(3)).expect("read").is_some());
}

fn a_view_hides_what_came_and_keeps_what_went(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts((0..1200).step_by(2), |n| n)).expect("written");
    let view = engine.snapshot().expect("a view");
    assert_eq!(view.get(&key(1)).expect("read"), None);
    engine.write(puts((1..1200).step_by(2), |n| n)).expect("written");
    engine.write(deletes(0..1200)).expect("written");
    engine.write(puts(0..1200, |_| 5)).expect("written");
    engine.write(deletes(600..1200)).expect("written");
    assert_eq!(view.get(&key(1)).expect("read"), None);
    assert_eq!(view.get(&key(2)).expect("read"), Some(value(2)));
    assert_eq!(
        collected(view.into_scan().expect("the scan begins")),
        numbered((0..1200).step_by(2).map(|n| (n, n))),
        "the view is as it was"
    );
    assert_eq!(everything(&*engine), numbered((0..600).map(|n| (n, 5))), "the engine went on");
}

fn two_views_hold_two_states(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts(0..600, |_| 1)).expect("written");
    let first = engine.snapshot().expect("a view");
    engine.write(puts(0..600, |_| 2)).expect("written");
    let second = engine.snapshot().expect("a view");
    engine.write(puts(0..600, |_| 3)).expect("written");
    assert_eq!(collected(second.into_scan().expect("scan")), numbered((0..600).map(|n| (n, 2))));
    engine.write(puts(0..600, |_| 4)).expect("written");
    assert_eq!(collected(first.into_scan().expect("scan")), numbered((0..600).map(|n| (n, 1))));
}

fn a_view_is_whole_while_a_thread_writes(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts(0..3000, |_| 0)).expect("written");
    let stop = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (engine, stop, written) = (Arc::clone(&engine), Arc::clone(&stop), Arc::clone(&written));
        thread::spawn(move || {
            let mut turn = 0;
            while !stop.load(Ordering::Acquire) {
                turn += 1;
                // Every batch sets the same keys to one value, so that a view that mixes batches shows two of them.
                engine.write(puts((0..3000).step_by(25), |_| turn)).expect("written");
                written.store(turn, Ordering::Release);
            }
        })
    };
    for _ in 0..5 {
        let before = written.load(Ordering::Acquire);
        while written.load(Ordering::Acquire) < before + 3 {
            thread::yield_now();
        }
        let rows = collected(engine.snapshot().expect("a view").into_scan().expect("the scan begins"));
        assert_eq!(rows.len(), 3000);
        let first = rows[0].1.clone();
        assert!(first > value(before), "the view is of its time");
        for (number, (row_key, row_value)) in rows.iter().enumerate() {
            assert_eq!(*row_key, key(number as u64));
            assert_eq!(*row_value, if number % 25 == 0 { first.clone() } else { value(0) });
        }
    }
    stop.store(true, Ordering::Release);
    writer.join().expect("the writer ends");
}

/// E1: two keys far apart always hold the same value. Each is read alone, so what can be told is that the one read later
/// is never older.
fn readers_never_see_half_a_batch(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    engine.write(puts([1, 9], |_| 0)).expect("written");
    let writer = {
        let engine = Arc::clone(&engine);
        thread::spawn(move || {
            for turn in 1..=2000 {
                engine.write(puts([1, 9], |_| turn)).expect("written");
            }
        })
    };
    while !writer.is_finished() {
        let first = engine.get(&key(9)).expect("read").expect("there");
        let second = engine.get(&key(1)).expect("read").expect("there");
        assert!(second >= first, "{second:?} was read after {first:?}");
        let first = engine.get(&key(1)).expect("read").expect("there");
        let second = engine.get(&key(9)).expect("read").expect("there");
        assert!(second >= first, "{second:?} was read after {first:?}");
    }
    writer.join().expect("the writer ends");
}

fn rows_load_into_an_empty_engine_only(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    let rows = numbered((0..5000).map(|n| (n, n)));
    let mut finish = Batch::new();
    finish.put(&b"applied"[..], &b"7"[..]);
    let loaded = engine.load_sorted(&mut rows.iter().cloned().map(Ok), finish).expect("loaded");
    assert_eq!(loaded, 5000);
    assert_eq!(engine.get(b"applied").expect("read"), Some(Bytes::from_static(b"7")));
    assert_eq!(everything(&*engine)[1..], rows);
    engine.write(deletes(0..5)).expect("written");
    assert_eq!(everything(&*engine).len(), 5000 - 5 + 1, "what was loaded can be deleted");
    let again = engine.load_sorted(&mut rows.into_iter().map(Ok), Batch::new());
    assert!(matches!(again, Err(EngineError::NotEmpty)), "{again:?}");
}

fn rows_out_of_order_are_refused(kind: EngineKind) {
    for rows in [[(1, 1), (0, 0)], [(1, 1), (1, 2)]] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = open(kind, dir.path());
        let mut finish = Batch::new();
        finish.put(&b"applied"[..], &b"7"[..]);
        let loaded = engine.load_sorted(&mut numbered(rows).into_iter().map(Ok), finish);
        assert!(matches!(loaded, Err(EngineError::OutOfOrder)), "{loaded:?}");
        assert_eq!(engine.get(b"applied").expect("read"), None);
    }
}

fn a_failing_source_leaves_no_whole_engine(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engines = EngineDirectory::new(dir.path(), kind);
    let engine = engines.open_next().expect("opened");
    let mut finish = Batch::new();
    finish.put(&b"applied"[..], &b"7"[..]);
    let mut rows = numbered((0..3000).map(|n| (n, n)))
        .into_iter()
        .map(Ok)
        .chain([Err(EngineError::Source(EngineCause::new(std::io::Error::other("the file ends"))))]);
    engine.load_sorted(&mut rows, finish).expect_err("the source failed");
    assert_eq!(engine.get(b"applied").expect("read"), None);
    drop(engine);
    let opened = engines.open(b"applied").expect("opened");
    assert_eq!(everything(&*opened.engine), vec![], "half a load is thrown away");
    assert_eq!(opened.discarded.len(), usize::from(kind != EngineKind::Memory));
    assert!(opened.discarded.iter().all(|discarded| discarded.damage.is_none()));
}

fn values_of_every_size_come_back(kind: EngineKind) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = open(kind, dir.path());
    let sizes = [0, 1, 300, 1 << 10, 65_528, 65_529, 65_530, 1 << 20, 3 << 20];
    let mut batch = Batch::new();
    for (number, size) in sizes.into_iter().enumerate() {
        batch.put(key(number as u64), vec![number as u8; size]);
    }
    engine.write(batch).expect("written");
    let view = engine.snapshot().expect("a view");
    for (number, size) in sizes.into_iter().enumerate() {
        let expected = Bytes::from(vec![number as u8; size]);
        assert_eq!(engine.get(&key(number as u64)).expect("read"), Some(expected.clone()));
        assert_eq!(view.get(&key(number as u64)).expect("read"), Some(expected));
    }
    let rows = collected(view.into_scan().expect("the scan begins"));
    assert_eq!(rows.iter().map(|(_, value)| value.len()).collect::<Vec<_>>(), sizes);
    assert!(engine.disk_bytes().expect("asked") > 0);
}

mod on_disk {
    //! What only an engine with files can show.

    use std::fs;

    use super::{super::super::directory, *};

    const KINDS: [EngineKind; 2] = [EngineKind::Fjall, EngineKind::Sled];

    #[test]
    fn what_was_written_is_there_after_reopening() {
        for kind in KINDS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            for turn in 0..4 {
                let engine = open(kind, dir.path());
                let expected = numbered((0..turn * 500).map(|n| (n, if n < turn * 500 - 500 { n + 1 } else { n })));
                assert_eq!(everything(&*engine), expected, "{kind} {turn}");
                engine.write(puts(0..turn * 500, |n| n + 1)).expect("written");
                engine.write(puts(turn * 500..turn * 500 + 500, |n| n)).expect("written");
            }
        }
    }

    #[test]
    fn a_loaded_engine_is_whole_after_reopening() {
        for kind in KINDS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let engines = EngineDirectory::new(dir.path(), kind);
            let mut finish = Batch::new();
            finish.put(&b"applied"[..], &b"7"[..]);
            let rows = numbered((0..5000).map(|n| (n, n)));
            let engine = engines.open_next().expect("opened");
            engine.load_sorted(&mut rows.iter().cloned().map(Ok), finish).expect("loaded");
            drop(engine);
            let opened = engines.open(b"applied").expect("opened");
            assert!(opened.discarded.is_empty(), "{:?}", opened.discarded);
            assert_eq!(everything(&*opened.engine)[1..], rows, "{kind}");
        }
    }

    #[test]
    fn an_engine_in_use_is_locked_and_not_damaged() {
        for kind in KINDS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let engines = EngineDirectory::new(dir.path(), kind);
            let engine = engines.open_next().expect("opened");
            engine.write(puts(0..3, |n| n)).expect("written");
            let second = engines.open(b"applied").map(|_| ());
            assert!(matches!(second, Err(EngineError::Locked { .. })), "{kind}: {second:?}");
            assert_eq!(everything(&*engine).len(), 3, "nothing was deleted");
        }
    }

    #[test]
    fn damage_is_reported_and_the_engine_built_again() {
        for kind in KINDS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let engines = EngineDirectory::new(dir.path(), kind);
            let engine = engines.open_next().expect("opened");
            let mut batch = puts(0..2000, |n| n);
            batch.put(&b"whole"[..], &b"1"[..]);
            engine.write(batch).expect("written");
            drop(engine);
            let path = fs::read_dir(dir.path()).expect("listed").next().expect("one").expect("read").path();
            // The files that say what the rest means: fjall's list of tables, sled's settings.
            let victim = path.join(if kind == EngineKind::Fjall { "version" } else { "conf" });
            fs::write(&victim, b"not what was here").expect("overwritten");
            let alone = directory::open(kind, &path).map(|_| ());
            assert!(matches!(alone, Err(EngineError::Damaged { .. })), "{kind}: {alone:?}");
            let opened = engines.open(b"whole").expect("opened");
            assert_eq!(opened.discarded.len(), 1);
            assert!(matches!(opened.discarded[0].damage, Some(EngineError::Damaged { .. })));
            assert_eq!(everything(&*opened.engine), vec![]);
        }
    }

    #[test]
    fn damage_that_shows_at_a_read_is_found_by_the_next_start() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let engines = EngineDirectory::new(dir.path(), EngineKind::Fjall);
        let mut finish = Batch::new();
        finish.put(&b"whole"[..], &b"1"[..]);
        let rows = numbered((0..20_000).map(|n| (n, n)));
        engines.open_next().expect("opened").load_sorted(&mut rows.into_iter().map(Ok), finish).expect("loaded");
        // The data blocks come first in a table; its index at the end stays whole, so that it opens.
        let tables = dir.path().join("fjall-00000001/keyspaces/1/tables");
        for table in fs::read_dir(tables).expect("listed") {
            let path = table.expect("read").path();
            let mut bytes = fs::read(&path).expect("read");
            let flipped = bytes.len() / 4;
            bytes[flipped] ^= 0x10;
            fs::write(&path, bytes).expect("written");
        }
        let opened = engines.open(b"whole").expect("opened");
        assert!(opened.discarded.is_empty(), "the damage does not show: {:?}", opened.discarded);
        let scan = opened.engine.scan(&KeyRange::all()).expect("the scan begins");
        assert!(scan.last().expect("items").is_err(), "the damage shows");
        drop(opened);
        let opened = engines.open(b"whole").expect("opened");
        assert_eq!(opened.discarded.len(), 1);
        assert_eq!(everything(&*opened.engine), vec![]);
    }

    #[test]
    fn a_new_generation_takes_the_place_of_the_old_one() {
        for kind in KINDS {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let engines = EngineDirectory::new(dir.path(), kind);
            let whole = |n| {
                let mut finish = Batch::new();
                finish.put(&b"whole"[..], value(n));
                finish
            };
            let old = engines.open(b"whole").expect("opened").engine;
            old.write(whole(1)).expect("written");
            let new = engines.open_next().expect("opened");
            new.load_sorted(&mut numbered([(1, 1)]).into_iter().map(Ok), whole(2)).expect("loaded");
            let view = old.snapshot().expect("a view");
            old.retire();
            drop(old);
            assert_eq!(view.get(b"whole").expect("read"), Some(value(1)), "{kind}: a view outlives its engine");
            drop(view);
            assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1, "{kind}: and then the files are gone");
            drop(new);
            let opened = engines.open(b"whole").expect("opened");
            assert_eq!(opened.engine.get(b"whole").expect("read"), Some(value(2)), "{kind}");
        }
    }

    #[test]
    fn a_start_with_another_engine_deletes_the_first() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for kind in [EngineKind::Fjall, EngineKind::Sled, EngineKind::Fjall] {
            let opened = EngineDirectory::new(dir.path(), kind).open(b"whole").expect("opened");
            assert_eq!(everything(&*opened.engine), vec![]);
            opened.engine.write(puts(0..3, |n| n)).expect("written");
            assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
        }
    }

    #[test]
    fn a_writer_waits_for_a_sled_view_that_remembers_too_much() {
        use crate::limits::SLED_VIEW_BYTES;

        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = open(EngineKind::Sled, dir.path());
        let size = 256 << 10;
        let count = 2 * SLED_VIEW_BYTES / size;
        let filled = |with: u8| {
            let mut batch = Batch::new();
            for number in 0..count as u64 {
                batch.put(key(number), vec![with; size]);
            }
            batch
        };
        engine.write(filled(1)).expect("written");
        let view = engine.snapshot().expect("a view");
        let writer = {
            let (engine, batch) = (Arc::clone(&engine), filled(2));
            thread::spawn(move || engine.write(batch).expect("written"))
        };
        // The writer cannot be done before the view is read: it may remember only half of what is overwritten.
        let mut rows = view.into_scan().expect("the scan begins");
        assert!(!writer.is_finished());
        assert!(rows.all(|row| row.expect("read").1.iter().all(|byte| *byte == 1)));
        writer.join().expect("the writer ends once the view is read");
        let first = engine.get(&key(0)).expect("read").expect("there");
        assert_eq!(first[0], 2);

        let view = engine.snapshot().expect("a view");
        let writer = {
            let (engine, batch) = (Arc::clone(&engine), filled(3));
            thread::spawn(move || engine.write(batch).expect("written"))
        };
        drop(view);
        writer.join().expect("the writer ends once the view is dropped");
    }
}
