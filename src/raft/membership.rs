//! Changes of the membership: made by the leader, asked for on any node. Each is done in steps that can be repeated: what is
//! already so stays so.
//!
//! A node id that an operator removed is never used again: the replicated state remembers it (`Globals::retired`), and is told
//! before the membership changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use openraft::{
    ChangeMembers,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, RaftError},
};
use tokio::time::{Instant, sleep};

use super::{
    Addresses, Consensus, Shared,
    codec::message::{AskPromise, Asked, Change, End, PromiseAnswer, Reached},
    propose::{unavailable, unknown},
    quarantine::known,
    running::{REACHABLE_MIN, Running},
    types::{Member, Types},
};
use crate::{
    id::{DiskId, NodeId},
    json::{Json, Number},
    limits,
    records::{
        command::{Command, Deed, FEATURE_LEVEL, FeatureRaised, NodeRetired, Noted},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::{Field, Subject},
    wal::Identity,
};

impl Consensus {
    /// Adds a node as learner. Returns when that is decided.
    ///
    /// # Errors
    /// `wrong_state` for an id that is or was in use, or a node that is in a cluster or promised to one; `unavailable` where
    /// it or a leader can't be reached.
    pub async fn add(&self, node_id: NodeId, addresses: Addresses, by: &str, at_most: Duration) -> Result<(), Refusal> {
        self.change(Change::Add { node_id, addresses }, by, at_most).await
    }

    /// Has a learner vote. Returns when it does; waits for it to catch up.
    ///
    /// # Errors
    /// `wrong_state` for a node that is no member; `unavailable` where it is still too far behind.
    pub async fn promote(&self, node_id: NodeId, by: &str, at_most: Duration) -> Result<(), Refusal> {
        self.change(Change::Promote { node_id }, by, at_most).await
    }

    /// Removes a node for good: its id is never used again. A leader lets another lead first.
    ///
    /// # Errors
    /// `wrong_state` for an id that is no member's, or where no live majority would be left, unless `force`.
    pub async fn remove(&self, node_id: NodeId, force: bool, by: &str, at_most: Duration) -> Result<(), Refusal> {
        self.change(Change::Remove { node_id, force }, by, at_most).await
    }

    /// Has a node go on with a new disk, perhaps at other addresses. Returns when the new disk votes.
    ///
    /// # Errors
    /// `wrong_state` where the old disk was seen lately, unless `force`, or the id is no member's.
    pub async fn replace(
        &self,
        node_id: NodeId,
        addresses: Option<Addresses>,
        force: bool,
        by: &str,
        at_most: Duration,
    ) -> Result<(), Refusal> {
        self.change(Change::Replace { node_id, addresses, force }, by, at_most).await
    }

    /// Has a node lead. Returns when it does.
    ///
    /// # Errors
    /// `wrong_state` for a node that does not vote; `unavailable` where it has not taken over in time.
    pub async fn transfer(&self, node_id: NodeId, by: &str, at_most: Duration) -> Result<(), Refusal> {
        self.change(Change::Transfer { node_id }, by, at_most).await
    }

    async fn change(&self, change: Change, by: &str, at_most: Duration) -> Result<(), Refusal> {
        let until = Instant::now() + at_most;
        let running = self.running()?;
        let asked = Asked::Change { change: change.clone(), actor: by.to_owned() };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if running.forward.ask(&asked, left, true).await?.is_some() {
                return Ok(());
            }
            match self.shared.change_here(&running, change.clone(), by, left).await {
                Err(refusal) if refusal.code == Code::Unavailable && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(limits::FORM_AGAIN_MS)).await;
                }
                changed => return changed.map(|_| ()),
            }
        }
    }
}

/// As what a node promises itself to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Joins {
    /// As one that is new to it.
    AsNew,
    /// In place of a learner's disk.
    ForLearner,
    /// In place of a voter's disk.
    ForVoter,
}

fn wrong_state(detail: impl Into<std::borrow::Cow<'static, str>>) -> Refusal {
    Refusal::new(Code::WrongState, detail)
}

