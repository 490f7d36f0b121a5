use super::*;
use crate::disk::Disk;
use crate::limits::{WAL_PAYLOAD_BYTES_MAX, WAL_PEER_MARKS_MAX, WAL_QUEUE_CALLS_MAX, WAL_REPEATED_BYTES_MAX};
use crate::wal::PeerMark;

fn mark(node_id: u64, log: Option<(u64, u64)>) -> PeerMark {
    PeerMark { node_id, disk_id: DiskId([node_id as u8; 16]), vote: Bytes::from_static(b"v"), log }
}

#[test]
fn what_was_written_is_found_again() {
    let mut rig = Rig::new();
    assert_eq!(rig.wal().bounds(), 0..0);
    rig.append(entries(0..5, 1)).unwrap();
    rig.vote("a").unwrap();
    rig.append(vec![entry(5, 2, 0), entry(6, 2, 1000)]).unwrap();
    rig.append(Vec::new()).unwrap();
    rig.vote("b").unwrap();
    let (known, done) = told();
    rig.wal().note_peer(mark(8, Some((4, 1))), done);
    rig.wal().note_peer(mark(9, None), |_| {});
    rig.wal().note_peer(mark(7, None), |_| {});
    rig.wal().forget_peer(7, |_| {});
    rig.settle();
    known.lock().take().unwrap().unwrap();
    let before = rig.all();
    assert_eq!(before.len(), 7);
    for rest in [false, true] {
        if rest {
            rig.rest();
        }
        rig = rig.reopen();
        let found = rig.recovered().clone();
        assert_eq!((found.first, found.next, found.last(), found.last_term), (0, 7, Some(6), 2));
        assert_eq!((found.vote.as_deref(), found.purged), (Some(&b"b"[..]), None));
        assert_eq!(found.peer_marks, [mark(8, Some((4, 1))), mark(9, None)]);
        assert_eq!((found.identity, found.torn), (identity(), None));
        assert_eq!(rig.all(), before);
    }
    assert_eq!((rig.wal().term(4), rig.wal().term(5), rig.wal().term(7)), (Some(1), Some(2), None));
    assert_eq!(rig.damage(), []);
}

#[test]
fn a_log_rolls_through_segments_and_reads_across_them() {
    let mut rig = Rig::new();
    rig.vote("kept").unwrap();
    let mut expected = Vec::new();
    for batch in 0..60 {
        let new: Vec<_> = (batch * 3..batch * 3 + 3).map(|i| entry(i, 1 + i / 50, 200)).collect();
        expected.extend(new.clone());
        rig.append(new).unwrap();
        rig.parts.preparer.step();
    }
    assert!(rig.segments().len() > 15, "{:?}", rig.segments());
    assert_eq!(rig.all(), expected);
    let mut rig = rig.reopen();
    assert_eq!(rig.recovered().vote.as_deref(), Some(&b"kept"[..]), "the vote is repeated in each segment");
    assert_eq!(rig.all(), expected);
    assert_eq!(rig.wal().read(77..90, usize::MAX).unwrap(), expected[77..90]);
    assert_eq!(rig.wal().read(77..90, 450).unwrap(), expected[77..79], "bounded by bytes");
    assert_eq!(rig.wal().read(77..90, 0).unwrap(), expected[77..78], "but never empty");
    assert_eq!(rig.wal().read(170..1000, usize::MAX).unwrap(), expected[170..], "and by the end");
    assert_eq!(rig.wal().read(9..9, usize::MAX).unwrap(), []);
    assert!(matches!(rig.wal().read(180..181, 9), Err(WalError::NotThere { index: 180, first: 0, next: 180 })));
    assert_eq!((0..180).map(|i| rig.wal().term(i).unwrap()).collect::<Vec<_>>(), {
        expected.iter().map(|entry| entry.term).collect::<Vec<_>>()
    });
    rig.append(entries(180..181, 9)).unwrap();
    assert_eq!(rig.damage(), []);
}

#[test]
fn purged_segments_are_used_again_and_their_old_frames_never_come_back() {
    let mut rig = Rig::new();
    rig.vote("v").unwrap();
    let mut next = 0;
    for round in 0..40 {
        rig.append((next..next + 12).map(|i| entry(i, round, 150)).collect()).unwrap();
        next += 12;
        rig.purge(next - 3, round).unwrap();
        rig.parts.preparer.step();
        assert!(rig.segments().len() <= 6, "{:?}", rig.segments());
        if round % 7 == 6 {
            rig = rig.reopen();
            let found = rig.recovered().clone();
            assert_eq!((found.first, found.next, found.torn), (next - 2, next, None));
            assert_eq!(found.purged.unwrap().payload, format!("purged {}", next - 3));
            assert_eq!(found.vote.as_deref(), Some(&b"v"[..]));
        }
        assert_eq!(rig.all(), [entry(next - 2, round, 150), entry(next - 1, round, 150)]);
        assert!(rig.wal().read(next - 3..next, 9).is_err(), "purged");
    }
    let recycled = rig.segments().iter().any(|name| {
        let header = rig.disk.contents(format!("{DIR}/{name}")).unwrap();
        u64::from_le_bytes(header[104..112].try_into().unwrap()) > 0
    });
    assert!(recycled, "some file is in its second life");
    assert_eq!(rig.damage(), []);
}

