//! How a node stands, and what it knows of the others.

use std::time::Duration;

use openraft::{ServerState, async_runtime::WatchReceiver};

use super::{
    codec::message::NodeState,
    running::{REACHABLE_MIN, Running},
    types::{LogId, Member},
};
use crate::{
    id::{ClusterId, DiskId, NodeId},
    limits,
    records::state::State,
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
    /// What answers at its address instead of its disk: a node that was put aside, or waits to be told what to do.
    pub instead: Option<RoleWord>,
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
    /// Bytes that its disk has free, if it tells.
    pub disk_free_bytes: Option<u64>,
    /// Whether it takes nothing on for want of room.
    pub disk_is_full: bool,
    /// Records that it holds.
    pub records: u64,
    /// Where its operators' port is.
    pub admin: String,
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

impl super::Shared {
    /// How a node stands that waits to be vouched for.
    pub(super) fn unvouched_status(&self) -> Status {
        let outside = Status::outside(self.options.node_id, RoleWord::Follower);
        let Some(unvouched) = self.standing.lock().unvouched.clone() else { return outside };
        let formed = self.records.read().globals().formed.clone();
        let voters: Vec<NodeId> = unvouched.membership.membership().voter_ids().collect();
        let member = |(node, member): (&NodeId, &Member)| MemberStatus {
            node_id: *node,
            member: member.clone(),
            standing: if voters.contains(node) { MemberStanding::Voter } else { MemberStanding::Learner },
            matched: None,
            told: None,
            instead: None,
        };
        Status {
            disk_id: Some(unvouched.identity.disk_id),
            cluster_id: formed.map(|formed| formed.cluster_id),
            term: unvouched.own.vote.map_or(0, |vote| vote.leader_id.term),
            last_log: unvouched.own.log.map(|id| id.index),
            members: unvouched.membership.membership().nodes().map(member).collect(),
            ..outside
        }
    }
}

impl Running {
    /// How this node stands.
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
            instead: self.instead(*node),
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

    /// Whether a majority of every set of voters was heard lately, this node counted.
    pub fn hears_quorum(&self) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let lately = Duration::from_millis(limits::HELLO_FRESH_MS);
        let roster = &self.forward.peers.roster;
        let is_heard = |node: &NodeId| *node == self.identity.node_id || roster.is_reachable(*node, lately);
        let sets = metrics.membership_config.membership().get_joint_config();
        sets.iter().all(|voters| voters.iter().filter(|node| is_heard(node)).count() > voters.len() / 2)
    }

    fn instead(&self, node: NodeId) -> Option<RoleWord> {
        match self.forward.peers.roster.stranger(node)? {
            NodeState::WaitingForReplace => Some(RoleWord::WaitingForReplace),
            NodeState::Quarantined => Some(RoleWord::Quarantined),
            _ => None,
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
            disk_free_bytes: Some(hello.disk_free_bytes).filter(|bytes| *bytes != 0 || hello.disk_is_full),
            disk_is_full: hello.disk_is_full,
            records: hello.records,
            admin: hello.admin_addr,
        })
    }
}
