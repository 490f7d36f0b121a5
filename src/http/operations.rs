//! What operators ask of the cluster: `POST /v1/admin/VERB` on their port. The shape of each request is judged here; what
//! comes of it is the node's affair. Any node takes them: what only the leader can do is asked of it.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    routing::post,
};
use http::{HeaderValue, Response, header};

use super::problem;
use crate::{
    auth::{Authenticator, Caller, Method, TokenText, permission::Needs},
    id::{NodeId, Tenant, Uuid, parse_decimal},
    json::{Fields, Json},
    limits,
    net::Shown,
    refusal::{Code, Refusal},
};

/// Where a member is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddresses {
    /// By other members.
    pub peer: String,
    /// By clients.
    pub client: String,
}

/// Something that an operator asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Forms the cluster, once.
    Init {
        /// Of exactly these members.
        nodes: BTreeMap<NodeId, MemberAddresses>,
        /// With this token, which may do what concerns the cluster.
        first_token: Option<TokenText>,
    },
    /// Adds a learner.
    Add(NodeId, MemberAddresses),
    /// A learner votes from now on.
    Promote(NodeId),
    /// A member leaves for good.
    Remove {
        /// Which.
        node: NodeId,
        /// Although too few live members are left.
        force: bool,
    },
    /// A member goes on with another disk.
    Replace {
        /// Which.
        node: NodeId,
        /// Where it is from now on, where that changes.
        at: Option<MemberAddresses>,
        /// Although its old disk was seen a moment ago.
        force: bool,
    },
    /// Another member leads.
    Transfer(NodeId),
    /// The doubt of a restore is over.
    EndDoubt,
    /// A snapshot, now; of this node, where none is named.
    Snapshot(Option<NodeId>),
    /// Which keys there are, and what still hangs on older ones.
    KeysStatus,
    /// Another key wraps root keys: this one, else the highest that there is.
    RotateKeys(Option<u32>),
    /// New data keys: of this tenant, else of all and of the cluster itself.
    RotateDataKeys(Option<Tenant>),
    /// The cluster is sealed from now on.
    EnableKeys,
    /// A tenant is closed for good and its keys are destroyed.
    Shred(Shred),
    /// How far that has come.
    TenantStatus(Tenant),
}

/// The end of a tenant, as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shred {
    /// The tenant.
    pub tenant: Tenant,
    /// Why.
    pub reason: String,
    /// The request, for repeats.
    pub request_id: Option<Uuid>,
    /// Older copies of what was never sealed stay readable, and whoever asks knows.
    pub older_copies_stay: bool,
}

impl Operation {
    /// The row of the table of permissions.
    pub fn method(&self) -> Method {
        match self {
            Operation::Init { .. } => Method::Init,
            Operation::Add(..) => Method::AddMember,
            Operation::Promote(_) => Method::PromoteMember,
            Operation::Remove { .. } => Method::RemoveMember,
            Operation::Replace { .. } => Method::ReplaceMember,
            Operation::Transfer(_) => Method::TransferLeadership,
            Operation::EndDoubt => Method::EndDoubt,
            Operation::Snapshot(_) => Method::Snapshot,
            Operation::KeysStatus => Method::KeysStatus,
            Operation::RotateKeys(_) | Operation::RotateDataKeys(_) => Method::RotateKeys,
            Operation::EnableKeys => Method::EnableKeys,
            Operation::Shred(_) => Method::ShredTenant,
            Operation::TenantStatus(_) => Method::TenantStatus,
        }
    }

