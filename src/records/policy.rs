//! Limits and policies: every number that apply uses. Both are replicated state; the defaults come from
//! [`limits`] once, at init.

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};

use super::{codec::tagged_words, command::LapseRule};
use crate::{id::Time, limits};

/// Numbers that apply uses beside the policies: written at init, changed only by a logged feature level.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Limits {
    /// Records that one sweep writes down at most.
    pub swept_per_entry_max: u32,
    /// Shortest lease, ms.
    pub lease_ms_min: u32,
    /// Shortest time to retry after, ms.
    pub retry_after_ms_min: u32,
    /// Time to retry after for an indeterminate record without a time to check again, ms.
    pub retry_after_ms_indeterminate: u32,
    /// Longest time to retry after for an indeterminate record, ms.
    pub retry_after_ms_max: u32,
    /// Rows of a record's history.
    pub history_rows_max: u8,
    /// Verdicts of a record that are remembered for repeats.
    pub resolves_kept: u8,
    /// Largest body inside a head, bytes.
    pub inline_body_bytes_max: u32,
    /// Tenants.
    pub tenants_max: u32,
    /// Operation policies of a tenant.
    pub policies_per_tenant_max: u32,
    /// How long audit rows are kept, s.
    pub audit_s: u32,
    /// Skew of clients' clocks that a restore allows for, ms.
    pub gap_skew_ms: u32,
    /// How far a restore's first position must be above the backup's.
    pub restore_position_gap: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            swept_per_entry_max: limits::SWEPT_PER_ENTRY_MAX,
            lease_ms_min: limits::LEASE_MS_MIN,
            retry_after_ms_min: limits::RETRY_AFTER_MS_MIN,
            retry_after_ms_indeterminate: limits::RETRY_AFTER_MS_INDETERMINATE,
            retry_after_ms_max: limits::RETRY_AFTER_MS_MAX,
            history_rows_max: limits::HISTORY_ROWS_MAX,
            resolves_kept: limits::RESOLVES_KEPT,
            inline_body_bytes_max: limits::INLINE_BODY_BYTES_MAX,
            tenants_max: limits::TENANTS_MAX,
            policies_per_tenant_max: limits::POLICIES_PER_TENANT_MAX,
            audit_s: limits::AUDIT_S,
            gap_skew_ms: limits::GAP_SKEW_MS,
            restore_position_gap: limits::RESTORE_POSITION_GAP,
        }
    }
}

tagged_words! {
    /// What happens to an outcome whose body is larger than the policy allows.
    Oversize {
        /// The completion is refused.
        Reject = 1 "reject",
        /// Completed without a body.
        DigestOnly = 2 "digest_only",
    }
}

tagged_words! {
    /// What a claim of an expired record gets.
    ExpiredClaims {
        /// `expired`.
        Reject = 1 "reject",
        /// `new`: the tenant takes the risk.
        RunAsNew = 2 "run_as_new",
    }
}

tagged_words! {
    /// What happens to a key that is easily guessed or repeated.
    LowEntropyKeys {
        /// Nothing.
        Allow = 1 "allow",
        /// The answer carries a warning.
        Warn = 2 "warn",
        /// `invalid_argument`.
        Refuse = 3 "refuse",
    }
}

/// What a patch does to one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Leaves it.
    #[default]
    Keep,
    /// Removes the override.
    Clear,
    /// Sets it.
    Set(T),
}

impl<T: Copy> Patch<T> {
    fn on(self, current: Option<T>) -> Option<T> {
        match self {
            Patch::Keep => current,
            Patch::Clear => None,
            Patch::Set(value) => Some(value),
        }
    }
}

impl<T: Encode> Encode for Patch<T> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        match self {
            Patch::Keep => 0u8.encode(encoder),
            Patch::Clear => 1u8.encode(encoder),
            Patch::Set(value) => {
                2u8.encode(encoder)?;
                value.encode(encoder)
            }
        }
    }
}

impl<C, T: Decode<C>> Decode<C> for Patch<T> {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        match u8::decode(decoder)? {
            0 => Ok(Patch::Keep),
            1 => Ok(Patch::Clear),
            2 => Ok(Patch::Set(T::decode(decoder)?)),
            _ => Err(DecodeError::Other("unknown tag of Patch")),
        }
    }
}

impl<'de, C, T: Decode<C>> BorrowDecode<'de, C> for Patch<T> {
    fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        Self::decode(decoder)
    }
}

