//! Who calls: a tenant, or nobody's tenant, with operations and permissions.

use std::{borrow::Cow, sync::Arc};

use super::{
    jwt::Proof,
    permission::{Method, Needs, Permissions},
};
use crate::{
    id::{Operation, Tenant},
    limits,
    records::{command::Command, token},
    refusal::{Code, Refusal},
};

/// The tenant of an open node's requests that name none.
pub const OPEN_TENANT: &str = "default";
/// The actor of an open node's requests that name none.
const OPEN_ACTOR: &str = "open";

/// The refusal of a credential that is missing, malformed, unknown, wrong or ended: one text for all.
pub fn unauthenticated() -> Refusal {
    token::unauthenticated()
}

/// The refusal of another tenant, operation or permission: one text for all.
pub fn forbidden() -> Refusal {
    Refusal::new(Code::Forbidden, "the credential does not allow this call; ask your administrator for one that does")
}

/// Whose names a caller may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An open node: the tenant of a request is taken as given.
    Open,
    /// This tenant alone.
    Tenant(Tenant),
    /// No tenant's: the cluster itself.
    Cluster,
}

/// Who calls, and what it may do. Only an [`Authenticator`](super::Authenticator) makes one.
#[derive(Clone, Debug)]
pub struct Caller {
    pub(super) scope: Scope,
    pub(super) actor: Arc<str>,
    pub(super) operations: Operations,
    pub(super) permissions: Permissions,
    /// None on an open node.
    pub(super) credential: Option<Credential>,
}

/// Where a caller came from, so that an open stream can be judged again.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credential {
    /// A token of the token file: its digest, and the reading of the file that it was found in.
    File { digest: [u8; 32], reading: u64 },
    /// A token of the log: its id.
    Log([u8; 10]),
    /// A certificate, for as long as its connection stands.
    Certificate,
    /// A JSON Web Token.
    Jwt(Proof),
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credential::File { reading, .. } => write!(f, "Credential(reading {reading})"),
            Credential::Certificate => f.write_str("Credential(certificate)"),
            Credential::Jwt(_) => f.write_str("Credential(JWT)"),
            Credential::Log(id) => write!(f, "Credential({})", super::token::id_text(id)),
        }
    }
}

impl Caller {
    /// The caller of an open node: everything, for every tenant.
    pub fn open() -> Self {
        Self {
            scope: Scope::Open,
            actor: OPEN_ACTOR.into(),
            operations: Operations::any(),
            permissions: Permissions::ALL,
            credential: None,
        }
    }

    /// Whose names it may use.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The token of the log that it has shown, if it was one.
    pub fn token_id(&self) -> Option<[u8; 10]> {
        match self.credential {
            Some(Credential::Log(id)) => Some(id),
            Some(Credential::File { .. } | Credential::Certificate | Credential::Jwt(_)) | None => None,
        }
    }

    /// A command in its name: one that counts only while its token does.
    pub fn commands(&self, command: Command) -> Command {
        match self.token_id() {
            Some(id) => command.by_token(id),
            None => command,
        }
    }

