//! What the service is asked: one plain struct a call, free of any wire. Whatever holds one of these holds a request
//! whose shape was checked: lengths, characters, ranges, and which fields go together.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;

use crate::{
    auth::{Permissions, TokenText, caller::Operations},
    fingerprint::Fingerprint,
    id::{Fence, Key, Operation, Position, Principal, RecordId, Tenant, Time, Uuid},
    limits,
    records::{command::LapseRule, policy::PolicyPatch, record::StateWord},
    refusal::Refusal,
};

/// Names a record as a request does: the tenant may be left to the credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RecordName {
    /// None: the caller's own.
    pub tenant: Option<Tenant>,
    /// May be empty.
    pub principal: Principal,
    /// Which operation.
    pub operation: Operation,
    /// Which intent.
    pub key: Key,
}

impl RecordName {
    /// The identity within this tenant.
    pub fn within(self, tenant: Tenant) -> RecordId {
        RecordId { tenant, principal: self.principal, operation: self.operation, key: self.key }
    }
}

/// Declares a text whose length and characters are checked once. Debug shows the length alone: it is a caller's secret.
macro_rules! text {
    ($(#[$doc:meta])* $Name:ident, $bytes_max:expr, $printable:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $Name(String);

        impl $Name {
            /// Checks the text of the field that is called `field`.
            ///
            /// # Errors
            /// `invalid_argument`, naming the field and the rule.
            pub fn parse(field: &str, text: String) -> Result<Self, Refusal> {
                check_text(field, &text, $bytes_max, $printable)?;
                Ok(Self(text))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($Name), "({} bytes)"), self.0.len())
            }
        }
    };
}

text!(
    /// A reason or evidence: 1..=1,024 bytes.
    Statement,
    limits::STATEMENT_BYTES_MAX,
    false
);
text!(
    /// Who says so: 1..=128 bytes.
    Actor,
    limits::ACTOR_BYTES_MAX,
    false
);
text!(
    /// The name of a checkpoint: 1..=128 bytes of printable ASCII.
    CheckpointName,
    limits::CHECKPOINT_NAME_BYTES_MAX,
    true
);

/// Checks that a required text is there, not too long and, where that is asked for, printable ASCII.
fn check_text(field: &str, text: &str, bytes_max: usize, printable: bool) -> Result<(), Refusal> {
    if text.is_empty() {
        return Err(Refusal::invalid(format!("{field} must not be empty; give 1 to {bytes_max} bytes")));
    }
    if text.len() > bytes_max {
        let detail = format!("{field} is {} bytes long; at most {bytes_max} are allowed", text.len());
        return Err(Refusal::invalid(detail));
    }
    if printable && !text.bytes().all(|b| (0x20..=0x7e).contains(&b)) {
        return Err(Refusal::invalid(format!("{field} may hold printable ASCII (0x20 to 0x7E) alone")));
    }
    Ok(())
}

/// Bytes of the caller's own. Debug shows their number alone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

/// What a claim says to whoever investigates: at most 16, names up to 64 and values up to 256 bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Checks the labels.
    ///
    /// # Errors
    /// `invalid_argument`, naming the rule.
    pub fn parse(labels: BTreeMap<String, String>) -> Result<Self, Refusal> {
        if labels.len() > limits::LABELS_MAX {
            let detail = format!("labels: {} are given; at most {} are allowed", labels.len(), limits::LABELS_MAX);
            return Err(Refusal::invalid(detail));
        }
        for (name, value) in &labels {
            check_text("a label's name", name, limits::LABEL_NAME_BYTES_MAX, false)?;
            check_text("a label's value", value, limits::LABEL_VALUE_BYTES_MAX, false)?;
        }
        Ok(Self(labels))
    }

    /// Names and values, in the names' order.
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Labels({})", self.0.len())
    }
}

