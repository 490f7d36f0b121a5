//! The formats: what is written is read back, what is cut or damaged is refused and never panics, a length that lies
//! makes no room, and the bytes of format 1 stay what they are (golden files, and the example in FORMAT.md).

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use bincode::error::DecodeError;
use bytes::Bytes;
use proptest::prelude::*;

use super::{
    line::Line,
    world::{Sweeps, World},
};
use crate::{
    id::{Position, Time, hex},
    records::{
        apply, check,
        closing::Closing,
        codec::{self, CodecError},
        command::{Command, Deed, Entry, Token},
        keys::{META_ENDED, META_GLOBALS, META_SEALING, StoreKey},
        memory::MemoryState,
        policy::PolicyLevel,
        record::{Head, Row},
        sealing::{DataKeys, Enabled, RingEntry, Sealing},
        state::{AuditRow, Counters, Deadline, Ended, Globals, State, TenantState},
    },
};

/// Every kind of command and of stored value.
const STORY: &str = "
policy lease_ms_default=9s oversize=digest_only evidence_s=60d
policy op=charge effect_ms_max=1s records_max=9 on_lapse=hold expired_claims=run_as_new low_entropy_keys=warn
claim staged id=s staged lease=1h labels=amount first_sent=-1s replay=1h evidence=2h not_after=9s
claim begun fp=1:a,2:b lease=2h on_lapse=retake
checkpoint begun fence=own point=card
claim carried lease=1s on_lapse=retake
checkpoint carried fence=own point=half
claim lapsed lease=1s staged
claim held lease=1s on_lapse=hold
claim doubtful
suspend doubtful fence=own reason=timeout
investigate doubtful by=ana lease=1m version=now
resolve doubtful by=ana verdict=unknown check_at=1h version=now evidence=none request=r1
claim small
complete small fence=own body=ok
claim large
complete large fence=own body=*2000
claim forgotten
complete forgotten fence=own
forget forgotten by=root reason=erasure
claim released
release released fence=own evidence=log
complete released fence=own
claim verdict
suspend verdict fence=own
resolve verdict verdict=no_effect version=now
claim verdict
suspend verdict fence=own
resolve verdict verdict=completed version=now
begin staged fence=own lease=2h
renew begun fence=own lease=3h
claim old replay=1s evidence=1s
complete old fence=own
claim waiting staged lease=2h
tick at=5s
claim carried lease=2h
claim again tenant=globex
restored gap_end=1s at=6s
claim begun
end-doubt at=7s
restored at=8s
retire node=9
raise level=2
";

fn story() -> World {
    let mut world = World::new(Sweeps::AsTold, None);
    for line in STORY.lines().filter(|line| !line.is_empty()) {
        let answer = world.run(&Line::parse(line));
        assert!(!answer.starts_with("wrong_state") && !answer.starts_with("invalid"), "{line}: {answer}");
    }
    world.end();
    world
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits")).collect()
}

fn golden_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/records-v1").join(name)
}

/// Lines of a golden file.
fn golden(name: &str) -> Vec<String> {
    fs::read_to_string(golden_path(name)).unwrap().lines().map(str::to_owned).collect()
}

/// Compares with a golden file. `SEMEL_GOLDEN=write` writes it: a changed one is a changed format, a reviewed decision.
fn is_golden(name: &str, lines: &[String]) {
    if std::env::var_os("SEMEL_GOLDEN").is_some_and(|write| write == "write") {
        fs::create_dir_all(golden_path("")).unwrap();
        fs::write(golden_path(name), lines.join("\n") + "\n").unwrap();
    }
    assert!(golden(name) == lines, "the bytes of {name} are not what they were");
}

/// The log of a story and the state that it makes are the bytes that they were.
#[test]
fn format_1_stays_as_it_is() {
    let world = story();
    let log: Vec<String> = world.log.iter().map(|entry| hex(entry)).collect();
    is_golden("entries.hex", &log);
    let dump = world.state.dump();
    let rows: Vec<String> = dump.iter().map(|(key, value)| format!("{} {}", hex(key), hex(value))).collect();
    is_golden("state.hex", &rows);
}

