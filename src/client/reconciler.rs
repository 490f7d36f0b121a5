//! The loop that finds out what became of indeterminate records, by asking whoever knows.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    fmt,
    future::Future,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::{
    Client,
    claim::Checkpoint,
    draw,
    error::Error,
    link::ms,
    outcome::{Outcome, statement, system_time},
    reading::Watch,
};
use crate::{
    limits,
    proto::v1::{self, State},
    refusal::Code,
};

/// Settles indeterminate records by asking the provider, before anything is tried again.
///
/// Each record is investigated first, so that one reconciler at a time asks about it, and settled only as it was when
/// it was asked about: if anything has changed since, it is read and asked about again. Every finding carries evidence,
/// which is kept with the record.
///
/// A record that was lapsed by its owner can't be given `no_effect` before its owner can act no more; until then it is
/// put aside, and then **asked about again**: what was true before the wait may not be true after it.
///
/// ```no_run
/// # enum Charge { Found(String), Unknown, Duplicate }
/// # async fn find_charge(_: &str) -> Result<Charge, std::io::Error> { Ok(Charge::Unknown) }
/// # async fn example(semel: semel::Client) -> Result<(), semel::client::Error> {
/// use std::time::Duration;
/// use semel::client::{Finding, Outcome, Reconciler};
///
/// let settled = Reconciler::new(&semel, "reconciler@billing-1")
///     .operation("charge.create")
///     .run(async |unresolved| match find_charge(&unresolved.downstream_key).await {
///         Ok(Charge::Found(json)) => Finding::completed(Outcome::new(201).body(json), "GET /charges shows it"),
///         Ok(Charge::Unknown) => Finding::no_effect("GET /charges has nothing under the downstream key"),
///         Ok(Charge::Duplicate) => Finding::duplicate("the provider says 409 duplicate, not which charge"),
///         Err(error) => Finding::unknown(error, Duration::from_secs(60)),
///     })
///     .await;
/// # settled.map(|never| match never {}) }
/// ```
#[derive(Clone)]
#[must_use = "nothing happens before run or pass"]
pub struct Reconciler {
    client: Client,
    actor: String,
    operation: Option<String>,
    older_than: Option<Duration>,
    every: Duration,
    lease: Duration,
    at_once: usize,
    postponed: HashMap<v1::RecordId, Instant>,
}

/// An indeterminate record, taken up: what there is to ask the provider with.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Unresolved {
    /// Whose record.
    pub tenant: String,
    /// The caller's end user or account, may be empty.
    pub principal: String,
    /// Which operation.
    pub operation: String,
    /// The caller's idempotency key.
    pub key: String,
    /// The key that was shown to the provider, the same for every attempt.
    pub downstream_key: String,
    /// How many attempts there were.
    pub attempt: u32,
    /// The fence of the last owner.
    pub fence: u64,
    /// Since when nobody knows.
    pub since: Option<SystemTime>,
    /// The owner's words, `lease_lapsed` or `restored`.
    pub reason: String,
    /// The last recovery point.
    pub checkpoint: Option<Checkpoint>,
    /// What the claim said to whoever investigates.
    pub labels: BTreeMap<String, String>,
}

// Keys and labels are the callers' secrets.
impl fmt::Debug for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unresolved")
            .field("operation", &self.operation)
            .field("attempt", &self.attempt)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

/// What was found out about an indeterminate record, and how that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The effect happened.
    Completed {
        /// What came of it: replayed to the caller.
        outcome: Outcome,
        /// How that is known.
        evidence: String,
    },
    /// No effect happened and none can happen any more: the key may be claimed again.
    NoEffect {
        /// How that is known.
        evidence: String,
    },
    /// Still not known.
    Unknown {
        /// What was tried.
        evidence: String,
        /// When to look again; at least a second.
        check_again_after: Duration,
    },
}

impl Finding {
    /// The effect happened, with this outcome; the evidence says how that is known.
    pub fn completed(outcome: Outcome, evidence: impl fmt::Display) -> Self {
        Finding::Completed { outcome, evidence: evidence.to_string() }
    }

