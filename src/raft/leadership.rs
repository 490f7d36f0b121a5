//! Who leads, and what time it is.

use std::{sync::Arc, time::Duration};

use openraft::{ReadPolicy, async_runtime::WatchReceiver};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    cluster_time::{ClusterTime, Comparison, quorum_time},
    log_store::Progress,
    propose::unavailable,
    types::{LeaderId, Raft},
};
use crate::{
    clock::Clock,
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
    role: watch::Sender<Role>,
    term: Mutex<Option<Term>>,
}

impl Leadership {
    pub fn new(node_id: NodeId, clock: Arc<dyn Clock>, progress: Arc<Progress>) -> Self {
        Self { node_id, clock, progress, role: watch::Sender::new(Role::default()), term: Mutex::new(None) }
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
        self.role.send_if_modified(|known| std::mem::replace(known, role) != role);
    }

    /// Waits a while for this node to lead. Where another does, or none is found, the caller is refused.
    pub async fn leading(&self) -> Result<(), Refusal> {
        if self.role.borrow().leading.is_some() {
            return Ok(());
        }
        let mut roles = self.role.subscribe();
        let known = roles.wait_for(|role| role.leading.is_some() || role.leader.is_some_and(|id| id != self.node_id));
        let known = match tokio::time::timeout(Duration::from_millis(limits::LEADER_WAIT_MS), known).await {
            Ok(role) => role.map(|role| *role).unwrap_or_default(),
            Err(_) => Role::default(),
        };
        match (known.leading, known.leader) {
            (Some(_), _) => Ok(()),
            (None, Some(_)) => Err(unavailable("another node leads")),
            (None, None) => Err(unavailable("no node leads at the moment")),
        }
    }

    /// The time of the records: the leader's while this node leads, the last applied elsewhere. Never below the last applied.
    pub fn now(&self) -> Time {
        let applied = self.progress.applied_time();
        match &*self.term.lock() {
            Some(term) if self.role.borrow().leading == Some(term.leader) => {
                term.time.now(self.clock.monotonic()).max(applied)
            }
            _ => applied,
        }
    }

    /// How far this node's wall clock is ahead of the records' time, ms.
    pub fn clock_offset_ms(&self) -> i64 {
        let (wall, now) = (self.clock.wall(), self.now());
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
        Ok((leader, time.now(at)))
    }

    /// A new leader's time goes on from what is applied, so everything that earlier leaders have stamped must be.
    async fn begin(&self, raft: &Raft, leader: LeaderId) -> Result<(), Refusal> {
        let not_yet = |_| unavailable("the new leader has not applied everything yet");
        let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|_| not_yet(()))?;
        let at_most = Duration::from_millis(limits::LEADER_WAIT_MS);
        let ready = linearizer.try_await_ready(raft, Some(at_most)).await.map_err(|_| not_yet(()))?;
        ready.map_err(|_| not_yet(()))?;
        let time = ClusterTime::new(self.progress.applied_time(), self.clock.monotonic());
        *self.term.lock() = Some(Term { leader, time });
        Ok(())
    }

    /// What the wall clocks of the voters show, a list for each set of voters.
    fn voters_clocks(&self, raft: &Raft, own_wall: Time) -> Vec<Vec<Option<Time>>> {
        let metrics = raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        let clock = |node: &NodeId| (*node == self.node_id).then_some(own_wall);
        membership.membership().get_joint_config().iter().map(|set| set.iter().map(clock).collect()).collect()
    }
}
