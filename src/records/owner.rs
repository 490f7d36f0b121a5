//! The commands of an owner. Each is judged in this order: fence, state, sizes, quota (rulings of the contract).

use std::sync::Arc;

use super::{
    answer::{Answer, Changed, Phase},
    apply::{effective, open_tenant},
    audit,
    change::{add_row, change},
    claim::{over_quota, past_attempt},
    command::{OwnerAction, OwnerCommand, ProposedOutcome, ProposedPoint, RecordRef, Sealed},
    policy::{Effective, Oversize},
    record::{
        BodyPlace, Completed, Grant, Head, Indeterminate, Moment, Outcome, Point, ReasonTag, Row, RowKind, Standing,
        StateWord, Stored,
    },
    state::{AuditKind, State},
};
use crate::{
    id::{Fence, Position, Time},
    refusal::{Code, Refusal},
};

/// Applies an owner's command.
pub(super) fn apply(
    state: &mut impl State,
    command: &OwnerCommand,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    open_tenant(state, &command.record.tenant)?;
    let stored = state.head(&command.record);
    let standing = Standing::of(stored.as_deref(), now, state.globals());
    let stale = command.fence.0 < state.globals().fence_floor.0;
    let is_its = |grant: &Grant| grant.fence() == command.fence || planted!(StaleFenceAccepted);
    let current = standing.present().is_some_and(|(_, grant)| is_its(grant) && grant.attempt > 0);
    if let Standing::Absent { trace } = standing {
        let released = trace.and_then(|head| match head.stored {
            Stored::Trace((_, fence)) => fence,
            _ => None,
        });
        let repeats = matches!(command.action, OwnerAction::Release(_)) && released == Some(command.fence) && !stale;
        if repeats {
            return Ok(Answer::Changed(absent()));
        }
        let traced = trace.is_some();
        return Err(stale_fence(state, command, stored.filter(|_| traced), at, now));
    }
    let Some(stored) = stored.clone().filter(|_| current && !stale) else {
        return Err(stale_fence(state, command, stored, at, now));
    };
    let moment = Moment { position: at, at: now };
    let step = Step { command, stored, moment };
    match &command.action {
        OwnerAction::Begin(lease_ms) => step.begin(state, *lease_ms),
        OwnerAction::Renew(lease_ms) => step.renew(state, *lease_ms),
        OwnerAction::Checkpoint(point) => step.checkpoint(state, point),
        OwnerAction::Complete(outcome) => step.complete(state, outcome),
        OwnerAction::Release(evidence) => step.release(state, evidence.as_ref()),
        OwnerAction::Suspend(reason) => step.suspend(state, reason.as_ref()),
    }
}

/// An owner's command that carries the current fence.
struct Step<'a> {
    command: &'a OwnerCommand,
    stored: Arc<Head>,
    moment: Moment,
}

