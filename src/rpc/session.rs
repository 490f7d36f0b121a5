//! A session: one stream of commands in, one of answers out, pipelined.
//!
//! Commands that name one record are applied in the order sent: the next starts once the one before has its answer.
//! All others run at once, and answers go out in whatever order they come, as many a frame as are ready. A claim that
//! waits gives up its turn while it waits, so that the owner's completion, sent later over the same session, can end
//! its waiting.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use prost::Message;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{Door, answer, status::status, turn};
use crate::{
    auth::{Caller, caller::unauthenticated},
    limits,
    net::Retires,
    proto::v1,
    refusal::{Code, Refusal},
    service::{
        Calls, StreamPlace,
        answer::{Found, ItemAnswer},
        request::{ClaimRequest, Command, RecordName},
    },
};

type Frame = Result<v1::SessionAnswer, Status>;

/// What a command has come to.
enum Step {
    /// It is answered. The record whose turn it held, if it still did.
    Answered { id: u64, turn: Option<RecordName>, answer: Result<ItemAnswer, Refusal> },
    /// A claim goes on waiting without its turn.
    Waits { id: u64, turn: RecordName, claim: Box<ClaimRequest> },
}

/// Opens a session. It ends when the client has ended its side and everything is answered, when the client is gone, or
/// when its credential is.
///
/// # Errors
/// `rate_limited` where the caller's tenant has too many streams.
pub(super) fn open<C: Calls>(
    door: Door<C>,
    caller: Arc<Caller>,
    forwards: bool,
    retires: Option<Retires>,
    frames: Streaming<v1::SessionRequest>,
) -> Result<Pin<Box<dyn Stream<Item = Frame> + Send>>, Refusal> {
    let place = door.calls.stream(&caller)?;
    let (out, answers) = mpsc::channel(limits::SESSION_FRAMES_MAX);
    door.calls.sessions(1);
    let (running, waiting, turns) = (FuturesUnordered::new(), JoinSet::new(), HashMap::new());
    let session = Session { door, caller, forwards, retires, running, waiting, turns, queued: 0, _place: place };
    // Ends by itself once `answers` is dropped, which is when the stream to the client is.
    tokio::spawn(async move { session.run(frames, out).await });
    Ok(Box::pin(ReceiverStream::new(answers)))
}

struct Session<C: Calls> {
    door: Door<C>,
    caller: Arc<Caller>,
    /// Whether this node may forward where it does not lead.
    forwards: bool,
    /// When its connection takes no more.
    retires: Option<Retires>,
    /// All in the session's own task: the answers of an entry then wake it once, and leave in one frame, where a task for
    /// each would be woken by itself. They end with the session.
    running: FuturesUnordered<BoxFuture<'static, Step>>,
    /// Claims that wait, a task each. Of all who wait for a record one at a time has the turn to propose, and must go on
    /// with it also while a client that reads no answers holds up its session. They end with the session.
    waiting: JoinSet<Step>,
    /// Records with a command that holds their turn, and what stands behind it.
    turns: HashMap<RecordName, VecDeque<(u64, Command)>>,
    /// How many stand behind one, over all records.
    queued: usize,
    /// Among the streams of its tenant.
    _place: Option<StreamPlace>,
}

impl<C: Calls> Drop for Session<C> {
    fn drop(&mut self) {
        self.door.calls.sessions(-1);
    }
}

impl<C: Calls> Session<C> {
    async fn run(mut self, mut frames: Streaming<v1::SessionRequest>, out: mpsc::Sender<Frame>) {
        let mut judged = tokio::time::interval(Duration::from_millis(limits::STREAM_JUDGED_MS));
        let mut reading = true;
        while reading || !self.running.is_empty() || !self.waiting.is_empty() {
            let unanswered = self.running.len() + self.waiting.len() + self.queued;
            let room = unanswered < limits::SESSION_UNANSWERED_MAX;
            tokio::select! {
                Some(done) = self.running.next(), if !self.running.is_empty() => {
                    let frame = self.collect(done);
                    let ended = frame.as_ref().is_err();
                    if out.send(frame).await.is_err() || ended {
                        return;
                    }
                }
                Some(ended) = self.waiting.join_next(), if !self.waiting.is_empty() => {
                    let frame = self.collect(step(ended));
                    let ended = frame.as_ref().is_err();
                    if out.send(frame).await.is_err() || ended {
                        return;
                    }
                }
                frame = frames.message(), if reading && room => match frame {
                    Ok(Some(frame)) => {
                        if let Err(refusal) = self.take(frame).await {
                            // Nobody listens any more where this fails: nothing is left to be told.
                            let _ = out.send(Err(status(refusal))).await;
                            return;
                        }
                    }
                    Ok(None) => reading = false,
                    Err(broken) => {
                        let _ = out.send(Err(super::told(broken))).await;
                        return;
                    }
                },
                _ = judged.tick() => {
                    if let Err(refusal) = self.judge() {
                        let _ = out.send(Err(status(refusal))).await;
                        return;
                    }
                    reading = reading && !self.door.stops() && self.retires.is_none_or(|Retires(at)| at > Instant::now());
                }
                () = out.closed() => return,
            }
        }
    }

