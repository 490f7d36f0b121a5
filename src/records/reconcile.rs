//! Reconciling: investigate, resolve, forget. None of them blocks an owner.

use std::sync::Arc;

use super::{
    answer::{Answer, Changed},
    apply::{effective, open_tenant},
    audit,
    change::{add_row, change},
    command::{Forget, Investigate, KeyedDigest, RecordRef, Resolve, Sealed, Verdict},
    owner::{absent, changed, completed, trace, wrong_state},
    record::{
        Completed, Grant, Head, Indeterminate, Investigation, Moment, ReasonTag, Resolved, Row, RowKind, Standing,
        StateWord, Stored, VerdictWord,
    },
    state::{AuditKind, State},
};
use crate::{
    id::{Fence, Position, Time},
    refusal::{Code, Refusal},
};

fn not_found() -> Refusal {
    Refusal::new(Code::NotFound, "nothing is recorded under this identity")
}

/// An indeterminate record in stored form, also where its lapse or doubt is only derived.
struct Found {
    stored: Arc<Head>,
    grant: Arc<Grant>,
    doubt: Indeterminate,
}

fn indeterminate(state: &impl State, record: &RecordRef, by: &KeyedDigest, now: Time) -> Result<Found, Refusal> {
    let stored = state.head(record).ok_or_else(not_found)?;
    let standing = Standing::of(Some(&stored), now, state.globals());
    let (grant, doubt) = match standing {
        Standing::Absent { .. } => return Err(not_found()),
        Standing::Indeterminate { grant, since, tag, stored, .. } => {
            let derived = Indeterminate { since, tag, reason: None, check_again_at: None, investigation: None };
            (grant.clone(), stored.cloned().unwrap_or(derived))
        }
        other => return Err(wrong_state(other.word())),
    };
    let holds = |other: &Investigation| now < other.deadline && other.by.digest != *by;
    if doubt.investigation.as_ref().is_some_and(holds) && !planted!(InvestigationIgnored) {
        let detail = "another actor is investigating the record; wait for its deadline, or for its verdict";
        return Err(Refusal::new(Code::WrongState, detail));
    }
    Ok(Found { stored, grant, doubt })
}

fn same_version(found: &Head, wanted: Position) -> Result<(), Refusal> {
    if found.version == wanted || planted!(ResolveWithoutVersion) {
        return Ok(());
    }
    let detail = format!("the record is at version {}; read it again and decide anew", found.version);
    Err(Refusal::new(Code::VersionChanged, detail))
}

/// Applies an investigation.
pub(super) fn investigate(
    state: &mut impl State,
    command: &Investigate,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    open_tenant(state, &command.record.tenant)?;
    let mut found = indeterminate(state, &command.record, &command.by.digest, now)?;
    if let Some(version) = command.version {
        same_version(&found.stored, version)?;
    }
    let limits = state.globals().formed.as_ref().map(|formed| formed.limits.clone()).unwrap_or_default();
    let lease_ms = effective(state, &command.record).lease_ms(command.lease_ms, &limits);
    let running = found.doubt.investigation.as_ref().map_or(now, |own| own.deadline);
    let deadline = running.max(now.plus_ms(u64::from(lease_ms)));
    found.doubt.investigation = Some(Investigation { by: command.by.clone(), deadline });
    let row = row(RowKind::Investigated, at, now, Some(found.grant.fence()), &command.by.actor, None);
    let mut head = found.stored.moved_to(at, Stored::Indeterminate((found.grant, Box::new(found.doubt))));
    add_row(state, &command.record, &mut head, row);
    match change(state, &command.record, Some(&found.stored), Some(head), now) {
        Some(head) => Ok(Answer::Investigated(head)),
        None => Err(not_found()),
    }
}

