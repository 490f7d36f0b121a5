//! The paths: each on one thread, and without anything that waits.

use std::sync::Arc;

use bytes::Bytes;
use semel::{
    auth::Caller,
    disk::OsDisk,
    fingerprint::Fingerprint,
    id::{Fence, Key, Operation, Principal, Tenant, Time, Uuid},
    records::{
        answer::Applied,
        codec,
        command::{Command, Entry},
        memory::MemoryState,
        state::State,
    },
    refusal::Refusal,
    seal::Keychain,
    service::{
        Calls, Log, Service,
        answer::Found,
        request::{ClaimRequest, Headers, Labels, Outcome, OwnerAction, OwnerRequest, Payload, RecordName},
    },
    store::{
        memory::MemoryEngine,
        records::{Mark, Records},
    },
    wal::{Identity, Options, Wal, WalEntry},
};

use crate::cycle::{Bench, COMMANDS_PER_ENTRY, Node, Target};

/// How often a path is run at least.
pub const TIMES: u64 = 640;

const REQUEST: &str = r#"{"amount": 1999, "currency": "EUR", "customer": {"id": "cus_9s6XKzkNRiz8i3", "name": "Zoë Müller"},
    "lines": [{"sku": "A-1", "count": 2}, {"sku": "B-7", "count": 1}], "note": "second floor, left", "capture": true}"#;

/// Runs a path so many times.
pub fn run(name: &str, times: u64) {
    match name {
        // Two commands each: a claim and the completion.
        "apply" => cycles(MemoryState::default(), times),
        "overlay" => cycles(Node::over_memory(), times),
        "entry" => entries(times),
        "wal" => appends(times),
        "fingerprint" => fingerprints(times),
        "service" => calls(times),
        other => panic!("there is no path {other}"),
    }
}

fn cycles<T: Target>(state: T, times: u64) {
    Bench::new(state).cycles(times, None, 1);
}

/// A claim is encoded and decoded, as a part of an entry.
fn entries(times: u64) {
    let bench = Bench::new(MemoryState::default());
    let entry = bench.entry((0..COMMANDS_PER_ENTRY).map(|key| bench.claim(key, None)).collect());
    for _ in 0..times / COMMANDS_PER_ENTRY {
        let bytes = codec::encode(&entry);
        let read: Entry = codec::decode(&bytes).expect("what was encoded");
        assert_eq!(read.commands.len(), entry.commands.len());
    }
}

/// An entry of 300 B is appended, sixteen to a batch.
fn appends(times: u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let identity = Identity {
        lineage_id: Default::default(),
        cluster_id: Default::default(),
        node_id: 1,
        disk_id: Default::default(),
    };
    let mut parts = Wal::create_parts(Arc::new(OsDisk), dir.path(), identity, &Options::default()).expect("a new log");
    let payload = Bytes::from(vec![7; 300]);
    let mut next = 0;
    for _ in 0..times / 16 {
        for _ in 0..16 {
            let entry = WalEntry { index: next, term: 1, payload: payload.clone() };
            parts.wal.append(vec![entry], |done| done.expect("the disk works"));
            next += 1;
        }
        parts.writer.step();
    }
}

fn fingerprints(times: u64) {
    for _ in 0..times {
        Fingerprint::json_text(std::hint::black_box(REQUEST)).expect("good JSON");
    }
}

/// A log of one node that applies at once.
struct AtOnce {
    records: Arc<Records>,
    index: std::sync::atomic::AtomicU64,
}

impl AtOnce {
    fn apply(&self, commands: Vec<Arc<Command>>) -> Vec<Applied> {
        let index = self.index.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mark = Mark { index, term: 1, node: 1, membership: Bytes::from_static(b"members") };
        self.records.apply(mark, Some(&Entry { time: Time(index), commands }))
    }
}

impl Log for AtOnce {
    async fn propose(&self, commands: Vec<Arc<Command>>) -> Vec<Result<Applied, Refusal>> {
        self.apply(commands).into_iter().map(Ok).collect()
    }

    async fn barrier(&self) -> Result<Time, Refusal> {
        Ok(self.now())
    }

    fn leading(&self) -> Result<(), Refusal> {
        Ok(())
    }

    fn is_cut_off(&self) -> bool {
        false
    }

    fn is_out_of_touch(&self) -> bool {
        false
    }

    fn now(&self) -> Time {
        self.records.read().globals().time
    }

    async fn time(&self) -> Result<Time, Refusal> {
        Ok(self.now())
    }

    async fn tick_to(&self, _: Time) -> Result<(), Refusal> {
        Ok(())
    }
}

/// A claim and its completion, from the service's request to its answer.
fn calls(times: u64) {
    let records = Arc::new(Records::open(Arc::new(MemoryEngine::new())).expect("an empty engine"));
    let log = Arc::new(AtOnce { records: Arc::clone(&records), index: 1.into() });
    log.apply(vec![Arc::new(crate::cycle::init())]);
    let service = Arc::new(Service::new(log, records, Arc::<Keychain>::default()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let fingerprint = Fingerprint::json_text(REQUEST).expect("good JSON");
    let caller = Caller::open();
    runtime.block_on(async {
        for number in 0..times {
            let record = RecordName {
                tenant: Some(Tenant::parse("acme").expect("a good name")),
                principal: Principal::parse("shop").expect("a good name"),
                operation: Operation::parse("charge").expect("a good name"),
                key: Key::parse(&format!("order-{number:08}")).expect("a good key"),
            };
            let fence = claim(&service, &caller, record.clone(), fingerprint, number).await;
            let outcome = Outcome {
                status: 201,
                headers: Headers::default(),
                content_type: Some("application/json".into()),
                body: Payload(Bytes::from_static(&[b'x'; 300])),
                valid_until: None,
            };
            let request = OwnerRequest { record, fence, action: OwnerAction::Complete(outcome) };
            service.owner(&caller, request).await.expect("the claim is held");
        }
    });
}

async fn claim(
    service: &Arc<Service<AtOnce>>,
    caller: &Caller,
    record: RecordName,
    fingerprint: Fingerprint,
    number: u64,
) -> Fence {
    let request = ClaimRequest {
        record,
        fingerprints: vec![fingerprint],
        attempt_id: Some(Uuid(u128::from(number).to_be_bytes())),
        lease_ms: None,
        wait_ms: 0,
        staged: false,
        on_lapse: None,
        labels: Labels::default(),
        first_sent_at: None,
        replay_s: None,
        evidence_s: None,
        ttl_ms: None,
    };
    match service.claim(caller, request).await.map(|answer| answer.found) {
        Ok(Found::New(new)) => new.fence,
        other => panic!("a fresh key is new: {other:?}"),
    }
}