    /// The request of this method with this body. An empty body is an empty object.
    ///
    /// # Errors
    /// `invalid_argument`, naming the field.
    fn parse(method: Method, body: &[u8]) -> Result<Self, Refusal> {
        let text = if body.trim_ascii().is_empty() { b"{}" } else { body };
        let json = Json::parse(text).map_err(invalid)?;
        let mut fields = Fields::new(json).map_err(invalid)?;
        let operation = match method {
            Method::Init => {
                let bad = || Refusal::invalid("token is none, as a new one is written");
                let text = fields.opt_string_or_empty("token").map_err(invalid)?.filter(|text| !text.is_empty());
                let first_token = text.map(|text| TokenText::parse(text.as_bytes()).ok_or_else(bad)).transpose()?;
                Operation::Init { nodes: founders(&mut fields)?, first_token }
            }
            Method::AddMember => {
                let node = node_id(&mut fields, "id")?;
                Operation::Add(node, addresses(&mut fields)?)
            }
            Method::PromoteMember => Operation::Promote(node_id(&mut fields, "id")?),
            Method::RemoveMember => {
                Operation::Remove { node: node_id(&mut fields, "id")?, force: flag(&mut fields, "force")? }
            }
            Method::ReplaceMember => replacement(&mut fields)?,
            Method::TransferLeadership => Operation::Transfer(node_id(&mut fields, "id")?),
            Method::EndDoubt => Operation::EndDoubt,
            Method::Snapshot => Operation::Snapshot(opt_node_id(&mut fields, "id")?),
            Method::KeysStatus => Operation::KeysStatus,
            Method::RotateKeys => rotation(&mut fields)?,
            Method::EnableKeys => Operation::EnableKeys,
            Method::ShredTenant => Operation::Shred(shred(&mut fields)?),
            Method::TenantStatus => Operation::TenantStatus(tenant(&mut fields, "tenant")?),
            other => return Err(Refusal::new(Code::NotFound, format!("{} is not asked for here", other.as_str()))),
        };
        fields.finish().map_err(invalid)?;
        Ok(operation)
    }
}

/// A node that can be told what to do.
pub trait Operated: Send + Sync + 'static {
    /// Does it, and answers what is so now.
    fn operate(&self, caller: Caller, operation: Operation) -> impl Future<Output = Result<Json, Refusal>> + Send;
}

struct Operators<O> {
    node: Arc<O>,
    auth: Arc<Authenticator>,
}

impl<O> Clone for Operators<O> {
    fn clone(&self) -> Self {
        Self { node: Arc::clone(&self.node), auth: Arc::clone(&self.auth) }
    }
}

/// Everything that can be asked for.
const METHODS: [Method; 13] = [
    Method::Init,
    Method::AddMember,
    Method::PromoteMember,
    Method::RemoveMember,
    Method::ReplaceMember,
    Method::TransferLeadership,
    Method::EndDoubt,
    Method::Snapshot,
    Method::KeysStatus,
    Method::RotateKeys,
    Method::EnableKeys,
    Method::ShredTenant,
    Method::TenantStatus,
];

/// The routes of everything that can be asked for.
pub fn routes<O: Operated>(node: Arc<O>, auth: Arc<Authenticator>) -> Router {
    let mut router = Router::new();
    for method in METHODS {
        let path = method.route().strip_prefix("POST ").expect("what operators ask for is posted");
        let handle = move |State(operators): State<Operators<O>>, request: Request| async move {
            match operators.answer(method, request).await {
                Ok(json) => {
                    let mut response = Response::new(Body::from(json.to_text()));
                    let kind = HeaderValue::from_static("application/json");
                    response.headers_mut().insert(header::CONTENT_TYPE, kind);
                    response
                }
                Err(refusal) => problem::problem(&refusal),
            }
        };
        router = router.route(path, post(handle).fallback(async || problem::method_not_allowed("POST")));
    }
    router.with_state(Operators { node, auth })
}

impl<O: Operated> Operators<O> {
    async fn answer(&self, method: Method, request: Request) -> Result<Json, Refusal> {
        let caller = self.admit(method, &request)?;
        let body = axum::body::to_bytes(request.into_body(), limits::REQUEST_BYTES_MAX)
            .await
            .map_err(|_| Refusal::new(Code::RequestTooLarge, "the body is too large or broke off"))?;
        self.node.operate(caller, Operation::parse(method, &body)?).await
    }

