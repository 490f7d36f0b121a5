mod certified;
mod cluster;
mod fairness;
mod full;
mod replay;
mod restore;
mod scrub;

use std::{
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::*;
use crate::{
    clock::{Clock, ManualClock, SystemClock},
    config::{NodeLimits, RaftTimes},
    disk::{
        Call, Disk, OsDisk,
        fault::{Crash, Failure, FaultDisk},
    },
    fatal,
    id::{Fence, KeyedHash, LineageId, Position, Tenant, Uuid},
    limits,
    records::{
        answer::{Answer, ClaimAnswer},
        codec::Blob,
        command::{Claim, FEATURE_LEVEL, Fingerprints, Init, RecordRef, Sealed, TenantOpened, Wrapped},
        policy::{Limits, Policy},
        state::State,
    },
    refusal::Code,
    store::{
        directory::{EngineDirectory, EngineKind},
        engine::{Engine, EngineError},
        memory::MemoryEngine,
        records::OpenEngine,
    },
};

/// Engines in memory. One that is kept outlives its node, as a directory would.
#[derive(Default)]
pub(super) struct MemoryEngines {
    present: Mutex<Option<Arc<dyn Engine>>>,
    next: Mutex<Option<Arc<dyn Engine>>>,
}

impl MemoryEngines {
    fn delete(&self) {
        *self.present.lock() = None;
    }
}

impl OpenEngine for MemoryEngines {
    fn open(&self) -> Result<Arc<dyn Engine>, EngineError> {
        Ok(Arc::clone(self.present.lock().get_or_insert_with(|| Arc::new(MemoryEngine::new()))))
    }

    fn fresh(&self) -> Result<Arc<dyn Engine>, EngineError> {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        *self.next.lock() = Some(Arc::clone(&engine));
        Ok(engine)
    }

    fn adopt(&self) -> Result<(), EngineError> {
        *self.present.lock() = self.next.lock().take();
        Ok(())
    }
}

fn options(disk: Arc<dyn Disk>, dir: &Path, engines: Arc<dyn OpenEngine>) -> Options {
    let ms = Duration::from_millis;
    Options {
        node_id: 1,
        dir: dir.to_owned(),
        disk,
        engines,
        clock: Arc::new(SystemClock::default()),
        times: RaftTimes { heartbeat: ms(50), election_min: ms(200), election_max: ms(400) },
        limits: NodeLimits {
            wal_segment_bytes: 1 << 20,
            snapshot_log_bytes: limits::SNAPSHOT_LOG_BYTES_DEFAULT,
            disk_reserve: None,
            propose_timeout: ms(limits::PROPOSE_TIMEOUT_MS_DEFAULT),
            scrub: Duration::from_secs(3600),
            connections_max: 1,
            connections_per_address_max: 1,
            authentication_failures_per_s: 10,
            requests: Default::default(),
            unauthenticated: Duration::from_secs(10),
            idle: Duration::from_secs(300),
        },
        net: Arc::new(crate::net::TcpNet::default()),
        addresses: addresses(),
        admin: "127.0.0.1:7073".into(),
        known: std::collections::BTreeMap::new(),
        metrics: Arc::default(),
        keys: Arc::default(),
        observer: None,
    }
}

/// A node on a disk that forgets what was not synced.
struct Node {
    disk: FaultDisk,
    engines: Arc<MemoryEngines>,
    consensus: Consensus,
}

const DIR: &str = "/node";

impl Node {
    async fn new() -> Self {
        let disk = FaultDisk::new();
        let engines = Arc::new(MemoryEngines::default());
        let consensus = start(&disk, &engines).await.unwrap();
        let node = Self { disk, engines, consensus };
        assert!(node.form().await.unwrap().created);
        node
    }

    async fn form(&self) -> Result<Forming, FormError> {
        self.consensus.init_single(addresses(), init()).await
    }

    /// The machine crashes: what was not synced is lost, and the store with it where `keep_store` is false.
    async fn crash(self, keep_store: bool) -> Result<Self, StartError> {
        let disk = self.disk.crashed(Crash::LoseUnsynced);
        self.consensus.shutdown().await;
        if !keep_store {
            self.engines.delete();
        }
        let consensus = start(&disk, &self.engines).await?;
        Ok(Self { disk, engines: self.engines, consensus })
    }

    async fn claim(&self, key: u64) -> Applied {
        self.consensus.propose(claim(key)).await.unwrap()
    }

    fn snapshots(&self) -> Vec<std::path::PathBuf> {
        self.disk.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "semel")).collect()
    }
}

