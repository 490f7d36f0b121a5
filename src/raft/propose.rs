//! The proposer: collects the commands of many callers into one log entry, stamps it with cluster time, and hands it to the
//! consensus core.
//!
//! A tenant's order is the log's order; tenants take turns ([`fair`]). An idle proposer sends at once; while entries are in
//! flight, what arrives is collected for the next one, so that batches grow with the load and a single caller never waits for
//! company.
//!
//! # Invariants
//!
//! - P1. What a caller is told about an effect is true: `unavailable` only for what was not and will not be appended,
//!   `result_unknown` for everything else that was not answered.
//! - P2. A command that was queued is proposed, whether or not its caller still waits; only a time-out of its own takes
//!   it back, and only out of the queue, and only a line that is long enough turns it away.

mod fair;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use openraft::{errors::ClientWriteError, raft::ClientWriteResult};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use fair::{Bounds, Fair, Shares, tenant_of};

use super::{
    forward::Forward,
    leadership::Leadership,
    room::Room,
    types::{OnDone, Proposal, Raft},
};
use crate::{
    id::Time,
    limits,
    metrics::Metrics,
    records::{
        answer::Applied,
        codec,
        command::{Command, Entry},
    },
    refusal::{Code, Refusal},
};

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

/// What waits to be proposed.
enum Item {
    Command(Queued),
    Tick(oneshot::Sender<Result<(), Refusal>>),
}

struct Queued {
    command: Arc<Command>,
    /// Its encoding without the version byte.
    bytes: Bytes,
    state: Arc<AtomicU8>,
    answer: oneshot::Sender<Result<Applied, Refusal>>,
}

/// A command in the queue, as its caller holds it.
pub(super) struct Ticket {
    state: Arc<AtomicU8>,
    answer: oneshot::Receiver<Result<Applied, Refusal>>,
}

impl Ticket {
    /// The answer, or what is known of the effect without one (P1).
    pub async fn answer(self, at_most: Duration) -> Result<Applied, Refusal> {
        match tokio::time::timeout(at_most, self.answer).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err(unknown("the node stopped before the command was applied"))),
            Err(_) => {
                let withdrawn = self.state.compare_exchange(QUEUED, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
                Err(match withdrawn {
                    Ok(_) => unavailable("too much waits to be proposed; the command was not"),
                    Err(_) => unknown("the command was proposed, but not applied in time"),
                })
            }
        }
    }
}

/// Refused: not proposed, and never will be.
pub(super) fn unavailable(detail: &'static str) -> Refusal {
    Refusal::new(Code::Unavailable, detail).retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS)
}

/// Perhaps proposed.
pub(super) fn unknown(detail: &'static str) -> Refusal {
    if planted!(UnknownSaidNotDone) {
        return unavailable(detail);
    }
    Refusal::new(Code::ResultUnknown, detail).retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS)
}

/// The callers' end of the proposer. Clones share its queue.
#[derive(Clone)]
pub(super) struct Queue {
    items: mpsc::Sender<Item>,
    waiting: Arc<Waiting>,
}

/// What waits, as far as both ends of the queue must know.
#[derive(Default)]
struct Waiting {
    /// Bytes of what the proposer has not taken in yet.
    coming_bytes: AtomicUsize,
    /// What it has, and has not proposed yet.
    queued: AtomicUsize,
    queued_bytes: AtomicUsize,
    /// Much is coming: it should be taken in now.
    pressed: Notify,
}

impl Queue {
    /// Queues these commands in this order, all or none. Where the tenant's line is long enough already, the tickets say so.
    pub fn push(&self, commands: Vec<Arc<Command>>) -> Result<Vec<Ticket>, Refusal> {
        let encoded = commands.iter().map(|command| codec::encode(&**command).slice(1..)).collect();
        self.push_encoded(commands, encoded)
    }

