//! What apply reads and writes: the replicated state behind a trait, so that apply itself touches neither disk nor lock.

use std::{collections::BTreeSet, sync::Arc};

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};

use super::{
    codec::tagged_words,
    command::{RecordRef, Sealed, Token, Wrapped},
    policy::{Limits, Policy, PolicyLevel},
    record::{Head, Row, StateWord},
    sealing::{KeyRow, KeyTable},
};
use crate::id::{ClusterId, KeyedHash, LineageId, NodeId, Position, Tenant, Time};

/// The doubt after a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Doubt {
    /// The restore's first position.
    pub first_position: Position,
    /// When it was turned on.
    pub since: Time,
    /// When the old cluster was surely dead.
    pub gap_end: Option<Time>,
}

/// The end of an incarnation's writes: a value of its own, so that the small state keeps its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Ended {
    /// Where: nothing that a caller has asked for was applied above it.
    pub position: Position,
    /// When.
    pub at: Time,
}

/// The last row of an audit chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ChainHead {
    /// Its sequence; 0 before the first row.
    pub sequence: u64,
    /// SHA-256 of its stored bytes; before the first row, of the chain's name.
    pub hash: [u8; 32],
    /// The oldest row that is still kept; one above the last row where none is.
    pub first_kept: u64,
    /// When that row was written; of no meaning where none is kept.
    pub oldest: Time,
}

impl ChainHead {
    /// Whether any row is kept.
    pub fn has_rows(&self) -> bool {
        self.first_kept <= self.sequence
    }
}

/// What init wrote, fixed for the cluster's life but for a restore.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Formed {
    /// Kept by every restore.
    pub lineage_id: LineageId,
    /// The incarnation.
    pub cluster_id: ClusterId,
    /// The agreed name.
    pub cluster_name: String,
    /// Key of all downstream keys.
    pub downstream_secret: Wrapped,
    /// What all voters understand.
    pub feature_level: u32,
    /// The numbers that apply uses.
    pub limits: Limits,
    /// The policy under every tenant's.
    pub policy: Policy,
}

/// The small state that every command touches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Globals {
    /// The position of the last command or sweep.
    pub position: Position,
    /// The last applied time.
    pub time: Time,
    /// None before init.
    pub formed: Option<Arc<Formed>>,
    /// Every fence below it is stale: the first position of the last restore.
    pub fence_floor: Position,
    /// The doubt of a restore, while it is on.
    pub doubt: Option<Doubt>,
    /// Counters over all tenants.
    pub total: Counters,
    /// Tenants ever opened.
    pub tenants: u32,
    /// The cluster's own audit chain.
    pub audit: Option<ChainHead>,
    /// Ids of removed nodes: never used again. A restore begins with none.
    pub retired: BTreeSet<NodeId>,
}

/// What is known of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantState {
    /// Key of its keyed hashes and digests, wrapped.
    pub index_key: Wrapped,
    /// Where it was opened.
    pub opened: Position,
    /// Closed for good.
    pub closed: bool,
    /// Its audit chain.
    pub audit: ChainHead,
    /// Operation policies that it has.
    pub policies: u32,
}

/// Counts of one level: of a tenant, of one operation of it, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Counters {
    /// Heads that are not traces.
    pub records: u64,
    /// Bytes of heads, bodies and rows.
    pub bytes: u64,
    /// Records in progress, as written down.
    pub in_progress: u64,
    /// Indeterminate records, as written down.
    pub indeterminate: u64,
}

impl Counters {
    /// These counts and `more`, less `less`. Counters never go below zero: R8 holds them equal to a recount.
    pub fn changed(self, more: Counters, less: Counters) -> Self {
        let step =
            |now: u64, more: u64, less: u64| (now + more).checked_sub(less).expect("R8: counters equal a recount");
        Self {
            records: step(self.records, more.records, less.records),
            bytes: step(self.bytes, more.bytes, less.bytes),
            in_progress: step(self.in_progress, more.in_progress, less.in_progress),
            indeterminate: step(self.indeterminate, more.indeterminate, less.indeterminate),
        }
    }
}

