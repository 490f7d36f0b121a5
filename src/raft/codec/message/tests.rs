use std::{path::Path, time::Duration};

use openraft::raft::StreamAppendError;
use proptest::prelude::*;

use super::*;
use crate::id::hex;
use crate::{
    fuzz::Target,
    raft::{
        Addresses, Member,
        types::{LeaderId, LogEntry, Payload},
    },
    records::answer::wire::Answers,
    refusal::{Code, Refusal},
};

const GOLDEN: &str = "tests/golden/peer-1.txt";

fn vote(committed: bool) -> Vote {
    Vote { leader_id: LeaderId { term: 7, node_id: 2 }, committed }
}

fn id(index: u64) -> LogId {
    log_id(7, 2, index)
}

fn envelope() -> Envelope {
    let end = |node_id, disk| End { node_id, disk_id: DiskId([disk; 16]) };
    Envelope { version: PEER_VERSION, cluster_id: ClusterId([0xc1; 16]), from: end(1, 0xd1), to: end(2, 0xd2) }
}

fn append() -> Append {
    let entry = |index, payload| LogEntry { log_id: id(index), payload };
    let member = Member { peer_addr: "n1:7172".into(), client_addr: "n1:7171".into(), disk_id: DiskId([0xd1; 16]) };
    let membership = Membership::new(vec![[1].into()], std::collections::BTreeMap::from([(1, member)])).unwrap();
    Append {
        vote: vote(true),
        prev_log_id: Some(id(9)),
        entries: vec![entry(10, Payload::Blank), entry(11, Payload::Membership(membership))],
        leader_commit: Some(id(8)),
    }
}

fn hello() -> Hello {
    Hello {
        state: NodeState::Taking,
        lineage_id: LineageId([0x11; 16]),
        wall: Time(1_700_000_000_000),
        vote: Some(vote(true)),
        last_log: Some(id(11)),
        applied: Some(id(10)),
        disk_bytes: 4096,
        records: 12,
        entry_version: 1,
        peer_version: 1,
        feature_level: 1,
        peer_addr: "n1:7172".into(),
        client_addr: "n1:7171".into(),
        healing: Some(DiskId([0xd0; 16])),
        leader: Some(2),
        remembered: Some((DiskId([0xd2; 16]), Acknowledged { vote: Some(vote(false)), log: Some(id(9)) })),
        membership: StoredMembership::default(),
        founders: founders(),
        admin_addr: String::new(),
        cluster_time: Time::default(),
        disk_free_bytes: 0,
        disk_is_full: false,
        keys: Vec::new(),
        position: Position::default(),
        erased: Position::default(),
    }
}

fn founders() -> Vec<Founder> {
    vec![Founder { node_id: 1, peer_addr: "n1:7172".into(), client_addr: "n1:7171".into() }]
}

fn promise() -> Promise {
    Promise {
        lineage_id: LineageId([0x11; 16]),
        cluster_id: ClusterId([0xc1; 16]),
        node_id: 1,
        disk_id: DiskId([0xd1; 16]),
        healing: None,
        founders: founders(),
        known: founders(),
    }
}

fn changes() -> Vec<(&'static str, Change)> {
    let addresses = Addresses { peer: "n4:7172".into(), client: "n4:7171".into() };
    let (old, new) = (DiskId([1; 16]), DiskId([2; 16]));
    vec![
        ("change add", Change::Add { node_id: 4, addresses: addresses.clone() }),
        ("change promote", Change::Promote { node_id: 4 }),
        ("change remove", Change::Remove { node_id: 4, force: true }),
        ("change replace", Change::Replace { node_id: 4, addresses: Some(addresses.clone()), force: false }),
        ("change transfer", Change::Transfer { node_id: 4 }),
        ("change heal", Change::Heal { node_id: 4, old, new, addresses }),
    ]
}