    /// Queues commands with their encodings, which have no version byte.
    pub fn push_encoded(&self, commands: Vec<Arc<Command>>, encoded: Vec<Bytes>) -> Result<Vec<Ticket>, Refusal> {
        let bytes = encoded.iter().map(Bytes::len).sum::<usize>();
        if encoded.iter().any(|bytes| bytes.len() > limits::COMMAND_BYTES_MAX) {
            return Err(Refusal::new(Code::RequestTooLarge, "the command is larger than a log entry may be"));
        }
        // A single command passes an empty queue however large it is.
        let coming = self.waiting.coming_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = coming == 0 || coming + bytes <= limits::PROPOSE_INTAKE_BYTES_MAX;
        let room = if fits { self.items.try_reserve_many(commands.len()) } else { Err(full()) };
        let room = room.map_err(|error| {
            self.waiting.coming_bytes.fetch_sub(bytes, Ordering::Relaxed);
            match error {
                mpsc::error::TrySendError::Full(()) => too_much(),
                mpsc::error::TrySendError::Closed(()) => unavailable("the node is stopping"),
            }
        })?;
        let queue = |((command, bytes), room): ((Arc<Command>, Bytes), mpsc::Permit<'_, Item>)| {
            let (sender, answer) = oneshot::channel();
            let state = Arc::new(AtomicU8::new(QUEUED));
            room.send(Item::Command(Queued { command, bytes, state: Arc::clone(&state), answer: sender }));
            Ticket { state, answer }
        };
        let tickets = commands.into_iter().zip(encoded).zip(room).map(queue).collect();
        if coming + bytes > limits::PROPOSE_INTAKE_BYTES_MAX / 2
            || self.items.capacity() < limits::PROPOSE_INTAKE_MAX / 2
        {
            self.waiting.pressed.notify_one();
        }
        Ok(tickets)
    }

    /// What waits: commands and ticks, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let Waiting { coming_bytes, queued, queued_bytes, .. } = &*self.waiting;
        let coming = self.items.max_capacity() - self.items.capacity();
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (coming + read(queued), read(coming_bytes) + read(queued_bytes))
    }

    /// Has an entry logged that may be empty, and waits until it is applied. Ticks that wait together share one.
    pub async fn tick(&self, at_most: Duration) -> Result<(), Refusal> {
        let (sender, done) = oneshot::channel();
        self.items.try_send(Item::Tick(sender)).map_err(|_| unavailable("too much waits to be proposed"))?;
        match tokio::time::timeout(at_most, done).await {
            Ok(Ok(done)) => done,
            _ => Err(unavailable("time was not agreed on in time")),
        }
    }
}

/// Refused for want of room: not proposed, and never will be.
fn too_much() -> Refusal {
    Refusal::new(Code::RateLimited, "too much waits to be proposed; the command was not")
        .retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS)
}

fn full<T>() -> mpsc::error::TrySendError<T>
where
    T: Default,
{
    mpsc::error::TrySendError::Full(T::default())
}

/// The callers of one entry, and the entry's place among those in flight.
struct InFlight {
    answers: Vec<oneshot::Sender<Result<Applied, Refusal>>>,
    ticks: Vec<oneshot::Sender<Result<(), Refusal>>>,
    /// When it was proposed, and where its time counts.
    measured: Option<(Instant, Arc<Metrics>)>,
    _place: Option<OwnedSemaphorePermit>,
    /// What each tenant has in flight with it.
    _shares: Shares,
}

impl InFlight {
    /// Tells every caller. One that no longer waits needs no answer.
    fn finish(self, outcome: ClientWriteResult<super::types::Types>) {
        if let Some((began, metrics)) = &self.measured {
            metrics.proposal_seconds.observe(began.elapsed().as_secs_f64());
        }
        let refusal = match outcome {
            Ok(response) => {
                let answers = response.data.0;
                assert_eq!(answers.len(), self.answers.len(), "apply answers every command of an entry");
                for (answer, caller) in answers.into_iter().zip(self.answers) {
                    let _ = caller.send(Ok(answer));
                }
                self.ticks.into_iter().for_each(|tick| drop(tick.send(Ok(()))));
                return;
            }
            // The one error that is given before anything is appended.
            Err(ClientWriteError::ForwardToLeader(_)) => unavailable("this node does not lead"),
            Err(_) => unknown("the entry was replaced, or another node decides it"),
        };
        self.refuse(&refusal);
    }

