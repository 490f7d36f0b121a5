//! The consensus core of this node with the tasks around it, from start to end.

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use openraft::{ServerState, async_runtime::WatchReceiver};
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
    roster::{Peers, Roster},
    start::{Opened, Options, StartError},
    state_machine::StateMachine,
    types::{LogId, Member, Raft},
};
use crate::{
    fatal,
    id::{ClusterId, DiskId, NodeId, Time},
    limits,
    records::state::State,
    refusal::Refusal,
    store::records::Records,
    wal::{Identity, Wal},
};

/// The part that a node plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleWord {
    /// It leads.
    Leader,
    /// It votes, and another leads or none.
    Follower,
    /// It wants to lead.
    Candidate,
    /// It has no vote.
    Learner,
    /// It is in no cluster yet.
    Unformed,
    /// Its directory was put aside, and it waits to be healed.
    Quarantined,
    /// A cluster knows it by a disk that is not here: an operator has to say what becomes of it.
    WaitingForReplace,
}

impl RoleWord {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            RoleWord::Leader => "leader",
            RoleWord::Follower => "follower",
            RoleWord::Candidate => "candidate",
            RoleWord::Learner => "learner",
            RoleWord::Unformed => "unformed",
            RoleWord::Quarantined => "quarantined",
            RoleWord::WaitingForReplace => "waiting_for_replace",
        }
    }
}

/// What a member is in the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberStanding {
    /// It votes.
    Voter,
    /// It does not.
    Learner,
}

/// A member as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its id.
    pub node_id: NodeId,
    /// Where it is and which disk it has.
    pub member: Member,
    /// What it is.
    pub standing: MemberStanding,
    /// The last entry it is known to have; only the leader knows.
    pub matched: Option<u64>,
    /// What it has told lately; none of this node itself, and of one that has told nothing.
    pub told: Option<MemberTold>,
}

/// What a member has told of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberTold {
    /// Whether that was within the longest time without a leader.
    pub is_reachable: bool,
    /// The term it is in.
    pub term: u64,
    /// The last entry of its log.
    pub last_log: Option<u64>,
    /// The last entry it has applied.
    pub applied: Option<u64>,
    /// How far its wall clock is ahead of cluster time, ms.
    pub clock_offset_ms: i64,
    /// Bytes on its disk.
    pub disk_bytes: u64,
    /// Records that it holds.
    pub records: u64,
}

/// How a node stands in consensus. Indexes are those of log entries, `None` for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The node.
    pub node_id: NodeId,
    /// Its disk; none while unformed.
    pub disk_id: Option<DiskId>,
    /// Its cluster; none until the first command is applied.
    pub cluster_id: Option<ClusterId>,
    /// Its part.
    pub role: RoleWord,
    /// The term.
    pub term: u64,
    /// Who leads.
    pub leader_id: Option<NodeId>,
    /// The last entry of its log.
    pub last_log: Option<u64>,
    /// The last entry known to be decided.
    pub committed: Option<u64>,
    /// The last entry applied.
    pub applied: Option<u64>,
    /// The last entry purged.
    pub purged: Option<u64>,
    /// The last entry in the newest snapshot.
    pub snapshot: Option<u64>,
    /// How far the wall clock is ahead of cluster time, ms.
    pub clock_offset_ms: i64,
    /// The members.
    pub members: Vec<MemberStatus>,
}

impl Status {
    pub(super) fn outside(node_id: NodeId, role: RoleWord) -> Self {
        Self {
            node_id,
            disk_id: None,
            cluster_id: None,
            role,
            term: 0,
            leader_id: None,
            last_log: None,
            committed: None,
            applied: None,
            purged: None,
            snapshot: None,
            clock_offset_ms: 0,
            members: Vec::new(),
        }
    }
}

/// A member counts as reachable for so long at least after it has told something: it tells once a second.
const REACHABLE_MIN: Duration = Duration::from_millis(2 * limits::HELLO_MS);

/// Everything that runs.
pub(super) struct Running {
    pub identity: Identity,
    pub records: Arc<Records>,
    pub queue: Queue,
    pub barrier: Barrier,
    pub leadership: Arc<Leadership>,
    pub compaction: Arc<Compaction>,
    pub propose_timeout: Duration,
    pub raft: Raft,
    pub state: StateMachine,
    pub log: LogStore,
    pub forward: Arc<Forward>,
    /// Held while a snapshot is received: one at a time.
    pub receiving: Arc<tokio::sync::Mutex<()>>,
    /// Held while the membership is changed: one change at a time.
    pub changing: tokio::sync::Mutex<()>,
    wal: Wal,
    stopping: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    proposer: Mutex<Option<JoinHandle<()>>>,
    tasks: Vec<JoinHandle<()>>,
    flusher: Mutex<Option<thread::JoinHandle<()>>>,
}

