//! From an engine to a file to a peer to an engine; and which files are kept.

use std::{path::Path, sync::Arc};

use bytes::Bytes;

use super::{
    super::{
        SnapshotError, SnapshotMeta, SnapshotOwner,
        inspect::inspect,
        store::{Condition, Snapshot, SnapshotStore},
    },
    DIR, OWNER, build, engine_with, loaded, meta, open, rows, write_file,
};
use crate::{
    disk::{
        Call, Disk, Mode, OsDisk,
        fault::{Crash, Failure, FaultDisk},
    },
    limits::{SNAPSHOT_CHUNK_BYTES, SNAPSHOT_PIECE_BYTES, SNAPSHOT_ROW_BYTES_MAX},
    store::{
        engine::{Batch, Engine, KeyRange},
        memory::MemoryEngine,
    },
};

fn send(from: &SnapshotStore, snapshot: &Snapshot, to: &Arc<SnapshotStore>) -> Result<Snapshot, SnapshotError> {
    let mut pieces = from.pieces(snapshot)?;
    let mut receiver = to.receive(pieces.bytes())?;
    while let Some(piece) = pieces.next_piece()? {
        receiver.piece(receiver.received(), &piece)?;
    }
    receiver.finish()
}

fn names(disk: &FaultDisk) -> Vec<String> {
    disk.list(Path::new(DIR)).expect("listed")
}

#[test]
fn a_state_goes_through_file_and_peer_unchanged() {
    let (here, there) = (FaultDisk::new(), FaultDisk::new());
    let (sender, receiver) = (open(&here).expect("opened"), open(&there).expect("opened"));
    let built = build(&sender, 7).expect("built");
    assert_eq!(built.meta, meta(7));
    let received = send(&sender, &built, &receiver).expect("received");
    assert_eq!(received.meta, built.meta);
    assert_eq!(here.contents(&built.path), there.contents(&received.path));
    assert_eq!(loaded(&receiver, &received).expect("loaded"), rows(40, 7));
    assert_eq!(receiver.newest_verified().expect("read"), Some(received));
}

#[test]
fn a_large_state_is_cut_into_chunks_and_pieces() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = Arc::new(SnapshotStore::open(Arc::new(OsDisk), dir.path(), OWNER, []).expect("opened"));
    let rows: Vec<_> = (0..40u64)
        .map(|n| (Bytes::from(n.to_be_bytes().to_vec()), Bytes::from(vec![n as u8; 100_000 + n as usize * 5000])))
        .chain([(Bytes::from_static(b"whole"), Bytes::from(vec![9; 3 * SNAPSHOT_CHUNK_BYTES]))])
        .collect();
    let built = store.build(&meta(3), engine_with(&rows).snapshot().expect("a view")).expect("built");
    let received = send(&store, &built, &store).expect("received");
    assert!(received.bytes > 8 * SNAPSHOT_PIECE_BYTES as u64);
    let engine = MemoryEngine::new();
    let count = store.load(&received, &engine, b"whole", []).expect("loaded");
    assert_eq!(count, rows.len() as u64);
    let found: Vec<_> = engine.scan(&KeyRange::all()).expect("scan").collect::<Result<_, _>>().expect("read");
    assert!(found == rows);
}

#[test]
fn local_keys_stay_at_home() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let engine = engine_with(&rows(3, 1));
    let mut batch = Batch::new();
    batch.put(&b"local"[..], &b"this node's"[..]);
    batch.put(&b"localised"[..], &b"everyone's"[..]);
    engine.write(batch).expect("written");
    let snapshot = store.build(&meta(4), engine.snapshot().expect("a view")).expect("built");
    let other = MemoryEngine::new();
    let local = (Bytes::from_static(b"local"), Bytes::from_static(b"the other's"));
    store.load(&snapshot, &other, b"key-000002", [local]).expect("loaded");
    assert_eq!(other.get(b"local").expect("read").as_deref(), Some(&b"the other's"[..]));
    assert_eq!(other.get(b"localised").expect("read").as_deref(), Some(&b"everyone's"[..]));
    let lacking = store.load(&snapshot, &MemoryEngine::new(), b"no such key", []);
    assert!(matches!(lacking, Err(SnapshotError::NotWhole)), "{lacking:?}");
}

