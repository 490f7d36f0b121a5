//! What a node does that comes back: before it votes or acknowledges anything, a quorum, counting itself, has told what it
//! remembers of it, and nobody remembers more than is here.
//!
//! # Invariants
//!
//! - V1. The consensus core is not started before: there is nothing that could vote.
//! - V2. Who remembers more than is here has seen acknowledgements that this disk has lost: the directory is put aside, and
//!   the node heals under a new disk.
//! - V3. No timer ends the waiting.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Shared,
    codec::{
        self,
        message::{Acknowledged, End, Founder, Hello, NodeState, Promise},
    },
    restore,
    running::{Running, blocking, damaged},
    start::{Opened, StartError},
    types::{Member, Payload, StoredMembership},
};
use crate::{
    fatal,
    id::{ClusterId, DiskId, NodeId},
    limits,
    wal::Identity,
};

/// A node with a log that nobody has vouched for yet.
#[derive(Clone, Debug)]
pub(super) struct Unvouched {
    pub identity: Identity,
    /// What it has acknowledged, as far as its disk knows.
    pub own: Acknowledged,
    /// The membership as last logged here.
    pub membership: StoredMembership,
    /// Whom this node's promise names: the others, where no log tells of any.
    pub named: Vec<Founder>,
}

/// What another has said.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub cluster_id: ClusterId,
    pub disk_id: DiskId,
    pub hello: Hello,
}

/// What all of them have said together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not enough have said anything.
    Wait,
    /// A quorum remembers nothing that is not here.
    Vouched,
    /// This member remembers more.
    Regressed(NodeId),
    /// The cluster knows this node under another disk.
    Replaced,
    /// The cluster has removed this node.
    Removed,
}

impl Unvouched {
    /// Whether anybody else is in this: a node alone vouches for itself.
    pub fn has_others(&self) -> bool {
        let node_id = self.identity.node_id;
        let is_other = |node: NodeId| node != node_id;
        self.membership.membership().nodes().any(|(node, _)| is_other(*node))
            || self.has_no_membership() && self.named.iter().any(|member| is_other(member.node_id))
    }

    /// Whether nothing here tells who the members are: the log is empty, or has lost what it held.
    pub fn has_no_membership(&self) -> bool {
        self.membership.log_id().is_none()
    }

    /// The newest membership that is told of, here or by another of this cluster.
    fn newest<'a>(&'a self, said: &'a BTreeMap<NodeId, Said>) -> &'a StoredMembership {
        let told = said.values().filter(|said| said.cluster_id == self.identity.cluster_id);
        let told = told.map(|said| &said.hello.membership);
        told.chain([&self.membership]).max_by_key(|membership| *membership.log_id()).unwrap_or(&self.membership)
    }

    /// What follows from what was said.
    pub fn judge(&self, said: &BTreeMap<NodeId, Said>) -> Verdict {
        if planted!(OldDiskVotes) {
            return Verdict::Vouched;
        }
        let Identity { node_id, disk_id, cluster_id, .. } = self.identity;
        let newest = self.newest(said);
        if newest.log_id().is_none() {
            return self.judge_by_promise(said);
        }
        let membership = newest.membership();
        match membership.get_node(&node_id) {
            None => return Verdict::Removed,
            Some(own) if own.disk_id != disk_id => return Verdict::Replaced,
            Some(_) => {}
        }
        let mut vouching = vec![node_id];
        for (node, said) in said {
            let is_member = membership.get_node(node).is_some_and(|member| member.disk_id == said.disk_id);
            let can_tell = match said.hello.state {
                NodeState::Taking | NodeState::Unvouched => true,
                // Of a restore that broke off, this node alone may have begun the log: the others have nothing to remember.
                NodeState::Promised => self.own.log.is_some_and(|log| restore::is_laid_out(&log)),
                _ => false,
            };
            if !is_member || !can_tell || said.cluster_id != cluster_id {
                continue;
            }
            match &said.hello.remembered {
                Some((disk, known)) if *disk == disk_id && (known.vote > self.own.vote || known.log > self.own.log) => {
                    return Verdict::Regressed(*node);
                }
                _ => vouching.push(*node),
            }
        }
        let has_quorum = |set: &std::collections::BTreeSet<NodeId>| {
            set.iter().filter(|node| vouching.contains(node)).count() > set.len() / 2
        };
        if membership.get_joint_config().iter().all(has_quorum) { Verdict::Vouched } else { Verdict::Wait }
    }

