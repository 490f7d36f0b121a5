//! The barrier in front of linearizable reads. Readers that wait together share one: a barrier that begins after a reader
//! came covers it.

use std::{sync::Arc, time::Duration};

use openraft::ReadPolicy;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{codec::message::Asked, forward::Forward, leadership::Lead, propose::unavailable, types::Raft};
use crate::{limits, refusal::Refusal};

type Reader = oneshot::Sender<Result<u64, Refusal>>;

/// The readers' end. Clones share the barrier.
#[derive(Clone)]
pub(super) struct Barrier {
    readers: mpsc::Sender<Reader>,
}

impl Barrier {
    /// The barrier, and the task that works it until every reader's end is gone.
    pub fn new(forward: Arc<Forward>) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, readers) = mpsc::channel(limits::BARRIER_QUEUE_MAX);
        (Self { readers: sender }, run(forward, readers))
    }

    /// Returns once the state applied here holds everything that was answered, anywhere, before this call: the entry at
    /// the index that is returned.
    pub async fn pass(&self) -> Result<u64, Refusal> {
        if planted!(StaleRead) {
            return Ok(0);
        }
        let (sender, passed) = oneshot::channel();
        self.readers.try_send(sender).map_err(|_| unavailable("too many reads wait"))?;
        match tokio::time::timeout(Duration::from_millis(limits::READ_BARRIER_MS), passed).await {
            Ok(Ok(passed)) => passed,
            _ => Err(unavailable("the read could not be made sure of in time")),
        }
    }
}

async fn run(forward: Arc<Forward>, mut readers: mpsc::Receiver<Reader>) {
    let mut waiting = Vec::new();
    while readers.recv_many(&mut waiting, limits::BARRIER_QUEUE_MAX).await > 0 {
        let passed = pass(&forward).await;
        // A reader that no longer waits needs no answer.
        waiting.drain(..).for_each(|reader| drop(reader.send(passed.clone())));
    }
}

/// A barrier changes nothing: it is tried until it is passed, whoever leads meanwhile.
async fn pass(forward: &Forward) -> Result<u64, Refusal> {
    let until = Instant::now() + Duration::from_millis(limits::READ_BARRIER_MS / 2);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let passed = match forward.lead(left.min(Duration::from_millis(limits::LEADER_WAIT_MS))).await? {
            Lead::Here => pass_here(&forward.raft, left).await,
            Lead::There(_) => pass_there(forward, left).await,
        };
        match passed {
            Err(_) if until > Instant::now() => {
                tokio::time::sleep(Duration::from_millis(limits::FORWARD_PAUSE_MS)).await;
            }
            passed => return passed,
        }
    }
}

async fn pass_here(raft: &Raft, at_most: Duration) -> Result<u64, Refusal> {
    let not_sure = "this node can't make sure that it leads";
    let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|_| unavailable(not_sure))?;
    let index = linearizer.read_log_id().index();
    let ready = linearizer.try_await_ready(raft, Some(at_most)).await.map_err(|_| unavailable(not_sure))?;
    ready.map(|_| index).map_err(|_| unavailable("the state is behind what was decided"))
}

async fn pass_there(forward: &Forward, at_most: Duration) -> Result<u64, Refusal> {
    let until = Instant::now() + at_most;
    let Some((index, now)) = forward.ask(&Asked::Barrier, at_most, true).await? else {
        return Err(unavailable("this node has just begun to lead"));
    };
    forward.applied_here(index, until.saturating_duration_since(Instant::now())).await?;
    forward.leadership.learn(now);
    Ok(index)
}