    /// No effect happened and none can happen any more; the evidence says how that is known.
    ///
    /// A provider's "duplicate", "conflict" or "already exists" is no such evidence: it says that something *did*
    /// happen. See [`duplicate`](Self::duplicate). Neither is an error while asking: see [`unknown`](Self::unknown).
    pub fn no_effect(evidence: impl fmt::Display) -> Self {
        Finding::NoEffect { evidence: evidence.to_string() }
    }

    /// Still not known; to be looked at again after a while.
    pub fn unknown(evidence: impl fmt::Display, check_again_after: Duration) -> Self {
        Finding::Unknown { evidence: evidence.to_string(), check_again_after }
    }

    /// The provider knows the downstream key but doesn't say what came of it. The record stays indeterminate: taking
    /// this for a failure is how a second payout comes about.
    pub fn duplicate(evidence: impl fmt::Display) -> Self {
        let check_again_after = Duration::from_millis(limits::RETRY_AFTER_MS_INDETERMINATE.into());
        Finding::Unknown { evidence: format!("the provider reports a duplicate: {evidence}"), check_again_after }
    }

    fn evidence(&self) -> &str {
        match self {
            Finding::Completed { evidence, .. }
            | Finding::NoEffect { evidence }
            | Finding::Unknown { evidence, .. } => evidence,
        }
    }
}

/// What one pass over the list came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pass {
    /// Settled as completed.
    pub completed: usize,
    /// Settled as never having happened.
    pub no_effect: usize,
    /// Still not known; to be looked at again.
    pub unknown: usize,
    /// Put aside until the owner can act no more.
    pub owner_may_act: usize,
    /// Settled by somebody else meanwhile, or looked into by somebody else.
    pub others: usize,
    /// Not settled for an error; to be looked at again.
    pub failed: usize,
}

/// What became of one record.
enum Settled {
    Completed,
    NoEffect,
    Unknown,
    OwnerMayAct(Duration),
    Others,
}

impl Reconciler {
    /// A reconciler that signs as `actor`. With a credential the service names its caller, and this is a note.
    pub fn new(client: &Client, actor: impl Into<String>) -> Self {
        Self {
            client: client.clone(),
            actor: actor.into(),
            operation: None,
            older_than: None,
            every: Duration::from_millis(limits::RECONCILER_EVERY_MS),
            lease: Duration::from_millis(limits::RECONCILER_LEASE_MS.into()),
            at_once: limits::RECONCILER_AT_ONCE,
            postponed: HashMap::new(),
        }
    }

    /// Only records of this operation. Default: all that the credential may see.
    pub fn operation(mut self, operation: impl Into<String>) -> Self {
        self.operation = Some(operation.into());
        self
    }

    /// Only records that have been indeterminate for longer than this, for providers that show a charge late.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// How often to look through the whole list, besides being told of changes. Default 10 s.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// How long a record is kept from other reconcilers while the provider is asked. Default 60 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How many records are asked about at once. Default 8.
    pub fn at_once(mut self, records: usize) -> Self {
        self.at_once = records.max(1);
        self
    }

    /// Settles what there is, for ever: looks through the list every so often, and whenever the service tells of a
    /// change. Dropping the future ends it; a record that was just being asked about is free again after the lease.
    ///
    /// # Errors
    /// Only what more passes can't mend: the credential isn't taken, the cluster changed, the client is closed.
    pub async fn run<F>(mut self, ask: impl Fn(Unresolved) -> F) -> Result<Infallible, Error>
    where
        F: Future<Output = Finding>,
    {
        let request = v1::WatchRequest { operation: self.operation.clone(), ..v1::WatchRequest::default() };
        let mut watch = Some(self.client.watch(request));
        loop {
            let started = Instant::now();
            match self.pass(&ask).await {
                Ok(pass) if pass == Pass::default() => {}
                Ok(pass) => tracing::info!(?pass, "indeterminate records were looked at"),
                Err(error) if !error.retryable() => return Err(error),
                Err(error) => tracing::warn!(%error, "the indeterminate records could not be listed"),
            }
            // Not at once even if told: a change of many records comes as many messages.
            sleep_until(started + Duration::from_millis(limits::LEASE_MS_MIN.into())).await;
            let due = self.postponed.values().min().copied();
            let next = (started + self.every).min(due.unwrap_or(started + self.every));
            tokio::select! {
                () = sleep_until(next) => {}
                () = told(&mut watch) => {}
            }
        }
    }

