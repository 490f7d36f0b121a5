//! Claim: the answers, in their order of precedence. `decide` only reads, so that the service can ask it first and
//! spare the log whatever changes nothing.

use std::sync::Arc;

use super::{
    answer::{Answer, ClaimAnswer, ExpiredReason, New, Phase, Reason, Replay},
    apply::effective,
    change::{add_row, change},
    command::Claim,
    policy::{Effective, ExpiredClaims, Quotas},
    record::{
        Grant, HEAD_BYTES, Head, Indeterminate, Moment, PastAttempt, ReasonTag, Row, RowKind, Standing, Stored,
        fingerprint_bytes,
    },
    state::State,
    sweep,
};
use crate::{
    id::{KeyedHash, Position, Time},
    refusal::{Code, Refusal},
};

/// What a claim would do.
#[derive(Debug)]
pub enum Decision {
    /// It changes nothing and gets this answer.
    Answer(ClaimAnswer),
    /// It is granted, or recorded as in doubt: only the log can say.
    Propose,
}

/// What a claim that changes the record makes of it.
enum Change {
    /// A first owner.
    Fresh,
    /// The next owner of a record that lapsed.
    Takeover,
    /// A first owner again, over an expired record.
    Again,
}

enum Decided {
    Answer(ClaimAnswer),
    Change(Change),
}

/// Decides a claim at `now` without changing anything.
pub fn decide(state: &impl State, claim: &Claim, now: Time) -> Result<Decision, Refusal> {
    super::apply::open_tenant(state, &claim.record.tenant)?;
    let head = state.head(&claim.record);
    let policy = effective(state, &claim.record);
    Ok(match decided(state, claim, head.as_ref(), &policy, now)? {
        Decided::Answer(answer) => Decision::Answer(answer),
        Decided::Change(_) => Decision::Propose,
    })
}

fn decided(
    state: &impl State,
    claim: &Claim,
    head: Option<&Arc<Head>>,
    policy: &Effective,
    now: Time,
) -> Result<Decided, Refusal> {
    if claim.not_after.is_some_and(|not_after| now > not_after) {
        return Err(Refusal::new(
            Code::Unavailable,
            "ttl_ms passed before the claim could be applied; send it again if it is still wanted",
        ));
    }
    let standing = Standing::of(head.map(|head| &**head), now, state.globals());
    if let Some((_, grant)) = standing.present()
        && !(grant.fingerprints.matches(&claim.fingerprints) || planted!(FingerprintIgnored))
    {
        let since = standing.since().unwrap_or(now);
        return Ok(Decided::Answer(ClaimAnswer::Conflict { state: standing.word(), since }));
    }
    Ok(match standing {
        Standing::InProgress { head: owned, grant, lapsed: false } => {
            let floor = state.globals().fence_floor;
            if planted!(AttemptIdIgnored) && grant.attempt_id == claim.attempt_id {
                return Ok(Decided::Change(Change::Takeover));
            }
            if grant.attempt_id == claim.attempt_id && grant.granted.position >= floor {
                let head = head.cloned().unwrap_or_else(|| Arc::new(owned.clone()));
                Decided::Answer(ClaimAnswer::New(Box::new(granted(&head, grant, true))))
            } else {
                let remaining = grant.deadline.since_ms(now).min(u64::from(grant.lease_ms));
                let least = state.globals().formed.as_ref().map_or(0, |formed| formed.limits.retry_after_ms_min);
                let retry_after_ms = remaining.max(u64::from(least));
                Decided::Answer(ClaimAnswer::InProgress { retry_after_ms, since: grant.granted.at })
            }
        }
        Standing::InProgress { lapsed: true, .. } => Decided::Change(Change::Takeover),
        Standing::Indeterminate { since, tag, stored, .. } => {
            let reason = Reason { tag, text: stored.and_then(|stored| stored.reason.clone()) };
            let retry_after_ms = indeterminate_retry_after_ms(state, stored, now);
            Decided::Answer(ClaimAnswer::Indeterminate { since, reason, retry_after_ms })
        }
        Standing::Completed { done, expired_since: None, .. } => {
            let Some(outcome) = done.outcome.clone() else {
                return Err(Refusal::new(Code::Internal, "the recorded outcome is missing"));
            };
            let body = if head.is_some_and(|head| head.has_body()) { state.body(&claim.record) } else { None };
            Decided::Answer(ClaimAnswer::Completed(Box::new(Replay { outcome, body, completed_at: done.completed.at })))
        }
        Standing::Completed { done, expired_since: Some(_), .. } => {
            // A forgotten record never runs again before its original replay window is over.
            let may_run = policy.policy.expired_claims == ExpiredClaims::RunAsNew && now >= done.replay_until;
            if !may_run {
                let reason =
                    if done.forgotten.is_some() { ExpiredReason::Forgotten } else { ExpiredReason::ReplayOver };
                Decided::Answer(ClaimAnswer::Expired {
                    reason,
                    completed_at: Some(done.completed.at),
                    evidence_until: Some(done.evidence_until),
                })
            } else if is_too_old(claim, policy, now) {
                too_old()
            } else {
                Decided::Change(Change::Again)
            }
        }
        Standing::Absent { .. } if is_too_old(claim, policy, now) => too_old(),
        Standing::Absent { .. } => Decided::Change(Change::Fresh),
    })
}

