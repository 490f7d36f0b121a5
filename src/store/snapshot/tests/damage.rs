//! Nothing that was cut, flipped, added or moved is taken for a snapshot.

use std::path::Path;

use bytes::Bytes;

use super::{
    super::{
        SnapshotError,
        format::{self, Damage, FRAME_HEAD_BYTES, FrameKind, PREAMBLE_BYTES, Totals},
        read,
    },
    meta, rows, write_file,
};
use crate::{
    disk::{Disk, Mode, fault::FaultDisk},
    fuzz::Target,
    limits::SNAPSHOT_FRAME_BYTES_MAX,
};

const FILE: &str = "/node/snapshots/file";

/// Nine rows in three chunks.
fn whole() -> (FaultDisk, Vec<u8>) {
    let disk = FaultDisk::new();
    write_file(&disk, FILE, &meta(7), &rows(9, 5), 80);
    let (found, bytes) = read::verify(&disk, Path::new(FILE)).expect("whole");
    assert_eq!(found, meta(7));
    let contents = disk.contents(FILE).expect("there");
    assert_eq!(bytes, contents.len() as u64);
    (disk, contents)
}

fn verdict(contents: &[u8]) -> Result<(), SnapshotError> {
    let disk = FaultDisk::new();
    disk.create_dir_all(Path::new(FILE).parent().expect("it has one")).expect("created");
    disk.open(Path::new(FILE), Mode::CreateNew).expect("created").write_at(contents, 0).expect("written");
    read::verify(&disk, Path::new(FILE)).map(|_| ())
}

fn damage(contents: &[u8]) -> Damage {
    match verdict(contents) {
        Err(SnapshotError::Damaged { damage, .. }) => damage,
        other => panic!("damage was to be found, not {other:?}"),
    }
}

/// The frames of a file, heads included.
fn frames(contents: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = &contents[PREAMBLE_BYTES..];
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[..4].try_into().expect("four bytes")) as usize + FRAME_HEAD_BYTES;
        frames.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    frames
}

/// A file of these frames with a footer that counts right and a total that fits: only what a test changed is wrong.
fn sealed(frames: &[Vec<u8>], totals: Totals) -> Vec<u8> {
    let mut contents = format::preamble().to_vec();
    contents.extend(frames.concat());
    let totals = Totals { crc: crc32fast::hash(&contents), ..totals };
    contents.extend(frame(FrameKind::Footer, |out| format::put_totals(out, &totals)));
    contents
}

fn frame(kind: FrameKind, body: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    format::begin_frame(&mut out, kind);
    body(&mut out);
    format::end_frame(&mut out);
    out
}

fn totals_of(rows: &[(Bytes, Bytes)], chunks: u64) -> Totals {
    let row_bytes = rows.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum();
    Totals { rows: rows.len() as u64, chunks, row_bytes, crc: 0 }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let (_, contents) = whole();
    for len in 0..contents.len() {
        assert_eq!(damage(&contents[..len]), Damage::Short, "cut to {len} bytes");
    }
}

#[test]
fn a_file_with_any_bit_flipped_is_refused() {
    let (_, contents) = whole();
    let mut kinds = std::collections::BTreeSet::new();
    for offset in 0..contents.len() {
        for bit in 0..8 {
            let mut flipped = contents.clone();
            flipped[offset] ^= 1 << bit;
            kinds.insert(format!("{:?}", damage(&flipped)).split('(').next().map(str::to_owned));
        }
    }
    assert!(kinds.len() >= 4, "flips meet the magic, lengths, ends and checksums: {kinds:?}");
}

#[test]
fn bytes_after_the_footer_are_refused() {
    let (_, mut contents) = whole();
    contents.push(0);
    assert_eq!(damage(&contents), Damage::Trailing);
}

#[test]
fn zeros_in_place_of_a_part_are_refused() {
    let (_, contents) = whole();
    for from in (0..contents.len()).step_by(16) {
        let mut zeroed = contents.clone();
        let to = (from + 16).min(contents.len());
        zeroed[from..to].fill(0);
        if zeroed != contents {
            verdict(&zeroed).expect_err("zeros are no data");
        }
    }
}

#[test]
fn a_chunk_lost_repeated_or_moved_is_refused() {
    let (_, contents) = whole();
    let all = frames(&contents);
    assert_eq!(all.len(), 5, "header, three chunks, footer");
    let rebuilt = |order: &[usize]| {
        let mut bytes = contents[..PREAMBLE_BYTES].to_vec();
        order.iter().for_each(|place| bytes.extend(&all[*place]));
        bytes
    };
    verdict(&rebuilt(&[0, 1, 2, 3, 4])).expect("in order it is the file itself");
    assert_eq!(damage(&rebuilt(&[0, 1, 3, 4])), Damage::Total);
    assert_eq!(damage(&rebuilt(&[0, 1, 2, 2, 3, 4])), Damage::Order);
    assert_eq!(damage(&rebuilt(&[0, 2, 1, 3, 4])), Damage::Order);
    assert_eq!(damage(&rebuilt(&[1, 0, 2, 3, 4])), Damage::Kind(FrameKind::Rows as u8));
    assert_eq!(damage(&rebuilt(&[0, 0, 1, 2, 3, 4])), Damage::Kind(FrameKind::Header as u8));
    assert_eq!(damage(&rebuilt(&[0, 1, 2, 3])), Damage::Short);
    assert_eq!(damage(&rebuilt(&[0, 1, 2, 3, 4, 4])), Damage::Trailing);
}

