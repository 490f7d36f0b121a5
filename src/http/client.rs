//! The clients' port: gRPC and JSON side by side. Everything passes one gate first: where the request claims to come
//! from, whose credential it shows, what that allows. No body is read before.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use http::{HeaderName, HeaderValue, Request, Response, Version, header, request::Parts};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tonic::{Status, service::Routes};
use tower::ServiceExt;

use super::{
    body, problem,
    read::{self, Message},
    watch,
    write::ToJson,
};
use crate::{
    auth::{Caller, Method, origin, permission::Needs},
    id::ClusterId,
    limits,
    proto::v1,
    refusal::{Code, Refusal},
    rpc::{Door, NoForward, status, told, turn},
    service::{Calls, answer::AuditAnswer, request::*},
    traces,
    unidle::{BoxError, Idle, Unidle},
};

/// Carried by every answer: a client that meets another cluster under a known address must notice.
const CLUSTER_ID: HeaderName = HeaderName::from_static("semel-cluster-id");
/// `1`: a node that doesn't lead refuses and names the leader, instead of forwarding.
const NO_FORWARD: HeaderName = HeaderName::from_static("semel-no-forward");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Says which cluster answers, if the node is in one.
pub(crate) fn name_cluster(response: &mut Response<Body>, cluster_id: Option<ClusterId>) {
    if let Some(id) = cluster_id {
        let id = HeaderValue::from_str(&id.to_string()).expect("hex digits are valid in a field");
        response.headers_mut().insert(CLUSTER_ID, id);
    }
}

/// The clients' port of a node.
pub struct Clients<C> {
    door: Door<C>,
    grpc: Routes,
    /// Whether requests must name loopback and come from no other web origin.
    guard_origin: bool,
    /// How long a body may pause.
    body_idle: Duration,
}

impl<C> Clone for Clients<C> {
    fn clone(&self) -> Self {
        Self {
            door: self.door.clone(),
            grpc: self.grpc.clone(),
            guard_origin: self.guard_origin,
            body_idle: self.body_idle,
        }
    }
}

impl<C: Calls> Clients<C> {
    /// Both doors. An open node that listens on loopback guards the origin of requests: its credential is that the
    /// request comes from this machine, and a web page can send one from here too.
    pub fn new(door: Door<C>, listens_on_loopback: bool) -> Self {
        let guard_origin = door.auth.is_open() && listens_on_loopback;
        Self { grpc: door.routes(), door, guard_origin, body_idle: Duration::from_millis(limits::BODY_IDLE_MS) }
    }

    /// The same, with bodies that may pause for so long.
    pub fn with_body_idle(self, body_idle: Duration) -> Self {
        Self { body_idle, ..self }
    }

