//! What is proposed: every command in the shape in which it stands in the log. Contents that are a caller's secret
//! are sealed fields; apply sees hashes, keyed digests, lengths and times.

use std::sync::Arc;

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};
use bytes::Bytes;

use super::{
    closing::{TenantClosed, TenantKeysDestroyed},
    codec::{Blob, tagged_values, tagged_words},
    policy::{Limits, Policy, PolicyPatch},
    rekey::{DataKeyAdded, DataKeyRemoved, KeyRotated, RootsRewrapped, SealingEnabled},
    reseal::Resealed,
    sealing::{SealedInit, SealedTenantOpened},
};
use crate::id::{ClusterId, Fence, KeyedHash, LineageId, NodeId, Position, Tenant, Time, Uuid};

pub use super::token::{TokenCreated, TokenRevoked, TokensDropped};

/// An encrypted field: the id of its data key (0: the null cipher, no nonce and no tag) and the bytes under it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Sealed {
    /// The data key, 0 for none.
    pub key_id: u32,
    /// Nonce ‖ ciphertext ‖ tag; the plaintext itself under key 0.
    pub bytes: Blob,
}

impl Sealed {
    /// A field under the null cipher.
    pub fn plain(bytes: impl Into<Bytes>) -> Self {
        Self { key_id: 0, bytes: Blob(bytes.into()) }
    }

    /// Stored length, bytes.
    pub fn len(&self) -> usize {
        self.bytes.0.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.bytes.0.is_empty()
    }
}

/// Where a record stands in the replicated state: its tenant and keyed hashes, never its name. Ordered as its key.
#[derive(Clone, Debug, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct RecordRef {
    /// The tenant, in clear.
    pub tenant: Tenant,
    /// Keyed hash of the operation.
    pub operation: KeyedHash,
    /// Keyed hash of the whole identity.
    pub record: KeyedHash,
}

// The hash of the identity tells nearly all records apart: it is compared first, and hashed alone.
impl PartialEq for RecordRef {
    fn eq(&self, other: &Self) -> bool {
        self.record == other.record && self.operation == other.operation && self.tenant == other.tenant
    }
}

impl std::hash::Hash for RecordRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_le_bytes(self.record.0));
    }
}

/// An HMAC-SHA-256 under the tenant's index key.
pub type KeyedDigest = [u8; 32];

/// A record's fingerprints: keyed digests to compare, and the plain ones sealed to show.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Fingerprints {
    /// (scheme, keyed digest), each scheme once.
    pub keyed: Vec<(u32, KeyedDigest)>,
    /// The plain digests, sealed.
    pub sealed: Sealed,
}

impl Fingerprints {
    /// Whether a scheme in common matches.
    pub fn matches(&self, other: &Self) -> bool {
        self.keyed.iter().any(|pair| other.keyed.contains(pair))
    }
}

tagged_words! {
    /// What becomes of a begun claim whose lease ran out.
    LapseRule {
        /// It is indeterminate until somebody reconciles it.
        Hold = 1 "hold",
        /// The next claim owns it with a larger fence.
        Retake = 2 "retake",
    }
}

/// Claim: own the record, or learn what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Claim {
    /// The record.
    pub record: RecordRef,
    /// Its whole identity, sealed.
    pub id: Sealed,
    /// What the request is.
    pub fingerprints: Fingerprints,
    /// This run of the caller's handler.
    pub attempt_id: Uuid,
    /// Wanted lease, ms.
    pub lease_ms: Option<u32>,
    /// The owner declares that no effect has begun yet.
    pub staged: bool,
    /// Wanted lapse rule.
    pub on_lapse: Option<LapseRule>,
    /// When the caller first sent this intent.
    pub first_sent_at: Option<Time>,
    /// Labels, sealed.
    pub labels: Option<Sealed>,
    /// Wanted replay window, s.
    pub replay_s: Option<u32>,
    /// Wanted evidence window, s.
    pub evidence_s: Option<u32>,
    /// Past this cluster time the claim changes nothing.
    pub not_after: Option<Time>,
    /// Who claims, sealed.
    pub actor: Sealed,
}

/// An outcome as it is proposed.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProposedOutcome {
    /// Status, headers, content type and valid-until, sealed.
    pub meta: Sealed,
    /// The body, sealed.
    pub body: Sealed,
    /// Keyed digest over all of it.
    pub digest: KeyedDigest,
    /// Plaintext length of the body, bytes.
    pub body_bytes: u32,
}

