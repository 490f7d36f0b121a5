//! Applies what was committed. Every replica must reach the same state from the same log, so nothing here performs
//! I/O, reads a clock, draws randomness or can fail.

use super::{
    answer::{Answer, Applied},
    audit, claim, closing,
    command::{
        ByToken, CallerCommand, Command, Deed, DoubtEnded, Entry, Init, Noted, PolicySet, RecordRef, Restored,
        TenantOpened, Token, WritesEnded,
    },
    owner,
    policy::Effective,
    reconcile, rekey, reseal, sealing,
    state::{AuditKind, Doubt, Ended, Event, Formed, State, TenantState},
    sweep, token,
};
use crate::{
    id::{Position, Tenant, Time},
    refusal::{Code, Refusal},
};
use std::sync::Arc;

/// Applies a committed entry: first writes down what is due, then each command at the next position.
pub fn apply(state: &mut impl State, entry: &Entry) -> Vec<Applied> {
    let now = entry.time.max(state.globals().time);
    let mut position = Position(state.globals().position.0 + 1);
    advance(state, position, now);
    sweep::sweep(state, position, now);
    let mut answers = Vec::with_capacity(entry.commands.len());
    for command in &entry.commands {
        position = Position(state.globals().position.0 + 1);
        advance(state, position, now);
        let answer = apply_command(state, command, position, now);
        let index = state.globals().position;
        let answer = answer.map_err(|refusal| Refusal { index: Some(index), ..refusal });
        answers.push(Applied { index, now, answer });
    }
    answers
}

fn advance(state: &mut impl State, position: Position, time: Time) {
    let globals = state.globals_mut();
    (globals.position, globals.time) = (position, time);
}

fn apply_command(state: &mut impl State, command: &Command, at: Position, now: Time) -> Result<Answer, Refusal> {
    if state.globals().formed.is_none() && !matches!(command, Command::Init(_) | Command::SealedInit(_)) {
        return Err(Refusal::new(Code::Unavailable, "the cluster is not formed yet"));
    }
    // What the members do among themselves goes on, and so does the restore's own first command.
    let goes_on = matches!(
        command,
        Command::Restored(_)
            | Command::WritesEnded(_)
            | Command::NodeRetired(_)
            | Command::FeatureRaised(_)
            | Command::Noted(_)
    );
    if state.ended().is_some() && !goes_on {
        let detail =
            "this cluster's writes were ended for good by its final backup; the cluster restored from it goes on";
        return Err(Refusal::new(Code::Unavailable, detail));
    }
    rekey::admit_command(state, command)?;
    match command {
        Command::Init(init) => form(state, init, at, now),
        // In a sealed cluster nothing is opened but with keys.
        Command::TenantOpened(_) if state.key_table().sealing.is_some() => {
            Err(Refusal::new(Code::Unavailable, "the cluster was sealed meanwhile; ask again"))
        }
        Command::TenantOpened(opened) => open(state, opened, at, now),
        Command::SealedInit(sealed) => sealing::form(state, sealed, at, now),
        Command::SealedTenantOpened(sealed) => sealing::open(state, sealed, at, now),
        Command::PolicySet(set) => set_policy(state, set, at, now),
        Command::Claim(claim) => claim::apply(state, claim, at, now),
        Command::Owner(owner) => owner::apply(state, owner, at, now),
        Command::Investigate(investigate) => reconcile::investigate(state, investigate, at, now),
        Command::Resolve(resolve) => reconcile::resolve(state, resolve, at, now),
        Command::Forget(forget) => reconcile::forget(state, forget, at, now),
        Command::TokenCreated(created) => token::create(state, created, at, now),
        Command::TokenRevoked(revoked) => token::revoke(state, revoked, at, now),
        Command::TokensDropped(dropped) => token::drop_ended(state, dropped, now),
        Command::ByToken(by) => apply_by_token(state, by, at, now),
        Command::Restored(restored) => restore(state, restored, at, now),
        Command::DoubtEnded(ended) => end_doubt(state, ended, at, now),
        Command::NodeRetired(retired) => {
            state.globals_mut().retired.insert(retired.node_id);
            Ok(Answer::Done)
        }
        Command::FeatureRaised(raised) => {
            let formed = &mut state.globals_mut().formed;
            if let Some(known) = formed.as_deref().filter(|known| known.feature_level < raised.level) {
                *formed = Some(Arc::new(Formed { feature_level: raised.level, ..known.clone() }));
            }
            Ok(Answer::Done)
        }
        Command::WritesEnded(ended) => end_writes(state, ended, at, now),
        Command::TenantClosed(closed) => closing::close(state, closed, at, now),
        Command::TenantKeysDestroyed(destroyed) => closing::destroy(state, destroyed, at, now),
        Command::KeyRotated(rotated) => rekey::rotate(state, rotated, at, now),
        Command::RootsRewrapped(rewrapped) => rekey::rewrap(state, rewrapped),
        Command::DataKeyAdded(added) => rekey::add(state, added, at, now),
        Command::Resealed(resealed) => reseal::reseal(state, resealed, now),
        Command::DataKeyRemoved(removed) => rekey::remove(state, removed, at, now),
        Command::SealingEnabled(enabled) => rekey::enable(state, enabled, at, now),
        Command::Noted(noted) => note(state, noted, at, now),
    }
}

