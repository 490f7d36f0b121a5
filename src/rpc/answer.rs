//! From what the service answers to messages, for both doors.

use prost_types::Timestamp;

use crate::{
    auth::Permissions,
    fingerprint::Fingerprint,
    id::{RecordId, Time},
    proto::v1,
    records::{
        answer::Phase,
        command::LapseRule,
        policy::{ExpiredClaims, LowEntropyKeys, Overrides, Oversize, Policy},
        record::StateWord,
    },
    refusal::{Effect, Refusal},
    service::{
        answer::*,
        request::{Checkpoint, OwnerKind},
    },
};

/// A time as the schema carries it.
pub(crate) fn time(time: Time) -> Timestamp {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(time.0 % 1000 * 1_000_000).expect("less than a second in nanoseconds fits an i32");
    Timestamp { seconds, nanos }
}

fn state(word: StateWord) -> v1::State {
    match word {
        StateWord::Absent => v1::State::Absent,
        StateWord::InProgress => v1::State::InProgress,
        StateWord::Indeterminate => v1::State::Indeterminate,
        StateWord::Completed => v1::State::Completed,
        StateWord::Expired => v1::State::Expired,
    }
}

fn phase(phase: Phase) -> i32 {
    match phase {
        Phase::Staged => v1::Phase::Staged.into(),
        Phase::Begun => v1::Phase::Begun.into(),
    }
}

fn on_lapse(rule: LapseRule) -> i32 {
    match rule {
        LapseRule::Hold => v1::OnLapse::Hold.into(),
        LapseRule::Retake => v1::OnLapse::Retake.into(),
    }
}

impl From<RecordId> for v1::RecordId {
    fn from(id: RecordId) -> Self {
        v1::RecordId {
            tenant: Some(id.tenant.to_string()),
            principal: Some(id.principal.to_string()).filter(|text| !text.is_empty()),
            operation: id.operation.to_string(),
            key: id.key.to_string(),
        }
    }
}

fn fingerprint(own: Fingerprint) -> v1::Fingerprint {
    v1::Fingerprint { scheme: own.scheme(), digest: own.digest().to_vec().into() }
}

fn checkpoint(point: Checkpoint) -> v1::CheckpointData {
    v1::CheckpointData { name: point.name.as_str().to_owned(), data: point.data.0 }
}

impl From<Outcome> for v1::Outcome {
    fn from(outcome: Outcome) -> Self {
        v1::Outcome {
            status: Some(outcome.status),
            headers: outcome.headers.as_map().clone(),
            content_type: outcome.content_type,
            not_stored: outcome.body.is_none(),
            body: outcome.body.map(|body| body.0),
            valid_until: outcome.valid_until.map(time),
        }
    }
}

impl From<ClaimAnswer> for v1::ClaimAnswer {
    fn from(claim: ClaimAnswer) -> Self {
        let mut m = v1::ClaimAnswer {
            attempt_id: claim.attempt_id.hyphenated(),
            index: claim.index.0,
            ..v1::ClaimAnswer::default()
        };
        match claim.found {
            Found::New(new) => grant(&mut m, *new),
            Found::InProgress { retry_after_ms, since } => {
                m.set_answer(v1::Answer::InProgress);
                m.retry_after_ms = Some(retry_after_ms);
                m.since = Some(time(since));
            }
            Found::Completed(replay) => {
                m.set_answer(v1::Answer::Completed);
                m.replayed = Some(true);
                m.stale = Some(replay.stale);
                m.not_stored = Some(replay.outcome.body.is_none());
                m.completed_at = Some(time(replay.completed_at));
                m.outcome = Some(replay.outcome.into());
            }
            Found::Conflict { state: found, since } => {
                m.set_answer(v1::Answer::Conflict);
                m.set_state(state(found));
                m.since = Some(time(since));
            }
            Found::Indeterminate { since, reason, retry_after_ms } => {
                m.set_answer(v1::Answer::Indeterminate);
                m.since = Some(time(since));
                m.reason = Some(reason.0);
                m.retry_after_ms = Some(retry_after_ms);
            }
            Found::Expired { reason, completed_at, evidence_until } => {
                m.set_answer(v1::Answer::Expired);
                m.reason = Some(reason.as_str().to_owned());
                m.completed_at = completed_at.map(time);
                m.evidence_until = evidence_until.map(time);
            }
        }
        m
    }
}

fn grant(m: &mut v1::ClaimAnswer, new: New) {
    m.set_answer(v1::Answer::New);
    m.fence = Some(new.fence.0);
    m.attempt = Some(new.attempt);
    m.phase = Some(phase(new.phase));
    m.version = Some(new.version.0);
    m.repeated = Some(new.repeated);
    m.lease_ms = Some(new.lease_ms);
    m.lease_deadline = Some(time(new.lease_deadline));
    m.downstream_key = Some(new.downstream_key);
    m.checkpoint = new.checkpoint.map(checkpoint);
}

