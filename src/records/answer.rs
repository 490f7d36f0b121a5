//! What apply answers. Sealed fields leave as they are stored; the service opens them.

pub mod wire;

use std::sync::Arc;

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};

use super::{
    codec::tagged_words,
    command::{Sealed, Token},
    policy::Effective,
    record::{BodyPlace, Head, Outcome, Point, ReasonTag, StateWord},
};
use crate::{
    id::{Fence, Position, Time, Uuid},
    refusal::Refusal,
};

/// A command's answer and the position at which it was decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The position of the command.
    pub index: Position,
    /// Cluster time as applied.
    pub now: Time,
    /// The answer.
    pub answer: Result<Answer, Refusal>,
}

/// Answers of all commands.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Of a claim.
    Claim(ClaimAnswer),
    /// Of an owner's command, a verdict or a forget.
    Changed(Changed),
    /// Of an investigation: the record as it is now.
    Investigated(Arc<Head>),
    /// Of a policy change: what holds now.
    Policy(Box<Effective>),
    /// Of what is done with a token: the token as it is now.
    Token(Arc<Token>),
    /// Of everything that answers nothing but that it is done.
    Done,
}

/// Why a record is indeterminate: a tag, and the owner's words.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Reason {
    /// The tag.
    pub tag: ReasonTag,
    /// The owner's reason, sealed, with the record it belongs to.
    pub text: Option<Sealed>,
}

tagged_words! {
    /// Why a claim is answered `expired`.
    ExpiredReason {
        /// The replay window is over.
        ReplayOver = 1 "replay_over",
        /// The outcome was erased.
        Forgotten = 2 "forgotten",
        /// The request was first sent before what evidence could still show.
        TooOld = 3 "too_old",
    }
}

tagged_words! {
    /// The phase of an owned record.
    Phase {
        /// No effect has begun.
        Staged = 1 "staged",
        /// The effect may have begun.
        Begun = 2 "begun",
    }
}

/// A grant, or the repeat of one.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct New {
    /// The fencing token.
    pub fence: Fence,
    /// 1 for the first owner.
    pub attempt: u32,
    /// The attempt that owns.
    pub attempt_id: Uuid,
    /// The phase.
    pub phase: Phase,
    /// The record's version.
    pub version: Position,
    /// Whether the same attempt already owned it.
    pub repeated: bool,
    /// The lease as granted, ms.
    pub lease_ms: u32,
    /// When it ends.
    pub lease_deadline: Time,
    /// The last recovery point.
    pub checkpoint: Option<Point>,
    /// The record as granted.
    pub head: Arc<Head>,
}

/// A replay.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Replay {
    /// The outcome as stored.
    pub outcome: Outcome,
    /// The body, where it stands under its own key.
    pub body: Option<Sealed>,
    /// When it was completed.
    pub completed_at: Time,
}

impl Replay {
    /// The sealed body, wherever it stands; none where none is stored.
    pub fn sealed_body(&self) -> Option<&Sealed> {
        match &self.outcome.body {
            BodyPlace::Inline(body) => Some(body),
            BodyPlace::Separate(_) => self.body.as_ref(),
            BodyPlace::NotStored(()) => None,
        }
    }
}

/// What a claim learns.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimAnswer {
    /// The caller owns the record.
    New(Box<New>),
    /// Another attempt owns it.
    InProgress {
        /// When to come back.
        retry_after_ms: u64,
        /// Since when it is owned.
        since: Time,
    },
    /// The record is bound to another request.
    Conflict {
        /// Its state.
        state: StateWord,
        /// Since when.
        since: Time,
    },
    /// Nobody knows whether the effect happened.
    Indeterminate {
        /// Since when.
        since: Time,
        /// Why.
        reason: Reason,
        /// When to come back.
        retry_after_ms: u64,
    },
    /// Done: the recorded outcome.
    Completed(Box<Replay>),
    /// Done or too old, and not replayed.
    Expired {
        /// Why.
        reason: ExpiredReason,
        /// When it was completed, if it is known.
        completed_at: Option<Time>,
        /// How long the evidence is kept, if there is any.
        evidence_until: Option<Time>,
    },
}

/// The state that a command left.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Changed {
    /// The state.
    pub state: StateWord,
    /// The phase, while in progress.
    pub phase: Option<Phase>,
    /// The lease as granted, ms, while in progress.
    pub lease_ms: Option<u32>,
    /// When it ends, while in progress.
    pub lease_deadline: Option<Time>,
    /// The record's version; none while absent.
    pub version: Option<Position>,
}
