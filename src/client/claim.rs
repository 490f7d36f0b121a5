//! An owned record, from its grant to its owner's report.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use super::{
    abandoned::{Abandoned, Drops},
    done::Grant,
    error::Error,
    lease::Lease,
    link::Link,
    outcome::{Outcome, statement},
};
use crate::{
    limits,
    proto::v1::{self, item::Command},
};

/// A record that this attempt owns.
///
/// The lease is renewed in the background for as long as the guard lives. A guard that is dropped without a report is
/// never forgotten: it is released when staged (nothing has started) and suspended when begun (something may have).
///
/// ```no_run
/// # async fn example(semel: semel::Client, key: &str) -> Result<(), semel::client::Error> {
/// use semel::{client::{Found, Outcome}, fingerprint::Fingerprint};
///
/// let request = r#"{"amount":100}"#;
/// let found = semel.operation("charge.create").key(key).request_json(request).claim().await?;
/// if let Found::New(claim) = found {
///     claim.begin().await?;              // from here on an effect may happen
///     claim.checkpoint("reserved", "r-1").await?;
///     claim.complete(Outcome::new(201).body("done")).await?;
/// }
/// # Ok(()) }
/// ```
#[must_use = "a claim that is dropped gives its record up"]
pub struct Claim {
    owner: Arc<Owner>,
    drops: Drops,
    renewal: JoinHandle<()>,
    /// Commands of one owner go out one after the other, so that a retry never overtakes a later one.
    order: tokio::sync::Mutex<()>,
    reported: bool,
    /// Whether an effect may have been started: by hand, as soon as the record is begun.
    starts: Starts,
    attempt: u32,
    downstream_key: String,
    last_checkpoint: Option<Checkpoint>,
}

/// Who starts effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Starts {
    /// Whoever holds the guard, at any time after the record is begun.
    ByHand,
    /// A handler that hasn't been called yet.
    NotYet,
    /// A handler that was called.
    Handler,
}

/// A recovery point of an attempt before.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// What it is called.
    pub name: String,
    /// The caller's own.
    pub data: Bytes,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({}, {} bytes)", self.name, self.data.len())
    }
}

impl Checkpoint {
    pub(super) fn of_message(m: v1::CheckpointData) -> Self {
        Self { name: m.name, data: m.data }
    }
}

/// What the guard and its renewal share.
struct Owner {
    link: Arc<Link>,
    record: Option<v1::RecordId>,
    fence: u64,
    lease: Mutex<Lease>,
    /// Set before the command that begins is sent: in doubt an effect may have been permitted.
    begun: AtomicBool,
    /// True once the service has said that this attempt owns the record no more.
    ended: watch::Sender<bool>,
}

