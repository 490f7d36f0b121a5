use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::{
    fuzz::Target,
    id::{Time, hex},
    records::command,
};

const GOLDEN: &str = "tests/golden/raft-1.txt";

fn member(name: &str, disk: u8) -> Member {
    Member {
        peer_addr: format!("{name}:7171"),
        client_addr: format!("{name}.example:7070"),
        disk_id: DiskId([disk; 16]),
    }
}

fn joint() -> Membership {
    let members = BTreeMap::from([(1, member("a", 1)), (2, member("b", 2)), (3, member("c", 3)), (9, member("d", 9))]);
    Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([1, 3])], members).unwrap()
}

fn tick(time: u64) -> Proposal {
    Proposal::new(command::Entry { time: Time(time), commands: Vec::new() })
}

/// Every format, under the name by which the golden file lists it.
fn samples() -> Vec<(&'static str, Bytes)> {
    let entry = |payload| encode_entry(&LogEntry { log_id: log_id(7, 2, 900), payload });
    let vote = |committed| encode_vote(&Vote { leader_id: LeaderId { term: 7, node_id: 2 }, committed });
    vec![
        ("entry blank", entry(Payload::Blank)),
        ("entry normal", entry(Payload::Normal(tick(1_700_000_000_000)))),
        ("entry membership", entry(Payload::Membership(joint()))),
        ("vote granted", vote(false)),
        ("vote committed", vote(true)),
        ("log id", encode_log_id(&log_id(7, 2, 900))),
        ("membership none", encode_stored_membership(&StoredMembership::default())),
        ("membership joint", encode_stored_membership(&StoredMembership::new(Some(log_id(7, 2, 900)), joint()))),
        ("member", encode_member(&member("a", 1))),
    ]
}

fn unhex(digits: &str) -> Bytes {
    let digits: Vec<u8> = digits.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn what_is_written_is_the_committed_golden_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let written: String = samples().iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
}

#[test]
fn the_golden_bytes_are_read_back() {
    let samples = samples();
    let bytes = |name: &str| samples.iter().find(|(sample, _)| *sample == name).unwrap().1.clone();
    let entry = |name: &str| decode_entry(900, 7, &bytes(name)).unwrap();
    assert_eq!(entry("entry blank"), LogEntry { log_id: log_id(7, 2, 900), payload: Payload::Blank });
    assert_eq!(entry("entry normal").payload, Payload::Normal(tick(1_700_000_000_000)));
    assert_eq!(entry("entry membership").payload, Payload::Membership(joint()));
    assert!(decode_vote(&bytes("vote committed")).unwrap().committed);
    assert_eq!(decode_log_id(&bytes("log id")).unwrap(), log_id(7, 2, 900));
    assert_eq!(decode_stored_membership(&bytes("membership none")).unwrap(), StoredMembership::default());
    let stored = decode_stored_membership(&bytes("membership joint")).unwrap();
    assert_eq!(stored, StoredMembership::new(Some(log_id(7, 2, 900)), joint()));
    assert_eq!(decode_member(&bytes("member")).unwrap(), member("a", 1));
}

/// The worked example of FORMAT.md.
#[test]
fn the_worked_example_decodes() {
    let text = include_str!("../FORMAT.md");
    let example = text.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let digits: String = example.lines().map(|line| line.split('|').next().expect("a line has a first part")).collect();
    let entry = decode_entry(5, 3, &unhex(&digits)).unwrap();
    let members = BTreeMap::from([(1, Member { disk_id: DiskId([0xd1; 16]), ..member("n1", 0) })]);
    let expected = Membership::new(vec![BTreeSet::from([1])], members).unwrap();
    assert_eq!(entry.log_id, log_id(3, 1, 5));
    assert_eq!(entry.payload, Payload::Membership(expected));
}

#[test]
fn an_unknown_version_or_kind_is_an_error() {
    for version in [0, FORMAT_VERSION + 1, 255] {
        for (name, bytes) in samples() {
            let mut bytes = bytes.to_vec();
            bytes[0] = version;
            let error = match name.split(' ').next() {
                Some("entry") => decode_entry(900, 7, &bytes.into()).unwrap_err(),
                Some("vote") => decode_vote(&bytes).unwrap_err(),
                Some("log") => decode_log_id(&bytes).unwrap_err(),
                Some("membership") => decode_stored_membership(&bytes).unwrap_err(),
                _ => decode_member(&bytes).unwrap_err(),
            };
            assert!(matches!(error, LogCodecError::Version { found } if found == version), "{name}: {error}");
        }
    }
    for kind in [0, 4, 255] {
        let mut bytes = samples()[0].1.to_vec();
        bytes[1] = kind;
        assert!(matches!(decode_entry(900, 7, &bytes.into()), Err(LogCodecError::Kind { found }) if found == kind));
    }
}

#[test]
fn bytes_that_are_cut_or_left_over_are_an_error() {
    for (name, bytes) in samples() {
        for cut in 0..bytes.len() {
            let bytes = bytes.slice(..cut);
            let whole = match name.split(' ').next() {
                Some("entry") => decode_entry(900, 7, &bytes).is_ok(),
                Some("vote") => decode_vote(&bytes).is_ok(),
                Some("log") => decode_log_id(&bytes).is_ok(),
                Some("membership") => decode_stored_membership(&bytes).is_ok(),
                _ => decode_member(&bytes).is_ok(),
            };
            assert!(!whole, "{name} cut at {cut}");
        }
    }
    let mut longer = samples()[3].1.to_vec();
    longer.push(0);
    assert!(matches!(decode_vote(&longer), Err(LogCodecError::Trailing { bytes: 1, .. })));
}

#[test]
fn fuzz_log_entries() {
    let good = samples().into_iter().map(|(_, bytes)| bytes.to_vec()).collect();
    let target = Target { name: "log-entries", good, words: &[], cases: 4000 };
    target.run(
        |_| {},
        |bytes| {
            let all = [
                decode_entry(900, 7, &Bytes::copy_from_slice(bytes)).is_ok(),
                decode_vote(bytes).is_ok(),
                decode_log_id(bytes).is_ok(),
                decode_stored_membership(bytes).is_ok(),
                decode_member(bytes).is_ok(),
            ];
            all.contains(&true)
        },
    );
}

proptest! {
    #[test]
    fn no_bytes_panic_a_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200), version in any::<bool>()) {
        let mut bytes = bytes;
        if version && !bytes.is_empty() {
            bytes[0] = FORMAT_VERSION;
        }
        let bytes = Bytes::from(bytes);
        let _ = decode_entry(1, 1, &bytes);
        let _ = decode_vote(&bytes);
        let _ = decode_log_id(&bytes);
        let _ = decode_stored_membership(&bytes);
        let _ = decode_member(&bytes);
    }
}
