//! The work of whoever came first: connect, begin, send once, record, answer. A task of its own, which the caller's leaving
//! doesn't end.

use std::{mem, pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request, response};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    body::Body,
    caller::{Caller, Stream, Told, settle},
    engine::{Door, Place},
    grpc,
    problem::Problem,
    replay::{self, IDEMPOTENT_REPLAYED, Recording},
    route::IDEMPOTENCY_KEY,
    upstream::{Failure, Upstream, Way, unopened},
};
use crate::{
    client::{Claim, Error, Outcome},
    limits,
    proto::v1,
    refusal::{Code, Effect},
};

/// Tells the upstream the fence of the request, decimal: larger than that of any before.
pub const SEMEL_FENCE: HeaderName = HeaderName::from_static("semel-fence");
/// Tells the upstream a key for whoever it calls: the same for every attempt.
pub const SEMEL_DOWNSTREAM_KEY: HeaderName = HeaderName::from_static("semel-downstream-key");

/// What an upstream's answer says about its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This is what came of it, for good.
    Completed,
    /// Nothing happened: the key is free again.
    Released,
    /// Something may have happened, and the upstream itself doesn't know.
    Indeterminate,
}

/// What this status says, on a route with this list of statuses that mean that nothing happened.
pub fn verdict(status: StatusCode, release: &[u16]) -> Verdict {
    match status.as_u16() {
        status if release.contains(&status) => Verdict::Released,
        401 | 403 | 407 | 421 | 425 | 429 => Verdict::Released,
        408 | 500.. => Verdict::Indeterminate,
        _ => Verdict::Completed,
    }
}

/// The request as the upstream gets it: one line with the key as it was sent, the fence, the downstream key.
pub(super) fn request(
    mut head: request::Parts,
    body: Bytes,
    key_headers: &[HeaderName],
    line: HeaderValue,
    claim: &Claim,
) -> Request<Bytes> {
    for name in key_headers {
        head.headers.remove(name);
    }
    head.headers.insert(IDEMPOTENCY_KEY, line);
    head.headers.insert(SEMEL_FENCE, HeaderValue::from(claim.fence()));
    if let Ok(key) = HeaderValue::from_str(claim.downstream_key()) {
        head.headers.insert(SEMEL_DOWNSTREAM_KEY, key);
    }
    // The body is whole: nobody has to be asked whether to send it, and its length is known.
    for name in [header::EXPECT, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::TRAILER] {
        head.headers.remove(name);
    }
    // Where a body may be expected, that there is none is said, as most clients do.
    if body.is_empty() && matches!(head.method, Method::POST | Method::PUT | Method::PATCH) {
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(0));
    }
    Request::from_parts(head, body)
}

/// One request's work.
pub(super) struct Work {
    pub door: Door,
    pub record: v1::RecordId,
    pub timeout: Duration,
    pub release: Vec<u16>,
    /// Whether the request is one of gRPC.
    pub is_grpc: bool,
    pub recording: Recording,
    /// Given back at the end.
    pub _place: Place,
}

/// How an upstream's answer ended, where it is none.
enum End {
    Broken(String),
    TooLate,
}

impl Work {
    /// Does it. Whatever happens, the caller is answered, and the record is reported or left to the lapse of its lease.
    pub(super) async fn run<U: Upstream>(self, told: Told, claim: Claim, mut upstream: U, request: Request<Bytes>) {
        let way = match timeout(self.timeout, upstream.open()).await {
            Ok(Ok(way)) => way,
            Ok(Err(why)) => return self.unreachable(told, claim, &why).await,
            Err(_) => return self.unreachable(told, claim, "it was not ready in time").await,
        };
        if let Err(error) = claim.begin().await {
            tracing::warn!(%error, operation = self.record.operation, "a request was not begun, and is not sent");
            let problem = Problem::new(Code::StoreUnavailable, "nothing was sent to the service");
            return self.free(told, claim, "the request was never sent to the service", &problem).await;
        }
        let until = Instant::now() + self.timeout;
        let is_head = request.method() == Method::HEAD;
        match timeout_at(until, send(&claim, &mut upstream, way, request)).await {
            Ok(Ok(response)) => self.answered(told, claim, response, until, is_head).await,
            Ok(Err(Failure::NeverSent(why))) => self.unreachable(told, claim, &why).await,
            Ok(Err(Failure::Lost(why))) => self.unknown(told, claim, &End::Broken(why)).await,
            Err(_) => self.unknown(told, claim, &End::TooLate).await,
        }
    }

