//! The barrier in front of linearizable reads. Readers that wait together share one: a barrier that begins after a reader
//! came covers it.

use std::time::Duration;

use openraft::ReadPolicy;
use tokio::sync::{mpsc, oneshot};

use super::{propose::unavailable, types::Raft};
use crate::{limits, refusal::Refusal};

type Reader = oneshot::Sender<Result<(), Refusal>>;

/// The readers' end. Clones share the barrier.
#[derive(Clone)]
pub(super) struct Barrier {
    readers: mpsc::Sender<Reader>,
}

impl Barrier {
    /// The barrier, and the task that works it until every reader's end is gone.
    pub fn new(raft: Raft) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, readers) = mpsc::channel(limits::BARRIER_QUEUE_MAX);
        (Self { readers: sender }, run(raft, readers))
    }

    /// Returns once the state applied here holds everything that was answered, anywhere, before this call.
    pub async fn pass(&self) -> Result<(), Refusal> {
        let (sender, passed) = oneshot::channel();
        self.readers.try_send(sender).map_err(|_| unavailable("too many reads wait"))?;
        match tokio::time::timeout(Duration::from_millis(limits::READ_BARRIER_MS), passed).await {
            Ok(Ok(passed)) => passed,
            _ => Err(unavailable("the read could not be made sure of in time")),
        }
    }
}

async fn run(raft: Raft, mut readers: mpsc::Receiver<Reader>) {
    let mut waiting = Vec::new();
    while readers.recv_many(&mut waiting, limits::BARRIER_QUEUE_MAX).await > 0 {
        let passed = pass(&raft).await;
        // A reader that no longer waits needs no answer.
        waiting.drain(..).for_each(|reader| drop(reader.send(passed.clone())));
    }
}

async fn pass(raft: &Raft) -> Result<(), Refusal> {
    let not_sure = "this node can't make sure that it leads";
    let linearizer = raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|_| unavailable(not_sure))?;
    let at_most = Duration::from_millis(limits::READ_BARRIER_MS);
    let ready = linearizer.try_await_ready(raft, Some(at_most)).await.map_err(|_| unavailable(not_sure))?;
    ready.map(|_| ()).map_err(|_| unavailable("the state is behind what was decided"))
}
