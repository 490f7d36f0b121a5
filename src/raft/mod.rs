//! Consensus: which commands are decided, in which order, and at what time.
//!
//! [`Consensus`] is all that the rest of the node sees. A command goes `propose` → `log_store` → the log on disk and the
//! other members → a quorum → `state_machine` → the records, and its answer goes back to whoever waits. Underneath works
//! openraft, none of whose types leaves this folder.
//!
//! In reading order: `types` what the core is built over · `codec` its bytes (FORMAT.md) · `log_store` the log as the core
//! sees it · `state_machine` the records as the core sees them · `cluster_time`, `leadership` who leads, and what time it
//! is · `propose` many callers' commands as one entry · `barrier` in front of linearizable reads · `compaction` snapshots
//! and purging · `scrub` reading every byte now and then · `start` opening and rebuilding · `running` the core and its tasks · `peer` what nodes say to each other ·
//! `network` that, as the core uses it · `roster`, `hello` what is known of the others · `forward` asking the leader ·
//! `promise`, `forming` how a cluster comes to be · `restore` how it does from a backup · `membership` how it changes · `vouch`
//! coming back · `quarantine` going on with another disk · `keeping`, `erasing` keys that members have, and what is left of destroyed ones · `status` what is told of all this · `replay` the state of a stopped
//! node at a position.
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
mod erasing;
mod forming;
mod forward;
mod hello;
mod keeping;
mod leadership;
mod log_store;
mod membership;
mod moving;
mod network;
mod peer;
mod promise;
mod propose;
mod quarantine;
pub mod replay;
pub mod restore;
mod room;
mod roster;
mod running;
mod scrub;
mod start;
mod state_machine;
mod status;
mod types;
mod vouch;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use tokio::{
    sync::{Mutex, watch},
    task::JoinHandle,
};

pub use codec::LogCodecError;
pub use keeping::Keeping;
pub use room::DiskRoom;
pub use scrub::ScrubFigures;
pub use start::{Options, StartError};
pub use status::{MemberStanding, MemberStatus, MemberTold, RoleWord, Status};
pub use types::Member;

use crate::{
    id::{ClusterId, NodeId, Time},
    limits,
    net::Listener,
    records::{answer::Applied, command::Command, state::State},
    refusal::Refusal,
    seal::Keychain,
    store::records::Records,
};
use codec::message::NodeState;
use leadership::Lead;
use peer::{door::Door, member::Book};
use promise::Standing;
use propose::{Ticket, unavailable};
use roster::{Peers, Roster};
use running::Running;
use start::Found;
use vouch::{Unvouched, Verdict};

/// This node's part in consensus. Clones are the same.
#[derive(Clone)]
pub struct Consensus {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    records: Arc<Records>,
    running: ArcSwapOption<Running>,
    peers: Arc<Peers>,
    standing: parking_lot::Mutex<Standing>,
    /// Held while the cluster is formed or joined: one at a time.
    forming: Mutex<()>,
    /// Held while a promise is given or taken back: one at a time.
    promising: Mutex<()>,
    /// The rounds, which hold nothing of this: they end with it.
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
    /// What was said of a node that has started again, and of whom.
    verdict: parking_lot::Mutex<Option<(Verdict, Unvouched)>>,
    /// Waits for the verdict.
    vouching: parking_lot::Mutex<Option<JoinHandle<()>>>,
    /// True once the node stops.
    stopped: watch::Sender<bool>,
    /// True once the cluster has removed this node.
    removed: watch::Sender<bool>,
}

