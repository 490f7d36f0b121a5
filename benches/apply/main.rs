//! Commands a second of `records::apply`: claims and completions in entries of 64 commands, over plain maps, and over the
//! overlay as a node holds it.
//!
//! `cargo bench --bench apply [-- CYCLES] [only=plain|overlay|fjall]`. Three lives: fresh keys, fresh keys while as many
//! expire, and one retried key that only answers. The overlay is flushed when it is as full as a node lets it become; a
//! node does that on another thread, so that it is measured by itself.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use semel::{
    id::{Fence, KeyedHash, Position, Tenant, Time, Uuid},
    limits,
    records::{
        answer::Applied,
        apply,
        codec::Blob,
        command::{
            Claim, Command, Entry, Fingerprints, Init, OwnerAction, OwnerCommand, ProposedOutcome, RecordRef, Sealed,
            TenantOpened, Wrapped,
        },
        memory::MemoryState,
        policy::{Limits, Policy},
        state::State,
    },
    store::{
        directory::{self, EngineKind},
        memory::MemoryEngine,
        records::{Mark, Records},
    },
};

/// As the `semel` binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const COMMANDS_PER_ENTRY: u64 = 64;
const CYCLES_DEFAULT: u64 = 100_000;

/// What entries are applied to.
trait Target {
    fn apply(&mut self, entry: &Entry) -> Vec<Applied>;
    fn position(&self) -> Position;
    /// Does what another thread of a node does, where that is due.
    fn rest(&mut self) -> Option<Duration>;
}

impl Target for MemoryState {
    fn apply(&mut self, entry: &Entry) -> Vec<Applied> {
        apply(self, entry)
    }

    fn position(&self) -> Position {
        self.globals().position
    }

    fn rest(&mut self) -> Option<Duration> {
        None
    }
}

/// The overlay and the engine behind it.
struct Node {
    records: Records,
    index: u64,
    // Removed last.
    _dir: Option<tempfile::TempDir>,
}

impl Node {
    fn over_memory() -> Self {
        let records = Records::open(Arc::new(MemoryEngine::new())).expect("an empty engine");
        Self { records, index: 0, _dir: None }
    }

    fn over_fjall() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let engine = directory::open(EngineKind::Fjall, &dir.path().join("engine")).expect("an empty engine");
        Self { records: Records::open(engine).expect("an empty engine"), index: 0, _dir: Some(dir) }
    }
}

impl Target for Node {
    fn apply(&mut self, entry: &Entry) -> Vec<Applied> {
        self.index += 1;
        let mark = Mark { index: self.index, term: 1, node: 1, membership: Bytes::from_static(b"members") };
        self.records.apply(mark, Some(entry))
    }

    fn position(&self) -> Position {
        self.records.figures().position
    }

    fn rest(&mut self) -> Option<Duration> {
        (self.records.figures().bytes >= limits::OVERLAY_FLUSH_BYTES).then(|| {
            let began = Instant::now();
            self.records.flush().expect("the engine works");
            began.elapsed()
        })
    }
}

fn sealed(bytes: usize) -> Sealed {
    Sealed::plain(vec![b'x'; bytes])
}

fn hash(n: u64) -> KeyedHash {
    // Spread like a keyed hash: neighbours in time are no neighbours in the index.
    let spread = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&spread.to_be_bytes());
    bytes[8..].copy_from_slice(&n.to_be_bytes());
    KeyedHash(bytes)
}

struct Bench<T> {
    state: T,
    tenant: Tenant,
    now: Time,
    next_key: u64,
    flushing: Duration,
}

impl<T: Target> Bench<T> {
    fn new(state: T) -> Self {
        let tenant = Tenant::parse("acme").expect("a good name");
        let mut bench = Self { state, tenant: tenant.clone(), now: Time(1), next_key: 0, flushing: Duration::ZERO };
        let wrapped = Wrapped { wrapping_id: 0, bytes: Blob(vec![7; 32].into()) };
        let init = Init {
            lineage_id: Default::default(),
            cluster_id: Default::default(),
            cluster_name: "bench".into(),
            downstream_secret: wrapped.clone(),
            feature_level: 1,
            limits: Limits::default(),
            policy: Policy::default(),
            first_token: None,
        };
        bench.apply(vec![Command::Init(Box::new(init))]);
        bench.apply(vec![Command::TenantOpened(TenantOpened { tenant, index_key: wrapped })]);
        bench
    }

    fn apply(&mut self, commands: Vec<Command>) {
        let entry = self.entry(commands);
        self.state.apply(&entry);
    }

    fn entry(&self, commands: Vec<Command>) -> Entry {
        Entry { time: self.now, commands: commands.into_iter().map(Arc::new).collect() }
    }

    fn record(&self, key: u64) -> RecordRef {
        RecordRef { tenant: self.tenant.clone(), operation: hash(1), record: hash(key) }
    }

    fn claim(&self, key: u64, windows_s: Option<u32>) -> Command {
        Command::Claim(Box::new(Claim {
            record: self.record(key),
            id: sealed(60),
            fingerprints: Fingerprints { keyed: vec![(1, [1; 32])], sealed: sealed(40) },
            attempt_id: Uuid(hash(key).0),
            lease_ms: None,
            staged: false,
            on_lapse: None,
            first_sent_at: None,
            labels: None,
            replay_s: windows_s,
            evidence_s: windows_s,
            not_after: None,
            actor: sealed(16),
        }))
    }

    fn complete(&self, key: u64, fence: Fence) -> Command {
        let outcome = ProposedOutcome { meta: sealed(60), body: sealed(200), digest: [2; 32], body_bytes: 200 };
        let action = OwnerAction::Complete(outcome);
        Command::Owner(Box::new(OwnerCommand { record: self.record(key), fence, action, actor: sealed(16) }))
    }

    /// Claims and then completes fresh keys; the times that apply took for two entries each. Commands are made outside of
    /// them.
    fn cycles(&mut self, cycles: u64, windows_s: Option<u32>, step_ms: u64) -> Vec<Duration> {
        let mut taken = Vec::new();
        for _ in 0..cycles / COMMANDS_PER_ENTRY {
            let keys = self.next_key..self.next_key + COMMANDS_PER_ENTRY;
            self.next_key += COMMANDS_PER_ENTRY;
            let Position(before) = self.state.position();
            let claims = self.entry(keys.clone().map(|key| self.claim(key, windows_s)).collect());
            // The sweep takes one position, then each claim one.
            let fences = keys.clone().zip(before + 2..);
            let completes = self.entry(fences.map(|(key, fence)| self.complete(key, Fence(fence))).collect());
            let began = Instant::now();
            let claimed = self.state.apply(&claims);
            let completed = self.state.apply(&completes);
            taken.push(began.elapsed());
            assert!(claimed.iter().chain(&completed).all(|applied| applied.answer.is_ok()));
            self.now = self.now.plus_ms(step_ms);
            self.flushing += self.state.rest().unwrap_or_default();
        }
        taken
    }
}

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
        run("overlay over fjall", cycles, Node::over_fjall);
    }
}