/// Golden bytes are read by what is here now: the entries apply to the golden state, which passes its check.
#[test]
fn golden_entries_make_the_golden_state() {
    let mut state = MemoryState::default();
    for line in golden("entries.hex") {
        let entry: Entry = codec::decode(&unhex(&line)).unwrap();
        apply(&mut state, &entry);
    }
    let rows: BTreeMap<Vec<u8>, Bytes> = golden("state.hex")
        .iter()
        .map(|line| line.split_once(' ').expect("a key and a value"))
        .map(|(key, value)| (unhex(key), unhex(value).into()))
        .collect();
    check::check(&rows).unwrap();
    assert!(state.dump() == rows && MemoryState::load(&rows).unwrap().dump() == rows);
}

#[test]
fn the_story_tells_of_every_kind() {
    let world = story();
    let mut commands = [false; 12];
    for entry in &world.log {
        let entry: Entry = codec::decode(entry).unwrap();
        for command in &entry.commands {
            commands[usize::from(codec::encode(&**command)[1]) - 1] = true;
        }
    }
    assert_eq!(commands, [true; 12], "kinds of commands by their tags");
    let prefixes: Vec<u8> = world.state.dump().keys().map(|key| key[0]).collect();
    assert!((1..=11).all(|prefix| prefixes.contains(&prefix)), "every prefix of the store: {prefixes:?}");
}

/// The example of FORMAT.md: its hex blocks are read as the text says.
#[test]
fn the_example_in_the_document_decodes() {
    let text = include_str!("../FORMAT.md");
    let blocks: Vec<Vec<u8>> = text
        .split("```hex\n")
        .skip(1)
        .map(|block| block.split("```").next().expect("a block ends"))
        .map(|block| block.lines().map(|line| line.split('|').next().unwrap_or("")).collect::<String>())
        .map(|digits| unhex(&digits))
        .collect();
    // The fourth is decoded where tokens are.
    let [key, value, entry, _] = &blocks[..] else { panic!("{} hex blocks", blocks.len()) };
    let StoreKey::Deadline(at, record) = StoreKey::decode(key).unwrap() else { panic!("a deadline entry") };
    assert_eq!((at, record.tenant.as_str()), (Time(1_767_225_610_000), "acme"));
    let deadline: Deadline = codec::decode(value).unwrap();
    assert_eq!((deadline.kind.as_str(), deadline.since, deadline.bytes), ("lease_hold", Time(1_767_225_600_000), 262));
    let entry: Entry = codec::decode(entry).unwrap();
    let [command] = &entry.commands[..] else { panic!("one command") };
    let Command::Owner(owner) = &**command else { panic!("an owner's command") };
    assert_eq!((entry.time, owner.fence.0, &owner.record), (Time(1_767_225_605_000), 6, &record));
}

/// What came after the story was written down: its bytes are as fixed, in a file of their own.
#[test]
fn the_end_of_writes_stays_as_it_is() {
    let mut world = World::new(Sweeps::AsTold, None);
    let before = world.log.len();
    assert_eq!(world.run(&Line::parse("end-writes at=5s")), "ok");
    let dump = world.state.dump();
    let key = StoreKey::Meta(META_ENDED.into()).encode();
    assert!(codec::decode::<Ended>(&dump[&key]).is_ok());
    let log = world.log[before..].iter().map(|entry| format!("entry {}", hex(entry)));
    let lines: Vec<String> = log.chain([format!("{} {}", hex(&key), hex(&dump[&key]))]).collect();
    is_golden("writes-ended.hex", &lines);
    world.restart_from_dump();
    assert!(world.state.ended().is_some());
    check::check(&dump).unwrap();
}

