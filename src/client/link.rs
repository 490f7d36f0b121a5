//! The link to the cluster: one command in, one answer out, with everything in between (session or call of its own,
//! deadline, retries, leader, cluster id).

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tonic::{Request, Response, Status};

use super::{
    builder::Options,
    cluster::Cluster,
    error::Error,
    leader::{Node, Nodes},
    retry::{Backoff, Budget, Kind},
    session::Session,
};
use crate::{
    limits,
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::Effect,
};

/// How commands reach the cluster. Shared by a client, its claims and its tasks.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) options: Options,
    pub(super) nodes: Arc<Nodes>,
    pub(super) cluster: Arc<Cluster>,
    budget: Budget,
    session: Session,
    waits: Semaphore,
    closed: AtomicBool,
}

impl Link {
    pub(super) fn start(nodes: Nodes, cluster: Cluster, options: Options) -> Self {
        let (nodes, cluster) = (Arc::new(nodes), Arc::new(cluster));
        let session = Session::start(nodes.clone(), cluster.clone(), &options);
        Self {
            options,
            nodes,
            cluster,
            budget: Budget::full(),
            session,
            waits: Semaphore::new(limits::CLIENT_WAITS_MAX),
            closed: AtomicBool::new(false),
        }
    }

    /// From now on nothing new is claimed; what is owned can still be reported.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// When a call that starts now is given up.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    /// Repeats an attempt until it succeeds, can't, or may not any more. Every attempt must be one and the same command
    /// with the same attempt id, fence or request id: only so is it safe to repeat what may have been applied.
    pub(super) async fn repeat<T, F>(
        &self,
        kind: Kind,
        give_up: Instant,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut backoff = Backoff::default();
        let mut doubt = None;
        let mut redirects = 0;
        loop {
            let error = match attempt().await {
                Ok(answer) => {
                    self.budget.deposit();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if !error.repeats_by_itself() {
                return Err(error.after(doubt));
            }
            if error.leader().is_some() && redirects < limits::CLIENT_REDIRECTS_MAX && Instant::now() < give_up {
                // Nothing was proposed, and who leads is known now: no retry of a service in trouble.
                redirects += 1;
                continue;
            }
            let pause = backoff.pause(error.retry_after_ms());
            // An attempt that has no time left could only blur what the last one learnt.
            let least = Duration::from_millis(limits::CLIENT_ATTEMPT_MS_MIN);
            let mut goes_on = Instant::now() + pause + least < give_up && self.budget.withdraw(kind);
            if goes_on {
                sleep(pause).await;
                goes_on = Instant::now() + least < give_up;
            }
            if !goes_on {
                // An attempt before this one may have been applied: "effect none" would speak for the last one alone.
                return Err(doubt.filter(|_| error.effect() == Effect::None).unwrap_or(error));
            }
            if error.effect() == Effect::Unknown {
                doubt.get_or_insert(error);
            }
        }
    }

    /// A command of the session.
    pub(super) async fn item(&self, kind: Kind, command: Command, give_up: Instant) -> Result<Answer, Error> {
        self.repeat(kind, give_up, || self.session.call(command.clone(), give_up)).await
    }

    /// An owner's command.
    pub(super) async fn owner(&self, mut command: Command, give_up: Instant) -> Result<v1::OwnerAnswer, Error> {
        self.options.name(record_of(&mut command));
        match self.item(Kind::Owner, command, give_up).await? {
            Answer::Begin(answer)
            | Answer::Renew(answer)
            | Answer::Checkpoint(answer)
            | Answer::Complete(answer)
            | Answer::Release(answer)
            | Answer::Suspend(answer) => Ok(answer),
            _ => Err(Error::Protocol { missing: "an owner's answer" }),
        }
    }

    /// A claim. The attempt id must be in it already. Where the record is in progress and the claim waits, it does so
    /// on a connection of its own, so that waiting claims never keep the owner's own report from getting through.
    pub(super) async fn claim(&self, mut request: v1::ClaimRequest) -> Result<v1::ClaimAnswer, Error> {
        self.open()?;
        debug_assert!(request.attempt_id.is_some(), "a claim without attempt id can't be repeated");
        self.options.name(&mut request.record);
        let wait = Duration::from_millis(request.wait_ms.take().unwrap_or_default().into());
        let until = Instant::now() + wait;
        let mut answer = self.claim_now(request.clone()).await?;
        while answer.answer() == v1::Answer::InProgress && Instant::now() < until {
            let Ok(Ok(_permit)) = timeout_at(until, self.waits.acquire()).await else { return Ok(answer) };
            let asked_at = Instant::now();
            let left = until.saturating_duration_since(asked_at);
            answer = self.claim_waiting(&request, left).await?;
            if answer.answer() == v1::Answer::InProgress && asked_at.elapsed() < left / 2 {
                // The server's policy waits for less than was asked: it says itself when to ask again.
                let pause = Duration::from_millis(answer.retry_after_ms().max(limits::RETRY_AFTER_MS_MIN).into());
                sleep(pause.min(until.saturating_duration_since(Instant::now()))).await;
            }
        }
        Ok(answer)
    }

    /// A claim that does not wait.
    pub(super) async fn claim_now(&self, mut request: v1::ClaimRequest) -> Result<v1::ClaimAnswer, Error> {
        if request.ttl_ms.is_none() {
            // An attempt that nobody waits for any more need not be applied.
            request.ttl_ms = Some(ms(self.options.attempt));
        }
        match self.item(Kind::Ordinary, Command::Claim(request), self.deadline()).await? {
            Answer::Claim(answer) => Ok(answer),
            _ => Err(Error::Protocol { missing: "a claim's answer" }),
        }
    }

    async fn claim_waiting(&self, request: &v1::ClaimRequest, wait: Duration) -> Result<v1::ClaimAnswer, Error> {
        let give_up = self.deadline() + wait;
        let until = Instant::now() + wait;
        self.repeat(Kind::Ordinary, give_up, || {
            // A wait that was broken off goes on for what is left of it.
            let left = until.saturating_duration_since(Instant::now());
            let request = v1::ClaimRequest { wait_ms: Some(ms(left)), ..request.clone() };
            async move {
                let waits = |node: Arc<Node>, request| async move { node.waits().claim(request).await };
                self.once(&request, self.options.attempt + left, give_up, waits).await
            }
        })
        .await
    }

    /// A call of its own, repeated as long as that may help.
    pub(super) async fn call<Q, A, F>(
        &self,
        kind: Kind,
        message: Q,
        rpc: impl Fn(Arc<Node>, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let give_up = self.deadline();
        self.repeat(kind, give_up, || self.once(&message, self.options.attempt, give_up, &rpc)).await
    }

    /// One attempt of a call of its own. Its deadline goes along, and is kept here as well.
    pub(super) async fn once<Q, A, F>(
        &self,
        message: &Q,
        attempt: Duration,
        give_up: Instant,
        rpc: impl FnOnce(Arc<Node>, Request<Q>) -> F,
    ) -> Result<A, Error>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let node = self.nodes.current();
        let started = Instant::now();
        let until = (started + attempt).min(give_up);
        let mut request = self.options.request(message.clone());
        request.set_timeout(until.saturating_duration_since(started));
        match timeout_at(until, rpc(node.clone(), request)).await {
            Ok(Ok(response)) => {
                self.cluster.check(response.metadata())?;
                Ok(response.into_inner())
            }
            Ok(Err(status)) => Err(self.failed(&node, &status)),
            Err(_) => {
                self.nodes.failed(&node);
                Err(Error::TimedOut { waited_ms: u64::from(ms(started.elapsed())) })
            }
        }
    }

    /// What a status says, and where to go next.
    pub(super) fn failed(&self, node: &Arc<Node>, status: &Status) -> Error {
        if let Err(changed) = self.cluster.check(status.metadata()) {
            return changed;
        }
        let error = Error::of_status(status, node.endpoint());
        match error.leader() {
            Some(leader) => self.nodes.follow(&leader.endpoint),
            None if error.blames_node() => self.nodes.failed(node),
            None => {}
        }
        error
    }
}

/// Milliseconds of the wire.
pub(super) fn ms(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// The record that a command names.
pub(super) fn record_of(command: &mut Command) -> &mut Option<v1::RecordId> {
    match command {
        Command::Claim(request) => &mut request.record,
        Command::Begin(request) => &mut request.record,
        Command::Renew(request) => &mut request.record,
        Command::Checkpoint(request) => &mut request.record,
        Command::Complete(request) => &mut request.record,
        Command::Release(request) => &mut request.record,
        Command::Suspend(request) => &mut request.record,
        Command::Get(request) => &mut request.record,
    }
}
