//! What a claim found, and what a run came to.

use std::time::{Duration, SystemTime};

use super::{
    claim::Claim,
    error::Error,
    outcome::{Outcome, system_time},
};
use crate::proto::v1;

/// What became of [`Operation::run`](super::Operation::run).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The handler ran, and this is its outcome, durable.
    Ran(Outcome),
    /// It was done before: this is the outcome, byte for byte. The handler did not run.
    Replayed(Outcome),
    /// The key belongs to another request. The handler did not run.
    Conflict(Conflict),
    /// Another attempt is at it. The handler did not run.
    InProgress(InProgress),
    /// Nobody knows whether the effect happened: an earlier attempt's, or the handler's own after
    /// [`Verdict::Unknown`](super::Verdict::Unknown).
    Indeterminate(Indeterminate),
    /// It was done, or must be taken as done, too long ago for a replay. The handler did not run.
    Expired(Expired),
}

/// What [`Operation::claim`](super::Operation::claim) found.
#[derive(Debug)]
pub enum Found {
    /// The caller owns the record now.
    New(Claim),
    /// It was done before: this is the outcome, byte for byte.
    Completed(Outcome),
    /// The key belongs to another request.
    Conflict(Conflict),
    /// Another attempt is at it.
    InProgress(InProgress),
    /// Nobody knows whether the effect happened.
    Indeterminate(Indeterminate),
    /// It was done, or must be taken as done, too long ago for a replay.
    Expired(Expired),
}

/// The key belongs to another request: the fingerprints differ. Nothing of the other one is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The state of the record.
    pub state: v1::State,
    /// Since when.
    pub since: Option<SystemTime>,
}

/// Another attempt owns the record, and its lease runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InProgress {
    /// Since when.
    pub since: Option<SystemTime>,
    /// When to ask again.
    pub retry_after: Duration,
}

/// Nobody knows whether the effect happened. Not to be run again until it is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Indeterminate {
    /// Since when.
    pub since: Option<SystemTime>,
    /// The owner's words, `lease_lapsed` or `restored`.
    pub reason: String,
    /// When to ask again.
    pub retry_after: Duration,
}

/// It was done, or must be taken as done, too long ago for a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired {
    /// `replay_over`, `forgotten` or `too_old`.
    pub reason: String,
    /// When its outcome was reported, where that is known.
    pub completed_at: Option<SystemTime>,
    /// Until when the key can't run again.
    pub evidence_until: Option<SystemTime>,
}

/// What a claim's answer says, before there is a guard for it.
pub(super) enum Said {
    New(Grant),
    Completed(Outcome),
    Conflict(Conflict),
    InProgress(InProgress),
    Indeterminate(Indeterminate),
    Expired(Expired),
}

/// A record that was given to this attempt.
pub(super) struct Grant {
    pub(super) fence: u64,
    pub(super) attempt: u32,
    pub(super) begun: bool,
    pub(super) lease_ms: u32,
    pub(super) downstream_key: String,
    pub(super) checkpoint: Option<v1::CheckpointData>,
}

impl Said {
    pub(super) fn of_message(mut m: v1::ClaimAnswer) -> Result<Self, Error> {
        let since = m.since.take().and_then(system_time);
        let retry_after = Duration::from_millis(m.retry_after_ms.unwrap_or_default().into());
        let reason = m.reason.take().unwrap_or_default();
        Ok(match m.answer() {
            v1::Answer::Unspecified => return Err(Error::Protocol { missing: "answer" }),
            v1::Answer::New => Said::New(grant(m)?),
            v1::Answer::Completed => {
                let outcome = m.outcome.ok_or(Error::Protocol { missing: "outcome" })?;
                let completed_at = m.completed_at.and_then(system_time);
                let stale = m.stale.unwrap_or_default();
                Said::Completed(Outcome { completed_at, stale, ..Outcome::of_message(outcome) })
            }
            v1::Answer::Conflict => Said::Conflict(Conflict { state: m.state(), since }),
            v1::Answer::InProgress => Said::InProgress(InProgress { since, retry_after }),
            v1::Answer::Indeterminate => Said::Indeterminate(Indeterminate { since, reason, retry_after }),
            v1::Answer::Expired => Said::Expired(Expired {
                reason,
                completed_at: m.completed_at.and_then(system_time),
                evidence_until: m.evidence_until.and_then(system_time),
            }),
        })
    }
}

fn grant(m: v1::ClaimAnswer) -> Result<Grant, Error> {
    // A phase that isn't told is taken as begun: the side on which nothing runs twice.
    let begun = m.phase() != v1::Phase::Staged;
    Ok(Grant {
        fence: m.fence.ok_or(Error::Protocol { missing: "fence" })?,
        attempt: m.attempt.unwrap_or(1),
        begun,
        lease_ms: m.lease_ms.ok_or(Error::Protocol { missing: "lease_ms" })?,
        downstream_key: m.downstream_key.ok_or(Error::Protocol { missing: "downstream_key" })?,
        checkpoint: m.checkpoint,
    })
}
