//! What is stored of a record: its head (with a small body inline), its history rows, and how both are read at a
//! moment. A head is rewritten by commands alone; lapse and expiry are read from its times.

use std::sync::Arc;

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};

use super::{
    codec::{tagged_values, tagged_words},
    command::{Fingerprints, KeyedDigest, LapseRule, Reconciler, Sealed},
    state::Globals,
};
use crate::id::{Fence, Position, Time, Uuid};

/// When something happened: the position and the cluster time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Moment {
    /// The position.
    pub position: Position,
    /// The cluster time.
    pub at: Time,
}

/// A recovery point as stored. A takeover carries it over as it is.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Point {
    /// Name and data, sealed.
    pub sealed: Sealed,
    /// Keyed digest of both.
    pub digest: KeyedDigest,
    /// Plaintext length of the data, bytes.
    pub data_bytes: u32,
    /// The fence that name and data are sealed with: the writer's, which is not the owner's after a takeover.
    pub fence: Fence,
}

/// A grant: who owns (or owned) the record, and on what terms.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Grant {
    /// Its position and time. The position is the fence.
    pub granted: Moment,
    /// 1 for the first owner; 0 where a restore's doubt recorded the claim and nobody was granted it.
    pub attempt: u32,
    /// This run of the owner's handler.
    pub attempt_id: Uuid,
    /// The request.
    pub fingerprints: Fingerprints,
    /// Labels, sealed.
    pub labels: Option<Sealed>,
    /// The lease as last granted, ms.
    pub lease_ms: u32,
    /// When the lease ends.
    pub deadline: Time,
    /// What becomes of it then, once begun.
    pub on_lapse: LapseRule,
    /// The replay window that the claim asked for, s.
    pub replay_s_wanted: Option<u32>,
    /// The evidence window that the claim asked for, s.
    pub evidence_s_wanted: Option<u32>,
    /// The replay window as first fixed, s.
    pub replay_s: u32,
    /// The evidence window as first fixed, s: of a lapsed staged record and of the trace.
    pub evidence_s: u32,
    /// When the effect may have begun; none while staged.
    pub begun: Option<Moment>,
    /// Whether an earlier attempt of the same life had begun: then a release needs evidence, staged or not.
    pub begun_before: bool,
    /// The last recovery point, also of an earlier attempt.
    pub checkpoint: Option<Point>,
    /// Who claimed, sealed.
    pub actor: Sealed,
}

impl Grant {
    /// The fence: the grant's position.
    pub fn fence(&self) -> Fence {
        Fence(self.granted.position.0)
    }

    /// Whether an effect may have begun, in this attempt or in an earlier one.
    pub fn ever_begun(&self) -> bool {
        self.begun.is_some() || self.begun_before
    }

    /// When the lease ran out, if it did before `end`: of its ownership, or of what is read.
    pub fn lapsed_by(&self, end: Time) -> Option<Time> {
        (end >= self.deadline && self.attempt > 0).then_some(self.deadline)
    }

    /// When a staged record that lapsed stops counting as one.
    pub fn staged_evidence_end(&self) -> Time {
        self.deadline.plus_s(self.evidence_s)
    }
}

tagged_words! {
    /// Why a record is indeterminate.
    ReasonTag {
        /// Its owner said so.
        Owner = 1 "owner",
        /// Its lease ran out after it was begun.
        LeaseLapsed = 2 "lease_lapsed",
        /// A restore leaves it in doubt.
        Restored = 3 "restored",
    }
}

/// A reconciler's hold on an indeterminate record.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Investigation {
    /// Who.
    pub by: Reconciler,
    /// Until when.
    pub deadline: Time,
}

/// What an indeterminate record holds beside its grant.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Indeterminate {
    /// Since when.
    pub since: Time,
    /// Why.
    pub tag: ReasonTag,
    /// The owner's reason, sealed.
    pub reason: Option<Sealed>,
    /// When the last reconciler wants it looked at again.
    pub check_again_at: Option<Time>,
    /// Who is looking at it.
    pub investigation: Option<Investigation>,
}

tagged_values! {
    /// Where an outcome's body stands.
    BodyPlace {
        /// In the head.
        Inline(Sealed) = 1,
        /// Under the body's own key; its stored length, bytes.
        Separate(u32) = 2,
        /// Nowhere: larger than the policy allowed.
        NotStored(()) = 3,
    }
}

/// An outcome as stored.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Outcome {
    /// Status, headers, content type and valid-until, sealed.
    pub meta: Sealed,
    /// The body.
    pub body: BodyPlace,
    /// The fence that meta and body are sealed with.
    pub fence: Fence,
}