impl Owner {
    fn lease(&self) -> Lease {
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extend(&self, sent_at: Instant, lease_ms: Option<u32>) {
        if let Some(lease_ms) = lease_ms {
            let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
            *lease = lease.extended(Lease::new(sent_at, lease_ms));
        }
    }

    /// One command of the owner. A refusal that ends the ownership is remembered.
    async fn send(&self, command: Command, give_up: Instant) -> Result<v1::OwnerAnswer, Error> {
        let answer = self.link.owner(command, give_up).await;
        if answer.as_ref().is_err_and(Error::ends_ownership) {
            self.ended.send_replace(true);
        }
        answer
    }

    async fn renew(&self) -> Result<(), Error> {
        let sent_at = Instant::now();
        let request = v1::RenewRequest { record: self.record.clone(), fence: Some(self.fence), lease_ms: None };
        let answer = self.send(Command::Renew(request), self.link.deadline()).await?;
        self.extend(sent_at, answer.lease_ms);
        Ok(())
    }

    /// Renews until the record is lost or the task is ended. By the cluster's clock the lease may run on a little after
    /// it has ended by ours, so that the service alone says that it is over.
    async fn keep(self: Arc<Self>) {
        let pause_min = Duration::from_millis(limits::LEASE_MS_MIN.into()) / limits::CLIENT_RENEWALS_PER_LEASE;
        loop {
            sleep_until(self.lease().renew_at()).await;
            match self.renew().await {
                Ok(()) => {}
                Err(error) if error.ends_ownership() => return,
                Err(error) => tracing::debug!(%error, "a lease was not renewed yet"),
            }
            // A renewal that brings the lease no further (a reply that took longer than it) must not spin.
            sleep(pause_min).await;
        }
    }
}

impl Claim {
    pub(super) fn new(
        link: Arc<Link>,
        drops: Drops,
        record: Option<v1::RecordId>,
        grant: Grant,
        sent_at: Instant,
    ) -> Self {
        let owner = Arc::new(Owner {
            link,
            record,
            fence: grant.fence,
            lease: Mutex::new(Lease::new(sent_at, grant.lease_ms)),
            begun: AtomicBool::new(grant.begun),
            ended: watch::Sender::new(false),
        });
        Self {
            renewal: tokio::spawn(owner.clone().keep()),
            owner,
            drops,
            order: tokio::sync::Mutex::new(()),
            reported: false,
            starts: Starts::ByHand,
            attempt: grant.attempt,
            downstream_key: grant.downstream_key,
            last_checkpoint: grant.checkpoint.map(Checkpoint::of_message),
        }
    }

    /// The fencing token: larger than that of every owner before. A sink that remembers the largest one it has seen
    /// refuses the writes of an owner that was overtaken.
    pub fn fence(&self) -> u64 {
        self.owner.fence
    }

    /// 1 for the first attempt.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The provider's own idempotency key: the same for every attempt, also in a later life of the key.
    pub fn downstream_key(&self) -> &str {
        &self.downstream_key
    }

    /// The last recovery point of an attempt before, where there was one.
    pub fn last_checkpoint(&self) -> Option<&Checkpoint> {
        self.last_checkpoint.as_ref()
    }

    /// Whether the record is owned, as far as is known here, with enough of the lease left to start an effect.
    pub fn is_live(&self) -> bool {
        self.check().is_ok()
    }

    /// To be asked right before each effect.
    ///
    /// # Errors
    /// [`Error::LeaseSpent`] once the record is lost, or 95 % of the lease have passed by this process's own clock.
    pub fn check(&self) -> Result<(), Error> {
        let ended = *self.owner.ended.borrow();
        if !ended && self.owner.lease().allows_start(Instant::now()) { Ok(()) } else { Err(Error::LeaseSpent) }
    }

    /// How much longer an effect may be started, if no renewal comes in between.
    pub fn time_left(&self) -> Duration {
        self.owner.lease().last_start_at().saturating_duration_since(Instant::now())
    }