fn apply_by_token(state: &mut impl State, by: &ByToken, at: Position, now: Time) -> Result<Answer, Refusal> {
    token::judge(state, &by.token, now)?;
    match &by.command {
        CallerCommand::PolicySet(set) => set_policy(state, set, at, now),
        CallerCommand::Claim(claim) => claim::apply(state, claim, at, now),
        CallerCommand::Owner(owner) => owner::apply(state, owner, at, now),
        CallerCommand::Investigate(investigate) => reconcile::investigate(state, investigate, at, now),
        CallerCommand::Resolve(resolve) => reconcile::resolve(state, resolve, at, now),
        CallerCommand::Forget(forget) => reconcile::forget(state, forget, at, now),
        CallerCommand::TokenCreated(created) => token::create(state, created, at, now),
        CallerCommand::TokenRevoked(revoked) => token::revoke(state, revoked, at, now),
    }
}

/// The tenant, where calls for it are taken.
pub(super) fn open_tenant(state: &impl State, tenant: &Tenant) -> Result<Arc<TenantState>, Refusal> {
    match state.tenant(tenant) {
        Some(opened) if !opened.closed => Ok(opened),
        _ => Err(forbidden()),
    }
}

/// The one body of `forbidden`: no reason in it.
pub(super) fn forbidden() -> Refusal {
    Refusal::new(Code::Forbidden, "the credential does not allow this call")
}

/// The policies that hold for a record.
pub fn effective(state: &impl State, record: &RecordRef) -> Effective {
    effective_of(state, &record.tenant, Some(record.operation))
}

/// The policies that hold for a tenant or for one of its operations.
pub fn effective_of(state: &impl State, tenant: &Tenant, operation: Option<crate::id::KeyedHash>) -> Effective {
    let level = state.policy(tenant, None);
    let own = operation.and_then(|operation| state.policy(tenant, Some(operation)));
    match &state.globals().formed {
        Some(formed) => Effective::of(&formed.policy, level.as_deref(), own.as_deref()),
        None => Effective::of(&super::policy::Policy::default(), level.as_deref(), own.as_deref()),
    }
}

pub(super) fn form(state: &mut impl State, init: &Init, at: Position, now: Time) -> Result<Answer, Refusal> {
    if state.globals().formed.is_some() {
        return Err(Refusal::new(Code::WrongState, "the cluster is formed already"));
    }
    let formed = Formed {
        lineage_id: init.lineage_id,
        cluster_id: init.cluster_id,
        cluster_name: init.cluster_name.clone(),
        downstream_secret: init.downstream_secret.clone(),
        feature_level: init.feature_level,
        limits: init.limits.clone(),
        policy: init.policy.clone(),
    };
    debug_assert_eq!(state.globals().position, at);
    state.globals_mut().formed = Some(Arc::new(formed));
    if let Some(token) = &init.first_token {
        // What init was told of time is as good as nothing: cluster time begins with it.
        state.put_token(Token { created_at: now, created: at, ..token.clone() });
    }
    Ok(Answer::Done)
}

pub(super) fn open(state: &mut impl State, opened: &TenantOpened, at: Position, now: Time) -> Result<Answer, Refusal> {
    if let Some(known) = state.tenant(&opened.tenant) {
        return if known.closed { Err(forbidden()) } else { Ok(Answer::Done) };
    }
    let Some(formed) = state.globals().formed.clone() else { return Err(forbidden()) };
    if state.globals().tenants >= formed.limits.tenants_max {
        let detail = "the cluster holds as many tenants as it may (tenants_max)";
        return Err(Refusal::new(Code::QuotaExceeded, detail));
    }
    state.globals_mut().tenants += 1;
    let tenant = TenantState {
        index_key: opened.index_key.clone(),
        opened: at,
        closed: false,
        audit: audit::first(formed.lineage_id, Some(&opened.tenant)),
        policies: 0,
    };
    state.put_tenant(&opened.tenant, tenant);
    let note = audit::Note { kind: AuditKind::TenantOpened, record: None, actor: None, detail: None };
    audit::append(state, Some(&opened.tenant), at, now, note);
    Ok(Answer::Done)
}