#[test]
fn two_good_files_are_kept_and_the_log_keeps_what_the_older_needs() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    assert_eq!(store.newest_verified().expect("read"), None);
    build(&store, 10).expect("built");
    assert_eq!(store.older_verified_index(), None, "one file alone lets nothing be forgotten");
    build(&store, 20).expect("built");
    assert_eq!(store.older_verified_index(), Some(10));
    build(&store, 30).expect("built");
    assert_eq!(store.older_verified_index(), Some(20));
    assert_eq!(names(&disk).len(), 2);
    let again = build(&store, 30).expect("one index twice is two files");
    assert_eq!(store.older_verified_index(), Some(30));
    assert_eq!(loaded(&store, &again).expect("loaded"), rows(40, 30));
}

#[test]
fn files_found_at_start_count_once_they_were_read() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    build(&store, 10).expect("built");
    let newest = build(&store, 20).expect("built");
    drop(store);
    let store = open(&disk).expect("opened");
    assert_eq!(store.older_verified_index(), None);
    assert_eq!(store.newest_verified().expect("read"), Some(newest));
    assert_eq!(store.older_verified_index(), None, "only the newest was read");
    store.verify_all().expect("read");
    assert_eq!(store.older_verified_index(), Some(10));
}

#[test]
fn a_damaged_newest_file_gives_way_to_the_older_one() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let older = build(&store, 10).expect("built");
    let newest = build(&store, 20).expect("built");
    drop(store);
    disk.flip_bit(&newest.path, newest.bytes / 2, 3);
    let store = open(&disk).expect("opened");
    assert_eq!(store.newest_verified().expect("read"), Some(older.clone()));
    assert_eq!(store.older_verified_index(), None, "the log is needed above the one good file");
    assert_eq!(names(&disk).len(), 1, "the damaged one is deleted while there is a good one");
    assert_eq!(loaded(&store, &older).expect("loaded"), rows(40, 10));
}

#[test]
fn the_last_files_are_kept_even_if_they_are_damaged() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let files = [build(&store, 10).expect("built"), build(&store, 20).expect("built")];
    drop(store);
    files.iter().for_each(|file| assert!(disk.flip_bit(&file.path, file.bytes / 2, 3)));
    let store = open(&disk).expect("opened");
    store.verify_all().expect("read");
    assert_eq!(store.newest_verified().expect("read"), None);
    assert!(store.list().iter().all(|(_, condition)| matches!(condition, Condition::Bad(_))));
    assert_eq!(names(&disk).len(), 2, "there is nothing better");
    build(&store, 30).expect("built");
    assert_eq!(names(&disk).len(), 1, "now there is");
}

#[test]
fn damage_that_shows_while_loading_leaves_no_whole_engine() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let older = build(&store, 10).expect("built");
    let newest = build(&store, 20).expect("built");
    disk.flip_bit(&newest.path, newest.bytes - 1, 3);
    let engine = MemoryEngine::new();
    let failed = store.load(&newest, &engine, b"key-000000", []);
    assert!(matches!(failed, Err(SnapshotError::Damaged { .. })), "{failed:?}");
    assert_eq!(engine.get(b"key-000000").expect("read"), None, "the key that makes it whole is not there");
    assert_eq!(store.newest_verified().expect("read"), Some(older));
}

#[test]
fn a_file_that_cannot_be_read_is_passed_over_and_not_deleted() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let older = build(&store, 10).expect("built");
    build(&store, 20).expect("built");
    drop(store);
    let store = open(&disk).expect("opened");
    disk.fail(Call::Read, 0, Failure::Eio);
    assert_eq!(store.newest_verified().expect("read"), Some(older));
    assert_eq!(names(&disk).len(), 2);
}