/// As what a change stands in the audit chain.
fn noted(change: &Change) -> (Deed, Json) {
    let number = |value: NodeId| Json::Number(Number::parse(&value.to_string()).expect("an integer is a JSON number"));
    let (deed, node_id, addresses) = match change {
        Change::Add { node_id, addresses } => (Deed::MemberAdded, node_id, Some(addresses)),
        Change::Promote { node_id } => (Deed::MemberPromoted, node_id, None),
        Change::Remove { node_id, .. } => (Deed::MemberRemoved, node_id, None),
        Change::Replace { node_id, addresses, .. } => (Deed::MemberReplaced, node_id, addresses.as_ref()),
        Change::Heal { node_id, addresses, .. } => (Deed::MemberReplaced, node_id, Some(addresses)),
        Change::Transfer { node_id } => (Deed::LeaderTransferred, node_id, None),
    };
    let mut members = vec![("node_id", number(*node_id))];
    if let Some(Addresses { peer, client }) = addresses {
        members.extend([("peer", Json::String(peer.clone())), ("client", Json::String(client.clone()))]);
    }
    (deed, Json::object(members))
}

/// What the core says of a change that it did not make.
fn refused(error: &RaftError<Types, ClientWriteError<Types>>) -> Refusal {
    tracing::warn!(%error, "the membership could not be changed");
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => unavailable("this node does not lead any more"),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(_)) => {
            unavailable("the membership is being changed already, or can't be changed yet")
        }
        _ => unknown("what became of the change is not known"),
    }
}

impl Shared {
    /// Makes a change on this node, which leads, and has it stand in the cluster's audit chain. What was so before leaves
    /// no row.
    pub(super) async fn change_here(
        &self,
        running: &Running,
        change: Change,
        actor: &str,
        at_most: Duration,
    ) -> Result<Reached, Refusal> {
        let until = Instant::now() + at_most;
        let (deed, detail) = noted(&change);
        let is_changed = if let Change::Transfer { node_id } = change {
            running.transfer(node_id, at_most).await?
        } else {
            // One change at a time: each looks at the membership that the one before has left.
            let alone = tokio::time::timeout_at(until, running.changing.lock()).await;
            let _alone = alone.map_err(|_| unavailable("another change of the membership is being made"))?;
            match change {
                Change::Add { node_id, addresses } => self.add_here(running, node_id, addresses).await?,
                Change::Promote { node_id } => running.promote(node_id, until).await?,
                Change::Remove { node_id, force } => running.remove(node_id, force, until).await?,
                Change::Replace { node_id, addresses, force } => {
                    self.replace_here(running, node_id, addresses, force, until).await?
                }
                Change::Heal { node_id, old, new, addresses } => {
                    running.heal(node_id, Some(old), new, addresses, until).await?
                }
                Change::Transfer { .. } => false,
            }
        };
        if is_changed && let Err(refusal) = running.note(deed, actor, &detail).await {
            tracing::error!(deed = deed.as_str(), actor, %refusal, "what was done could not be audited");
        }
        Ok((running.applied().unwrap_or(0), running.applied_time()))
    }