/// The same of deeds: every kind of them, and the rows that they leave.
#[test]
fn what_was_noted_stays_as_it_is() {
    let mut world = World::new(Sweeps::AsTold, None);
    let before = world.log.len();
    for deed in Deed::ALL {
        assert_eq!(world.run(&Line::parse(&format!("note deed={} at=5s", deed.as_str()))), "ok");
    }
    let log = world.log[before..].iter().map(|entry| format!("entry {}", hex(entry)));
    let dump = world.state.dump();
    let rows = dump.iter().filter(|(key, _)| matches!(StoreKey::decode(key), Ok(StoreKey::Audit(None, _))));
    let rows: Vec<String> = rows.map(|(key, value)| format!("{} {}", hex(key), hex(value))).collect();
    assert_eq!(rows.len(), Deed::ALL.len());
    is_golden("noted.hex", &log.chain(rows).collect::<Vec<_>>());
    check::check(&dump).unwrap();
}

#[test]
fn other_versions_and_leftovers_are_refused() {
    let bytes = codec::encode(&Position(7));
    assert!(matches!(codec::decode::<Position>(&[2, 7]), Err(CodecError::Version { found: 2 })));
    assert!(matches!(codec::decode::<Position>(&[]), Err(CodecError::Empty)));
    assert!(matches!(codec::decode::<Position>(&[&bytes[..], &[0]].concat()), Err(CodecError::Trailing { bytes: 1 })));
}

/// A few bytes that claim a long list are refused before room is made for it.
#[test]
fn a_lying_length_makes_no_room() {
    // Version, time 0, then the number of commands: 1 << 28, in the five-byte form.
    let lie = [1, 0, 252, 0, 0, 0, 16];
    let error = codec::decode::<Entry>(&lie).unwrap_err();
    assert!(matches!(error, CodecError::Malformed(DecodeError::LimitExceeded)), "{error}");
}

/// Decodes bytes as everything that is ever decoded; whether they are something.
fn decode_all(bytes: &[u8]) -> bool {
    let all = [
        StoreKey::decode(bytes).is_ok(),
        codec::decode::<Entry>(bytes).is_ok(),
        codec::decode::<Command>(bytes).is_ok(),
        codec::decode::<Head>(bytes).is_ok(),
        codec::decode::<Row>(bytes).is_ok(),
        codec::decode::<Deadline>(bytes).is_ok(),
        codec::decode::<Counters>(bytes).is_ok(),
        codec::decode::<AuditRow>(bytes).is_ok(),
        codec::decode::<PolicyLevel>(bytes).is_ok(),
        codec::decode::<TenantState>(bytes).is_ok(),
        codec::decode::<Globals>(bytes).is_ok(),
        codec::decode::<Token>(bytes).is_ok(),
        codec::decode::<Sealing>(bytes).is_ok(),
        codec::decode::<RingEntry>(bytes).is_ok(),
        codec::decode::<DataKeys>(bytes).is_ok(),
        codec::decode::<Closing>(bytes).is_ok(),
        codec::decode::<Enabled>(bytes).is_ok(),
        codec::decode::<crate::records::command::Sealed>(bytes).is_ok(),
        codec::decode::<Position>(bytes).is_ok(),
    ];
    all.contains(&true)
}

/// Records, keys, entries and their commands: all that the log and the store hold.
#[test]
fn fuzz_stored_values() {
    let world = story();
    let values = world.state.dump().into_iter().flat_map(|(key, value)| [key, value.to_vec()]);
    let good = values.chain(world.log.iter().map(|entry| entry.to_vec())).collect();
    crate::fuzz::Target { name: "stored-values", good, words: &[], cases: 4000 }.run(|_| {}, decode_all);
}