/// What a completed (or expired) record holds beside its grant.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Completed {
    /// When.
    pub completed: Moment,
    /// When the lease ran out, if it did before.
    pub lapsed_at: Option<Time>,
    /// Whether a verdict completed it, not the owner.
    pub by_verdict: bool,
    /// What is replayed; none once forgotten.
    pub outcome: Option<Outcome>,
    /// Keyed digest of the outcome: outlives it.
    pub digest: KeyedDigest,
    /// Plaintext length of the body, bytes.
    pub body_bytes: u32,
    /// End of the replay window.
    pub replay_until: Time,
    /// End of the evidence window.
    pub evidence_until: Time,
    /// When the outcome was erased.
    pub forgotten: Option<Time>,
}

tagged_values! {
    /// The state as stored.
    Stored {
        /// Owned: running or lapsed, staged or begun.
        InProgress(Arc<Grant>) = 1,
        /// Nobody knows whether the effect happened.
        Indeterminate((Arc<Grant>, Box<Indeterminate>)) = 2,
        /// Done.
        Completed((Arc<Grant>, Box<Completed>)) = 3,
        /// Absent, but with a history that is kept until this time. Its last owner's fence, where the owner released it.
        Trace((Time, Option<Fence>)) = 4,
    }
}

/// A verdict that is remembered, so that a repeated request gets the first answer.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Resolved {
    /// The request.
    pub request_id: Uuid,
    /// The state that it led to.
    pub state: StateWord,
    /// The version that it led to.
    pub version: Position,
}

/// A record's head.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Head {
    /// The whole identity, sealed.
    pub id: Sealed,
    /// Position of the last visible change.
    pub version: Position,
    /// Position of the last grant, verdict or release: what a restore's doubt looks at.
    pub cleared: Position,
    /// Slots of history rows in use: rows 0..rows.
    pub rows: u8,
    /// Their stored lengths together, bytes.
    pub row_bytes: u32,
    /// The last verdicts.
    pub resolves: Vec<Resolved>,
    /// The state.
    pub stored: Stored,
}

tagged_words! {
    /// The state of a record as read.
    StateWord {
        /// Nothing, or past its evidence.
        Absent = 1 "absent",
        /// Owned.
        InProgress = 2 "in_progress",
        /// In doubt.
        Indeterminate = 3 "indeterminate",
        /// Done, and replayed.
        Completed = 4 "completed",
        /// Done, and no longer replayed.
        Expired = 5 "expired",
    }
}

tagged_words! {
    /// Kinds of history rows. Claimed, begun, lapsed, completed and expired are derived from the head; of a grant that
    /// another one replaced, an `attempt` row keeps them.
    RowKind {
        /// What is left of an earlier grant (and of what it led to).
        Attempt = 1 "attempt",
        /// A recovery point was kept.
        Checkpointed = 2 "checkpointed",
        /// The owner stated that nothing happened.
        Released = 3 "released",
        /// The owner did not know.
        Suspended = 4 "suspended",
        /// Somebody came with a fence that was not the current one.
        StaleFence = 5 "stale_fence",
        /// A reconciler took hold.
        Investigated = 6 "investigated",
        /// A verdict.
        Resolved = 7 "resolved",
        /// The outcome was erased.
        Forgotten = 8 "forgotten",
    }
}

impl RowKind {
    /// Whether rows of this kind are never evicted: at most folded into one that counts them.
    pub fn is_kept(self) -> bool {
        matches!(self, RowKind::Released | RowKind::Resolved | RowKind::Forgotten)
    }
}

tagged_words! {
    /// The word of a verdict.
    VerdictWord {
        /// It happened.
        Completed = 1 "completed",
        /// It did not.
        NoEffect = 2 "no_effect",
        /// Not known yet.
        Unknown = 3 "unknown",
    }
}

/// What an earlier grant left in the history.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct PastAttempt {
    /// When it was begun.
    pub begun: Option<Moment>,
    /// When its lease ran out, if it ended so.
    pub lapsed_at: Option<Time>,
    /// When it was completed.
    pub completed: Option<Moment>,
    /// When its replay ended.
    pub expired_at: Option<Time>,
}

/// A row of a record's history.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Row {
    /// What happened.
    pub kind: RowKind,
    /// When; of several, the last.
    pub moment: Moment,
    /// With which fence.
    pub fence: Option<Fence>,
    /// Who, sealed.
    pub actor: Option<Sealed>,
    /// The reason or evidence, sealed.
    pub detail: Option<Sealed>,
    /// How often.
    pub count: u32,
    /// The verdict of a resolved row.
    pub verdict: Option<VerdictWord>,
    /// What an attempt row keeps.
    pub attempt: Option<PastAttempt>,
}

