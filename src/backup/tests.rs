//! Backups that are cut, flipped, swapped and filled with strangers; resumed ones; and the bytes of format 1.

mod keyed;

use std::{fs, path::Path, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    manifest::{FORMAT, MANIFEST, Manifest, parse_time, part_name, time_text},
    parts::PartsWriter,
    ring::{Ring, RingEntry},
    source::{self, Written},
    verify::check_rows,
    *,
};
use crate::{
    disk::{Disk, Mode, OsDisk},
    fuzz::Target,
    id::Tenant,
    records::{
        apply, codec,
        command::{Command, Entry, Init, Restored, Sealed, TenantOpened, Wrapped, WritesEnded},
        keys::StoreKey,
        memory::MemoryState,
        policy::{Limits, Policy},
        sealing::RingState,
        state::State,
    },
    store::{
        engine::{Batch, Engine},
        memory::MemoryEngine,
        records::{META_MARK, Mark, View},
    },
};

/// A state with a tenant, without randomness: the golden files are made of it.
fn state(is_final: bool) -> MemoryState {
    let wrapped = |byte| Wrapped { wrapping_id: 0, bytes: codec::Blob(vec![byte; 32].into()) };
    let init = Init {
        lineage_id: LineageId([0x11; 16]),
        cluster_id: ClusterId([0x22; 16]),
        cluster_name: "golden".into(),
        downstream_secret: wrapped(9),
        feature_level: 1,
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: None,
    };
    let tenant = Tenant::parse("acme").unwrap();
    let mut commands =
        vec![Command::Init(Box::new(init)), Command::TenantOpened(TenantOpened { tenant, index_key: wrapped(3) })];
    if is_final {
        commands.push(Command::WritesEnded(WritesEnded { actor: Sealed::plain(&b"ops"[..]) }));
    }
    let commands = commands.into_iter().map(Arc::new).collect();
    let mut state = MemoryState::default();
    apply(&mut state, &Entry { time: Time(1_767_225_600_000), commands });
    state
}

/// The state as a view of an engine, with what is a node's own beside it.
fn view(state: &MemoryState) -> View {
    let engine = MemoryEngine::new();
    let mut rows: Vec<_> = state.dump().into_iter().map(|(key, value)| (Bytes::from(key), value)).collect();
    rows.push((StoreKey::Meta(META_MARK.into()).encode().into(), Bytes::from_static(b"its own")));
    rows.push((Bytes::from_static(b"\x0cring"), Bytes::from_static(b"a root key")));
    rows.sort();
    engine.load_sorted(&mut rows.into_iter().map(Ok), Batch::new()).unwrap();
    View { mark: Mark::default(), globals: state.globals().clone(), rows: engine.snapshot().unwrap() }
}

fn written(dir: &Path, is_final: bool) -> (Written, Vec<u8>) {
    let path = dir.join("written");
    let written = source::write(&OsDisk, &path, view(&state(is_final)), &mut |_| {}).unwrap();
    (written, fs::read(&path).unwrap())
}

/// A backup in `dir`, in parts of 100 bytes.
fn backup(dir: &Path) -> Manifest {
    let (written, bytes) = written(dir.parent().unwrap(), false);
    fs::create_dir(dir).unwrap();
    let mut parts = PartsWriter::with_parts_of(dir, 100).unwrap();
    bytes.chunks(33).for_each(|piece| parts.append(piece).unwrap());
    let (parts, sha256) = parts.end().unwrap();
    assert_eq!(sha256, written.sha256);
    let manifest = Manifest { origin: written.origin, bytes: written.bytes, sha256, parts };
    fs::write(dir.join(MANIFEST), manifest.encode()).unwrap();
    manifest
}

fn flaw(dir: &Path) -> (String, u64, String) {
    match verify(dir, &mut |_| {}) {
        Err(BackupError::Damaged { path, offset, flaw }) => {
            (path.file_name().unwrap().to_string_lossy().into_owned(), offset, flaw.to_string())
        }
        other => panic!("not damage: {other:?}"),
    }
}