    /// Answers one request.
    pub async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let is_grpc = is_grpc(&request);
        let http_1 = request.version() < Version::HTTP_2;
        let path = request.uri().path();
        let method = if is_grpc { Method::of_grpc(path) } else { Method::of_route(request.method().as_str(), path) };
        let (name, parent) = (method.map_or("unknown", Method::as_str), traces::parent(request.headers()));
        let answered = async { if is_grpc { self.grpc(request).await } else { self.json(request, http_1).await } };
        let mut response = traces::within(name, parent, answered).await;
        name_cluster(&mut response, self.door.calls.cluster_id());
        response
    }

    /// Whether the request is to be answered by the leader or by nobody. Nothing is forwarded of what concerns this node
    /// alone.
    fn stays_here(head: &Parts, method: Option<Method>) -> bool {
        let is_call = method.is_some_and(|method| served(method) || method == Method::Session);
        is_call && head.headers.get(NO_FORWARD).is_some_and(|value| value == "1")
    }

    /// Judges the head: origin, then credential, then permission, then whether this node may answer.
    fn admit(&self, head: &Parts, method: Option<Method>) -> Result<Option<Arc<Caller>>, Refusal> {
        if self.guard_origin {
            origin::check_open(&head.uri, &head.headers)?;
        }
        if method.is_some_and(|method| method.needs() == Needs::Nothing) {
            return Ok(None);
        }
        let caller = self.door.auth.admit(&head.headers, &head.extensions)?;
        if let Some(method) = method {
            caller.permit(method)?;
        }
        if Self::stays_here(head, method) {
            self.door.calls.leading()?;
        }
        Ok(Some(Arc::new(caller)))
    }

    async fn grpc(&self, request: Request<Incoming>) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let method = Method::of_grpc(head.uri.path());
        match self.admit(&head, method) {
            Ok(caller) => {
                if let Some(caller) = caller {
                    head.extensions.insert(caller);
                }
                if Self::stays_here(&head, method) {
                    head.extensions.insert(NoForward);
                }
            }
            Err(refusal) => return status::status(refusal).into_http(),
        }
        // A session may well be silent for longer than a body: whether its other end still lives, pings tell.
        let body = if method == Some(Method::Session) {
            Body::new(body)
        } else {
            Body::new(Unidle::new(body, self.body_idle).map_err(broken))
        };
        let request = Request::from_parts(head, body);
        let response = match self.grpc.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        // What tonic refuses by itself gets the details that every refusal has.
        match Status::from_header_map(response.headers()).map(|own| (own.code(), told(own))) {
            Some((code, told)) if code != tonic::Code::Ok => told.into_http(),
            _ => response.map(Body::new),
        }
    }

    async fn json(&self, request: Request<Incoming>, http_1: bool) -> Response<Body> {
        let (head, body) = request.into_parts();
        let waits = head.headers.contains_key(header::EXPECT);
        let method = Method::of_route(head.method.as_str(), head.uri.path()).filter(|method| served(*method));
        let caller = match self.admit(&head, method) {
            Ok(caller) => caller,
            Err(refusal) => return refused_unread(&refusal, body, http_1, waits),
        };
        let (Some(method), Some(caller)) = (method, caller) else {
            if !waits {
                body::linger(body);
            }
            return unknown(head.uri.path());
        };
        if let Err(refusal) = plain(&head) {
            return refused_unread(&refusal, body, http_1, waits);
        }
        if method == Method::WatchIndeterminate {
            return watch::open(&self.door, caller, &head).await.unwrap_or_else(|refusal| problem::problem(&refusal));
        }
        match body::read(body, self.body_idle).await {
            Ok(body) => self.call(method, &caller, &body).await.unwrap_or_else(|refusal| problem::problem(&refusal)),
            Err((refusal, rest)) => refused_unread(&refusal, rest, http_1, false),
        }
    }

    async fn call(&self, method: Method, caller: &Caller, body: &[u8]) -> Result<Response<Body>, Refusal> {
        let calls = &*self.door.calls;
        match method {
            Method::Claim => {
                let request = request::<v1::ClaimRequest, ClaimRequest>(body).await?;
                answer::<v1::ClaimAnswer>(calls.claim(caller, request).await?)
            }
            Method::Begin => self.owner::<v1::BeginRequest>(caller, body).await,
            Method::Renew => self.owner::<v1::RenewRequest>(caller, body).await,
            Method::Checkpoint => self.owner::<v1::CheckpointRequest>(caller, body).await,
            Method::Complete => self.owner::<v1::CompleteRequest>(caller, body).await,
            Method::Release => self.owner::<v1::ReleaseRequest>(caller, body).await,
            Method::Suspend => self.owner::<v1::SuspendRequest>(caller, body).await,
            Method::Get => {
                let request = request::<v1::GetRequest, GetRequest>(body).await?;
                answer::<v1::Record>(calls.get(caller, request).await?)
            }
            Method::Batch => {
                let turn = turn::of(body.len()).await;
                let request = crate::rpc::request::batch(read::batch(body)?)?;
                drop(turn);
                answer::<v1::BatchAnswer>(calls.batch(caller, request).await?)
            }
            Method::List => {
                let request = request::<v1::ListRequest, ListRequest>(body).await?;
                answer::<v1::ListAnswer>(calls.list(caller, request).await?)
            }
            Method::Investigate => {
                let request = request::<v1::InvestigateRequest, InvestigateRequest>(body).await?;
                answer::<v1::Record>(calls.investigate(caller, request).await?)
            }
            Method::Resolve => {
                let request = request::<v1::ResolveRequest, ResolveRequest>(body).await?;
                answer::<v1::OwnerAnswer>(calls.resolve(caller, request).await?)
            }
            Method::Forget => {
                let request = request::<v1::ForgetRequest, ForgetRequest>(body).await?;
                answer::<v1::OwnerAnswer>(calls.forget(caller, request).await?)
            }
            Method::History => {
                let request = request::<v1::HistoryRequest, HistoryRequest>(body).await?;
                answer::<v1::HistoryAnswer>(calls.history(caller, request).await?)
            }
            Method::GetPolicy => {
                let request = request::<v1::GetPolicyRequest, GetPolicyRequest>(body).await?;
                answer::<v1::PolicyAnswer>(calls.get_policy(caller, request).await?)
            }
            Method::SetPolicy => {
                let request = request::<v1::SetPolicyRequest, SetPolicyRequest>(body).await?;
                answer::<v1::PolicyAnswer>(calls.set_policy(caller, request).await?)
            }
            Method::CreateToken => {
                let request = request::<v1::CreateTokenRequest, CreateTokenRequest>(body).await?;
                answer::<v1::TokenAnswer>(calls.create_token(caller, request).await?)
            }
            Method::ListTokens => {
                let request = request::<v1::ListTokensRequest, ListTokensRequest>(body).await?;
                answer::<v1::ListTokensAnswer>(calls.list_tokens(caller, request).await?)
            }
            Method::RevokeToken => {
                let request = request::<v1::RevokeTokenRequest, RevokeTokenRequest>(body).await?;
                answer::<v1::TokenAnswer>(calls.revoke_token(caller, request).await?)
            }
            Method::Audit => {
                let turn = turn::of(body.len()).await;
                let request = read::audit(body)?;
                drop(turn);
                answer::<AuditAnswer>(calls.audit(caller, request).await?)
            }
            // Streams were answered before the body; the others are not on this port.
            _ => Err(not_found()),
        }
    }

    async fn owner<M>(&self, caller: &Caller, body: &[u8]) -> Result<Response<Body>, Refusal>
    where
        M: Message,
        OwnerRequest: TryFrom<M, Error = Refusal>,
    {
        let request = request::<M, OwnerRequest>(body).await?;
        answer::<v1::OwnerAnswer>(self.door.calls.owner(caller, request).await?)
    }
}

