//! What a node of a cluster does with a directory that it must not go on with: it puts it aside, takes a new disk id, and is
//! healed by the others.
//!
//! # Invariants
//!
//! - Q1. Nothing is deleted: what was there lies in `quarantine-MS/`.
//! - Q2. The new disk's promise is durable only after the old log is out of the way: a crash in between leaves a node that is
//!   in no cluster, and waits for an operator.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Addresses, Shared,
    codec::message::{Asked, Change, End, Founder, Hello, NodeState, Promise, Reached, Told},
    running::{Running, blocking},
    start::{Options, StartError},
    types::StoredMembership,
};
use crate::{
    disk::DiskError,
    entropy, fatal,
    id::{ClusterId, DiskId},
    limits,
    wal::Identity,
};

/// What is put aside before the node goes on.
const PUT_ASIDE: [&str; 2] = ["wal", "snapshots"];
/// What is put aside with them: at once where it is not in use, else with its last reader.
const STORE: &str = "store";
const PREFIX: &str = "quarantine-";

impl Options {
    /// When what was put aside and is still here was put aside, the oldest first.
    fn quarantines(&self) -> Result<Vec<u64>, DiskError> {
        let names = match self.disk.dirs(&self.dir) {
            Err(error) if error.is_not_found() => Vec::new(),
            names => names?,
        };
        let mut at: Vec<u64> = names.iter().filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok()).collect();
        at.sort_unstable();
        Ok(at)
    }

    /// Removes all but the newest so many of what was put aside.
    pub(super) fn remove_quarantines(&self, kept_max: usize) -> Result<(), DiskError> {
        let all = self.quarantines()?;
        for at in &all[..all.len().saturating_sub(kept_max)] {
            let dir = self.dir.join(format!("{PREFIX}{at}"));
            self.disk.remove_dir_all(&dir)?;
            tracing::info!(dir = %dir.display(), "what was put aside long ago was removed");
        }
        Ok(())
    }

    /// Moves log and snapshots into a directory of their own, if there are any, and answers it.
    fn put_aside(&self) -> Result<PathBuf, DiskError> {
        // The newest has the highest number, whatever the clock says.
        let at = self.quarantines()?.last().map_or(0, |last| last + 1).max(self.clock.wall().0);
        let aside: PathBuf = self.dir.join(format!("{PREFIX}{at}"));
        self.disk.create_dir_all(&aside)?;
        for name in PUT_ASIDE {
            self.move_into(&aside, name)?;
        }
        self.disk.sync_dir(&aside)?;
        self.disk.sync_dir(&self.dir)?;
        tracing::warn!(aside = %aside.display(), "the log and the snapshots were put aside");
        Ok(aside)
    }

    fn move_into(&self, aside: &Path, name: &str) -> Result<(), DiskError> {
        match self.disk.rename(&self.dir.join(name), &aside.join(name)) {
            Err(error) if error.is_not_found() => Ok(()),
            moved => moved,
        }
    }

    /// Puts aside what can't be opened, and promises this node to its cluster anew, under a new disk.
    pub(super) fn put_aside_at_start(&self, identity: Identity, promise: &Promise) -> Result<Promise, StartError> {
        let aside = self.put_aside()?;
        self.move_into(&aside, STORE)?;
        let new = Promise {
            disk_id: DiskId(entropy::bytes()),
            healing: Some(identity.disk_id),
            lineage_id: identity.lineage_id,
            cluster_id: identity.cluster_id,
            ..promise.clone()
        };
        self.write_promise(&new)?;
        Ok(new)
    }
}

/// The members of a membership, as a promise remembers them.
pub(super) fn known(membership: &StoredMembership) -> Vec<Founder> {
    let member = |(node_id, member): (&u64, &super::Member)| Founder {
        node_id: *node_id,
        peer_addr: member.peer_addr.clone(),
        client_addr: member.client_addr.clone(),
    };
    membership.membership().nodes().map(member).collect()
}

