//! The round in which a node asks every member how it stands, and what it says of itself.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use openraft::async_runtime::WatchReceiver;

use super::{
    Shared, codec,
    codec::message::{End, Envelope, Hello, NodeState, PEER_VERSION},
    running::{Running, blocking},
    vouch::Unvouched,
};
use crate::{
    fatal,
    id::{ClusterId, NodeId, Time},
    limits,
    records::state::State,
};

impl Shared {
    /// Which cluster this node is in or promised to, and under which disk.
    pub(super) fn ends(&self) -> (ClusterId, End) {
        let node_id = self.options.node_id;
        if let Some(running) = &*self.running.load() {
            return (running.identity.cluster_id, End { node_id, disk_id: running.identity.disk_id });
        }
        let standing = self.standing.lock();
        if let Some(Unvouched { identity, .. }) = &standing.unvouched {
            return (identity.cluster_id, End { node_id, disk_id: identity.disk_id });
        }
        match &standing.promise {
            Some(promise) => (promise.cluster_id, End { node_id, disk_id: promise.disk_id }),
            None => (ClusterId::default(), End { node_id, ..End::default() }),
        }
    }

    /// What this node says of itself to another.
    pub(super) fn hello(&self, to: NodeId) -> (ClusterId, End, Hello) {
        let (cluster_id, from) = self.ends();
        let mut hello = Hello {
            state: self.state(),
            wall: self.options.clock.wall(),
            disk_bytes: self.peers.roster.disk_bytes.load(Ordering::Relaxed),
            entry_version: codec::FORMAT_VERSION,
            peer_version: PEER_VERSION,
            feature_level: self.peers.understands.load(Ordering::Relaxed),
            peer_addr: self.options.addresses.peer.clone(),
            client_addr: self.options.addresses.client.clone(),
            admin_addr: self.options.admin.clone(),
            remembered: self.peers.roster.remembered(to),
            keys: self.options.keys.held(),
            erased: self.peers.roster.erased(),
            ..Hello::default()
        };
        let standing = self.standing.lock();
        if let Some(Unvouched { own, membership, .. }) = &standing.unvouched {
            (hello.vote, hello.last_log) = (own.vote, own.log);
            hello.membership.clone_from(membership);
        }
        if let Some(promise) = &standing.promise {
            hello.founders.clone_from(&promise.founders);
            hello.lineage_id = promise.lineage_id;
            hello.healing = promise.healing;
        }
        drop(standing);
        if let Some(running) = &*self.running.load() {
            running.fill(&mut hello);
        }
        (cluster_id, from, hello)
    }

    /// Another node has told how it stands.
    pub(super) fn heard(&self, envelope: &Envelope, hello: Hello) {
        let Some(running) = &*self.running.load() else { return };
        let is_member = running.member(envelope.from.node_id).is_some_and(|member| {
            member.disk_id == envelope.from.disk_id && envelope.cluster_id == running.identity.cluster_id
        });
        if is_member {
            self.peers.book.understands(envelope.from.node_id, hello.peer_version);
            self.peers.roster.told(envelope.from, &hello);
            self.peers.roster.note(self.options.clock.monotonic(), envelope, hello);
        }
    }

    /// Asks every member once, all at the same time.
    async fn round(&self) {
        let Some(running) = self.running.load_full() else { return };
        let records = Arc::clone(&self.records);
        let disk_bytes = blocking(move || records.disk_bytes().unwrap_or(0)).await;
        self.peers.roster.disk_bytes.store(disk_bytes, Ordering::Relaxed);
        let members = running.members();
        self.peers.roster.keep(|node| members.contains_key(&node));
        let settling = Arc::clone(&running);
        // It waits for a quorum, and nobody waits for it.
        tokio::spawn(async move {
            settling.settle().await;
            settling.raise_feature_level().await;
        });
        let others = members.keys().filter(|node| **node != self.options.node_id);
        join_all(others.map(|node| self.ask(&running, *node))).await;
    }