async fn start(disk: &FaultDisk, engines: &Arc<MemoryEngines>) -> Result<Consensus, StartError> {
    Consensus::start(options(Arc::new(disk.clone()), Path::new(DIR), Arc::<MemoryEngines>::clone(engines))).await
}

fn addresses() -> Addresses {
    Addresses { peer: "127.0.0.1:7171".into(), client: "127.0.0.1:7070".into() }
}

fn init() -> Init {
    Init {
        lineage_id: LineageId([1; 16]),
        cluster_id: ClusterId([2; 16]),
        cluster_name: "test".into(),
        downstream_secret: Wrapped { wrapping_id: 0, bytes: Blob(vec![9; 32].into()) },
        feature_level: FEATURE_LEVEL,
        limits: Limits::default(),
        policy: Policy::default(),
        first_token: None,
    }
}

fn tenant() -> Tenant {
    Tenant::parse("acme").unwrap()
}

fn open_tenant() -> Arc<Command> {
    let index_key = Wrapped { wrapping_id: 0, bytes: Blob(vec![3; 32].into()) };
    Arc::new(Command::TenantOpened(TenantOpened { tenant: tenant(), index_key }))
}

fn record(key: u64) -> RecordRef {
    let mut hash = [0; 16];
    hash[..8].copy_from_slice(&key.to_be_bytes());
    RecordRef { tenant: tenant(), operation: KeyedHash([4; 16]), record: KeyedHash(hash) }
}

fn claim(key: u64) -> Arc<Command> {
    // Long enough for the slowest machine: these tests are not about leases.
    leased(key, Some(24 * 3_600_000))
}

fn leased(key: u64, lease_ms: Option<u32>) -> Arc<Command> {
    Arc::new(Command::Claim(Box::new(Claim {
        record: record(key),
        id: Sealed::plain(vec![5; 40]),
        fingerprints: Fingerprints { keyed: vec![(1, [6; 32])], sealed: Sealed::plain(vec![6; 37]) },
        attempt_id: Uuid(crate::entropy::bytes()),
        lease_ms,
        staged: false,
        on_lapse: None,
        first_sent_at: None,
        labels: None,
        replay_s: None,
        evidence_s: None,
        not_after: None,
        actor: Sealed::plain(vec![7; 10]),
    })))
}

fn fence(applied: &Applied) -> Fence {
    match &applied.answer {
        Ok(Answer::Claim(ClaimAnswer::New(new))) => new.fence,
        other => panic!("not a grant: {other:?}"),
    }
}