impl Step<'_> {
    fn record(&self) -> &RecordRef {
        &self.command.record
    }

    fn now(&self) -> Time {
        self.moment.at
    }

    /// The grant while its lease runs, for what an owner may do only then.
    fn running(&self, state: &impl State) -> Result<Grant, Refusal> {
        match Standing::of(Some(&self.stored), self.now(), state.globals()) {
            Standing::InProgress { grant, lapsed: false, .. } => Ok((**grant).clone()),
            Standing::InProgress { .. } | Standing::Indeterminate { tag: ReasonTag::LeaseLapsed, .. } => {
                let detail = "the lease ran out before this command; claim again, or complete, release or suspend with this fence";
                Err(Refusal::new(Code::LeaseLapsed, detail))
            }
            standing => Err(wrong_state(standing.word())),
        }
    }

    fn put(&self, state: &mut impl State, head: Head) -> Answer {
        let head = change(state, self.record(), Some(&self.stored), Some(head), self.now());
        Answer::Changed(changed(head.as_deref(), self.now(), state))
    }

    fn unchanged(&self, state: &impl State) -> Answer {
        Answer::Changed(changed(Some(&self.stored), self.now(), state))
    }

    fn with(&self, stored: Stored) -> Head {
        self.stored.moved_to(self.moment.position, stored)
    }

    fn begin(&self, state: &mut impl State, lease_ms: Option<u32>) -> Result<Answer, Refusal> {
        let mut grant = self.running(state)?;
        let wanted = lease_ms.filter(|ms| *ms > 0);
        let extended = wanted.is_some() && self.extend(state, &mut grant, wanted);
        if grant.begun.is_some() && !extended {
            return Ok(self.unchanged(state));
        }
        grant.begun = grant.begun.or(Some(self.moment));
        let head = self.with(Stored::InProgress(Arc::new(grant)));
        if planted!(BegunForgotten) {
            return Ok(Answer::Changed(changed(Some(&head), self.now(), state)));
        }
        Ok(self.put(state, head))
    }

    fn renew(&self, state: &mut impl State, lease_ms: Option<u32>) -> Result<Answer, Refusal> {
        let mut grant = self.running(state)?;
        if self.extend(state, &mut grant, lease_ms) {
            return Ok(self.put(state, self.with(Stored::InProgress(Arc::new(grant)))));
        }
        Ok(self.unchanged(state))
    }

    /// Grants a lease of the wanted length, or of the last one: never an earlier deadline. Tells if anything changed.
    fn extend(&self, state: &impl State, grant: &mut Grant, wanted: Option<u32>) -> bool {
        let limits = state.globals().formed.as_ref().map(|formed| formed.limits.clone()).unwrap_or_default();
        let wanted = wanted.filter(|ms| *ms > 0).unwrap_or(grant.lease_ms);
        let lease_ms = effective(state, self.record()).lease_ms(Some(wanted), &limits);
        let least = if planted!(RenewShortens) { Time::default() } else { grant.deadline };
        let deadline = least.max(self.now().plus_ms(u64::from(lease_ms)));
        let before = (grant.lease_ms, grant.deadline);
        (grant.lease_ms, grant.deadline) = (lease_ms, deadline);
        before != (lease_ms, deadline)
    }

    fn checkpoint(&self, state: &mut impl State, point: &ProposedPoint) -> Result<Answer, Refusal> {
        let mut grant = self.running(state)?;
        if grant.begun.is_some() && grant.checkpoint.as_ref().is_some_and(|kept| kept.digest == point.digest) {
            return Ok(self.unchanged(state));
        }
        let policy = effective(state, self.record());
        if point.data_bytes > policy.policy.checkpoint_bytes_max {
            let detail = format!(
                "data is {} bytes; the policy allows {} (checkpoint_bytes_max)",
                point.data_bytes, policy.policy.checkpoint_bytes_max
            );
            return Err(Refusal::invalid(detail));
        }
        grant.begun = grant.begun.or(Some(self.moment));
        grant.checkpoint = Some(Point {
            sealed: point.sealed.clone(),
            digest: point.digest,
            data_bytes: point.data_bytes,
            fence: self.command.fence,
        });
        let mut head = self.with(Stored::InProgress(Arc::new(grant)));
        let row = self.row(RowKind::Checkpointed, None);
        let grown = (head.bytes() + u64::from(row.bytes())).saturating_sub(self.stored.bytes());
        self.admit_bytes(state, &policy, grown)?;
        add_row(state, self.record(), &mut head, row);
        Ok(self.put(state, head))
    }

    fn admit_bytes(&self, state: &impl State, policy: &Effective, grown: u64) -> Result<(), Refusal> {
        for (quotas, level) in [(policy.tenant, None), (policy.operation, Some(self.record().operation))] {
            let counters = state.counters(&self.record().tenant, level);
            if quotas.bytes_max.is_some_and(|max| counters.bytes.saturating_add(grown) > max) {
                return Err(over_quota("bytes_max"));
            }
        }
        Ok(())
    }

    fn complete(&self, state: &mut impl State, outcome: &ProposedOutcome) -> Result<Answer, Refusal> {
        if let Stored::Completed(both) = &self.stored.stored
            && !planted!(OutcomeOverwritten)
        {
            if both.1.digest == outcome.digest {
                return Ok(self.unchanged(state));
            }
            let note = audit::Note {
                kind: AuditKind::OutcomeImmutable,
                record: Some(self.record().record),
                actor: Some(&self.command.actor),
                detail: None,
            };
            audit::append(state, Some(&self.record().tenant), self.moment.position, self.now(), note);
            let detail = "another outcome is recorded under this fence, and outcomes never change";
            return Err(Refusal::new(Code::OutcomeImmutable, detail));
        }
        if planted!(LateReportRefused) {
            self.running(state)?;
        }
        let Some(grant) = self.stored.grant() else { return Err(wrong_state(StateWord::Absent)) };
        let policy = effective(state, self.record());
        let head = completed(state, self.record(), &self.stored, grant, outcome, &policy, self.moment, false)?;
        Ok(self.put(state, head))
    }

    fn release(&self, state: &mut impl State, evidence: Option<&Sealed>) -> Result<Answer, Refusal> {
        let is_over = matches!(self.stored.stored, Stored::Completed(_)) && !planted!(ReleaseOfCompleted);
        let Some(grant) = self.stored.grant().filter(|_| !is_over) else {
            return Err(wrong_state(Standing::of(Some(&self.stored), self.now(), state.globals()).word()));
        };
        let begun = grant.ever_begun();
        if begun && evidence.is_none() {
            let detail =
                "evidence is required to release a record that was begun: say how it is known that nothing happened";
            return Err(Refusal::invalid(detail));
        }
        if begun {
            let note = audit::Note {
                kind: AuditKind::Released,
                record: Some(self.record().record),
                actor: Some(&self.command.actor),
                detail: evidence,
            };
            audit::append(state, Some(&self.record().tenant), self.moment.position, self.now(), note);
        }
        let row = self.row(RowKind::Released, evidence.cloned());
        let head = trace(state, self.record(), &self.stored, row, Some(self.command.fence), self.moment);
        change(state, self.record(), Some(&self.stored), Some(head), self.now());
        Ok(Answer::Changed(absent()))
    }

    fn suspend(&self, state: &mut impl State, reason: Option<&Sealed>) -> Result<Answer, Refusal> {
        let (grant, before) = match &self.stored.stored {
            Stored::InProgress(grant) => (grant, None),
            Stored::Indeterminate(both) if both.1.tag == ReasonTag::Owner => return Ok(self.unchanged(state)),
            Stored::Indeterminate(both) => (&both.0, Some(&*both.1)),
            Stored::Completed(_) | Stored::Trace(_) => {
                return Err(wrong_state(Standing::of(Some(&self.stored), self.now(), state.globals()).word()));
            }
        };
        let doubt = Indeterminate {
            since: self.now(),
            tag: ReasonTag::Owner,
            reason: reason.cloned(),
            check_again_at: before.and_then(|before| before.check_again_at),
            investigation: before.and_then(|before| before.investigation.clone()),
        };
        let mut head = self.with(Stored::Indeterminate((grant.clone(), Box::new(doubt))));
        add_row(state, self.record(), &mut head, self.row(RowKind::Suspended, reason.cloned()));
        Ok(self.put(state, head))
    }

    fn row(&self, kind: RowKind, detail: Option<Sealed>) -> Row {
        Row {
            kind,
            moment: self.moment,
            fence: Some(self.command.fence),
            actor: Some(self.command.actor.clone()),
            detail,
            count: 1,
            verdict: None,
            attempt: None,
        }
    }
}

