//! A node's promise to belong to one cluster: a small file in its data directory, durable before the cluster is formed.
//! Of two inits at once at most one collects all promises. See FORMAT.md.

use std::{path::PathBuf, sync::Arc};

use super::{
    Shared,
    codec::message::{AskPromise, Founder, NodeState, Promise, PromiseAnswer},
    start::{Options, StartError},
    vouch::Unvouched,
};
use crate::{
    disk::{DiskError, Mode},
    entropy,
    id::{ClusterId, DiskId, LineageId},
    limits,
};

const NAME: &str = "promise";
const TEMPORARY: &str = "promise.tmp";
/// What a promise is called that can't be read.
const DAMAGED: &str = "promise.damaged";

/// What a node without a log has to do with.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// What it has promised.
    pub promise: Option<Promise>,
    /// A member knows this node under another disk: an operator has to say what becomes of it.
    pub is_waiting: bool,
    /// It has a log, and waits until a quorum has vouched for it.
    pub unvouched: Option<Unvouched>,
    /// Old quarantines were cleared away, since this node takes part.
    pub is_tidy: bool,
}

impl Options {
    fn promise_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The promise in the directory, if there is one.
    pub(super) fn read_promise(&self) -> Result<Option<Promise>, StartError> {
        let file = match self.disk.open(&self.promise_path(NAME), Mode::Read) {
            Err(error) if error.is_not_found() => return Ok(None),
            file => file?,
        };
        let length = usize::try_from(file.len()?).unwrap_or(usize::MAX).min(limits::PROMISE_BYTES_MAX);
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, 0)?;
        drop(file);
        match Promise::decode(&bytes) {
            Ok(promise) => Ok(Some(promise)),
            Err(error) if error.is_of_newer_release() => Err(StartError::Kept(std::io::Error::other(error))),
            // Whoever has a log is known by it. Whoever has none is known to its members by the disk that it can't name
            // any more, and waits until an operator says what becomes of it, as with an empty directory.
            Err(error) => {
                tracing::error!(%error, "the promise in the data directory is damaged, and is put aside");
                self.disk.rename(&self.promise_path(NAME), &self.promise_path(DAMAGED))?;
                self.disk.sync_dir(&self.dir)?;
                Ok(None)
            }
        }
    }

    /// Keeps a promise. Durable on return; a crash before leaves the directory as it was.
    pub(super) fn write_promise(&self, promise: &Promise) -> Result<(), DiskError> {
        self.disk.create_dir_all(&self.dir)?;
        let (temporary, path) = (self.promise_path(TEMPORARY), self.promise_path(NAME));
        if let Err(error) = self.disk.remove(&temporary)
            && !error.is_not_found()
        {
            return Err(error);
        }
        let file = self.disk.open(&temporary, Mode::CreateNew)?;
        file.write_at(&promise.encode(), 0)?;
        file.sync_data()?;
        self.disk.rename(&temporary, &path)?;
        self.disk.sync_dir(&self.dir)
    }

    /// Forgets a promise, if there is one.
    pub(super) fn remove_promise_if_any(&self) -> Result<(), DiskError> {
        match self.remove_promise() {
            Err(error) if error.is_not_found() => Ok(()),
            removed => removed,
        }
    }

    /// Forgets a promise that was taken back.
    fn remove_promise(&self) -> Result<(), DiskError> {
        self.disk.remove(&self.promise_path(NAME))?;
        self.disk.sync_dir(&self.dir)
    }
}

impl Shared {
    /// In what state this node is for the others.
    pub(super) fn state(&self) -> NodeState {
        if self.running.load().is_some() {
            return NodeState::Taking;
        }
        let standing = self.standing.lock();
        match &standing.promise {
            _ if standing.unvouched.is_some() => NodeState::Unvouched,
            _ if standing.is_waiting => NodeState::WaitingForReplace,
            Some(promise) if promise.healing.is_some() => NodeState::Quarantined,
            Some(_) => NodeState::Promised,
            None => NodeState::Unformed,
        }
    }

