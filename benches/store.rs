//! The engines at a million records, and the snapshot files over them: `cargo bench --bench store [-- RECORDS]`.
//!
//! Each engine runs in a process of its own, so that its resident memory is its own. Keys are spread evenly, as hashes are,
//! and values hardly compress, as sealed fields do. Without `--bench` (as a test runner calls it) a few records only.

use std::{
    env, fs,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hdrhistogram::Histogram;
use semel::{
    disk::OsDisk,
    store::{
        directory::{self, EngineKind},
        engine::{Batch, Engine, EngineSnapshot},
        snapshot::{SnapshotMeta, SnapshotOwner, store::SnapshotStore},
    },
};

const RECORDS: u64 = 1_000_000;
const RECORDS_IN_A_TEST: u64 = 2000;
/// Changes in one batch, besides `last_applied`.
const BATCH: u64 = 256;
/// Changes in one batch of the size that the write-behind flush hands over.
const FLUSH: u64 = 16_384;
const VALUE_BYTES: usize = 250;
const APPLIED: &[u8] = b"\x0aapplied";
const ENGINE: &str = "SEMEL_BENCH_ENGINE";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    let measured = arguments.iter().any(|argument| argument == "--bench");
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    let records = asked.unwrap_or(if measured { RECORDS } else { RECORDS_IN_A_TEST });
    if let Ok(engine) = env::var(ENGINE) {
        return run(engine.parse().expect("a known engine"), records);
    }
    for kind in [EngineKind::Fjall, EngineKind::Sled] {
        let status = Command::new(env::current_exe().expect("this binary"))
            .args(&arguments)
            .env(ENGINE, kind.name())
            .status()
            .expect("the engine's process starts");
        assert!(status.success(), "{kind}: {status}");
    }
}

/// SplitMix64.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Prefix, tenant, hash of the operation, hash of the record: 42 bytes.
fn key(record: u64) -> Bytes {
    let mut key = b"\x01\x08tenant-a".to_vec();
    key.extend([0x5a; 16]);
    key.extend(mixed(record).to_be_bytes());
    key.extend(mixed(!record).to_be_bytes());
    Bytes::from(key)
}

fn value(record: u64, turn: u64) -> Bytes {
    let mut value = Vec::with_capacity(VALUE_BYTES + 8);
    while value.len() < VALUE_BYTES {
        value.extend(mixed(record ^ turn << 40 ^ (value.len() as u64) << 50).to_le_bytes());
    }
    Bytes::from(value)
}

struct Written {
    commands: u64,
    time: Duration,
    batches: Histogram<u64>,
}

/// Writes `commands` changes in batches of `size`; `change` gives the record of each and its value, `None` to delete it.
fn write(engine: &dyn Engine, commands: u64, size: u64, change: impl Fn(u64) -> (u64, Option<Bytes>)) -> Written {
    let mut batches = Histogram::new(3).expect("three digits are allowed");
    let mut time = Duration::ZERO;
    for first in (0..commands).step_by(size as usize) {
        // Made ready outside the clock: the overlay hands over what it has in order already.
        let mut changes: Vec<_> = (first..(first + size).min(commands))
            .map(|command| {
                let (record, value) = change(command);
                (key(record), value)
            })
            .collect();
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes.dedup_by(|a, b| a.0 == b.0);
        let mut batch = Batch::with_capacity(changes.len() + 1);
        for (key, value) in changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch.put(APPLIED, Bytes::from(first.to_be_bytes().to_vec()));
        let begun = Instant::now();
        engine.write(batch).expect("written");
        let took = begun.elapsed();
        time += took;
        batches.record(took.as_micros() as u64).expect("within bounds");
    }
    Written { commands, time, batches }
}

impl Written {
    fn print(&self, kind: EngineKind, what: &str) {
        let rate = self.commands as f64 / self.time.as_secs_f64();
        let at = |quantile| self.batches.value_at_quantile(quantile) as f64 / 1000.0;
        let max = self.batches.max() as f64 / 1000.0;
        println!(
            "{kind:6} {what:34} {rate:>10.0} commands/s   batch p50 {:.2} p99 {:.2} max {max:.1} ms",
            at(0.5),
            at(0.99)
        );
    }
}

