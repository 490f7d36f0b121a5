//! A process is killed while it writes batches. What the next one finds must be the state after exactly the batches up to
//! the `last_applied` that it finds (E1, E2); or damage, reported as such.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use bytes::Bytes;

use super::{
    super::{
        directory::{self, EngineKind},
        engine::{Batch, Engine, EngineError},
    },
    everything,
};

const KIND: &str = "SEMEL_CRASH_ENGINE";
const PATH: &str = "SEMEL_CRASH_PATH";
const APPLIED: &[u8] = b"applied";
/// Keys that the batches are drawn from: few enough that they overwrite and delete each other's.
const KEYS: u64 = 6000;
/// Changes of one batch.
const CHANGES: u64 = 120;

/// SplitMix64: numbers that are the same in the killed process and in the one that checks.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The changes of one batch, known from its number alone.
fn changes(number: u64) -> BTreeMap<Bytes, Option<Bytes>> {
    let mut changes = BTreeMap::new();
    for place in 0..CHANGES {
        let random = mixed(number << 16 | place);
        let key = Bytes::from((random % KEYS).to_be_bytes().to_vec());
        let value = random
            .is_multiple_of(3)
            .then_some(())
            .map_or(Some(vec![number as u8; (random >> 20) as usize % 600]), |()| None);
        changes.insert(key, value.map(Bytes::from));
    }
    changes.insert(Bytes::from_static(APPLIED), Some(Bytes::from(number.to_be_bytes().to_vec())));
    changes
}

fn applied(engine: &dyn Engine) -> u64 {
    engine
        .get(APPLIED)
        .expect("read")
        .map_or(0, |value| u64::from_be_bytes(value.as_ref().try_into().expect("eight bytes")))
}

/// Not a test: the process that is killed. Without the variables it has nothing to do.
#[test]
fn child_writes_until_it_is_killed() {
    let (Ok(kind), Ok(path)) = (env::var(KIND), env::var(PATH)) else { return };
    let kind = kind.parse().expect("a known engine");
    let engine = directory::open(kind, Path::new(&path)).expect("the parent has opened it before");
    let mut out = std::io::stdout();
    for number in applied(&*engine) + 1.. {
        let mut batch = Batch::new();
        for (key, value) in changes(number) {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        engine.write(batch).expect("written");
        writeln!(out, "wrote {number}").expect("the parent reads until it kills");
        out.flush().expect("the parent reads until it kills");
    }
}

/// Lets a child write `batches` more batches and kills it in the middle of what comes next.
fn kill_after(kind: EngineKind, path: &Path, batches: u64) {
    let mut child = Command::new(env::current_exe().expect("this binary"))
        .args(["store::tests::crash::child_writes_until_it_is_killed", "--exact", "--nocapture", "--test-threads=1"])
        .env(KIND, kind.name())
        .env(PATH, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the child starts");
    let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
    let wrote = lines.map_while(Result::ok).filter(|line| line.contains("wrote ")).take(batches as usize).count();
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(wrote as u64, batches, "the child wrote until it was killed");
}

fn killed_writers_leave_whole_batches(kind: EngineKind, rounds: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("engine");
    let mut model: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    let (mut modelled, mut damaged, mut kept) = (0, 0, 0);
    for round in 0..rounds {
        kill_after(kind, &path, 1 + mixed(round) % 120);
        let engine = match directory::open(kind, &path) {
            Ok(engine) => engine,
            Err(EngineError::Damaged { reason, .. }) => {
                eprintln!("round {round}: damage, {reason}");
                damaged += 1;
                std::fs::remove_dir_all(&path).expect("deleted");
                (model, modelled) = (BTreeMap::new(), 0);
                continue;
            }
            Err(error) => panic!("round {round}: {error}"),
        };
        let found = applied(&*engine);
        if found < modelled {
            // What a killed process had written may be lost, also what it had written a round before.
            (model, modelled) = (BTreeMap::new(), 0);
        }
        kept += u64::from(found > 0);
        for number in modelled + 1..=found {
            for (key, value) in changes(number) {
                match value {
                    Some(value) => model.insert(key, value),
                    None => model.remove(&key),
                };
            }
        }
        modelled = found;
        let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        assert!(everything(&*engine) == expected, "round {round}: the rows are those of the batches up to {found}");
    }
    assert!(kept * 2 > rounds, "{kept} of {rounds} rounds found a state, {damaged} damage: the others show nothing");
}

/// How often a writer is killed: as often as `SEMEL_CRASH_ROUNDS` says, a handful of times where it doesn't.
fn rounds() -> u64 {
    env::var("SEMEL_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(8)
}

#[test]
fn killed_writers_leave_whole_batches_on_fjall() {
    killed_writers_leave_whole_batches(EngineKind::Fjall, rounds());
}

#[test]
fn killed_writers_leave_whole_batches_on_sled() {
    killed_writers_leave_whole_batches(EngineKind::Sled, rounds());
}