    /// Starts the commands of a frame, after a new look at the caller: nothing is accepted after a revocation.
    async fn take(&mut self, frame: v1::SessionRequest) -> Result<(), Refusal> {
        self.judge()?;
        // The leader that the stream was opened at may lead no more.
        let leading = if self.forwards { Ok(()) } else { self.door.calls.leading() };
        for item in frame.items {
            let (id, item) = (item.id, item.item.unwrap_or_default());
            let turn = turn::of(turn::item_bytes(&item)).await;
            let command = Command::try_from(item);
            drop(turn);
            match leading.clone().and(command) {
                Ok(command) => self.enter(id, command),
                Err(refusal) => {
                    let step = Step::Answered { id, turn: None, answer: Err(refusal) };
                    self.running.push(std::future::ready(step).boxed());
                }
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Result<(), Refusal> {
        self.caller = self.door.judge_again(&self.caller)?;
        Ok(())
    }

    /// Starts a command, or puts it behind the one that has its record's turn.
    fn enter(&mut self, id: u64, command: Command) {
        match self.turns.entry(name(&command).clone()) {
            Entry::Occupied(mut behind) => {
                behind.get_mut().push_back((id, command));
                self.queued += 1;
            }
            Entry::Vacant(free) => {
                free.insert(VecDeque::new());
                self.start(id, command);
            }
        }
    }

    fn start(&mut self, id: u64, command: Command) {
        let (door, caller) = (self.door.clone(), self.caller.clone());
        let turn = name(&command).clone();
        let answered = move |turn, answer| Step::Answered { id, turn: Some(turn), answer };
        // A future for each kind: one for all would be as large as the largest.
        let running = match command {
            Command::Claim(claim) if claim.wait_ms > 0 => async move {
                let at_once = ClaimRequest { wait_ms: 0, ..(*claim).clone() };
                match door.calls.claim(&caller, at_once).await {
                    Ok(answer) if matches!(answer.found, Found::InProgress { .. }) => Step::Waits { id, turn, claim },
                    answer => answered(turn, answer.map(ItemAnswer::Claim)),
                }
            }
            .boxed(),
            Command::Claim(claim) => async move {
                let answer = door.calls.claim(&caller, *claim).await;
                answered(turn, answer.map(ItemAnswer::Claim))
            }
            .boxed(),
            Command::Get(get) => async move {
                let answer = door.calls.get(&caller, get).await;
                answered(turn, answer.map(|record| ItemAnswer::Get(Box::new(record))))
            }
            .boxed(),
            Command::Owner(owner) => async move {
                let kind = owner.action.kind();
                let answer = door.calls.owner(&caller, *owner).await;
                answered(turn, answer.map(|answer| ItemAnswer::Owner(kind, answer)))
            }
            .boxed(),
        };
        self.running.push(running);
    }

    fn wait(&mut self, id: u64, claim: ClaimRequest) {
        let (door, caller) = (self.door.clone(), self.caller.clone());
        self.waiting.spawn(async move {
            let answer = door.calls.claim(&caller, claim).await.map(ItemAnswer::Claim);
            Step::Answered { id, turn: None, answer }
        });
    }

    /// A record's turn passes to the next command behind, if there is one.
    fn pass(&mut self, turn: RecordName) {
        match self.turns.get_mut(&turn).and_then(VecDeque::pop_front) {
            Some((id, next)) => {
                self.queued -= 1;
                self.start(id, next);
            }
            None => {
                self.turns.remove(&turn);
            }
        }
    }

    /// What is done already.
    fn ready(&mut self) -> Option<Step> {
        let done = self.running.next().now_or_never().flatten();
        done.or_else(|| self.waiting.try_join_next().map(step))
    }

    /// A frame of this answer and of all others that are ready. A credential that ended ends the session.
    fn collect(&mut self, first: Step) -> Frame {
        let (mut items, mut bytes) = (Vec::new(), 0);
        let mut step = Some(first);
        while let Some(done) = step {
            match done {
                Step::Waits { id, turn, claim } => {
                    self.pass(turn);
                    self.wait(id, *claim);
                }
                Step::Answered { answer: Err(refusal), .. } if refusal.code == Code::Unauthenticated => {
                    return Err(status(unauthenticated()));
                }
                Step::Answered { id, turn, answer } => {
                    if let Some(turn) = turn {
                        self.pass(turn);
                    }
                    let item = v1::SessionItemAnswer { id, answer: Some(answer::item(answer)) };
                    bytes += item.encoded_len();
                    items.push(item);
                }
            }
            let more = items.len() < limits::SESSION_FRAME_ITEMS_MAX && bytes < limits::SESSION_FRAME_BYTES_MAX;
            step = if more { self.ready() } else { None };
        }
        if planted!(AnswersMixedUp) && items.len() > 1 {
            let (first, last) = (items[0].id, items[items.len() - 1].id);
            items[0].id = last;
            items.last_mut().expect("there are several").id = first;
        }
        Ok(v1::SessionAnswer { items })
    }
}

/// What a task came to. None is cancelled while its session lives; a panic goes on in the session.
fn step(ended: Result<Step, JoinError>) -> Step {
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn name(command: &Command) -> &RecordName {
    match command {
        Command::Claim(claim) => &claim.record,
        Command::Owner(owner) => &owner.record,
        Command::Get(get) => &get.record,
    }
}