/// A recovery point as it is proposed: sealed under the fence of the command that carries it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ProposedPoint {
    /// Name and data, sealed.
    pub sealed: Sealed,
    /// Keyed digest of both.
    pub digest: KeyedDigest,
    /// Plaintext length of the data, bytes.
    pub data_bytes: u32,
}

tagged_values! {
    /// What an owner does with its record.
    OwnerAction {
        /// staged → begun; the lease, ms, is extended where one is given.
        Begin(Option<u32>) = 1,
        /// Extends the lease: by this, ms, or by the length last granted.
        Renew(Option<u32>) = 2,
        /// Keeps a recovery point.
        Checkpoint(ProposedPoint) = 3,
        /// Reports the outcome.
        Complete(ProposedOutcome) = 4,
        /// States that no effect happened; the evidence, sealed.
        Release(Option<Sealed>) = 5,
        /// Does not know what happened; the reason, sealed.
        Suspend(Option<Sealed>) = 6,
    }
}

/// A command of an owner: every one carries the fence.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OwnerCommand {
    /// The record.
    pub record: RecordRef,
    /// The fence of the grant.
    pub fence: Fence,
    /// What to do.
    pub action: OwnerAction,
    /// Who does it, sealed.
    pub actor: Sealed,
}

/// Who reconciles: the name sealed, and its keyed digest to tell one from another.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Reconciler {
    /// The name, sealed.
    pub actor: Sealed,
    /// Its keyed digest.
    pub digest: KeyedDigest,
}

/// Investigate: one reconciler at a time holds the indeterminate record.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Investigate {
    /// The record.
    pub record: RecordRef,
    /// For how long, ms.
    pub lease_ms: Option<u32>,
    /// Only if the record still has this version.
    pub version: Option<Position>,
    /// Who.
    pub by: Reconciler,
}

tagged_values! {
    /// What a reconciler found.
    Verdict {
        /// The effect happened, with this outcome.
        Completed(ProposedOutcome) = 1,
        /// The effect did not happen and will not.
        NoEffect(()) = 2,
        /// Not known yet; look again at this time.
        Unknown(Time) = 3,
    }
}

/// Resolve: a verdict with evidence.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Resolve {
    /// The record.
    pub record: RecordRef,
    /// The version that the reconciler looked at.
    pub version: Position,
    /// What was found.
    pub verdict: Verdict,
    /// Who.
    pub by: Reconciler,
    /// Why, sealed.
    pub evidence: Sealed,
    /// The request, for repeats.
    pub request_id: Uuid,
}

/// Forget: erase a completed outcome early.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Forget {
    /// The record.
    pub record: RecordRef,
    /// Who, sealed.
    pub actor: Sealed,
    /// Why, sealed.
    pub reason: Option<Sealed>,
}

/// Changes the policy of a tenant or of one of its operations.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PolicySet {
    /// Whose.
    pub tenant: Tenant,
    /// Which operation's; none for the tenant's own.
    pub operation: Option<KeyedHash>,
    /// The fields that change.
    pub patch: PolicyPatch,
    /// Who, sealed.
    pub actor: Sealed,
    /// The patch as JSON text, sealed: for the audit trail.
    pub detail: Sealed,
}

/// A 32-byte secret, wrapped by the key of `wrapping_id` (0: not wrapped).
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub struct Wrapped {
    /// The wrapping key, 0 for none.
    pub wrapping_id: u32,
    /// Nonce ‖ ciphertext ‖ tag; the 32 bytes themselves under 0.
    pub bytes: Blob,
}

impl std::fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wrapped({})", self.wrapping_id)
    }
}

/// The first use of a tenant: its index key, which never changes.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TenantOpened {
    /// The tenant.
    pub tenant: Tenant,
    /// Key of its keyed hashes and digests.
    pub index_key: Wrapped,
}

/// A token's record (its secret is stored nowhere).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Token {
    /// 10 random bytes.
    pub id: [u8; 10],
    /// HMAC of id and secret under the token key.
    pub hash: [u8; 32],
    /// Its tenant; none for a cluster token.
    pub tenant: Option<Tenant>,
    /// Bits 0–4: claim, reconcile, read_outcomes, administer, cluster.
    pub permissions: u8,
    /// When it was made.
    pub created_at: Time,
    /// When it ends.
    pub expires_at: Option<Time>,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    /// Where it was made.
    pub created: Position,
    /// Operations, note and maker, sealed.
    pub scope: Sealed,
}