/// Every message, under the name by which the golden file lists it.
fn samples() -> Vec<(&'static str, Bytes)> {
    let mut ask = AskVote::new(vote(false), Some(id(9)));
    ask.leadership_transfer = true;
    let (lineage_id, cluster_id) = (LineageId([0x11; 16]), ClusterId([0xc1; 16]));
    let grant = AskPromise::Grant { lineage_id, cluster_id, founders: founders(), replaces: false };
    let withdraw = AskPromise::Withdraw { cluster_id, disk_id: DiskId([0xd1; 16]) };
    let granted = PromiseAnswer::Granted { disk_id: DiskId([0xd1; 16]), is_new: true };
    let unwilling = PromiseAnswer::Refused { reason: "no".into() };
    let left = Duration::from_millis(2500);
    let refused = Refusal::new(Code::Unavailable, "no leader");
    let mut samples = vec![
        ("envelope", envelope().encode()),
        ("append", encode_append(&append())),
        ("append answer matched", encode_append_answer(&Ok(Some(id(11))))),
        ("append answer conflict", encode_append_answer(&Err(StreamAppendError::Conflict(id(9))))),
        ("append answer vote", encode_append_answer(&Err(StreamAppendError::HigherVote(vote(false))))),
        ("vote", encode_ask_vote(&ask)),
        ("vote answer", encode_vote_answer(&VoteAnswer::new(vote(false), Some(id(9)), true))),
        ("transfer", encode_transfer(&Transfer::new(vote(true), 3, Some(id(11))))),
        ("snapshot head", SnapshotPart::Head { vote: vote(true), bytes: 1 << 20 }.encode()),
        ("snapshot piece", SnapshotPart::Piece { offset: 7, piece: Bytes::from_static(b"rows") }.encode()),
        ("snapshot answer", encode_bare_vote(&vote(true))),
        ("acknowledged", Acknowledged { vote: Some(vote(true)), log: None }.encode()),
        ("hello", hello().encode()),
        ("promise file", promise().encode()),
        ("promise grant", grant.encode()),
        ("promise withdraw", withdraw.encode()),
        ("promise granted", granted.encode()),
        ("promise refused", unwilling.encode()),
        ("propose", encode_propose(left, &[Bytes::from_static(b"one"), Bytes::from_static(b"two")])),
        ("proposed", Told::<(u64, Answers)>::Done((11, vec![Err(refused.clone())])).encode()),
        ("barrier", Asked::Barrier.encode(left)),
        ("tick", Asked::Tick { to: Time(5) }.encode(left)),
        ("told", Told::<Reached>::Done((11, Time(5))).encode()),
        ("told refused", Told::<Reached>::Refused(refused).encode()),
        ("told not leader", Told::<Reached>::NotLeader(Some(3)).encode()),
    ];
    samples.extend(
        changes()
            .into_iter()
            .map(|(name, change)| (name, Asked::Change { change, actor: "file:1".into() }.encode(left))),
    );
    samples
}

#[test]
fn what_is_sent_is_the_committed_golden_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let written: String = samples().iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), written);
}

#[test]
fn what_is_sent_is_read_as_it_was_meant() {
    let samples = samples();
    let bytes = |name: &str| samples.iter().find(|(sample, _)| *sample == name).unwrap().1.clone();
    assert_eq!(Envelope::decode(&bytes("envelope")).unwrap(), envelope());
    let read = decode_append(&bytes("append")).unwrap();
    let sent = append();
    assert_eq!((read.vote, read.prev_log_id, read.leader_commit), (sent.vote, sent.prev_log_id, sent.leader_commit));
    assert_eq!(read.entries, sent.entries);
    assert_eq!(decode_append_answer(&bytes("append answer matched")).unwrap(), Ok(Some(id(11))));
    let conflict = decode_append_answer(&bytes("append answer conflict")).unwrap();
    assert_eq!(conflict, Err(StreamAppendError::Conflict(id(9))));
    let higher = decode_append_answer(&bytes("append answer vote")).unwrap();
    assert_eq!(higher, Err(StreamAppendError::HigherVote(vote(false))));
    let ask = decode_ask_vote(&bytes("vote")).unwrap();
    assert_eq!((ask.vote, ask.last_log_id, ask.leadership_transfer), (vote(false), Some(id(9)), true));
    assert!(decode_vote_answer(&bytes("vote answer")).unwrap().vote_granted);
    assert_eq!(decode_transfer(&bytes("transfer")).unwrap(), Transfer::new(vote(true), 3, Some(id(11))));
    let piece = SnapshotPart::Piece { offset: 7, piece: Bytes::from_static(b"rows") };
    assert_eq!(SnapshotPart::decode(&bytes("snapshot piece")).unwrap(), piece);
    assert_eq!(decode_bare_vote(&bytes("snapshot answer")).unwrap(), vote(true));
    assert_eq!(Hello::decode(&bytes("hello")).unwrap(), hello());
    assert_eq!(Promise::decode(&bytes("promise file")).unwrap(), promise());
    let (left, commands) = decode_propose(&bytes("propose")).unwrap();
    assert_eq!((left, commands.len(), &commands[1][..]), (Duration::from_millis(2500), 2, &b"two"[..]));
    let told = Told::<Reached>::decode(&bytes("told")).unwrap();
    assert_eq!(told, Told::Done((11, Time(5))));
    assert_eq!(Told::<Reached>::decode(&bytes("told not leader")).unwrap(), Told::NotLeader(Some(3)));
    assert!(
        matches!(Told::<(u64, Answers)>::decode(&bytes("proposed")).unwrap(), Told::Done((11, answers)) if answers.len() == 1)
    );
    for (name, change) in changes() {
        assert_eq!(Asked::decode(&bytes(name)).unwrap().1, Asked::Change { change, actor: "file:1".into() }, "{name}");
    }
}