    /// The tenant of a call about tokens: the own one, or whichever is named by whoever may do so. None: all tenants, and
    /// the cluster's own.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn authorize_tokens(&self, method: Method, named: Option<&Tenant>) -> Result<Option<Tenant>, Refusal> {
        self.permit(method)?;
        match &self.scope {
            Scope::Open | Scope::Cluster => Ok(named.cloned()),
            Scope::Tenant(_) => self.tenant(named).map(Some),
        }
    }

    /// Whether it may give somebody else these permissions for these operations: nobody gives more than they have.
    pub fn may_give(&self, operations: &Operations, permissions: Permissions) -> bool {
        match &self.scope {
            Scope::Open | Scope::Cluster => true,
            Scope::Tenant(_) => self.permissions.cover(permissions) && self.operations.cover(operations),
        }
    }

    /// Its name in history and audit: what a request says on an open node, else the credential's own.
    pub fn actor<'a>(&'a self, named: Option<&'a str>) -> &'a str {
        match self.scope {
            Scope::Open => named.unwrap_or(&self.actor),
            Scope::Tenant(_) | Scope::Cluster => &self.actor,
        }
    }

    /// Refuses a method that this caller may not call at all. Items of a batch or session are judged each by itself.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn permit(&self, method: Method) -> Result<(), Refusal> {
        let allowed = match method.needs() {
            Needs::Nothing | Needs::Credential => true,
            Needs::AnyOf(needed) => self.permissions.meets(needed),
            Needs::FirstContact => self.permissions.has(super::Permission::Cluster),
        };
        allowed.then_some(()).ok_or_else(forbidden)
    }

    /// The tenant of a request that names this one, or none.
    ///
    /// # Errors
    /// `forbidden` where it is another one, or where this caller has none.
    pub fn tenant(&self, named: Option<&Tenant>) -> Result<Tenant, Refusal> {
        match (&self.scope, named) {
            (Scope::Open, Some(named)) => Ok(named.clone()),
            (Scope::Open, None) => Ok(Tenant::parse(OPEN_TENANT).expect("a valid tenant")),
            (Scope::Tenant(own), None) => Ok(own.clone()),
            (Scope::Tenant(own), Some(named)) if own == named => Ok(own.clone()),
            (Scope::Tenant(_), Some(_)) | (Scope::Cluster, _) => Err(forbidden()),
        }
    }

    /// Whether its patterns allow this operation. A list shows exactly what is allowed.
    pub fn allows(&self, operation: &Operation) -> bool {
        self.operations.allow(operation.as_str())
    }

    /// Whether its patterns allow every operation: what concerns a tenant as a whole needs this.
    pub fn allows_every_operation(&self) -> bool {
        self.operations.allow_every()
    }

    /// Permission, tenant and operation of one call on one record, in this order.
    ///
    /// # Errors
    /// `forbidden`, with one text for all three.
    pub fn authorize(&self, method: Method, tenant: Option<&Tenant>, operation: &Operation) -> Result<Tenant, Refusal> {
        self.permit(method)?;
        let tenant = self.tenant(tenant)?;
        if self.allows(operation) { Ok(tenant) } else { Err(forbidden()) }
    }

    /// Permission and tenant of a call on a policy, of one operation or of the whole tenant.
    ///
    /// # Errors
    /// `forbidden`; for the whole tenant too where the patterns don't allow every operation.
    pub fn authorize_policy(
        &self,
        method: Method,
        tenant: Option<&Tenant>,
        operation: Option<&Operation>,
    ) -> Result<Tenant, Refusal> {
        self.permit(method)?;
        let tenant = self.tenant(tenant)?;
        let allowed = operation.map_or_else(|| self.allows_every_operation(), |operation| self.allows(operation));
        if allowed { Ok(tenant) } else { Err(forbidden()) }
    }
}

/// Why a pattern is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Empty or too long.
    #[error("a pattern has 1 to {} bytes", limits::OPERATION_BYTES_MAX)]
    Length,
    /// Not printable ASCII.
    #[error("a pattern is printable ASCII (0x20 to 0x7E)")]
    Character,
    /// None, or too many.
    #[error("give 1 to {} patterns", limits::OPERATION_PATTERNS_MAX)]
    Count,
}

/// Patterns of operations. A `*` in the last place stands for any rest, also none; everything else is itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operations(Arc<[Pattern]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exact(String),
    Prefix(String),
}

impl Operations {
    /// `["*"]`.
    pub fn any() -> Self {
        Self(Arc::new([Pattern::Prefix(String::new())]))
    }

    /// Parses the patterns.
    ///
    /// # Errors
    /// [`PatternError`] where there are none or too many, or one is too long or not printable.
    pub fn parse<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, PatternError> {
        let parsed = patterns.into_iter().map(Pattern::parse).collect::<Result<Vec<_>, _>>()?;
        if parsed.is_empty() || parsed.len() > limits::OPERATION_PATTERNS_MAX {
            return Err(PatternError::Count);
        }
        Ok(Self(parsed.into()))
    }

    /// Whether one of them fits.
    pub fn allow(&self, operation: &str) -> bool {
        self.0.iter().any(|pattern| match pattern {
            Pattern::Exact(whole) => whole == operation,
            Pattern::Prefix(start) => operation.starts_with(start.as_str()),
        })
    }

    fn allow_every(&self) -> bool {
        self.0.iter().any(|pattern| matches!(pattern, Pattern::Prefix(start) if start.is_empty()))
    }

    /// Whether everything that the others allow is allowed by these.
    fn cover(&self, others: &Self) -> bool {
        let covers = |one: &Pattern, other: &Pattern| match (one, other) {
            (Pattern::Exact(own), Pattern::Exact(other)) => own == other,
            (Pattern::Exact(_), Pattern::Prefix(_)) => false,
            (Pattern::Prefix(own), Pattern::Exact(other) | Pattern::Prefix(other)) => other.starts_with(own.as_str()),
        };
        others.0.iter().all(|other| self.0.iter().any(|own| covers(own, other)))
    }