/// Runs what blocks on the disk where that is allowed.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("what blocks on the disk doesn't panic")
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
        let (proposer, queue) = Proposer::new(Arc::clone(&forward), Arc::clone(&records), propose_timeout, stopped);
        let (barrier, barrier_task) = Barrier::new(Arc::clone(&forward));
        let (log_bytes, holds) = (options.limits.snapshot_log_bytes, Arc::clone(&peers.holds));
        let compaction = Compaction::new(raft.clone(), state.clone(), log_bytes, holds);
        let flushed = Arc::clone(&records);
        let flusher = thread::Builder::new().name("store-flush".into()).spawn(move || flushed.run_flusher());
        let flusher = flusher.map_err(StartError::Kept)?;
        let tasks = vec![
            spawn("the watcher", watch_core(raft.clone(), Arc::clone(&leadership), Arc::clone(&stopping))),
            spawn("the read barrier", barrier_task),
            spawn("compaction", Arc::clone(&compaction).run()),
            spawn("the ticker", tick(Arc::clone(&records), Arc::clone(&leadership), queue.clone())),
        ];
        let running = Self {
            identity,
            records,
            queue,
            barrier,
            leadership,
            compaction,
            propose_timeout,
            raft,
            state,
            log,
            forward,
            receiving: Arc::default(),
            changing: tokio::sync::Mutex::default(),
            wal,
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

    pub fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let index = |id: &Option<LogId>| id.as_ref().map(|id| id.index);
        let membership = metrics.membership_config.membership();
        let voters: Vec<NodeId> = membership.voter_ids().collect();
        let member = |(node, member): (&NodeId, &Member)| MemberStatus {
            node_id: *node,
            member: member.clone(),
            standing: if voters.contains(node) { MemberStanding::Voter } else { MemberStanding::Learner },
            matched: metrics.replication.as_ref().and_then(|all| all.get(node)).and_then(&index),
            told: self.told(*node),
        };
        let formed = self.records.read().globals().formed.clone();
        Status {
            node_id: self.identity.node_id,
            disk_id: Some(self.identity.disk_id),
            cluster_id: formed.as_ref().map(|formed| formed.cluster_id),
            role: match (formed, metrics.state) {
                (None, _) => RoleWord::Unformed,
                (_, ServerState::Leader) => RoleWord::Leader,
                (_, ServerState::Candidate) => RoleWord::Candidate,
                (_, ServerState::Learner) => RoleWord::Learner,
                (_, ServerState::Follower | ServerState::Shutdown) => RoleWord::Follower,
            },
            term: metrics.current_term,
            leader_id: metrics.current_leader,
            last_log: metrics.last_log_index,
            committed: index(&metrics.local_committed),
            applied: index(&metrics.last_applied),
            purged: index(&metrics.purged),
            snapshot: index(&metrics.snapshot),
            clock_offset_ms: self.leadership.clock_offset_ms(),
            members: membership.nodes().map(member).collect(),
        }
    }

    fn told(&self, node: NodeId) -> Option<MemberTold> {
        let roster = &self.forward.peers.roster;
        let hello = roster.heard(node)?.hello;
        let wall = roster.wall(node).unwrap_or(hello.wall);
        Some(MemberTold {
            is_reachable: roster.is_reachable(node, self.forward.election_max.max(REACHABLE_MIN)),
            term: hello.vote.map_or(0, |vote| vote.leader_id.term),
            last_log: hello.last_log.map(|id| id.index),
            applied: hello.applied.map(|id| id.index),
            clock_offset_ms: self.leadership.offset_ms(wall),
            disk_bytes: hello.disk_bytes,
            records: hello.records,
        })
    }

    /// Has another member lead, if this node does and there is one, so that nobody waits for an election. Takes a while at
    /// most.
    pub async fn resign(&self) {
        let metrics = self.raft.metrics();
        let to = {
            let metrics = metrics.borrow_watched();
            let matched = |node: &NodeId| metrics.replication.as_ref().and_then(|all| all.get(node).cloned().flatten());
            let voters = metrics.membership_config.membership().voter_ids();
            let roster = &self.forward.peers.roster;
            let others = voters.filter(|node| *node != self.identity.node_id);
            let reachable =
                others.filter(|node| roster.is_reachable(*node, self.forward.election_max.max(REACHABLE_MIN)));
            reachable.max_by_key(|node| matched(node))
        };
        if self.leadership.role().leading.is_none() {
            return;
        }
        let Some(to) = to else { return };
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
        let (flusher, wal) = (self.flusher.lock().take(), self.wal.clone());
        blocking(move || {
            drop(flusher.map(thread::JoinHandle::join));
            wal.close();
        })
        .await;
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
        let (flusher, wal) = (self.flusher.lock().take(), self.wal.clone());
        blocking(move || {
            let flushed = flusher.map(thread::JoinHandle::join);
            if let Some(Err(_)) = flushed {
                tracing::error!("the store's last flush panicked");
            }
            wal.close();
        })
        .await;
    }
}

impl Drop for Running {
    /// What nobody holds any more has no end to report.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
    }
}

/// Follows the core: who leads, and whether it still runs (C4).
async fn watch_core(raft: Raft, leadership: Arc<Leadership>, stopping: Arc<AtomicBool>) {
    let mut metrics = raft.metrics();
    loop {
        {
            let seen = metrics.borrow_watched();
            if let Err(error) = &seen.running_state
                && !stopping.load(Ordering::Acquire)
            {
                fatal::end(format!("consensus has stopped: {error}"));
            }
            let vote = &seen.vote;
            let leads = seen.state == ServerState::Leader && vote.committed && vote.leader_id.node_id == seen.id;
            leadership.set_role(Role { leading: leads.then_some(vote.leader_id), leader: seen.current_leader });
        }
        if metrics.changed().await.is_err() {
            if !stopping.load(Ordering::Acquire) {
                fatal::end("consensus has stopped: its task is gone");
            }
            leadership.set_role(Role::default());
            return;
        }
    }
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
        let is_wanted = || leadership.wants_entry() || records.next_due().is_some_and(|due| due <= leadership.now());
        while leadership.role().leading.is_some() && is_wanted() {
            if queue.tick(at_most).await.is_err() {
                break;
            }
        }
    }
}