    /// Looks through the list once.
    ///
    /// # Errors
    /// If the list can't be read. What fails for one record is counted, and logged.
    pub async fn pass<F>(&mut self, ask: &impl Fn(Unresolved) -> F) -> Result<Pass, Error>
    where
        F: Future<Output = Finding>,
    {
        let now = Instant::now();
        self.postponed.retain(|_, until| *until > now);
        let mut listing = self.client.list(v1::ListRequest {
            state: Some(State::Indeterminate.into()),
            operation: self.operation.clone(),
            older_than_ms: self.older_than.map(ms),
            ..v1::ListRequest::default()
        });
        let mut pass = Pass::default();
        while let Some(page) = listing.next_page().await? {
            let due: Vec<v1::Record> = page.records.into_iter().filter(|record| self.is_due(record)).collect();
            for (id, settled) in self.settle_all(due, ask).await {
                self.count(&mut pass, id, settled)?;
            }
        }
        Ok(pass)
    }

    /// Settles records side by side, a bounded number at once.
    async fn settle_all<F>(
        &self,
        due: Vec<v1::Record>,
        ask: &impl Fn(Unresolved) -> F,
    ) -> Vec<(v1::RecordId, Result<Settled, Error>)>
    where
        F: Future<Output = Finding>,
    {
        let (mut running, mut settled) = (FuturesUnordered::new(), Vec::with_capacity(due.len()));
        for record in due {
            if running.len() >= self.at_once {
                settled.extend(running.next().await);
            }
            running.push(self.settle_named(record, ask));
        }
        while let Some(one) = running.next().await {
            settled.push(one);
        }
        settled
    }

    async fn settle_named<F>(
        &self,
        record: v1::Record,
        ask: &impl Fn(Unresolved) -> F,
    ) -> (v1::RecordId, Result<Settled, Error>)
    where
        F: Future<Output = Finding>,
    {
        let id = record.record.clone().unwrap_or_default();
        (id, self.settle(record, ask).await)
    }

    fn is_due(&self, record: &v1::Record) -> bool {
        let later =
            record.check_again_at.and_then(system_time).is_some_and(|at| at > self.client.link.options.wall.now());
        let postponed = record.record.as_ref().is_some_and(|id| self.postponed.contains_key(id));
        !later && !postponed
    }