#[test]
fn a_backup_is_whole_and_holds_all_but_what_is_the_nodes_own() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("b");
    let manifest = backup(&dir);
    assert!(manifest.parts.len() > 5);
    let verified = verify(&dir, &mut |_| {}).unwrap();
    assert_eq!((verified.manifest, &verified.globals), (manifest.clone(), state(false).globals()));
    let rows = crate::store::snapshot::read::SnapshotRows::of(Arc::new(verify::joined(&dir, &manifest))).unwrap();
    let rows: Vec<_> = rows.map(|row| row.unwrap()).collect();
    let expected: Vec<_> = state(false).dump().into_iter().map(|(key, value)| (Bytes::from(key), value)).collect();
    assert_eq!(rows, expected);
    let origin = manifest.origin;
    assert_eq!((origin.position, origin.is_final), (Position(3), false));
}

#[test]
fn a_final_backup_says_so_and_only_a_restore_clears_it() {
    let temporary = tempfile::tempdir().unwrap();
    let (written, _) = written(temporary.path(), true);
    assert!(written.origin.is_final);
    let file = OsDisk.open(&temporary.path().join("written"), Mode::Read).unwrap();
    assert_eq!(check_rows(file, &mut |_| {}).unwrap().origin, written.origin);
    let mut state = state(true);
    let restored = Restored {
        cluster_id: ClusterId([0x33; 16]),
        first_position: Position(1 << 60),
        gap_end: None,
        actor: Sealed::plain(&b"ops"[..]),
    };
    let entry =
        Entry { time: Time(1_767_225_700_000), commands: vec![Arc::new(Command::Restored(Box::new(restored)))] };
    assert!(apply(&mut state, &entry)[0].answer.is_ok() && state.ended().is_none());
}

#[test]
fn parts_go_on_where_they_were_left() {
    let temporary = tempfile::tempdir().unwrap();
    let (written, bytes) = written(temporary.path(), false);
    for cut in [0, 1, 99, 100, 101, 250, bytes.len()] {
        let dir = temporary.path().join(format!("cut-{cut}"));
        fs::create_dir(&dir).unwrap();
        PartsWriter::with_parts_of(&dir, 100).unwrap().append(&bytes[..cut]).unwrap();
        let mut parts = PartsWriter::with_parts_of(&dir, 100).unwrap();
        assert_eq!(parts.bytes(), cut as u64);
        parts.append(&bytes[cut..]).unwrap();
        let (parts, sha256) = parts.end().unwrap();
        assert_eq!((parts.len(), sha256), (bytes.len().div_ceil(100), written.sha256), "cut at {cut}");
        PartsWriter::clear(&dir).unwrap();
        assert_eq!(PartsWriter::with_parts_of(&dir, 100).unwrap().bytes(), 0);
    }
}

#[test]
fn strangers_links_and_wrong_sizes_are_refused_before_anything_is_read() {
    let temporary = tempfile::tempdir().unwrap();
    let fresh = |name: &str| {
        let dir = temporary.path().join(name).join("b");
        fs::create_dir(dir.parent().unwrap()).unwrap();
        backup(&dir);
        dir
    };
    let dir = fresh("stranger");
    fs::write(dir.join("notes.txt"), "x").unwrap();
    assert_eq!(flaw(&dir).0, "notes.txt");
    let dir = fresh("surplus");
    fs::write(dir.join(part_name(99)), "x").unwrap();
    assert_eq!(flaw(&dir).0, "part-000099");
    let dir = fresh("other-spelling");
    fs::write(dir.join("part-0000001"), "x").unwrap();
    assert_eq!(flaw(&dir).0, "part-0000001");
    for (name, target) in [("part-000001", "../written"), ("part-000002", "/etc/hostname"), (MANIFEST, "../written")] {
        let dir = fresh(&format!("link-{name}"));
        fs::remove_file(dir.join(name)).unwrap();
        std::os::unix::fs::symlink(target, dir.join(name)).unwrap();
        assert_eq!(flaw(&dir), (name.to_owned(), 0, "it is not a plain file".to_owned()));
    }
    let dir = fresh("directory");
    fs::remove_file(dir.join("part-000003")).unwrap();
    fs::create_dir(dir.join("part-000003")).unwrap();
    assert_eq!(flaw(&dir).0, "part-000003");
    let dir = fresh("longer");
    let part = fs::read(dir.join("part-000002")).unwrap();
    fs::write(dir.join("part-000002"), [&part[..], b"x"].concat()).unwrap();
    assert_eq!(flaw(&dir), ("part-000002".into(), 100, "it has 101 bytes where 100 belong".into()));
    let dir = fresh("missing");
    fs::remove_file(dir.join("part-000001")).unwrap();
    assert_eq!(flaw(&dir).2, "it is missing");
    let dir = fresh("huge");
    fs::File::options().write(true).open(dir.join(MANIFEST)).unwrap().set_len(1 << 40).unwrap();
    assert_eq!((flaw(&dir).0, flaw(&dir).1), (MANIFEST.into(), crate::limits::BACKUP_MANIFEST_BYTES_MAX));
    assert!(matches!(verify(&temporary.path().join("nowhere"), &mut |_| {}), Err(BackupError::Damaged { .. })));
}

