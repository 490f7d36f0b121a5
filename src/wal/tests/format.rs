//! The bytes of version 1: golden files, the example of FORMAT.md, and what a decoder does with anything else.

use proptest::prelude::*;

use super::*;
use crate::fuzz::Target;
use crate::wal::PeerMark;
use crate::wal::frame::{Frame, HEAD_BYTES, Kind, NoFrame, SALT_AT, announced_bytes, decode, frame_bytes};
use crate::wal::segment::{Footer, HEADER_BYTES, Header, HeaderRead, Point, file_name, sequence_of};

const SALT: u32 = 0x5a17_c0de;

macro_rules! golden {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/golden/wal-v1/", $name, ".bin")).as_slice()
    };
}

fn frame(kind: Kind, index: u64, term: u64, payload: &[u8]) -> Frame<'_> {
    Frame { kind, index, term, durable_upto: 4096, payload }
}

fn mark(log: Option<(u64, u64)>) -> PeerMark {
    PeerMark { node_id: 2, disk_id: DiskId([0xd2; 16]), vote: Bytes::from_static(b"vote of 2"), log }
}

fn bytes_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(SALT, &mut out);
    out
}

fn header() -> Header {
    Header {
        identity: Identity {
            lineage_id: LineageId([0x11; 16]),
            cluster_id: ClusterId([0x22; 16]),
            node_id: 3,
            disk_id: DiskId([0x44; 16]),
        },
        sequence: 7,
        first_index: 1000,
        previous_term: 4,
        salt: SALT,
        recycled_from: 2,
        bytes: 64 << 20,
    }
}

fn footer() -> Footer {
    Footer {
        sequence: 7,
        salt: SALT,
        first: 1000,
        next: 1200,
        last_term: 5,
        end: 70_000,
        terms: vec![(1000, 4), (1100, 5)],
        points: vec![Point { index: 1000, offset: 4136 }],
    }
}

#[test]
fn frames_and_headers_are_the_golden_bytes_and_are_read_from_them() {
    let (known, none, gone) = (mark(Some((9, 4))).payload(false), mark(None).payload(false), mark(None).payload(true));
    let frames = [
        (golden!("entry"), frame(Kind::Entry, 1000, 4, b"hello, log")),
        (golden!("vote"), frame(Kind::Vote, 0, 0, b"vote of 3")),
        (golden!("purge"), frame(Kind::Purge, 999, 4, b"purged")),
        (golden!("truncate"), frame(Kind::Truncate, 1001, 0, b"")),
        (golden!("seal"), frame(Kind::Seal, 0, 0, b"")),
        (golden!("peer_mark"), frame(Kind::PeerMark, 9, 4, &known)),
        (golden!("peer_mark_without_log"), frame(Kind::PeerMark, 0, 0, &none)),
        (golden!("peer_mark_forgotten"), frame(Kind::PeerMark, 0, 0, &gone)),
    ];
    for (golden, frame) in frames {
        assert_eq!(decode(golden, SALT), Ok(frame));
        assert_eq!(bytes_of(&frame), golden, "{frame:?}");
    }
    assert_eq!(PeerMark::read(&frame(Kind::PeerMark, 9, 4, &known)), Some((mark(Some((9, 4))), false)));
    assert_eq!(PeerMark::read(&frame(Kind::PeerMark, 0, 0, &gone)), Some((mark(None), true)));
    assert_eq!(header().encode(), golden!("header"));
    let block: &[u8; HEADER_BYTES] = golden!("header").try_into().expect("one block");
    assert_eq!(Header::read(block), HeaderRead::Sound(header()));
    assert_eq!(footer().encode(), golden!("footer"));
    assert_eq!(Footer::decode(golden!("footer")), Some(footer()));
}

#[test]
fn the_worked_example_is_the_golden_entry() {
    let text = include_str!("../FORMAT.md");
    let block = text.split("```hex").nth(1).and_then(|rest| rest.split("```").next()).expect("there is an example");
    let hex: String = block.lines().filter_map(|line| line.split_once(": ")).map(|(_, hex)| hex.trim()).collect();
    let digits: Vec<u32> = hex.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).expect("hex")).collect();
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect();
    assert_eq!(bytes, golden!("entry"));
}