/// The first command of a cluster's life.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Init {
    /// Drawn now, kept by every restore.
    pub lineage_id: LineageId,
    /// Drawn now, and anew by every restore.
    pub cluster_id: ClusterId,
    /// The agreed name, for certificates.
    pub cluster_name: String,
    /// Key of all downstream keys.
    pub downstream_secret: Wrapped,
    /// What all voters understand; 1 is the first.
    pub feature_level: u32,
    /// The numbers that apply uses.
    pub limits: Limits,
    /// The policy under every tenant's.
    pub policy: Policy,
    /// A cluster token, if one is made.
    pub first_token: Option<Token>,
}

/// The first command after a restore: turns the doubt on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Restored {
    /// The new incarnation.
    pub cluster_id: ClusterId,
    /// Its own position: every fence below it is stale from now on.
    pub first_position: Position,
    /// When the old cluster was surely dead.
    pub gap_end: Option<Time>,
    /// Who, sealed.
    pub actor: Sealed,
}

/// Turns the doubt of a restore off.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DoubtEnded {
    /// Who, sealed.
    pub actor: Sealed,
}

/// A node was removed: its id is never used again.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct NodeRetired {
    /// Its id.
    pub node_id: NodeId,
}

/// Ends the writes of this incarnation for good: whatever a backup holds from here on is all there is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct WritesEnded {
    /// Who, sealed.
    pub actor: Sealed,
}

/// All voters understand more than before: commands of this level may be proposed from now on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FeatureRaised {
    /// The level.
    pub level: u32,
}

tagged_words! {
    /// What an operator, or the cluster itself, has done that is no command to the records.
    Deed {
        /// A node was added, as learner.
        MemberAdded = 1 "member_added",
        /// A learner votes.
        MemberPromoted = 2 "member_promoted",
        /// A node was taken out for good.
        MemberRemoved = 3 "member_removed",
        /// A node goes on with another disk.
        MemberReplaced = 4 "member_replaced",
        /// Another member was made to lead.
        LeaderTransferred = 5 "leader_transferred",
        /// A backup was made.
        BackupMade = 6 "backup_made",
        /// Calls without a good credential were turned away.
        AuthenticationRefused = 7 "authentication_refused",
        /// Somebody signed in to the console.
        ConsoleSignedIn = 8 "console_signed_in",
    }
}

/// Has a deed stand in the cluster's audit chain: it changes nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Noted {
    /// What was done.
    pub deed: Deed,
    /// Who, sealed.
    pub actor: Sealed,
    /// To what, as JSON text, sealed.
    pub detail: Sealed,
}

tagged_values! {
    /// What somebody with a token asks for. Tags and values are those of [`Command`].
    CallerCommand {
        /// Changes a policy.
        PolicySet(Box<PolicySet>) = 3,
        /// Claims a record.
        Claim(Box<Claim>) = 4,
        /// What an owner does.
        Owner(Box<OwnerCommand>) = 5,
        /// Holds an indeterminate record for a reconciler.
        Investigate(Box<Investigate>) = 6,
        /// Ends an indeterminate record.
        Resolve(Box<Resolve>) = 7,
        /// Erases an outcome.
        Forget(Box<Forget>) = 8,
        /// Makes a token.
        TokenCreated(Box<TokenCreated>) = 15,
        /// Ends a token.
        TokenRevoked(Box<TokenRevoked>) = 16,
    }
}

/// A command in the name of a token: it counts only if the token is good where the command is applied. So nothing that
/// comes after a revocation takes place, through whichever node it came.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ByToken {
    /// The token's id.
    pub token: [u8; 10],
    /// The command.
    pub command: CallerCommand,
}

impl Command {
    /// The same in the name of a token; what no caller asks for stays as it is.
    pub fn by_token(self, token: [u8; 10]) -> Self {
        let command = match self {
            Command::PolicySet(set) => CallerCommand::PolicySet(set),
            Command::Claim(claim) => CallerCommand::Claim(claim),
            Command::Owner(owner) => CallerCommand::Owner(owner),
            Command::Investigate(investigate) => CallerCommand::Investigate(investigate),
            Command::Resolve(resolve) => CallerCommand::Resolve(resolve),
            Command::Forget(forget) => CallerCommand::Forget(forget),
            Command::TokenCreated(created) => CallerCommand::TokenCreated(created),
            Command::TokenRevoked(revoked) => CallerCommand::TokenRevoked(revoked),
            other => return other,
        };
        Command::ByToken(Box::new(ByToken { token, command }))
    }
}

