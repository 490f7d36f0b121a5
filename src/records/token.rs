//! Tokens: made, ended, dropped; and whether one is good.

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::{
    answer::Answer,
    apply::open_tenant,
    audit,
    command::{Sealed, Token},
    state::{AuditKind, State},
};
use crate::{
    id::{Position, Tenant, Time},
    refusal::{Code, Refusal},
};

/// Makes a token. Its numbers come along, so that every replica judges by the same.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TokenCreated {
    /// The token; when and where it was made is filled in when this is applied.
    pub token: Token,
    /// Tokens that its tenant (for a cluster token: the cluster) may have.
    pub tenant_max: u32,
    /// Tokens that there may be at all.
    pub total_max: u32,
    /// Who, sealed.
    pub actor: Sealed,
    /// What it may, as JSON text, sealed: for the audit trail.
    pub detail: Sealed,
}

/// Ends a token at once.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TokenRevoked {
    /// Its id.
    pub id: [u8; 10],
    /// Only a token of this tenant; none: of whomever.
    pub tenant: Option<Tenant>,
    /// Who, sealed.
    pub actor: Sealed,
    /// Why, sealed.
    pub reason: Sealed,
}

/// What is said of a token that there is not.
pub const NO_SUCH_TOKEN: &str = "there is no token of this id";

/// Removes tokens that have ended long ago.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TokensDropped {
    /// Their ids; what has not ended before that time stays.
    pub ids: Vec<[u8; 10]>,
    /// Before when they must have ended.
    pub ended_before: Time,
}

impl Token {
    /// When it ends, or has ended; none where it never does by itself.
    pub fn ends(&self) -> Option<Time> {
        [self.revoked_at, self.expires_at].into_iter().flatten().min()
    }

    /// Whether it counts at this moment.
    pub fn is_good(&self, now: Time) -> bool {
        self.ends().is_none_or(|ends| now < ends)
    }
}

/// The one refusal of whatever is no good credential.
pub fn unauthenticated() -> Refusal {
    Refusal::new(Code::Unauthenticated, "send a valid token as `Authorization: Bearer TOKEN`")
}

/// Refuses what is asked in the name of a token that is none any more.
pub(super) fn judge(state: &impl State, id: &[u8; 10], now: Time) -> Result<(), Refusal> {
    let is_good = state.token(id).is_some_and(|token| token.is_good(now));
    if is_good { Ok(()) } else { Err(unauthenticated()) }
}

pub(super) fn create(
    state: &mut impl State,
    created: &TokenCreated,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let asked = &created.token;
    if let Some(tenant) = &asked.tenant {
        open_tenant(state, tenant)?;
    }
    if let Some(known) = state.token(&asked.id) {
        let same = |token: &Token| (token.hash, token.tenant.clone(), token.permissions, token.scope.clone());
        // A repeat is asked for a little later, and so for a little longer: what was made stays as it is.
        return match same(&known) == same(asked) {
            true => Ok(Answer::Token(known)),
            false => Err(Refusal::new(Code::WrongState, "a token of this id exists, with another secret or scope")),
        };
    }
    let (of_tenant, total) = state.count_tokens(asked.tenant.as_ref());
    if of_tenant >= created.tenant_max as usize || total >= created.total_max as usize {
        let detail = "there are as many tokens as there may be; those that ended make room after 30 days";
        return Err(Refusal::new(Code::QuotaExceeded, detail));
    }
    let token = Token { created_at: now, created: at, revoked_at: None, ..asked.clone() };
    state.put_token(token.clone());
    let note = audit::Note {
        kind: AuditKind::TokenCreated,
        record: None,
        actor: Some(&created.actor),
        detail: Some(&created.detail),
    };
    audit::append(state, token.tenant.as_ref(), at, now, note);
    Ok(Answer::Token(Arc::new(token)))
}

pub(super) fn revoke(
    state: &mut impl State,
    revoked: &TokenRevoked,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let known = state.token(&revoked.id);
    let known = known.filter(|token| revoked.tenant.is_none() || token.tenant == revoked.tenant);
    let known = known.ok_or_else(|| Refusal::new(Code::NotFound, NO_SUCH_TOKEN))?;
    if known.revoked_at.is_some() {
        return Ok(Answer::Token(known));
    }
    let token = Token { revoked_at: Some(now), ..(*known).clone() };
    state.put_token(token.clone());
    let note = audit::Note {
        kind: AuditKind::TokenRevoked,
        record: None,
        actor: Some(&revoked.actor),
        detail: Some(&revoked.reason),
    };
    audit::append(state, token.tenant.as_ref(), at, now, note);
    Ok(Answer::Token(Arc::new(token)))
}

pub(super) fn drop_ended(state: &mut impl State, dropped: &TokensDropped, now: Time) -> Result<Answer, Refusal> {
    for id in &dropped.ids {
        let ends = state.token(id).and_then(|token| token.ends());
        if ends.is_some_and(|ends| ends < dropped.ended_before && ends <= now) {
            state.remove_token(id);
        }
    }
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests;