    fn refuse(self, refusal: &Refusal) {
        self.answers.into_iter().for_each(|caller| drop(caller.send(Err(refusal.clone()))));
        self.ticks.into_iter().for_each(|tick| drop(tick.send(Err(refusal.clone()))));
    }
}

/// What becomes one entry.
struct Batch {
    commands: Vec<Arc<Command>>,
    bytes: Vec<Bytes>,
    total: usize,
    callers: InFlight,
}

impl Batch {
    fn new() -> Self {
        let callers =
            InFlight { answers: Vec::new(), ticks: Vec::new(), measured: None, _place: None, _shares: Shares::new() };
        Self { commands: Vec::new(), bytes: Vec::new(), total: 0, callers }
    }

    fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.callers.ticks.is_empty()
    }

    /// Whether it was added: what was withdrawn is not.
    fn add(&mut self, queued: Queued) -> bool {
        let taken = queued.state.compare_exchange(QUEUED, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_ok() {
            self.total += queued.bytes.len();
            self.commands.push(queued.command);
            self.bytes.push(queued.bytes);
            self.callers.answers.push(queued.answer);
        }
        taken.is_ok()
    }

    /// What is left of it where commands of a kind are refused.
    fn without(self, is_refused: impl Fn(&Command) -> bool, refusal: &Refusal) -> Self {
        let Self { commands, bytes, callers: InFlight { answers, ticks, measured, _place, _shares }, .. } = self;
        let callers = InFlight { answers: Vec::new(), ticks, measured, _place, _shares };
        let mut left = Self { callers, ..Self::new() };
        for ((command, bytes), answer) in commands.into_iter().zip(bytes).zip(answers) {
            if is_refused(&command) {
                let _ = answer.send(Err(refusal.clone()));
            } else {
                left.total += bytes.len();
                left.commands.push(command);
                left.bytes.push(bytes);
                left.callers.answers.push(answer);
            }
        }
        left
    }

    /// The entry at this time. The commands were encoded by their callers: here they are only joined.
    fn proposal(commands: Vec<Arc<Command>>, encoded: &[Bytes], total: usize, time: Time) -> Proposal {
        let head = codec::encode(&(time, commands.len() as u64));
        let mut bytes = Vec::with_capacity(head.len() + total);
        bytes.extend_from_slice(&head);
        encoded.iter().for_each(|command| bytes.extend_from_slice(command));
        Proposal { entry: Arc::new(Entry { time, commands }), bytes: bytes.into() }
    }
}

/// The task that proposes.
pub(super) struct Proposer {
    raft: Raft,
    room: Arc<Room>,
    leadership: Arc<Leadership>,
    forward: Arc<Forward>,
    items: mpsc::Receiver<Item>,
    waiting: Arc<Waiting>,
    /// What was taken in and waits for its turn.
    fair: Fair<Queued>,
    ticks: Vec<oneshot::Sender<Result<(), Refusal>>>,
    places: Arc<Semaphore>,
    /// For what is sent to another leader.
    forwards: Arc<Semaphore>,
    propose_timeout: Duration,
    metrics: Arc<Metrics>,
    /// Becomes true when nothing more is to be queued.
    stopped: watch::Receiver<bool>,
}