/// Why the body of a message broke off, as gRPC tells it.
fn broken(error: BoxError) -> BoxError {
    if error.is::<Idle>() { status::status(body::stopped()).into() } else { error }
}

/// Whether the JSON door of this port serves the method.
fn served(method: Method) -> bool {
    method.route().contains(" /v1/") && !method.route().contains(" /v1/admin/") && method != Method::Status
}

async fn request<M: Message, R: TryFrom<M, Error = Refusal>>(body: &[u8]) -> Result<R, Refusal> {
    let _turn = turn::of(body.len()).await;
    R::try_from(read::message(body)?)
}

fn answer<V: ToJson>(answer: impl Into<V>) -> Result<Response<Body>, Refusal> {
    let text = answer.into().to_json().to_text();
    let response = Response::builder().header(header::CONTENT_TYPE, JSON).body(Body::from(text));
    Ok(response.expect("one constant field is valid"))
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Refuses a body that is coded: what it holds is judged by its own length, not by what it unfolds to.
fn plain(head: &Parts) -> Result<(), Refusal> {
    let coded = head.headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| coding != "identity");
    if coded {
        return Err(Refusal::invalid("Content-Encoding: send the body as it is"));
    }
    Ok(())
}

/// Refuses a request without its body, and closes: what is still under way is not the next request.
fn refused_unread(refusal: &Refusal, body: Incoming, http_1: bool, waits: bool) -> Response<Body> {
    // Whoever waits to be told to go on has sent nothing, and reading would tell them.
    if !waits {
        body::linger(body);
    }
    let mut response = problem::problem(refusal);
    if http_1 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn not_found() -> Refusal {
    Refusal::new(Code::NotFound, "there is no such path; the API is under /v1/")
}

/// The answer for a path that has no such method, or that there isn't.
fn unknown(path: &str) -> Response<Body> {
    let mut verbs =
        Method::ALL.iter().filter(|method| served(**method)).filter_map(|method| method.route().split_once(' '));
    match verbs.find(|(_, own)| *own == path) {
        Some((verb, _)) => problem::method_not_allowed(verb),
        None => problem::problem(&not_found()),
    }
}

const _: () = assert!(limits::LINGER_BYTES_MAX > limits::REQUEST_BYTES_MAX);