#[test]
fn entries_behind_a_truncation_are_void_and_their_places_filled_anew() {
    for kept in [None, Some(0), Some(3), Some(17), Some(29)] {
        let mut rig = Rig::new();
        for i in 0..30 {
            rig.append(vec![entry(i, 1, 700)]).unwrap();
        }
        rig.truncate_after(kept).unwrap();
        let next = kept.map_or(0, |kept| kept + 1);
        assert_eq!(rig.wal().bounds(), 0..next, "{kept:?}");
        rig = rig.reopen();
        assert_eq!(rig.wal().bounds(), 0..next, "{kept:?}");
        let mut expected: Vec<_> = (0..next).map(|i| entry(i, 1, 700)).collect();
        for i in next..next + 40 {
            expected.push(entry(i, 2, 300));
            rig.append(vec![entry(i, 2, 300)]).unwrap();
        }
        assert_eq!(rig.all(), expected);
        rig.truncate_after(Some(next + 9)).unwrap();
        rig.append(vec![entry(next + 10, 3, 10)]).unwrap();
        expected.truncate(next as usize + 10);
        expected.push(entry(next + 10, 3, 10));
        assert_eq!(rig.all(), expected);
        rig = rig.reopen();
        assert_eq!(rig.all(), expected, "{kept:?}");
        assert_eq!(rig.recovered().last_term, 3);
        for (at, entry) in expected.iter().enumerate() {
            assert_eq!(rig.wal().term(at as u64), Some(entry.term));
        }
        assert_eq!(rig.damage(), []);
    }
}

#[test]
fn a_purge_past_the_end_lets_the_log_go_on_behind_it() {
    let mut rig = Rig::new();
    for i in 0..20 {
        rig.append(vec![entry(i, 1, 700)]).unwrap();
    }
    rig.purge(99, 7).unwrap();
    rig.purge(50, 6).unwrap();
    assert_eq!(rig.wal().bounds(), 100..100);
    assert!(matches!(rig.append(vec![entry(20, 1, 9)]), Err(WalError::Gap { expected: 100, found: 20 })));
    let mut rig = rig.reopen();
    assert_eq!((rig.recovered().first, rig.recovered().next, rig.recovered().last_term), (100, 100, 7));
    for i in 100..130 {
        rig.append(vec![entry(i, 8, 700)]).unwrap();
    }
    let rig = rig.reopen();
    assert_eq!(rig.all(), (100..130).map(|i| entry(i, 8, 700)).collect::<Vec<_>>());
    assert_eq!(rig.recovered().purged.as_ref().map(|purged| (purged.index, purged.term)), Some((99, 7)));
}

#[test]
fn a_log_without_past_may_begin_anywhere() {
    let mut rig = Rig::new();
    for i in 7..30 {
        rig.append(vec![entry(i, 1, 700)]).unwrap();
    }
    let mut rig = rig.reopen();
    assert_eq!(rig.wal().bounds(), 7..30);
    assert_eq!(rig.all().len(), 23);
    rig.truncate_after(None).unwrap();
    rig.append(vec![entry(7, 2, 9)]).unwrap();
    assert_eq!(rig.reopen().all(), [entry(7, 2, 9)]);
}

#[test]
fn a_truncation_outlives_the_segments_of_what_it_made_void() {
    let mut rig = Rig::new();
    for i in 0..25 {
        rig.append(vec![entry(i, 1, 400)]).unwrap();
    }
    rig.truncate_after(Some(1)).unwrap();
    rig.append(vec![entry(2, 2, 9), entry(3, 2, 9)]).unwrap();
    // The oldest segments go; what remains of their neighbours was void before it was purged.
    rig.purge(10, 2).unwrap();
    rig.parts.preparer.step();
    let mut rig = rig.reopen();
    assert_eq!((rig.recovered().first, rig.recovered().next), (11, 11));
    rig.append(vec![entry(11, 3, 9)]).unwrap();
    assert_eq!(rig.reopen().all(), [entry(11, 3, 9)]);
}

#[test]
fn a_frame_larger_than_a_segment_gets_one_that_fits() {
    let mut rig = Rig::new();
    rig.append(vec![entry(0, 1, 10), entry(1, 1, 50_000), entry(2, 1, 10)]).unwrap();
    rig.append(vec![entry(3, 1, 9000)]).unwrap();
    let rig = rig.reopen();
    assert_eq!(rig.all(), [entry(0, 1, 10), entry(1, 1, 50_000), entry(2, 1, 10), entry(3, 1, 9000)]);
    assert_eq!(rig.damage(), []);
}

