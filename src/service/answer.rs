//! What the service answers: one plain struct a call, opened and free of any wire.

use std::fmt;

use bytes::Bytes;

use super::request::{Checkpoint, Headers, Labels, OwnerKind, Payload, RecordName};
use crate::{
    auth::{Permissions, TokenText},
    fingerprint::Fingerprint,
    id::{Fence, KeyedHash, Position, RecordId, Tenant, Time, Uuid},
    records::{
        answer::{ExpiredReason, Phase},
        command::{LapseRule, Wrapped},
        policy::{Overrides, Policy},
        record::StateWord,
        state::AuditKind,
    },
    refusal::Refusal,
};

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimAnswer {
    /// The attempt, named or made up.
    pub attempt_id: Uuid,
    /// The position that the answer reflects.
    pub index: Position,
    /// What was found.
    pub found: Found,
}

/// What a claim found.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// The caller owns the record now.
    New(Box<New>),
    /// Another attempt owns it.
    InProgress {
        /// When to come back, ms.
        retry_after_ms: u32,
        /// Since when it is owned.
        since: Time,
    },
    /// It was done before.
    Completed(Box<Replay>),
    /// It belongs to another request.
    Conflict {
        /// The state it is in.
        state: StateWord,
        /// Since when.
        since: Time,
    },
    /// Nobody knows whether the effect happened.
    Indeterminate {
        /// Since when.
        since: Time,
        /// The owner's words, `lease_lapsed` or `restored`.
        reason: Reason,
        /// When to come back, ms.
        retry_after_ms: u32,
    },
    /// Done, or to be taken as done, and no longer replayed.
    Expired {
        /// Why.
        reason: ExpiredReason,
        /// When it was completed, where that is known.
        completed_at: Option<Time>,
        /// Until when the key can't run again, where there is evidence.
        evidence_until: Option<Time>,
    },
}

/// Why a record is indeterminate, in words. Debug shows the length alone: they may be an owner's.
#[derive(Clone, PartialEq, Eq)]
pub struct Reason(pub String);

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reason({} bytes)", self.0.len())
    }
}

/// A grant, or the repeat of one.
#[derive(Clone, Debug, PartialEq)]
pub struct New {
    /// To be shown with every command of this owner.
    pub fence: Fence,
    /// 1 for the first owner.
    pub attempt: u32,
    /// The phase.
    pub phase: Phase,
    /// The record's version.
    pub version: Position,
    /// Whether this attempt owned it already.
    pub repeated: bool,
    /// The lease as granted, ms.
    pub lease_ms: u32,
    /// When it ends.
    pub lease_deadline: Time,
    /// The provider's idempotency key.
    pub downstream_key: String,
    /// The last recovery point.
    pub checkpoint: Option<Checkpoint>,
}

/// A replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Whether its `valid_until` has passed.
    pub stale: bool,
    /// As it was reported.
    pub outcome: Outcome,
    /// When.
    pub completed_at: Time,
}

/// A recorded outcome.
#[derive(Clone, PartialEq)]
pub struct Outcome {
    /// The status in the caller's protocol.
    pub status: i32,
    /// What is replayed with it.
    pub headers: Headers,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The result. None: larger than the policy keeps, only its digest stands.
    pub body: Option<Payload>,
    /// From then on a replay says `stale`.
    pub valid_until: Option<Time>,
}

// What its owner said of it is nobody else's: lengths alone are shown.
impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { status, headers, content_type, body, valid_until } = self;
        let content_type = content_type.as_ref().map(String::len);
        write!(f, "Outcome({status}, {headers:?}, content type of {content_type:?} bytes, {body:?}, {valid_until:?})")
    }
}

/// The record after an owner's or a reconciler's command.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerAnswer {
    /// The state it is in.
    pub state: StateWord,
    /// The phase, while in progress.
    pub phase: Option<Phase>,
    /// The lease as granted, ms, while in progress.
    pub lease_ms: Option<u32>,
    /// When it ends, while in progress.
    pub lease_deadline: Option<Time>,
    /// The record's version; none while absent.
    pub version: Option<Position>,
    /// The position that the answer reflects.
    pub index: Position,
}

/// A record as it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Which record.
    pub id: RecordId,
    /// The state as read, never `absent`.
    pub state: StateWord,
    /// The position of its last visible change.
    pub version: Position,
    /// The fence of its current or last owner.
    pub fence: Fence,
    /// The number of that attempt.
    pub attempt: u32,
    /// How far that owner had come, while in progress or indeterminate.
    pub phase: Option<Phase>,
    /// The id of that attempt.
    pub attempt_id: Uuid,
    /// The request that it belongs to.
    pub fingerprints: Vec<Fingerprint>,
    /// When the lease ends or ended, while in progress or indeterminate.
    pub lease_deadline: Option<Time>,
    /// Since when it is in this state.
    pub since: Time,
    /// Why it is indeterminate.
    pub reason: Option<Reason>,
    /// The last recovery point.
    pub checkpoint: Option<Checkpoint>,
    /// What the claim said to whoever investigates.
    pub labels: Labels,
    /// The outcome, while completed and where it was asked for.
    pub outcome: Option<Outcome>,
    /// When it was completed.
    pub completed_at: Option<Time>,
    /// End of the replay window, once completed.
    pub replay_until: Option<Time>,
    /// End of the evidence window, once completed.
    pub evidence_until: Option<Time>,
    /// The provider's idempotency key.
    pub downstream_key: String,
    /// Who looks into it.
    pub investigation: Option<Investigation>,
    /// When a reconciler means to look again.
    pub check_again_at: Option<Time>,
    /// What the lapse of the lease means, while in progress or indeterminate.
    pub on_lapse: Option<LapseRule>,
    /// The position that the answer reflects.
    pub index: Position,
}