    /// Gives a promise, or takes one back.
    pub(super) async fn promise(self: &Arc<Self>, asked: AskPromise) -> PromiseAnswer {
        let _alone = self.promising.lock().await;
        let answered = match asked {
            AskPromise::Grant { lineage_id, cluster_id, founders, replaces } => {
                // An operator has said that whatever is here is put aside for the cluster's sake.
                let aside = if replaces { self.put_aside_for(cluster_id).await } else { Ok(()) };
                aside.and_then(|()| self.grant(lineage_id, cluster_id, founders, replaces))
            }
            AskPromise::Withdraw { cluster_id, disk_id } => self.withdraw(cluster_id, disk_id),
        };
        answered.unwrap_or_else(|reason| PromiseAnswer::Refused { reason })
    }

    fn grant(
        &self,
        lineage_id: LineageId,
        cluster_id: ClusterId,
        founders: Vec<Founder>,
        replaces: bool,
    ) -> Result<PromiseAnswer, String> {
        let node_id = self.options.node_id;
        if let Some(running) = &*self.running.load() {
            let Some(disk_id) = Some(running.identity.disk_id).filter(|_| running.identity.cluster_id == cluster_id)
            else {
                return Err(format!("node {node_id} is in cluster {}", running.identity.cluster_id));
            };
            return Ok(PromiseAnswer::Granted { disk_id, is_new: false });
        }
        let mut standing = self.standing.lock();
        if let Some(Unvouched { identity, .. }) = &standing.unvouched {
            return match identity.cluster_id == cluster_id {
                true => Ok(PromiseAnswer::Granted { disk_id: identity.disk_id, is_new: false }),
                false => Err(format!("node {node_id} is in cluster {}", identity.cluster_id)),
            };
        }
        match &standing.promise {
            Some(promise) if promise.cluster_id == cluster_id => {
                return Ok(PromiseAnswer::Granted { disk_id: promise.disk_id, is_new: false });
            }
            Some(promise) => {
                return Err(format!("node {node_id} has promised itself to cluster {}", promise.cluster_id));
            }
            // A member may call for the old disk at any moment: what an operator has decided stands all the same.
            None if standing.is_waiting && !replaces => {
                return Err(format!("node {node_id} is a member that has lost its disk: use `semel cluster replace`"));
            }
            None => {}
        }
        let disk_id = DiskId(entropy::bytes());
        let known = founders.clone();
        // What takes the place of a voter's disk asks the members until it votes. Which disk that was they know.
        let is_for_voter = replaces && !founders.is_empty();
        let healing = is_for_voter.then(DiskId::default);
        let founders = if is_for_voter { Vec::new() } else { founders };
        let promise = Promise { lineage_id, cluster_id, node_id, disk_id, healing, founders, known };
        let written = self.options.write_promise(&promise);
        written.map_err(|error| format!("node {node_id} can't keep a promise: {error}"))?;
        standing.promise = Some(promise);
        standing.is_waiting = false;
        Ok(PromiseAnswer::Granted { disk_id, is_new: true })
    }

    fn withdraw(&self, cluster_id: ClusterId, disk_id: DiskId) -> Result<PromiseAnswer, String> {
        let mut standing = self.standing.lock();
        let is_it = |promise: &Promise| promise.cluster_id == cluster_id && promise.disk_id == disk_id;
        if self.running.load().is_some()
            || standing.unvouched.is_some()
            || !standing.promise.as_ref().is_some_and(is_it)
        {
            return Err("no such promise can be taken back".to_owned());
        }
        self.options.remove_promise().map_err(|error| format!("the promise can't be taken back: {error}"))?;
        standing.promise = None;
        Ok(PromiseAnswer::Granted { disk_id, is_new: false })
    }
}