#[test]
fn a_footer_that_counts_something_else_is_refused() {
    let (_, contents) = whole();
    let all = frames(&contents);
    let right = totals_of(&rows(9, 5), 3);
    verdict(&sealed(&all[..4], right)).expect("with the right counts it is the file itself");
    for wrong in [
        Totals { rows: right.rows + 1, ..right },
        Totals { chunks: right.chunks - 1, ..right },
        Totals { row_bytes: right.row_bytes + 1, ..right },
    ] {
        assert_eq!(damage(&sealed(&all[..4], wrong)), Damage::Count);
    }
    assert_eq!(damage(&sealed(&all[..3], right)), Damage::Count);
}

#[test]
fn frames_with_a_right_checksum_and_wrong_content_are_refused() {
    let header = frame(FrameKind::Header, |out| format::put_meta(out, &meta(7)));
    let of =
        |body: Vec<u8>| sealed(&[header.clone(), frame(FrameKind::Rows, |out| out.extend(body))], Totals::default());
    assert_eq!(damage(&of(vec![])), Damage::Fields, "a chunk of no rows");
    assert_eq!(damage(&of(vec![1, 0, 1])), Damage::Fields, "half a row's head");
    assert_eq!(damage(&of(vec![1, 0, 1, 0, 0, 0, b'k'])), Damage::Fields, "a row without its value");
    let mut huge = vec![1, 0];
    huge.extend(u32::MAX.to_le_bytes());
    huge.push(b'k');
    assert_eq!(damage(&of(huge)), Damage::Fields, "a value larger than its chunk");

    let mut unknown = frame(FrameKind::Rows, |out| out.extend([0; 9]));
    unknown[FRAME_HEAD_BYTES] = 9;
    format::end_frame(&mut unknown);
    assert_eq!(damage(&sealed(&[header.clone(), unknown], Totals::default())), Damage::Kind(9));

    let mut long = frame(FrameKind::Header, |out| format::put_meta(out, &meta(7)));
    long.push(0);
    format::end_frame(&mut long);
    assert_eq!(damage(&sealed(&[long], Totals::default())), Damage::Fields, "a header with a byte too many");
}

#[test]
fn a_length_beyond_the_bound_is_refused_before_it_is_allocated() {
    let header = frame(FrameKind::Header, |out| format::put_meta(out, &meta(7)));
    for len in [0, SNAPSHOT_FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
        let mut contents = format::preamble().to_vec();
        contents.extend(&header);
        contents.extend(len.to_le_bytes());
        contents.extend([0; 64]);
        assert_eq!(damage(&contents), Damage::Length(u64::from(len)));
    }
}

#[test]
fn a_newer_version_is_not_damage() {
    let (_, mut contents) = whole();
    contents[8] = 2;
    let crc = crc32fast::hash(&contents[..12]);
    contents[12..16].copy_from_slice(&crc.to_le_bytes());
    let found = verdict(&contents);
    assert!(matches!(found, Err(SnapshotError::UnknownVersion { version: 2, .. })), "{found:?}");
}

#[test]
fn an_error_is_the_last_that_is_read() {
    let (disk, contents) = whole();
    disk.flip_bit(FILE, contents.len() as u64 - 1, 0);
    let mut rows = read::SnapshotRows::open(&disk, Path::new(FILE)).expect("the header is whole");
    assert_eq!(rows.by_ref().filter(Result::is_ok).count(), 9, "the rows are whole, the footer is not");
    assert!(rows.next().is_none());
}

/// A file of any content, with checksums of its frames that fit: it is refused, or it is the one that was written.
#[test]
fn fuzz_snapshot() {
    let (_, contents) = whole();
    let frames_mended = |bytes: &mut Vec<u8>| {
        let mut at = PREAMBLE_BYTES;
        while let Some(head) = bytes.get(at..at + FRAME_HEAD_BYTES) {
            let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
            let end = at.saturating_add(FRAME_HEAD_BYTES).saturating_add(length).min(bytes.len());
            // A length that lies is put right half of the time: what stands behind it is reached then.
            if length.is_multiple_of(2) || end < bytes.len() {
                format::end_frame(&mut bytes[at..end]);
            }
            at = end;
        }
    };
    let target = Target { name: "snapshot", good: vec![contents.clone()], words: &[], cases: 1500 };
    target.run(frames_mended, |bytes| {
        let found = verdict(bytes);
        // The footer's checksum is over the whole file.
        assert!(found.is_err() || bytes == contents, "another file is taken for a snapshot");
        found.is_ok()
    });
}
