//! Commands a second of `records::apply` in memory: claims and completions in entries of 64 commands, over plain maps.
//!
//! `cargo bench --bench apply [-- CYCLES]`. Three lives: fresh keys, fresh keys while as many expire, and one retried key
//! that only answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use semel::{
    id::{Fence, KeyedHash, Position, Tenant, Time, Uuid},
    records::{
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
};

const COMMANDS_PER_ENTRY: u64 = 64;
const CYCLES_DEFAULT: u64 = 100_000;

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

struct Bench {
    state: MemoryState,
    tenant: Tenant,
    now: Time,
    next_key: u64,
}

impl Bench {
    fn new() -> Self {
        let tenant = Tenant::parse("acme").expect("a good name");
        let mut bench = Self { state: MemoryState::default(), tenant: tenant.clone(), now: Time(1), next_key: 0 };
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
        apply(&mut self.state, &entry);
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

    /// Claims and then completes fresh keys; the time that apply took. Commands are made outside of it.
    fn cycles(&mut self, cycles: u64, windows_s: Option<u32>, step_ms: u64) -> Duration {
        let mut taken = Duration::ZERO;
        for _ in 0..cycles / COMMANDS_PER_ENTRY {
            let keys = self.next_key..self.next_key + COMMANDS_PER_ENTRY;
            self.next_key += COMMANDS_PER_ENTRY;
            let Position(before) = self.state.globals().position;
            let claims = self.entry(keys.clone().map(|key| self.claim(key, windows_s)).collect());
            // The sweep takes one position, then each claim one.
            let fences = keys.clone().zip(before + 2..);
            let completes = self.entry(fences.map(|(key, fence)| self.complete(key, Fence(fence))).collect());
            let began = Instant::now();
            let claimed = apply(&mut self.state, &claims);
            let completed = apply(&mut self.state, &completes);
            taken += began.elapsed();
            assert!(claimed.iter().chain(&completed).all(|applied| applied.answer.is_ok()));
            self.now = self.now.plus_ms(step_ms);
        }
        taken
    }
}

fn report(name: &str, commands: u64, taken: Duration) {
    println!("{name:<44}{:>12.0} commands/s", commands as f64 / taken.as_secs_f64());
}

fn main() {
    let wanted = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let cycles = wanted.unwrap_or(CYCLES_DEFAULT) / COMMANDS_PER_ENTRY * COMMANDS_PER_ENTRY;

    let mut bench = Bench::new();
    report("claim and complete, fresh keys", 2 * cycles, bench.cycles(cycles, None, 1));

    // A window of 1 s over steps of 10 ms: 6,400 records are kept, and each entry removes as many as it makes.
    let mut bench = Bench::new();
    report("claim and complete, as many expire", 2 * cycles, bench.cycles(cycles, Some(1), 10));

    let mut bench = Bench::new();
    bench.cycles(COMMANDS_PER_ENTRY, None, 1);
    let retries = bench.entry((0..COMMANDS_PER_ENTRY).map(|_| bench.claim(1, None)).collect());
    let began = Instant::now();
    for _ in 0..cycles / COMMANDS_PER_ENTRY {
        apply(&mut bench.state, &retries);
    }
    report("claim of a completed key: its replay", cycles, began.elapsed());
}
