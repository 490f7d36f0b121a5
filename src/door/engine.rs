//! From a request with a key to its answer: whoever comes first runs, everybody else gets what came of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header, request};
use hyper::body::Body as HttpBody;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

use super::{
    body::{self, Body, Spooled},
    counts::{Counts, Doings},
    grpc, identity,
    key::{self, Key},
    prefer,
    problem::{Naming, Problem},
    replay::{self, Recording},
    route::{KeyRule, Route},
    upstream::Upstream,
    work::{self, Work},
};
use crate::{
    Client,
    client::{Builder, Error, Expired, Found, Operation, Outcome},
    limits,
    proto::v1,
    refusal::{Code, Effect},
};

/// What holds for all requests of a door.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How problems are named.
    pub naming: Naming,
    /// Largest answer whose body is recorded, bytes.
    pub outcome_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { naming: Naming::default(), outcome_bytes_max: limits::DOOR_OUTCOME_BYTES_MAX_DEFAULT }
    }
}

/// The engine of a door. Cloning it is cheap; clones are one door.
#[derive(Clone)]
pub struct Door(Arc<Inner>);

struct Inner {
    store: Client,
    settings: Settings,
    works: Arc<Semaphore>,
    room: Arc<Semaphore>,
    turns: Semaphore,
    counts: Counts,
}

/// Sets a store's client up as a door needs it: callers are told soon that there is no store, and outcomes are reported for
/// long.
pub fn patience(store: Builder) -> Builder {
    store
        .deadline(Duration::from_millis(limits::DOOR_STORE_MS))
        .attempt_deadline(Duration::from_millis(limits::DOOR_STORE_ATTEMPT_MS))
        .report_deadline(Duration::from_millis(limits::DOOR_REPORT_MS))
}

/// Whose request it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The tenant; none: the store's own.
    pub tenant: Option<String>,
    /// The end user or account.
    pub principal: Option<String>,
}

/// A key that was found, and the field value that held it.
#[derive(Clone, Debug)]
pub struct Keyed {
    key: Key,
    line: HeaderValue,
}

/// The key of a request of this route, where keys are looked at and there is one.
///
/// # Errors
/// `key_missing` where there must be one, `key_invalid` where there is one that is none.
pub fn judge(route: &Route, method: &Method, headers: &HeaderMap) -> Result<Option<Keyed>, Problem> {
    if !route.applies_to(method) {
        return Ok(None);
    }
    match key::find(headers, &route.key_headers) {
        Ok(Some((key, line))) => Ok(Some(Keyed { key, line })),
        Ok(None) if route.key == KeyRule::Required => {
            let name = route.key_headers.first().map_or("Idempotency-Key", |name| name.as_str());
            let detail = format!("this operation happens once for each key; send one in {name}");
            Err(Problem::new(Code::KeyMissing, detail))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(Problem::new(Code::KeyInvalid, error.to_string())),
    }
}

/// A request with a key, read whole and let through.
pub struct Intent<'a> {
    /// Its route.
    pub route: &'a Route,
    /// Its key.
    pub keyed: Keyed,
    /// Whose it is.
    pub who: Who,
    /// Its head as received: what is hashed.
    pub head: &'a request::Parts,
    /// Its head as it goes to the upstream, but for what the door adds.
    pub onward: request::Parts,
    /// Its body.
    pub body: Spooled,
}

impl Door {
    /// A door before this store. The client should have a door's [`patience`].
    pub fn new(store: Client, settings: Settings) -> Self {
        Self(Arc::new(Inner {
            store,
            settings,
            works: Arc::new(Semaphore::new(limits::DOOR_WORKS_MAX)),
            room: Arc::new(Semaphore::new(limits::DOOR_SPOOL_KIB_MAX)),
            turns: Semaphore::new(1),
            counts: Counts::default(),
        }))
    }