fn too_old() -> Decided {
    let reason = ExpiredReason::TooOld;
    Decided::Answer(ClaimAnswer::Expired { reason, completed_at: None, evidence_until: None })
}

fn is_too_old(claim: &Claim, policy: &Effective, now: Time) -> bool {
    claim.first_sent_at.is_some_and(|first_sent_at| {
        let (_, wanted_s) = policy.windows_s(claim.replay_s, claim.evidence_s);
        let evidence_s = if claim.evidence_s.is_some() { wanted_s } else { u32::MAX };
        let evidence_s = evidence_s.min(policy.evidence_s_at(first_sent_at));
        first_sent_at.plus_s(evidence_s) < now
    })
}

fn indeterminate_retry_after_ms(state: &impl State, stored: Option<&Indeterminate>, now: Time) -> u64 {
    let Some(formed) = &state.globals().formed else { return 0 };
    let limits = &formed.limits;
    match stored.and_then(|stored| stored.check_again_at) {
        Some(at) => at.since_ms(now).clamp(u64::from(limits.retry_after_ms_min), u64::from(limits.retry_after_ms_max)),
        None => u64::from(limits.retry_after_ms_indeterminate),
    }
}

fn granted(head: &Arc<Head>, grant: &Grant, repeated: bool) -> New {
    New {
        fence: grant.fence(),
        attempt: grant.attempt,
        attempt_id: grant.attempt_id,
        phase: if grant.begun.is_some() { Phase::Begun } else { Phase::Staged },
        version: head.version,
        repeated,
        lease_ms: grant.lease_ms,
        lease_deadline: grant.deadline,
        checkpoint: grant.checkpoint.clone(),
        head: head.clone(),
    }
}

