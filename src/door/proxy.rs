//! The reverse proxy: one request from its head to its answer.
//!
//! The head is judged first, and what is wrong with it is said before a byte of the body is read. A request with a key is
//! read whole, authorized, claimed and worked at (`engine`); everything else streams through, with or without a key rule
//! above it.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::body::Body as Answered;
use http::{HeaderValue, Request, Response, StatusCode, Version, header, request};
use http_body_util::BodyExt;
use hyper::{body::Body as HttpBody, body::Incoming, upgrade};
use hyper_util::rt::TokioIo;
use tokio::{
    io::copy_bidirectional,
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use super::{
    authorize::Authorizer,
    body::{self, Body, Unidle},
    connect::{Protocol, Server, ServerUpstream},
    engine::{self, Door, Intent, Keyed},
    forward, grpc,
    metrics::{DoorMetrics, Unauthorized},
    problem::Problem,
    route::{Route, Routes},
    upstream::{Failure, unopened},
    who::Sources,
};
use crate::{limits, refusal::Code, traces};

/// What a proxy is made of.
pub struct Proxy {
    /// The engine.
    pub door: Door,
    /// What of a request is looked at.
    pub routes: Routes,
    /// Where requests go.
    pub server: Arc<Server>,
    /// Whose they are.
    pub who: Sources,
    /// Who says whether they may.
    pub authorizer: Option<Authorizer>,
    /// `http`, or `https` where the door's own port is encrypted.
    pub scheme: &'static str,
    /// How they were answered.
    pub metrics: Arc<DoorMetrics>,
    /// Connections that were upgraded.
    pub tunnels: Arc<Semaphore>,
    /// True once what runs must end.
    pub ending: watch::Receiver<bool>,
}

impl Proxy {
    /// All metrics as they are now, as text.
    pub fn measured(&self) -> String {
        let tunnels = limits::DOOR_TUNNELS_MAX - self.tunnels.available_permits();
        self.metrics.take(&self.door.doings(), tunnels);
        self.metrics.encode()
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, request: Request<Incoming>, from: SocketAddr) -> Response<Answered> {
        let is_http_1 = request.version() < Version::HTTP_2;
        let waits = request.headers().contains_key(header::EXPECT);
        let is_grpc = !is_http_1 && grpc::is_grpc(request.headers());
        let (head, incoming) = request.into_parts();
        let (began, judged) = (Instant::now(), self.judge(&head));
        let has_key = matches!(judged, Ok((_, Some(_))));
        let parent = traces::parent(&head.headers);
        let answered = async {
            let response = match judged {
                Ok((route, Some(keyed))) => self.with_key(route, keyed, head, incoming, from).await,
                Ok((route, None)) => self.without_key(route, head, incoming, from).await,
                Err(problem) => self.unread(&problem, incoming, is_http_1, waits),
            };
            self.metrics.answered(&response, has_key, began.elapsed());
            response
        };
        let response = traces::within("door", parent, answered).await;
        let response = if is_grpc { grpc::told(response) } else { response };
        response.map(Answered::new)
    }

    fn judge(&self, head: &request::Parts) -> Result<(&Route, Option<Keyed>), Problem> {
        forward::check(head)?;
        let route = self.routes.find(&head.method, head.uri.path());
        engine::judge(route, &head.method, &head.headers).map(|keyed| (route, keyed))
    }

    /// Refuses a request without its body, and closes: what is still under way is not the next request.
    fn unread(&self, problem: &Problem, body: Incoming, is_http_1: bool, waits: bool) -> Response<Body> {
        // Whoever waits to be told to go on has sent nothing, and reading would tell them.
        if !waits {
            linger(body);
        }
        let mut response = self.door.tell(problem);
        if is_http_1 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn with_key(
        &self,
        route: &Route,
        keyed: Keyed,
        head: request::Parts,
        mut incoming: Incoming,
        from: SocketAddr,
    ) -> Response<Body> {
        let is_http_1 = head.version < Version::HTTP_2;
        let waits = head.headers.contains_key(header::EXPECT);
        let who = match self.who.who(&head) {
            Ok(who) => who,
            Err(problem) => return self.unread(&problem, incoming, is_http_1, waits),
        };
        // One that is announced as too large is refused before anybody is told to send it.
        let waits = waits && incoming.size_hint().lower() > route.body_bytes_max as u64;
        let body = match self.door.spool(route, &mut incoming).await {
            Ok(body) => body,
            Err(problem) => return self.unread(&problem, incoming, is_http_1, waits),
        };
        let onward = forward::onward(&head, from.ip(), self.scheme);
        if let Some(refused) = self.refused(&onward).await {
            return refused;
        }
        let upstream = ServerUpstream::new(Arc::clone(&self.server), &onward.headers);
        let intent = Intent { route, keyed, who, head: &head, onward, body };
        self.door.answer(intent, upstream).await
    }

    async fn without_key(
        &self,
        route: &Route,
        mut head: request::Parts,
        incoming: Incoming,
        from: SocketAddr,
    ) -> Response<Body> {
        let is_http_1 = head.version < Version::HTTP_2;
        let upgrade =
            forward::asks_for_upgrade(&head).then(|| head.extensions.remove::<upgrade::OnUpgrade>()).flatten();
        let mut onward = forward::onward(&head, from.ip(), self.scheme);
        if let Some(refused) = self.refused(&onward).await {
            return refused;
        }
        onward.headers.remove(header::EXPECT);
        if let Some(upgrade) = upgrade {
            return self.tunnel(&head, onward, body::boxed(incoming), upgrade).await;
        }
        // A stream of gRPC may well be silent for longer than a body: whether its other end still lives, pings tell.
        let is_stream = !is_http_1 && grpc::is_grpc(&head.headers);
        let mut broken = None;
        let body = if is_stream {
            forward::behind(incoming, &route.key_headers)
        } else {
            let body = Unidle::new(incoming, Duration::from_millis(limits::BODY_IDLE_MS));
            broken = Some(body.broken());
            forward::behind(body, &route.key_headers)
        };
        let sent = self.server.pass(Request::from_parts(onward, body));
        match timeout(route.upstream_timeout, sent).await {
            Ok(Ok(response)) => forward::back(response),
            // Its client broke it off: the service can't have had all of it.
            Ok(Err(Failure::Lost(_))) if broken.is_some_and(|broken| broken.load(Ordering::Acquire)) => {
                let mut response = self.door.tell(&Problem::new(Code::InvalidArgument, "the body broke off"));
                if is_http_1 {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                response
            }
            Ok(Err(failure)) => self.door.tell(&failed(&failure)),
            Err(_) => self.door.tell(&unkept(504, "the service did not answer in time")),
        }
    }

    /// What whoever authorizes said, where it isn't yes.
    async fn refused(&self, onward: &request::Parts) -> Option<Response<Body>> {
        match self.authorizer.as_ref()?.ask(onward).await {
            Ok(None) => None,
            Ok(Some(refused)) => {
                let mut refused = forward::back(refused);
                refused.extensions_mut().insert(Unauthorized);
                Some(refused)
            }
            Err(why) => {
                tracing::warn!(why, "whoever authorizes requests can't be asked");
                let detail = "whoever authorizes requests can't be asked; nothing was sent to the service";
                Some(self.door.tell(&Problem::new(Code::UpstreamUnreachable, detail)))
            }
        }
    }

    /// Passes a request for another protocol on, and then the bytes of both sides.
    async fn tunnel(
        &self,
        head: &request::Parts,
        mut onward: request::Parts,
        body: Body,
        client: upgrade::OnUpgrade,
    ) -> Response<Body> {
        let Ok(place) = Arc::clone(&self.tunnels).try_acquire_owned() else {
            return self.door.tell(&Problem::new(Code::Unavailable, "too many connections are upgraded"));
        };
        onward.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        onward.headers.remove(header::TE);
        if let Some(protocol) = head.headers.get(header::UPGRADE) {
            onward.headers.insert(header::UPGRADE, protocol.clone());
        }
        let connection = match self.server.connect(Protocol::Http1).await {
            Ok(connection) => connection,
            Err(why) => return self.door.tell(&failed(&Failure::NeverSent(why))),
        };
        let mut response = match connection.try_send(Request::from_parts(onward, body)).await {
            Ok(response) => response,
            Err((failure, _)) => return self.door.tell(&failed(&failure)),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return forward::back(response);
        }
        let server = upgrade::on(&mut response);
        let protocol = response.headers().get(header::UPGRADE).cloned();
        let mut ending = self.ending.clone();
        // Ends with either side, or with the door.
        tokio::spawn(async move {
            let _place = place;
            let joined = async {
                let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
                // How it ends is the two's own affair.
                let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
            };
            tokio::select! {
                () = joined => {}
                _ = ending.wait_for(|ending| *ending) => {}
            }
        });
        let mut response = forward::back(response);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = protocol {
            response.headers_mut().insert(header::UPGRADE, protocol);
        }
        response
    }
}

fn failed(failure: &Failure) -> Problem {
    match failure {
        Failure::NeverSent(why) => {
            tracing::debug!(why, "the upstream can't be reached");
            Problem::new(Code::UpstreamUnreachable, unopened(why))
        }
        Failure::Lost(why) => {
            tracing::debug!(why, "the upstream did not answer");
            unkept(502, "the request was sent to the service, and no answer came")
        }
    }
}

/// Nobody keeps what came of a request without a key, so that sending it again is no safer than before.
fn unkept(status: u16, detail: &'static str) -> Problem {
    Problem::new(Code::OutcomeIndeterminate, detail).with_status(status).without_retry()
}

/// Lets a client that is still sending finish, within bounds, without keeping anything: a connection that is closed over
/// unread bytes is reset, and the refusal that was just sent is lost with it.
fn linger(mut body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    // Ends after `LINGER_MS` at the latest, or with its connection.
    tokio::spawn(async move {
        let mut left = limits::LINGER_BYTES_MAX;
        let drain = async {
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, bytes::Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        // Past its time or not: what was drained is gone either way.
        let _ = timeout(Duration::from_millis(limits::LINGER_MS), drain).await;
    });
}