/// The manifest of a backup, made to fit whatever parts there are now.
fn refit(dir: &Path, manifest: &Manifest) -> Manifest {
    use sha2::{Digest, Sha256};
    let contents: Vec<Vec<u8>> =
        (0..manifest.parts.len()).map(|part| fs::read(dir.join(part_name(part))).unwrap()).collect();
    let part =
        |content: &Vec<u8>| manifest::Part { bytes: content.len() as u64, sha256: Sha256::digest(content).into() };
    let parts: Vec<_> = contents.iter().map(part).collect();
    Manifest { sha256: Sha256::digest(contents.concat()).into(), parts, ..manifest.clone() }
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("b");
    let manifest = backup(&dir);
    let names = (0..manifest.parts.len()).map(part_name).chain([MANIFEST.to_owned()]);
    for name in names {
        let path = dir.join(&name);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).unwrap();
            flaw(&dir);
            if name != MANIFEST {
                // Where the checksums are made to fit, the format beneath still finds it.
                fs::write(dir.join(MANIFEST), refit(&dir, &manifest).encode()).unwrap();
                let (part, ..) = flaw(&dir);
                assert!(part.starts_with("part-"), "{name} at {at}: {part}");
                fs::write(dir.join(MANIFEST), manifest.encode()).unwrap();
            }
            if at % 7 == 0 {
                fs::write(&path, &whole[..at]).unwrap();
                flaw(&dir);
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    verify(&dir, &mut |_| {}).unwrap();
}

#[test]
fn a_manifest_that_says_otherwise_is_not_believed() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("b");
    let manifest = backup(&dir);
    let origin = manifest.origin;
    let others = [
        ("position", Origin { position: Position(4), ..origin }),
        ("cluster_time", Origin { cluster_time: Time(origin.cluster_time.0 + 1), ..origin }),
        ("lineage_id", Origin { lineage_id: LineageId([1; 16]), ..origin }),
        ("cluster_id", Origin { cluster_id: ClusterId([1; 16]), ..origin }),
        ("final", Origin { is_final: true, ..origin }),
    ];
    for (what, origin) in others {
        fs::write(dir.join(MANIFEST), Manifest { origin, ..manifest.clone() }.encode()).unwrap();
        assert_eq!(flaw(&dir).2, format!("the manifest says another {what} than the parts"));
    }
    let text = manifest.encode();
    let spellings = [
        text.replace("\",", "\" ,"),
        text.trim_end().to_owned(),
        text.replace("\"format\":1", "\"format\":2"),
        text.replace("\"final\":false", "\"final\":false,\"more\":1"),
        text.replace(".000Z", ".0000Z"),
        text.replace("part-000001", "part-000002"),
        text.replace("part-000001", "../part-000001"),
        text.replace("\"bytes\":\"100\"", "\"bytes\":\"0\""),
    ];
    for spelling in spellings {
        assert_ne!(spelling, text);
        fs::write(dir.join(MANIFEST), &spelling).unwrap();
        assert_eq!(flaw(&dir).0, MANIFEST, "{spelling}");
    }
}

