//! What a node takes on while disks are full.
//!
//! - Commands of clients are refused before they are proposed: by a leader whose own disk is short of room, or beside whom
//!   no quorum has room. Nothing of them is in any log, so the refusal is `unavailable`.
//! - What keeps the cluster going is proposed all the same, out of the reserve: time, memberships, deeds of operators.
//! - A member takes a leader's entries as long as its log has room that is there already; then it turns them away, and
//!   goes on to vote and to answer heartbeats. A leader that is short of room lets another lead that is not.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use openraft::async_runtime::WatchReceiver;

use super::{
    Shared,
    propose::unavailable,
    roster::{Peers, Roster},
    running::{Running, blocking},
    types::Raft,
};
use crate::{
    disk::Space,
    id::NodeId,
    limits,
    records::command::{CallerCommand, Command},
    refusal::{Code, Refusal},
    store::records::Records,
    wal::Wal,
};

/// Whether there is room, here and at the others.
pub(super) struct Room {
    pub node_id: NodeId,
    pub raft: Raft,
    pub space: Arc<Space>,
    pub wal: Wal,
    pub records: Arc<Records>,
    pub peers: Arc<Peers>,
    /// Why nothing is taken on for the others' sake, as of the last look.
    quorum: ArcSwapOption<Refusal>,
}

/// How much room a node's disk has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRoom {
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes that are held back.
    pub reserve_bytes: u64,
    /// Whether nothing is taken on for want of room.
    pub is_full: bool,
}

/// Whether a command is a client's: what isn't, keeps the cluster going.
fn is_of_client(command: &Command) -> bool {
    match command {
        Command::TenantOpened(_)
        | Command::SealedTenantOpened(_)
        | Command::PolicySet(_)
        | Command::Claim(_)
        | Command::Owner(_)
        | Command::Investigate(_)
        | Command::Resolve(_)
        | Command::Forget(_)
        | Command::TokenCreated(_)
        // It can wait, and takes room.
        | Command::Resealed(_) => true,
        Command::ByToken(by) => !matches!(by.command, CallerCommand::TokenRevoked(_)),
        Command::Init(_)
        | Command::SealedInit(_)
        | Command::Restored(_)
        | Command::DoubtEnded(_)
        | Command::NodeRetired(_)
        | Command::FeatureRaised(_)
        | Command::WritesEnded(_)
        | Command::Noted(_)
        | Command::TokenRevoked(_)
        | Command::TokensDropped(_)
        | Command::TenantClosed(_)
        | Command::TenantKeysDestroyed(_)
        | Command::KeyRotated(_)
        | Command::RootsRewrapped(_)
        | Command::DataKeyAdded(_)
        | Command::DataKeyRemoved(_)
        | Command::SealingEnabled(_) => false,
    }
}

fn is_told_full(roster: &Roster, node: NodeId) -> bool {
    let within = Duration::from_millis(limits::HELLO_FRESH_MS);
    roster.is_reachable(node, within) && roster.heard(node).is_some_and(|heard| heard.hello.disk_is_full)
}

impl Room {
    pub fn new(
        node_id: NodeId,
        raft: Raft,
        wal: Wal,
        records: Arc<Records>,
        space: Arc<Space>,
        peers: Arc<Peers>,
    ) -> Arc<Self> {
        Arc::new(Self { node_id, raft, space, wal, records, peers, quorum: ArcSwapOption::empty() })
    }

    /// Whether this node's own disk is short of room.
    pub fn is_full(&self) -> bool {
        self.space.is_short() || self.records.is_put_off() || self.wal.last_room().is_some()
    }

    /// The figures behind it.
    pub fn figures(&self) -> DiskRoom {
        let (free_bytes, reserve_bytes) = (self.space.free(), self.space.reserve());
        DiskRoom { free_bytes, reserve_bytes, is_full: self.is_full() }
    }