    fn admit(&self, method: Method, request: &Request) -> Result<Caller, Refusal> {
        if method.needs() == Needs::FirstContact && first_contact(request).is_some() {
            return Ok(Caller::open());
        }
        let caller = self.auth.admit(request.headers(), request.extensions())?;
        caller.permit(method)?;
        Ok(caller)
    }
}

/// The certificate that a request's connection has shown.
fn shown(request: &Request) -> Option<&Shown> {
    request.extensions().get::<Arc<Shown>>().map(|shown| &**shown)
}

/// Who forms a cluster, where that needs no credential, because there is nothing yet that could have given one: somebody on
/// this machine, or whoever has shown a certificate of the operators' authority.
pub fn first_contact(request: &Request) -> Option<String> {
    if let Some(shown) = shown(request) {
        let name = shown.uris.first().or(shown.names.first()).map_or("", String::as_str);
        return Some(format!("certificate:{name}").chars().take(limits::ACTOR_BYTES_MAX).collect());
    }
    let is_near = request.extensions().get::<SocketAddr>().is_some_and(|peer| peer.ip().is_loopback());
    is_near.then(|| "loopback".to_owned())
}

fn invalid(error: impl std::fmt::Display) -> Refusal {
    Refusal::invalid(error.to_string())
}

/// The nodes that a cluster is to be formed of: `nodes` of a request.
///
/// # Errors
/// `invalid_argument`, naming the field.
pub fn founders(fields: &mut Fields) -> Result<BTreeMap<NodeId, MemberAddresses>, Refusal> {
    let nodes = fields.opt_object("nodes").map_err(invalid)?.ok_or_else(|| {
        Refusal::invalid("nodes is required: {\"nodes\": {\"1\": {\"peer\": ADDRESS, \"client\": ADDRESS}}}")
    })?;
    let mut parsed = BTreeMap::new();
    for (id, member) in nodes.into_rest() {
        let node = parse_decimal(&id).filter(|id| *id > 0);
        let node = node.ok_or_else(|| Refusal::invalid("nodes: a node's id is a number from 1 on"))?;
        let mut fields = Fields::at(format!("nodes.{id}"), member).map_err(invalid)?;
        parsed.insert(node, addresses(&mut fields)?);
        fields.finish().map_err(invalid)?;
    }
    Ok(parsed)
}

fn replacement(fields: &mut Fields) -> Result<Operation, Refusal> {
    let node = node_id(fields, "id")?;
    let force = flag(fields, "force")?;
    let at = match fields.opt_object("node").map_err(invalid)? {
        Some(mut own) => {
            if node_id(&mut own, "id")? != node {
                return Err(Refusal::invalid("node.id: a replaced node keeps its id"));
            }
            let at = addresses(&mut own)?;
            own.finish().map_err(invalid)?;
            Some(at)
        }
        None => None,
    };
    Ok(Operation::Replace { node, at, force })
}

fn tenant(fields: &mut Fields, name: &'static str) -> Result<Tenant, Refusal> {
    let text = fields.string(name).map_err(invalid)?;
    Tenant::parse(&text).map_err(|error| Refusal::invalid(format!("{name}: {error}")))
}

fn opt_text(fields: &mut Fields, name: &'static str) -> Result<Option<String>, Refusal> {
    Ok(fields.opt_string_or_empty(name).map_err(invalid)?.filter(|text| !text.is_empty()))
}

fn rotation(fields: &mut Fields) -> Result<Operation, Refusal> {
    let to = fields.opt_u32("to").map_err(invalid)?;
    let is_data = flag(fields, "data")?;
    let of = opt_text(fields, "tenant")?.map(|text| Tenant::parse(&text));
    let of = of.transpose().map_err(|error| Refusal::invalid(format!("tenant: {error}")))?;
    match (to, is_data, of) {
        (None, true, of) => Ok(Operation::RotateDataKeys(of)),
        (Some(0), false, _) => Err(Refusal::invalid("to: a key's id is a number from 1 on")),
        (to, false, None) => Ok(Operation::RotateKeys(to)),
        (_, false, Some(_)) => Err(Refusal::invalid("tenant goes with data: true")),
        (Some(_), true, _) => Err(Refusal::invalid("to and data exclude each other")),
    }
}