/// Declares the fields once, for the effective policy, its overrides and the patch.
macro_rules! policy_fields {
    ($($(#[$doc:meta])* $field:ident: $Type:ty = $default:expr, $kind:ident;)*) => {
        /// Overrides of a tenant or of one of its operations: none where the level above holds.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
        pub struct Overrides { $($(#[$doc])* pub $field: Option<$Type>,)* }

        /// Changes of overrides, field by field.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
        pub struct PolicyPatch { $($(#[$doc])* pub $field: Patch<$Type>,)* }

        impl PolicyPatch {
            /// The overrides after this patch.
            pub fn on(&self, current: &Overrides) -> Overrides {
                Overrides { $($field: self.$field.on(current.$field),)* }
            }
        }

        /// A policy with every field decided. Quotas are per level: none is unlimited.
        #[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
        pub struct Policy { $($(#[$doc])* pub $field: policy_fields!(@type $kind $Type),)* }

        impl Default for Policy {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Policy {
            /// This policy under the overrides of the next level.
            pub fn under(&self, overrides: &Overrides) -> Policy {
                Policy { $($field: policy_fields!(@under $kind self.$field, overrides.$field),)* }
            }
        }
    };
    (@type value $Type:ty) => { $Type };
    (@type quota $Type:ty) => { Option<$Type> };
    (@under value $base:expr, $over:expr) => { $over.unwrap_or($base) };
    (@under quota $base:expr, $over:expr) => { $over.or($base) };
}

policy_fields! {
    /// Lease when a claim names none, ms.
    lease_ms_default: u32 = limits::LEASE_MS_DEFAULT, value;
    /// Longest lease, ms.
    lease_ms_max: u32 = limits::LEASE_MS_MAX_DEFAULT, value;
    /// Longest wait, ms.
    wait_ms_max: u32 = limits::WAIT_MS_MAX_DEFAULT, value;
    /// Lapse rule when a claim names none.
    on_lapse: LapseRule = LapseRule::Hold, value;
    /// Replay window when a claim names none, s.
    replay_s: u32 = limits::REPLAY_S_DEFAULT, value;
    /// Evidence window when a claim names none, s.
    evidence_s: u32 = limits::EVIDENCE_S_DEFAULT, value;
    /// Longest replay window, s.
    replay_s_max: u32 = limits::REPLAY_S_MAX_DEFAULT, value;
    /// Longest evidence window, s.
    evidence_s_max: u32 = limits::EVIDENCE_S_MAX_DEFAULT, value;
    /// Largest outcome body, bytes.
    outcome_bytes_max: u32 = limits::OUTCOME_BYTES_MAX_DEFAULT, value;
    /// What a larger one does.
    oversize: Oversize = Oversize::Reject, value;
    /// Largest checkpoint data, bytes.
    checkpoint_bytes_max: u32 = limits::CHECKPOINT_BYTES_MAX, value;
    /// What a claim of an expired record gets.
    expired_claims: ExpiredClaims = ExpiredClaims::Reject, value;
    /// How long after its lease an owner may still send, ms.
    effect_ms_max: u32 = limits::EFFECT_MS_MAX_DEFAULT, value;
    /// Shortest key, bytes.
    key_bytes_min: u32 = 1, value;
    /// What happens to a key that is easily guessed.
    low_entropy_keys: LowEntropyKeys = LowEntropyKeys::Allow, value;
    /// Records, traces not counted.
    records_max: u64 = None, quota;
    /// Bytes of records and their history.
    bytes_max: u64 = None, quota;
    /// Indeterminate records.
    indeterminate_max: u64 = Some(limits::INDETERMINATE_MAX_DEFAULT), quota;
    /// Claims per second and node.
    claims_per_s: u32 = None, quota;
}

/// What one level (a tenant, or one operation of it) overrides, and what it remembers of a raised evidence window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct PolicyLevel {
    /// The overrides.
    pub overrides: Overrides,
    /// A raise of the evidence window: requests first sent before it are judged by what held then.
    pub raised: Option<Raised>,
    /// The same of `evidence_s_max`, which an operation with a window of its own lives under.
    pub max_raised: Option<Raised>,
}

/// When an evidence window was raised, and from what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Raised {
    /// When.
    pub at: Time,
    /// The window before, s.
    pub previous_s: u32,
}

impl PolicyLevel {
    /// Remembers what a change of this level did to the windows that requests are judged by.
    pub fn remember(&mut self, before: &Effective, after: &Effective, of_operation: bool, now: Time) {
        if of_operation {
            // A raise of the tenant's that the operation lived under until now stays a raise that it lived under.
            let left = before.raised[1].filter(|_| after.raised[1] != before.raised[1]);
            self.raised = Raised::joined(self.raised, left);
        } else {
            let max = Raised::between(before.policy.evidence_s_max, after.policy.evidence_s_max, now);
            self.max_raised = Raised::joined(self.max_raised, max);
        }
        let raised = Raised::between(before.evidence_s(), after.evidence_s(), now);
        self.raised = Raised::joined(self.raised, raised);
    }
}

impl Raised {
    fn between(before_s: u32, after_s: u32, now: Time) -> Option<Self> {
        (after_s > before_s).then_some(Self { at: now, previous_s: before_s })
    }

    /// One memory for two raises. The later one stands for both where the earlier one no longer matters; else the
    /// smaller window, as of the later time: that can only refuse more, never less.
    fn joined(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
        let (earlier, later) = if one.at <= other.at { (one, other) } else { (other, one) };
        if later.at >= earlier.at.plus_s(later.previous_s) {
            return Some(later);
        }
        Some(Self { at: later.at, previous_s: later.previous_s.min(earlier.previous_s) })
    }
}

/// The policies that hold for one operation: what a claim, a completion and a verdict are judged by.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Effective {
    /// The tenant's policy with the operation's overrides.
    pub policy: Policy,
    /// The tenant's own quotas.
    pub tenant: Quotas,
    /// The operation's own quotas, counted for it alone.
    pub operation: Quotas,
    /// Raises of the evidence window that still matter.
    pub raised: [Option<Raised>; 2],
}

/// Quotas of one level: none is unlimited, 0 is none allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Quotas {
    /// Records.
    pub records_max: Option<u64>,
    /// Bytes.
    pub bytes_max: Option<u64>,
    /// Indeterminate records.
    pub indeterminate_max: Option<u64>,
}

impl Effective {
    /// The policy of an operation, from the default and both levels.
    pub fn of(default: &Policy, tenant: Option<&PolicyLevel>, operation: Option<&PolicyLevel>) -> Self {
        let base = tenant.map_or_else(|| default.clone(), |level| default.under(&level.overrides));
        let tenant_quotas = Quotas {
            records_max: base.records_max,
            bytes_max: base.bytes_max,
            indeterminate_max: base.indeterminate_max,
        };
        let operation_quotas = operation.map_or(Quotas::default(), |level| Quotas {
            records_max: level.overrides.records_max,
            bytes_max: level.overrides.bytes_max,
            indeterminate_max: level.overrides.indeterminate_max,
        });
        let own = operation.map(|level| (level.overrides.evidence_s, level.overrides.evidence_s_max));
        let inherited = tenant.and_then(|level| match own {
            Some((Some(_), Some(_))) => None,
            Some((Some(_), None)) => level.max_raised,
            Some((None, _)) | None => level.raised,
        });
        let raised = [operation.and_then(|level| level.raised), inherited];
        let policy = operation.map_or_else(|| base.clone(), |level| base.under(&level.overrides));
        Self { policy, tenant: tenant_quotas, operation: operation_quotas, raised }
    }

    /// The evidence window that a request first sent at `first_sent_at` is judged by, s.
    pub fn evidence_s_at(&self, first_sent_at: Time) -> u32 {
        let raises = self.raised.iter().flatten().filter(|raised| first_sent_at < raised.at);
        raises.map(|raised| raised.previous_s).fold(self.evidence_s(), u32::min)
    }

    /// The evidence window in force, s.
    pub fn evidence_s(&self) -> u32 {
        self.policy.evidence_s.min(self.policy.evidence_s_max)
    }

    /// A lease as granted, ms: the default where none is wanted, raised to the shortest, clamped to the longest.
    pub fn lease_ms(&self, wanted: Option<u32>, limits: &Limits) -> u32 {
        let wanted = wanted.filter(|ms| *ms > 0).unwrap_or(self.policy.lease_ms_default);
        wanted.min(self.policy.lease_ms_max).max(limits.lease_ms_min)
    }

    /// Both windows as fixed now, s: (replay, evidence), from what a claim wanted or the policy says.
    pub fn windows_s(&self, replay_s: Option<u32>, evidence_s: Option<u32>) -> (u32, u32) {
        let replay_s = replay_s.unwrap_or(self.policy.replay_s).min(self.policy.replay_s_max);
        let evidence_s = evidence_s.unwrap_or(self.policy.evidence_s).min(self.policy.evidence_s_max);
        (replay_s, evidence_s.max(replay_s))
    }
}