#[test]
fn times_are_told_in_utc_with_milliseconds() {
    for (text, ms) in [("1970-01-01T00:00:00.000Z", 0), ("2026-01-01T00:00:00.001Z", 1_767_225_600_001)] {
        assert_eq!((time_text(Time(ms)).as_str(), parse_time(text)), (text, Some(Time(ms))));
    }
    assert_eq!(parse_time("2026-01-01T02:00:00+02:00"), Some(Time(1_767_225_600_000)));
    assert_eq!((parse_time("yesterday"), parse_time("1969-12-31T23:59:59Z")), (None, None));
    assert_eq!(time_text(Time(u64::MAX)), "9999-12-31T23:59:59.000Z");
}

#[test]
fn a_key_ring_is_read_as_it_was_written_and_no_damaged_one_is() {
    let entry = |tenant: &str, state, root| RingEntry {
        tenant: Some(Tenant::parse(tenant).unwrap()),
        state,
        at_ms: -1,
        wrapped_root: root,
    };
    let own = RingEntry { tenant: None, state: RingState::Open, at_ms: 1, wrapped_root: Some(vec![8; 76]) };
    let acme = entry("acme", RingState::Open, Some(vec![7; 76]));
    let entries = vec![own, acme, entry("gone", RingState::Shredded, None)];
    for entries in [Vec::new(), entries] {
        let ring = Ring { lineage_id: LineageId([0x11; 16]), position: Position(7), entries };
        let bytes = ring.encode();
        assert_eq!(Ring::decode(&bytes), Ok(ring));
        for at in 0..bytes.len() {
            assert!(Ring::decode(&bytes[..at]).is_err());
            let mut damaged = bytes.clone();
            damaged[at] ^= 4;
            assert!(Ring::decode(&damaged).is_err(), "flipped at {at}");
        }
    }
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/backup-v1").join(name)
}

/// What was made is made so for good, and is read for good. `SEMEL_GOLDEN=write` writes it anew: a reviewed decision.
#[test]
fn format_1_stays_as_it_is() {
    assert_eq!(FORMAT, 1);
    let temporary = tempfile::tempdir().unwrap();
    let (written, bytes) = written(temporary.path(), true);
    let dir = temporary.path().join("b");
    fs::create_dir(&dir).unwrap();
    let mut parts = PartsWriter::with_parts_of(&dir, 300).unwrap();
    parts.append(&bytes).unwrap();
    let (parts, sha256) = parts.end().unwrap();
    let manifest = Manifest { origin: written.origin, bytes: written.bytes, sha256, parts };
    fs::write(dir.join(MANIFEST), manifest.encode()).unwrap();
    let ring = Ring { lineage_id: LineageId([0x11; 16]), position: Position(7), entries: Vec::new() };
    let entry = |tenant: Option<&str>, at_ms, state, root: Option<u8>| RingEntry {
        tenant: tenant.map(|name| Tenant::parse(name).unwrap()),
        state,
        at_ms,
        wrapped_root: root.map(|byte| [&[0, 0, 0, 3][..], &[byte; 72]].concat()),
    };
    let entries = vec![
        entry(None, 1, RingState::Open, Some(0x77)),
        entry(Some("acme"), 2, RingState::Open, Some(0x88)),
        entry(Some("gone"), 3, RingState::Shredded, None),
    ];
    let sealed = Ring { entries, ..ring.clone() };
    if std::env::var_os("SEMEL_GOLDEN").is_some_and(|write| write == "write") {
        fs::create_dir_all(golden("final")).unwrap();
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, golden("final").join(path.file_name().unwrap())).unwrap();
        }
        fs::write(golden("empty.ring"), ring.encode()).unwrap();
        fs::write(golden("sealed.ring"), sealed.encode()).unwrap();
    }
    let verified = verify(&golden("final"), &mut |_| {}).unwrap();
    assert_eq!(verified.manifest, manifest);
    assert_eq!(&verified.globals, state(true).globals());
    for name in (0..manifest.parts.len()).map(part_name).chain([MANIFEST.to_owned()]) {
        assert!(fs::read(dir.join(&name)).unwrap() == fs::read(golden("final").join(&name)).unwrap(), "{name}");
    }
    assert_eq!(fs::read(golden("empty.ring")).unwrap(), ring.encode());
    assert_eq!(fs::read(golden("sealed.ring")).unwrap(), sealed.encode());
}