fn shred(fields: &mut Fields) -> Result<Shred, Refusal> {
    let tenant = tenant(fields, "tenant")?;
    if fields.string("confirm").map_err(invalid)? != tenant.as_str() {
        return Err(Refusal::invalid("confirm must be the tenant's name again: there is no undo"));
    }
    let reason = fields.string("reason").map_err(invalid)?;
    if reason.is_empty() || reason.len() > limits::STATEMENT_BYTES_MAX {
        return Err(Refusal::invalid(format!("reason has 1 to {} bytes", limits::STATEMENT_BYTES_MAX)));
    }
    let request_id = opt_text(fields, "request_id")?.map(|text| {
        let parsed = Uuid::parse_hyphenated(&text);
        parsed.ok_or_else(|| Refusal::invalid("request_id is a UUID"))
    });
    let older_copies_stay = flag(fields, "older_copies_stay")?;
    Ok(Shred { tenant, reason, request_id: request_id.transpose()?, older_copies_stay })
}

fn addresses(fields: &mut Fields) -> Result<MemberAddresses, Refusal> {
    let mut address = |name: &'static str| {
        let text = fields.string(name).map_err(invalid)?;
        let is_address = text.len() <= limits::ADVERTISED_BYTES_MAX
            && text
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        if is_address { Ok(text) } else { Err(Refusal::invalid(format!("{name} must be HOST:PORT"))) }
    };
    Ok(MemberAddresses { peer: address("peer")?, client: address("client")? })
}

fn opt_node_id(fields: &mut Fields, name: &'static str) -> Result<Option<NodeId>, Refusal> {
    match fields.opt_u32(name).map_err(invalid)? {
        Some(0) => Err(Refusal::invalid(format!("{name}: a node's id is a number from 1 on"))),
        found => Ok(found.map(NodeId::from)),
    }
}

fn node_id(fields: &mut Fields, name: &'static str) -> Result<NodeId, Refusal> {
    opt_node_id(fields, name)?.ok_or_else(|| Refusal::invalid(format!("{name} is required: the number of a node")))
}