    /// Has a node promise itself to this cluster. Answers its disk. One that takes the place of a voter's disk is told the
    /// members, whom it asks until it votes itself: this leader may not be there to see to it.
    async fn promised(
        &self,
        running: &Running,
        node_id: NodeId,
        addresses: &Addresses,
        joins: Joins,
    ) -> Result<DiskId, Refusal> {
        let identity = running.identity;
        let from = End { node_id: identity.node_id, disk_id: identity.disk_id };
        let to = End { node_id, disk_id: DiskId::default() };
        let client = self.peers.book.member(identity.cluster_id, from, to, &addresses.peer);
        let (lineage_id, cluster_id) = (identity.lineage_id, identity.cluster_id);
        let founders = if joins == Joins::ForVoter { known(&running.membership()) } else { Vec::new() };
        let ask = AskPromise::Grant { lineage_id, cluster_id, founders, replaces: joins != Joins::AsNew };
        let answered = client.promise(ask.encode(), Duration::from_millis(limits::PEER_PROMISE_MS)).await;
        let answered = answered.map_err(|error| {
            let detail = format!("node {node_id} can't be asked to join: {error}");
            Refusal::new(Code::Unavailable, detail).retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS)
        })?;
        match PromiseAnswer::decode(&answered) {
            Ok(PromiseAnswer::Granted { disk_id, .. }) => Ok(disk_id),
            Ok(PromiseAnswer::Refused { reason }) => Err(wrong_state(reason)),
            Err(error) => Err(wrong_state(format!("node {node_id} answers what can't be read: {error}"))),
        }
    }

    async fn add_here(&self, running: &Running, node_id: NodeId, addresses: Addresses) -> Result<bool, Refusal> {
        if let Some(member) = running.member(node_id) {
            let is_same = member.peer_addr == addresses.peer && member.client_addr == addresses.client;
            return if is_same { Ok(false) } else { Err(wrong_state("a member has this id, at other addresses")) };
        }
        if running.is_retired(node_id) {
            return Err(wrong_state("the id was a removed node's: ids are never used again"));
        }
        if running.members().len() >= limits::MEMBERS_MAX {
            return Err(wrong_state("the cluster has as many members as it may"));
        }
        let disk_id = self.promised(running, node_id, &addresses, Joins::AsNew).await?;
        running.add_learner(node_id, disk_id, addresses).await?;
        Ok(true)
    }

    async fn replace_here(
        &self,
        running: &Running,
        node_id: NodeId,
        addresses: Option<Addresses>,
        force: bool,
        until: Instant,
    ) -> Result<bool, Refusal> {
        let member = running.member(node_id);
        if running.is_retired(node_id) {
            return Err(wrong_state("the id was a removed node's: ids are never used again"));
        }
        if node_id == running.identity.node_id {
            return Err(wrong_state("this node leads: its disk is not lost"));
        }
        let known = member
            .as_ref()
            .map(|member| Addresses { peer: member.peer_addr.clone(), client: member.client_addr.clone() });
        let Some(addresses) = addresses.or(known) else {
            return Err(wrong_state("no member has this id; add it, or say where it is"));
        };
        if member.is_some() && !force {
            self.listen_for(node_id).await;
        }
        let seen = self
            .peers
            .roster
            .heard(node_id)
            .filter(|heard| Some(heard.disk_id) == member.as_ref().map(|member| member.disk_id));
        let age = seen.and_then(|_| self.peers.roster.age(node_id));
        let is_lately = age.is_some_and(|age| age < Duration::from_millis(limits::REPLACE_SEEN_MS));
        if is_lately
            && let Some(member) = &member
            && running.replaced.lock().get(&node_id) == Some(&member.disk_id)
        {
            // Asked again for what an earlier try has begun: by now it may be done.
            let present = member.disk_id;
            let changed = running.heal(node_id, None, present, addresses, until).await;
            return running.is_told(node_id, changed);
        }
        if is_lately && !force {
            return Err(wrong_state("the node's present disk was seen within the last 10 s: it is not lost"));
        }
        // Of a node that is no member, an earlier attempt has done the first step.
        let votes = member.is_none() || running.voters().contains(&node_id);
        let joins = if votes { Joins::ForVoter } else { Joins::ForLearner };
        let new = self.promised(running, node_id, &addresses, joins).await?;
        running.replaced.lock().insert(node_id, new);
        let changed = running.heal(node_id, member.map(|member| member.disk_id), new, addresses, until).await;
        running.is_told(node_id, changed)
    }

    /// Waits for a word of a node, for as long as one in reach may take to say it. Who was cut off or started again a moment ago
    /// has not heard the others yet: that says nothing of their disks.
    async fn listen_for(&self, node_id: NodeId) {
        let until = Instant::now() + REACHABLE_MIN;
        while !self.peers.roster.is_reachable(node_id, REACHABLE_MIN) && Instant::now() < until {
            sleep(Duration::from_millis(limits::FORM_AGAIN_MS)).await;
        }
    }
}

