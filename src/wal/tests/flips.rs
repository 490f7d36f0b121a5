//! One bit turned over anywhere: it's seen, or it changes nothing.

use super::*;

/// A log of several sealed segments and one open one, in their first and later lives, sealed by a seal frame.
fn specimen() -> (FaultDisk, Vec<WalEntry>, Recovered) {
    let mut rig = Rig::new();
    let mut next = 0;
    for round in 0..9 {
        rig.append((next..next + 3).map(|i| entry(i, round, 400)).collect()).unwrap();
        next += 3;
        if round == 3 {
            rig.purge(next - 2, round).unwrap();
        }
        rig.parts.preparer.step();
    }
    rig.vote("the vote").unwrap();
    let mark = crate::wal::PeerMark { node_id: 4, disk_id: DiskId([7; 16]), vote: Bytes::new(), log: Some((1, 1)) };
    rig.wal().note_peer(mark, |_| {});
    rig.truncate_after(Some(next - 2)).unwrap();
    rig.append(vec![entry(next - 1, 9, 300)]).unwrap();
    rig.rest();
    let rig = rig.reopen();
    let all = rig.all();
    (rig.disk.copy(), all, rig.recovered().clone())
}

#[test]
fn a_flipped_bit_is_seen_or_harmless_wherever_it_is() {
    let (disk, all, recovered) = specimen();
    let names = segments(&disk);
    assert!(names.len() >= 4, "{names:?}");
    let (mut refused, mut scrubbed, mut harmless) = (0, 0, 0);
    for name in names {
        let path = format!("{DIR}/{name}");
        let content = disk.contents(&path).unwrap();
        for offset in 0..content.len() as u64 {
            // Of long runs of zeros some places are enough.
            let near = &content[(offset as usize).saturating_sub(48)..content.len().min(offset as usize + 48)];
            if near.iter().all(|byte| *byte == 0) && offset % 61 != 0 {
                continue;
            }
            let disk = disk.copy();
            assert!(disk.flip_bit(&path, offset, (offset % 8) as u8));
            let verified = crate::wal::verify(&disk, Path::new(DIR));
            let rig = match Rig::open(&disk, SMALL) {
                Err(WalError::Damaged(_) | WalError::Identity { .. }) => {
                    refused += 1;
                    assert!(verified.is_err(), "{name} at {offset}");
                    continue;
                }
                Err(error) => panic!("{name} at {offset}: {error}"),
                Ok(rig) => rig,
            };
            if !rig.damage().is_empty() {
                scrubbed += 1;
                assert!(matches!(verified, Err(WalError::Damaged(_))), "{name} at {offset}: {verified:?}");
                // What is damaged is never read as something else.
                if let Ok(read) = rig.wal().read(rig.wal().bounds(), usize::MAX) {
                    assert_eq!(read, all, "{name} at {offset}");
                }
                continue;
            }
            harmless += 1;
            assert!(verified.is_ok(), "{name} at {offset}: {verified:?}");
            assert_eq!(rig.all(), all, "{name} at {offset}");
            let found = Recovered { torn: None, ..rig.recovered().clone() };
            assert_eq!(found, recovered, "{name} at {offset}");
        }
    }
    assert!(refused > 1000 && scrubbed > 1000 && harmless > 100, "{refused} {scrubbed} {harmless}");
}

#[test]
fn a_flip_in_a_sealed_entry_is_reported_by_whoever_reads_it() {
    let (disk, all, _) = specimen();
    let first = segments(&disk)[0].clone();
    let path = format!("{DIR}/{first}");
    let content = disk.contents(&path).unwrap();
    let needle = format!("{}@", all[0].index).into_bytes();
    let at = content.windows(needle.len()).position(|window| window == needle).expect("the entry lies there");
    disk.flip_bit(&path, at as u64 + 100, 0);
    let rig = Rig::open(&disk, SMALL).unwrap();
    let error = rig.wal().read(all[0].index..all[0].index + 1, 9).unwrap_err();
    assert!(matches!(&error, WalError::Damaged(damage) if damage[0].file == Path::new(&path)), "{error}");
    assert_eq!(rig.damage().len(), 1);
    assert_eq!(rig.wal().read(all[9].index..u64::MAX, usize::MAX).unwrap(), all[9..]);
}
