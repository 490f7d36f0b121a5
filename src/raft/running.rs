//! The consensus core of this node with the tasks around it, from start to end.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use openraft::{ServerState, async_runtime::WatchReceiver, error::Fatal};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};

use super::{
    FormError,
    barrier::Barrier,
    compaction::Compaction,
    forward::Forward,
    leadership::{Lead, Leadership, Role},
    log_store::LogStore,
    propose::{Proposer, Queue, unavailable},
    room::Room,
    roster::{Peers, Roster},
    scrub::{Figures, Scrubber},
    start::{Opened, Options, StartError},
    state_machine::StateMachine,
    types::{Member, Raft},
};
use crate::{
    fatal,
    id::{DiskId, NodeId, Time},
    limits,
    records::state::State,
    refusal::Refusal,
    seal::Keychain,
    store::records::{Measured, Records},
    wal::{Identity, Wal},
    work::{self, Worker},
};

/// A member counts as reachable for so long at least after it has told something: it tells once a second.
pub(super) const REACHABLE_MIN: Duration = Duration::from_millis(2 * limits::HELLO_MS);

/// Everything that runs.
pub(super) struct Running {
    pub identity: Identity,
    pub records: Arc<Records>,
    pub queue: Queue,
    pub barrier: Barrier,
    pub leadership: Arc<Leadership>,
    pub compaction: Arc<Compaction>,
    pub scrubbed: Arc<Figures>,
    pub propose_timeout: Duration,
    pub raft: Raft,
    pub state: StateMachine,
    pub log: LogStore,
    pub forward: Arc<Forward>,
    /// Held while a snapshot is received: one at a time.
    pub receiving: Arc<tokio::sync::Mutex<()>>,
    /// Held while the membership is changed: one change at a time.
    pub changing: tokio::sync::Mutex<()>,
    /// Disks that replacements have brought whose callers were not told that they are done.
    pub replaced: Mutex<BTreeMap<NodeId, DiskId>>,
    pub wal: Wal,
    pub room: Arc<Room>,
    pub keys: Arc<Keychain>,
    stopping: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    proposer: Mutex<Option<JoinHandle<()>>>,
    tasks: Vec<JoinHandle<()>>,
    flusher: Mutex<Option<Worker>>,
}

/// Runs what blocks on the disk where that is allowed.
pub(super) async fn blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    match work::run(job).await {
        Ok(result) => result,
        // The runtime ends and never began the job: whoever waits for it ends too.
        Err(error) if error.is_cancelled() => std::future::pending().await,
        Err(error) => panic!("what blocks on the disk doesn't panic: {error}"),
    }
}

/// A task of the node's. A panic in one would leave its callers waiting for good, so it ends the process.
fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(async move {
        if AssertUnwindSafe(task).catch_unwind().await.is_err() {
            fatal::end(format!("a task of consensus broke down: {name}"));
        }
    })
}

impl Running {
    pub async fn start(
        options: &Options,
        identity: Identity,
        empty: Option<Arc<Records>>,
        peers: &Arc<Peers>,
    ) -> Result<Self, StartError> {
        let (opener, of) = (options.clone(), Arc::clone(peers));
        let opened = blocking(move || opener.open(identity, empty, &of)).await?;
        Self::begin(options, identity, opened, peers).await
    }