impl Proposer {
    pub fn new(
        forward: Arc<Forward>,
        metrics: &Arc<Metrics>,
        propose_timeout: Duration,
        stopped: watch::Receiver<bool>,
        room: Arc<Room>,
    ) -> (Self, Queue) {
        let (sender, items) = mpsc::channel(limits::PROPOSE_INTAKE_MAX);
        let waiting: Arc<Waiting> = Arc::default();
        let places = Arc::new(Semaphore::new(limits::PROPOSALS_IN_FLIGHT_MAX));
        let queue = Queue { items: sender, waiting: Arc::clone(&waiting) };
        let forwards = Arc::new(Semaphore::new(limits::FORWARDS_IN_FLIGHT_MAX));
        let (raft, leadership) = (forward.raft.clone(), Arc::clone(&forward.leadership));
        let proposer = Self {
            raft,
            room,
            leadership,
            forward,
            items,
            waiting,
            fair: Fair::new(Bounds::NODE),
            ticks: Vec::new(),
            places,
            forwards,
            propose_timeout,
            metrics: Arc::clone(metrics),
            stopped,
        };
        (proposer, queue)
    }

    /// Proposes until it is told to stop; then what is queued still, and waits until all of it is applied.
    pub async fn run(mut self) {
        while self.has_more().await {
            let leads = self.leadership.role().leading.is_some();
            let places = Arc::clone(if leads { &self.places } else { &self.forwards });
            let place = self.taking_in(places.acquire_owned()).await.expect("the semaphore is never closed");
            if leads {
                // Back pressure stands here, in front of the log: nothing may slow applying.
                let room = Arc::clone(&self.room);
                self.taking_in(wait_for_memory(room)).await;
            }
            if leads != self.leadership.role().leading.is_some() {
                continue;
            }
            self.take_in(None);
            let batch = self.collect(!leads);
            match (batch.is_empty(), leads) {
                (true, _) => {}
                (false, true) => self.propose(batch, place).await,
                (false, false) => self.send(batch, place),
            }
        }
        let all = |count: usize| u32::try_from(count).expect("a small number");
        let _ = self.places.acquire_many(all(limits::PROPOSALS_IN_FLIGHT_MAX)).await;
        let _ = self.forwards.acquire_many(all(limits::FORWARDS_IN_FLIGHT_MAX)).await;
    }

    /// Waits until there is something to propose. False once there never will be.
    async fn has_more(&mut self) -> bool {
        if !self.fair.is_empty() || !self.ticks.is_empty() {
            return true;
        }
        let mut item = None;
        if !self.items.is_closed() {
            tokio::select! {
                biased;
                next = self.items.recv() => item = next,
                // Its sender is gone only with the node: that is a stop too.
                _ = stopped(&mut self.stopped) => self.items.close(),
            }
        }
        if item.is_none() {
            item = self.items.recv().await;
        }
        let Some(item) = item else { return false };
        self.take_in(Some(item));
        true
    }

    /// Waits, and meanwhile takes in what comes, once that is much.
    async fn taking_in<T>(&mut self, waits: impl Future<Output = T>) -> T {
        let mut waits = pin!(waits);
        let waiting = Arc::clone(&self.waiting);
        loop {
            tokio::select! {
                biased;
                done = &mut waits => return done,
                () = waiting.pressed.notified() => self.take_in(None),
            }
        }
    }

    /// Takes in this and what else has come.
    fn take_in(&mut self, first: Option<Item>) {
        let mut bytes = 0;
        let mut next = first;
        // Not more than there can be now: whoever pushes on meanwhile must not hold up proposing.
        for _ in 0..=limits::PROPOSE_INTAKE_MAX {
            let Some(item) = next.take().or_else(|| self.items.try_recv().ok()) else { break };
            match item {
                Item::Tick(done) => self.ticks.push(done),
                Item::Command(queued) => {
                    let size = queued.bytes.len();
                    bytes += size;
                    if let Err(queued) = self.fair.join(queued, size, |queued| tenant_of(&queued.command)) {
                        // Its caller may wait no more; nothing was proposed of it either way.
                        let _ = queued.answer.send(Err(too_much()));
                    }
                }
            }
        }
        self.waiting.coming_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell_waiting();
    }