/// A head as completed now: by its owner or by a verdict. Both windows are fixed anew, never shorter.
#[expect(clippy::too_many_arguments, reason = "one completion, two callers; a struct for it would only rename them")]
pub(super) fn completed(
    state: &mut impl State,
    record: &RecordRef,
    stored: &Head,
    grant: &Arc<Grant>,
    outcome: &ProposedOutcome,
    policy: &Effective,
    moment: Moment,
    by_verdict: bool,
) -> Result<Head, Refusal> {
    let too_large = outcome.body_bytes > policy.policy.outcome_bytes_max;
    if too_large && policy.policy.oversize == Oversize::Reject {
        let detail = format!(
            "the outcome's body is {} bytes; the policy allows {} (outcome_bytes_max)",
            outcome.body_bytes, policy.policy.outcome_bytes_max
        );
        return Err(Refusal::new(Code::OutcomeTooLarge, detail));
    }
    let inline_max = state.globals().formed.as_ref().map_or(0, |formed| formed.limits.inline_body_bytes_max);
    let body = if too_large {
        BodyPlace::NotStored(())
    } else if outcome.body.len() <= inline_max as usize {
        BodyPlace::Inline(outcome.body.clone())
    } else {
        state.put_body(record, Some(outcome.body.clone()));
        BodyPlace::Separate(u32::try_from(outcome.body.len()).expect("a body fits a request, which limits bound"))
    };
    let (replay_s, evidence_s) = policy.windows_s(grant.replay_s_wanted, grant.evidence_s_wanted);
    let kept = if planted!(WindowShortened) { (0, 0) } else { (grant.replay_s, grant.evidence_s) };
    let (replay_s, evidence_s) = (replay_s.max(kept.0), evidence_s.max(kept.1));
    let evidence_s = if planted!(EvidenceDroppedEarly) { replay_s } else { evidence_s };
    let done = Completed {
        completed: moment,
        lapsed_at: stored.lapsed_at(moment.at),
        by_verdict,
        outcome: Some(Outcome { meta: outcome.meta.clone(), body, fence: grant.fence() }),
        digest: outcome.digest,
        body_bytes: outcome.body_bytes,
        replay_until: moment.at.plus_s(replay_s),
        evidence_until: moment.at.plus_s(evidence_s),
        forgotten: None,
    };
    Ok(stored.moved_to(moment.position, Stored::Completed((grant.clone(), Box::new(done)))))
}

