//! Who leads, and what time it is.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use openraft::{ReadPolicy, async_runtime::WatchReceiver};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    cluster_time::{ClusterTime, Comparison, quorum_time},
    log_store::Progress,
    propose::unavailable,
    roster::Peers,
    types::{LeaderId, Raft},
};
use crate::{
    clock::{Clock, Monotonic},
    id::{NodeId, Time},
    limits,
    refusal::Refusal,
};

/// Who leads, as this node knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Role {
    /// This node leads, in this term.
    pub leading: Option<LeaderId>,
    /// The leader, whoever it is.
    pub leader: Option<NodeId>,
}

/// Where the leader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// It is this node.
    Here,
    /// It is another.
    There(NodeId),
}

/// The time of this node's present term as leader, if it has one.
struct Term {
    leader: LeaderId,
    time: ClusterTime,
}

/// Follows who leads, and keeps cluster time while this node does.
pub(super) struct Leadership {
    node_id: NodeId,
    clock: Arc<dyn Clock>,
    progress: Arc<Progress>,
    peers: Arc<Peers>,
    role: watch::Sender<Role>,
    term: Mutex<Option<Term>>,
    /// Since when this node leads.
    led_since: Mutex<Option<Monotonic>>,
    /// The latest time that a leader has told, ms: what was read here before is not read again as of earlier.
    learnt: AtomicU64,
    /// The time that a leader told last, and when.
    told: Mutex<Option<(Time, Monotonic)>>,
    /// When a leader has last done what only a leader of a quorum can.
    confirmed: Mutex<Option<Monotonic>>,
    /// The last leader that was known, and how often that became another.
    last_leader: Mutex<Option<NodeId>>,
    changes: AtomicU64,
}

impl Leadership {
    pub fn new(node_id: NodeId, clock: Arc<dyn Clock>, progress: Arc<Progress>, peers: Arc<Peers>) -> Self {
        Self {
            node_id,
            clock,
            progress,
            peers,
            role: watch::Sender::new(Role::default()),
            term: Mutex::new(None),
            led_since: Mutex::new(None),
            learnt: AtomicU64::new(0),
            told: Mutex::new(None),
            confirmed: Mutex::new(None),
            last_leader: Mutex::new(None),
            changes: AtomicU64::new(0),
        }
    }

    /// Who leads now.
    pub fn role(&self) -> Role {
        *self.role.borrow()
    }

    /// Tells when that changes.
    pub fn roles(&self) -> watch::Receiver<Role> {
        self.role.subscribe()
    }

    /// Whether an entry is wanted for time's sake alone: this node leads and has stamped nothing yet, or its wall clock
    /// has moved ahead of time since the last comparison, as after a sleep of the machine.
    pub fn wants_entry(&self) -> bool {
        let Some(leader) = self.role().leading else { return false };
        let (at, wall) = (self.clock.monotonic(), self.clock.wall());
        match &*self.term.lock() {
            Some(term) if term.leader == leader => term.time.is_left_behind(at, wall),
            _ => true,
        }
    }