/// Who looks into an indeterminate record.
#[derive(Clone, PartialEq, Eq)]
pub struct Investigation {
    /// The reconciler.
    pub actor: String,
    /// Until when.
    pub deadline: Time,
}

impl fmt::Debug for Investigation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Investigation").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// The answer to one command of a batch or session.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemAnswer {
    /// To a claim.
    Claim(ClaimAnswer),
    /// To a command of an owner.
    Owner(OwnerKind, OwnerAnswer),
    /// To a get.
    Get(Box<Record>),
}

/// The answers to a batch, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchAnswer {
    /// As many as there were commands.
    pub items: Vec<Result<ItemAnswer, Refusal>>,
    /// The highest position that they reflect.
    pub index: Position,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq)]
pub struct ListAnswer {
    /// Without outcomes.
    pub records: Vec<Record>,
    /// Where to go on. None: complete.
    pub cursor: Option<String>,
    /// The position that the page reflects.
    pub index: Position,
}

/// A page of a record's history, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryAnswer {
    /// The events.
    pub events: Vec<HistoryEvent>,
    /// Where to go on. None: that was all.
    pub cursor: Option<String>,
    /// The position that the answer reflects.
    pub index: Position,
}

/// An event of a record's history.
#[derive(Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// When.
    pub at: Time,
    /// Where.
    pub index: Position,
    /// One of the words in [`HISTORY_KINDS`].
    pub kind: &'static str,
    /// Who.
    pub actor: Option<String>,
    /// With which fence.
    pub fence: Option<Fence>,
    /// Evidence, reason, name, count: whatever belongs to the kind.
    pub detail: Option<String>,
}

impl fmt::Debug for HistoryEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HistoryEvent({} at {})", self.kind, self.index)
    }
}

/// Every kind of event in a history.
pub const HISTORY_KINDS: [&str; 13] = [
    "claimed",
    "begun",
    "renewed",
    "checkpointed",
    "completed",
    "released",
    "suspended",
    "lapsed",
    "stale_fence",
    "investigated",
    "resolved",
    "forgotten",
    "expired",
];

/// All changes of the indeterminate records at one position, or a part of them.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchAnswer {
    /// The position.
    pub index: Position,
    /// What was known before is void: these are the whole set, or its first part.
    pub reset: bool,
    /// Became indeterminate, or changed while being so. Without outcomes.
    pub indeterminate: Vec<Record>,
    /// Are indeterminate no more, and the state that each is in now.
    pub gone: Vec<(RecordId, StateWord)>,
    /// More of the same position follows.
    pub more: bool,
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyAnswer {
    /// What is in force.
    pub policy: Policy,
    /// What was set for exactly this tenant or operation.
    pub overrides: Overrides,
    /// The position that the answer reflects.
    pub index: Position,
}

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenInfo {
    /// Its id as text.
    pub token_id: String,
    /// None: the cluster's.
    pub tenant: Option<Tenant>,
    /// What it may.
    pub permissions: Permissions,
    /// Patterns of operations.
    pub operations: Vec<String>,
    /// For people.
    pub note: Option<String>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Time,
    /// Until when it is good.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// `active`, `expired` or `revoked`.
    pub state: &'static str,
}

/// A token as it was made or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAnswer {
    /// The token.
    pub info: TokenInfo,
    /// Its text, where it was made.
    pub token: Option<TokenText>,
    /// The position that the answer reflects.
    pub index: Position,
}

/// A page of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListTokensAnswer {
    /// In the order of their ids.
    pub tokens: Vec<TokenInfo>,
    /// Where the next page begins.
    pub cursor: Option<String>,
    /// The position that the answer reflects.
    pub index: Position,
}

/// A page of an audit chain, oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditAnswer {
    /// The rows.
    pub events: Vec<AuditEvent>,
    /// The newest row there is. None: there is no such chain.
    pub head: Option<AuditHead>,
    /// Where the next page begins. None: that was all.
    pub next_seq: Option<u64>,
    /// The position that the answer reflects.
    pub index: Position,
}

/// A row of an audit chain.
#[derive(Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// Its place in the chain, from 1.
    pub seq: u64,
    /// Where.
    pub position: Position,
    /// When.
    pub at: Time,
    /// What.
    pub kind: AuditKind,
    /// Whose chain; none: the cluster's.
    pub tenant: Option<Tenant>,
    /// Which record, by its hash.
    pub record: Option<KeyedHash>,
    /// Who. None where nobody is named, and where its key is gone.
    pub actor: Option<String>,
    /// More.
    pub detail: Option<String>,
    /// SHA-256 of the row before.
    pub previous: [u8; 32],
    /// SHA-256 of this row.
    pub hash: [u8; 32],
    /// The stored bytes.
    pub row: Bytes,
}

impl fmt::Debug for AuditEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditEvent({} {})", self.seq, self.kind.as_str())
    }
}

/// How far an audit chain reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditHead {
    /// Whose; none: the cluster's.
    pub tenant: Option<Tenant>,
    /// The newest row; 0: there is none yet.
    pub seq: u64,
    /// Its hash.
    pub hash: [u8; 32],
    /// When it was written. None: there is none yet.
    pub at: Option<Time>,
    /// The data keys that its rows may be sealed by, each with its id and wrapped by the root key: of use to whoever has a key ring
    /// and the key-encryption key.
    pub data_keys: Vec<(u32, Wrapped)>,
}

impl From<RecordId> for RecordName {
    fn from(id: RecordId) -> Self {
        Self { tenant: Some(id.tenant), principal: id.principal, operation: id.operation, key: id.key }
    }
}