#[test]
fn a_whole_log_of_version_1_is_read() {
    // Written by `Rig` once: vote, three entries, a truncation, an entry, a purge, a mark, a seal.
    let segment = golden!("segment");
    let disk = FaultDisk::new();
    use crate::disk::{Disk, Mode};
    disk.create_dir_all(Path::new(DIR)).unwrap();
    let file = disk.open(Path::new(&path_of(1)), Mode::CreateNew).unwrap();
    file.zero_fill(0, SMALL).unwrap();
    file.write_at(segment, 0).unwrap();
    let rig = Rig::open(&disk, SMALL).unwrap();
    let found = rig.recovered();
    assert_eq!((found.first, found.next, found.last_term, found.torn.clone()), (1, 3, 2, None));
    assert_eq!(found.vote.as_deref(), Some(&b"v1"[..]));
    assert_eq!(found.peer_marks, [mark(Some((1, 1)))]);
    assert_eq!(rig.all(), [entry(1, 1, 40), entry(2, 2, 40)]);
    assert_eq!(whole_log(), segment, "and written as it was");
}

fn whole_log() -> Vec<u8> {
    let mut rig = Rig::new();
    rig.vote("v1").unwrap();
    rig.append(entries(0..3, 1)).unwrap();
    rig.truncate_after(Some(1)).unwrap();
    rig.append(entries(2..3, 2)).unwrap();
    rig.purge(0, 1).unwrap();
    rig.wal().note_peer(mark(Some((1, 1))), |_| {});
    rig.rest();
    let end = rig.wal().end() as usize;
    rig.disk.contents(path_of(1)).unwrap()[..end].to_vec()
}

#[test]
fn a_newer_version_is_refused_never_skipped() {
    let mut newer = bytes_of(&frame(Kind::Entry, 1, 1, b"x"));
    newer[32] = 7;
    let crc = crc32fast::hash(&newer[4..]);
    newer[..4].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode(&newer, SALT), Err(NoFrame::Kind(7)));
    let mut rig = Rig::new();
    rig.append(entries(0..1, 1)).unwrap();
    let mut unknown = Vec::new();
    frame(Kind::Seal, 0, 0, b"").encode(identity().salt(1), &mut unknown);
    unknown[32] = 7;
    let crc = crc32fast::hash(&unknown[4..]);
    unknown[..4].copy_from_slice(&crc.to_le_bytes());
    assert!(rig.disk.overwrite(path_of(1), rig.wal().end(), &unknown));
    let error = Rig::open(&rig.disk, SMALL).err().expect("a frame of a newer version");
    assert!(error.to_string().contains("kind 7") && error.to_string().contains("newer"), "{error}");
    let mut block = header().encode();
    block[8] = 2;
    let crc_at = HEADER_BYTES - 4;
    let crc = crc32fast::hash(&block[..crc_at]);
    block[crc_at..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(Header::read(block.as_slice().try_into().expect("a block")), HeaderRead::Version(2));
    assert!(rig.disk.overwrite(path_of(1), 0, &block));
    let error = Rig::open(&rig.disk, SMALL).err().expect("a header of a newer version");
    assert!(error.to_string().contains("newer version of the format (2)"), "{error}");
}

#[test]
fn names_are_sequences() {
    assert_eq!(sequence_of(&file_name(42)), Some(42));
    assert_eq!(sequence_of(&file_name(u64::MAX)), Some(u64::MAX));
    for other in ["1.wal", "0000000000000000000x.wal", "+0000000000000000001.wal", "99999999999999999999.wal", "lock"] {
        assert_eq!(sequence_of(other), None, "{other}");
    }
}

