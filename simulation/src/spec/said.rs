//! Answers that can be compared: what the contract says, what stands in the log, and what a client was told.

use semel::{
    proto::v1,
    records::{
        answer::{Answer, ClaimAnswer, ExpiredReason, Phase},
        command::{KeyedDigest, Sealed},
        record::{ReasonTag, StateWord},
    },
    refusal::{Code, Refusal},
};

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// A grant, or its repeat.
    New {
        fence: u64,
        attempt: u32,
        begun: bool,
        version: u64,
        repeated: bool,
        lease_ms: u32,
        deadline: u64,
        point: Option<KeyedDigest>,
    },
    /// Somebody else's.
    InProgress { retry_after_ms: u64, since: u64 },
    /// Another request's.
    Conflict { state: StateWord, since: u64 },
    /// In doubt.
    Indeterminate { since: u64, tag: ReasonTag, retry_after_ms: u64 },
    /// A replay: the outcome's other fields, and its body where that is kept.
    Completed { at: u64, meta: Sealed, body: Option<Sealed> },
    /// Done, and not replayed.
    Expired { reason: ExpiredReason, at: Option<u64>, until: Option<u64> },
    /// The state that a command left.
    Changed {
        state: StateWord,
        begun: Option<bool>,
        lease_ms: Option<u32>,
        deadline: Option<u64>,
        version: Option<u64>,
    },
    /// The record that is looked into, at this version.
    Investigated { version: u64 },
    /// Done, with nothing to tell.
    Done,
    /// Refused.
    Refused(Code),
}

impl Said {
    /// A record that is absent now.
    pub fn absent() -> Self {
        Said::Changed { state: StateWord::Absent, begun: None, lease_ms: None, deadline: None, version: None }
    }

    /// What stands in the log. None: an answer that is not looked at here.
    pub fn of(answer: &Result<Answer, Refusal>) -> Option<Self> {
        Some(match answer {
            Err(refusal) => Said::Refused(refusal.code),
            Ok(Answer::Claim(claim)) => of_claim(claim),
            Ok(Answer::Changed(changed)) => Said::Changed {
                state: changed.state,
                begun: changed.phase.map(|phase| phase == Phase::Begun),
                lease_ms: changed.lease_ms,
                deadline: changed.lease_deadline.map(|time| time.0),
                version: changed.version.map(|version| version.0),
            },
            Ok(Answer::Investigated(head)) => Said::Investigated { version: head.version.0 },
            Ok(Answer::Done) => Said::Done,
            Ok(Answer::Policy(_) | Answer::Token(_)) => return None,
        })
    }

    /// Whether a client that was told this was told the same. Digests and sealed fields are not compared.
    pub fn agrees_with_claim(&self, told: &v1::ClaimAnswer) -> bool {
        let time = |time: &Option<prost_types::Timestamp>| time.as_ref().map(ms);
        match self {
            Said::New { fence, attempt, begun, version, repeated, lease_ms, deadline, point } => {
                told.answer() == v1::Answer::New
                    && told.fence == Some(*fence)
                    && told.attempt == Some(*attempt)
                    && (told.phase() == v1::Phase::Begun) == *begun
                    && told.version == Some(*version)
                    && told.repeated() == *repeated
                    && told.lease_ms == Some(*lease_ms)
                    && time(&told.lease_deadline) == Some(*deadline)
                    && told.checkpoint.is_some() == point.is_some()
            }
            Said::InProgress { retry_after_ms, since } => {
                told.answer() == v1::Answer::InProgress
                    && u64::from(told.retry_after_ms()) == *retry_after_ms
                    && time(&told.since) == Some(*since)
            }
            Said::Conflict { state, since } => {
                told.answer() == v1::Answer::Conflict
                    && word(told.state()) == Some(*state)
                    && time(&told.since) == Some(*since)
            }
            Said::Indeterminate { since, retry_after_ms, .. } => {
                told.answer() == v1::Answer::Indeterminate
                    && u64::from(told.retry_after_ms()) == *retry_after_ms
                    && time(&told.since) == Some(*since)
            }
            Said::Completed { at, body, .. } => {
                told.answer() == v1::Answer::Completed
                    && time(&told.completed_at) == Some(*at)
                    && told.outcome.as_ref().is_some_and(|outcome| agrees_with_body(body.as_ref(), outcome))
            }
            Said::Expired { reason, at, until } => {
                told.answer() == v1::Answer::Expired
                    && told.reason() == reason.as_str()
                    && time(&told.completed_at) == *at
                    && time(&told.evidence_until) == *until
            }
            _ => false,
        }
    }

    /// The same for an owner's, a verdict's or a forget's answer.
    pub fn agrees_with_owner(&self, told: &v1::OwnerAnswer) -> bool {
        let Said::Changed { state, begun, lease_ms, deadline, version } = self else { return false };
        word(told.state()) == Some(*state)
            && told.phase.map(|phase| phase == i32::from(v1::Phase::Begun)) == *begun
            && told.lease_ms == *lease_ms
            && told.lease_deadline.as_ref().map(ms) == *deadline
            && told.version == *version
    }
}

/// Whether a shown outcome has the stored body. A body under a key can't be read here.
pub fn agrees_with_body(stored: Option<&Sealed>, shown: &v1::Outcome) -> bool {
    match stored {
        None => shown.not_stored && shown.body.is_none(),
        Some(sealed) if sealed.key_id == 0 => shown.body.as_ref() == Some(&sealed.bytes.0),
        Some(_) => shown.body.is_some(),
    }
}

fn of_claim(answer: &ClaimAnswer) -> Said {
    match answer {
        ClaimAnswer::New(new) => Said::New {
            fence: new.fence.0,
            attempt: new.attempt,
            begun: new.phase == Phase::Begun,
            version: new.version.0,
            repeated: new.repeated,
            lease_ms: new.lease_ms,
            deadline: new.lease_deadline.0,
            point: new.checkpoint.as_ref().map(|point| point.digest),
        },
        ClaimAnswer::InProgress { retry_after_ms, since } => {
            Said::InProgress { retry_after_ms: *retry_after_ms, since: since.0 }
        }
        ClaimAnswer::Conflict { state, since } => Said::Conflict { state: *state, since: since.0 },
        ClaimAnswer::Indeterminate { since, reason, retry_after_ms } => {
            Said::Indeterminate { since: since.0, tag: reason.tag, retry_after_ms: *retry_after_ms }
        }
        ClaimAnswer::Completed(replay) => Said::Completed {
            at: replay.completed_at.0,
            meta: replay.outcome.meta.clone(),
            body: replay.sealed_body().cloned(),
        },
        ClaimAnswer::Expired { reason, completed_at, evidence_until } => Said::Expired {
            reason: *reason,
            at: completed_at.map(|time| time.0),
            until: evidence_until.map(|time| time.0),
        },
    }
}

/// Milliseconds of cluster time.
pub fn ms(time: &prost_types::Timestamp) -> u64 {
    u64::try_from(time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000).unwrap_or_default()
}

/// A state of the wire.
pub fn word(state: v1::State) -> Option<StateWord> {
    Some(match state {
        v1::State::Absent => StateWord::Absent,
        v1::State::InProgress => StateWord::InProgress,
        v1::State::Indeterminate => StateWord::Indeterminate,
        v1::State::Completed => StateWord::Completed,
        v1::State::Expired => StateWord::Expired,
        v1::State::Unspecified => return None,
    })
}
