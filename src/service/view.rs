//! From what is stored to what is shown: sealed fields opened, states as read.

use super::{
    answer::{Investigation, Outcome, Reason, Record},
    names::{self, Names, OutcomeMeta},
    request::{Checkpoint, CheckpointName, Labels, Payload},
};
use crate::{
    fingerprint::Fingerprint,
    id::{Position, Time},
    records::{
        answer::Phase,
        codec::Blob,
        command::{RecordRef, Sealed},
        record::{self, BodyPlace, Head, Point, ReasonTag, Standing},
        state::State,
    },
    refusal::{Code, Refusal},
    seal::Field,
};

/// The words for why a record is indeterminate: the owner's, or the tag's.
pub(super) fn reason(names: &Names, of: &RecordRef, tag: ReasonTag, text: Option<&Sealed>) -> Result<String, Refusal> {
    match text {
        Some(text) => names.opened_text(Field::Reason, of, text),
        None => Ok(tag.as_str().to_owned()),
    }
}

/// A recovery point.
pub(super) fn checkpoint(names: &Names, of: &RecordRef, point: &Point) -> Result<Checkpoint, Refusal> {
    let opened = names.open_fenced(Field::Checkpoint, of, point.fence, &point.sealed)?;
    let (name, data): (String, Blob) = names::decoded(Field::Checkpoint, &opened)?;
    Ok(Checkpoint { name: CheckpointName::parse("name", name)?, data: Payload(data.0) })
}

/// An outcome and its body, wherever that stands.
pub(super) fn outcome(
    names: &Names,
    of: &RecordRef,
    stored: &record::Outcome,
    body: Option<&Sealed>,
) -> Result<Outcome, Refusal> {
    let opened = names.open_fenced(Field::OutcomeMeta, of, stored.fence, &stored.meta)?;
    let meta: OutcomeMeta = names::decoded(Field::OutcomeMeta, &opened)?;
    let body = match (&stored.body, body) {
        (BodyPlace::NotStored(()), _) => None,
        (_, Some(body)) => Some(Payload(names.open_fenced(Field::OutcomeBody, of, stored.fence, body)?)),
        (_, None) => return Err(Refusal::new(Code::Internal, "the recorded body is missing")),
    };
    Ok(Outcome {
        status: meta.status,
        headers: names::opened_headers(meta.headers)?,
        content_type: meta.content_type,
        body,
        valid_until: meta.valid_until,
    })
}

/// A record as it is read at `now`; none where it is absent then.
pub(super) fn record(
    state: &impl State,
    (names, of): (&Names, &RecordRef),
    head: &Head,
    now: Time,
    index: Position,
    with_outcome: bool,
) -> Result<Option<Record>, Refusal> {
    let standing = Standing::of(Some(head), now, state.globals());
    let (Some((_, grant)), Some(since)) = (standing.present(), standing.since()) else { return Ok(None) };
    let id = names.opened_id(of, &head.id)?;
    let shown: Vec<(u32, [u8; 32])> = names.opened(Field::Fingerprints, of, &grant.fingerprints.sealed)?;
    let labels = match &grant.labels {
        Some(labels) => {
            let pairs: Vec<(String, String)> = names.opened(Field::Labels, of, labels)?;
            Labels::parse(pairs.into_iter().collect())?
        }
        None => Labels::default(),
    };
    let (doubt, why) = match standing {
        Standing::Indeterminate { tag, stored, .. } => {
            let text = stored.and_then(|stored| stored.reason.as_ref());
            (stored, Some(Reason(reason(names, of, tag, text)?)))
        }
        _ => (None, None),
    };
    let (done, shown_outcome) = match standing {
        Standing::Completed { done, expired_since, .. } => {
            let shown = match &done.outcome {
                Some(stored) if with_outcome && expired_since.is_none() => {
                    let separate = if head.has_body() { state.body(of) } else { None };
                    let body = match &stored.body {
                        BodyPlace::Inline(body) => Some(body),
                        BodyPlace::Separate(_) => separate.as_ref(),
                        BodyPlace::NotStored(()) => None,
                    };
                    Some(outcome(names, of, stored, body)?)
                }
                _ => None,
            };
            (Some(done), shown)
        }
        _ => (None, None),
    };
    let owned = done.is_none();
    let investigation = doubt.and_then(|doubt| doubt.investigation.as_ref()).filter(|running| now < running.deadline);
    let investigation = investigation.map(|running| {
        let actor = names.opened_text(Field::Actor, of, &running.by.actor)?;
        Ok::<_, Refusal>(Investigation { actor, deadline: running.deadline })
    });
    Ok(Some(Record {
        downstream_key: names.downstream_key(&id),
        id,
        state: standing.word(),
        version: head.version,
        fence: grant.fence(),
        attempt: grant.attempt,
        phase: owned.then_some(if grant.begun.is_some() { Phase::Begun } else { Phase::Staged }),
        attempt_id: grant.attempt_id,
        fingerprints: shown.into_iter().map(|(scheme, digest)| Fingerprint::new(scheme, digest)).collect(),
        lease_deadline: owned.then_some(grant.deadline),
        since,
        reason: why,
        checkpoint: grant.checkpoint.as_ref().map(|point| checkpoint(names, of, point)).transpose()?,
        labels,
        outcome: shown_outcome,
        completed_at: done.map(|done| done.completed.at),
        replay_until: done.map(|done| done.replay_until),
        evidence_until: done.map(|done| done.evidence_until),
        investigation: investigation.transpose()?,
        check_again_at: doubt.and_then(|doubt| doubt.check_again_at),
        on_lapse: owned.then_some(grant.on_lapse),
        index,
    }))
}