/// One frame, with a checksum that fits where its length can be one.
#[test]
fn fuzz_wal_frame() {
    let kinds = [Kind::Entry, Kind::Vote, Kind::Purge, Kind::Truncate, Kind::Seal, Kind::PeerMark];
    let payload = mark(Some((3, 4))).payload(false);
    let good = kinds.into_iter().map(|kind| {
        let mut bytes = Vec::new();
        frame(kind, 3, 4, &payload).encode(SALT, &mut bytes);
        bytes
    });
    let target = Target { name: "wal-frame", good: good.collect(), words: &[], cases: 4000 };
    let mend = |bytes: &mut Vec<u8>| {
        if bytes.len() >= HEAD_BYTES {
            bytes[SALT_AT..SALT_AT + 4].copy_from_slice(&SALT.to_le_bytes());
        }
        let whole = announced_bytes(bytes, SALT).ok().filter(|whole| *whole <= bytes.len() as u64);
        if let Some(whole) = whole {
            let crc = crc32fast::hash(&bytes[4..whole as usize]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        }
    };
    target.run(mend, |bytes| {
        let mut block = [0; HEADER_BYTES];
        let some = bytes.len().min(HEADER_BYTES);
        block[..some].copy_from_slice(&bytes[..some]);
        let _ = Header::read(&block);
        let _ = Footer::decode(bytes);
        let read = decode(bytes, SALT);
        read.is_ok_and(|frame| frame.kind != Kind::PeerMark || PeerMark::read(&frame).is_some())
    });
}

/// A segment as it lies on the disk: opened, or refused, and what is read is what was written.
#[test]
fn fuzz_wal_segment() {
    let mut rig = Rig::new();
    rig.append(entries(0..9, 1)).unwrap();
    rig.vote("the vote").unwrap();
    rig.rest();
    let disk = rig.disk.copy();
    let mut good = disk.contents(path_of(1)).unwrap();
    good.truncate(SMALL as usize);
    Target { name: "wal-segment", good: vec![good], words: &[], cases: 200 }.run(
        |_| {},
        |bytes| {
            let disk = disk.copy();
            let mut whole = bytes.to_vec();
            whole.resize(SMALL as usize, 0);
            disk.overwrite(path_of(1), 0, &whole);
            let Ok(opened) = Rig::open(&disk, SMALL) else { return false };
            if let Ok(found) = opened.wal().read(opened.wal().bounds(), usize::MAX) {
                assert_eq!(found, entries(0..found.len() as u64, 1));
            }
            true
        },
    );
}

proptest! {
    #[test]
    fn frames_come_back_whole_and_cut_ones_never(
        kind in 1..=6_u8, index: u64, term: u64, durable_upto: u64, salt: u32,
        payload in proptest::collection::vec(any::<u8>(), 0..200), cut in 0..400_usize, flip in 0..3000_usize,
    ) {
        let kind = [Kind::Entry, Kind::Vote, Kind::Purge, Kind::Truncate, Kind::Seal, Kind::PeerMark][kind as usize - 1];
        let frame = Frame { kind, index, term, durable_upto, payload: &payload };
        let mut bytes = Vec::new();
        frame.encode(salt, &mut bytes);
        prop_assert_eq!(bytes.len() as u64, frame_bytes(payload.len()));
        prop_assert_eq!(decode(&bytes, salt), Ok(frame));
        prop_assert_eq!(decode(&bytes, salt.wrapping_add(1)), Err(NoFrame::Salt));
        let cut = cut % bytes.len();
        prop_assert!(decode(&bytes[..cut], salt).is_err());
        let flip = flip % (bytes.len() * 8);
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert!(decode(&bytes, salt).is_err());
    }

    #[test]
    fn decoders_take_anything(bytes in proptest::collection::vec(any::<u8>(), 0..300), salt: u32) {
        let _ = decode(&bytes, salt);
        prop_assert_eq!(Footer::decode(&bytes), None);
        let _ = PeerMark::read(&frame(Kind::PeerMark, 0, 0, &bytes));
        let mut block = [0; HEADER_BYTES];
        block[..bytes.len()].copy_from_slice(&bytes);
        let _ = Header::read(&block);
    }

    #[test]
    fn a_directory_of_anything_is_opened_or_refused_but_never_trips(
        bytes in proptest::collection::vec(any::<u8>(), 0..600), at in 0..6100_u64,
    ) {
        let mut rig = Rig::new();
        rig.append(entries(0..9, 1)).unwrap();
        rig.rest();
        let room = (SMALL - at).min(bytes.len() as u64) as usize;
        rig.disk.overwrite(path_of(1), at, &bytes[..room]);
        // What takes the seal along with the last frames looks like a tear, and is reported as one.
        if let Ok(opened) = Rig::open(&rig.disk, SMALL) {
            let found = opened.all();
            prop_assert_eq!(&found[..], &entries(0..found.len() as u64, 1)[..]);
            prop_assert!(found.len() == 9 || opened.recovered().torn.is_some());
        }
    }
}