/// The headers of an outcome: lower-case names, at most 64, together at most 16 KiB, `content-type` not among them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Checks the headers and takes their names to lower case.
    ///
    /// # Errors
    /// `invalid_argument`, naming the rule.
    pub fn parse(headers: BTreeMap<String, String>) -> Result<Self, Refusal> {
        if headers.len() > limits::OUTCOME_HEADERS_MAX {
            let max = limits::OUTCOME_HEADERS_MAX;
            return Err(Refusal::invalid(format!("outcome.headers: {} are given; at most {max}", headers.len())));
        }
        let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > limits::OUTCOME_HEADER_BYTES_MAX {
            let max = limits::OUTCOME_HEADER_BYTES_MAX;
            return Err(Refusal::invalid(format!("outcome.headers: {bytes} bytes are given; at most {max}")));
        }
        let mut lower = BTreeMap::new();
        for (name, value) in headers {
            let name = name.to_ascii_lowercase();
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(Refusal::invalid("outcome.headers: a name is no HTTP field name"));
            }
            if name == "content-type" {
                return Err(Refusal::invalid("outcome.headers: content-type has a field of its own, content_type"));
            }
            // A line break in a value would let whoever replays it be told another field.
            if value.bytes().any(|b| b == 0x7f || (b < 0x20 && b != b'\t')) {
                return Err(Refusal::invalid("outcome.headers: a value has a control character"));
            }
            if lower.insert(name, value).is_some() {
                return Err(Refusal::invalid("outcome.headers: two names are equal but for case"));
            }
        }
        Ok(Self(lower))
    }

    /// Names and values, in the names' order.
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Headers({})", self.0.len())
    }
}

/// Whether the byte may stand in an HTTP field name (RFC 9110, `tchar`).
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// What came of the effect, as it is reported.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The status in the caller's protocol.
    pub status: i32,
    /// What the caller allows to be replayed.
    pub headers: Headers,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The result; empty where none was given.
    pub body: Payload,
    /// From then on a replay says `stale`.
    pub valid_until: Option<Time>,
}

// What its owner says of it is nobody else's: lengths alone are shown.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, headers, content_type, body, valid_until } = self;
        let content_type = content_type.as_ref().map(String::len);
        write!(f, "Outcome({status}, {headers:?}, content type of {content_type:?} bytes, {body:?}, {valid_until:?})")
    }
}

/// Asks to own a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Which record.
    pub record: RecordName,
    /// What the request is: 1 to 4, each of another scheme, by ascending scheme.
    pub fingerprints: Vec<Fingerprint>,
    /// This run of the caller's handler. None: one is made up.
    pub attempt_id: Option<Uuid>,
    /// Wanted lease, ms, never 0. None: the policy's.
    pub lease_ms: Option<u32>,
    /// How long to wait where it would be `in_progress`, ms.
    pub wait_ms: u32,
    /// No effect has begun yet.
    pub staged: bool,
    /// Wanted lapse rule. None: the policy's.
    pub on_lapse: Option<LapseRule>,
    /// For whoever investigates.
    pub labels: Labels,
    /// When the caller first sent this intent.
    pub first_sent_at: Option<Time>,
    /// Wanted replay window, s.
    pub replay_s: Option<u32>,
    /// Wanted evidence window, s; not below `replay_s` where both are given.
    pub evidence_s: Option<u32>,
    /// How long after its receipt the claim may still be applied, ms, never 0. None: however long.
    pub ttl_ms: Option<u32>,
}

/// What an owner does with its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerAction {
    /// The effect is about to start.
    Begin {
        /// Extends the lease, ms, never 0.
        lease_ms: Option<u32>,
    },
    /// Extends the lease.
    Renew {
        /// To this length, ms, never 0. None: the length last granted.
        lease_ms: Option<u32>,
    },
    /// Keeps a recovery point.
    Checkpoint(Checkpoint),
    /// Reports the outcome.
    Complete(Outcome),
    /// States that no effect happened.
    Release {
        /// How the owner knows.
        evidence: Option<Statement>,
    },
    /// Doesn't know what happened.
    Suspend {
        /// What went wrong.
        reason: Option<Statement>,
    },
}

impl OwnerAction {
    /// Which of them it is.
    pub fn kind(&self) -> OwnerKind {
        match self {
            OwnerAction::Begin { .. } => OwnerKind::Begin,
            OwnerAction::Renew { .. } => OwnerKind::Renew,
            OwnerAction::Checkpoint(_) => OwnerKind::Checkpoint,
            OwnerAction::Complete(_) => OwnerKind::Complete,
            OwnerAction::Release { .. } => OwnerKind::Release,
            OwnerAction::Suspend { .. } => OwnerKind::Suspend,
        }
    }
}

/// The commands of an owner, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// Begin.
    Begin,
    /// Renew.
    Renew,
    /// Checkpoint.
    Checkpoint,
    /// Complete.
    Complete,
    /// Release.
    Release,
    /// Suspend.
    Suspend,
}

/// A recovery point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its name.
    pub name: CheckpointName,
    /// Bytes of the caller's own. The policy's size limit is judged later.
    pub data: Payload,
}

/// A command of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRequest {
    /// Which record.
    pub record: RecordName,
    /// The fence of the grant.
    pub fence: Fence,
    /// What to do.
    pub action: OwnerAction,
}

/// Reads a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetRequest {
    /// Which record.
    pub record: RecordName,
    /// With the outcome, where there is one.
    pub with_outcome: bool,
}