/// Where a node is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// This node is none of the members.
    #[error("this is node {node_id}, which is not among the members")]
    NotNamed {
        /// This node.
        node_id: NodeId,
    },
    /// More members than a cluster has.
    #[error("{members} members are more than a cluster may have, {}", limits::MEMBERS_MAX)]
    TooMany {
        /// How many.
        members: usize,
    },
    /// A member knows this node by another disk.
    #[error("a cluster knows this node by a disk that is not here; `semel cluster replace` says what becomes of it")]
    WaitingForReplace,
    /// A named node can't be asked.
    #[error("node {node_id} can't be reached: {reason}")]
    Unreachable {
        /// The node.
        node_id: NodeId,
        /// Why.
        reason: String,
    },
    /// A named node is in a cluster, or promised to one.
    #[error("node {node_id} is in another cluster, or promised to one")]
    Elsewhere {
        /// The node.
        node_id: NodeId,
    },
    /// A named node does not promise itself.
    #[error("{reason}")]
    Unwilling {
        /// What it said.
        reason: String,
    },
    /// The node could not be started in it.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its first command was refused.
    #[error("the cluster's first command was refused")]
    Refused(#[source] Refusal),
    /// The backup can't be restored here.
    #[error(transparent)]
    Restore(#[from] restore::RestoreError),
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
        // A restore that was broken off leaves nothing that a node in no cluster may hold.
        let (disk, dir) = (Arc::clone(&options.disk), options.dir.clone());
        running::blocking(move || restore::clear(&*disk, &dir)).await?;
        let book = Book::new(Arc::clone(&options.net), options.known.clone());
        let roster = Roster::new(Arc::clone(&options.clock));
        let peers = Arc::new(Peers::new(book, roster));
        let found = options.found(&peers).await?;
        let Found { records, promise, running, unvouched } = found;
        let (waiting, unvouched) = unvouched.unzip();
        let shared = Arc::new(Shared {
            options,
            records,
            running: ArcSwapOption::new(running),
            peers,
            standing: parking_lot::Mutex::new(Standing { promise, unvouched, ..Standing::default() }),
            forming: Mutex::new(()),
            promising: Mutex::new(()),
            tasks: parking_lot::Mutex::default(),
            verdict: parking_lot::Mutex::default(),
            vouching: parking_lot::Mutex::default(),
            stopped: watch::Sender::new(false),
            removed: watch::Sender::new(false),
        });
        let rounds = tokio::spawn(hello::rounds(Arc::downgrade(&shared)));
        let marks = tokio::spawn(hello::marks(Arc::downgrade(&shared)));
        let damages = tokio::spawn(quarantine::damages(Arc::downgrade(&shared)));
        let healing = tokio::spawn(quarantine::healing(Arc::downgrade(&shared)));
        let moves = tokio::spawn(moving::follow_addresses(Arc::downgrade(&shared)));
        let room = tokio::spawn(room::watch(Arc::downgrade(&shared)));
        let erasing = tokio::spawn(erasing::erase(Arc::downgrade(&shared)));
        let pace = tokio::spawn(erasing::pace(Arc::downgrade(&shared)));
        shared.tasks.lock().extend([rounds, marks, damages, healing, moves, room, erasing, pace]);
        if let Some(opened) = waiting {
            // It ends with the verdict, or with the node; then it closes what is open.
            let vouching = tokio::spawn(Arc::clone(&shared).be_vouched_for(opened));
            *shared.vouching.lock() = Some(vouching);
        }
        Ok(Self { shared })
    }

    /// Answers other nodes on this listener until `stopping` is true.
    pub fn serve_peers(
        &self,
        listener: Box<dyn Listener>,
        stopping: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        peer::serve::serve(listener, Door(Arc::clone(&self.shared)), stopping)
    }

    /// The keys that sealed fields are opened with.
    pub fn keys(&self) -> &Arc<Keychain> {
        &self.shared.options.keys
    }

    /// Refuses where this node lacks a key that the cluster's fields are sealed with: it goes on replicating, but does not
    /// lead and takes nothing on.
    ///
    /// # Errors
    /// `unavailable`.
    pub fn unlocked(&self) -> Result<(), Refusal> {
        let state = self.shared.records.read();
        match &state.key_table().sealing {
            Some(sealing) => Ok(self.keys().unlock(state.globals(), sealing)?),
            None => Ok(()),
        }
    }

    /// Whether the data directory held the log of a cluster, formed or half formed.
    pub fn has_log(&self) -> bool {
        self.shared.running.load().is_some() || self.shared.standing.lock().unvouched.is_some()
    }

    /// Returns once the cluster has removed this node: there is nothing left for it to do.
    pub async fn removed(&self) {
        let mut removed = self.shared.removed.subscribe();
        if removed.wait_for(|removed| *removed).await.is_err() {
            std::future::pending::<()>().await;
        }
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
        running.judge_level(&commands)?;
        // Boxed: who leads is known but for moments, and every command's future would be as large as that wait.
        Box::pin(running.lead()).await?;
        Ok((running.queue.push(commands)?, running.propose_timeout))
    }

    /// Returns once the state applied here holds everything that was answered, anywhere, before this call.
    ///
    /// # Errors
    /// `unavailable` where this node can't make sure of it.
    pub async fn read_barrier(&self) -> Result<(), Refusal> {
        let running = self.running()?;
        running.lead().await?;
        running.barrier.pass().await.map(|_| ())
    }

    /// The records' time: the leader's while this node leads; elsewhere the last applied, or what the leader told the last
    /// [`Consensus::read_barrier`].
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
            match running.lead().await? {
                Lead::Here => running.queue.tick(running.propose_timeout).await?,
                Lead::There(_) => running.tick_there(to).await?,
            }
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

    /// What the scrub has read since the start.
    pub fn scrubbed(&self) -> ScrubFigures {
        let running = self.shared.running.load();
        running.as_ref().map_or(ScrubFigures { bytes: 0, passes: 0 }, |running| running.scrubbed.read())
    }

    /// Commands that wait to be proposed, and their bytes.
    pub fn queued(&self) -> (usize, usize) {
        self.shared.running.load().as_ref().map_or((0, 0), |running| running.queue.waiting())
    }

    /// How much room the disk has; none while the node takes no part.
    pub fn disk_room(&self) -> Option<DiskRoom> {
        self.shared.running.load().as_ref().map(|running| running.room.figures())
    }

    /// Why this node takes nothing on for want of room, if that is so.
    pub fn lacks_room(&self) -> Option<Refusal> {
        self.shared.running.load().as_ref().and_then(|running| running.room.own_refusal())
    }

    /// Segments of the log.
    pub fn log_segments(&self) -> usize {
        self.shared.running.load().as_ref().map_or(0, |running| running.wal.segments())
    }

    /// How this node stands.
    pub fn status(&self) -> Status {
        match &*self.shared.running.load() {
            Some(running) => running.status(),
            None => {
                let role = match self.shared.state() {
                    NodeState::Unvouched => return self.shared.unvouched_status(),
                    NodeState::WaitingForReplace => RoleWord::WaitingForReplace,
                    NodeState::Quarantined => RoleWord::Quarantined,
                    _ => RoleWord::Unformed,
                };
                Status::outside(self.shared.options.node_id, role)
            }
        }
    }

    /// Whether this node leads, as it knows.
    pub fn leads(&self) -> bool {
        self.shared.running.load().as_ref().is_some_and(|running| running.leadership.role().leading.is_some())
    }

    /// Whether this node leads a quorum, or has lately heard of whoever leads.
    pub fn is_in_touch(&self) -> bool {
        let Some(running) = &*self.shared.running.load() else { return false };
        let role = running.leadership.role();
        match (role.leading, role.leader) {
            (Some(_), _) => running.forward.has_quorum(),
            (None, Some(leader)) => {
                let lately = Duration::from_millis(limits::HELLO_FRESH_MS);
                self.shared.peers.roster.is_reachable(leader, lately) || running.leadership.was_confirmed(lately)
            }
            (None, None) => false,
        }
    }

    /// Whether so many voters were heard lately, this node counted, that they could have a leader.
    pub fn hears_quorum(&self) -> bool {
        self.shared.running.load().as_ref().is_none_or(|running| running.hears_quorum())
    }

    /// How fast cluster time runs, in thousandths of this node's monotonic clock, while this node leads: slower beside a
    /// quorum whose clocks are behind.
    pub fn time_rate(&self) -> Option<u64> {
        self.shared.running.load().as_ref().and_then(|running| running.leadership.time_rate())
    }

    /// How often another node than before was seen to lead.
    pub fn leader_changes(&self) -> u64 {
        self.shared.running.load().as_ref().map_or(0, |running| running.leadership.changes())
    }

    /// Lets another member lead, if this node leads. Takes a while at most.
    pub async fn resign(&self) {
        if let Some(running) = self.shared.running.load_full() {
            running.resign().await;
        }
    }

    /// Takes no more commands, waits a while for those in flight, and stops. The store is flushed and the log closed.
    pub async fn shutdown(&self) {
        self.shared.tasks.lock().iter().for_each(JoinHandle::abort);
        self.shared.stopped.send_replace(true);
        let vouching = self.shared.vouching.lock().take();
        if let Some(vouching) = vouching {
            // It closes the log.
            let _ = vouching.await;
        }
        if let Some(running) = self.shared.running.load_full() {
            running.shutdown().await;
        }
    }

    fn running(&self) -> Result<Arc<Running>, Refusal> {
        self.shared.running.load_full().ok_or_else(|| match self.shared.state() {
            NodeState::Unvouched => unavailable("this node has started again, and waits for others to vouch for it"),
            NodeState::WaitingForReplace => unavailable("a cluster knows this node by another disk; replace it"),
            NodeState::Quarantined => unavailable("this node has put its directory aside, and waits to be healed"),
            _ => unavailable("the cluster is not formed yet"),
        })
    }
}