/// Applies a claim.
pub(super) fn apply(state: &mut impl State, claim: &Claim, at: Position, now: Time) -> Result<Answer, Refusal> {
    super::apply::open_tenant(state, &claim.record.tenant)?;
    let policy = effective(state, &claim.record);
    let head = state.head(&claim.record);
    let change = match decided(state, claim, head.as_ref(), &policy, now)? {
        Decided::Answer(answer) => return Ok(Answer::Claim(answer)),
        Decided::Change(change) => change,
    };
    let doubted = is_doubted(state, claim, head.as_deref(), now);
    let moment = Moment { position: at, at: now };
    let head = admit(state, claim, head, &policy, moment)?;
    let old = head.as_ref();
    let past =
        old.filter(|head| !matches!(Standing::of(Some(head), now, state.globals()), Standing::Absent { trace: None }));
    let mut new = Head {
        id: claim.id.clone(),
        version: at,
        cleared: at,
        rows: 0,
        row_bytes: 0,
        resolves: Vec::new(),
        stored: Stored::Trace((now, None)),
    };
    match past {
        Some(past) => {
            (new.rows, new.row_bytes, new.resolves) = (past.rows, past.row_bytes, past.resolves.clone());
            if let Some(row) = past_attempt(past, now) {
                add_row(state, &claim.record, &mut new, row);
            }
        }
        None => remove_rows(state, claim, old),
    }
    let grant = grant(state, claim, &policy, past.map(|head| &**head), &change, moment);
    new.stored = if doubted {
        let grant = Grant { attempt: 0, ..grant };
        let doubt = Indeterminate {
            since: now,
            tag: ReasonTag::Restored,
            reason: None,
            check_again_at: None,
            investigation: None,
        };
        new.cleared = past.map_or(Position(0), |head| head.cleared);
        Stored::Indeterminate((Arc::new(grant), Box::new(doubt)))
    } else {
        Stored::InProgress(Arc::new(grant))
    };
    let stored = self::change(state, &claim.record, old, Some(new), now);
    let Some(head) = stored else { return Err(Refusal::new(Code::Internal, "the claim was not recorded")) };
    Ok(Answer::Claim(match &head.stored {
        Stored::InProgress(grant) => ClaimAnswer::New(Box::new(granted(&head, grant, false))),
        _ => ClaimAnswer::Indeterminate {
            since: now,
            reason: Reason { tag: ReasonTag::Restored, text: None },
            retry_after_ms: indeterminate_retry_after_ms(state, None, now),
        },
    }))
}

/// Whether a restore leaves it in doubt that nothing happened under this claim.
fn is_doubted(state: &impl State, claim: &Claim, head: Option<&Head>, now: Time) -> bool {
    let globals = state.globals();
    let Some(doubt) = globals.doubt else { return false };
    let known = match Standing::of(head, now, globals) {
        Standing::Absent { trace } => trace.map(|head| head.cleared),
        standing => standing.present().map(|(head, _)| head.cleared),
    };
    if known.is_some_and(|cleared| cleared >= doubt.first_position) {
        return false;
    }
    let skew_ms = globals.formed.as_ref().map_or(0, |formed| u64::from(formed.limits.gap_skew_ms));
    !matches!((doubt.gap_end, claim.first_sent_at), (Some(gap_end), Some(first_sent_at))
        if first_sent_at > gap_end.plus_ms(skew_ms) && first_sent_at <= now)
}

/// Judges the quotas of a claim that would create a record; a sweep makes room first where it can. Returns the head as
/// it is after that sweep.
fn admit(
    state: &mut impl State,
    claim: &Claim,
    head: Option<Arc<Head>>,
    policy: &Effective,
    moment: Moment,
) -> Result<Option<Arc<Head>>, Refusal> {
    let absent = matches!(Standing::of(head.as_deref(), moment.at, state.globals()), Standing::Absent { .. });
    if !absent {
        return Ok(head);
    }
    let mut head = head;
    let levels = [(policy.tenant, None), (policy.operation, Some(claim.record.operation))];
    if is_over_records(state, claim, head.as_deref(), &levels) {
        sweep::sweep(state, moment.position, moment.at);
        head = state.head(&claim.record);
        if is_over_records(state, claim, head.as_deref(), &levels) {
            return Err(over_quota("records_max"));
        }
    }
    for (quotas, level) in levels {
        if quotas.indeterminate_max.is_none() && quotas.bytes_max.is_none() {
            continue;
        }
        let counters = state.counters(&claim.record.tenant, level);
        if quotas.indeterminate_max.is_some_and(|max| counters.indeterminate >= max) {
            return Err(over_quota("indeterminate_max"));
        }
        let own = head.as_ref().map_or(0, |head| head.bytes());
        let bytes = || claim_bytes(claim, head.as_deref(), moment.at, state);
        if quotas.bytes_max.is_some_and(|max| (counters.bytes - own).saturating_add(bytes()) > max) {
            return Err(over_quota("bytes_max"));
        }
    }
    Ok(head)
}

/// Whether a record more would be one too many, at either level. The record's own head, where it is past its evidence
/// and not swept yet, makes room for itself.
fn is_over_records(
    state: &impl State,
    claim: &Claim,
    head: Option<&Head>,
    levels: &[(Quotas, Option<KeyedHash>)],
) -> bool {
    let own = u64::from(head.is_some_and(|head| !matches!(head.stored, Stored::Trace(_))));
    levels.iter().any(|(quotas, level)| {
        quotas.records_max.is_some_and(|max| state.counters(&claim.record.tenant, *level).records - own >= max)
    })
}

