//! Consensus: which commands are decided, in which order, and at what time.
//!
//! [`Consensus`] is all that the rest of the node sees. A command goes `propose` → `log_store` → the log on disk and the
//! other members → a quorum → `state_machine` → the records, and its answer goes back to whoever waits. Underneath works
//! openraft, none of whose types leaves this folder.
//!
//! In reading order: `types` what the core is built over · `codec` its bytes (FORMAT.md) · `log_store` the log as the core
//! sees it · `state_machine` the records as the core sees them · `cluster_time`, `leadership` who leads, and what time it
//! is · `propose` many callers' commands as one entry · `barrier` in front of linearizable reads · `compaction` snapshots
//! and purging · `network` the way to other members · `start` opening and rebuilding · `running` the core and its tasks.
//!
//! # Invariants
//!
//! - C1. An answer is given only after its entry was durable on a quorum and applied here.
//! - C2. A caller that goes away cancels its waiting, never the work.
//! - C3. The log is purged only up to the older of two verified snapshots, and never within
//!   [`PURGE_MARGIN_ENTRIES`](crate::limits::PURGE_MARGIN_ENTRIES) of what is applied.
//! - C4. A fatal error of the core, of the log or of the store ends the process.

mod barrier;
mod cluster_time;
mod codec;
mod compaction;
mod leadership;
mod log_store;
mod network;
mod propose;
mod running;
mod start;
mod state_machine;
mod types;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;

pub use codec::LogCodecError;
pub use running::{MemberStanding, MemberStatus, RoleWord, Status};
pub use start::{Options, StartError};
pub use types::Member;

use crate::{
    entropy,
    id::{ClusterId, DiskId, Time},
    records::{
        answer::Applied,
        command::{Command, Init},
    },
    refusal::Refusal,
    store::records::Records,
    wal::{Identity, Wal},
};
use propose::{Ticket, unavailable};
use running::Running;

/// This node's part in consensus. Clones are the same.
#[derive(Clone)]
pub struct Consensus {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    records: Arc<Records>,
    running: ArcSwapOption<Running>,
    /// Held while the cluster is formed: one at a time.
    forming: Mutex<()>,
}

/// Where the first member is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// By other members.
    pub peer: String,
    /// By clients.
    pub client: String,
}

/// A cluster that is formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forming {
    /// Its id.
    pub cluster_id: ClusterId,
    /// Whether it was formed by this call.
    pub created: bool,
}

/// Why the cluster could not be formed.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    /// It was formed before, with other members.
    #[error("the cluster is formed already, with other members or addresses")]
    OtherMembers,
    /// The node could not be started in it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its first command was refused.
    #[error("the cluster's first command was refused")]
    Refused(#[source] Refusal),
    /// The membership could not be logged.
    #[error("the first membership could not be logged: {reason}")]
    Membership {
        /// What the core said.
        reason: String,
    },
}

