//! What a node does that does not lead: it asks the leader.
//!
//! # Invariants
//!
//! - F1. Commands that may have been heard are never sent again: what became of them is `result_unknown`. Only what was not
//!   sent, or what a node that does not lead has turned away, goes to the next leader.
//! - F2. What was asked is never asked on: a node that is asked and does not lead says so.
//! - F3. An answer is given only after this node has applied what it is based on.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use openraft::{Instant as _, async_runtime::WatchReceiver};
use tokio::time::Instant;

use super::{
    Shared,
    codec::message::{Asked, End, Reached, Told, encode_propose},
    leadership::{Lead, Leadership},
    peer::{link::LinkError, member::MemberClient},
    propose::{unavailable, unknown},
    roster::Peers,
    running::Running,
    types::{Member, Raft},
};
use crate::{
    id::{NodeId, Time},
    limits,
    records::{
        answer::wire::{self, Answers},
        codec,
        command::Command,
    },
    refusal::{Code, Refusal},
    wal::Identity,
};

/// The way to whoever leads.
pub(super) struct Forward {
    pub raft: Raft,
    pub leadership: Arc<Leadership>,
    pub peers: Arc<Peers>,
    pub identity: Identity,
    pub election_max: Duration,
}

fn pause() -> Duration {
    Duration::from_millis(limits::FORWARD_PAUSE_MS)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

impl Forward {
    /// The member of this id, as last logged.
    pub fn member(&self, node: NodeId) -> Option<Member> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.membership().get_node(&node).cloned()
    }

    /// The way to a member.
    pub fn client(&self, node: NodeId) -> Option<MemberClient> {
        let member = self.member(node)?;
        let from = End { node_id: self.identity.node_id, disk_id: self.identity.disk_id };
        let to = End { node_id: node, disk_id: member.disk_id };
        Some(self.peers.book.member(self.identity.cluster_id, from, to, &member.peer_addr))
    }

    /// Whether a quorum has followed this leader lately. One that has no quorum takes nothing on.
    pub fn has_quorum(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.membership_config.membership().voter_ids().eq([self.identity.node_id]) {
            return true;
        }
        let acknowledged = metrics.last_quorum_acked.map(|at| at.elapsed());
        let led = self.leadership.led_for();
        // A leader was just elected by a quorum.
        acknowledged.into_iter().chain(led).min().is_some_and(|age| age <= self.election_max)
    }

    /// Who leads, waited for a while.
    pub async fn lead(&self, at_most: Duration) -> Result<Lead, Refusal> {
        match self.leadership.lead(at_most).await? {
            Lead::Here if !self.has_quorum() => Err(unavailable("this leader has reached no quorum lately")),
            lead => Ok(lead),
        }
    }

    /// Waits until this node has applied the entry at `index`.
    pub async fn applied_here(&self, index: u64, at_most: Duration) -> Result<(), Refusal> {
        let waiting = self.raft.wait(Some(at_most));
        let applied = waiting.applied_index_at_least(Some(index), "what a leader told of").await;
        applied.map(|_| ()).map_err(|_| unavailable("this node is behind what was decided"))
    }

    /// Asks the leader, and whoever leads next, until `at_most` is over. The answer is `None` where this node leads.
    /// What isn't repeatable is asked again only where it was not heard.
    pub async fn ask(&self, asked: &Asked, at_most: Duration, is_repeatable: bool) -> Result<Option<Reached>, Refusal> {
        let until = Instant::now() + at_most;
        let mut refusal = unavailable("no node leads at the moment");
        loop {
            let wait = left(until).min(Duration::from_millis(limits::LEADER_WAIT_MS));
            let node = match self.lead(wait).await? {
                Lead::Here => return Ok(None),
                Lead::There(node) => node,
            };
            if let Some(client) = self.client(node) {
                let (body, at_most) = (asked.encode(left(until)), left(until));
                let told = match asked {
                    Asked::Barrier => client.barrier(body, at_most.min(self.election_max)).await,
                    Asked::Tick { .. } => client.tick(body, at_most).await,
                    Asked::Change { .. } => client.change(body, at_most).await,
                };
                match told.map(|told| Told::<Reached>::decode(&told)) {
                    Ok(Ok(Told::Done(reached))) => return Ok(Some(reached)),
                    Ok(Ok(Told::Refused(refused))) if !is_repeatable || refused.code != Code::Unavailable => {
                        return Err(refused);
                    }
                    Ok(Ok(Told::Refused(refused))) => refusal = refused,
                    Ok(Ok(Told::NotLeader(_))) => {}
                    Ok(Err(error)) => {
                        tracing::warn!(node, %error, "a leader's answer can't be read");
                        return Err(unknown("the leader's answer can't be read: it may be of a newer release"));
                    }
                    Err(error) if !error.is_unsent() && !is_repeatable && !is_refused(&error) => {
                        return Err(unknown("the leader has not answered"));
                    }
                    Err(_) => {}
                }
            }
            if left(until) <= pause() {
                return Err(refusal);
            }
            tokio::time::sleep(pause()).await;
        }
    }

    /// Sends commands to the leader, each in its encoding without a version byte. Where the answer is an error, it is that
    /// of all of them.
    pub async fn propose(&self, commands: &[Bytes], at_most: Duration) -> Result<Answers, Refusal> {
        let until = Instant::now() + at_most;
        let leader_until = Instant::now() + Duration::from_millis(limits::LEADER_WAIT_MS);
        loop {
            let node = match self.lead(left(leader_until)).await? {
                Lead::Here => return Err(unavailable("this node has just begun to lead")),
                Lead::There(node) => node,
            };
            if let Some(client) = self.client(node) {
                match client.propose(encode_propose(left(until), commands), left(until)).await {
                    Ok(told) => match Told::<(u64, Answers)>::decode(&told) {
                        Ok(Told::Done((index, answers))) if answers.len() == commands.len() => {
                            // It is decided all the same where this node doesn't come after in time (F3 is for reads).
                            let _ = self.applied_here(index, left(until)).await;
                            return Ok(answers);
                        }
                        Ok(Told::Refused(refusal)) => return Err(refusal),
                        Ok(Told::NotLeader(_)) => {}
                        Ok(Told::Done(_)) | Err(_) => {
                            return Err(unknown("the leader's answer can't be read: it may be of a newer release"));
                        }
                    },
                    Err(error) if error.is_unsent() || is_refused(&error) => {}
                    Err(_) => return Err(unknown("the commands were sent to the leader, which has not answered")),
                }
            }
            if left(leader_until) <= pause() {
                return Err(unavailable("the leader can't be reached"));
            }
            tokio::time::sleep(pause()).await;
        }
    }
}

