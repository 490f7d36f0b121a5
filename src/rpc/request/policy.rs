//! A policy's fields, each with what any policy can allow.

use crate::{
    limits,
    proto::v1,
    records::{
        command::LapseRule,
        policy::{ExpiredClaims, LowEntropyKeys, Oversize, Patch, PolicyPatch},
    },
    refusal::Refusal,
};

type Checked<T> = Result<T, Refusal>;

fn bounded(field: &str, value: Option<u32>, min: u32, max: u32) -> Checked<Option<u32>> {
    match value {
        Some(value) if !(min..=max).contains(&value) => {
            Err(Refusal::invalid(format!("policy.{field} must lie from {min} to {max}")))
        }
        value => Ok(value),
    }
}

/// Reads an enum field. Unspecified is none.
fn word<W, T>(field: &str, value: Option<i32>, of: impl Fn(W) -> Option<T>) -> Checked<Option<T>>
where
    W: TryFrom<i32>,
{
    match value.map(W::try_from) {
        None => Ok(None),
        Some(Ok(word)) => Ok(of(word)),
        Some(Err(_)) => Err(Refusal::invalid(format!("policy.{field} has an unknown value"))),
    }
}

fn on_lapse(word: v1::OnLapse) -> Option<LapseRule> {
    match word {
        v1::OnLapse::Unspecified => None,
        v1::OnLapse::Hold => Some(LapseRule::Hold),
        v1::OnLapse::Retake => Some(LapseRule::Retake),
    }
}

fn oversize(word: v1::Oversize) -> Option<Oversize> {
    match word {
        v1::Oversize::Unspecified => None,
        v1::Oversize::Reject => Some(Oversize::Reject),
        v1::Oversize::DigestOnly => Some(Oversize::DigestOnly),
    }
}

fn expired_claims(word: v1::ExpiredClaims) -> Option<ExpiredClaims> {
    match word {
        v1::ExpiredClaims::Unspecified => None,
        v1::ExpiredClaims::Reject => Some(ExpiredClaims::Reject),
        v1::ExpiredClaims::RunAsNew => Some(ExpiredClaims::RunAsNew),
    }
}

fn low_entropy_keys(word: v1::LowEntropyKeys) -> Option<LowEntropyKeys> {
    match word {
        v1::LowEntropyKeys::Unspecified => None,
        v1::LowEntropyKeys::Allow => Some(LowEntropyKeys::Allow),
        v1::LowEntropyKeys::Warn => Some(LowEntropyKeys::Warn),
        v1::LowEntropyKeys::Refuse => Some(LowEntropyKeys::Refuse),
    }
}

/// Puts a removal over a field that isn't given.
fn remove<T>(field: &str, patch: &mut Patch<T>) -> Checked<()> {
    match patch {
        Patch::Set(_) => Err(Refusal::invalid(format!("policy.{field} is both given and removed"))),
        patch => {
            *patch = Patch::Clear;
            Ok(())
        }
    }
}

/// Declares the fields once: how each is read, and that each can be removed by its name.
macro_rules! fields {
    ($m:ident; $($field:ident = $read:expr;)*) => {
        /// The names of a policy's fields.
        pub(crate) const FIELDS: &[&str] = &[$(stringify!($field)),*];

        /// The changes that these fields and removals make.
        pub(super) fn patch($m: v1::Policy, removed: &[String]) -> Checked<PolicyPatch> {
            let mut patch = PolicyPatch { $($field: $read.map_or(Patch::Keep, Patch::Set),)* };
            for name in removed {
                match name.as_str() {
                    $(stringify!($field) => remove(stringify!($field), &mut patch.$field)?,)*
                    _ => return Err(Refusal::invalid("remove names a field that no policy has")),
                }
            }
            Ok(patch)
        }
    };
}

fields! { m;
    lease_ms_default = bounded("lease_ms_default", m.lease_ms_default, limits::LEASE_MS_MIN, limits::LEASE_MS_LIMIT)?;
    lease_ms_max = bounded("lease_ms_max", m.lease_ms_max, limits::LEASE_MS_MIN, limits::LEASE_MS_LIMIT)?;
    wait_ms_max = bounded("wait_ms_max", m.wait_ms_max, 0, limits::WAIT_MS_LIMIT)?;
    on_lapse = word("on_lapse", m.on_lapse, on_lapse)?;
    replay_s = bounded("replay_s", m.replay_s, 0, limits::WINDOW_S_LIMIT)?;
    evidence_s = bounded("evidence_s", m.evidence_s, 0, limits::WINDOW_S_LIMIT)?;
    replay_s_max = bounded("replay_s_max", m.replay_s_max, 0, limits::WINDOW_S_LIMIT)?;
    evidence_s_max = bounded("evidence_s_max", m.evidence_s_max, 0, limits::WINDOW_S_LIMIT)?;
    outcome_bytes_max = bounded("outcome_bytes_max", m.outcome_bytes_max, 0, limits::OUTCOME_BYTES_MAX)?;
    oversize = word("oversize", m.oversize, oversize)?;
    checkpoint_bytes_max = bounded("checkpoint_bytes_max", m.checkpoint_bytes_max, 0, limits::CHECKPOINT_BYTES_MAX)?;
    expired_claims = word("expired_claims", m.expired_claims, expired_claims)?;
    effect_ms_max = bounded("effect_ms_max", m.effect_ms_max, 0, limits::LEASE_MS_LIMIT)?;
    key_bytes_min = bounded("key_bytes_min", m.key_bytes_min, 0, limits::KEY_BYTES_MAX as u32)?;
    low_entropy_keys = word("low_entropy_keys", m.low_entropy_keys, low_entropy_keys)?;
    records_max = m.records_max;
    bytes_max = m.bytes_max;
    indeterminate_max = m.indeterminate_max;
    claims_per_s = m.claims_per_s;
}
