//! What operators see of a node: readiness, status, metrics; and the forming of its cluster.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use axum::{Router, body::Body, extract::Request, routing::post};
use http::{Response, StatusCode, header};
use hyper::body::Incoming;
use tower::ServiceExt;

use super::{calls::NodeCalls, form};
use crate::{
    auth::{Authenticator, Method},
    http::{admin::Observed, problem},
    id::NodeId,
    json::{Fields, Json},
    limits,
    metrics::gauge_value,
    raft::{Addresses, Consensus, FormError, MemberStanding, RoleWord, Status},
    records::state::{SinceList, State},
    refusal::{Code, Refusal},
    store::directory::EngineKind,
};

/// A node, observed.
pub(super) struct Observing {
    calls: Arc<NodeCalls>,
    consensus: Consensus,
    kind: EngineKind,
}

impl Observing {
    pub fn new(calls: Arc<NodeCalls>, consensus: Consensus, kind: EngineKind) -> Self {
        Self { calls, consensus, kind }
    }

    fn refresh(&self) {
        let metrics = &self.calls.metrics;
        let status = self.consensus.status();
        let shown = |value: Option<u64>| gauge_value(value.unwrap_or(0));
        metrics.term.set(gauge_value(status.term));
        metrics.is_leader.set(i64::from(status.leader_id == Some(status.node_id)));
        metrics.last_log.set(shown(status.last_log));
        metrics.committed.set(shown(status.committed));
        metrics.applied.set(shown(status.applied));
        metrics.purged.set(shown(status.purged));
        metrics.clock_offset_seconds.set(status.clock_offset_ms as f64 / 1000.0);
        metrics.waiters.set(gauge_value(self.calls.service.waiting() as u64));
        let records = self.consensus.records();
        metrics.overlay_bytes.set(gauge_value(records.figures().bytes as u64));
        metrics.store_bytes.set(gauge_value(records.disk_bytes().unwrap_or(0)));
        let state = records.read();
        let globals = state.globals();
        metrics.position.set(gauge_value(globals.position.0));
        metrics.records.set(gauge_value(globals.total.records));
        metrics.record_bytes.set(gauge_value(globals.total.bytes));
        metrics.in_progress.set(gauge_value(globals.total.in_progress));
        metrics.indeterminate.set(gauge_value(globals.total.indeterminate));
        let oldest = state.tenants().take(limits::OLDEST_TENANTS_EXAMINED).filter_map(|(tenant, _)| {
            state.since(tenant, SinceList::Indeterminate, None, 1).first().map(|(since, ..)| *since)
        });
        let age_ms = oldest.min().map_or(0, |since| globals.time.since_ms(since));
        metrics.oldest_indeterminate_seconds.set(gauge_value(age_ms / 1000));
    }
}

impl Observed for Observing {
    async fn ready(&self) -> Result<(), String> {
        self.calls.ready().await.map_err(|refusal| refusal.detail.into_owned())
    }

    async fn status(&self) -> Json {
        let status = self.consensus.status();
        let records = self.consensus.records();
        let disk_bytes = records.disk_bytes().unwrap_or(0);
        let (position, total) = {
            let state = records.read();
            (state.globals().position.0, state.globals().total.records)
        };
        shown(&status, self.kind, disk_bytes, position, total)
    }

    fn metrics(&self) -> String {
        self.refresh();
        self.calls.metrics.encode()
    }
}

fn text(value: impl ToString) -> Json {
    Json::String(value.to_string())
}

fn decimal(value: Option<u64>) -> Json {
    text(value.unwrap_or(0))
}

fn or_null<T: ToString>(value: Option<T>) -> Json {
    value.map_or(Json::Null, text)
}

fn number(value: impl ToString) -> Json {
    Json::parse(value.to_string().as_bytes()).expect("an integer is JSON")
}

fn object(members: Vec<(&'static str, Json)>) -> Json {
    Json::object(members)
}

fn shown(status: &Status, kind: EngineKind, disk_bytes: u64, position: u64, records: u64) -> Json {
    let leads = status.role == RoleWord::Leader;
    let members = status.members.iter().map(|member| {
        let is_self = member.node_id == status.node_id;
        let is_leader = status.leader_id == Some(member.node_id);
        let role = match member.standing {
            MemberStanding::Voter if is_leader => "leader",
            MemberStanding::Voter => "voter",
            MemberStanding::Learner => "learner",
        };
        let lag = member.matched.map(|matched| status.last_log.unwrap_or(0).saturating_sub(matched));
        // What only the leader knows is null elsewhere; of others, what they have not told.
        object(vec![
            ("id", number(member.node_id)),
            ("disk_id", text(member.member.disk_id)),
            ("role", text(role)),
            ("state", if is_self || leads { text("ok") } else { Json::Null }),
            ("term", if is_self { decimal(Some(status.term)) } else { Json::Null }),
            ("last_log", if is_self { decimal(status.last_log) } else { Json::Null }),
            ("matched", if leads { decimal(member.matched) } else { Json::Null }),
            ("lag", if leads { decimal(lag) } else { Json::Null }),
            ("reachable", if leads && is_self { Json::Bool(true) } else { Json::Null }),
            ("clock_offset_ms", if is_self { number(status.clock_offset_ms) } else { Json::Null }),
            ("disk_bytes", if is_self { text(disk_bytes) } else { Json::Null }),
        ])
    });
    object(vec![
        ("node_id", number(status.node_id)),
        ("cluster_id", or_null(status.cluster_id)),
        ("disk_id", or_null(status.disk_id)),
        ("role", text(status.role.as_str())),
        ("term", decimal(Some(status.term))),
        ("leader_id", status.leader_id.map_or(Json::Null, number)),
        ("last_log", decimal(status.last_log)),
        ("committed", decimal(status.committed)),
        ("applied", decimal(status.applied)),
        ("position", decimal(Some(position))),
        ("purged", decimal(status.purged)),
        ("snapshot", decimal(status.snapshot)),
        ("clock_offset_ms", number(status.clock_offset_ms)),
        ("members", Json::Array(members.collect())),
        ("store", text(kind)),
        ("disk_bytes", decimal(Some(disk_bytes))),
        ("records", decimal(Some(records))),
    ])
}

/// A router as a door serves it.
pub(super) fn answer(
    router: Router,
) -> impl Fn(http::Request<Incoming>, SocketAddr) -> AnswerFuture + Clone + Send + Sync + 'static {
    move |request, peer| {
        let router = router.clone();
        Box::pin(async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer);
            match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }
}