#[test]
fn a_file_of_another_cluster_or_a_newer_release_stops_the_start() {
    for stranger in [SnapshotMeta { lineage: [9; 16], ..meta(30) }, SnapshotMeta { cluster: [9; 16], ..meta(30) }] {
        let disk = FaultDisk::new();
        write_file(&disk, format!("{DIR}/snapshot-{:020}-{:08}.semel", 30, 1), &stranger, &rows(3, 1), 100);
        let store = open(&disk).expect("opened");
        let found = store.newest_verified();
        assert!(matches!(found, Err(SnapshotError::Foreign { .. })), "{found:?}");
        assert_eq!(names(&disk).len(), 1, "nothing is deleted");
    }
    let disk = FaultDisk::new();
    let path = format!("{DIR}/snapshot-{:020}-{:08}.semel", 30, 1);
    write_file(&disk, &path, &meta(30), &rows(3, 1), 100);
    let mut preamble = disk.contents(&path).expect("there")[..12].to_vec();
    preamble[8] = 2;
    preamble.extend(crc32fast::hash(&preamble).to_le_bytes());
    assert!(disk.overwrite(&path, 0, &preamble));
    let found = open(&disk).expect("opened").verify_all();
    assert!(matches!(found, Err(SnapshotError::UnknownVersion { version: 2, .. })), "{found:?}");
    assert_eq!(names(&disk).len(), 1, "nothing is deleted");
}

#[test]
fn a_file_under_another_index_is_not_believed() {
    let disk = FaultDisk::new();
    write_file(&disk, format!("{DIR}/snapshot-{:020}-{:08}.semel", 90, 1), &meta(30), &rows(3, 1), 100);
    let store = open(&disk).expect("opened");
    assert_eq!(store.newest_verified().expect("read"), None);
}

#[test]
fn pieces_out_of_turn_too_long_or_too_many_are_refused() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let contents = disk.contents(build(&store, 5).expect("built").path).expect("there");
    let mut receiver = store.receive(contents.len() as u64).expect("begun");
    receiver.piece(0, &contents[..100]).expect("taken");
    for offset in [0, 99, 101] {
        let refused = receiver.piece(offset, &contents[100..]);
        assert!(matches!(refused, Err(SnapshotError::OutOfTurn { expected: 100, .. })), "{refused:?}");
    }
    let refused = receiver.piece(100, &[&contents[100..], b"x"].concat());
    assert!(matches!(refused, Err(SnapshotError::WrongLength { .. })), "{refused:?}");
    let refused = receiver.piece(100, &vec![0; SNAPSHOT_PIECE_BYTES + 1]);
    assert!(matches!(refused, Err(SnapshotError::TooLarge { .. })), "{refused:?}");
    let refused = receiver.finish();
    assert!(matches!(refused, Err(SnapshotError::WrongLength { .. })), "{refused:?}");
    assert_eq!(names(&disk).len(), 1, "nothing is left of it");
}

#[test]
fn a_damaged_or_foreign_delivery_is_not_kept() {
    let (here, there) = (FaultDisk::new(), FaultDisk::new());
    let sender = open(&here).expect("opened");
    let built = build(&sender, 5).expect("built");
    let receiver = open(&there).expect("opened");
    let contents = here.contents(&built.path).expect("there");
    for offset in (0..contents.len()).step_by(41) {
        let mut bytes = contents.clone();
        bytes[offset] ^= 4;
        let mut delivery = receiver.receive(bytes.len() as u64).expect("begun");
        delivery.piece(0, &bytes).expect("taken");
        let refused = delivery.finish();
        assert!(matches!(refused, Err(SnapshotError::Damaged { .. })), "byte {offset}: {refused:?}");
    }
    let owner = SnapshotOwner { cluster: [7; 16], ..OWNER };
    let stranger = Arc::new(SnapshotStore::open(Arc::new(there.clone()), "/other", owner, []).expect("opened"));
    let refused = send(&sender, &built, &stranger);
    assert!(matches!(refused, Err(SnapshotError::Foreign { .. })), "{refused:?}");
    assert!(there.paths().is_empty(), "{:?}", there.paths());
}