fn value_survives(key: &[u8], value: &[u8]) {
    fn again<T: bincode::Encode + bincode::Decode<()>>(value: &[u8]) {
        assert_eq!(codec::encode(&codec::decode::<T>(value).unwrap()), value);
        for cut in 0..value.len() {
            assert!(codec::decode::<T>(&value[..cut]).is_err(), "cut to {cut} of {}", value.len());
        }
    }
    match StoreKey::decode(key).unwrap() {
        StoreKey::Head(_) => again::<Head>(value),
        StoreKey::Body(_) => again::<crate::records::command::Sealed>(value),
        StoreKey::Deadline(..) => again::<Deadline>(value),
        StoreKey::Since(..) => again::<Position>(value),
        StoreKey::Counters(..) => again::<Counters>(value),
        StoreKey::Row(..) => again::<Row>(value),
        StoreKey::Audit(..) => again::<AuditRow>(value),
        StoreKey::Policy(..) => again::<PolicyLevel>(value),
        StoreKey::Tenant(_) => again::<TenantState>(value),
        StoreKey::Meta(name) if name == META_SEALING => again::<Sealing>(value),
        StoreKey::Meta(name) => {
            assert_eq!(name, META_GLOBALS);
            again::<Globals>(value);
        }
        StoreKey::Token(_) => again::<Token>(value),
        StoreKey::Ring(_) => again::<RingEntry>(value),
        StoreKey::DataKeys(_) => again::<DataKeys>(value),
        StoreKey::Closing(_) => again::<Closing>(value),
    }
    assert_eq!(StoreKey::decode(key).unwrap().encode(), key);
}

/// Each kind of value and of entry, cut at every byte.
#[test]
fn every_kind_survives_and_no_cut_one_does() {
    let world = story();
    world.state.dump().iter().for_each(|(key, value)| value_survives(key, value));
    for entry in &world.log {
        for cut in 0..entry.len() {
            assert!(codec::decode::<Entry>(&entry[..cut]).is_err());
        }
    }
    assert!(world.state.globals().formed.is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        decode_all(&bytes);
        if let Some(version) = bytes.first_mut() {
            *version = codec::FORMAT_VERSION;
        }
        decode_all(&bytes);
    }

    #[test]
    fn damaged_values_never_panic(which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        thread_local!(static VALUES: Vec<Vec<u8>> = {
            let world = story();
            let values = world.state.dump().into_iter().flat_map(|(key, value)| [key, value.to_vec()]);
            values.chain(world.log.iter().map(|entry| entry.to_vec())).collect()
        });
        let mut bytes = VALUES.with(|values| which.get(values).clone());
        let at = at.index(bytes.len());
        bytes[at] = to;
        decode_all(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Fields of any content and presence, in every command that has them.
    #[test]
    fn commands_of_any_content_survive(
        texts in prop::collection::vec("[ -<>-~]{0,24}", 5),
        numbers in any::<[u32; 4]>(),
        which in 0..9usize,
        some in any::<[bool; 4]>(),
    ) {
        let word = |index: usize| texts[index].replace([' ', '#', '→', '=', '*'], "_") + "_";
        let optional = |name: &str, value: String, given: bool| if given { format!(" {name}={value}") } else { String::new() };
        let given = optional("labels", word(1), some[0])
            + &optional("reason", word(2), some[1])
            + &optional("evidence", format!("{}s", numbers[0]), which == 0 && some[2])
            + &optional("lease", format!("{}ms", numbers[1]), some[3]);
        let verb = ["claim", "begin", "renew", "complete", "suspend", "investigate", "resolve", "forget", "checkpoint"][which];
        let key = word(0);
        let line = format!(
            "{verb} {key} fence=own version=now verdict=unknown check_at={}ms by={} body={} point={}{given}",
            numbers[2], word(3), word(4), word(1)
        );
        // The world encodes, decodes and compares every entry.
        let mut world = World::new(Sweeps::AsTold, None);
        world.run(&Line::parse(&line));
        let entry: Entry = codec::decode(world.log.last().expect("an entry")).unwrap();
        prop_assert!(entry.commands.iter().all(|command| Arc::strong_count(command) == 1));
    }
}