/// A head as absent from now on, with the trace that its history leaves.
pub(super) fn trace(
    state: &mut impl State,
    record: &RecordRef,
    stored: &Head,
    row: Row,
    released: Option<Fence>,
    moment: Moment,
) -> Head {
    let evidence_s = stored.grant().map_or(0, |grant| grant.evidence_s);
    let mut head = stored.moved_to(moment.position, Stored::Trace((moment.at.plus_s(evidence_s), released)));
    head.cleared = moment.position;
    if let Some(past) = past_attempt(stored, moment.at) {
        add_row(state, record, &mut head, past);
    }
    add_row(state, record, &mut head, row);
    head
}

/// Refuses a fence that is not the current one. Where there is history it is evidence of a possible second effect:
/// noted there, equal ones in one row, and audited once.
fn stale_fence(
    state: &mut impl State,
    command: &OwnerCommand,
    stored: Option<Arc<Head>>,
    at: Position,
    now: Time,
) -> Refusal {
    let detail = "the fence is not the current one of this record: another owner, a verdict or a release came after it";
    let refusal = Refusal::new(Code::StaleFence, detail);
    let Some(stored) = stored else { return refusal };
    let record = &command.record;
    let moment = Moment { position: at, at: now };
    let known = (0..stored.rows).find_map(|slot| {
        let row = state.row(record, slot)?;
        (row.kind == RowKind::StaleFence && row.fence == Some(command.fence)).then_some((slot, row))
    });
    if let Some((slot, row)) = known {
        // The same length as before: neither bytes nor indexes change.
        state.put_row(record, slot, Some(Row { moment, count: row.count.saturating_add(1), ..(*row).clone() }));
        return refusal;
    }
    let mut head = (*stored).clone();
    let row = Row {
        kind: RowKind::StaleFence,
        moment,
        fence: Some(command.fence),
        actor: Some(command.actor.clone()),
        detail: None,
        count: 1,
        verdict: None,
        attempt: None,
    };
    add_row(state, record, &mut head, row);
    change(state, record, Some(&stored), Some(head), now);
    let note = audit::Note {
        kind: AuditKind::StaleFence,
        record: Some(record.record),
        actor: Some(&command.actor),
        detail: None,
    };
    audit::append(state, Some(&record.tenant), at, now, note);
    refusal
}

/// `wrong_state`, naming the state.
pub(super) fn wrong_state(state: StateWord) -> Refusal {
    Refusal::new(Code::WrongState, format!("the record is {}; the command is not for that state", state.as_str()))
}

/// What a command answers of the state that it left.
pub(super) fn changed(head: Option<&Head>, now: Time, state: &impl State) -> Changed {
    let standing = Standing::of(head, now, state.globals());
    let Some((head, grant)) = standing.present() else { return absent() };
    let owned = matches!(standing, Standing::InProgress { .. });
    Changed {
        state: standing.word(),
        phase: owned.then_some(if grant.begun.is_some() { Phase::Begun } else { Phase::Staged }),
        lease_ms: owned.then_some(grant.lease_ms),
        lease_deadline: owned.then_some(grant.deadline),
        version: Some(head.version),
    }
}

/// The answer of a command that left nothing.
pub(super) fn absent() -> Changed {
    Changed { state: StateWord::Absent, phase: None, lease_ms: None, lease_deadline: None, version: None }
}