tagged_words! {
    /// What a deadline entry means when it is due.
    DeadlineKind {
        /// A begun lease under `hold`.
        LeaseHold = 1 "lease_hold",
        /// A begun lease under `retake`.
        LeaseRetake = 2 "lease_retake",
        /// A staged lease.
        LeaseStaged = 3 "lease_staged",
        /// A staged record that lapsed: its evidence ends.
        StagedEvidence = 4 "staged_evidence",
        /// A completed record: its evidence ends.
        Evidence = 5 "evidence",
        /// A trace ends.
        Trace = 6 "trace",
        /// The oldest row of a tenant's audit chain is past its time. The entry names no record: both hashes are zero.
        Audit = 7 "audit",
    }
}

/// What a sweep has to know of a record (or of an audit chain) without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Deadline {
    /// What is due.
    pub kind: DeadlineKind,
    /// For a staged lease: when its evidence ends.
    pub then: Time,
    /// For a record in the since index: its place there.
    pub since: Time,
    /// Bytes that the record counts for.
    pub bytes: u64,
    /// Whether a body stands under its own key.
    pub has_body: bool,
    /// Slots of history rows.
    pub rows: u8,
}

/// Which list of the since index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SinceList {
    /// Records in progress, by their grant.
    InProgress,
    /// Indeterminate records.
    Indeterminate,
}

impl SinceList {
    /// The byte in the key.
    pub fn tag(self) -> u8 {
        match self {
            SinceList::InProgress => 1,
            SinceList::Indeterminate => 2,
        }
    }
}

tagged_words! {
    /// Kinds of audit rows.
    AuditKind {
        /// A verdict.
        Resolved = 1 "resolved",
        /// An outcome erased.
        Forgotten = 2 "forgotten",
        /// A release after begin.
        Released = 3 "released",
        /// A fence that was not the current one.
        StaleFence = 4 "stale_fence",
        /// A policy changed.
        PolicySet = 5 "policy_set",
        /// A restore.
        Restored = 6 "restored",
        /// Its doubt ended.
        DoubtEnded = 7 "doubt_ended",
        /// A tenant opened.
        TenantOpened = 8 "tenant_opened",
        /// A completed record was reported with another outcome.
        OutcomeImmutable = 9 "outcome_immutable",
        /// The incarnation's writes ended.
        WritesEnded = 10 "writes_ended",
        /// A node was added.
        MemberAdded = 11 "member_added",
        /// A learner votes.
        MemberPromoted = 12 "member_promoted",
        /// A node was taken out.
        MemberRemoved = 13 "member_removed",
        /// A node has another disk.
        MemberReplaced = 14 "member_replaced",
        /// Another member was made to lead.
        LeaderTransferred = 15 "leader_transferred",
        /// A backup was made.
        BackupMade = 16 "backup_made",
        /// A token was made.
        TokenCreated = 17 "token_created",
        /// A token was ended.
        TokenRevoked = 18 "token_revoked",
        /// The cluster was sealed, later than it was formed.
        SealingEnabled = 19 "sealing_enabled",
        /// Another key wraps root keys, or another data key seals.
        KeyRotated = 20 "key_rotated",
        /// A data key went that nothing was sealed with any more.
        DataKeyRemoved = 21 "data_key_removed",
        /// A tenant was closed.
        TenantClosed = 22 "tenant_closed",
        /// Its keys were destroyed.
        TenantKeysDestroyed = 23 "tenant_keys_destroyed",
        /// Calls without a good credential were turned away.
        AuthenticationRefused = 30 "authentication_refused",
        /// Somebody signed in to the console.
        ConsoleSignedIn = 31 "console_signed_in",
    }
}

/// A row of an audit chain.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct AuditRow {
    /// Where.
    pub position: Position,
    /// When.
    pub at: Time,
    /// What.
    pub kind: AuditKind,
    /// Whose chain; none for the cluster's.
    pub tenant: Option<Tenant>,
    /// Which record.
    pub record: Option<KeyedHash>,
    /// Who, sealed.
    pub actor: Option<Sealed>,
    /// More, sealed.
    pub detail: Option<Sealed>,
    /// SHA-256 of the stored bytes of the row before it in this chain.
    pub previous: [u8; 32],
}

/// Something that watchers and waiters want to hear of. Events of one position belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A record became indeterminate, or one that is changed.
    Indeterminate(RecordRef),
    /// A record is no longer indeterminate: its id, which may be gone with it, and what it is now.
    Gone(RecordRef, Sealed, StateWord),
    /// The doubt of a restore ended: what it left indeterminate is so no more.
    DoubtEnded,
    /// A tenant was closed, or its keys destroyed.
    Closed(Tenant),
    /// A tenant's fields (the cluster's own: none) are sealed by another key from now on.
    Rekeyed(Option<Tenant>),
}