    fn count(&mut self, pass: &mut Pass, id: v1::RecordId, settled: Result<Settled, Error>) -> Result<(), Error> {
        match settled {
            Ok(Settled::Completed) => pass.completed += 1,
            Ok(Settled::NoEffect) => pass.no_effect += 1,
            Ok(Settled::Unknown) => pass.unknown += 1,
            Ok(Settled::Others) => {
                pass.others += 1;
                self.postpone(id, self.every);
            }
            Ok(Settled::OwnerMayAct(wait)) => {
                pass.owner_may_act += 1;
                self.postpone(id, wait);
            }
            Err(error @ (Error::Closed | Error::ClusterChanged { .. })) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "an indeterminate record could not be settled");
                pass.failed += 1;
                self.postpone(id, self.every);
            }
        }
        Ok(())
    }

    fn postpone(&mut self, id: v1::RecordId, wait: Duration) {
        // Beyond the bound records are only looked at again sooner than they need be.
        if self.postponed.len() < limits::RECONCILER_POSTPONED_MAX {
            self.postponed.insert(id, Instant::now() + wait);
        }
    }

    /// Takes the record up, asks, and settles it as it was when it was asked about. A record that changes meanwhile is
    /// read again, a bounded number of times: each time somebody else has made progress.
    async fn settle<F>(&self, mut record: v1::Record, ask: &impl Fn(Unresolved) -> F) -> Result<Settled, Error>
    where
        F: Future<Output = Finding>,
    {
        for _ in 0..ROUNDS {
            let settled = match self.investigate(&record).await {
                Ok(taken) => {
                    let finding = ask(unresolved(&taken)).await;
                    self.resolve(&taken, finding).await
                }
                Err(error) => Err(error),
            };
            let error = match settled {
                Ok(settled) => return Ok(settled),
                Err(error) => error,
            };
            match error.code() {
                Some(Code::VersionChanged) => {}
                Some(Code::NotFound | Code::WrongState) => return Ok(Settled::Others),
                Some(Code::OwnerMayAct) => {
                    let wait = error.retry_after_ms().unwrap_or(limits::RETRY_AFTER_MS_INDETERMINATE.into());
                    return Ok(Settled::OwnerMayAct(Duration::from_millis(wait)));
                }
                _ => return Err(error),
            }
            let request = v1::GetRequest { record: record.record.clone(), with_outcome: None };
            record = match self.client.get(request).await {
                Ok(read) if read.state() == State::Indeterminate => read,
                Ok(_) => return Ok(Settled::Others),
                Err(error) if error.code() == Some(Code::NotFound) => return Ok(Settled::Others),
                Err(error) => return Err(error),
            };
        }
        Ok(Settled::Others)
    }

    async fn investigate(&self, record: &v1::Record) -> Result<v1::Record, Error> {
        let request = v1::InvestigateRequest {
            record: record.record.clone(),
            lease_ms: Some(ms(self.lease)),
            actor: Some(self.actor.clone()),
            version: Some(record.version),
        };
        self.client.investigate(request).await
    }

    async fn resolve(&self, taken: &v1::Record, finding: Finding) -> Result<Settled, Error> {
        let evidence = statement(finding.evidence());
        let mut request = v1::ResolveRequest {
            record: taken.record.clone(),
            version: Some(taken.version),
            actor: Some(self.actor.clone()),
            evidence,
            request_id: Some(draw::uuid().hyphenated()),
            ..v1::ResolveRequest::default()
        };
        let settled = match finding {
            Finding::Completed { outcome, .. } => {
                request.set_verdict(v1::Verdict::Completed);
                request.outcome = Some(outcome.into_message());
                Settled::Completed
            }
            Finding::NoEffect { .. } => {
                request.set_verdict(v1::Verdict::NoEffect);
                Settled::NoEffect
            }
            Finding::Unknown { check_again_after, .. } => {
                let pause = check_again_after.max(Duration::from_millis(limits::RETRY_AFTER_MS_MIN.into()));
                request.set_verdict(v1::Verdict::Unknown);
                request.check_again_at = Some((self.client.link.options.wall.now() + pause).into());
                Settled::Unknown
            }
        };
        self.client.resolve(request).await.map(|_| settled)
    }
}

/// How often a record that keeps changing is read again before it is left to whoever changes it.
const ROUNDS: usize = 3;

/// Returns when a record has become or changed while being indeterminate. Where watching isn't allowed, never: then
/// the list alone is looked through.
async fn told(watch: &mut Option<Watch>) {
    loop {
        let Some(open) = watch else { return std::future::pending().await };
        match open.changed().await {
            Ok(change) if change.indeterminate.is_empty() => {}
            Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, "changes are not watched");
                *watch = None;
            }
        }
    }
}

fn unresolved(record: &v1::Record) -> Unresolved {
    let id = record.record.clone().unwrap_or_default();
    Unresolved {
        tenant: id.tenant.unwrap_or_default(),
        principal: id.principal.unwrap_or_default(),
        operation: id.operation,
        key: id.key,
        downstream_key: record.downstream_key.clone(),
        attempt: record.attempt,
        fence: record.fence,
        since: record.since.and_then(system_time),
        reason: record.reason.clone().unwrap_or_default(),
        checkpoint: record.checkpoint.clone().map(Checkpoint::of_message),
        labels: record.labels.clone(),
    }
}