#[test]
fn rows_and_meta_beyond_their_bounds_are_refused() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let large = (Bytes::from_static(b"k"), Bytes::from(vec![0; SNAPSHOT_ROW_BYTES_MAX]));
    let refused = store.build(&meta(1), engine_with(&[large]).snapshot().expect("a view"));
    assert!(matches!(refused, Err(SnapshotError::TooLarge { what: "row", .. })), "{refused:?}");
    let long = (Bytes::from(vec![1; 65_536]), Bytes::new());
    let refused = store.build(&meta(1), engine_with(&[long]).snapshot().expect("a view"));
    assert!(matches!(refused, Err(SnapshotError::TooLarge { what: "key", .. })), "{refused:?}");
    let grown = SnapshotMeta { membership: Bytes::from(vec![0; 1 << 20]), ..meta(1) };
    let refused = store.build(&grown, engine_with(&[]).snapshot().expect("a view"));
    assert!(matches!(refused, Err(SnapshotError::TooLarge { what: "membership", .. })), "{refused:?}");
    assert!(disk.paths().is_empty());
}

#[test]
fn an_empty_state_is_a_state() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let snapshot = store.build(&meta(1), engine_with(&[]).snapshot().expect("a view")).expect("built");
    let whole = (Bytes::from_static(b"whole"), Bytes::from_static(b"1"));
    assert_eq!(store.load(&snapshot, &MemoryEngine::new(), b"whole", [whole]).expect("loaded"), 1);
}

#[test]
fn names_that_are_not_ours_are_left_alone() {
    let disk = FaultDisk::new();
    disk.create_dir_all(Path::new(DIR)).expect("created");
    for name in ["notes.txt", "snapshot-7-1.semel", "snapshot-+0000000000000000007-00000001.semel"] {
        disk.open(&Path::new(DIR).join(name), Mode::CreateNew).expect("created");
    }
    let store = open(&disk).expect("opened");
    store.verify_all().expect("read");
    assert!(store.list().is_empty());
    build(&store, 1).expect("built");
    assert_eq!(names(&disk).len(), 4);
    disk.crash(Crash::KeepUnsynced);
    assert_eq!(open(&disk).expect("opened").list().len(), 1);
}

#[test]
fn an_inspection_prints_all_of_it_and_says_that_it_is_whole() {
    let disk = FaultDisk::new();
    let store = open(&disk).expect("opened");
    let built = build(&store, 7).expect("built");
    let report = |path: &Path| {
        let mut out = Vec::new();
        let result = inspect(&disk, path, &mut out, &mut |key, value| {
            key.ends_with(b"9").then(|| format!("{} = {}", key.escape_ascii(), value.escape_ascii()))
        });
        (String::from_utf8(out).expect("text"), result)
    };
    let (text, result) = report(&built.path);
    result.expect("whole");
    assert!(text.contains("log index        7\n"), "{text}");
    assert!(text.contains("cluster          22222222222222222222222222222222\n"), "{text}");
    assert_eq!(text.matches("key-0000").count(), 4, "{text}");
    assert!(text.contains("key-000009 = value 63 of 7\n"), "{text}");
    assert!(text.contains("rows             40\n") && text.ends_with("whole            yes\n"), "{text}");
    disk.flip_bit(&built.path, built.bytes - 1, 0);
    let (text, result) = report(&built.path);
    result.expect_err("damaged");
    assert!(text.contains("key-000039") && !text.contains("whole"), "{text}");
}