    /// Notes who leads now.
    pub fn set_role(&self, role: Role) {
        if role.leading != self.role().leading {
            *self.led_since.lock() = role.leading.map(|_| self.clock.monotonic());
        }
        if let Some(leader) = role.leader
            && self.last_leader.lock().replace(leader) != Some(leader)
        {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        self.role.send_if_modified(|known| std::mem::replace(known, role) != role);
    }

    /// How fast time runs, in thousandths, while this node leads and keeps it.
    pub fn time_rate(&self) -> Option<u64> {
        let leader = self.role().leading?;
        let term = self.term.lock();
        term.as_ref().filter(|term| term.leader == leader).map(|term| term.time.rate(self.clock.monotonic()))
    }

    /// How often another node than before was seen to lead.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// For how long this node has led.
    pub fn led_for(&self) -> Option<Duration> {
        let since = *self.led_since.lock();
        since.map(|since| self.clock.monotonic().saturating_sub(since))
    }

    /// A member that leads, or believes that it does, has told its time: good for showing, and for nothing else.
    pub fn hear(&self, time: Time) {
        *self.told.lock() = Some((time, self.clock.monotonic()));
    }

    /// A leader has told its time: from now on this node's is not below it.
    pub fn learn(&self, time: Time) {
        self.hear(time);
        *self.confirmed.lock() = Some(self.clock.monotonic());
        self.learnt.fetch_max(time.0, Ordering::AcqRel);
    }

    /// Whether a leader was seen to lead a quorum within this time.
    pub fn was_confirmed(&self, within: Duration) -> bool {
        let at = *self.confirmed.lock();
        at.is_some_and(|at| self.clock.monotonic().saturating_sub(at) <= within)
    }

    /// Who leads, waited for a while. Where none is found, the caller is refused.
    pub async fn lead(&self, at_most: Duration) -> Result<Lead, Refusal> {
        if self.role.borrow().leading.is_some() {
            return Ok(Lead::Here);
        }
        let mut roles = self.role.subscribe();
        let known = roles.wait_for(|role| role.leading.is_some() || role.leader.is_some_and(|id| id != self.node_id));
        let known = match tokio::time::timeout(at_most, known).await {
            Ok(role) => role.map(|role| *role).unwrap_or_default(),
            Err(_) => Role::default(),
        };
        match (known.leading, known.leader) {
            (Some(_), _) => Ok(Lead::Here),
            (None, Some(node)) => Ok(Lead::There(node)),
            (None, None) => Err(unavailable("no node leads at the moment")),
        }
    }

    /// The time of the records: the leader's while this node leads; elsewhere the last applied, or what a leader has told
    /// since. Never below the last applied.
    pub fn now(&self) -> Time {
        let applied = self.progress.applied_time().max(Time(self.learnt.load(Ordering::Acquire)));
        match &*self.term.lock() {
            Some(term) if self.role.borrow().leading == Some(term.leader) => {
                term.time.now(self.clock.monotonic()).max(applied)
            }
            _ if planted!(FollowerJudgesLease) => applied.max(self.clock.wall()),
            _ => applied,
        }
    }

    /// How far this node's wall clock is ahead of the records' time, ms.
    pub fn clock_offset_ms(&self) -> i64 {
        self.offset_ms(self.clock.wall())
    }

    /// How far a wall clock is ahead of the records' time, ms.
    pub fn offset_ms(&self, wall: Time) -> i64 {
        // Nothing may be applied for hours: what a leader told goes on by this node's clock, for showing alone.
        let told = (*self.told.lock()).map(|(time, at)| {
            let since = self.clock.monotonic().saturating_sub(at);
            time.plus_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
        });
        let now = self.now().max(told.filter(|_| self.role().leading.is_none()).unwrap_or_default());
        let ms = |span: u64| i64::try_from(span).unwrap_or(i64::MAX);
        ms(wall.since_ms(now)) - ms(now.since_ms(wall))
    }

    /// The term in which this node leads, and the time for its next entry.
    pub async fn stamp(&self, raft: &Raft) -> Result<(LeaderId, Time), Refusal> {
        let Some(leader) = self.role().leading else { return Err(unavailable("this node does not lead")) };
        let is_new = self.term.lock().as_ref().is_none_or(|term| term.leader != leader);
        if is_new {
            self.begin(raft, leader).await?;
        }
        let (at, wall) = (self.clock.monotonic(), self.clock.wall());
        let mut term = self.term.lock();
        let Some(Term { time, .. }) = term.as_mut() else { return Err(unavailable("this node does not lead")) };
        time.applied(self.progress.applied_time());
        if time.wants_comparison(at, wall) {
            let quorum = quorum_time(&self.voters_clocks(raft, wall));
            let is_first = time.is_fresh();
            if let Comparison::Jumped { by_ms } = time.compare(at, wall, quorum) {
                // The entry that is stamped next carries the new time, and sweeps by it before it grants anything.
                let now = time.now(at).0;
                if is_first {
                    // Of a start: the time that nobody led, or all time before the cluster.
                    tracing::debug!(by_ms, now, "cluster time went on at the quorum's");
                } else {
                    tracing::warn!(by_ms, now, "cluster time jumped to the quorum's");
                }
            }
        }
        Ok((leader, if planted!(LeaderStampsWallClock) { wall } else { time.now(at) }))
    }

    /// A new leader's time goes on from what is applied, so everything that earlier leaders have stamped must be.
    async fn begin(&self, raft: &Raft, leader: LeaderId) -> Result<(), Refusal> {
        let not_yet = |_| unavailable("the new leader has not applied everything yet");
        let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|_| not_yet(()))?;
        let at_most = Duration::from_millis(limits::LEADER_WAIT_MS);
        let ready = linearizer.try_await_ready(raft, Some(at_most)).await.map_err(|_| not_yet(()))?;
        ready.map_err(|_| not_yet(()))?;
        self.hear_clocks(raft).await;
        let time = ClusterTime::new(self.progress.applied_time(), self.clock.monotonic());
        *self.term.lock() = Some(Term { leader, time });
        Ok(())
    }

    /// Waits a while until a quorum's clocks are known: a new leader compares before its first grant, and where few have
    /// told their time it would find it earlier than it is.
    async fn hear_clocks(&self, raft: &Raft) {
        let until = tokio::time::Instant::now() + Duration::from_millis(limits::PEER_ANSWER_MS);
        let is_known = || {
            let sets = self.voters_clocks(raft, self.clock.wall());
            sets.iter().all(|set| set.iter().flatten().count() > set.len() / 2)
        };
        while !is_known() && tokio::time::Instant::now() < until {
            self.peers.roster.wanted.notify_one();
            tokio::time::sleep(Duration::from_millis(limits::FORWARD_PAUSE_MS)).await;
        }
    }

    /// What the wall clocks of the voters show, a list for each set of voters.
    fn voters_clocks(&self, raft: &Raft, own_wall: Time) -> Vec<Vec<Option<Time>>> {
        let metrics = raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        let clock = |node: &NodeId| match *node == self.node_id {
            true => Some(own_wall),
            false => self.peers.roster.wall(*node),
        };
        membership.membership().get_joint_config().iter().map(|set| set.iter().map(clock).collect()).collect()
    }
}
