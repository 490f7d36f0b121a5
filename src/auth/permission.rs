//! The one table of permissions: every RPC and every route → what it needs. What is not in it is denied.

use std::fmt;

/// What a credential may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Own records: claim, and everything that needs the fence. A replay is the caller's own outcome.
    Claim,
    /// List, investigate and settle records.
    Reconcile,
    /// See recorded outcomes without claiming.
    ReadOutcomes,
    /// Forget, policies and tokens of its tenant.
    Administer,
    /// The cluster itself, and no tenant's records.
    Cluster,
}

impl Permission {
    /// Every permission, in the order of their bits.
    pub const ALL: [Permission; 5] = [
        Permission::Claim,
        Permission::Reconcile,
        Permission::ReadOutcomes,
        Permission::Administer,
        Permission::Cluster,
    ];

    /// The word in files and on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Permission::Claim => "claim",
            Permission::Reconcile => "reconcile",
            Permission::ReadOutcomes => "read_outcomes",
            Permission::Administer => "administer",
            Permission::Cluster => "cluster",
        }
    }

    /// The permission of this word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.as_str() == text)
    }

    const fn bit(self) -> u8 {
        match self {
            Permission::Claim => 1,
            Permission::Reconcile => 1 << 1,
            Permission::ReadOutcomes => 1 << 2,
            Permission::Administer => 1 << 3,
            Permission::Cluster => 1 << 4,
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Permissions(u8);

impl Permissions {
    /// None.
    pub const NONE: Permissions = Permissions(0);
    /// All five: what an open node gives.
    pub const ALL: Permissions = Permissions::of(&Permission::ALL);

    /// Exactly these.
    pub const fn of(permissions: &[Permission]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < permissions.len() {
            bits |= permissions[at].bit();
            at += 1;
        }
        Self(bits)
    }

    /// Whether this one is among them.
    pub fn has(self, permission: Permission) -> bool {
        self.0 & permission.bit() != 0
    }

    /// Whether they have one in common.
    pub fn meets(self, other: Permissions) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether all of the other are among them.
    pub fn cover(self, other: Permissions) -> bool {
        other.0 & !self.0 == 0
    }

    /// As bits 0 to 4.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The permissions of these bits; others are left out.
    pub fn of_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Each of them, in the order of their bits.
    pub fn each(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.into_iter().filter(move |permission| self.has(*permission))
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a method needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing, not even a credential.
    Nothing,
    /// Any good credential; each item inside is judged as the call it is.
    Credential,
    /// A credential with one of these.
    AnyOf(Permissions),
    /// Forming the cluster: from loopback, or with `cluster`.
    FirstContact,
}

use Permission::{Administer as A, Claim as C, Cluster as K, ReadOutcomes as O, Reconcile as R};

const fn any(permissions: &[Permission]) -> Needs {
    Needs::AnyOf(Permissions::of(permissions))
}

macro_rules! methods {
    ($($Name:ident $grpc:literal $route:literal $needs:expr;)*) => {
        /// Everything that a node can be asked for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Method { $(
            #[doc = concat!("`", $grpc, "` · `", $route, "`")]
            $Name,
        )* }

        impl Method {
            /// Every method, in the table's order.
            pub const ALL: &'static [Method] = &[$(Method::$Name,)*];

            /// What it needs.
            pub fn needs(self) -> Needs {
                match self { $(Method::$Name => $needs,)* }
            }

            /// The path of its RPC; empty where there is none.
            pub fn grpc(self) -> &'static str {
                match self { $(Method::$Name => $grpc,)* }
            }

            /// Its HTTP method and path; empty where there is none.
            pub fn route(self) -> &'static str {
                match self { $(Method::$Name => $route,)* }
            }

            /// Its name in metrics and logs.
            pub fn as_str(self) -> &'static str {
                match self { $(Method::$Name => stringify!($Name),)* }
            }
        }
    };
}