    /// Starts the core over what was opened.
    pub async fn begin(
        options: &Options,
        identity: Identity,
        opened: Opened,
        peers: &Arc<Peers>,
    ) -> Result<Self, StartError> {
        let raft = options.core(&opened, identity, peers).await?;
        let Opened { wal, state, log } = opened;
        let records = Arc::clone(&state.records);
        let (clock, progress) = (Arc::clone(&options.clock), Arc::clone(&state.progress));
        let leadership = Arc::new(Leadership::new(options.node_id, clock, progress, Arc::clone(peers)));
        let forward = Arc::new(Forward {
            raft: raft.clone(),
            leadership: Arc::clone(&leadership),
            peers: Arc::clone(peers),
            identity,
            election_max: options.times.election_max,
        });
        let stopping = Arc::new(AtomicBool::new(false));
        let (stop, stopped) = watch::channel(false);
        let propose_timeout = options.limits.propose_timeout;
        let (node_id, space) = (options.node_id, Arc::clone(&state.space));
        let room = Room::new(node_id, raft.clone(), wal.clone(), Arc::clone(&records), space, Arc::clone(peers));
        let (proposer, queue) =
            Proposer::new(Arc::clone(&forward), &options.metrics, propose_timeout, stopped, Arc::clone(&room));
        let (barrier, barrier_task) = Barrier::new(Arc::clone(&forward));
        let (log_bytes, holds) = (options.limits.snapshot_log_bytes, Arc::clone(&peers.holds));
        let compaction = Compaction::new(raft.clone(), state.clone(), log_bytes, holds);
        let scrubbed = Arc::new(Figures::default());
        let scrubber = Scrubber {
            wal: wal.clone(),
            snapshots: Arc::clone(&state.snapshots),
            peers: Arc::clone(peers),
            every: options.limits.scrub,
            figures: Arc::clone(&scrubbed),
        };
        let metrics = &options.metrics;
        records.measure(Measured {
            flushes: metrics.store_flushes.clone(),
            seconds: metrics.store_flush_seconds.clone(),
            rows: metrics.store_flush_rows.clone(),
        });
        let flushed = Arc::clone(&records);
        flushed.begin_flusher();
        let by_task = Arc::clone(&records);
        let by_task = async move { by_task.run_flusher_as_task().await };
        let flusher = Worker::begin("store-flush", move || flushed.run_flusher(), by_task);
        let flusher = flusher.map_err(StartError::Kept)?;
        let tasks = vec![
            spawn(
                "the watcher",
                watch_core(
                    raft.clone(),
                    wal.clone(),
                    Arc::clone(peers),
                    Arc::clone(&leadership),
                    Arc::clone(&stopping),
                ),
            ),
            spawn("the read barrier", barrier_task),
            spawn("compaction", Arc::clone(&compaction).run()),
            spawn("the scrub", scrubber.run()),
            spawn("the ticker", tick(Arc::clone(&records), Arc::clone(&leadership), queue.clone())),
        ];
        let running = Self {
            identity,
            records,
            queue,
            barrier,
            leadership,
            compaction,
            scrubbed,
            propose_timeout,
            raft,
            state,
            log,
            forward,
            receiving: Arc::default(),
            changing: tokio::sync::Mutex::default(),
            replaced: Mutex::default(),
            wal,
            room,
            keys: Arc::clone(&options.keys),
            stopping,
            stop,
            proposer: Mutex::new(Some(spawn("the proposer", proposer.run()))),
            tasks,
            flusher: Mutex::new(Some(flusher)),
        };
        running.elect_alone().await;
        Ok(running)
    }

    /// A node that votes alone need not wait for an election time-out.
    async fn elect_alone(&self) {
        let only = self.raft.voter_ids().eq([self.identity.node_id]);
        if only && let Err(error) = self.raft.trigger().elect(false).await {
            tracing::error!(%error, "no election could be held");
        }
    }

    /// The members, as last logged.
    pub fn members(&self) -> BTreeMap<NodeId, Member> {
        let metrics = self.raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.nodes().map(|(node, member)| (*node, member.clone())).collect()
    }

    /// The membership, as last logged.
    pub fn membership(&self) -> super::types::StoredMembership {
        let metrics = self.raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        (*membership).clone()
    }

    /// Logs the first membership.
    pub async fn initialize(&self, members: BTreeMap<NodeId, Member>) -> Result<(), FormError> {
        let logged = self.raft.initialize(members).await;
        logged.map_err(|error| FormError::Membership { reason: error.to_string() })
    }

    /// Whether the log holds anything: a membership was logged, here or by another member.
    pub async fn is_initialized(&self) -> Result<bool, FormError> {
        let known = self.raft.is_initialized().await;
        known.map_err(|error| FormError::Membership { reason: error.to_string() })
    }

    /// Whether the first command is applied.
    pub fn is_formed(&self) -> bool {
        self.records.read().globals().formed.is_some()
    }

    /// Waits a while for a leader.
    pub async fn lead(&self) -> Result<Lead, Refusal> {
        if self.is_stopping() {
            return Err(unavailable("the node is stopping"));
        }
        self.forward.lead(Duration::from_millis(limits::LEADER_WAIT_MS)).await
    }

    /// Whether the node is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The member of this id, as last logged.
    pub fn member(&self, node: NodeId) -> Option<Member> {
        self.forward.member(node)
    }

    /// The last applied entry.
    pub fn applied(&self) -> Option<u64> {
        self.state.progress.applied()
    }

    /// Has the log note what members have acknowledged.
    pub fn write_marks(&self, roster: &Roster) {
        let metrics = self.raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        // A log that was just begun knows no members yet.
        if membership.log_id().is_some() {
            roster.write_marks(&self.wal, |node| membership.membership().get_node(&node).is_some());
        }
    }

    /// The last applied time.
    pub fn applied_time(&self) -> Time {
        self.state.progress.applied_time()
    }

