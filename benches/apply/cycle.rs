//! Claims and completions of fresh keys, as entries of many commands, and what they are applied to.

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
        engine::Engine,
        memory::MemoryEngine,
        records::{Mark, Records},
    },
};

/// So many commands are in an entry.
pub const COMMANDS_PER_ENTRY: u64 = 64;

/// What entries are applied to.
pub trait Target {
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
pub struct Node {
    records: Records,
    index: u64,
    // Removed last.
    _dir: Option<tempfile::TempDir>,
}

impl Node {
    /// Over an engine, which may lie in a directory that goes with it.
    pub fn over(engine: Arc<dyn Engine>, dir: Option<tempfile::TempDir>) -> Self {
        Self { records: Records::open(engine).expect("an empty engine"), index: 0, _dir: dir }
    }

    pub fn over_memory() -> Self {
        Self::over(Arc::new(MemoryEngine::new()), None)
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

fn wrapped() -> Wrapped {
    Wrapped { wrapping_id: 0, bytes: Blob(vec![7; 32].into()) }
}

/// The first command of a cluster.
pub fn init() -> Command {
    Command::Init(Box::new(Init {
        lineage_id: Default::default(),
        cluster_id: Default::default(),
        cluster_name: "bench".into(),
        downstream_secret: wrapped(),
        feature_level: 1,
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: None,
    }))
}

/// A state, and what it has been given.
pub struct Bench<T> {
    pub state: T,
    tenant: Tenant,
    now: Time,
    next_key: u64,
    /// What flushes took, beside applying.
    pub flushing: Duration,
}

impl<T: Target> Bench<T> {
    pub fn new(state: T) -> Self {
        let tenant = Tenant::parse("acme").expect("a good name");
        let mut bench = Self { state, tenant: tenant.clone(), now: Time(1), next_key: 0, flushing: Duration::ZERO };
        bench.apply(vec![init()]);
        bench.apply(vec![Command::TenantOpened(TenantOpened { tenant, index_key: wrapped() })]);
        bench
    }

    fn apply(&mut self, commands: Vec<Command>) {
        let entry = self.entry(commands);
        self.state.apply(&entry);
    }

    pub fn entry(&self, commands: Vec<Command>) -> Entry {
        Entry { time: self.now, commands: commands.into_iter().map(Arc::new).collect() }
    }

    fn record(&self, key: u64) -> RecordRef {
        RecordRef { tenant: self.tenant.clone(), operation: hash(1), record: hash(key) }
    }

    pub fn claim(&self, key: u64, windows_s: Option<u32>) -> Command {
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

    pub fn complete(&self, key: u64, fence: Fence) -> Command {
        let outcome = ProposedOutcome { meta: sealed(60), body: sealed(200), digest: [2; 32], body_bytes: 200 };
        let action = OwnerAction::Complete(outcome);
        Command::Owner(Box::new(OwnerCommand { record: self.record(key), fence, action, actor: sealed(16) }))
    }

    /// Claims and then completes fresh keys; the times that apply took for two entries each. Commands are made outside of
    /// them.
    pub fn cycles(&mut self, cycles: u64, windows_s: Option<u32>, step_ms: u64) -> Vec<Duration> {
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
