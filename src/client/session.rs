//! The hot path: one stream, shared by all tasks of a client.
//!
//! Commands wait in a bounded queue. Whatever waits when the stream can take more goes out in one frame; nothing
//! lingers for company. Answers come back in any order and find their callers by id. Commands that name one record are
//! sent in the order in which they were queued, and the server keeps that order.
//!
//! The stream asks for the leader's own answers (`semel-no-forward`), so that a node that doesn't lead says who does, and
//! the next stream goes there. Where no leader is known, or where it can't be reached from here, any node will do.
//!
//! When the stream breaks, every command in flight is answered [`Error::Lost`]: it may have been applied. Its caller
//! repeats it, which is harmless, since it carries an attempt id or a fence. Commands that were still queued stay
//! queued for the next stream: they were never sent.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use prost::Message;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, metadata::MetadataValue};

use super::{
    builder::Options,
    cluster::Cluster,
    error::Error,
    leader::{Node, Nodes},
    retry::Backoff,
};
use crate::{
    limits,
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::{Code, Refusal},
};

/// `1`: whoever doesn't lead refuses and names the leader, instead of forwarding.
const NO_FORWARD_METADATA: &str = "semel-no-forward";

/// The queue's end at which commands are put in.
#[derive(Clone, Debug)]
pub(super) struct Session {
    queue: mpsc::Sender<Queued>,
    nodes: Arc<Nodes>,
    attempt: Duration,
}

/// A command that waits to be sent.
struct Queued {
    item: v1::Item,
    ticket: Arc<Ticket>,
    answer: oneshot::Sender<Result<Answer, Error>>,
}