    async fn ask(&self, running: &Running, node: NodeId) {
        let Some(client) = running.forward.client(node) else { return };
        let (_, _, hello) = self.hello(node);
        let asked = self.options.clock.monotonic();
        match client.hello(hello.encode()).await {
            Ok((envelope, body)) => match Hello::decode(&body) {
                Ok(hello) if envelope.cluster_id == running.identity.cluster_id && running.is_left_out(&hello) => {
                    tracing::warn!(by = node, "this node was removed from the cluster");
                    self.removed.send_replace(true);
                }
                Ok(hello) if envelope.from == client.to && envelope.cluster_id == running.identity.cluster_id => {
                    self.peers.book.understands(node, hello.peer_version);
                    // Its clock was read somewhere between question and answer.
                    let at = asked + self.options.clock.monotonic().saturating_sub(asked) / 2;
                    if hello.cluster_time != Time::default() {
                        running.leadership.hear(hello.cluster_time);
                    }
                    self.peers.roster.told(envelope.from, &hello);
                    self.peers.roster.note(at, &envelope, hello);
                }
                Ok(hello) => {
                    if envelope.from.node_id == node {
                        self.peers.roster.note_stranger(node, hello.state);
                    }
                    tracing::debug!(node, "another disk or another cluster answers at a member's address");
                }
                Err(error) => tracing::debug!(node, %error, "a member's hello can't be read"),
            },
            Err(error) => tracing::debug!(node, %error, "a member can't be reached"),
        }
    }
}

impl Running {
    /// Whether a member tells of a newer membership in which this node is not.
    fn is_left_out(&self, hello: &Hello) -> bool {
        let metrics = self.raft.server_metrics();
        let own = metrics.borrow_watched().membership_config.clone();
        let is_newer = hello.state == NodeState::Taking && hello.membership.log_id() >= own.log_id();
        is_newer && own.log_id().is_some() && hello.membership.membership().get_node(&self.identity.node_id).is_none()
    }

    fn fill(&self, hello: &mut Hello) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        hello.lineage_id = self.identity.lineage_id;
        hello.vote = Some(metrics.vote);
        hello.last_log = self.log.durable_last();
        hello.applied = metrics.last_applied;
        hello.leader = metrics.current_leader;
        hello.membership = (*metrics.membership_config).clone();
        let room = self.room.figures();
        (hello.disk_free_bytes, hello.disk_is_full) = (room.free_bytes, room.is_full);
        let records = self.records.read();
        hello.records = records.globals().total.records;
        hello.position = records.globals().position;
        if self.leadership.role().leading.is_some() {
            hello.cluster_time = self.leadership.now();
        }
    }
}

/// Asks all members once a second, or when asked to; until the node is gone.
pub(super) async fn rounds(shared: Weak<Shared>) {
    loop {
        {
            let Some(shared) = shared.upgrade() else { return };
            shared.round().await;
        }
        let Some(wanted) = shared.upgrade().map(|shared| Arc::clone(&shared.peers)) else { return };
        let pause = Duration::from_millis(limits::HELLO_MS);
        // Being asked for it is the other reason to begin.
        let _ = tokio::time::timeout(pause, wanted.roster.wanted.notified()).await;
    }
}

/// Notes in the log what members have acknowledged, at most so late.
pub(super) async fn marks(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(Duration::from_millis(limits::PEER_MARKS_MS)).await;
        let Some(shared) = shared.upgrade() else { return };
        if let Some(running) = &*shared.running.load() {
            running.write_marks(&shared.peers.roster);
            shared.keep_known(running).await;
            let (level, understands) = (running.feature_level(), shared.peers.understands.load(Ordering::Relaxed));
            if level > understands {
                fatal::end(format!(
                    "the cluster has reached feature level {level}, and this release knows {understands}"
                ));
            }
        }
    }
}
