//! What a record is, and how it reads at a moment.

use semel::{
    id::Uuid,
    records::{
        command::{KeyedDigest, ProposedOutcome},
        record::{ReasonTag, StateWord},
    },
};

use super::Doubt;

/// An owner's terms.
#[derive(Clone, Debug)]
pub struct Grant {
    pub fence: u64,
    pub since: u64,
    /// 0 where a restore's doubt recorded the claim.
    pub attempt: u32,
    pub attempt_id: Uuid,
    pub prints: Vec<(u32, KeyedDigest)>,
    pub lease_ms: u32,
    pub deadline: u64,
    pub hold: bool,
    pub begun: bool,
    pub ever_begun: bool,
    pub replay_asked: Option<u32>,
    pub evidence_asked: Option<u32>,
    pub replay_ms: u64,
    pub evidence_ms: u64,
    pub point: Option<KeyedDigest>,
}

/// What is doubtful about a record.
#[derive(Clone, Debug)]
pub struct Doubtful {
    pub since: u64,
    pub tag: ReasonTag,
    pub check_at: Option<u64>,
    /// Who looks into it, and until when.
    pub looking: Option<(KeyedDigest, u64)>,
}

/// An outcome with its windows.
#[derive(Clone, Debug)]
pub struct Done {
    pub at: u64,
    pub outcome: ProposedOutcome,
    pub is_stored: bool,
    pub replay_until: u64,
    pub evidence_until: u64,
    pub forgotten: Option<u64>,
}

/// The state as it was left by the last command.
#[derive(Clone, Debug)]
pub enum State {
    Owned,
    Doubtful(Doubtful),
    Done(Done),
    /// Absent, with a trace until then, and the fence of the owner who released it.
    Gone {
        until: u64,
        released: Option<u64>,
    },
}

/// A record.
#[derive(Clone, Debug)]
pub struct Record {
    pub version: u64,
    /// The last grant, verdict or release.
    pub cleared: u64,
    pub grant: Grant,
    pub state: State,
    /// The last verdicts: request, state, version.
    pub verdicts: Vec<(Uuid, StateWord, u64)>,
}

/// How a record reads.
#[derive(Clone, Debug)]
pub enum Word {
    Owned { lapsed: bool },
    Doubtful(Doubtful),
    Completed,
    Expired { since: u64 },
}

impl Word {
    pub fn state(&self) -> StateWord {
        match self {
            Word::Owned { .. } => StateWord::InProgress,
            Word::Doubtful(_) => StateWord::Indeterminate,
            Word::Completed => StateWord::Completed,
            Word::Expired { .. } => StateWord::Expired,
        }
    }
}

impl Record {
    /// Whether it counts as absent, trace and all.
    pub fn is_over(&self, now: u64) -> bool {
        match &self.state {
            State::Owned => !self.grant.begun && now >= self.grant.deadline + self.grant.evidence_ms,
            State::Doubtful(_) => false,
            State::Done(done) => now >= done.evidence_until,
            State::Gone { until, .. } => now >= *until,
        }
    }

    /// How it reads; none: absent, with a trace.
    pub fn word(&self, now: u64, doubt: Option<Doubt>) -> Option<Word> {
        let grant = &self.grant;
        Some(match &self.state {
            State::Gone { .. } => return None,
            State::Doubtful(doubtful) => Word::Doubtful(doubtful.clone()),
            State::Done(done) => match done.forgotten {
                Some(forgotten) => Word::Expired { since: forgotten.min(done.replay_until) },
                None if now >= done.replay_until => Word::Expired { since: done.replay_until },
                None => Word::Completed,
            },
            State::Owned => {
                let lapsed = now >= grant.deadline;
                let held = lapsed && grant.begun && grant.hold;
                let restored = doubt.filter(|doubt| grant.fence < doubt.first);
                let made_up = |since, tag| Doubtful { since, tag, check_at: None, looking: None };
                match restored {
                    Some(doubt) if !(held && grant.deadline <= doubt.since) => {
                        Word::Doubtful(made_up(doubt.since, ReasonTag::Restored))
                    }
                    _ if held => Word::Doubtful(made_up(grant.deadline, ReasonTag::LeaseLapsed)),
                    _ => Word::Owned { lapsed },
                }
            }
        })
    }

    /// Since when it reads so.
    pub fn since(&self, word: &Word) -> u64 {
        match (word, &self.state) {
            (Word::Doubtful(doubtful), _) => doubtful.since,
            (Word::Expired { since }, _) => *since,
            (Word::Completed, State::Done(done)) => done.at,
            _ => self.grant.since,
        }
    }
}