    /// What it has done, and is doing.
    pub fn doings(&self) -> Doings {
        let held_kib = limits::DOOR_SPOOL_KIB_MAX - self.0.room.available_permits();
        let at_work = limits::DOOR_WORKS_MAX - self.0.works.available_permits();
        Doings { at_work: at_work as u64, held_bytes: held_kib as u64 * 1024, ..self.0.counts.doings() }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// The answer that tells a problem.
    pub fn tell(&self, problem: &Problem) -> Response<Body> {
        problem.response(&self.0.settings.naming)
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(super) fn store(&self) -> &Client {
        &self.0.store
    }

    /// Reads the body of a request with a key to its end. Nothing is claimed before.
    ///
    /// # Errors
    /// `body_too_large`; or that it broke off, or stopped, or that there is no room.
    pub async fn spool<B>(&self, route: &Route, body: &mut B) -> Result<Spooled, Problem>
    where
        B: HttpBody<Data = Bytes> + Unpin,
    {
        body::spool(body, route.body_bytes_max, &self.0.room).await
    }

    /// Waits until all that runs has come to its end, for so long at most. Says whether it has.
    pub async fn drain(&self, at_most: Duration) -> bool {
        let all = u32::try_from(limits::DOOR_WORKS_MAX).expect("the limit is small");
        let drained = timeout(at_most, self.0.works.acquire_many(all)).await.is_ok();
        let _ = timeout(at_most, self.0.store.close()).await;
        drained
    }

    /// Answers a request with a key. Where this future is dropped, what has begun goes on.
    pub async fn answer<U: Upstream>(&self, intent: Intent<'_>, upstream: U) -> Response<Body> {
        let wait = prefer::wait(&intent.head.headers).map(|wait| wait.min(intent.route.wait_max));
        match self.find(intent, wait, upstream).await {
            Ok(Answer::First(response)) => response,
            Ok(Answer::Again(response)) => applied(response, wait),
            Err(problem) => {
                let response = self.tell(&problem);
                if problem.status == 409 { applied(response, wait) } else { response }
            }
        }
    }

    async fn find<U: Upstream>(
        &self,
        intent: Intent<'_>,
        wait: Option<Duration>,
        upstream: U,
    ) -> Result<Answer, Problem> {
        let place = Arc::clone(&self.0.works)
            .try_acquire_owned()
            .map_err(|_| Problem::new(Code::Unavailable, "too many requests with a key are at work"))?;
        let record = record(&intent);
        let operation = self.operation(&intent, &record, wait).await;
        let origin = intent.head.headers.get(header::ORIGIN).cloned();
        match operation.claim().await.map_err(|error| unclaimed(&error))? {
            Found::New(claim) => {
                let Intent { route, keyed, onward, body, .. } = intent;
                let Spooled { bytes, room } = body;
                let (told, tell) = oneshot::channel();
                let work = Work {
                    door: self.clone(),
                    record,
                    timeout: route.upstream_timeout,
                    release: route.release.clone(),
                    is_grpc: grpc::is_grpc(&onward.headers),
                    recording: Recording { more: route.record_headers.clone(), origin },
                    _place: (place, room),
                };
                let request = work::request(onward, bytes, &route.key_headers, keyed.line, &claim);
                // Its own task: whatever becomes of whoever asked, this goes on. It ends with the upstream's answer, which
                // has a time limit, and the outcome's report, which has one too; `works` knows of it.
                tokio::spawn(work.run(told, claim, upstream, request));
                // Its task panicked, or the runtime ends: the claim was dropped with it, and is suspended for that.
                let broken = "the request was sent to the service, and its work was broken off";
                let gone = |_| Problem::new(Code::OutcomeIndeterminate, broken).with_status(502);
                tell.await.map(Answer::First).map_err(gone)
            }
            Found::Completed(outcome) => replayed(intent.route, &outcome, origin.as_ref()).map(Answer::Again),
            Found::Conflict(_) => Err(Problem::new(Code::KeyReused, "the key belongs to another request")),
            Found::InProgress(other) => {
                let detail = "another request with this key is at work; send the same again later";
                Err(Problem::new(Code::InProgress, detail).retry_after(other.retry_after))
            }
            Found::Indeterminate(unknown) => {
                let detail = "the first request with this key was sent, and what came of it isn't known";
                Err(Problem::new(Code::OutcomeIndeterminate, detail).retry_after(unknown.retry_after))
            }
            Found::Expired(expired) => Err(over(intent.route, &expired)),
        }
    }

    async fn operation(&self, intent: &Intent<'_>, record: &v1::RecordId, wait: Option<Duration>) -> Operation {
        let Intent { route, keyed, head, body, .. } = intent;
        let fingerprint = {
            let takes_turns = identity::is_json(&head.headers) && body.bytes.len() >= limits::DOOR_TURN_BYTES_MIN;
            let _turn = if takes_turns { self.0.turns.acquire().await.ok() } else { None };
            identity::fingerprint(route, &head.method, &head.uri, &head.headers, &body.bytes)
        };
        // What a lapsed lease means here is no policy's to say: what was sent is never sent again.
        let mut operation =
            self.0.store.operation(record.operation.as_str()).key(keyed.key.as_str()).fingerprint(fingerprint).hold();
        if let Some(tenant) = &record.tenant {
            operation = operation.tenant(tenant);
        }
        if let Some(principal) = &record.principal {
            operation = operation.principal(principal);
        }
        if let Some(lease) = route.lease {
            operation = operation.lease(lease);
        }
        if let Some(replay) = route.replay {
            operation = operation.replay(replay);
        }
        if let Some(evidence) = route.evidence {
            operation = operation.evidence(evidence);
        }
        if let Some(wait) = wait {
            operation = operation.wait(wait);
        }
        // Where the operation doesn't say it already, whoever looks into the record wants to know where it was sent.
        let path = head.uri.path();
        let can_be_label = path.len() <= limits::LABEL_VALUE_BYTES_MAX && path.bytes().all(|b| b.is_ascii_graphic());
        if route.operation.is_some() && can_be_label {
            operation = operation.label("path", path);
        }
        operation
    }
}

enum Answer {
    /// To whoever came first.
    First(Response<Body>),
    /// What came of an earlier one.
    Again(Response<Body>),
}

/// What a request keeps to itself while it runs: its place among all, and the room of its body.
pub(super) type Place = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

fn record(intent: &Intent<'_>) -> v1::RecordId {
    let operation = intent.route.operation.clone();
    let (method, path) = (&intent.head.method, intent.head.uri.path());
    v1::RecordId {
        tenant: intent.who.tenant.clone(),
        principal: intent.who.principal.clone(),
        operation: operation.unwrap_or_else(|| identity::operation(method, path)),
        key: intent.keyed.key.as_str().to_owned(),
    }
}

fn replayed(route: &Route, outcome: &Outcome, origin: Option<&HeaderValue>) -> Result<Response<Body>, Problem> {
    if outcome.stale {
        let detail = "the answer to this key's request is no longer valid";
        return Err(Problem::new(Code::KeyExpired, detail).with_status(route.expired_status));
    }
    let stored = if replay::is_stored(outcome) { replay::replay(outcome, origin) } else { None };
    stored.ok_or_else(|| {
        Problem::new(Code::OutcomeNotStored, "the first request with this key was done, and its answer was not kept")
    })
}

fn over(route: &Route, expired: &Expired) -> Problem {
    let detail = match expired.reason.as_str() {
        "too_old" => "the request was first sent too long ago to know whether it was done",
        "forgotten" => "the request was done, and its answer was erased",
        _ => "the request was done too long ago for its answer to be replayed",
    };
    Problem::new(Code::KeyExpired, detail).with_status(route.expired_status)
}

/// What a claim that came to nothing means for the caller: nothing was sent to the upstream.
fn unclaimed(error: &Error) -> Problem {
    match error {
        Error::Refused(refusal) if matches!(refusal.code, Code::QuotaExceeded | Code::RateLimited) => {
            let after = refusal.retry_after_ms.unwrap_or(u64::from(limits::RETRY_AFTER_MS_MIN));
            Problem::new(refusal.code, refusal.detail.clone()).retry_after(Duration::from_millis(after))
        }
        Error::Refused(refusal) if refusal.code == Code::InvalidArgument => {
            Problem::new(refusal.code, refusal.detail.clone())
        }
        error => {
            tracing::warn!(%error, "a key could not be claimed; its request was not let through");
            Problem::new(Code::StoreUnavailable, "nothing was sent to the service").with_effect(Effect::None)
        }
    }
}

/// Says how long a caller could have waited, where it asked to.
fn applied(mut response: Response<Body>, wait: Option<Duration>) -> Response<Body> {
    if let Some(seconds) = wait.map(|wait| wait.as_secs()).filter(|seconds| *seconds > 0) {
        let value = HeaderValue::from_str(&format!("wait={seconds}")).expect("digits are valid in a field");
        response.headers_mut().insert(prefer::PREFERENCE_APPLIED, value);
    }
    response
}