impl Row {
    /// Bytes that the row counts for: what it stores beyond a fixed part.
    pub fn bytes(&self) -> u32 {
        let sealed = |field: &Option<Sealed>| field.as_ref().map_or(0, Sealed::len);
        u32::try_from(ROW_BYTES + sealed(&self.actor) + sealed(&self.detail)).expect("statements are bounded by limits")
    }
}

/// Bytes counted for a head beside its fields of variable length: key, times, positions and its index entries.
pub(super) const HEAD_BYTES: usize = 200;
/// Bytes counted for a row beside its fields of variable length.
const ROW_BYTES: usize = 64;

/// Bytes counted for fingerprints: the sealed digests, and the keyed ones with their schemes.
pub(super) fn fingerprint_bytes(fingerprints: &Fingerprints) -> usize {
    fingerprints.sealed.len() + 36 * fingerprints.keyed.len()
}

impl Head {
    /// The same record in another state, visibly changed at `version`.
    pub fn moved_to(&self, version: Position, stored: Stored) -> Self {
        Self {
            id: self.id.clone(),
            version,
            cleared: self.cleared,
            rows: self.rows,
            row_bytes: self.row_bytes,
            resolves: self.resolves.clone(),
            stored,
        }
    }

    /// The grant, if the record has one.
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        match &self.stored {
            Stored::InProgress(grant) => Some(grant),
            Stored::Indeterminate(both) => Some(&both.0),
            Stored::Completed(both) => Some(&both.0),
            Stored::Trace(_) => None,
        }
    }

    /// Bytes that the record counts for: a function of the head alone, the same on every replica and engine.
    pub fn bytes(&self) -> u64 {
        let mut bytes = HEAD_BYTES + self.id.len() + self.carried_bytes();
        if let Some(grant) = self.grant() {
            bytes += fingerprint_bytes(&grant.fingerprints) + grant.actor.len();
            bytes += grant.labels.as_ref().map_or(0, Sealed::len);
            bytes += grant.checkpoint.as_ref().map_or(0, |point| point.sealed.len() + 32);
        }
        match &self.stored {
            Stored::Indeterminate(both) => bytes += both.1.reason.as_ref().map_or(0, Sealed::len),
            Stored::Completed(both) => {
                if let Some(outcome) = &both.1.outcome {
                    bytes += outcome.meta.len();
                    bytes += match &outcome.body {
                        BodyPlace::Inline(body) => body.len(),
                        BodyPlace::Separate(length) => *length as usize,
                        BodyPlace::NotStored(()) => 0,
                    };
                }
            }
            Stored::InProgress(_) | Stored::Trace(_) => {}
        }
        bytes as u64
    }

    /// Bytes of the history rows and of the remembered verdicts: what outlives a grant.
    pub(super) fn carried_bytes(&self) -> usize {
        self.row_bytes as usize + 32 * self.resolves.len()
    }

    /// When the lease of the grant ran out, if it did while it was owned. Whatever became of the record afterwards, a
    /// lapse that was once shown stays in its history.
    pub fn lapsed_at(&self, now: Time) -> Option<Time> {
        match &self.stored {
            Stored::InProgress(grant) => grant.lapsed_by(now),
            // A restore's doubt does not end the ownership that it doubts: the lease runs out under it.
            Stored::Indeterminate(both) if both.1.tag == ReasonTag::Restored => both.0.lapsed_by(now),
            Stored::Indeterminate(both) => both.0.lapsed_by(both.1.since),
            Stored::Completed(both) => both.1.lapsed_at,
            Stored::Trace(_) => None,
        }
    }

    /// Whether a body stands under its own key.
    pub fn has_body(&self) -> bool {
        matches!(&self.stored, Stored::Completed(both)
            if matches!(&both.1.outcome, Some(Outcome { body: BodyPlace::Separate(_), .. })))
    }
}

/// A record as read at a moment: what every command, read and list goes by.
#[derive(Clone, Copy, Debug)]
pub enum Standing<'a> {
    /// Nothing, or past its evidence; with the trace that a release or a verdict left.
    Absent {
        /// The head, where it is a trace that still stands.
        trace: Option<&'a Head>,
    },
    /// Owned.
    InProgress {
        /// The head.
        head: &'a Head,
        /// Its grant.
        grant: &'a Arc<Grant>,
        /// Whether the lease has run out (then it is staged, or begun with `retake`).
        lapsed: bool,
    },
    /// In doubt.
    Indeterminate {
        /// The head.
        head: &'a Head,
        /// Its grant.
        grant: &'a Arc<Grant>,
        /// Since when.
        since: Time,
        /// Why.
        tag: ReasonTag,
        /// What is stored of it; none where it is derived from a deadline or a restore.
        stored: Option<&'a Indeterminate>,
    },
    /// Done; also expired.
    Completed {
        /// The head.
        head: &'a Head,
        /// Its grant.
        grant: &'a Arc<Grant>,
        /// What was stored.
        done: &'a Completed,
        /// Since when its replay is over, if it is.
        expired_since: Option<Time>,
    },
}