impl Shared {
    /// Puts aside what is here and waits to be healed. Nothing of it is open any more; the caller holds `forming`.
    pub(super) async fn quarantine(&self, identity: Identity, membership: &StoredMembership) {
        let promise = self.standing.lock().promise.clone();
        let (founders, remembered) = promise.map(|promise| (promise.founders, promise.known)).unwrap_or_default();
        let named = known(membership);
        let promise = Promise {
            lineage_id: identity.lineage_id,
            cluster_id: identity.cluster_id,
            node_id: identity.node_id,
            disk_id: DiskId(entropy::bytes()),
            healing: Some(identity.disk_id),
            founders,
            known: if named.is_empty() { remembered } else { named },
        };
        self.replace_contents(Some(promise)).await;
    }

    /// Puts aside what is here, and makes this promise, or none.
    async fn replace_contents(&self, promise: Option<Promise>) {
        let (options, records, made) = (self.options.clone(), Arc::clone(&self.records), promise.clone());
        let replaced = blocking(move || {
            let aside = options.put_aside()?;
            records.keep_in(&aside.join(STORE));
            let engine = options.engines.fresh()?;
            records.install(engine, &mut std::iter::empty())?;
            options.engines.adopt()?;
            match &made {
                Some(promise) => options.write_promise(promise)?,
                None => options.remove_promise_if_any()?,
            }
            Ok::<_, StartError>(())
        });
        if let Err(error) = replaced.await {
            return fatal::end(format!("the data directory can't be put aside: {error}"));
        }
        self.peers.roster.forget_all();
        let mut standing = self.standing.lock();
        standing.promise = promise;
        standing.unvouched = None;
        standing.is_waiting = false;
        standing.is_tidy = false;
    }

    /// Once this node votes again, what was put aside before the last two times is no longer needed.
    async fn tidy(&self) {
        let Some(running) = self.running.load_full() else { return };
        let is_healed = {
            let standing = self.standing.lock();
            !standing.is_tidy && standing.promise.as_ref().is_none_or(|promise| promise.healing.is_none())
        };
        if !is_healed || !running.votes() {
            return;
        }
        let options = self.options.clone();
        match blocking(move || options.remove_quarantines(limits::QUARANTINES_KEPT)).await {
            Ok(()) => self.standing.lock().is_tidy = true,
            Err(error) => tracing::warn!(%error, "what was put aside long ago could not be removed"),
        }
    }

    /// How many members there are, of which the core names so many. One that has met damage while it started names none yet:
    /// those that were noted count then.
    pub(super) fn members_count(&self, named: usize) -> usize {
        let noted = |promise: &Promise| promise.known.len().max(promise.founders.len());
        match named {
            0 => self.standing.lock().promise.as_ref().map_or(0, noted),
            named => named,
        }
    }

    /// Something that this node keeps is damaged. In a cluster it heals; a node alone ends, and says what is wrong.
    async fn on_damage(self: &Arc<Self>, damage: String) {
        let _alone = self.forming.lock().await;
        let Some(running) = self.running.load_full() else { return };
        if self.members_count(running.members().len()) < 2 {
            return fatal::end(damage);
        }
        let (identity, membership) = (running.identity, running.membership());
        self.running.store(None);
        running.shutdown().await;
        drop(running);
        self.quarantine(identity, &membership).await;
    }

    /// An operator has this node's contents put aside for a cluster.
    pub(super) async fn put_aside_for(&self, cluster_id: ClusterId) -> Result<(), String> {
        let _alone = self.forming.lock().await;
        if let Some(running) = self.running.load_full() {
            if running.identity.cluster_id == cluster_id && running.leadership.role().leading.is_some() {
                return Err(format!("node {} leads", self.options.node_id));
            }
            self.running.store(None);
            running.shutdown().await;
        }
        let is_promised = {
            let standing = self.standing.lock();
            let promised = standing.promise.as_ref();
            !standing.is_waiting && promised.is_some_and(|promise| promise.cluster_id == cluster_id)
        };
        let has_log = self.options.identity().is_ok_and(|identity| identity.is_some());
        // Asked again, it stays with what it has promised.
        if !is_promised || has_log {
            self.replace_contents(None).await;
        }
        Ok(())
    }