fn read(kind: EngineKind, engine: &dyn Engine, what: &str, reads: u64, hit: bool, record: impl Fn(u64) -> u64) {
    let mut times = Histogram::<u64>::new(3).expect("three digits are allowed");
    let mut total = Duration::ZERO;
    for number in 0..reads {
        let key = key(record(number));
        let begun = Instant::now();
        let found = engine.get(&key).expect("read");
        let took = begun.elapsed();
        assert_eq!(found.is_some(), hit, "{what}");
        total += took;
        times.record(took.as_nanos() as u64).expect("within bounds");
    }
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
    let rate = reads as f64 / total.as_secs_f64();
    println!("{kind:6} {what:34} {rate:>10.0} gets/s       p50 {:.2} p99 {:.2} µs", at(0.5), at(0.99));
}

/// Resident memory now and at its highest, MiB.
fn resident() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) / 1024
    };
    (of("VmRSS"), of("VmHWM"))
}

fn sizes(kind: EngineKind, engine: &dyn Engine, what: &str, live: u64) {
    let disk = engine.disk_bytes().expect("asked");
    let (now, highest) = resident();
    println!(
        "{kind:6} {what:34} {:>10.0} MB on disk     {:.2} × live, resident {now} MiB, at most {highest} MiB",
        disk as f64 / 1e6,
        disk as f64 / live as f64
    );
}

fn run(kind: EngineKind, records: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = directory::open(kind, &dir.path().join("engine")).expect("opened");
    let engine = &*engine;
    let row_bytes = (key(0).len() + value(0, 0).len()) as u64;
    let reads = (records / 5).min(200_000);

    write(engine, records, BATCH, |command| (command, Some(value(command, 0)))).print(kind, "fill, batches of 256");
    sizes(kind, engine, "after the fill", records * row_bytes);
    // A fifth of the changes delete a record of the older half, a fifth bring one back or a new one, the rest overwrite.
    let mixed_commands = records / 2;
    let change = |command: u64| match command % 5 {
        0 => (command, None),
        1 => (records + command, Some(value(command, 1))),
        _ => (records / 2 + mixed(command) % (records / 2), Some(value(command, 1))),
    };
    write(engine, mixed_commands, BATCH, change).print(kind, "put, overwrite, delete, by 256");
    write(engine, mixed_commands, FLUSH, |command| (records / 2 + command % (records / 2), Some(value(command, 2))))
        .print(kind, "overwrite, batches of 16,384");
    sizes(kind, engine, "after the changes", records * row_bytes);
    read(kind, engine, "get, hit", reads, true, |n| records / 2 + mixed(n) % (records / 2));
    read(kind, engine, "get, miss", reads, false, |n| 1 << 50 | n);
    snapshot(kind, dir.path(), engine);
    let (now, highest) = resident();
    println!("{kind:6} {:34} {highest:>10} MiB resident at most, {now} MiB at the end", "memory");
}

/// Builds a snapshot file while writes go on, and loads it into another engine.
fn snapshot(kind: EngineKind, dir: &Path, engine: &dyn Engine) {
    let owner = SnapshotOwner { lineage: [1; 16], cluster: [2; 16] };
    let snapshots = SnapshotStore::open(Arc::new(OsDisk), dir.join("snapshots"), owner, []).expect("opened");
    let meta = SnapshotMeta {
        lineage: owner.lineage,
        cluster: owner.cluster,
        index: 1,
        term: 1,
        position: 1,
        cluster_time_ms: 1,
        log_id: Bytes::new(),
        membership: Bytes::new(),
    };
    let view: Box<dyn EngineSnapshot> = engine.snapshot().expect("a view");
    let begun = Instant::now();
    let built = std::thread::scope(|scope| {
        let build = scope.spawn(|| snapshots.build(&meta, view).expect("built"));
        let mut worst = Duration::ZERO;
        let mut turn = 0;
        while !build.is_finished() {
            turn += 1;
            let written =
                write(engine, BATCH, BATCH, |command| (mixed(command ^ turn) % 1000, Some(value(command, turn))));
            worst = worst.max(written.time);
            std::thread::sleep(Duration::from_millis(2));
        }
        println!("{kind:6} {:34} {turn:>10} batches beside it, the slowest {worst:.1?}", "snapshot being built");
        build.join().expect("built")
    });
    let took = begun.elapsed();
    let rate = built.bytes as f64 / 1e6 / took.as_secs_f64();
    println!(
        "{kind:6} {:34} {:>10.0} MB file in {took:.1?}, {rate:.0} MB/s, read back",
        "snapshot built",
        built.bytes as f64 / 1e6
    );
    let other = directory::open(kind, &dir.join("other")).expect("opened");
    let begun = Instant::now();
    let rows = snapshots.load(&built, &*other, APPLIED, []).expect("loaded");
    let took = begun.elapsed();
    println!("{kind:6} {:34} {rows:>10} rows in {took:.1?}", "snapshot loaded");
}