/// Whether a command was sent, or given up before it was: exactly one of the two comes first, so that a caller who
/// gives up knows whether the command may take place.
#[derive(Debug, Default)]
struct Ticket(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Ticket {
    fn send(&self) -> bool {
        self.0.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn give_up(&self) -> bool {
        self.0.compare_exchange(QUEUED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn is_queued(&self) -> bool {
        self.0.load(Ordering::Acquire) == QUEUED
    }
}

impl Session {
    /// A session and the task that drives it. The task ends when the last `Session` is dropped.
    pub(super) fn start(nodes: Arc<Nodes>, cluster: Arc<Cluster>, options: &Options) -> Self {
        let (queue, receiver) = mpsc::channel(limits::CLIENT_QUEUE_MAX);
        let driver = Driver {
            nodes: nodes.clone(),
            cluster,
            options: options.clone(),
            queue: receiver,
            backlog: VecDeque::new(),
            next_id: 0,
            leader_wanted_at: Instant::now(),
            redirects: 0,
        };
        tokio::spawn(driver.run());
        Self { queue, nodes, attempt: options.attempt }
    }

    /// Sends one command and waits for its answer, until `give_up`. While no connection comes about the command stays
    /// queued, which costs nobody anything; once it was sent, it is waited for as long as one attempt may take.
    pub(super) async fn call(&self, command: Command, give_up: Instant) -> Result<Answer, Error> {
        let item = v1::Item { command: Some(command) };
        if item.encoded_len() > limits::CLIENT_ITEM_BYTES_MAX {
            // It would break the stream, for all who share it.
            return Err(Refusal::new(Code::RequestTooLarge, "the command is larger than the service takes").into());
        }
        let started = Instant::now();
        let ticket = Arc::new(Ticket::default());
        let (sender, mut receiver) = oneshot::channel();
        let queued = Queued { item, ticket: ticket.clone(), answer: sender };
        match timeout_at(give_up, self.queue.send(queued)).await {
            Err(_) => return Err(self.unreachable("too many commands wait for a connection")),
            Ok(Err(_)) => return Err(Error::Closed),
            Ok(Ok(())) => {}
        }
        loop {
            let until = (Instant::now() + self.attempt).min(give_up);
            match timeout_at(until, &mut receiver).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => return Err(Error::Closed),
                Err(_) if Instant::now() < give_up && ticket.is_queued() => {}
                Err(_) if ticket.give_up() => return Err(self.unreachable("no connection came about in time")),
                Err(_) => {
                    let waited_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Err(Error::TimedOut { waited_ms });
                }
            }
        }
    }

    fn unreachable(&self, detail: &str) -> Error {
        Error::Unreachable { endpoint: self.nodes.current().endpoint().to_owned(), detail: detail.to_owned() }
    }
}

/// Owns the stream.
struct Driver {
    nodes: Arc<Nodes>,
    cluster: Arc<Cluster>,
    options: Options,
    queue: mpsc::Receiver<Queued>,
    /// Taken from the queue and not sent yet.
    backlog: VecDeque<Queued>,
    next_id: u64,
    /// From then on a stream is opened at the leader; before, at any node.
    leader_wanted_at: Instant,
    /// Leaders that were named since a stream was last opened.
    redirects: u32,
}

/// An open stream.
struct Stream {
    frames: mpsc::Sender<v1::SessionRequest>,
    answers: Streaming<v1::SessionAnswer>,
    /// Whether the node was asked to forward nothing.
    at_leader: bool,
}

/// A command that was sent.
struct Waiting {
    sent_at: Instant,
    answer: oneshot::Sender<Result<Answer, Error>>,
}

/// Commands in flight by their id: the first is the oldest.
type InFlight = BTreeMap<u64, Waiting>;

impl Driver {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        while self.has_work().await {
            let node = self.nodes.current();
            match self.open(&node).await {
                Ok(stream) => {
                    let mut in_flight = InFlight::new();
                    let Err(error) = self.serve(&node, stream, &mut in_flight, &mut backoff).await else { continue };
                    tracing::debug!(%error, in_flight = in_flight.len(), "a session ended");
                    for waiting in in_flight.into_values() {
                        let detail = error.to_string();
                        let lost = Error::Lost { endpoint: node.endpoint().to_owned(), detail };
                        // `Err` means that the caller is gone: nobody is left to tell.
                        let _ = waiting.answer.send(Err(lost));
                    }
                    self.nodes.failed(&node);
                    sleep(backoff.pause(error.retry_after_ms())).await;
                }
                Err(error) if self.redirected(&node, &error) => {}
                Err(error) => {
                    tracing::debug!(%error, endpoint = node.endpoint(), "no session could be opened");
                    self.nodes.failed(&node);
                    if error.retryable() {
                        sleep(backoff.pause(error.retry_after_ms())).await;
                    } else {
                        self.refuse_all(&error);
                    }
                }
            }
        }
    }

    /// Waits until there is something to send; false once nothing can come any more.
    async fn has_work(&mut self) -> bool {
        while self.backlog.front().is_some_and(|first| first.answer.is_closed() || !first.ticket.is_queued()) {
            self.backlog.pop_front();
        }
        if self.backlog.is_empty() {
            match self.queue.recv().await {
                Some(first) => self.backlog.push_back(first),
                None => return false,
            }
        }
        true
    }

    /// Every waiting command would be refused like this one: a credential that isn't taken, another cluster.
    fn refuse_all(&mut self, error: &Error) {
        while let Ok(queued) = self.queue.try_recv() {
            self.backlog.push_back(queued);
        }
        for queued in self.backlog.drain(..) {
            let _ = queued.answer.send(Err(error.clone()));
        }
    }

    /// Whether a refused stream is to be opened at once: at the leader that was named, or where none was, at any node.
    fn redirected(&mut self, node: &Arc<Node>, error: &Error) -> bool {
        if Instant::now() < self.leader_wanted_at {
            return false;
        }
        let any_node_for = |ms| Instant::now() + Duration::from_millis(ms);
        match error.leader() {
            Some(leader) if self.redirects < limits::CLIENT_REDIRECTS_MAX => {
                self.redirects += 1;
                self.nodes.follow(&leader.endpoint);
                return true;
            }
            // No leader, or one behind the other's back: a node that may forward waits until there is one.
            Some(_) => self.leader_wanted_at = any_node_for(limits::CLIENT_LEADER_AGAIN_MS),
            None if error.code() == Some(Code::Unavailable) => {
                self.leader_wanted_at = any_node_for(limits::CLIENT_LEADER_AGAIN_MS);
            }
            // It was named, and can't be reached from here.
            None if self.redirects > 0 && matches!(error, Error::Unreachable { .. }) => {
                self.leader_wanted_at = any_node_for(limits::CLIENT_LEADER_UNREACHABLE_MS);
                self.nodes.failed(node);
            }
            None => return false,
        }
        self.redirects = 0;
        true
    }

    async fn open(&self, node: &Node) -> Result<Stream, Error> {
        let (frames, receiver) = mpsc::channel(limits::CLIENT_FRAMES_MAX);
        let mut request = self.options.request(ReceiverStream::new(receiver));
        let at_leader = Instant::now() >= self.leader_wanted_at;
        if at_leader {
            request.metadata_mut().insert(NO_FORWARD_METADATA, MetadataValue::from_static("1"));
        }
        let mut stub = node.calls();
        let opened = timeout(self.options.attempt, stub.session(request)).await;
        let unreachable =
            |detail: &str| Error::Unreachable { endpoint: node.endpoint().to_owned(), detail: detail.into() };
        match opened {
            Err(_) => Err(unreachable("the session did not open in time")),
            Ok(Ok(response)) => {
                self.cluster.check(response.metadata())?;
                Ok(Stream { frames, answers: response.into_inner(), at_leader })
            }
            Ok(Err(status)) => {
                // Nothing was sent on this stream, whatever became of it.
                match Error::of_status(&status, node.endpoint()) {
                    Error::Lost { detail, .. } => Err(unreachable(&detail)),
                    error => Err(error),
                }
            }
        }
    }

    /// Serves one stream until it breaks (an error), or until nothing is left to do on it.
    async fn serve(
        &mut self,
        node: &Arc<Node>,
        mut stream: Stream,
        in_flight: &mut InFlight,
        backoff: &mut Backoff,
    ) -> Result<(), Error> {
        let lost = |detail: &str| Error::Lost { endpoint: node.endpoint().to_owned(), detail: detail.to_owned() };
        let mut ticks = interval(self.options.stall / 8);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut all_sent = false;
        self.redirects = 0;
        loop {
            // A leader was named elsewhere, or there may be one by now: what is in flight here is waited for, nothing new
            // is sent here.
            let seeks_leader = !stream.at_leader && self.nodes.len() > 1 && Instant::now() >= self.leader_wanted_at;
            let leaving = all_sent || seeks_leader || !self.nodes.is_current(node);
            if leaving && in_flight.is_empty() {
                return Ok(());
            }
            let room = limits::CLIENT_IN_FLIGHT_MAX - in_flight.len();
            tokio::select! {
                biased;
                frame = stream.answers.message() => match frame {
                    Ok(Some(frame)) => {
                        backoff.reset();
                        self.route(node, stream.at_leader, frame, in_flight);
                    }
                    Ok(None) => return Err(lost("the server ended the session")),
                    Err(status) => return Err(Error::of_status(&status, node.endpoint())),
                },
                frame = self.next_frame(&stream.frames, room), if !leaving && room > 0 => match frame {
                    Next::Frame(permit) => {
                        let frame = self.frame(room, in_flight);
                        if !frame.items.is_empty() {
                            permit.send(frame);
                        }
                    }
                    Next::AllSent => all_sent = true,
                    Next::Broken => return Err(lost("the connection takes nothing more")),
                },
                _ = ticks.tick() => {
                    let oldest = in_flight.first_key_value().map(|(_, waiting)| waiting.sent_at);
                    if oldest.is_some_and(|sent_at| sent_at.elapsed() > self.options.stall) {
                        return Err(lost("an answer is overdue"));
                    }
                }
            }
        }
    }

    /// Waits until the connection takes a frame and there is something to put into one. Dropping it loses nothing.
    async fn next_frame<'a>(&mut self, frames: &'a mpsc::Sender<v1::SessionRequest>, room: usize) -> Next<'a> {
        let Ok(permit) = frames.reserve().await else { return Next::Broken };
        if self.backlog.is_empty() {
            let mut taken = Vec::new();
            if self.queue.recv_many(&mut taken, room.min(limits::CLIENT_FRAME_ITEMS_MAX)).await == 0 {
                return Next::AllSent;
            }
            self.backlog.extend(taken);
        }
        Next::Frame(permit)
    }

    /// As much of the backlog as fits a frame.
    fn frame(&mut self, room: usize, in_flight: &mut InFlight) -> v1::SessionRequest {
        let (mut items, mut bytes) = (Vec::new(), 0);
        let sent_at = Instant::now();
        while let Some(first) = self.backlog.front() {
            bytes += first.item.encoded_len();
            let full = items.len() == room.min(limits::CLIENT_FRAME_ITEMS_MAX);
            if full || (!items.is_empty() && bytes > limits::CLIENT_FRAME_BYTES_MAX) {
                break;
            }
            let queued = self.backlog.pop_front().expect("its front was just looked at");
            if queued.answer.is_closed() || !queued.ticket.send() {
                continue;
            }
            self.next_id += 1;
            items.push(v1::SessionItem { id: self.next_id, item: Some(queued.item) });
            in_flight.insert(self.next_id, Waiting { sent_at, answer: queued.answer });
        }
        v1::SessionRequest { items }
    }

    fn route(&mut self, node: &Arc<Node>, at_leader: bool, frame: v1::SessionAnswer, in_flight: &mut InFlight) {
        for item in frame.items {
            // An id that nobody waits for: an answer given twice.
            let Some(waiting) = in_flight.remove(&item.id) else { continue };
            let answer = match item.answer.and_then(|answer| answer.answer) {
                Some(Answer::Refused(refused)) => {
                    let error = Error::of_refused(refused);
                    match error.leader() {
                        Some(leader) => self.nodes.follow(&leader.endpoint),
                        None if error.blames_node() => {
                            if at_leader {
                                // It leads no more, and knows of nobody else yet.
                                self.leader_wanted_at =
                                    Instant::now() + Duration::from_millis(limits::CLIENT_LEADER_AGAIN_MS);
                            }
                            self.nodes.failed(node);
                        }
                        None => {}
                    }
                    Err(error)
                }
                Some(answer) => Ok(answer),
                None => Err(Error::Protocol { missing: "answer" }),
            };
            let _ = waiting.answer.send(answer);
        }
    }
}

/// What can be sent next.
enum Next<'a> {
    /// The backlog holds something, and the connection takes it.
    Frame(mpsc::Permit<'a, v1::SessionRequest>),
    /// Nobody is left who could queue anything.
    AllSent,
    /// The stream's sending side is closed.
    Broken,
}
