//! Version 1, byte for byte: what was released can be read for ever, and the picture in `FORMAT.md` is the file.

use std::path::Path;

use bytes::Bytes;

use super::{
    super::{SnapshotMeta, read::SnapshotRows},
    OWNER, write_file,
};
use crate::disk::{OsDisk, fault::FaultDisk};

const GOLDEN: &[u8] = include_bytes!("../../../../tests/golden/snapshot-v1/three-rows.semel");
const DOCUMENT: &str = include_str!("../../FORMAT.md");

fn golden_meta() -> SnapshotMeta {
    SnapshotMeta {
        lineage: OWNER.lineage,
        cluster: OWNER.cluster,
        index: 7,
        term: 3,
        position: 21,
        cluster_time_ms: 1_700_000_000_123,
        log_id: Bytes::from_static(b"\x03\x01\x07"),
        membership: Bytes::from_static(b"abc"),
    }
}

fn golden_rows() -> Vec<(Bytes, Bytes)> {
    [(&b"a"[..], &b"one"[..]), (b"b\0", b""), (b"c", b"\xff\x00three")]
        .into_iter()
        .map(|(key, value)| (Bytes::from_static(key), Bytes::from_static(value)))
        .collect()
}

#[test]
fn version_1_is_written_as_it_was_released() {
    let disk = FaultDisk::new();
    write_file(&disk, "/d/f", &golden_meta(), &golden_rows(), 24);
    let written = disk.contents("/d/f").expect("there");
    assert_eq!(dump(&written), dump(GOLDEN));
}

#[test]
fn version_1_is_read_as_it_was_released() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/snapshot-v1/three-rows.semel");
    let mut rows = SnapshotRows::open(&OsDisk, &path).expect("whole");
    assert_eq!(*rows.meta(), golden_meta());
    assert_eq!(rows.by_ref().collect::<Result<Vec<_>, _>>().expect("whole"), golden_rows());
    assert_eq!((rows.totals().rows, rows.totals().chunks), (3, 2));
}

#[test]
fn the_worked_example_is_the_golden_file() {
    let example: Vec<u8> = DOCUMENT
        .lines()
        .skip_while(|line| *line != "```hex")
        .skip(1)
        .take_while(|line| *line != "```")
        .flat_map(|line| line.split('|').next().expect("a first part").split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits"))
        .collect();
    assert_eq!(dump(&example), dump(GOLDEN));
}

/// Sixteen bytes a line, so that a difference shows where it is.
fn dump(bytes: &[u8]) -> Vec<String> {
    bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x} ")).collect()).collect()
}