impl From<OwnerAnswer> for v1::OwnerAnswer {
    fn from(answer: OwnerAnswer) -> Self {
        v1::OwnerAnswer {
            state: state(answer.state).into(),
            phase: answer.phase.map(phase),
            lease_ms: answer.lease_ms,
            lease_deadline: answer.lease_deadline.map(time),
            version: answer.version.map(|version| version.0),
            index: answer.index.0,
        }
    }
}

impl From<Record> for v1::Record {
    fn from(record: Record) -> Self {
        v1::Record {
            record: Some(record.id.into()),
            state: state(record.state).into(),
            version: record.version.0,
            fence: record.fence.0,
            attempt: record.attempt,
            phase: record.phase.map(phase),
            attempt_id: Some(record.attempt_id.hyphenated()),
            fingerprints: record.fingerprints.into_iter().map(fingerprint).collect(),
            lease_deadline: record.lease_deadline.map(time),
            since: Some(time(record.since)),
            reason: record.reason.map(|reason| reason.0),
            checkpoint: record.checkpoint.map(checkpoint),
            labels: record.labels.as_map().clone(),
            outcome: record.outcome.map(Into::into),
            completed_at: record.completed_at.map(time),
            replay_until: record.replay_until.map(time),
            evidence_until: record.evidence_until.map(time),
            downstream_key: record.downstream_key,
            investigation: record
                .investigation
                .map(|own| v1::Investigation { actor: own.actor, deadline: Some(time(own.deadline)) }),
            check_again_at: record.check_again_at.map(time),
            on_lapse: record.on_lapse.map(on_lapse),
            index: record.index.0,
        }
    }
}

impl From<Refusal> for v1::Refused {
    fn from(refusal: Refusal) -> Self {
        let effect = match refusal.code.effect() {
            Effect::None => v1::Effect::None,
            Effect::Unknown => v1::Effect::Unknown,
        };
        v1::Refused {
            code: refusal.code.as_str().to_owned(),
            retryable: refusal.code.retryable(),
            effect: effect.into(),
            retry_after_ms: refusal.retry_after_ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)),
            attempt_id: refusal.attempt_id.map(|id| id.hyphenated()),
            index: refusal.index.map(|index| index.0),
            leader: refusal.leader.map(|leader| v1::Leader { id: leader.id, endpoint: leader.endpoint }),
            detail: refusal.detail.into_owned(),
        }
    }
}

/// The message of one item's answer.
pub(crate) fn item(answer: Result<ItemAnswer, Refusal>) -> v1::ItemAnswer {
    use v1::item_answer::Answer as Wire;
    let answer = match answer {
        Ok(ItemAnswer::Claim(claim)) => Wire::Claim(claim.into()),
        Ok(ItemAnswer::Get(record)) => Wire::Get((*record).into()),
        Ok(ItemAnswer::Owner(kind, owner)) => match kind {
            OwnerKind::Begin => Wire::Begin(owner.into()),
            OwnerKind::Renew => Wire::Renew(owner.into()),
            OwnerKind::Checkpoint => Wire::Checkpoint(owner.into()),
            OwnerKind::Complete => Wire::Complete(owner.into()),
            OwnerKind::Release => Wire::Release(owner.into()),
            OwnerKind::Suspend => Wire::Suspend(owner.into()),
        },
        Err(refusal) => Wire::Refused(refusal.into()),
    };
    v1::ItemAnswer { answer: Some(answer) }
}

impl From<BatchAnswer> for v1::BatchAnswer {
    fn from(batch: BatchAnswer) -> Self {
        v1::BatchAnswer { items: batch.items.into_iter().map(item).collect(), index: batch.index.0 }
    }
}

impl From<ListAnswer> for v1::ListAnswer {
    fn from(page: ListAnswer) -> Self {
        let records = page.records.into_iter().map(Into::into).collect();
        v1::ListAnswer { records, cursor: page.cursor, index: page.index.0 }
    }
}

impl From<HistoryAnswer> for v1::HistoryAnswer {
    fn from(page: HistoryAnswer) -> Self {
        let event = |event: HistoryEvent| v1::HistoryEvent {
            at: Some(time(event.at)),
            index: event.index.0,
            kind: history_kind(event.kind).into(),
            actor: event.actor,
            fence: event.fence.map(|fence| fence.0),
            detail: event.detail,
        };
        let events = page.events.into_iter().map(event).collect();
        v1::HistoryAnswer { events, cursor: page.cursor, index: page.index.0 }
    }
}

/// A kind by its word. The schema knows all of [`HISTORY_KINDS`]; a test holds it to that.
fn history_kind(word: &str) -> v1::HistoryKind {
    let name = format!("HISTORY_KIND_{}", word.to_ascii_uppercase());
    v1::HistoryKind::from_str_name(&name).unwrap_or(v1::HistoryKind::Unspecified)
}

impl From<WatchAnswer> for v1::WatchAnswer {
    fn from(change: WatchAnswer) -> Self {
        let index = change.index.0;
        let gone = |(id, now): (RecordId, StateWord)| v1::WatchGone {
            record: Some(id.into()),
            state: state(now).into(),
            index,
        };
        v1::WatchAnswer {
            index,
            reset: change.reset,
            indeterminate: change.indeterminate.into_iter().map(Into::into).collect(),
            gone: change.gone.into_iter().map(gone).collect(),
            more: change.more,
        }
    }
}