    /// Has the promise remember the members as they are now.
    pub(super) async fn keep_known(&self, running: &Running) {
        let membership = running.membership();
        if membership.log_id().is_none() {
            return;
        }
        let _alone = self.promising.lock().await;
        let known = known(&membership);
        let Identity { lineage_id, cluster_id, node_id, disk_id } = running.identity;
        // A log that came to be without a promise, as a restored one does, gets its file now.
        let none = Promise {
            lineage_id,
            cluster_id,
            node_id,
            disk_id,
            healing: None,
            founders: Vec::new(),
            known: Vec::new(),
        };
        let promise = self.standing.lock().promise.clone();
        let promise = promise.filter(|promise| promise.cluster_id == cluster_id).unwrap_or(none);
        if promise.known == known {
            return;
        }
        let promise = Promise { known, ..promise };
        let (options, written) = (self.options.clone(), promise.clone());
        match blocking(move || options.write_promise(&written)).await {
            Ok(()) => self.standing.lock().promise = Some(promise),
            Err(error) => tracing::warn!(%error, "the members could not be noted beside the log"),
        }
    }

    /// Asks the members to take this node back under its new disk.
    async fn ask_to_be_healed(&self, promise: &Promise) {
        let Some(old) = promise.healing else { return };
        let from = End { node_id: promise.node_id, disk_id: promise.disk_id };
        let Addresses { peer, client } = self.options.addresses.clone();
        let addresses = Addresses { peer, client };
        let change = Change::Heal { node_id: promise.node_id, old, new: promise.disk_id, addresses };
        for member in promise.known.iter().filter(|member| member.node_id != promise.node_id) {
            let unknown = End { node_id: member.node_id, disk_id: DiskId::default() };
            let ask = self.peers.book.member(promise.cluster_id, from, unknown, &member.peer_addr);
            let (_, _, hello) = self.hello(member.node_id);
            let Ok((envelope, body)) = ask.hello(hello.encode()).await else { continue };
            let leads = Hello::decode(&body).is_ok_and(|hello| hello.leader == Some(member.node_id));
            if !leads || envelope.cluster_id != promise.cluster_id {
                continue;
            }
            let leader = self.peers.book.member(promise.cluster_id, from, envelope.from, &member.peer_addr);
            let at_most = Duration::from_millis(limits::HEAL_MS);
            let asked = Asked::Change { change: change.clone(), actor: format!("node:{}", promise.node_id) };
            let told = leader.change(asked.encode(at_most), at_most).await;
            match told.map(|told| Told::<Reached>::decode(&told)) {
                Ok(Ok(Told::Done(_))) => self.healed(promise).await,
                Ok(Ok(Told::Refused(refusal))) => tracing::warn!(%refusal, "this node can't be healed yet"),
                Ok(told) => tracing::debug!(?told, "this node can't be healed yet"),
                Err(error) => tracing::debug!(%error, "the leader can't be asked to heal this node"),
            }
            return;
        }
    }
}

impl Shared {
    /// The leader has said that it is done.
    async fn healed(&self, promise: &Promise) {
        tracing::info!("this node was healed: it goes on under its new disk");
        let _alone = self.promising.lock().await;
        let current = self.standing.lock().promise.clone().filter(|current| current.disk_id == promise.disk_id);
        let Some(current) = current else { return };
        let done = Promise { healing: None, ..current };
        let (options, written) = (self.options.clone(), done.clone());
        match blocking(move || options.write_promise(&written)).await {
            Ok(()) => self.standing.lock().promise = Some(done),
            Err(error) => tracing::warn!(%error, "that this node is healed could not be noted; it asks again"),
        }
    }
}

/// Deals with damage as it is reported.
pub(super) async fn damages(shared: Weak<Shared>) {
    let Some(peers) = shared.upgrade().map(|shared| Arc::clone(&shared.peers)) else { return };
    loop {
        let damage = peers.reported().await;
        let Some(shared) = shared.upgrade() else { return };
        shared.on_damage(damage).await;
    }
}

/// Asks to be healed for as long as that is wanted.
pub(super) async fn healing(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep_until(Instant::now() + Duration::from_millis(limits::HEAL_AGAIN_MS)).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.tidy().await;
        // Until the leader has said that all is done: one may have ended in the middle of it.
        if !matches!(shared.state(), NodeState::Quarantined | NodeState::Taking) {
            continue;
        }
        let promise = shared.standing.lock().promise.clone();
        if let Some(promise) = promise {
            shared.ask_to_be_healed(&promise).await;
        }
    }
}
