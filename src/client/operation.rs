//! An operation that is to happen once: how it is claimed and run.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    abandoned::{Abandoned, Drops},
    claim::{Claim, Starts},
    done::{Done, Found, Indeterminate, Said},
    draw,
    error::Error,
    link::{Link, ms},
    outcome::{Outcome, Verdict},
};
use crate::{fingerprint::Fingerprint, limits, proto::v1};

/// An operation that is to happen once, from [`Client::operation`](super::Client::operation).
///
/// The key is the caller's: it names one intent, and is kept (in the database row, in the message, in the form) until
/// the outcome is settled. A new key is a new intent, and may charge again.
#[derive(Clone, Debug)]
#[must_use = "nothing happens before run or claim"]
pub struct Operation {
    link: Arc<Link>,
    drops: Drops,
    request: v1::ClaimRequest,
    wait: Duration,
}

impl Operation {
    pub(super) fn new(link: Arc<Link>, drops: Drops, operation: String) -> Self {
        let record = v1::RecordId { operation, ..v1::RecordId::default() };
        let request = v1::ClaimRequest { record: Some(record), staged: Some(true), ..v1::ClaimRequest::default() };
        Self { link, drops, request, wait: Duration::ZERO }
    }

    fn record(&mut self) -> &mut v1::RecordId {
        self.request.record.get_or_insert_default()
    }