fn is_in_progress(applied: &Applied) -> bool {
    matches!(&applied.answer, Ok(Answer::Claim(ClaimAnswer::InProgress { .. })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_forms_a_cluster_alone_and_answers() {
    let disk = FaultDisk::new();
    let engines = Arc::new(MemoryEngines::default());
    let consensus = start(&disk, &engines).await.unwrap();
    assert_eq!(consensus.status().role, RoleWord::Unformed);
    assert_eq!(consensus.propose(claim(1)).await.unwrap_err().code, Code::Unavailable);
    let formed = consensus.init_single(addresses(), init()).await.unwrap();
    assert_eq!(formed, Forming { cluster_id: ClusterId([2; 16]), created: true });
    let again = consensus.init_single(addresses(), init()).await.unwrap();
    assert!(!again.created);
    let other = Addresses { peer: "elsewhere:1".into(), ..addresses() };
    assert!(matches!(consensus.init_single(other, init()).await, Err(FormError::OtherMembers)));

    assert_eq!(consensus.propose(open_tenant()).await.unwrap().answer, Ok(Answer::Done));
    let first = consensus.propose(claim(1)).await.unwrap();
    assert_eq!(fence(&first), Fence(first.index.0));
    assert!(is_in_progress(&consensus.propose(claim(1)).await.unwrap()));
    consensus.read_barrier().await.unwrap();
    assert!(consensus.records().read().globals().position > first.index);
    let status = consensus.status();
    assert_eq!((status.role, status.leader_id, status.members.len()), (RoleWord::Leader, Some(1), 1));
    assert_eq!(status.members[0].member.disk_id, status.disk_id.unwrap());
    assert!(status.clock_offset_ms.abs() < 1000, "{}", status.clock_offset_ms);
    consensus.shutdown().await;
    assert_eq!(consensus.propose(claim(2)).await.unwrap_err().code, Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_answers_survive_a_crash_with_and_without_the_store() {
    let mut node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let mut fences = Vec::new();
    for (round, keep_store) in [true, false, true].into_iter().enumerate() {
        for key in 0..30 {
            fences.push((round as u64 * 1000 + key, fence(&node.claim(round as u64 * 1000 + key).await)));
        }
        node = node.crash(keep_store).await.unwrap();
        node.consensus.read_barrier().await.unwrap();
        for (key, fence) in &fences {
            let records = node.consensus.records();
            let head = records.read().head(&record(*key)).expect("what was granted is remembered");
            let crate::records::record::Stored::InProgress(owned) = &head.stored else { panic!("{head:?}") };
            assert_eq!(owned.fence(), *fence);
        }
        assert!(is_in_progress(&node.claim(fences[0].0).await));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_entries_and_keep_their_order() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let before = node.consensus.status().last_log.unwrap();
    let commands: Vec<_> = (0..200).map(claim).collect();
    let answers = node.consensus.propose_many(commands).await;
    let positions: Vec<Position> = answers.iter().map(|answer| answer.as_ref().unwrap().index).collect();
    assert!(positions.is_sorted_by(|a, b| a < b), "the queue's order is the log's order");
    let callers: Vec<_> = (0..2000u64)
        .map(|key| {
            let consensus = node.consensus.clone();
            tokio::spawn(async move { consensus.propose(claim(10_000 + key)).await.unwrap().index })
        })
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    for caller in callers {
        assert!(seen.insert(caller.await.unwrap()));
    }
    let entries = node.consensus.status().last_log.unwrap() - before;
    assert!(entries < 500, "2200 commands took {entries} entries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_outlives_its_caller() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    for key in 0..50 {
        let mut call = Box::pin(node.consensus.propose(claim(key)));
        // Polled once: the command is queued. Then the caller goes away.
        let _ = futures_util::poll!(&mut call);
        drop(call);
    }
    for key in 0..50 {
        assert!(is_in_progress(&node.claim(key).await), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_and_the_log_behind_it_rebuild_the_store() {
    let mut node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    // Enough entries for the margin below which the log is purged.
    for key in 0..150 {
        node.claim(key).await;
    }
    let first = node.consensus.snapshot_now().await.unwrap();
    assert_eq!(node.consensus.status().purged, None, "one snapshot is no reason to forget the log");
    for key in 150..300 {
        node.claim(key).await;
    }
    let second = node.consensus.snapshot_now().await.unwrap();
    assert!(second > first);
    let metrics = &node.consensus.shared.options.metrics;
    assert_eq!((metrics.snapshots.get(), metrics.snapshot_failures.get()), (2, 0));
    assert!(metrics.snapshot_position.get() > 150 && metrics.snapshot_bytes.get() > 0);
    assert!(metrics.snapshot_seconds.get() > 0.0 && metrics.proposals.get() >= 300);
    let purged = wait_for(|| node.consensus.status().purged).await;
    assert_eq!(purged, first, "the log is purged up to the older of two snapshots");
    for key in 300..320 {
        node.claim(key).await;
    }
    node = node.crash(false).await.unwrap();
    for key in [0, 149, 150, 299, 300, 319] {
        assert!(is_in_progress(&node.claim(key).await), "{key}");
    }
    // Now the newest file rots: the older one and the log from there on hold as much.
    let newest = node.snapshots().pop().unwrap();
    assert!(node.disk.flip_bit(&newest, 200, 3));
    node = node.crash(false).await.unwrap();
    for key in [0, 149, 150, 299, 300, 319] {
        assert!(is_in_progress(&node.claim(key).await), "{key}");
    }
    // Both rot: nothing reaches the log's first entry, and the node says so instead of serving.
    for file in node.snapshots() {
        assert!(node.disk.flip_bit(&file, 200, 3));
    }
    let refused = node.crash(false).await.err().expect("there is nothing to rebuild from");
    assert!(matches!(refused, StartError::NoSnapshot { first: begins } if begins == first + 1), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_and_purges_under_load_never_stop_the_node() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let load: Vec<_> = (0..8u64)
        .map(|caller| {
            let (consensus, done) = (node.consensus.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                for key in 0..100 {
                    consensus.propose(claim((caller << 32) + key)).await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut taken = 0;
    while done.load(Ordering::Relaxed) < 8 * 100 {
        node.consensus.snapshot_now().await.unwrap();
        taken += 1;
    }
    for caller in load {
        caller.await.unwrap();
    }
    assert!(taken > 5, "only {taken} snapshots meanwhile");
    wait_for(|| node.consensus.status().purged).await;
    assert_eq!(node.snapshots().len(), 2);
    let node = node.crash(false).await.unwrap();
    assert!(is_in_progress(&node.claim(7 << 32).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_fjall_come_back_also_without_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let start = || {
        let engines = Arc::new(EngineDirectory::new(dir.path().join("store"), EngineKind::Fjall));
        Consensus::start(options(Arc::new(OsDisk), dir.path(), engines))
    };
    let consensus = start().await.unwrap();
    consensus.init_single(addresses(), init()).await.unwrap();
    consensus.propose(open_tenant()).await.unwrap();
    consensus.propose(claim(1)).await.unwrap();
    consensus.shutdown().await;
    drop(consensus);
    let consensus = start().await.unwrap();
    assert!(is_in_progress(&consensus.propose(claim(1)).await.unwrap()));
    consensus.snapshot_now().await.unwrap();
    consensus.propose(claim(2)).await.unwrap();
    consensus.shutdown().await;
    drop(consensus);
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    let consensus = start().await.unwrap();
    for key in [1, 2] {
        assert!(is_in_progress(&consensus.propose(claim(key)).await.unwrap()), "{key}");
    }
    consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_what_the_store_holds_is_not_served() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let yesterday = node.disk.crashed(Crash::LoseUnsynced);
    let applied = node.claim(1).await;
    node.consensus.shutdown().await;
    let refused = start(&yesterday, &node.engines).await.err().expect("the log lacks an acknowledged entry");
    assert!(matches!(refused, StartError::LogLost { .. }), "{refused}");
    let refused = start(&FaultDisk::new(), &node.engines).await.err().expect("there is no log at all");
    assert!(matches!(refused, StartError::LogLost { last: 0, .. }), "{refused} {applied:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_nodes_directory_is_refused() {
    let node = Node::new().await;
    node.consensus.shutdown().await;
    let other = Options { node_id: 2, ..options(Arc::new(node.disk.clone()), Path::new(DIR), node.engines.clone()) };
    let refused = Consensus::start(other).await.err().expect("it is node 1's");
    assert!(matches!(refused, StartError::Node { found: 1, expected: 2 }), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_of_the_log_ends_the_node() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    fatal::set_hook(Arc::new(move |reason| heard.lock().push(reason.to_owned())));
    node.disk.fail_on(Call::Sync, "wal", 0, Failure::Eio);
    let refused = node.consensus.propose(claim(1)).await.unwrap_err();
    assert_eq!(refused.code, Code::ResultUnknown, "what was written may be found after a restart");
    wait_for(|| said.lock().iter().find(|reason| reason.contains("the log can't be written")).cloned()).await;
}

/// Whoever embeds a node may drop the runtime around it: that is no failure of the core, whichever of its tasks goes first.
#[test]
fn a_runtime_that_ends_around_a_node_ends_nothing_else() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    fatal::set_hook(Arc::new(move |reason| heard.lock().push(reason.to_owned())));
    for _ in 0..40 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // A node that something still holds, as a call that is being answered does.
        let held = Arc::new(runtime.block_on(Node::new()));
        for key in 0..8 {
            let busy = Arc::clone(&held);
            runtime.spawn(async move { while busy.consensus.propose(claim(key)).await.is_ok() {} });
        }
        runtime.block_on(async { held.claim(9).await });
        drop(runtime);
    }
    assert_eq!(*said.lock(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_brings_applied_time_to_now_and_many_share_one() {
    let node = Node::new().await;
    let before = node.consensus.status().last_log.unwrap();
    let past_applied = || Some(node.consensus.now()).filter(|now| node.consensus.records().figures().time < *now);
    let now = wait_for(past_applied).await;
    let ticks = (0..500).map(|_| node.consensus.tick_to(now));
    for applied in futures_util::future::join_all(ticks).await {
        assert!(applied.unwrap() >= now);
    }
    assert!(node.consensus.status().last_log.unwrap() - before < 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_leader_writes_down_what_is_due() {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    node.consensus.propose(leased(1, Some(100))).await.unwrap();
    let due = node.consensus.records().next_due().expect("the lease has a deadline");
    wait_for(|| (node.consensus.records().figures().time >= due).then_some(())).await;
    assert!(node.consensus.records().next_due().is_none_or(|next| next > due));
    let quiet = node.consensus.status().last_log;
    // That nothing happens has no condition to wait for: two ticks' time, in which one would have shown.
    tokio::time::sleep(Duration::from_millis(2 * limits::TICK_MS + 200)).await;
    assert_eq!(node.consensus.status().last_log, quiet, "nothing is due, so nothing ticks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_time_follows_the_wall_clock_forward_and_never_back() {
    const HOUR: Duration = Duration::from_secs(3600);
    let disk = FaultDisk::new();
    let clock = Arc::new(ManualClock::at(Time(1_800_000_000_000)));
    let engines = Arc::new(MemoryEngines::default());
    let options = Options { clock: clock.clone(), ..options(Arc::new(disk), Path::new(DIR), engines) };
    let consensus = Consensus::start(options).await.unwrap();
    consensus.init_single(addresses(), init()).await.unwrap();
    consensus.propose(open_tenant()).await.unwrap();
    assert_eq!(consensus.propose(claim(1)).await.unwrap().now, Time(1_800_000_000_000));
    // The machine slept for an hour: the monotonic clock did not count it.
    let woken = clock.wall().plus_ms(3_600_000);
    clock.set_wall(woken);
    assert_eq!(consensus.propose(claim(2)).await.unwrap().now, woken);
    // The date is set back: time goes on, at half rate.
    clock.set_wall(Time(1_800_000_000_000));
    clock.advance(Duration::from_secs(1));
    let first = consensus.propose(claim(3)).await.unwrap().now;
    clock.advance(HOUR / 2);
    let second = consensus.propose(claim(4)).await.unwrap().now;
    assert_eq!((first.since_ms(woken), second.since_ms(first)), (1000, 900_000));
}

async fn wait_for<T>(found: impl Fn() -> Option<T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match found() {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
    .expect("it comes to be")
}