    /// Why this node takes nothing on, if it is full.
    pub fn own_refusal(&self) -> Option<Refusal> {
        self.is_full().then(|| {
            let DiskRoom { free_bytes, reserve_bytes, .. } = self.figures();
            let detail = format!(
                "the disk of node {} is full: {free_bytes} bytes are free and {reserve_bytes} are held back; \
                 nothing was changed, and the node goes on by itself when there is room",
                self.node_id
            );
            Refusal::new(Code::Unavailable, detail).retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS)
        })
    }

    /// Why a leader takes nothing of a client on, if there is no room for it.
    pub fn refusal(&self) -> Option<Arc<Refusal>> {
        self.own_refusal().map(Arc::new).or_else(|| self.quorum.load_full())
    }

    /// Whether a command is to be refused with it. Where so many bytes are more than the log has room for, each is.
    pub fn refuses(&self, command: &Command) -> bool {
        is_of_client(command) || !self.takes(0)
    }

    /// Whether entries of so many bytes find room that is there already, in the log and in memory.
    pub fn takes(&self, bytes: usize) -> bool {
        let fits = self.wal.last_room().is_none_or(|left| left > bytes as u64);
        fits && (self.records.has_room() || !self.records.is_put_off())
    }

    /// Looks at this disk and at what the others tell of theirs.
    async fn look(self: &Arc<Self>) {
        let this = Arc::clone(self);
        blocking(move || this.space.look()).await;
        self.quorum.store(self.quorum_refusal().map(Arc::new));
    }

    /// Entries that a quorum can't take are never decided. Asked only where somebody is known to be full.
    fn quorum_refusal(&self) -> Option<Refusal> {
        let roster = &self.peers.roster;
        let metrics = self.raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        let within = Duration::from_millis(limits::HELLO_FRESH_MS);
        let lacks = |voters: &std::collections::BTreeSet<NodeId>| {
            let is_full = |node: &NodeId| *node != self.node_id && is_told_full(roster, *node);
            let has_room = |node: &NodeId| {
                *node == self.node_id || (roster.is_reachable(*node, within) && !is_told_full(roster, *node))
            };
            voters.iter().any(is_full) && voters.iter().filter(|node| has_room(node)).count() <= voters.len() / 2
        };
        let lacks = membership.membership().get_joint_config().iter().any(lacks);
        lacks.then(|| {
            unavailable(
                "the disks of so many nodes are full that no quorum has room; \
                 nothing was changed, and it goes on by itself when there is",
            )
        })
    }
}

impl Running {
    /// The member that can lead instead of this one: it was heard of lately, and of those whose disks are not full it has the
    /// most of the log.
    pub(super) fn heir(&self, even_full: bool) -> Option<NodeId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = |node: &NodeId| metrics.replication.as_ref().and_then(|all| all.get(node).cloned().flatten());
        let roster = &self.forward.peers.roster;
        let voters = metrics.membership_config.membership().voter_ids();
        let within = self.forward.election_max.max(super::running::REACHABLE_MIN);
        let others = voters.filter(|node| *node != self.identity.node_id && roster.is_reachable(*node, within));
        let ranked = others.map(|node| (!is_told_full(roster, node), matched(&node), node));
        ranked.filter(|(has_room, ..)| *has_room || even_full).max().map(|(_, _, node)| node)
    }

    /// Whether a member has all of this leader's log: whoever hasn't declines to lead, and asking it costs a pause.
    fn is_level(&self, node: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&node).cloned().flatten());
        matched.map(|id| id.index) >= metrics.last_log_index
    }

    /// Lets another lead that has room and all of the log, if there is one. Answers whether that was tried.
    async fn hand_over_for_room(&self) -> bool {
        // A leader with room beside two full members would have to refuse just the same.
        let roster = &self.forward.peers.roster;
        let voters: Vec<NodeId> = self.raft.voter_ids().collect();
        let is_roomy = |node: &&NodeId| **node != self.identity.node_id && !is_told_full(roster, **node);
        if voters.iter().filter(is_roomy).count() <= voters.len() / 2 {
            return false;
        }
        let Some(to) = self.heir(false).filter(|to| self.is_level(*to)) else { return false };
        match self.transfer(to, Duration::from_millis(limits::RESIGN_MS)).await {
            Ok(_) => tracing::warn!(to, "leadership was handed over: the disk of this node is full"),
            Err(refusal) => tracing::info!(%refusal, to, "leadership could not be handed over"),
        }
        true
    }
}

/// Looks again and again, until the node is gone.
pub(super) async fn watch(shared: Weak<Shared>) {
    let mut was_full = false;
    let mut next_try = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(limits::SPACE_LOOK_MS)).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(running) = shared.running.load_full() else { continue };
        let room = &running.room;
        room.look().await;
        let is_full = room.is_full();
        if is_full != std::mem::replace(&mut was_full, is_full) {
            let DiskRoom { free_bytes, reserve_bytes, .. } = room.figures();
            match is_full {
                true => tracing::error!(
                    free_bytes,
                    reserve_bytes,
                    "the disk is full: claims are refused until there is room"
                ),
                false => tracing::info!(free_bytes, "the disk has room again: claims are taken"),
            }
            // The others should know at once.
            shared.peers.roster.wanted.notify_one();
        }
        let now = tokio::time::Instant::now();
        if is_full
            && running.leadership.role().leading.is_some()
            && now >= next_try
            && running.hand_over_for_room().await
        {
            next_try = now + Duration::from_millis(limits::SPACE_AGAIN_MS);
        }
    }
}