fn flag(fields: &mut Fields, name: &'static str) -> Result<bool, Refusal> {
    Ok(fields.opt_bool(name).map_err(invalid)?.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: Method, body: &str) -> Result<Operation, Refusal> {
        Operation::parse(method, body.as_bytes())
    }

    fn acme() -> Tenant {
        Tenant::parse("acme").unwrap()
    }

    fn at(peer: &str, client: &str) -> MemberAddresses {
        MemberAddresses { peer: peer.to_owned(), client: client.to_owned() }
    }

    #[test]
    fn every_request_has_its_shape() {
        let cases = [
            (
                Method::Init,
                r#"{"nodes":{"2":{"peer":"b:2","client":"b:1"},"1":{"peer":"a:2","client":"a:1"}}}"#,
                Operation::Init {
                    nodes: BTreeMap::from([(1, at("a:2", "a:1")), (2, at("b:2", "b:1"))]),
                    first_token: None,
                },
            ),
            (Method::AddMember, r#"{"id":4,"peer":"d:2","client":"d:1"}"#, Operation::Add(4, at("d:2", "d:1"))),
            (Method::PromoteMember, r#"{"id":4}"#, Operation::Promote(4)),
            (Method::RemoveMember, r#"{"id":4}"#, Operation::Remove { node: 4, force: false }),
            (Method::RemoveMember, r#"{"id":4,"force":true}"#, Operation::Remove { node: 4, force: true }),
            (Method::ReplaceMember, r#"{"id":2}"#, Operation::Replace { node: 2, at: None, force: false }),
            (
                Method::ReplaceMember,
                r#"{"id":2,"node":{"id":2,"peer":"e:2","client":"e:1"},"force":true}"#,
                Operation::Replace { node: 2, at: Some(at("e:2", "e:1")), force: true },
            ),
            (Method::TransferLeadership, r#"{"id":3}"#, Operation::Transfer(3)),
            (Method::EndDoubt, "", Operation::EndDoubt),
            (Method::EndDoubt, "{}", Operation::EndDoubt),
            (Method::Snapshot, "", Operation::Snapshot(None)),
            (Method::Snapshot, r#"{"id":2}"#, Operation::Snapshot(Some(2))),
            (Method::KeysStatus, "", Operation::KeysStatus),
            (Method::RotateKeys, "{}", Operation::RotateKeys(None)),
            (Method::RotateKeys, r#"{"to":7}"#, Operation::RotateKeys(Some(7))),
            (Method::RotateKeys, r#"{"data":true}"#, Operation::RotateDataKeys(None)),
            (Method::RotateKeys, r#"{"data":true,"tenant":"acme"}"#, Operation::RotateDataKeys(Some(acme()))),
            (Method::EnableKeys, "", Operation::EnableKeys),
            (Method::TenantStatus, r#"{"tenant":"acme"}"#, Operation::TenantStatus(acme())),
            (
                Method::ShredTenant,
                r#"{"tenant":"acme","confirm":"acme","reason":"contract ended","older_copies_stay":true}"#,
                Operation::Shred(Shred {
                    tenant: acme(),
                    reason: "contract ended".to_owned(),
                    request_id: None,
                    older_copies_stay: true,
                }),
            ),
        ];
        for (method, body, expected) in cases {
            assert_eq!(parse(method, body).unwrap(), expected, "{method:?} {body}");
            assert_eq!(expected.method(), method);
        }
    }

    #[test]
    fn what_is_malformed_is_refused_by_its_field() {
        for (method, body, field) in [
            (Method::Init, "{}", "nodes"),
            (Method::Init, r#"{"nodes":{"0":{"peer":"a:1","client":"a:2"}}}"#, "nodes"),
            (Method::Init, r#"{"nodes":{"1":{"peer":"a:1"}}}"#, "client"),
            (Method::AddMember, r#"{"id":4,"peer":"d","client":"d:1"}"#, "peer"),
            (Method::AddMember, r#"{"peer":"d:2","client":"d:1"}"#, "id"),
            (Method::PromoteMember, "{}", "id"),
            (Method::PromoteMember, r#"{"id":0}"#, "id"),
            (Method::PromoteMember, r#"{"id":1,"now":true}"#, "now"),
            (Method::RemoveMember, r#"{"id":1,"force":1}"#, "force"),
            (Method::ReplaceMember, r#"{"id":2,"node":{"id":3,"peer":"a:1","client":"a:2"}}"#, "node.id"),
            (Method::EndDoubt, "[]", "object"),
            (Method::RotateKeys, r#"{"to":0}"#, "to"),
            (Method::RotateKeys, r#"{"to":2,"data":true}"#, "data"),
            (Method::RotateKeys, r#"{"tenant":"acme"}"#, "tenant"),
            (Method::TenantStatus, r#"{"tenant":"Acme"}"#, "tenant"),
            (Method::ShredTenant, r#"{"tenant":"acme","reason":"r"}"#, "confirm"),
            (Method::ShredTenant, r#"{"tenant":"acme","confirm":"acm","reason":"r"}"#, "confirm"),
            (Method::ShredTenant, r#"{"tenant":"acme","confirm":"acme"}"#, "reason"),
            (Method::ShredTenant, r#"{"tenant":"acme","confirm":"acme","reason":"r","request_id":"1"}"#, "request_id"),
        ] {
            let refused = parse(method, body).unwrap_err();
            assert_eq!(refused.code, Code::InvalidArgument, "{body}");
            assert!(refused.detail.contains(field), "{body}: {}", refused.detail);
        }
    }

    #[test]
    fn every_verb_of_the_table_can_be_asked_for() {
        let verbs = Method::ALL.iter().filter(|method| method.route().starts_with("POST /v1/admin/"));
        // These two are streams, and have a door of their own.
        for method in verbs.filter(|method| !matches!(method, Method::Backup | Method::Restore)) {
            assert!(METHODS.contains(method), "{method:?}");
        }
    }
}