    /// What follows where nobody tells of a membership: the cluster was never formed to its end, or all have lost it. A node
    /// that has promised itself to it and has no log yet can say that it remembers nothing.
    fn judge_by_promise(&self, said: &BTreeMap<NodeId, Said>) -> Verdict {
        let Identity { node_id, disk_id, cluster_id, .. } = self.identity;
        let mut vouching = 1;
        for member in self.named.iter().filter(|member| member.node_id != node_id) {
            let Some(said) = said.get(&member.node_id).filter(|said| said.cluster_id == cluster_id) else { continue };
            if !matches!(said.hello.state, NodeState::Promised | NodeState::Taking | NodeState::Unvouched) {
                continue;
            }
            match &said.hello.remembered {
                Some((disk, known)) if *disk == disk_id && (known.vote > self.own.vote || known.log > self.own.log) => {
                    return Verdict::Regressed(member.node_id);
                }
                _ => vouching += 1,
            }
        }
        if vouching > self.named.len() / 2 { Verdict::Vouched } else { Verdict::Wait }
    }
}

impl Opened {
    /// What this node is as its disk knows it.
    pub async fn unvouched(&self, identity: Identity, promise: Option<&Promise>) -> Result<Unvouched, StartError> {
        let mark = self.state.records.mark();
        let kept = |error| StartError::Kept(std::io::Error::other(error));
        let mut membership = match mark.membership.is_empty() {
            true => StoredMembership::default(),
            false => codec::decode_stored_membership(&mark.membership).map_err(kept)?,
        };
        // The newest may be in the log behind what is applied.
        let mut from = super::state_machine::applied(&mark).map_or(0, |id| id.index + 1);
        loop {
            let more = self.log.read(from..u64::MAX, limits::LOG_READ_BYTES_MAX).await.map_err(StartError::Kept)?;
            let Some(last) = more.last().map(|entry| entry.log_id.index) else { break };
            for entry in more {
                if let Payload::Membership(members) = entry.payload {
                    membership = StoredMembership::new(Some(entry.log_id), members);
                }
            }
            from = last + 1;
        }
        // An installed snapshot may reach farther than the log: the log's purge is written behind it, lazily.
        let snapshots = Arc::clone(&self.state.snapshots);
        let newest = blocking(move || snapshots.newest_verified()).await?;
        let newest =
            newest.map(|file| super::state_machine::core_meta(&file.meta)).transpose().map_err(StartError::Kept)?;
        let reached = newest.and_then(|meta| meta.last_log_id).max(super::state_machine::applied(&mark));
        let own = Acknowledged { vote: self.log.vote(), log: self.log.last().max(reached) };
        let named = promise.filter(|promise| promise.cluster_id == identity.cluster_id).map(Promise::named);
        Ok(Unvouched { identity, own, membership, named: named.unwrap_or_default() })
    }
}