/// The highest feature level that this release understands. Raised with every command, or field of one, that an older release
/// can't read.
pub const FEATURE_LEVEL: u32 = 2;

impl Command {
    /// The feature level that the cluster must have reached before this may be proposed.
    pub fn feature_level(&self) -> u32 {
        match self {
            Command::Init(_)
            | Command::TenantOpened(_)
            | Command::PolicySet(_)
            | Command::Claim(_)
            | Command::Owner(_)
            | Command::Investigate(_)
            | Command::Resolve(_)
            | Command::Forget(_)
            | Command::Restored(_)
            | Command::DoubtEnded(_)
            | Command::NodeRetired(_)
            | Command::FeatureRaised(_)
            | Command::WritesEnded(_)
            | Command::TokenCreated(_)
            | Command::TokenRevoked(_)
            | Command::TokensDropped(_)
            | Command::ByToken(_)
            | Command::SealedInit(_)
            | Command::SealedTenantOpened(_) => 1,
            Command::Noted(noted) => match noted.deed {
                Deed::AuthenticationRefused | Deed::ConsoleSignedIn => 2,
                _ => 1,
            },
            Command::TenantClosed(_)
            | Command::TenantKeysDestroyed(_)
            | Command::KeyRotated(_)
            | Command::RootsRewrapped(_)
            | Command::DataKeyAdded(_)
            | Command::Resealed(_)
            | Command::DataKeyRemoved(_)
            | Command::SealingEnabled(_) => 2,
        }
    }
}

tagged_values! {
    /// Everything that can change the replicated state.
    Command {
        /// Forms the state.
        Init(Box<Init>) = 1,
        /// Opens a tenant.
        TenantOpened(TenantOpened) = 2,
        /// Changes a policy.
        PolicySet(Box<PolicySet>) = 3,
        /// Claims a record.
        Claim(Box<Claim>) = 4,
        /// What an owner does.
        Owner(Box<OwnerCommand>) = 5,
        /// Holds an indeterminate record for a reconciler.
        Investigate(Box<Investigate>) = 6,
        /// Ends an indeterminate record.
        Resolve(Box<Resolve>) = 7,
        /// Erases an outcome.
        Forget(Box<Forget>) = 8,
        /// Turns a restore's doubt on.
        Restored(Box<Restored>) = 9,
        /// Turns it off.
        DoubtEnded(DoubtEnded) = 10,
        /// Remembers the id of a removed node.
        NodeRetired(NodeRetired) = 11,
        /// Raises the feature level.
        FeatureRaised(FeatureRaised) = 12,
        /// Ends the writes of this incarnation.
        WritesEnded(WritesEnded) = 13,
        /// A deed that stands in the audit chain.
        Noted(Noted) = 14,
        /// Makes a token.
        TokenCreated(Box<TokenCreated>) = 15,
        /// Ends a token.
        TokenRevoked(Box<TokenRevoked>) = 16,
        /// Removes tokens that ended long ago.
        TokensDropped(TokensDropped) = 17,
        /// A command in the name of a token.
        ByToken(Box<ByToken>) = 18,
        /// Forms the state of a sealed cluster.
        SealedInit(Box<SealedInit>) = 19,
        /// Opens a tenant in a sealed cluster.
        SealedTenantOpened(Box<SealedTenantOpened>) = 20,
        /// Closes a tenant.
        TenantClosed(Box<TenantClosed>) = 21,
        /// Destroys its keys.
        TenantKeysDestroyed(Box<TenantKeysDestroyed>) = 22,
        /// Another key wraps root keys from now on.
        KeyRotated(KeyRotated) = 23,
        /// Root keys under the key that wraps them now.
        RootsRewrapped(RootsRewrapped) = 24,
        /// Another data key seals from now on.
        DataKeyAdded(DataKeyAdded) = 25,
        /// Fields under the data key that seals now.
        Resealed(Box<Resealed>) = 26,
        /// A data key that nothing is sealed with any more.
        DataKeyRemoved(DataKeyRemoved) = 27,
        /// Seals a cluster that was formed without keys.
        SealingEnabled(Box<SealingEnabled>) = 28,
    }
}

/// What one log entry holds: the leader's time and the commands of many callers. Without commands it is a tick.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// Cluster time, stamped by the leader.
    pub time: Time,
    /// In this order.
    pub commands: Vec<Arc<Command>>,
}