impl Consensus {
    /// Has a deed stand in the cluster's audit chain.
    ///
    /// # Errors
    /// Where no leader takes it in time, or what became of it stays unknown.
    pub async fn note(&self, deed: Deed, actor: &str, detail: &Json) -> Result<(), Refusal> {
        self.running()?.note(deed, actor, detail).await
    }
}

impl Running {
    /// Has a deed stand in the cluster's audit chain, whoever leads. Where what became of it is not known it is proposed again:
    /// a row too many is no lie, a missing one is.
    async fn note(&self, deed: Deed, actor: &str, detail: &Json) -> Result<(), Refusal> {
        let cipher = self.keys.cipher(&*self.records.read(), None)?;
        let actor = cipher.seal(Field::AuditActor, Subject::Audit, actor.as_bytes().to_vec());
        let detail = cipher.seal(Field::AuditDetail, Subject::Audit, detail.to_text().into_bytes());
        let command = Arc::new(Command::Noted(Noted { deed, actor, detail }));
        self.judge_level(std::slice::from_ref(&command))?;
        let until = Instant::now() + Duration::from_millis(limits::NOTE_MS);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let noted = match self.queue.push(vec![Arc::clone(&command)]) {
                Ok(mut tickets) => tickets.pop().expect("one command has one ticket").answer(left).await,
                Err(refusal) => Err(refusal),
            };
            match noted {
                Ok(applied) => return applied.answer.map(|_| ()),
                Err(refusal) if Instant::now() >= until => return Err(refusal),
                Err(_) => sleep(Duration::from_millis(limits::FORM_AGAIN_MS)).await,
            }
        }
    }

    fn is_retired(&self, node_id: NodeId) -> bool {
        self.records.read().globals().retired.contains(&node_id)
    }

    fn voters(&self) -> BTreeSet<NodeId> {
        self.raft.voter_ids().collect()
    }

    /// Whether this node votes, under the disk that is here.
    pub(super) fn votes(&self) -> bool {
        let Identity { node_id, disk_id, .. } = self.identity;
        self.voters().contains(&node_id) && self.member(node_id).is_some_and(|member| member.disk_id == disk_id)
    }

    pub(super) async fn change_members(&self, change: ChangeMembers<NodeId, Member>) -> Result<(), Refusal> {
        self.raft.change_membership(change, false).await.map(|_| ()).map_err(|error| refused(&error))
    }

    async fn add_learner(&self, node_id: NodeId, disk_id: DiskId, addresses: Addresses) -> Result<(), Refusal> {
        let Addresses { peer: peer_addr, client: client_addr } = addresses;
        let member = Member { peer_addr, client_addr, disk_id };
        self.change_members(ChangeMembers::AddNodes(BTreeMap::from([(node_id, member)]))).await
    }

    async fn promote(&self, node_id: NodeId, until: Instant) -> Result<bool, Refusal> {
        if self.voters().contains(&node_id) {
            return Ok(false);
        }
        if self.member(node_id).is_none() {
            return Err(wrong_state("no member has this id: add it first"));
        }
        let mut metrics = self.raft.metrics();
        loop {
            // What a learner understands it tells within a second; before that it can't be judged.
            let told = self.forward.peers.roster.heard(node_id).map(|heard| heard.hello.feature_level);
            if told.is_some_and(|level| level < self.feature_level()) {
                return Err(wrong_state("the node is of a release that is too old for this cluster: upgrade it first"));
            }
            {
                let metrics = metrics.borrow_watched();
                let Some(replication) = metrics.replication.as_ref() else {
                    return Err(unavailable("this node does not lead any more"));
                };
                let matched = replication.get(&node_id).cloned().flatten().map_or(0, |id| id.index + 1);
                let next = metrics.last_log_index.map_or(0, |index| index + 1);
                if told.is_some() && matched > 0 && next.saturating_sub(matched) <= limits::PROMOTE_LAG_MAX {
                    break;
                }
            }
            let changed = tokio::time::timeout_at(until, metrics.changed()).await;
            let in_time = changed.map_err(|_| unavailable("the learner is still too far behind to vote"))?;
            in_time.map_err(|_| unavailable("the node is stopping"))?;
        }
        self.change_members(ChangeMembers::AddVoterIds(BTreeSet::from([node_id]))).await?;
        Ok(true)
    }

    async fn remove(&self, node_id: NodeId, force: bool, until: Instant) -> Result<bool, Refusal> {
        if self.member(node_id).is_none() {
            return match self.is_retired(node_id) {
                true => Ok(false),
                false => Err(wrong_state("no member has this id")),
            };
        }
        let mut left = self.voters();
        left.remove(&node_id);
        if left.is_empty() {
            return Err(wrong_state("the last voter can't be removed"));
        }
        let asked = Instant::now();
        if !force && !self.hears_majority_of(&left, asked).await {
            return Err(wrong_state("no live majority would be left"));
        }
        if node_id == self.identity.node_id {
            let (roster, within) = (&self.forward.peers.roster, self.hello_patience());
            let to = left.iter().copied().find(|node| roster.is_reachable(*node, within));
            let to = to.ok_or_else(|| wrong_state("no other voter can be reached to lead"))?;
            self.transfer(to, until.saturating_duration_since(Instant::now())).await?;
            return Err(unavailable("another node leads now, and goes on with it"));
        }
        let retired = self.queue.push(vec![Arc::new(Command::NodeRetired(NodeRetired { node_id }))])?;
        for ticket in retired {
            ticket.answer(until.saturating_duration_since(Instant::now())).await?.answer?;
        }
        self.leave(node_id).await?;
        Ok(true)
    }

    /// How long a member that lives may leave it at saying nothing.
    fn hello_patience(&self) -> Duration {
        self.forward.election_max.max(Duration::from_millis(2 * limits::HELLO_MS))
    }

    /// Whether more than half of these say something from now on: what one said a moment ago doesn't tell that it lives.
    async fn hears_majority_of(&self, voters: &BTreeSet<NodeId>, from: Instant) -> bool {
        let roster = &self.forward.peers.roster;
        loop {
            let is_live =
                |node: &&NodeId| **node == self.identity.node_id || roster.is_reachable(**node, from.elapsed());
            if voters.iter().filter(is_live).count() > voters.len() / 2 {
                return true;
            }
            if from.elapsed() > self.hello_patience() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(limits::HELLO_MS / 4)).await;
        }
    }

    /// Ends a change of the membership that a leader before this one has left half done: until then both sets of voters must
    /// agree on everything.
    pub async fn settle(&self) {
        let is_joint = self.membership().membership().get_joint_config().len() > 1;
        if self.leadership.role().leading.is_none() || !is_joint {
            return;
        }
        let Ok(_alone) = self.changing.try_lock() else { return };
        if let Err(refusal) = self.change_members(ChangeMembers::AddVoterIds(BTreeSet::new())).await {
            tracing::info!(%refusal, "the membership is still between two sets of voters");
        }
    }

    /// The level that all voters have been found to understand.
    pub fn feature_level(&self) -> u32 {
        self.records.read().globals().formed.as_ref().map_or(FEATURE_LEVEL, |formed| formed.feature_level)
    }

    /// Whether the cluster is ready for these commands. A new kind is proposed only once all voters understand it.
    pub fn judge_level(&self, commands: &[Arc<Command>]) -> Result<(), Refusal> {
        let level = self.feature_level();
        match commands.iter().all(|command| command.feature_level() <= level) {
            true => Ok(()),
            false => Err(wrong_state("not every node understands this command yet: finish the upgrade")),
        }
    }

    /// Raises the feature level once every voter has told that it understands more.
    pub async fn raise_feature_level(&self) {
        let current = self.feature_level();
        if self.leadership.role().leading.is_none() || !self.is_formed() {
            return;
        }
        let peers = &self.forward.peers;
        let understood = |node: NodeId| match node == self.identity.node_id {
            true => Some(peers.understands.load(Ordering::Relaxed)),
            false => peers.roster.wall(node).and(peers.roster.heard(node)).map(|heard| heard.hello.feature_level),
        };
        let level = self.voters().into_iter().map(|node| understood(node).unwrap_or(0)).min().unwrap_or(0);
        if level <= current {
            return;
        }
        tracing::info!(level, "all voters understand more: the feature level is raised");
        let raised = Arc::new(Command::FeatureRaised(FeatureRaised { level }));
        for ticket in self.queue.push(vec![raised]).unwrap_or_default() {
            if let Err(refusal) = ticket.answer(self.propose_timeout).await {
                tracing::info!(%refusal, "the feature level is not raised yet");
            }
        }
    }

    /// Takes a node out of the membership.
    async fn leave(&self, node_id: NodeId) -> Result<(), Refusal> {
        let leaving = BTreeSet::from([node_id]);
        if self.voters().contains(&node_id) {
            self.change_members(ChangeMembers::RemoveVoters(leaving)).await
        } else {
            self.change_members(ChangeMembers::RemoveNodes(leaving)).await
        }
    }

    /// Replaces the disk of a node: the old pair leaves first, then the new one learns, and votes once it has caught up. Of a
    /// node that is no member, an earlier attempt has done the first step.
    async fn heal(
        &self,
        node_id: NodeId,
        old: Option<DiskId>,
        new: DiskId,
        addresses: Addresses,
        until: Instant,
    ) -> Result<bool, Refusal> {
        let member = self.member(node_id);
        // One that has its new disk already was on its way to vote when an earlier attempt broke off.
        let is_resumed = member.as_ref().is_none_or(|member| member.disk_id == new);
        let votes = is_resumed || self.voters().contains(&node_id);
        match member {
            Some(member) if member.disk_id == new => {}
            Some(member) if Some(member.disk_id) != old => {
                return Err(wrong_state("the member with this id has another disk than the one to be replaced"));
            }
            Some(_) => {
                self.leave(node_id).await?;
                self.add_learner(node_id, new, addresses).await?;
            }
            None if self.is_retired(node_id) => {
                return Err(wrong_state("the id was a removed node's: ids are never used again"));
            }
            None => self.add_learner(node_id, new, addresses).await?,
        }
        if votes { self.promote(node_id, until).await } else { Ok(true) }
    }

    /// Whoever asked for a replacement is told how it went: once it is done, the next one is another.
    fn is_told(&self, node_id: NodeId, changed: Result<bool, Refusal>) -> Result<bool, Refusal> {
        if changed.is_ok() {
            self.replaced.lock().remove(&node_id);
        }
        changed
    }

    /// Has another member lead, and waits until it does. False where it did before.
    pub async fn transfer(&self, to: NodeId, at_most: Duration) -> Result<bool, Refusal> {
        if !self.voters().contains(&to) {
            return Err(wrong_state("only a member that votes can lead"));
        }
        let until = Instant::now() + at_most;
        let mut roles = self.leadership.roles();
        let led_before = self.leadership.role().leader == Some(to);
        loop {
            if self.leadership.role().leader == Some(to) {
                return Ok(!led_before);
            }
            if self.leadership.role().leading.is_none() {
                return Err(unavailable("this node does not lead any more"));
            }
            // It is asked anew now and then: it declines while its log is behind.
            let asked = self.raft.trigger().transfer_leader(to).await;
            asked.map_err(|_| unavailable("the node is stopping"))?;
            let pause = Duration::from_millis(limits::TRANSFER_AGAIN_MS);
            let wait = until.saturating_duration_since(Instant::now()).min(pause);
            let taken = roles.wait_for(|role| role.leader == Some(to));
            match tokio::time::timeout(wait, taken).await {
                Ok(Ok(_)) => return Ok(true),
                Ok(Err(_)) => return Err(unavailable("the node is stopping")),
                Err(_) if Instant::now() >= until => {
                    return Err(unavailable("the member has not taken over in time"));
                }
                Err(_) => {}
            }
        }
    }
}
