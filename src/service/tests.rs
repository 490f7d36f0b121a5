//! Claims that wait while the leader changes: a real log whose leader comes and goes by the test's word.
#![allow(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Calls, Log, Service,
    answer::{ClaimAnswer, Found},
    request::{ClaimRequest, Labels, OwnerAction, OwnerRequest, RecordName},
};
use crate::{
    auth::Caller,
    clock::SystemClock,
    config::{Exposure, Overrides, Purpose, Source},
    disk::OsDisk,
    fingerprint::Fingerprint,
    id::{ClusterId, Fence, Key, LineageId, Operation, Principal, Time, Uuid},
    raft::{Addresses, Consensus, Options},
    records::{
        answer::Applied,
        codec::Blob,
        command::{Command, Init, Wrapped},
        policy::{Limits, Policy},
    },
    refusal::{Code, Refusal},
    store::directory::{EngineDirectory, EngineKind},
};

/// The log, while the test lets it be one.
struct Shaken {
    consensus: Consensus,
    /// What every barrier, and what every claim that is proposed, is refused with.
    barrier: Mutex<Option<Code>>,
    propose: Mutex<Option<Code>>,
    claims: AtomicUsize,
    is_cut_off: AtomicBool,
}

impl Shaken {
    fn refused(by: &Mutex<Option<Code>>) -> Result<(), Refusal> {
        by.lock().map_or(Ok(()), |code| Err(Refusal::new(code, "as the test says")))
    }
}

impl Log for Shaken {
    async fn propose(&self, commands: Vec<Arc<Command>>) -> Vec<Result<Applied, Refusal>> {
        if commands.iter().any(|command| matches!(**command, Command::Claim(_))) {
            self.claims.fetch_add(1, Ordering::SeqCst);
            if let Err(refusal) = Self::refused(&self.propose) {
                return vec![Err(refusal); commands.len()];
            }
        }
        self.consensus.propose_many(commands).await
    }

    async fn barrier(&self) -> Result<Time, Refusal> {
        Self::refused(&self.barrier)?;
        self.consensus.read_barrier().await?;
        Ok(self.consensus.now())
    }

    fn leading(&self) -> Result<(), Refusal> {
        Self::refused(&self.barrier)
    }

    fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::SeqCst)
    }

    fn is_out_of_touch(&self) -> bool {
        false
    }

    fn now(&self) -> Time {
        self.consensus.now()
    }

    async fn time(&self) -> Result<Time, Refusal> {
        self.barrier().await
    }

    async fn tick_to(&self, time: Time) -> Result<(), Refusal> {
        self.consensus.tick_to(time).await.map(drop)
    }
}

struct Running {
    service: Arc<Service<Shaken>>,
    log: Arc<Shaken>,
    // Removed last.
    _dir: tempfile::TempDir,
}

impl Running {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let named = Overrides { data_dir: Some(dir.path().display().to_string()), ..Overrides::default() };
        let config = Source::default().with(named).check(Purpose::Dev, Exposure::default()).unwrap();
        let addresses = Addresses { peer: "127.0.0.1:1".into(), client: "127.0.0.1:2".into() };
        let consensus = Consensus::start(Options {
            node_id: 1,
            dir: config.data_dir.clone(),
            disk: Arc::new(OsDisk),
            engines: Arc::new(EngineDirectory::new(config.data_dir.join("store"), EngineKind::Memory)),
            clock: Arc::new(SystemClock::default()),
            times: config.raft,
            limits: config.limits,
            net: Arc::new(crate::net::TcpNet::default()),
            addresses: addresses.clone(),
            admin: "127.0.0.1:3".into(),
            known: std::collections::BTreeMap::new(),
            metrics: Arc::default(),
            keys: Arc::default(),
            observer: None,
        })
        .await
        .unwrap();
        let init = Init {
            lineage_id: LineageId([1; 16]),
            cluster_id: ClusterId([2; 16]),
            cluster_name: "test".into(),
            downstream_secret: Wrapped { wrapping_id: 0, bytes: Blob(vec![9; 32].into()) },
            feature_level: 1,
            limits: Limits::default(),
            policy: Policy::default(),
            first_token: None,
        };
        consensus.init_single(addresses, init).await.unwrap();
        let log = Arc::new(Shaken {
            consensus: consensus.clone(),
            barrier: Mutex::new(None),
            propose: Mutex::new(None),
            claims: AtomicUsize::new(0),
            is_cut_off: AtomicBool::new(false),
        });
        let service = Arc::new(Service::new(Arc::clone(&log), consensus.records(), Arc::clone(consensus.keys())));
        Self { service, log, _dir: dir }
    }

    async fn claim(&self, wait_ms: u32) -> Result<ClaimAnswer, Refusal> {
        self.service.claim(&Caller::open(), request(wait_ms)).await
    }

    /// The fence of whoever owns the record from now on.
    async fn own(&self) -> Fence {
        match self.claim(0).await.unwrap().found {
            Found::New(new) => new.fence,
            other => panic!("not a grant: {other:?}"),
        }
    }

    fn waiting(&self, wait_ms: u32) -> tokio::task::JoinHandle<Result<ClaimAnswer, Refusal>> {
        let service = Arc::clone(&self.service);
        tokio::spawn(async move { service.claim(&Caller::open(), request(wait_ms)).await })
    }

    async fn until_one_waits(&self) {
        while self.service.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn release(&self, fence: Fence) {
        let request = OwnerRequest { record: name(), fence, action: OwnerAction::Release { evidence: evidence() } };
        self.service.owner(&Caller::open(), request).await.unwrap();
    }

    fn is_idle(&self) -> bool {
        self.service.waiting() == 0
    }
}