/// The replicated state as apply sees it. Reads show all writes before them.
///
/// An implementation whose reads can fail must end the process (or the test) when they do: apply has no answer for it.
pub trait State {
    /// The small state.
    fn globals(&self) -> &Globals;
    /// The small state, to change it.
    fn globals_mut(&mut self) -> &mut Globals;
    /// The end of this incarnation's writes, once they have ended.
    fn ended(&self) -> Option<Ended>;
    /// Writes it, or removes it: what is restored begins anew.
    fn put_ended(&mut self, ended: Option<Ended>);
    /// A tenant.
    fn tenant(&self, tenant: &Tenant) -> Option<Arc<TenantState>>;
    /// Writes a tenant.
    fn put_tenant(&mut self, tenant: &Tenant, state: TenantState);
    /// A policy level: of a tenant, or of one of its operations.
    fn policy(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Option<Arc<PolicyLevel>>;
    /// Writes or removes a policy level.
    fn put_policy(&mut self, tenant: &Tenant, operation: Option<KeyedHash>, level: Option<PolicyLevel>);
    /// A head.
    fn head(&self, record: &RecordRef) -> Option<Arc<Head>>;
    /// Writes or removes a head.
    fn put_head(&mut self, record: &RecordRef, head: Option<Arc<Head>>);
    /// Up to `max` heads of a tenant that is closed, the first that there are in the order of their keys. Whoever asks removes
    /// all that are answered.
    fn records_of(&mut self, tenant: &Tenant, max: usize) -> Vec<(RecordRef, Arc<Head>)>;
    /// Up to `max` policy levels of a tenant, its own first.
    fn policies_of(&self, tenant: &Tenant, max: usize) -> Vec<Option<KeyedHash>>;
    /// A body under its own key.
    fn body(&self, record: &RecordRef) -> Option<Sealed>;
    /// Writes or removes a body.
    fn put_body(&mut self, record: &RecordRef, body: Option<Sealed>);
    /// A row of a record's history.
    fn row(&self, record: &RecordRef, slot: u8) -> Option<Arc<Row>>;
    /// Writes or removes a row.
    fn put_row(&mut self, record: &RecordRef, slot: u8, row: Option<Row>);
    /// The counters of a tenant, or of one of its operations.
    fn counters(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Counters;
    /// Adds `more` to these counters and takes `less` away; all zero removes them.
    fn count(&mut self, tenant: &Tenant, operation: Option<KeyedHash>, more: Counters, less: Counters);
    /// Whether the deadline index has an entry for this record at this time.
    fn has_deadline(&self, at: Time, record: &RecordRef) -> bool;
    /// Writes or removes an entry of the deadline index. `is_new`: no entry stood at this place, so that one that is
    /// removed again before it was stored costs no write.
    fn put_deadline(&mut self, at: Time, record: &RecordRef, deadline: Option<Deadline>, is_new: bool);
    /// The entries of the deadline index that are due at `now`, oldest first, at most `max`.
    fn due(&self, now: Time, max: usize) -> Vec<(Time, RecordRef, Deadline)>;
    /// Writes an entry of the since index where none stood, or removes one; the position is that of the sweep that wrote down a lapse, else 0.
    fn put_since(&mut self, list: SinceList, at: Time, record: &RecordRef, swept: Option<Position>);
    /// The stored bytes of a row of an audit chain.
    fn audit_row(&self, chain: Option<&Tenant>, sequence: u64) -> Option<Arc<AuditRow>>;
    /// Writes (stored bytes) or removes a row of an audit chain.
    fn put_audit_row(&mut self, chain: Option<&Tenant>, sequence: u64, row: Option<bytes::Bytes>);
    /// A token.
    fn token(&self, id: &[u8; 10]) -> Option<Arc<Token>>;
    /// How many tokens there are: of this tenant (none: of the cluster), and at all.
    fn count_tokens(&self, tenant: Option<&Tenant>) -> (usize, usize);
    /// Writes a token.
    fn put_token(&mut self, token: Token);
    /// Removes a token.
    fn remove_token(&mut self, id: &[u8; 10]);
    /// The keys of a sealed cluster, wrapped.
    fn key_table(&self) -> &KeyTable;
    /// Writes, or removes, a value of the key table.
    fn put_key(&mut self, row: KeyRow);
    /// Notes an event of the position that is being applied.
    fn note(&mut self, event: Event);
}