#[test]
fn a_log_is_opened_only_by_whom_it_belongs_to() {
    let disk = FaultDisk::new();
    let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let (dir, options) = (Path::new(DIR), Options::small(SMALL));
    assert_eq!(Wal::identity(&disk, dir).unwrap(), None);
    assert!(matches!(Rig::open(&disk, SMALL), Err(WalError::NotCreated(_))));
    drop(Rig::create(&disk, SMALL).unwrap());
    assert_eq!(Wal::identity(&disk, dir).unwrap(), Some(identity()));
    assert!(matches!(Rig::create(&disk, SMALL), Err(WalError::AlreadyCreated(_))));
    let others = [
        Identity { lineage_id: LineageId([9; 16]), ..identity() },
        Identity { cluster_id: ClusterId([9; 16]), ..identity() },
        Identity { node_id: 9, ..identity() },
        Identity { disk_id: DiskId([9; 16]), ..identity() },
    ];
    for other in others {
        let refused = Wal::open_parts(dyn_disk.clone(), dir, other, &options).err().expect("it's another's");
        assert!(matches!(refused, WalError::Identity { found, .. } if *found == identity()));
        assert!(Wal::create_parts(dyn_disk.clone(), dir, other, &options).is_err());
    }
    assert!(Rig::open(&disk, SMALL).is_ok());
    assert!(matches!(Options::new((1 << 20) - 1), Err(WalError::SegmentBytes { .. })));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_of_it_is_written() {
    let mut rig = Rig::new();
    rig.append(entries(0..2, 1)).unwrap();
    assert!(matches!(rig.append(entries(3..4, 1)), Err(WalError::Gap { expected: 2, found: 3 })));
    let gap = vec![entry(2, 1, 1), entry(4, 1, 1)];
    assert!(matches!(rig.append(gap), Err(WalError::Gap { expected: 3, found: 4 })));
    let large = WalEntry { index: 2, term: 1, payload: vec![0; WAL_PAYLOAD_BYTES_MAX + 1].into() };
    assert!(matches!(rig.append(vec![large]), Err(WalError::TooLarge { .. })));
    let long = "v".repeat(WAL_REPEATED_BYTES_MAX + 1);
    assert!(matches!(rig.vote(&long), Err(WalError::TooLarge { .. })));
    for node in 0..WAL_PEER_MARKS_MAX as u64 {
        rig.wal().note_peer(mark(node, None), |done| done.unwrap());
    }
    rig.wal().note_peer(mark(5, Some((1, 1))), |done| done.unwrap());
    rig.wal().note_peer(mark(1000, None), |done| assert!(matches!(done, Err(WalError::Full))));
    rig.append(entries(2..3, 1)).unwrap();
    assert_eq!(rig.reopen().all(), entries(0..3, 1));
}

#[test]
fn a_full_queue_refuses_and_room_waits() {
    let mut rig = Rig::new();
    for i in 0..WAL_QUEUE_CALLS_MAX as u64 {
        rig.wal().append(vec![WalEntry { index: i, term: 1, payload: Bytes::new() }], |done| done.unwrap());
    }
    let (refused, done) = told();
    rig.wal().append(entries(WAL_QUEUE_CALLS_MAX as u64..WAL_QUEUE_CALLS_MAX as u64 + 1, 1), done);
    assert!(matches!(refused.lock().take(), Some(Err(WalError::Full))));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let wal = rig.wal().clone();
    runtime.block_on(async {
        let room = wal.room();
        tokio::pin!(room);
        tokio::select! {
            biased;
            _ = &mut room => panic!("there is no room"),
            () = std::future::ready(()) => {}
        }
        rig.settle();
        room.await.unwrap();
    });
    rig.append(entries(WAL_QUEUE_CALLS_MAX as u64..WAL_QUEUE_CALLS_MAX as u64 + 1, 1)).unwrap();
}

#[test]
fn the_dump_shows_every_frame() {
    let mut rig = Rig::new();
    rig.vote("v").unwrap();
    for i in 0..10 {
        rig.append(vec![entry(i, 1, 700)]).unwrap();
    }
    rig.truncate_after(Some(8)).unwrap();
    rig.purge(1, 1).unwrap();
    rig.wal().note_peer(mark(5, Some((1, 1))), |_| {});
    rig.rest();
    rig.parts.preparer.step();
    let dump = |path: &str| {
        let mut lines = Vec::new();
        let payload =
            |kind, bytes: &[u8]| format!("{kind:?}:{}", String::from_utf8_lossy(&bytes[..3.min(bytes.len())]));
        crate::wal::inspect(&rig.disk, Path::new(path), &payload, &mut |line| lines.push(line)).map(|()| lines)
    };
    let text = dump(DIR).unwrap().join("\n");
    for part in [
        "entry      index 9 term 1",
        "Vote:v",
        "truncate   from 9",
        "purge      index 1",
        "peer mark  node 5",
        "seal",
        "node 3, cluster 0202",
        "footer: entries 2..4",
        "prepared, was segment 1",
        "crc ok",
        "not sealed",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains("DAMAGED") && !text.contains("torn"), "{text}");
    assert_eq!(dump(&path_of(2)).unwrap().iter().filter(|line| line.starts_with("segment")).count(), 1);
    assert!(dump("/data").is_err());
    rig.disk.flip_bit(path_of(2), 4200, 0);
    assert!(dump(&path_of(2)).unwrap().join("\n").contains("DAMAGED"));
}