fn evidence() -> Option<super::request::Statement> {
    Some(super::request::Statement::parse("evidence", "nothing was sent".to_owned()).unwrap())
}

fn name() -> RecordName {
    RecordName {
        tenant: None,
        principal: Principal::parse("").unwrap(),
        operation: Operation::parse("charge").unwrap(),
        key: Key::parse("k").unwrap(),
    }
}

fn request(wait_ms: u32) -> ClaimRequest {
    ClaimRequest {
        record: name(),
        fingerprints: vec![Fingerprint::json_text("1").unwrap()],
        attempt_id: Some(Uuid(crate::entropy::bytes())),
        lease_ms: Some(60_000),
        wait_ms,
        staged: false,
        on_lapse: None,
        labels: Labels::default(),
        first_sent_at: None,
        replay_s: None,
        evidence_s: None,
        ttl_ms: None,
    }
}

fn is_new(answer: &Result<ClaimAnswer, Refusal>) -> bool {
    matches!(answer, Ok(ClaimAnswer { found: Found::New(_), .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_goes_on_through_a_time_without_a_leader() {
    let running = Running::start().await;
    let fence = running.own().await;
    let waiting = running.waiting(30_000);
    running.until_one_waits().await;
    *running.log.barrier.lock() = Some(Code::Unavailable);
    running.release(fence).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "it waits for a leader");
    *running.log.barrier.lock() = None;
    assert!(is_new(&waiting.await.unwrap()));
    assert!(running.is_idle());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proposal_that_was_refused_is_made_again_within_the_wait() {
    let running = Running::start().await;
    let fence = running.own().await;
    let waiting = running.waiting(30_000);
    running.until_one_waits().await;
    *running.log.propose.lock() = Some(Code::Unavailable);
    let before = running.log.claims.load(Ordering::SeqCst);
    running.release(fence).await;
    while running.log.claims.load(Ordering::SeqCst) < before + 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    *running.log.propose.lock() = None;
    assert!(is_new(&waiting.await.unwrap()));
    assert!(running.is_idle());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_without_a_leader_is_unavailable() {
    let running = Running::start().await;
    running.own().await;
    *running.log.barrier.lock() = Some(Code::Unavailable);
    let began = Instant::now();
    let refused = running.claim(400).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.attempt_id.is_some());
    assert!((Duration::from_millis(400)..Duration::from_secs(5)).contains(&began.elapsed()));
    assert!(running.is_idle());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_does_not_wait_is_refused_at_once() {
    let running = Running::start().await;
    running.own().await;
    *running.log.barrier.lock() = Some(Code::Unavailable);
    let began = Instant::now();
    assert_eq!(running.claim(0).await.unwrap_err().code, Code::Unavailable);
    assert!(began.elapsed() < Duration::from_millis(90), "no pause either");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_not_known_is_told_and_proposed_no_second_time() {
    let running = Running::start().await;
    let fence = running.own().await;
    running.release(fence).await;
    let before = running.log.claims.load(Ordering::SeqCst);
    *running.log.propose.lock() = Some(Code::ResultUnknown);
    assert_eq!(running.claim(5_000).await.unwrap_err().code, Code::ResultUnknown);
    assert_eq!(running.log.claims.load(Ordering::SeqCst), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stops_waits_for_no_leader() {
    let running = Running::start().await;
    running.own().await;
    *running.log.barrier.lock() = Some(Code::Unavailable);
    let waiting = running.waiting(60_000);
    tokio::time::sleep(Duration::from_millis(150)).await;
    running.service.end_waits();
    let answered = tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("it stops").unwrap();
    assert_eq!(answered.unwrap_err().code, Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_on_a_node_that_is_cut_off() {
    let at_most = Duration::from_secs(4);
    // Whether it waits for the record, or for a leader.
    for has_leader in [true, false] {
        let running = Running::start().await;
        running.own().await;
        let waiting = running.waiting(60_000);
        running.until_one_waits().await;
        if !has_leader {
            *running.log.barrier.lock() = Some(Code::Unavailable);
        }
        running.log.is_cut_off.store(true, Ordering::SeqCst);
        let refused = tokio::time::timeout(at_most, waiting).await.expect("it is told").unwrap().unwrap_err();
        assert!(refused.code == Code::Unavailable && refused.attempt_id.is_some(), "{refused}");
        assert!(running.is_idle());
    }
}