methods! {
    Claim "/semel.v1.Records/Claim" "POST /v1/claim" any(&[C]);
    Begin "/semel.v1.Records/Begin" "POST /v1/begin" any(&[C]);
    Renew "/semel.v1.Records/Renew" "POST /v1/renew" any(&[C]);
    Checkpoint "/semel.v1.Records/Checkpoint" "POST /v1/checkpoint" any(&[C]);
    Complete "/semel.v1.Records/Complete" "POST /v1/complete" any(&[C]);
    Release "/semel.v1.Records/Release" "POST /v1/release" any(&[C]);
    Suspend "/semel.v1.Records/Suspend" "POST /v1/suspend" any(&[C]);
    Get "/semel.v1.Records/Get" "POST /v1/get" any(&[C, R, O, A]);
    // Not a call of its own: what a get with `with_outcome` needs besides.
    GetOutcome "" "" any(&[O]);
    Batch "/semel.v1.Records/Batch" "POST /v1/batch" Needs::Credential;
    Session "/semel.v1.Records/Session" "" Needs::Credential;
    List "/semel.v1.Records/List" "POST /v1/list" any(&[R, A]);
    History "/semel.v1.Records/History" "POST /v1/history" any(&[R, A]);
    WatchIndeterminate "/semel.v1.Records/WatchIndeterminate" "GET /v1/watch" any(&[R, A]);
    Investigate "/semel.v1.Records/Investigate" "POST /v1/investigate" any(&[R]);
    Resolve "/semel.v1.Records/Resolve" "POST /v1/resolve" any(&[R]);
    Forget "/semel.v1.Records/Forget" "POST /v1/forget" any(&[A]);
    GetPolicy "/semel.v1.Policies/Get" "POST /v1/policy/get" any(&[A]);
    SetPolicy "/semel.v1.Policies/Set" "POST /v1/policy/set" any(&[A]);
    CreateToken "/semel.v1.Tokens/Create" "POST /v1/token/create" any(&[A, K]);
    ListTokens "/semel.v1.Tokens/List" "POST /v1/token/list" any(&[A, K]);
    RevokeToken "/semel.v1.Tokens/Revoke" "POST /v1/token/revoke" any(&[A, K]);
    Audit "" "POST /v1/audit" any(&[A, K]);
    Init "" "POST /v1/admin/init" Needs::FirstContact;
    AddMember "" "POST /v1/admin/add" any(&[K]);
    PromoteMember "" "POST /v1/admin/promote" any(&[K]);
    RemoveMember "" "POST /v1/admin/remove" any(&[K]);
    ReplaceMember "" "POST /v1/admin/replace" any(&[K]);
    TransferLeadership "" "POST /v1/admin/transfer" any(&[K]);
    EndDoubt "" "POST /v1/admin/end_doubt" any(&[K]);
    Snapshot "" "POST /v1/admin/snapshot" any(&[K]);
    KeysStatus "" "POST /v1/admin/keys/status" any(&[K]);
    RotateKeys "" "POST /v1/admin/keys/rotate" any(&[K]);
    EnableKeys "" "POST /v1/admin/keys/enable" any(&[K]);
    ShredTenant "" "POST /v1/admin/tenant/shred" any(&[K]);
    TenantStatus "" "POST /v1/admin/tenant/status" any(&[K]);
    Backup "" "POST /v1/admin/backup" any(&[K]);
    Restore "" "POST /v1/admin/restore" Needs::FirstContact;
    Status "" "GET /v1/status" Needs::Nothing;
    ConsoleLive "" "GET /console/live" Needs::Credential;
    ConsoleNodes "" "GET /console/nodes" any(&[K]);
    Metrics "" "GET /metrics" Needs::Nothing;
    // Instead of the one before, where metrics tell tenants by name.
    TenantMetrics "" "" any(&[K]);
    Alive "" "GET /healthz" Needs::Nothing;
    Ready "" "GET /readyz" Needs::Nothing;
    HealthCheck "/grpc.health.v1.Health/Check" "" Needs::Nothing;
    HealthList "/grpc.health.v1.Health/List" "" Needs::Nothing;
    HealthWatch "/grpc.health.v1.Health/Watch" "" Needs::Nothing;
    Reflection "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" "" Needs::Credential;
}