/// One command of a batch or session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Asks to own a record.
    Claim(Box<ClaimRequest>),
    /// A command of an owner.
    Owner(Box<OwnerRequest>),
    /// Reads a record.
    Get(GetRequest),
}

/// Several commands, in order: each as it would be alone. One whose shape is wrong is refused alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRequest {
    /// At most 256.
    pub items: Vec<Result<Command, Refusal>>,
}

/// Lists records of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// None: the caller's own.
    pub tenant: Option<Tenant>,
    /// Only this principal's. None: everybody's.
    pub principal: Option<Principal>,
    /// Only in this state, never `absent`. None: all.
    pub state: Option<StateWord>,
    /// Only this operation's.
    pub operation: Option<Operation>,
    /// Only what has been in its state for longer than this, ms.
    pub older_than_ms: Option<u32>,
    /// Records a page, 1..=1,000.
    pub page_size: u32,
    /// Where the page before ended, as it was given out; not yet checked.
    pub cursor: Option<String>,
}

/// Takes up an indeterminate record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvestigateRequest {
    /// Which record.
    pub record: RecordName,
    /// How long nobody else may resolve it, ms, never 0.
    pub lease_ms: Option<u32>,
    /// Who looks into it.
    pub actor: Option<Actor>,
    /// Only if the record still has this version.
    pub version: Option<Position>,
}

/// What a reconciler found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The effect happened, with this outcome.
    Completed(Outcome),
    /// It did not happen and will not.
    NoEffect,
    /// Not known yet.
    Unknown {
        /// When to look again.
        check_again_at: Time,
    },
}

/// Settles an indeterminate record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveRequest {
    /// Which record.
    pub record: RecordName,
    /// The version that the reconciler looked at.
    pub version: Position,
    /// What was found out.
    pub verdict: Verdict,
    /// Who found out.
    pub actor: Option<Actor>,
    /// How that is known.
    pub evidence: Statement,
    /// The same again gets the first answer. None: one is made up.
    pub request_id: Option<Uuid>,
}

/// Erases an outcome early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgetRequest {
    /// Which record.
    pub record: RecordName,
    /// Why.
    pub reason: Option<Statement>,
}

/// Asks what happened to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryRequest {
    /// Which record.
    pub record: RecordName,
    /// Events a page, 1..=1,000.
    pub page_size: u32,
    /// Where the page before ended, as it was given out; not yet checked.
    pub cursor: Option<String>,
}

/// Asks for the indeterminate records and every change of that set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRequest {
    /// None: the caller's own.
    pub tenant: Option<Tenant>,
    /// Only this operation's.
    pub operation: Option<Operation>,
    /// Goes on after this position. None: begins with the whole set.
    pub from_index: Option<Position>,
}

/// Reads a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetPolicyRequest {
    /// None: the caller's own.
    pub tenant: Option<Tenant>,
    /// None: the tenant's own policy.
    pub operation: Option<Operation>,
}

/// Changes a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPolicyRequest {
    /// None: the caller's own.
    pub tenant: Option<Tenant>,
    /// None: the tenant's own policy.
    pub operation: Option<Operation>,
    /// The fields that change, each within what any policy can allow.
    pub patch: PolicyPatch,
}

/// Reads an audit chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRequest {
    /// None: the caller's own; of whoever may read all, the cluster's.
    pub tenant: Option<Tenant>,
    /// The first row wanted. Rows that are past their time are left out.
    pub from_seq: u64,
    /// Rows a page, 1..=1,000.
    pub page_size: u32,
}

/// Makes a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTokenRequest {
    /// None: the caller's own; of whoever may make tokens for all tenants, the cluster's.
    pub tenant: Option<Tenant>,
    /// Patterns of operations.
    pub operations: Operations,
    /// What it may.
    pub permissions: Permissions,
    /// Until when it is good.
    pub lasts: Lasts,
    /// For people.
    pub note: Option<Statement>,
    /// The token, where the caller has drawn it.
    pub token: Option<TokenText>,
}

/// How long a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// So long from now, s.
    For(u32),
    /// Until then.
    Until(Time),
}

/// Lists tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListTokensRequest {
    /// None: the caller's own, or all.
    pub tenant: Option<Tenant>,
    /// Tokens a page, 1..=1,000.
    pub page_size: u32,
    /// Where the page before ended, as it was given out; not yet checked.
    pub cursor: Option<String>,
}

/// Ends a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevokeTokenRequest {
    /// Which.
    pub token_id: [u8; 10],
    /// Why.
    pub reason: Statement,
}