    async fn unreachable(&self, told: Told, claim: Claim, why: &str) {
        tracing::debug!(why, "the upstream can't be reached");
        let problem = Problem::new(Code::UpstreamUnreachable, unopened(why));
        let evidence = format!("not one byte of the request was handed to a connection: {why}");
        self.free(told, claim, &evidence, &problem).await;
    }

    /// Nothing was sent: the key is free again.
    async fn free(&self, told: Told, claim: Claim, evidence: &str, problem: &Problem) {
        self.door.counts().ended(Verdict::Released);
        settle(claim.release(evidence), Caller::waits(told, self.door.tell(problem))).await;
    }

    /// The request was sent, and what came of it isn't known.
    async fn unknown(&self, told: Told, claim: Claim, end: &End) {
        self.door.counts().ended(Verdict::Indeterminate);
        settle(claim.suspend(end.reason()), Caller::waits(told, self.door.tell(&end.problem()))).await;
    }

    async fn answered(&self, told: Told, claim: Claim, response: Response<Body>, until: Instant, is_head: bool) {
        let (mut head, mut body) = response.into_parts();
        if head.status.is_informational() {
            let end = End::Broken(format!("its answer is a {}", head.status.as_u16()));
            return self.unknown(told, claim, &end).await;
        }
        head.headers.remove(IDEMPOTENT_REPLAYED);
        let bytes_max = self.door.settings().outcome_bytes_max;
        let (mut held, mut trailers) = (BytesMut::new(), None);
        loop {
            let frame = match timeout_at(until, body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return self.unknown(told, claim, &End::Broken(error.to_string())).await,
                Err(_) => return self.unknown(told, claim, &End::TooLate).await,
            };
            match frame.into_data() {
                Ok(data) if held.len() + data.len() > bytes_max => {
                    return self.stream(told, claim, head, held.freeze(), data, body).await;
                }
                Ok(data) => held.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        let (status, held) = (head.status, held.freeze());
        let outcome = self.recording.outcome(&head, Some(held.clone()), trailers.as_ref());
        // Its length is what there is; a HEAD's says what there would be.
        if !is_head && status != StatusCode::NOT_MODIFIED {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        if trailers.is_none() {
            head.headers.remove(header::TRAILER);
        }
        let verdict = self.verdict(status, &head.headers, trailers.as_ref());
        let answer = Response::from_parts(head, replay::whole(held, trailers));
        self.conclude(claim, (status, verdict), outcome, Caller::waits(told, answer)).await;
    }

    /// An answer that is too large to be recorded goes to its caller as it comes, all but the last piece.
    async fn stream(&self, told: Told, claim: Claim, head: response::Parts, held: Bytes, first: Bytes, mut body: Body) {
        let (status, headers) = (head.status, head.headers.clone());
        let outcome = self.recording.outcome(&head, None, None);
        self.door.counts().unkept();
        let mut stream = Stream::begin(told, head, self.timeout);
        stream.give(held).await;
        let mut last = first;
        let end = loop {
            match timeout(self.timeout, body.frame()).await {
                Ok(None) => break None,
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => stream.give(mem::replace(&mut last, data)).await,
                    Err(frame) => stream.trailers = frame.into_trailers().ok(),
                },
                Ok(Some(Err(error))) => break Some(End::Broken(error.to_string())),
                Err(_) => break Some(End::TooLate),
            }
        };
        match end {
            None => {
                let verdict = self.verdict(status, &headers, stream.trailers.as_ref());
                self.conclude(claim, (status, verdict), outcome, Caller::Streams { stream, last }).await;
            }
            Some(end) => {
                // The caller's connection is cut where the answer broke off.
                drop(stream);
                self.door.counts().ended(Verdict::Indeterminate);
                settle(claim.suspend(end.reason()), Caller::Told).await;
            }
        }
    }

    fn verdict(&self, status: StatusCode, headers: &HeaderMap, trailers: Option<&HeaderMap>) -> Verdict {
        match verdict(status, &self.release) {
            // What says that all is well, and isn't gRPC, is no answer to a call: whoever it is from may not know of it.
            Verdict::Completed if grpc::is_grpc(headers) || (self.is_grpc && status.is_success()) => {
                grpc::verdict(headers, trailers)
            }
            verdict => verdict,
        }
    }

    /// Reports what the whole answer says, and gives the caller what is left of it.
    async fn conclude(&self, claim: Claim, (status, verdict): (StatusCode, Verdict), outcome: Outcome, caller: Caller) {
        let said = format!("the service answered {}", status.as_u16());
        match verdict {
            Verdict::Completed => return self.complete(claim, outcome, caller).await,
            Verdict::Released => settle(claim.release(said), caller).await,
            Verdict::Indeterminate => settle(claim.suspend(said), caller).await,
        }
        self.door.counts().ended(verdict);
    }

    /// The caller gets its answer once it is durable, and never before. Where it isn't by the end of the lease, the caller is
    /// told so, and the report goes on.
    async fn complete(&self, claim: Claim, outcome: Outcome, mut caller: Caller) {
        let patience = claim.time_left().max(Duration::from_millis(limits::DOOR_SETTLE_MS));
        let mut report = pin!(self.report(claim, outcome));
        let reported = match timeout(patience, report.as_mut()).await {
            Ok(reported) => reported,
            Err(_) => {
                let problem =
                    Problem::new(Code::StoreUnavailable, "the service answered; its answer isn't recorded yet");
                caller.refuse(self.door.tell(&problem.with_effect(Effect::Unknown)));
                let (operation, _late) = (&self.record.operation, self.door.counts().late());
                tracing::error!(
                    operation,
                    "an answer could not be recorded within its lease; this goes on being tried"
                );
                report.await
            }
        };
        match reported {
            Ok(()) => {
                self.door.counts().ended(Verdict::Completed);
                caller.give().await;
            }
            Err(error) => {
                self.door.counts().ended(Verdict::Indeterminate);
                tracing::error!(%error, operation = self.record.operation, "an answer could not be recorded");
                let detail = "the service answered, and its answer could not be recorded";
                caller.refuse(self.door.tell(&Problem::new(Code::OutcomeIndeterminate, detail).with_status(502)));
            }
        }
    }

    async fn report(&self, claim: Claim, outcome: Outcome) -> Result<(), Error> {
        let (fence, status) = (claim.fence(), outcome.status);
        let Err(error) = claim.complete(outcome).await else { return Ok(()) };
        // The tenant's policy keeps less than the door would: then the fact is kept without the body.
        if !matches!(error.code(), Some(Code::OutcomeTooLarge | Code::RequestTooLarge | Code::InvalidArgument)) {
            return Err(error);
        }
        let outcome = Some(v1::Outcome {
            status: Some(status),
            headers: replay::not_stored(),
            body: Some(Bytes::new()),
            ..v1::Outcome::default()
        });
        let request = v1::CompleteRequest { record: Some(self.record.clone()), fence: Some(fence), outcome };
        self.door.store().complete(request).await.map(drop)
    }
}

impl End {
    fn reason(&self) -> String {
        match self {
            End::Broken(why) => format!("the request was sent, and no whole answer came: {why}"),
            End::TooLate => "the request was sent, and no answer came in time".to_owned(),
        }
    }

    fn problem(&self) -> Problem {
        let (detail, status) = match self {
            End::Broken(_) => ("the request was sent to the service, and no whole answer came", 502),
            End::TooLate => ("the request was sent to the service, and no answer came in time", 504),
        };
        let after = Duration::from_millis(limits::RETRY_AFTER_MS_INDETERMINATE.into());
        Problem::new(Code::OutcomeIndeterminate, detail).with_status(status).retry_after(after)
    }
}

/// Sends the request once. Where the way turned out to be closed before a byte was handed to it, there is a second one; what
/// was handed over is never sent again.
async fn send<U: Upstream>(
    claim: &Claim,
    upstream: &mut U,
    way: U::Way,
    request: Request<Bytes>,
) -> Result<Response<Body>, Failure> {
    match way.send(request.clone()).await {
        Err(Failure::NeverSent(why)) => tracing::debug!(why, "the connection was closed before the request"),
        other => return other,
    }
    let way = upstream.open().await.map_err(Failure::NeverSent)?;
    claim.check().map_err(|error| Failure::NeverSent(error.to_string()))?;
    way.send(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_verdict() {
        let of = |status| verdict(StatusCode::from_u16(status).unwrap(), &[503]);
        for status in [200, 201, 204, 301, 302, 304, 400, 402, 404, 409, 410, 422, 428, 451, 499] {
            assert_eq!(of(status), Verdict::Completed, "{status}");
        }
        for status in [401, 403, 407, 421, 425, 429, 503] {
            assert_eq!(of(status), Verdict::Released, "{status}");
        }
        for status in [408, 500, 501, 502, 504, 511, 599, 999] {
            assert_eq!(of(status), Verdict::Indeterminate, "{status}");
        }
    }
}
