//! Reading every byte: in steps, of a running log and of a stopped one.

use super::*;
use crate::{
    limits::SCRUB_STEP_BYTES,
    wal::{Flaw, Verified, verify},
};

/// Segments that take several steps to read, the first of them sealed.
fn large() -> Rig {
    let mut rig = Rig::create(&FaultDisk::new(), 3 * SCRUB_STEP_BYTES).expect("a fresh disk takes a log");
    for index in 0..9 {
        rig.append(vec![entry(index, 1, 600 << 10)]).expect("appended");
    }
    rig.rest();
    rig
}

#[test]
fn a_pass_reads_all_of_it_in_steps() {
    let rig = large();
    assert_eq!(rig.segments().len(), 2);
    let steps: Vec<u64> = rig.wal().scrub().map(|step| step.expect("the disk reads").bytes).collect();
    assert!(steps.len() >= 5, "{steps:?}");
    assert!(steps.iter().all(|bytes| *bytes <= SCRUB_STEP_BYTES + (700 << 10)), "{steps:?}");
    assert!(steps.iter().sum::<u64>() > 9 * (600 << 10), "{steps:?}");
}

#[test]
fn damage_in_any_step_is_told_and_the_pass_goes_on() {
    let rig = large();
    // In the third entry of the first segment, and in the second segment's first.
    assert!(rig.disk.flip_bit(path_of(1), 4096 + 2 * (600 << 10) + 5000, 1));
    assert!(rig.disk.flip_bit(path_of(2), 4096 + 5000, 1));
    let found = rig.damage();
    let files: Vec<_> = found.iter().map(|damage| damage.file.display().to_string()).collect();
    assert_eq!(files, [path_of(1), path_of(2)]);
    assert!(found[0].offset > SCRUB_STEP_BYTES && matches!(found[0].what, Flaw::Frame(_)), "{found:?}");
}

#[test]
fn a_stopped_log_is_verified_without_a_change() {
    let mut rig = Rig::new();
    for index in 0..30 {
        rig.append(vec![entry(index, 1, 400)]).unwrap();
    }
    // Behind the purge no file of an earlier life is used: what lies behind its frames is a tear.
    rig.purge(11, 1).unwrap();
    rig.rest();
    let disk = rig.disk.copy();
    let bounds = rig.wal().bounds();
    let before: Vec<_> = disk.paths().into_iter().map(|path| (disk.contents(&path), path)).collect();
    let Verified { first, next, torn_at, segments, bytes, identity: of } = verify(&disk, Path::new(DIR)).unwrap();
    assert_eq!((first..next, torn_at, of), (bounds, None, identity()));
    assert!(segments >= 3 && bytes > 18 * 400, "{segments} {bytes}");
    // A tear at the end of the newest segment is no damage, and stays as it is.
    let newest = disk.paths().into_iter().next_back().expect("a segment");
    let end = rig.wal().end();
    assert!(disk.overwrite(&newest, end, b"half a frame that no sync ever covered"));
    assert_eq!(verify(&disk, Path::new(DIR)).unwrap().torn_at, Some(end));
    assert!(disk.overwrite(&newest, end, &[0; 38]));
    let after: Vec<_> = disk.paths().into_iter().map(|path| (disk.contents(&path), path)).collect();
    assert!(before == after, "verifying changes nothing");
    assert!(matches!(verify(&disk, Path::new("/elsewhere")), Err(WalError::NotCreated(_))));
}