type AnswerFuture = std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// `POST /v1/admin/init {"nodes": {"1": {"peer": ADDRESS, "client": ADDRESS}}}`: forms a cluster of these nodes, of which this is one.
pub(super) fn init_route(consensus: Consensus, auth: Arc<Authenticator>, node_id: NodeId) -> Router {
    let handle = move |request: Request| {
        let (consensus, auth) = (consensus.clone(), Arc::clone(&auth));
        async move {
            match init(&consensus, &auth, node_id, request).await {
                Ok(json) => {
                    let mut response = Response::new(Body::from(json.to_text()));
                    let kind = header::HeaderValue::from_static("application/json");
                    response.headers_mut().insert(header::CONTENT_TYPE, kind);
                    *response.status_mut() = StatusCode::OK;
                    response
                }
                Err(refusal) => problem::problem(&refusal),
            }
        }
    };
    Router::new().route("/v1/admin/init", post(handle).fallback(async || problem::method_not_allowed("POST")))
}

async fn init(consensus: &Consensus, auth: &Authenticator, node_id: NodeId, request: Request) -> Result<Json, Refusal> {
    // The first contact needs no credential from loopback; from elsewhere one that may do everything.
    let is_near = request.extensions().get::<SocketAddr>().is_some_and(|peer| peer.ip().is_loopback());
    if !is_near {
        auth.authenticate(request.headers())?.permit(Method::Init)?;
    }
    let body = axum::body::to_bytes(request.into_body(), limits::REQUEST_BYTES_MAX)
        .await
        .map_err(|_| Refusal::new(Code::RequestTooLarge, "the body is too large or broke off"))?;
    let nodes = parse_nodes(&body)?;
    if !nodes.contains_key(&node_id) {
        return Err(Refusal::invalid(format!("nodes must name this node, which is node {node_id}")));
    }
    match form(consensus, nodes).await {
        Ok(formed) => {
            Ok(object(vec![("cluster_id", text(formed.cluster_id)), ("created", Json::Bool(formed.created))]))
        }
        Err(FormError::Refused(refusal)) => Err(refusal),
        Err(FormError::Unreachable { node_id, reason }) => {
            let detail = format!("node {node_id} can't be reached: {reason}");
            Err(Refusal::new(Code::Unavailable, detail).retry_after_ms(limits::RETRY_AFTER_UNAVAILABLE_MS))
        }
        Err(error @ (FormError::Start(_) | FormError::Membership { .. })) => {
            tracing::error!(%error, "the cluster can't be formed");
            Err(Refusal::new(Code::Internal, "the cluster can't be formed; the node's log says why"))
        }
        Err(error) => Err(Refusal::new(Code::WrongState, error.to_string())),
    }
}

fn parse_nodes(body: &[u8]) -> Result<BTreeMap<NodeId, Addresses>, Refusal> {
    let invalid = |error: &dyn std::fmt::Display| Refusal::invalid(error.to_string());
    let json = Json::parse(body).map_err(|error| invalid(&error))?;
    let mut fields = Fields::new(json).map_err(|error| invalid(&error))?;
    let nodes = nodes_of(&mut fields)?;
    fields.finish().map_err(|error| invalid(&error))?;
    Ok(nodes)
}

/// The nodes that a request names.
pub(super) fn nodes_of(fields: &mut Fields) -> Result<BTreeMap<NodeId, Addresses>, Refusal> {
    let invalid = |error: &dyn std::fmt::Display| Refusal::invalid(error.to_string());
    let nodes = fields.opt_object("nodes").map_err(|error| invalid(&error))?;
    let nodes = nodes.ok_or_else(|| {
        Refusal::invalid("nodes is required: {\"nodes\": {\"1\": {\"peer\": ADDRESS, \"client\": ADDRESS}}}")
    })?;
    let mut parsed = BTreeMap::new();
    for (id, addresses) in nodes.into_rest() {
        let number = crate::id::parse_decimal(&id).filter(|id| *id > 0);
        let number = number.ok_or_else(|| Refusal::invalid("nodes: a node's id is a number from 1 on"))?;
        let mut fields = Fields::at(format!("nodes.{id}"), addresses).map_err(|error| invalid(&error))?;
        let peer = fields.string("peer").map_err(|error| invalid(&error))?;
        let client = fields.string("client").map_err(|error| invalid(&error))?;
        fields.finish().map_err(|error| invalid(&error))?;
        parsed.insert(number, Addresses { peer, client });
    }
    Ok(parsed)
}
