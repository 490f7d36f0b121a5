//! Commands a second of `records::apply`: claims and completions in entries of 64 commands, over plain maps, and over the
//! overlay as a node holds it.
//!
//! `cargo bench --bench apply [-- CYCLES] [only=plain|overlay|fjall]`. Three lives: fresh keys, fresh keys while as many
//! expire, and one retried key that only answers. The overlay is flushed when it is as full as a node lets it become; a
//! node does that on another thread, so that it is measured by itself.

mod cycle;

use std::time::{Duration, Instant};

use cycle::{Bench, COMMANDS_PER_ENTRY, Node, Target};
use semel::{
    records::memory::MemoryState,
    store::directory::{self, EngineKind},
};

/// As the `semel` binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CYCLES_DEFAULT: u64 = 100_000;

/// The rate over all, and that of the entries in the middle: what else the machine has to do slows few of them.
fn report(name: &str, what: &str, commands: u64, taken: &mut [Duration]) {
    let rate = |commands: f64, taken: Duration| commands / taken.as_secs_f64();
    let total = rate(commands as f64, taken.iter().sum());
    taken.sort_unstable();
    let middle = rate(commands as f64 / taken.len() as f64, taken[taken.len() / 2]);
    println!("{name:<20}{what:<40}{total:>10.0} commands/s, {middle:>10.0} in the middle");
}

fn run<T: Target>(name: &str, cycles: u64, fresh: impl Fn() -> T) {
    let mut bench = Bench::new(fresh());
    report(name, "claim and complete, fresh keys", 2 * cycles, &mut bench.cycles(cycles, None, 1));
    if !bench.flushing.is_zero() {
        report(name, "  flushed, beside that", 2 * cycles, &mut [bench.flushing]);
    }

    // A window of 1 s over steps of 10 ms: 6,400 records are kept, and each entry removes as many as it makes.
    let mut bench = Bench::new(fresh());
    report(name, "claim and complete, as many expire", 2 * cycles, &mut bench.cycles(cycles, Some(1), 10));

    let mut bench = Bench::new(fresh());
    bench.cycles(COMMANDS_PER_ENTRY, None, 1);
    let retries = bench.entry((0..COMMANDS_PER_ENTRY).map(|_| bench.claim(1, None)).collect());
    let replay = |_| {
        let began = Instant::now();
        bench.state.apply(&retries);
        began.elapsed()
    };
    let mut taken: Vec<Duration> = (0..cycles / COMMANDS_PER_ENTRY).map(replay).collect();
    report(name, "claim of a completed key: its replay", cycles, &mut taken);
}

fn over_fjall() -> Node {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let engine = directory::open(EngineKind::Fjall, &dir.path().join("engine")).expect("an empty engine");
    Node::over(engine, Some(dir))
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = arguments.iter().find_map(|argument| argument.parse().ok());
    let only = arguments.iter().find_map(|argument| argument.strip_prefix("only="));
    let cycles = wanted.unwrap_or(CYCLES_DEFAULT) / COMMANDS_PER_ENTRY * COMMANDS_PER_ENTRY;
    if only.is_none_or(|only| only == "plain") {
        run("plain maps", cycles, MemoryState::default);
    }
    if only.is_none_or(|only| only == "overlay") {
        run("overlay", cycles, Node::over_memory);
    }
    if only.is_none_or(|only| only == "fjall") {
        run("overlay over fjall", cycles, over_fjall);
    }
}