    fn tell_waiting(&self) {
        let (commands, bytes) = self.fair.waiting();
        self.waiting.queued.store(commands + self.ticks.len(), Ordering::Relaxed);
        self.waiting.queued_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The next entry. What is sent to another node is of one tenant, because all of it is answered together there.
    fn collect(&mut self, of_one: bool) -> Batch {
        let mut batch = Batch::new();
        let most = fair::Batch { commands: limits::ENTRY_COMMANDS_MAX, bytes: limits::ENTRY_BYTES_MAX, of_one };
        let shares = self.fair.take(most, |queued| batch.add(queued));
        batch.callers._shares = shares;
        batch.callers.ticks = std::mem::take(&mut self.ticks);
        self.tell_waiting();
        batch
    }

    async fn propose(&self, batch: Batch, place: OwnedSemaphorePermit) {
        if self.leadership.role().leading.is_none() {
            return self.send_instead(batch, place).await;
        }
        let batch = match self.room.refusal() {
            Some(refusal) => batch.without(|command| self.room.refuses(command), &refusal),
            None => batch,
        };
        if batch.is_empty() {
            return;
        }
        if !self.room.takes(batch.total) {
            return batch.callers.refuse(&unavailable("the disk is full, and the log has no room"));
        }
        let (leader, time) = match self.leadership.stamp(&self.raft).await {
            Ok(stamp) => stamp,
            Err(_) if self.leadership.role().leading.is_none() => return self.send_instead(batch, place).await,
            Err(refusal) => return batch.callers.refuse(&refusal),
        };
        let Batch { commands, bytes, total, callers } = batch;
        let commands_count = commands.len() as u64;
        let proposal = Batch::proposal(commands, &bytes, total, time);
        self.metrics.proposals.inc();
        self.metrics.proposed_commands.inc_by(commands_count);
        let measured = Some((Instant::now(), Arc::clone(&self.metrics)));
        let callers = InFlight { _place: Some(place), measured, ..callers };
        let done = OnDone(Box::new(move |outcome| callers.finish(outcome)));
        // An error here is the end of the core. The callers went with it, and learn that the result is not known.
        if let Err(error) = self.raft.write(proposal).with_leader(leader).responder(done).await {
            tracing::error!(%error, "an entry could not be proposed");
        }
    }
}

impl Proposer {
    /// Sends a batch for which this node led a moment ago.
    async fn send_instead(&self, batch: Batch, place: OwnedSemaphorePermit) {
        drop(place);
        let place = Arc::clone(&self.forwards).acquire_owned().await.expect("the semaphore is never closed");
        self.send(batch, place);
    }

    /// Sends a batch to whoever leads. Its callers are told when that one has answered.
    fn send(&self, batch: Batch, place: OwnedSemaphorePermit) {
        let (forward, at_most) = (Arc::clone(&self.forward), self.propose_timeout);
        let Batch { bytes, mut callers, .. } = batch;
        let ticks = std::mem::take(&mut callers.ticks);
        ticks.into_iter().for_each(|tick| drop(tick.send(Err(unavailable("this node does not lead")))));
        if bytes.is_empty() {
            return;
        }
        // It ends when its time is over; the node's end waits for its place.
        tokio::spawn(async move {
            let callers = InFlight { _place: Some(place), ..callers };
            match forward.propose(&bytes, at_most).await {
                Ok(answers) => {
                    for (answer, caller) in answers.into_iter().zip(callers.answers) {
                        let _ = caller.send(answer);
                    }
                }
                Err(refusal) => callers.refuse(&refusal),
            }
        });
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stopped| *stopped).await;
}

/// Waits until the state takes more; not where that is waiting for a disk: what comes then is refused.
async fn wait_for_memory(room: Arc<Room>) {
    let look = Duration::from_millis(limits::SPACE_LOOK_MS);
    while room.refusal().is_none() {
        if tokio::time::timeout(look, room.records.room()).await.is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