/// The worked example of FORMAT.md.
#[test]
fn the_envelope_in_the_document_decodes() {
    let text = include_str!("../../FORMAT.md");
    let example = text.split("```hex\n").nth(2).and_then(|rest| rest.split("```").next()).expect("an example");
    let digits: String = example.lines().map(|line| line.split('|').next().expect("a line has a first part")).collect();
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    assert_eq!(Envelope::decode(&bytes).unwrap(), envelope());
}

/// What a newer release appends to what is said of itself is passed over: an older node goes on understanding it.
#[test]
fn a_longer_hello_and_a_longer_envelope_are_still_read() {
    let longer = |bytes: Bytes| [&bytes[..], &[9, 9, 9]].concat();
    assert_eq!(Hello::decode(&longer(hello().encode())).unwrap(), hello());
    assert_eq!(Envelope::decode(&longer(envelope().encode())).unwrap(), envelope());
}

#[test]
fn a_promise_with_a_flipped_bit_is_no_promise() {
    let whole = promise().encode();
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Promise::decode(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn what_was_acknowledged_only_grows() {
    let mut acknowledged = Acknowledged::default();
    assert!(acknowledged.raise(Some(vote(false)), Some(id(5))));
    assert!(!acknowledged.raise(Some(vote(false)), Some(id(4))));
    assert!(acknowledged.raise(Some(vote(true)), Some(id(3))));
    assert_eq!(acknowledged, Acknowledged { vote: Some(vote(true)), log: Some(id(5)) });
}

/// Decodes bytes as every message; whether they are one.
fn decode_all(bytes: &Bytes) -> bool {
    let all = [
        Envelope::decode(bytes).is_ok(),
        decode_append(bytes).is_ok(),
        decode_append_answer(bytes).is_ok(),
        decode_ask_vote(bytes).is_ok(),
        decode_vote_answer(bytes).is_ok(),
        decode_transfer(bytes).is_ok(),
        SnapshotPart::decode(bytes).is_ok(),
        decode_bare_vote(bytes).is_ok(),
        Acknowledged::decode(bytes).is_ok(),
        Hello::decode(bytes).is_ok(),
        Promise::decode(bytes).is_ok(),
        AskPromise::decode(bytes).is_ok(),
        PromiseAnswer::decode(bytes).is_ok(),
        decode_propose(bytes).is_ok(),
        Asked::decode(bytes).is_ok(),
        Told::<Reached>::decode(bytes).is_ok(),
        Told::<(u64, Answers)>::decode(bytes).is_ok(),
    ];
    all.contains(&true)
}

#[test]
fn fuzz_peer_messages() {
    let good = samples().into_iter().map(|(_, bytes)| bytes.to_vec()).collect();
    let target = Target { name: "peer-messages", good, words: &[], cases: 4000 };
    target.run(|_| {}, |bytes| decode_all(&Bytes::copy_from_slice(bytes)));
}

#[test]
fn cut_messages_never_panic() {
    for (_, bytes) in samples() {
        for cut in 0..bytes.len() {
            decode_all(&bytes.slice(..cut));
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic_a_decoder(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_all(&bytes.into());
    }

    #[test]
    fn no_changed_message_panics_a_decoder(which in 0..31_usize, at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let samples = samples();
        let mut bytes = samples[which % samples.len()].1.to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        decode_all(&bytes.into());
    }
}

#[test]
fn a_hello_tells_of_room_behind_what_older_releases_tell() {
    let full = Hello { disk_free_bytes: 7, disk_is_full: true, ..hello() };
    assert_eq!(Hello::decode(&full.encode()).unwrap(), full);
    let told = Hello { cluster_time: Time(5), admin_addr: "n1:7173".into(), ..hello() };
    assert_eq!(Hello::decode(&told.encode()).unwrap(), told);
    let both = Hello { disk_free_bytes: 7, ..told.clone() };
    assert_eq!(Hello::decode(&both.encode()).unwrap(), both);
    assert!(both.encode().starts_with(&told.encode()), "who doesn't read it finds everything where it was");
    let keys = vec![OuterKey { id: 1, check: [7; 8] }, OuterKey { id: 9, check: [8; 8] }];
    let keyed = Hello { keys, position: Position(77), erased: Position(66), ..both.clone() };
    assert_eq!(Hello::decode(&keyed.encode()).unwrap(), keyed);
    assert!(keyed.encode().starts_with(&both.encode()), "and so with keys");
    let keyless = Hello { position: Position(77), ..hello() };
    assert_eq!(Hello::decode(&keyless.encode()).unwrap(), keyless);
}