/// The examples of FORMAT.md are the golden files.
#[test]
fn the_examples_in_the_document_are_the_golden_files() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backup/FORMAT.md")).unwrap();
    let blocks = |fence: &str| -> Vec<String> {
        let opening = format!("```{fence}\n");
        let blocks = text.split(opening.as_str()).skip(1);
        blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
    };
    assert_eq!(blocks("json"), [fs::read_to_string(golden("final").join(MANIFEST)).unwrap()]);
    let ring: Vec<u8> = blocks("hex")[0]
        .lines()
        .flat_map(|line| line.split('|').next().unwrap().split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    assert_eq!(ring, fs::read(golden("empty.ring")).unwrap());
}

fn fed(bytes: &[u8], dir: &Path) -> bool {
    fs::write(dir.join("f"), bytes).unwrap();
    check_rows(OsDisk.open(&dir.join("f"), Mode::Read).unwrap(), &mut |_| {}).is_ok()
}

/// The rows of a backup: refused, or those that were written.
#[test]
fn fuzz_backup_rows() {
    let temporary = tempfile::tempdir().unwrap();
    let good = written(temporary.path(), true).1;
    let target = Target { name: "backup-rows", good: vec![good.clone()], words: &[], cases: 500 };
    target.run(
        |_| {},
        |bytes| {
            let is_taken = fed(bytes, temporary.path());
            assert!(!is_taken || bytes == good, "another file is taken for a backup");
            is_taken
        },
    );
}

/// What tells of a backup's parts. It has one spelling: what is read is written the same.
#[test]
fn fuzz_backup_manifest() {
    let temporary = tempfile::tempdir().unwrap();
    let text = backup(&temporary.path().join("backup")).encode();
    let words = &["part-000000", "part-999999", "\"format\":", "1", "18446744073709551615", "{", "}", "[", "null", ","];
    let target = Target { name: "backup-manifest", good: vec![text.into_bytes()], words, cases: 3000 };
    target.run(
        |_| {},
        |bytes| {
            let read = Manifest::decode(bytes);
            read.is_ok_and(|manifest| {
                assert_eq!(manifest.encode().as_bytes(), bytes);
                true
            })
        },
    );
}

/// The key ring, with a checksum that fits.
#[test]
fn fuzz_key_ring() {
    use sha2::{Digest, Sha256};

    let tenant = |name: &str| Some(Tenant::parse(name).unwrap());
    let entry = |tenant, wrapped_root| RingEntry { tenant, state: RingState::Open, at_ms: 7, wrapped_root };
    let entries =
        vec![entry(None, Some(vec![8; 76])), entry(tenant("acme"), Some(vec![7; 76])), entry(tenant("b"), None)];
    let rings = [Vec::new(), entries]
        .map(|entries| Ring { lineage_id: LineageId([0x11; 16]), position: Position(7), entries }.encode());
    let target = Target { name: "key-ring", good: rings.to_vec(), words: &["semelrng"], cases: 4000 };
    let mend = |bytes: &mut Vec<u8>| {
        if let Some((content, digest)) = bytes.split_last_chunk_mut::<32>() {
            digest.copy_from_slice(&Sha256::digest(&*content));
        }
    };
    target.run(mend, |bytes| {
        let Ok(ring) = Ring::decode(bytes) else { return false };
        assert_eq!(ring.encode(), bytes, "a ring has one spelling");
        ring.entries.iter().for_each(|entry| drop(entry.stored()));
        true
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever stands in the one file: an error, never a panic, and no allocation that it lies about.
    #[test]
    fn damaged_rows_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(), is_cut in any::<bool>()) {
        thread_local!(static WHOLE: Vec<u8> = written(tempfile::tempdir().unwrap().path(), true).1);
        let mut bytes = WHOLE.with(Clone::clone);
        for (at, to) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *to;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let is_same = WHOLE.with(|whole| *whole == bytes);
        let temporary = tempfile::tempdir().unwrap();
        fs::write(temporary.path().join("f"), &bytes).unwrap();
        let checked = check_rows(OsDisk.open(&temporary.path().join("f"), Mode::Read).unwrap(), &mut |_| {});
        prop_assert_eq!(checked.is_ok(), is_same);
    }

    #[test]
    fn manifests_of_any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Manifest::decode(&bytes);
        let _ = Ring::decode(&bytes);
    }
}