impl Method {
    /// The method of this RPC path. None: not in the table, and so denied.
    pub fn of_grpc(path: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|method| !path.is_empty() && method.grpc() == path)
    }

    /// The method of this HTTP method and path. None: not in the table, and so denied.
    pub fn of_route(verb: &str, path: &str) -> Option<Self> {
        let is_this = |route: &str| route.split_once(' ').is_some_and(|(v, p)| v == verb && p == path);
        Self::ALL.iter().copied().find(|method| is_this(method.route()))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Which of c, r, o, a, k alone may call it, as text.
    fn allowed(method: Method) -> String {
        let Needs::AnyOf(needed) = method.needs() else { return format!("{:?}", method.needs()) };
        let letters = "croak".chars().zip(Permission::ALL);
        letters.filter(|(_, p)| needed.has(*p)).map(|(letter, _)| letter).collect()
    }

    #[test]
    fn every_rpc_of_the_schema_is_in_the_table() {
        let schema = prost_types::FileDescriptorSet::decode(crate::proto::DESCRIPTOR).unwrap();
        let mut rpcs = 0;
        for file in &schema.file {
            for service in &file.service {
                for rpc in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), rpc.name());
                    assert!(Method::of_grpc(&path).is_some(), "{path} is not in the table of permissions");
                    rpcs += 1;
                }
            }
        }
        let ours = Method::ALL.iter().filter(|m| m.grpc().starts_with("/semel.")).count();
        assert_eq!(rpcs, ours, "the table names an RPC that the schema has not");
    }

    #[test]
    fn no_two_rows_share_a_path() {
        for (at, one) in Method::ALL.iter().enumerate() {
            for other in &Method::ALL[at + 1..] {
                assert!(one.grpc().is_empty() || one.grpc() != other.grpc(), "{one:?} {other:?}");
                assert!(one.route().is_empty() || one.route() != other.route(), "{one:?} {other:?}");
            }
        }
    }

    // Written a second time, by hand: a cell that changes is a change of who may do what.
    #[test]
    fn every_cell_is_as_decided() {
        let decided = [
            ("c", "Claim Begin Renew Checkpoint Complete Release Suspend"),
            ("croa", "Get"),
            ("o", "GetOutcome"),
            ("ra", "List History WatchIndeterminate"),
            ("r", "Investigate Resolve"),
            ("a", "Forget GetPolicy SetPolicy"),
            ("ak", "CreateToken ListTokens RevokeToken Audit"),
            (
                "k",
                "AddMember PromoteMember RemoveMember ReplaceMember TransferLeadership EndDoubt Snapshot KeysStatus RotateKeys EnableKeys ShredTenant TenantStatus Backup ConsoleNodes TenantMetrics",
            ),
            ("Credential", "Batch Session Reflection ConsoleLive"),
            ("FirstContact", "Init Restore"),
            ("Nothing", "Status Metrics Alive Ready HealthCheck HealthList HealthWatch"),
        ];
        let mut seen = 0;
        for (who, methods) in decided {
            for name in methods.split(' ') {
                let method = Method::ALL.iter().find(|m| m.as_str() == name).unwrap();
                assert_eq!(allowed(*method), who, "{name}");
                seen += 1;
            }
        }
        assert_eq!(seen, Method::ALL.len());
    }

    #[test]
    fn what_is_not_in_the_table_is_no_method() {
        assert_eq!(Method::of_grpc("/semel.v1.Records/Nothing"), None);
        assert_eq!(Method::of_grpc(""), None);
        assert_eq!(Method::of_route("GET", "/v1/claim"), None);
        assert_eq!(Method::of_route("", ""), None);
        assert_eq!(Method::of_route("POST", "/v1/claim"), Some(Method::Claim));
    }

    #[test]
    fn words_of_permissions_are_read_back() {
        for permission in Permission::ALL {
            assert_eq!(Permission::parse(permission.as_str()), Some(permission));
        }
        assert_eq!(Permission::parse("Claim"), None);
    }
}