impl Shared {
    /// Asks until somebody can say what becomes of this node, then does it. Ends with the node too.
    pub(super) async fn be_vouched_for(self: Arc<Self>, opened: Opened) {
        let mut stopped = self.stopped.subscribe();
        tokio::select! {
            () = self.vouched(&opened) => {}
            // Whoever could stop it is gone: that is a stop too.
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        let verdict = self.verdict.lock().take();
        let Some((verdict, unvouched)) = verdict else {
            return close(opened).await;
        };
        let _alone = self.forming.lock().await;
        match verdict {
            Verdict::Vouched => self.take_part_again(unvouched, opened).await,
            Verdict::Regressed(by) => {
                tracing::error!(by, "a member remembers what this node has acknowledged and no longer has");
                close(opened).await;
                self.quarantine(unvouched.identity, &unvouched.membership).await;
            }
            Verdict::Replaced => {
                tracing::error!("the cluster goes on with another disk of this node: `semel cluster replace` it");
                close(opened).await;
                let mut standing = self.standing.lock();
                standing.is_waiting = true;
                standing.unvouched = None;
            }
            Verdict::Removed => {
                tracing::warn!("this node was removed from the cluster");
                close(opened).await;
                self.removed.send_replace(true);
            }
            Verdict::Wait => {}
        }
    }

    /// Starts the consensus core over what was vouched for. The core reads the log as it starts: where it finds damage, the
    /// node heals instead.
    async fn take_part_again(&self, unvouched: Unvouched, opened: Opened) {
        let wal = opened.wal.clone();
        let error = match Running::begin(&self.options, unvouched.identity, opened, &self.peers).await {
            Ok(running) => {
                self.running.store(Some(Arc::new(running)));
                self.standing.lock().unvouched = None;
                return;
            }
            Err(error) => error,
        };
        match damaged(&wal).await {
            Some(damage) if unvouched.has_others() => {
                tracing::error!(%damage, "the log that this node keeps is damaged");
                wal.closed().await;
                self.quarantine(unvouched.identity, &unvouched.membership).await;
            }
            _ => fatal::end(format!("this node can't take part: {error}")),
        }
    }

    async fn vouched(&self, opened: &Opened) {
        let mut said = BTreeMap::new();
        let mut say = Instant::now() + Duration::from_millis(limits::VOUCH_SAY_MS);
        loop {
            let Some(unvouched) = self.standing.lock().unvouched.clone() else { return };
            self.ask_all(&unvouched, &mut said).await;
            let verdict = unvouched.judge(&said);
            if verdict != Verdict::Wait {
                *self.verdict.lock() = Some((verdict, unvouched));
                return;
            }
            if Instant::now() >= say {
                say = Instant::now() + Duration::from_millis(limits::VOUCH_SAY_MS);
                let last = opened.log.last().map_or(0, |id| id.index);
                tracing::warn!(last, "this node has started again and waits for a quorum to vouch for it");
            }
            tokio::time::sleep(Duration::from_millis(limits::VOUCH_MS)).await;
        }
    }

    async fn ask_all(&self, unvouched: &Unvouched, said: &mut BTreeMap<NodeId, Said>) {
        let newest = unvouched.newest(said);
        let members: Vec<_> = match newest.log_id() {
            Some(_) => newest.membership().nodes().map(|(id, m)| (*id, m.clone())).collect(),
            None => unvouched.named.iter().map(named_member).collect(),
        };
        *said = self.ask_members(unvouched.identity, members).await;
    }

    /// What these say, as far as they answer.
    async fn ask_members(&self, identity: Identity, members: Vec<(NodeId, Member)>) -> BTreeMap<NodeId, Said> {
        let Identity { node_id, disk_id, cluster_id, .. } = identity;
        let others = members.into_iter().filter(|(node, _)| *node != node_id);
        let asked = others.map(async |(node, member)| {
            let to = End { node_id: node, disk_id: member.disk_id };
            let client = self.peers.book.member(cluster_id, End { node_id, disk_id }, to, &member.peer_addr);
            let (_, _, hello) = self.hello(node);
            let (envelope, body) = client.hello(hello.encode()).await.ok()?;
            let hello = Hello::decode(&body).ok()?;
            (envelope.from.node_id == node)
                .then_some((node, Said { cluster_id: envelope.cluster_id, disk_id: envelope.from.disk_id, hello }))
        });
        // Only what was said now counts: who has not answered this time may have come back with less.
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Whether this node may begin the log of the cluster that it has promised itself to: nobody remembers anything of the
    /// disk that the promise names, so it has held no log before that is now lost.
    ///
    /// # Errors
    /// Who remembers something; none where too few have answered.
    pub(super) async fn may_begin(&self, promise: &Promise) -> Result<(), Option<NodeId>> {
        let identity = promise.identity();
        let unvouched = Unvouched {
            identity,
            own: Acknowledged::default(),
            membership: StoredMembership::default(),
            named: promise.named(),
        };
        let said = self.ask_members(identity, unvouched.named.iter().map(named_member).collect()).await;
        match unvouched.judge_by_promise(&said) {
            Verdict::Regressed(by) => Err(Some(by)),
            Verdict::Wait => Err(None),
            _ => Ok(()),
        }
    }
}

/// A member whose disk is not known.
fn named_member(named: &Founder) -> (NodeId, Member) {
    let (peer_addr, client_addr) = (named.peer_addr.clone(), named.client_addr.clone());
    (named.node_id, Member { peer_addr, client_addr, disk_id: DiskId::default() })
}

async fn close(opened: Opened) {
    let wal = opened.wal.clone();
    drop(opened);
    wal.closed().await;
}

#[cfg(test)]
mod tests;