    /// The caller's idempotency key. Required.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.record().key = key.into();
        self
    }

    /// The principal (the caller's end user or account). Default: the client's.
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.record().principal = Some(principal.into());
        self
    }

    /// The tenant. Default: the client's, else the credential's.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.record().tenant = Some(tenant.into());
        self
    }

    /// A digest of the request, one for each scheme. This or [`request_json`](Self::request_json) is required.
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        let digest = Bytes::copy_from_slice(fingerprint.digest());
        self.request.fingerprints.push(v1::Fingerprint { scheme: fingerprint.scheme(), digest });
        self
    }

    /// The request as JSON text; the service computes its digest.
    pub fn request_json(mut self, text: impl Into<super::Body>) -> Self {
        self.request.request = Some(text.into().0);
        self
    }

    /// A part of `request_json` (RFC 6901, like `/client_ts`) that tells no intent from another.
    pub fn ignore(mut self, pointer: impl Into<String>) -> Self {
        self.request.ignore.push(pointer.into());
        self
    }

    /// How long the record may be owned before it is renewed. Default: the policy's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.lease_ms = Some(ms(lease));
        self
    }

    /// How long to wait for another attempt that is at it. Default: not at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// For effects that are safe to repeat, e.g. one database transaction guarded by the fence: when the lease of a
    /// begun attempt lapses, the next claim takes over instead of finding it indeterminate.
    pub fn retake(mut self) -> Self {
        self.request.on_lapse = Some(v1::OnLapse::Retake.into());
        self
    }

    /// The lapse of a begun attempt's lease makes the record indeterminate, whatever the policy says.
    pub fn hold(mut self) -> Self {
        self.request.on_lapse = Some(v1::OnLapse::Hold.into());
        self
    }

    /// Something for whoever investigates, like `("amount", "100 EUR")`.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.labels.insert(name.into(), value.into());
        self
    }

    /// Several labels.
    pub fn labels<N: Into<String>, V: Into<String>>(mut self, labels: impl IntoIterator<Item = (N, V)>) -> Self {
        self.request.labels.extend(labels.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// When the caller first sent this request. Older than the evidence window, it is `expired` instead of run: its
    /// record may have been there and gone. Every retry must then name the same windows.
    pub fn first_sent_at(mut self, at: SystemTime) -> Self {
        self.request.first_sent_at = Some(at.into());
        self
    }

    /// How long the outcome is replayed, from its completion. Default: the policy's.
    pub fn replay(mut self, window: Duration) -> Self {
        self.request.replay_s = Some(seconds(window));
        self
    }

    /// How long the key can't run again, from its completion. Default: the policy's.
    pub fn evidence(mut self, window: Duration) -> Self {
        self.request.evidence_s = Some(seconds(window));
        self
    }

    /// Claims begun at once, which saves a write. If the process dies between the claim and the effect, or the claim's
    /// reply is lost for good, the record becomes indeterminate although nothing has happened.
    pub fn begun(mut self) -> Self {
        self.request.staged = Some(false);
        self
    }

    /// Claims the record, to be driven by hand. The guard gives it up when it is dropped.
    ///
    /// # Errors
    /// The claim may then have been granted or not; if it was, it is given back in the background.
    pub async fn claim(mut self) -> Result<Found, Error> {
        self.request.attempt_id = Some(draw::uuid().hyphenated());
        self.request.wait_ms = Some(ms(self.wait)).filter(|wait_ms| *wait_ms > 0);
        let mut unanswered = Unanswered { drops: &self.drops, request: Some(self.request.clone()) };
        let sent_at = Instant::now();
        let answer = match self.link.claim(self.request.clone()).await {
            Ok(answer) => answer,
            Err(error) => {
                if error.effect() == crate::refusal::Effect::None {
                    unanswered.request = None;
                }
                return Err(error);
            }
        };
        let said = Said::of_message(answer)?;
        unanswered.request = None;
        Ok(match said {
            Said::New(grant) => {
                let record = self.request.record.take();
                Found::New(Claim::new(self.link.clone(), self.drops.clone(), record, grant, sent_at))
            }
            Said::Completed(outcome) => Found::Completed(outcome),
            Said::Conflict(conflict) => Found::Conflict(conflict),
            Said::InProgress(other) => Found::InProgress(other),
            Said::Indeterminate(unknown) => Found::Indeterminate(unknown),
            Said::Expired(expired) => Found::Expired(expired),
        })
    }

    /// Runs the handler if, and only if, the record is this attempt's, and reports what it says.
    ///
    /// The claim is staged, and begun right before the handler: a claim whose reply is lost, or whose process dies
    /// before it starts, bothers nobody. Every run is an attempt of its own. While the handler runs the lease is
    /// renewed; a handler that can stop early watches [`Claim::lost`], and one with several effects asks
    /// [`Claim::check`] before each. If the handler panics or this future is dropped, the record is suspended.
    ///
    /// ```no_run
    /// # struct Charge; struct Failure;
    /// # impl Failure { fn never_sent(&self) -> bool { true } }
    /// # impl std::fmt::Display for Failure {
    /// #     fn fmt(&self, _: &mut std::fmt::Formatter) -> std::fmt::Result { Ok(()) } }
    /// # impl Charge { fn to_json(&self) -> String { String::new() } }
    /// # async fn charge(_: &str, _: &str) -> Result<Charge, Failure> { Ok(Charge) }
    /// # async fn example(semel: semel::Client, key: &str, request: &str) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use semel::{client::{Done, Verdict}, fingerprint::Fingerprint};
    ///
    /// let done = semel
    ///     .operation("charge.create")
    ///     .key(key)
    ///     .fingerprint(Fingerprint::json_text(request)?)
    ///     .lease(Duration::from_secs(30))
    ///     .wait(Duration::from_secs(10))
    ///     .run(async |claim| match charge(request, claim.downstream_key()).await {
    ///         Ok(charged) => Verdict::completed(201, charged.to_json()),
    ///         Err(failure) if failure.never_sent() => Verdict::no_effect(failure),
    ///         Err(failure) => Verdict::unknown(failure), // kept, never repeated
    ///     })
    ///     .await?;
    /// match done {
    ///     Done::Ran(outcome) | Done::Replayed(outcome) => println!("status {}", outcome.status),
    ///     Done::Conflict(_) => println!("the key belongs to another request"),
    ///     Done::InProgress(other) => println!("ask again in {:?}", other.retry_after),
    ///     Done::Indeterminate(unknown) => println!("nobody knows: {}", unknown.reason),
    ///     Done::Expired(_) => println!("it was done long ago"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoEffect`] with the handler's words; [`Error::Unrecorded`] with the outcome, if it happened but could
    /// not be recorded; anything else means that the handler did not run.
    pub async fn run(self, handler: impl AsyncFnOnce(&Claim) -> Verdict) -> Result<Done, Error> {
        let staged = self.request.staged != Some(false);
        let mut claim = match self.claim().await? {
            Found::New(claim) => claim,
            Found::Completed(outcome) => return Ok(Done::Replayed(outcome)),
            Found::Conflict(conflict) => return Ok(Done::Conflict(conflict)),
            Found::InProgress(other) => return Ok(Done::InProgress(other)),
            Found::Indeterminate(unknown) => return Ok(Done::Indeterminate(unknown)),
            Found::Expired(expired) => return Ok(Done::Expired(expired)),
        };
        claim.starts(Starts::NotYet);
        let started = if staged { claim.begin().await } else { ready(&claim).await };
        if let Err(error) = started {
            // The handler never ran, whatever became of the begin: so the owner can say so.
            if let Err(unheard) = claim.release("the handler was never started").await {
                tracing::debug!(error = %unheard, "a claim that never started could not be released");
            }
            return Err(error);
        }
        claim.starts(Starts::Handler);
        match handler(&claim).await {
            Verdict::Completed(outcome) => ran(claim, outcome).await,
            // Without evidence nobody can rely on it: what the handler doesn't know stays open.
            Verdict::NoEffect(reason) if reason.trim().is_empty() => unknown(claim, NO_EVIDENCE.to_owned()).await,
            Verdict::NoEffect(reason) => match claim.release(&reason).await {
                Ok(()) => Err(Error::NoEffect { reason }),
                Err(error) => Err(error),
            },
            Verdict::Unknown(reason) if planted!(TimeoutIsNotDone) => {
                claim.release(&reason).await.map_or_else(Err, |()| Err(Error::NoEffect { reason }))
            }
            Verdict::Unknown(reason) => unknown(claim, reason).await,
        }
    }
}

async fn ran(claim: Claim, outcome: Outcome) -> Result<Done, Error> {
    claim.complete(outcome.clone()).await?;
    Ok(Done::Ran(outcome))
}

const NO_EVIDENCE: &str = "the handler said that nothing happened, without evidence";

async fn unknown(claim: Claim, reason: String) -> Result<Done, Error> {
    claim.suspend(&reason).await?;
    let retry_after = Duration::from_millis(limits::RETRY_AFTER_MS_INDETERMINATE.into());
    Ok(Done::Indeterminate(Indeterminate { since: None, reason, retry_after }))
}

/// A claim that was begun at once and has waited long is renewed first: by its own count little may be left.
async fn ready(claim: &Claim) -> Result<(), Error> {
    if claim.check().is_err() {
        claim.renew().await?;
    }
    claim.check()
}

fn seconds(window: Duration) -> u32 {
    u32::try_from(window.as_secs()).unwrap_or(u32::MAX)
}

/// A claim that may have been granted without anybody knowing.
struct Unanswered<'a> {
    drops: &'a Drops,
    request: Option<v1::ClaimRequest>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.drops.report(Abandoned::Unanswered(request));
        }
    }
}