    /// Returns once the service has said that this attempt owns the record no more: for a handler that can stop.
    pub async fn lost(&self) {
        let mut ended = self.owner.ended.subscribe();
        // The sender lives as long as `self`.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Says that an effect is about to start. Repeating it is fine. A begin whose result isn't known is repeated, and
    /// never taken for done.
    ///
    /// # Errors
    /// Nothing may be started then: [`Error::LeaseSpent`], `lease_lapsed`, `stale_fence`, or the result is not known.
    pub async fn begin(&self) -> Result<(), Error> {
        let _order = self.order.lock().await;
        self.owner.begun.store(true, Ordering::Release);
        let lease = self.owner.lease();
        let sent_at = Instant::now();
        // Where the claim has waited long, most of the lease has passed by our count: one command does both.
        let lease_ms = (sent_at >= lease.renew_at()).then(|| lease.granted_ms());
        let request = v1::BeginRequest { record: self.record(), fence: Some(self.owner.fence), lease_ms };
        let answer = self.owner.send(Command::Begin(request), self.owner.link.deadline()).await?;
        self.owner.extend(sent_at, answer.lease_ms.filter(|_| lease_ms.is_some()));
        self.check()
    }

    /// Says who starts effects, so that dropping the guard says no more than is known.
    pub(super) fn starts(&mut self, starts: Starts) {
        self.starts = starts;
    }

    /// Extends the lease at once; it is renewed by itself as well.
    ///
    /// # Errors
    /// `lease_lapsed` or `stale_fence` once the record is lost.
    pub async fn renew(&self) -> Result<(), Error> {
        self.owner.renew().await
    }

    /// Keeps a recovery point for whoever takes over or investigates. Implies [`begin`](Self::begin).
    ///
    /// # Errors
    /// `lease_lapsed` or `stale_fence` once the record is lost, `invalid_argument` if it is too large.
    pub async fn checkpoint(&self, name: impl Into<String>, data: impl Into<Bytes>) -> Result<(), Error> {
        let _order = self.order.lock().await;
        self.owner.begun.store(true, Ordering::Release);
        let request = v1::CheckpointRequest {
            record: self.record(),
            fence: Some(self.owner.fence),
            name: name.into(),
            data: Some(data.into()),
        };
        self.owner.send(Command::Checkpoint(request), self.owner.link.deadline()).await.map(drop)
    }

    /// Reports the outcome. Returns once it is durable. It is tried also when the record seems lost: the service alone
    /// knows, and the owner's own late report is better than none.
    ///
    /// # Errors
    /// [`Error::Unrecorded`] with the outcome, if it could not be recorded.
    pub async fn complete(mut self, outcome: Outcome) -> Result<(), Error> {
        let message = outcome.clone().into_message();
        let request =
            v1::CompleteRequest { record: self.record(), fence: Some(self.owner.fence), outcome: Some(message) };
        self.report(Command::Complete(request))
            .await
            .map_err(|source| Error::Unrecorded { outcome: Box::new(outcome), source: Box::new(source) })
    }

    /// States that no effect happened and none can happen any more, and how that is known.
    ///
    /// # Errors
    /// `stale_fence` once another attempt owns the record.
    pub async fn release(mut self, evidence: impl fmt::Display) -> Result<(), Error> {
        let evidence = Some(statement(&evidence.to_string()));
        let request = v1::ReleaseRequest { record: self.record(), fence: Some(self.owner.fence), evidence };
        self.report(Command::Release(request)).await
    }

    /// States that the owner doesn't know what happened: the record becomes indeterminate.
    ///
    /// # Errors
    /// `stale_fence` once another attempt owns the record.
    pub async fn suspend(mut self, reason: impl fmt::Display) -> Result<(), Error> {
        let reason = Some(statement(&reason.to_string()));
        let request = v1::SuspendRequest { record: self.record(), fence: Some(self.owner.fence), reason };
        self.report(Command::Suspend(request)).await
    }

    /// The owner's last word. Where it isn't learnt, no other is sent in its place: the lapse of the lease decides.
    async fn report(&mut self, command: Command) -> Result<(), Error> {
        let give_up = Instant::now() + self.owner.link.options.report;
        let answer = {
            let _order = self.order.lock().await;
            self.owner.send(command, give_up).await
        };
        self.reported = true;
        answer.map(drop)
    }

    fn record(&self) -> Option<v1::RecordId> {
        self.owner.record.clone()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.renewal.abort();
        if self.reported || *self.owner.ended.borrow() {
            return;
        }
        let (record, fence) = (self.record(), Some(self.owner.fence));
        let begun = self.owner.begun.load(Ordering::Acquire);
        let command = if self.starts == Starts::Handler || (self.starts == Starts::ByHand && begun) {
            let reason = if std::thread::panicking() {
                "the handler panicked"
            } else {
                "the claim was dropped without a report"
            };
            Command::Suspend(v1::SuspendRequest { record, fence, reason: Some(reason.to_owned()) })
        } else {
            let evidence = Some("the claim was dropped before anything was started".to_owned());
            Command::Release(v1::ReleaseRequest { record, fence, evidence })
        };
        self.drops.report(Abandoned::Owned(command));
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("fence", &self.owner.fence)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