fn oversize(own: Oversize) -> i32 {
    match own {
        Oversize::Reject => v1::Oversize::Reject.into(),
        Oversize::DigestOnly => v1::Oversize::DigestOnly.into(),
    }
}

fn expired_claims(own: ExpiredClaims) -> i32 {
    match own {
        ExpiredClaims::Reject => v1::ExpiredClaims::Reject.into(),
        ExpiredClaims::RunAsNew => v1::ExpiredClaims::RunAsNew.into(),
    }
}

fn low_entropy_keys(own: LowEntropyKeys) -> i32 {
    match own {
        LowEntropyKeys::Allow => v1::LowEntropyKeys::Allow.into(),
        LowEntropyKeys::Warn => v1::LowEntropyKeys::Warn.into(),
        LowEntropyKeys::Refuse => v1::LowEntropyKeys::Refuse.into(),
    }
}

fn effective(policy: Policy) -> v1::Policy {
    v1::Policy {
        lease_ms_default: Some(policy.lease_ms_default),
        lease_ms_max: Some(policy.lease_ms_max),
        wait_ms_max: Some(policy.wait_ms_max),
        on_lapse: Some(on_lapse(policy.on_lapse)),
        replay_s: Some(policy.replay_s),
        evidence_s: Some(policy.evidence_s),
        outcome_bytes_max: Some(policy.outcome_bytes_max),
        oversize: Some(oversize(policy.oversize)),
        expired_claims: Some(expired_claims(policy.expired_claims)),
        records_max: policy.records_max,
        bytes_max: policy.bytes_max,
        indeterminate_max: policy.indeterminate_max,
        claims_per_s: policy.claims_per_s,
        key_bytes_min: Some(policy.key_bytes_min),
        replay_s_max: Some(policy.replay_s_max),
        evidence_s_max: Some(policy.evidence_s_max),
        checkpoint_bytes_max: Some(policy.checkpoint_bytes_max),
        effect_ms_max: Some(policy.effect_ms_max),
        low_entropy_keys: Some(low_entropy_keys(policy.low_entropy_keys)),
    }
}

fn overrides(own: Overrides) -> v1::Policy {
    v1::Policy {
        lease_ms_default: own.lease_ms_default,
        lease_ms_max: own.lease_ms_max,
        wait_ms_max: own.wait_ms_max,
        on_lapse: own.on_lapse.map(on_lapse),
        replay_s: own.replay_s,
        evidence_s: own.evidence_s,
        outcome_bytes_max: own.outcome_bytes_max,
        oversize: own.oversize.map(oversize),
        expired_claims: own.expired_claims.map(expired_claims),
        records_max: own.records_max,
        bytes_max: own.bytes_max,
        indeterminate_max: own.indeterminate_max,
        claims_per_s: own.claims_per_s,
        key_bytes_min: own.key_bytes_min,
        replay_s_max: own.replay_s_max,
        evidence_s_max: own.evidence_s_max,
        checkpoint_bytes_max: own.checkpoint_bytes_max,
        effect_ms_max: own.effect_ms_max,
        low_entropy_keys: own.low_entropy_keys.map(low_entropy_keys),
    }
}

impl From<PolicyAnswer> for v1::PolicyAnswer {
    fn from(answer: PolicyAnswer) -> Self {
        v1::PolicyAnswer {
            policy: Some(effective(answer.policy)),
            overrides: Some(overrides(answer.overrides)),
            index: answer.index.0,
        }
    }
}

fn words(permissions: Permissions) -> Vec<String> {
    permissions.each().map(|permission| permission.as_str().to_owned()).collect()
}

impl From<TokenAnswer> for v1::TokenAnswer {
    fn from(TokenAnswer { info, token, index }: TokenAnswer) -> Self {
        v1::TokenAnswer {
            token_id: info.token_id,
            token: token.map(|token| token.reveal()),
            tenant: info.tenant.map(|tenant| tenant.as_str().to_owned()),
            permissions: words(info.permissions),
            operations: info.operations,
            expires_at: info.expires_at.map(time),
            revoked_at: info.revoked_at.map(time),
            index: index.0,
        }
    }
}

impl From<TokenInfo> for v1::TokenInfo {
    fn from(info: TokenInfo) -> Self {
        v1::TokenInfo {
            token_id: info.token_id,
            tenant: info.tenant.map(|tenant| tenant.as_str().to_owned()),
            permissions: words(info.permissions),
            operations: info.operations,
            note: info.note,
            created_by: info.created_by,
            created_at: Some(time(info.created_at)),
            expires_at: info.expires_at.map(time),
            revoked_at: info.revoked_at.map(time),
            state: info.state.to_owned(),
        }
    }
}

impl From<ListTokensAnswer> for v1::ListTokensAnswer {
    fn from(answer: ListTokensAnswer) -> Self {
        let tokens = answer.tokens.into_iter().map(Into::into).collect();
        v1::ListTokensAnswer { tokens, cursor: answer.cursor, index: answer.index.0 }
    }
}