impl Consensus {
    /// Opens what the data directory holds and takes part. Where it holds no log, the node is unformed until
    /// [`Consensus::init_single`].
    ///
    /// # Errors
    /// What keeps the node from taking part; nothing was served then.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let (records, running) = match options.identity()? {
            Some(identity) => {
                let running = Running::start(&options, identity, None).await?;
                (Arc::clone(&running.records), Some(Arc::new(running)))
            }
            None => (options.unformed_records()?, None),
        };
        let forming = Mutex::new(());
        let shared = Shared { options, records, running: ArcSwapOption::new(running), forming };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Forms a cluster whose only member is this node: draws the disk's id, creates the log, and has `init` applied as the
    /// first command. Where an earlier attempt broke off, it is finished under the ids that it drew.
    ///
    /// # Errors
    /// [`FormError::OtherMembers`] where the cluster is formed otherwise; what kept the node from starting.
    pub async fn init_single(&self, addresses: Addresses, init: Init) -> Result<Forming, FormError> {
        let _alone = self.shared.forming.lock().await;
        let options = &self.shared.options;
        if self.shared.running.load().is_none() {
            let identity = Identity {
                lineage_id: init.lineage_id,
                cluster_id: init.cluster_id,
                node_id: options.node_id,
                disk_id: DiskId(entropy::bytes()),
            };
            let (disk, dir) = (Arc::clone(&options.disk), options.wal_dir());
            let layout = options.wal_options().map_err(StartError::from)?;
            let created = move || Wal::create_parts(disk, &dir, identity, &layout).map(drop);
            running::blocking(created).await.map_err(StartError::from)?;
            let running = Running::start(options, identity, Some(Arc::clone(&self.shared.records))).await?;
            self.shared.running.store(Some(Arc::new(running)));
        }
        let running = self.running().map_err(FormError::Refused)?;
        let identity = running.identity;
        let Addresses { peer: peer_addr, client: client_addr } = addresses;
        let member = Member { peer_addr, client_addr, disk_id: identity.disk_id };
        let members = BTreeMap::from([(options.node_id, member)]);
        if running.is_initialized().await? {
            // What the log holds is known once it is applied, which takes a while after a start.
            self.read_barrier().await.map_err(FormError::Refused)?;
            if running.members() != members {
                return Err(FormError::OtherMembers);
            }
        } else {
            running.initialize(members).await?;
        }
        let cluster_id = identity.cluster_id;
        if running.is_formed() {
            return Ok(Forming { cluster_id, created: false });
        }
        let init = Init { lineage_id: identity.lineage_id, cluster_id, ..init };
        let applied = self.propose(Arc::new(Command::Init(Box::new(init)))).await.map_err(FormError::Refused)?;
        applied.answer.map_err(FormError::Refused)?;
        Ok(Forming { cluster_id, created: true })
    }

    /// Whether the data directory held the log of a cluster, formed or half formed.
    pub fn has_log(&self) -> bool {
        self.shared.running.load().is_some()
    }

    /// Has a command decided, and returns its answer as applied here. Dropping the future cancels the waiting, never a
    /// command that was queued.
    ///
    /// # Errors
    /// `unavailable` and `rate_limited`: it was not proposed; `result_unknown`: it may have been, or may yet be, applied. What
    /// the records refuse is in the answer.
    pub async fn propose(&self, command: Arc<Command>) -> Result<Applied, Refusal> {
        let (mut tickets, at_most) = self.queue(vec![command]).await?;
        tickets.pop().expect("one command has one ticket").answer(at_most).await
    }

    /// Has commands decided in this order, others perhaps between them. All or none are queued; each has its own answer,
    /// as for [`Consensus::propose`].
    pub async fn propose_many(&self, commands: Vec<Arc<Command>>) -> Vec<Result<Applied, Refusal>> {
        let count = commands.len();
        match self.queue(commands).await {
            Ok((tickets, at_most)) => {
                let until = tokio::time::Instant::now() + at_most;
                let mut answers = Vec::with_capacity(count);
                for ticket in tickets {
                    let left = until.saturating_duration_since(tokio::time::Instant::now());
                    answers.push(ticket.answer(left).await);
                }
                answers
            }
            Err(refusal) => vec![Err(refusal); count],
        }
    }

    async fn queue(&self, commands: Vec<Arc<Command>>) -> Result<(Vec<Ticket>, Duration), Refusal> {
        let running = self.running()?;
        running.leading().await?;
        Ok((running.queue.push(commands)?, running.propose_timeout))
    }

    /// Returns once the state applied here holds everything that was answered, anywhere, before this call.
    ///
    /// # Errors
    /// `unavailable` where this node can't make sure of it.
    pub async fn read_barrier(&self) -> Result<(), Refusal> {
        let running = self.running()?;
        running.leading().await?;
        running.barrier.pass().await
    }

    /// The records' time: the leader's while this node leads, the last applied elsewhere.
    pub fn now(&self) -> Time {
        self.shared.running.load().as_ref().map_or(Time::default(), |running| running.leadership.now())
    }

    /// Has applied time reach `to`, or now where that is earlier, and answers the applied time.
    ///
    /// # Errors
    /// `unavailable` where no entry could be applied.
    pub async fn tick_to(&self, to: Time) -> Result<Time, Refusal> {
        let running = self.running()?;
        if running.applied_time() < to {
            running.leading().await?;
            running.queue.tick(running.propose_timeout).await?;
        }
        Ok(running.applied_time())
    }

    /// Takes a snapshot of what is applied, verifies it, and purges as the rule allows. Answers the index of its last entry.
    ///
    /// # Errors
    /// `unavailable` where nothing was applied yet or the node is stopping.
    pub async fn snapshot_now(&self) -> Result<u64, Refusal> {
        let taken = self.running()?.compaction.take().await;
        taken.map(|id| id.index).map_err(|error| {
            tracing::error!(%error, "a snapshot could not be taken");
            unavailable("no snapshot could be taken; the log says why")
        })
    }

    /// The state as applied here; empty while the node is unformed.
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.shared.records)
    }

    /// How this node stands.
    pub fn status(&self) -> Status {
        match &*self.shared.running.load() {
            Some(running) => running.status(),
            None => Status::unformed(self.shared.options.node_id),
        }
    }

    /// Takes no more commands, waits a while for those in flight, and stops. The store is flushed and the log closed.
    pub async fn shutdown(&self) {
        if let Some(running) = self.shared.running.load_full() {
            running.shutdown().await;
        }
    }

    fn running(&self) -> Result<Arc<Running>, Refusal> {
        self.shared.running.load_full().ok_or_else(|| unavailable("the cluster is not formed yet"))
    }
}