    /// Has another member lead, if this node does and there is one, so that nobody waits for an election. Takes a while at
    /// most.
    pub async fn resign(&self) {
        if self.leadership.role().leading.is_none() {
            return;
        }
        let Some(to) = self.heir(true) else { return };
        if let Err(refusal) = self.transfer(to, Duration::from_millis(limits::RESIGN_MS)).await {
            tracing::info!(%refusal, to, "leadership could not be handed over");
        }
    }

    /// Ends without a word to anybody, as a process does that is killed.
    #[cfg(test)]
    pub async fn crash(&self) {
        self.stopping.store(true, Ordering::Release);
        self.tasks.iter().for_each(JoinHandle::abort);
        if let Some(proposer) = self.proposer.lock().take() {
            proposer.abort();
        }
        let _ = self.raft.shutdown().await;
        self.records.end_flusher();
        let flusher = self.flusher.lock().take();
        if let Some(flusher) = flusher {
            flusher.ended().await;
        }
        self.wal.closed().await;
    }

    /// Stops everything, once.
    pub async fn shutdown(&self) {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.resign().await;
        // What was queued is proposed and applied first: its callers still wait.
        self.stop.send_replace(true);
        let proposer = self.proposer.lock().take();
        if let Some(mut proposer) = proposer
            && tokio::time::timeout(Duration::from_millis(limits::CONSENSUS_STOP_MS), &mut proposer).await.is_err()
        {
            proposer.abort();
        }
        self.tasks.iter().for_each(JoinHandle::abort);
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "consensus did not stop in order");
        }
        self.records.end_flusher();
        let flusher = self.flusher.lock().take();
        if let Some(flusher) = flusher
            && !flusher.ended().await
        {
            tracing::error!("the store's last flush panicked");
        }
        self.wal.closed().await;
    }
}

impl Drop for Running {
    /// What nobody holds any more has no end to report.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
    }
}

/// Follows the core: who leads, and whether it still runs (C4).
async fn watch_core(raft: Raft, wal: Wal, peers: Arc<Peers>, leadership: Arc<Leadership>, stopping: Arc<AtomicBool>) {
    let mut metrics = raft.metrics();
    loop {
        let failed;
        {
            let seen = metrics.borrow_watched();
            failed = seen.running_state.as_ref().err().map(ToString::to_string);
            let vote = &seen.vote;
            let leads = seen.state == ServerState::Leader && vote.committed && vote.leader_id.node_id == seen.id;
            leadership.set_role(Role { leading: leads.then_some(vote.leader_id), leader: seen.current_leader });
        }
        if let Some(error) = failed
            && !stopping.load(Ordering::Acquire)
        {
            // Where the log is damaged, a node of a cluster need not end: it heals.
            match damaged(&wal).await {
                Some(damage) => peers.report(damage),
                None => fatal::end(format!("consensus has stopped: {error}")),
            }
            return leadership.set_role(Role::default());
        }
        if metrics.changed().await.is_err() {
            leadership.set_role(Role::default());
            if !stopping.load(Ordering::Acquire) {
                // Only a panic ends the core's task without a word; or it was dropped, because the runtime around it ends:
                // then this task is the next.
                match raft.with_raft_state(|_| ()).await {
                    Err(Fatal::Stopped) => tracing::warn!("the runtime ended around a node that was not shut down"),
                    Err(error) => fatal::end(format!("consensus has stopped: {error}")),
                    Ok(()) => fatal::end("consensus has stopped: it tells nothing any more"),
                }
            }
            return;
        }
    }
}

/// The first damage in the log, read to its end.
pub(super) async fn damaged(wal: &Wal) -> Option<String> {
    let scrub = wal.scrub();
    let found = move || scrub.filter_map(Result::ok).find_map(|read| read.damage);
    blocking(found).await.map(|damage| format!("the log is damaged: {damage}"))
}

/// Has what is due written down while nobody proposes anything: an idle leader ticks, about once a second, and without
/// a pause while more is due than one sweep writes down. A new leader ticks at once: until it has logged something its
/// time stands still, and reads are decided at applied time.
async fn tick(records: Arc<Records>, leadership: Arc<Leadership>, queue: Queue) {
    let at_most = Duration::from_millis(limits::PROPOSE_TIMEOUT_MS_DEFAULT);
    let mut roles = leadership.roles();
    loop {
        let pause = Duration::from_millis(limits::TICK_MS);
        if let Ok(Err(_)) = tokio::time::timeout(pause, roles.changed()).await {
            return;
        }
        let is_due = || records.next_due().is_some_and(|due| due <= leadership.now());
        let is_wanted = || leadership.wants_entry() || is_due() || records.has_rows_to_delete();
        while leadership.role().leading.is_some() && is_wanted() {
            if queue.tick(at_most).await.is_err() {
                break;
            }
        }
    }
}
