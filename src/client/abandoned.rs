//! Claims that were dropped without a report are reported here, by a task that the client owns.
//!
//! The queue is bounded and dropping never waits: what finds it full is left to the lapse of its lease, which is as
//! safe and only slower: staged becomes claimable, begun becomes indeterminate.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};

use super::link::Link;
use crate::{
    limits,
    proto::v1::{self, Answer, item::Command},
};

/// What was dropped.
pub(super) enum Abandoned {
    /// A claim with its owner's last command: release when staged, suspend when begun.
    Owned(Command),
    /// A claim whose answer nobody waited for: if it was granted, it is given back.
    Unanswered(v1::ClaimRequest),
    /// Not dropped at all: tells when everything before it was reported.
    Drained(oneshot::Sender<()>),
}

/// Where claims put themselves when they are dropped. The task ends with the last of these.
#[derive(Clone, Debug)]
pub(super) struct Drops {
    queue: mpsc::Sender<Abandoned>,
}

impl Drops {
    pub(super) fn start(link: Arc<Link>) -> Self {
        let (queue, receiver) = mpsc::channel(limits::CLIENT_ABANDONED_MAX);
        tokio::spawn(report_all(link, receiver));
        Self { queue }
    }

    /// Reports it in the background. Never waits and never fails: it is called while dropping.
    pub(super) fn report(&self, abandoned: Abandoned) {
        if self.queue.try_send(abandoned).is_err() {
            tracing::warn!("a dropped claim could not be reported and is left to the lapse of its lease");
        }
    }

    /// Waits until everything that was dropped so far is reported, or can't be.
    pub(super) async fn drain(&self) {
        let (done, drained) = oneshot::channel();
        if self.queue.send(Abandoned::Drained(done)).await.is_ok() {
            // `Err` means that the task ended: then nothing is left either.
            let _ = drained.await;
        }
    }
}

async fn report_all(link: Arc<Link>, mut queue: mpsc::Receiver<Abandoned>) {
    let mut running = JoinSet::new();
    while let Some(abandoned) = queue.recv().await {
        match abandoned {
            Abandoned::Drained(done) => {
                while running.join_next().await.is_some() {}
                let _ = done.send(());
            }
            Abandoned::Owned(command) => {
                running.spawn(report_owned(link.clone(), command));
            }
            Abandoned::Unanswered(request) => {
                running.spawn(give_back(link.clone(), request));
            }
        }
        while running.try_join_next().is_some() || running.len() >= limits::CLIENT_ABANDONED_AT_ONCE_MAX {
            if running.len() >= limits::CLIENT_ABANDONED_AT_ONCE_MAX {
                running.join_next().await;
            }
        }
    }
    while running.join_next().await.is_some() {}
}

async fn report_owned(link: Arc<Link>, command: Command) {
    let give_up = Instant::now() + link.options.report;
    match link.owner(command, give_up).await {
        Err(error) if !error.ends_ownership() => {
            tracing::warn!(%error, "a dropped claim could not be reported and is left to the lapse of its lease");
        }
        _ => {}
    }
}

/// The claim is repeated with its attempt id: if it had been granted this is the same grant, and nothing was started
/// on it, because its caller was gone before there was an answer.
async fn give_back(link: Arc<Link>, mut request: v1::ClaimRequest) {
    request.wait_ms = None;
    let record = request.record.clone();
    let Ok(answer) = link.claim_now(request).await else { return };
    if answer.answer() == Answer::New {
        let evidence = Some("its caller was gone before the claim was answered: nothing was started".to_owned());
        report_owned(link, Command::Release(v1::ReleaseRequest { record, fence: answer.fence, evidence })).await;
    }
}