/// Whether it was turned away before anything was done.
fn is_refused(error: &LinkError) -> bool {
    matches!(error, LinkError::Refused { .. })
}

impl Running {
    /// Has another node's commands decided (F2), and encodes what came of it.
    pub async fn propose_for(&self, at_most: Duration, commands: Vec<Bytes>) -> Bytes {
        let told = match self.leads().await {
            Err(told) => told,
            Ok(()) => match decode_commands(&commands) {
                Err(refusal) => Told::Refused(refusal),
                Ok(decoded) => {
                    match self.judge_level(&decoded).and_then(|()| self.queue.push_encoded(decoded, commands)) {
                        Err(refusal) => Told::Refused(refusal),
                        Ok(tickets) => {
                            let until = Instant::now() + at_most.min(self.propose_timeout);
                            let mut answers = Vec::with_capacity(tickets.len());
                            for ticket in tickets {
                                answers.push(ticket.answer(left(until)).await);
                            }
                            Told::Done((self.applied().unwrap_or(0), bounded(answers)))
                        }
                    }
                }
            },
        };
        Told::<(u64, Answers)>::encode(&told)
    }

    /// Has the leader bring applied time to `to`, and waits until it is applied here.
    pub async fn tick_there(&self, to: Time) -> Result<(), Refusal> {
        let until = Instant::now() + self.propose_timeout;
        match self.forward.ask(&Asked::Tick { to }, left(until), true).await? {
            Some((index, _)) => self.forward.applied_here(index, left(until)).await,
            None => self.queue.tick(left(until)).await,
        }
    }

    async fn leads<T>(&self) -> Result<(), Told<T>> {
        if self.is_stopping() {
            return Err(Told::Refused(unavailable("the leader is stopping")));
        }
        match self.forward.lead(Duration::ZERO).await {
            Ok(Lead::Here) => Ok(()),
            Ok(Lead::There(node)) => Err(Told::NotLeader(Some(node))),
            Err(_) if self.leadership.role().leading.is_none() => Err(Told::NotLeader(None)),
            Err(refusal) => Err(Told::Refused(refusal)),
        }
    }
}

fn decode_commands(commands: &[Bytes]) -> Result<Vec<Arc<Command>>, Refusal> {
    let decode = |bytes: &Bytes| {
        let mut whole = Vec::with_capacity(bytes.len() + 1);
        whole.push(codec::FORMAT_VERSION);
        whole.extend_from_slice(bytes);
        codec::decode(&whole).map(Arc::new)
    };
    // Not proposed, and never will be as it is: a newer node speaks, and this one can't tell what it says.
    let unreadable = |_| unavailable("the leader can't read the command: it is of an older release");
    commands.iter().map(decode).collect::<Result<_, _>>().map_err(unreadable)
}

/// Answers that fit one message. What doesn't is decided, and its caller learns no more than that it may be.
fn bounded(mut answers: Answers) -> Answers {
    let most = limits::PEER_MESSAGE_BYTES_MAX - 4096;
    if wire::encode_answers(&answers).len() <= most {
        return answers;
    }
    let mut bytes = 0;
    for answer in &mut answers {
        bytes += wire::encode_answers(&vec![answer.clone()]).len();
        if bytes > most {
            *answer = Err(unknown("the answers of these commands are larger than a message between nodes"));
        }
    }
    answers
}

impl Shared {
    /// Answers what another node asks of a leader (F2).
    pub(super) async fn answer(&self, running: &Running, at_most: Duration, asked: Asked) -> Told<Reached> {
        if let Err(told) = running.leads().await {
            return told;
        }
        let reached = match asked {
            Asked::Barrier => running.barrier.pass().await.map(|index| (index, running.leadership.now())),
            Asked::Tick { to } => {
                let ticked = match running.applied_time() < to {
                    true => running.queue.tick(at_most.min(running.propose_timeout)).await,
                    false => Ok(()),
                };
                ticked.map(|()| (running.applied().unwrap_or(0), running.applied_time()))
            }
            Asked::Change { change, actor } => self.change_here(running, change, &actor, at_most).await,
        };
        reached.map_or_else(Told::Refused, Told::Done)
    }
}