fn set_policy(state: &mut impl State, set: &PolicySet, at: Position, now: Time) -> Result<Answer, Refusal> {
    let tenant = open_tenant(state, &set.tenant)?;
    let known = state.policy(&set.tenant, set.operation);
    let before = effective_of(state, &set.tenant, set.operation);
    let Some(formed) = state.globals().formed.clone() else { return Err(forbidden()) };
    if set.operation.is_some() && known.is_none() && tenant.policies >= formed.limits.policies_per_tenant_max {
        let detail = "the tenant has as many operation policies as it may (policies_per_tenant_max)";
        return Err(Refusal::new(Code::QuotaExceeded, detail));
    }
    let mut level = known.as_deref().cloned().unwrap_or_default();
    level.overrides = set.patch.on(&level.overrides);
    let after = match set.operation {
        None => Effective::of(&formed.policy, Some(&level), None),
        Some(_) => Effective::of(&formed.policy, state.policy(&set.tenant, None).as_deref(), Some(&level)),
    };
    if after.policy.evidence_s < after.policy.replay_s {
        let detail = "evidence_s would be shorter than replay_s; raise evidence_s or lower replay_s in the same call";
        return Err(Refusal::invalid(detail));
    }
    if after.policy.lease_ms_max < after.policy.lease_ms_default {
        let detail = "lease_ms_default would be longer than lease_ms_max; change both in the same call";
        return Err(Refusal::invalid(detail));
    }
    level.remember(&before, &after, set.operation.is_some(), now);
    if set.operation.is_some() && known.is_none() {
        state.put_tenant(&set.tenant, TenantState { policies: tenant.policies + 1, ..(*tenant).clone() });
    }
    state.put_policy(&set.tenant, set.operation, Some(level));
    let note = audit::Note {
        kind: AuditKind::PolicySet,
        record: set.operation,
        actor: Some(&set.actor),
        detail: Some(&set.detail),
    };
    audit::append(state, Some(&set.tenant), at, now, note);
    Ok(Answer::Policy(Box::new(after)))
}

fn restore(state: &mut impl State, restored: &Restored, at: Position, now: Time) -> Result<Answer, Refusal> {
    let Some(formed) = state.globals().formed.clone() else { return Err(forbidden()) };
    let least = Position(at.0.saturating_add(formed.limits.restore_position_gap));
    if restored.first_position < least {
        let detail = format!("first_position must be at least {least}: the clock that it was made from is behind");
        return Err(Refusal::new(Code::WrongState, detail));
    }
    let first_position = restored.first_position;
    let doubt = Doubt { first_position, since: now, gap_end: restored.gap_end };
    let formed = Formed { cluster_id: restored.cluster_id, ..(*formed).clone() };
    let globals = state.globals_mut();
    globals.position = first_position;
    globals.formed = Some(Arc::new(formed));
    globals.fence_floor = first_position;
    globals.doubt = Some(doubt);
    globals.retired.clear();
    if state.ended().is_some() {
        state.put_ended(None);
    }
    let note = audit::Note { kind: AuditKind::Restored, record: None, actor: Some(&restored.actor), detail: None };
    audit::append(state, None, first_position, now, note);
    Ok(Answer::Done)
}

fn end_doubt(state: &mut impl State, ended: &DoubtEnded, at: Position, now: Time) -> Result<Answer, Refusal> {
    if state.globals().doubt.is_none() {
        return Ok(Answer::Done);
    }
    state.globals_mut().doubt = None;
    state.note(Event::DoubtEnded);
    let note = audit::Note { kind: AuditKind::DoubtEnded, record: None, actor: Some(&ended.actor), detail: None };
    audit::append(state, None, at, now, note);
    Ok(Answer::Done)
}

/// Once is for good: the first end stands, also where it is asked for again.
fn end_writes(state: &mut impl State, ended: &WritesEnded, at: Position, now: Time) -> Result<Answer, Refusal> {
    if state.ended().is_some() {
        return Ok(Answer::Done);
    }
    state.put_ended(Some(Ended { position: at, at: now }));
    let note = audit::Note { kind: AuditKind::WritesEnded, record: None, actor: Some(&ended.actor), detail: None };
    audit::append(state, None, at, now, note);
    Ok(Answer::Done)
}

fn note(state: &mut impl State, noted: &Noted, at: Position, now: Time) -> Result<Answer, Refusal> {
    let kind = match noted.deed {
        Deed::MemberAdded => AuditKind::MemberAdded,
        Deed::MemberPromoted => AuditKind::MemberPromoted,
        Deed::MemberRemoved => AuditKind::MemberRemoved,
        Deed::MemberReplaced => AuditKind::MemberReplaced,
        Deed::LeaderTransferred => AuditKind::LeaderTransferred,
        Deed::BackupMade => AuditKind::BackupMade,
        Deed::AuthenticationRefused => AuditKind::AuthenticationRefused,
        Deed::ConsoleSignedIn => AuditKind::ConsoleSignedIn,
    };
    let note = audit::Note { kind, record: None, actor: Some(&noted.actor), detail: Some(&noted.detail) };
    audit::append(state, None, at, now, note);
    Ok(Answer::Done)
}