    /// As they were written.
    pub fn texts(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.0.iter().map(|pattern| match pattern {
            Pattern::Exact(whole) => Cow::Borrowed(whole.as_str()),
            Pattern::Prefix(start) => Cow::Owned(format!("{start}*")),
        })
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() || text.len() > limits::OPERATION_BYTES_MAX {
            return Err(PatternError::Length);
        }
        if !text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
            return Err(PatternError::Character);
        }
        Ok(match text.strip_suffix('*') {
            Some(start) => Pattern::Prefix(start.to_owned()),
            None => Pattern::Exact(text.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Permission;

    fn caller(scope: Scope, operations: &[&str], permissions: &[Permission]) -> Caller {
        Caller {
            scope,
            actor: "file:1".into(),
            operations: Operations::parse(operations.iter().copied()).unwrap(),
            permissions: Permissions::of(permissions),
            credential: None,
        }
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::parse(name).unwrap()
    }

    fn operation(name: &str) -> Operation {
        Operation::parse(name).unwrap()
    }

    #[test]
    fn a_star_in_the_last_place_stands_for_any_rest() {
        let patterns = Operations::parse(["POST /v1/*", "a*b", "x"]).unwrap();
        for allowed in ["POST /v1/", "POST /v1/charges", "a*b", "x"] {
            assert!(patterns.allow(allowed), "{allowed}");
        }
        for other in ["POST /v1", "post /v1/charges", "a-b", "a*b*", "xx", ""] {
            assert!(!patterns.allow(other), "{other}");
        }
        assert!(Operations::parse(["*"]).unwrap().allow("anything"));
        assert!(Operations::parse(["**"]).unwrap().allow("*x") && !Operations::parse(["**"]).unwrap().allow("x"));
        assert_eq!(Operations::parse([]), Err(PatternError::Count));
        assert_eq!(Operations::parse([""]), Err(PatternError::Length));
        assert_eq!(Operations::parse(["é"]), Err(PatternError::Character));
        assert_eq!(Operations::parse(vec!["x"; 33]), Err(PatternError::Count));
    }

    #[test]
    fn a_tenant_stays_inside_its_own_names() {
        let acme = caller(Scope::Tenant(tenant("acme")), &["POST *"], &[Permission::Claim]);
        let charge = operation("POST /v1/charges");
        assert_eq!(acme.authorize(Method::Claim, None, &charge).unwrap(), tenant("acme"));
        assert_eq!(acme.authorize(Method::Claim, Some(&tenant("acme")), &charge).unwrap(), tenant("acme"));
        let refusals = [
            acme.authorize(Method::Claim, Some(&tenant("other")), &charge).unwrap_err(),
            acme.authorize(Method::Claim, None, &operation("GET /")).unwrap_err(),
            acme.authorize(Method::Resolve, None, &charge).unwrap_err(),
        ];
        assert!(refusals.iter().all(|refusal| *refusal == forbidden()));
    }

    #[test]
    fn a_cluster_token_claims_and_reads_no_record() {
        let cluster = caller(Scope::Cluster, &["*"], &[Permission::Cluster]);
        for method in [Method::Claim, Method::Get, Method::List, Method::SetPolicy] {
            assert!(cluster.permit(method).is_err(), "{method:?}");
        }
        assert!(cluster.tenant(None).is_err() && cluster.tenant(Some(&tenant("acme"))).is_err());
        assert!(cluster.permit(Method::Init).is_ok() && cluster.permit(Method::Snapshot).is_ok());
    }

    #[test]
    fn a_policy_of_the_whole_tenant_needs_every_operation() {
        let some = caller(Scope::Tenant(tenant("acme")), &["POST *"], &[Permission::Administer]);
        let every = caller(Scope::Tenant(tenant("acme")), &["*"], &[Permission::Administer]);
        let charge = operation("POST /v1/charges");
        assert!(some.authorize_policy(Method::SetPolicy, None, Some(&charge)).is_ok());
        assert!(some.authorize_policy(Method::SetPolicy, None, None).is_err());
        assert!(every.authorize_policy(Method::SetPolicy, None, None).is_ok());
    }

    #[test]
    fn an_open_node_takes_the_tenant_and_the_actor_as_given() {
        let open = Caller::open();
        assert_eq!(open.tenant(None).unwrap(), tenant("default"));
        assert_eq!(open.tenant(Some(&tenant("acme"))).unwrap(), tenant("acme"));
        assert_eq!((open.actor(Some("ana@example")), open.actor(None)), ("ana@example", "open"));
        let file = caller(Scope::Tenant(tenant("acme")), &["*"], &[Permission::Reconcile]);
        assert_eq!(file.actor(Some("ana@example")), "file:1");
    }
}