/// Applies a verdict.
pub(super) fn resolve(state: &mut impl State, command: &Resolve, at: Position, now: Time) -> Result<Answer, Refusal> {
    open_tenant(state, &command.record.tenant)?;
    if let Some(first) = known_request(state, command, now) {
        return Ok(Answer::Changed(first));
    }
    let found = indeterminate(state, &command.record, &command.by.digest, now)?;
    same_version(&found.stored, command.version)?;
    let policy = effective(state, &command.record);
    let moment = Moment { position: at, at: now };
    let word = match &command.verdict {
        Verdict::Completed(_) => VerdictWord::Completed,
        Verdict::NoEffect(()) => VerdictWord::NoEffect,
        Verdict::Unknown(_) => VerdictWord::Unknown,
    };
    let row = Row {
        verdict: Some(word),
        ..row(RowKind::Resolved, at, now, Some(found.grant.fence()), &command.by.actor, Some(command.evidence.clone()))
    };
    let mut head = match &command.verdict {
        Verdict::Completed(outcome) => {
            let grant = &found.grant;
            let head = completed(state, &command.record, &found.stored, grant, outcome, &policy, moment, true)?;
            Head { cleared: at, ..head }
        }
        Verdict::NoEffect(()) => {
            owner_is_out(state, &found, policy.policy.effect_ms_max, now)?;
            trace(state, &command.record, &found.stored, row.clone(), None, moment)
        }
        Verdict::Unknown(check_again_at) => {
            let doubt =
                Indeterminate { check_again_at: Some(*check_again_at), investigation: None, ..found.doubt.clone() };
            let stored = Stored::Indeterminate((found.grant.clone(), Box::new(doubt)));
            found.stored.moved_to(at, stored)
        }
    };
    if word != VerdictWord::NoEffect {
        add_row(state, &command.record, &mut head, row);
    }
    let kept = state.globals().formed.as_ref().map_or(1, |formed| usize::from(formed.limits.resolves_kept.max(1)));
    let to = Standing::of(Some(&head), now, state.globals()).word();
    head.resolves.push(Resolved { request_id: command.request_id, state: to, version: at });
    let surplus = head.resolves.len().saturating_sub(kept);
    head.resolves.drain(..surplus);
    let head = change(state, &command.record, Some(&found.stored), Some(head), now);
    let note = audit::Note {
        kind: AuditKind::Resolved,
        record: Some(command.record.record),
        actor: Some(&command.by.actor),
        detail: Some(&command.evidence),
    };
    audit::append(state, Some(&command.record.tenant), at, now, note);
    Ok(Answer::Changed(changed(head.as_deref(), now, state)))
}

/// The first answer of a request that is known, also where its verdict left the record absent.
fn known_request(state: &impl State, command: &Resolve, now: Time) -> Option<Changed> {
    let head = state.head(&command.record)?;
    if matches!(Standing::of(Some(&head), now, state.globals()), Standing::Absent { trace: None }) {
        return None;
    }
    let is_it = |known: &&Resolved| known.request_id == command.request_id && !planted!(RequestIdIgnored);
    let known = head.resolves.iter().find(is_it)?;
    let version = (known.state != StateWord::Absent).then_some(known.version);
    Some(Changed { state: known.state, version, ..absent() })
}

/// Refuses `no_effect` while the owner may only be paused: until its lease deadline and the time that it may still send.
fn owner_is_out(state: &impl State, found: &Found, effect_ms_max: u32, now: Time) -> Result<(), Refusal> {
    let owner_until = match found.doubt.tag {
        ReasonTag::Owner => return Ok(()),
        ReasonTag::LeaseLapsed => found.grant.deadline,
        // The lease may have been renewed after the backup, up to the restore.
        ReasonTag::Restored => {
            let restored = state.globals().doubt.map_or(found.doubt.since, |doubt| doubt.since);
            if found.grant.attempt == 0 { found.doubt.since } else { found.grant.deadline.max(restored) }
        }
    };
    let until = owner_until.plus_ms(u64::from(effect_ms_max));
    if now >= until || planted!(NoEffectTooEarly) {
        return Ok(());
    }
    let detail =
        "the owner may only be paused and could still act; ask again later, or have it complete, release or suspend";
    Err(Refusal::new(Code::OwnerMayAct, detail).retry_after_ms(until.since_ms(now)))
}

/// Applies a forget.
pub(super) fn forget(state: &mut impl State, command: &Forget, at: Position, now: Time) -> Result<Answer, Refusal> {
    open_tenant(state, &command.record.tenant)?;
    let stored = state.head(&command.record).ok_or_else(not_found)?;
    let (grant, done) = match Standing::of(Some(&stored), now, state.globals()) {
        Standing::Absent { .. } => return Err(not_found()),
        // The outcome of an expired record is erased too, where it still stands: nothing that is read changes by it.
        Standing::Completed { grant, done, .. } if done.outcome.is_some() => (grant.clone(), done.clone()),
        Standing::Completed { .. } => return Ok(Answer::Changed(changed(Some(&stored), now, state))),
        other => return Err(wrong_state(other.word())),
    };
    let row = row(RowKind::Forgotten, at, now, Some(grant.fence()), &command.actor, command.reason.clone());
    let early = now < done.replay_until;
    let done = Completed { outcome: None, forgotten: early.then_some(now), ..done };
    let stored_anew = Stored::Completed((grant, Box::new(done)));
    let mut head = Head { version: if early { at } else { stored.version }, stored: stored_anew, ..(*stored).clone() };
    if early {
        add_row(state, &command.record, &mut head, row);
    }
    let head = change(state, &command.record, Some(&stored), Some(head), now);
    let note = audit::Note {
        kind: AuditKind::Forgotten,
        record: Some(command.record.record),
        actor: Some(&command.actor),
        detail: command.reason.as_ref(),
    };
    audit::append(state, Some(&command.record.tenant), at, now, note);
    Ok(Answer::Changed(changed(head.as_deref(), now, state)))
}

fn row(kind: RowKind, at: Position, now: Time, fence: Option<Fence>, actor: &Sealed, detail: Option<Sealed>) -> Row {
    Row {
        kind,
        moment: Moment { position: at, at: now },
        fence,
        actor: Some(actor.clone()),
        detail,
        count: 1,
        verdict: None,
        attempt: None,
    }
}