/// Bytes that the record will count for, with what a trace hands on.
fn claim_bytes(claim: &Claim, head: Option<&Head>, now: Time, state: &impl State) -> u64 {
    let labels = claim.labels.as_ref().map_or(0, super::command::Sealed::len);
    let own = claim.id.len() + fingerprint_bytes(&claim.fingerprints) + claim.actor.len() + labels;
    let carried = match Standing::of(head, now, state.globals()) {
        Standing::Absent { trace: Some(trace) } => trace.carried_bytes(),
        _ => 0,
    };
    (HEAD_BYTES + own + carried) as u64
}

/// `quota_exceeded`, naming the quota.
pub(super) fn over_quota(quota: &'static str) -> Refusal {
    let detail =
        format!("{quota} of the tenant or operation is used up; raise it in the policy, or wait until records expire");
    Refusal::new(Code::QuotaExceeded, detail).retry_after_ms(QUOTA_RETRY_AFTER_MS)
}

/// A quota frees up as records expire: no sooner than a client would look again.
const QUOTA_RETRY_AFTER_MS: u64 = 10_000;

fn grant(
    state: &impl State,
    claim: &Claim,
    policy: &Effective,
    past: Option<&Head>,
    change: &Change,
    moment: Moment,
) -> Grant {
    let limits = state.globals().formed.as_ref().map(|formed| formed.limits.clone()).unwrap_or_default();
    let lease_ms = policy.lease_ms(claim.lease_ms, &limits);
    let (replay_s, evidence_s) = policy.windows_s(claim.replay_s, claim.evidence_s);
    let before = past.and_then(Head::grant).filter(|_| matches!(change, Change::Takeover));
    Grant {
        granted: before.filter(|_| planted!(FenceReused)).map_or(moment, |grant| grant.granted),
        attempt: before.map_or(1, |grant| grant.attempt.saturating_add(1)),
        attempt_id: claim.attempt_id,
        fingerprints: claim.fingerprints.clone(),
        labels: claim.labels.clone(),
        lease_ms,
        deadline: moment.at.plus_ms(u64::from(lease_ms)),
        on_lapse: claim.on_lapse.unwrap_or(policy.policy.on_lapse),
        replay_s_wanted: claim.replay_s,
        evidence_s_wanted: claim.evidence_s,
        replay_s,
        evidence_s,
        begun: (!claim.staged).then_some(moment),
        begun_before: before.is_some_and(|grant| grant.ever_begun()),
        checkpoint: before.filter(|_| !planted!(CheckpointLost)).and_then(|grant| grant.checkpoint.clone()),
        actor: claim.actor.clone(),
    }
}

/// The row that keeps what a head tells of a grant that ends: by a takeover, a release or a verdict, or a new life.
pub(super) fn past_attempt(head: &Head, now: Time) -> Option<Row> {
    let grant = head.grant()?;
    let (completed, expired_at) = match &head.stored {
        Stored::Completed(both) => {
            let done = &both.1;
            let expired = done.forgotten.is_none() && now >= done.replay_until;
            (Some(done.completed), expired.then_some(done.replay_until))
        }
        Stored::InProgress(_) | Stored::Indeterminate(_) | Stored::Trace(_) => (None, None),
    };
    let lapsed_at = head.lapsed_at(now);
    Some(Row {
        kind: RowKind::Attempt,
        moment: grant.granted,
        fence: Some(grant.fence()),
        actor: Some(grant.actor.clone()),
        detail: None,
        count: 1,
        verdict: None,
        attempt: Some(PastAttempt { begun: grant.begun, lapsed_at, completed, expired_at }),
    })
}

fn remove_rows(state: &mut impl State, claim: &Claim, old: Option<&Arc<Head>>) {
    for slot in 0..old.map_or(0, |head| head.rows) {
        state.put_row(&claim.record, slot, None);
    }
}