impl<'a> Standing<'a> {
    /// Reads a head at `now`.
    pub fn of(head: Option<&'a Head>, now: Time, globals: &Globals) -> Self {
        let Some(head) = head else { return Standing::Absent { trace: None } };
        match &head.stored {
            Stored::Trace((until, _)) => Standing::Absent { trace: (now < *until).then_some(head) },
            Stored::InProgress(grant) => Self::of_grant(head, grant, now, globals),
            Stored::Indeterminate(both) => {
                let (grant, stored) = both;
                Standing::Indeterminate { head, grant, since: stored.since, tag: stored.tag, stored: Some(stored) }
            }
            Stored::Completed(both) => {
                let (grant, done) = both;
                if now >= done.evidence_until {
                    return Standing::Absent { trace: None };
                }
                let expired_since = match done.forgotten {
                    Some(forgotten) => Some(forgotten.min(done.replay_until)),
                    None => (now >= done.replay_until).then_some(done.replay_until),
                };
                Standing::Completed { head, grant, done, expired_since }
            }
        }
    }

    fn of_grant(head: &'a Head, grant: &'a Arc<Grant>, now: Time, globals: &Globals) -> Self {
        let lapsed = now >= grant.deadline;
        if grant.begun.is_none() && now >= grant.staged_evidence_end() {
            return Standing::Absent { trace: None };
        }
        let held = lapsed && grant.begun.is_some() && grant.on_lapse == LapseRule::Hold && !planted!(HoldRetaken);
        let doubted = globals.doubt.filter(|doubt| grant.granted.position < doubt.first_position);
        match doubted {
            Some(doubt) if !(held && grant.deadline <= doubt.since) => {
                Standing::Indeterminate { head, grant, since: doubt.since, tag: ReasonTag::Restored, stored: None }
            }
            _ if held => Standing::Indeterminate {
                head,
                grant,
                since: grant.deadline,
                tag: ReasonTag::LeaseLapsed,
                stored: None,
            },
            _ => Standing::InProgress { head, grant, lapsed },
        }
    }

    /// The head and its grant, where the record is not absent.
    pub fn present(&self) -> Option<(&'a Head, &'a Arc<Grant>)> {
        match self {
            Standing::Absent { .. } => None,
            Standing::InProgress { head, grant, .. }
            | Standing::Indeterminate { head, grant, .. }
            | Standing::Completed { head, grant, .. } => Some((head, grant)),
        }
    }

    /// The word of the state.
    pub fn word(&self) -> StateWord {
        match self {
            Standing::Absent { .. } => StateWord::Absent,
            Standing::InProgress { .. } => StateWord::InProgress,
            Standing::Indeterminate { .. } => StateWord::Indeterminate,
            Standing::Completed { expired_since: None, .. } => StateWord::Completed,
            Standing::Completed { expired_since: Some(_), .. } => StateWord::Expired,
        }
    }

    /// Since when it is in this state; none while absent.
    pub fn since(&self) -> Option<Time> {
        match self {
            Standing::Absent { .. } => None,
            Standing::InProgress { grant, .. } => Some(grant.granted.at),
            Standing::Indeterminate { since, .. } => Some(*since),
            Standing::Completed { done, expired_since, .. } => Some(expired_since.unwrap_or(done.completed.at)),
        }
    }

    /// The next time at which what is read or decided of the record changes by itself, if there is one.
    pub fn next_change(&self, now: Time) -> Option<Time> {
        let (next, then) = match self {
            Standing::Absent { trace } => match trace.map(|head| &head.stored) {
                Some(Stored::Trace((until, _))) => (Some(*until), None),
                _ => (None, None),
            },
            Standing::InProgress { grant, .. } => {
                (Some(grant.deadline), grant.begun.is_none().then(|| grant.staged_evidence_end()))
            }
            Standing::Indeterminate { grant, stored, .. } => {
                let looked_at = stored.and_then(|stored| stored.investigation.as_ref()).map(|looked| looked.deadline);
                // Of a staged claim that a restore leaves in doubt, the evidence still ends.
                let staged = stored.is_none() && grant.begun.is_none();
                (looked_at, staged.then(|| grant.staged_evidence_end()))
            }
            // A forgotten record may run again once its replay window is over, which it was to have.
            Standing::Completed { done, .. } => (Some(done.replay_until), Some(done.evidence_until)),
        };
        next.into_iter().chain(then).filter(|time| *time > now).min()
    }
}
