//! The commands of an owner: fence, state, sizes.

use semel::{
    records::{
        command::{OwnerAction, OwnerCommand, ProposedOutcome, ProposedPoint, RecordRef},
        policy::Oversize,
        record::{ReasonTag, StateWord},
    },
    refusal::Code,
};

use super::{
    Spec,
    record::{Done, Doubtful, Record, State, Word},
    said::Said,
};

impl Spec {
    pub(super) fn owner(&mut self, command: &OwnerCommand) -> Option<Said> {
        let (of, fence) = (&command.record, command.fence.0);
        let stale = Some(Said::Refused(Code::StaleFence));
        let Some(record) = self.records.get(of).cloned() else { return stale };
        if let State::Gone { released, .. } = record.state {
            let repeats = matches!(command.action, OwnerAction::Release(_)) && released == Some(fence);
            return if repeats && fence >= self.floor { Some(Said::absent()) } else { stale };
        }
        let word = record.word(self.now, self.doubt)?;
        if record.grant.fence != fence || record.grant.attempt == 0 || fence < self.floor {
            return stale;
        }
        if let State::Done(done) = &record.state {
            return Some(match &command.action {
                OwnerAction::Complete(outcome) if outcome.digest == done.outcome.digest => self.changed(&record),
                OwnerAction::Complete(_) => Said::Refused(Code::OutcomeImmutable),
                _ => Said::Refused(Code::WrongState),
            });
        }
        match &command.action {
            OwnerAction::Begin(_) | OwnerAction::Renew(_) | OwnerAction::Checkpoint(_) => match word {
                Word::Owned { lapsed: false } => self.go_on(of, &command.action, record),
                Word::Doubtful(Doubtful { tag: ReasonTag::Owner | ReasonTag::Restored, .. }) => {
                    Some(Said::Refused(Code::WrongState))
                }
                _ => Some(Said::Refused(Code::LeaseLapsed)),
            },
            OwnerAction::Complete(outcome) => Some(self.complete(of, record, outcome)),
            OwnerAction::Release(evidence) => {
                if record.grant.ever_begun && evidence.is_none() {
                    return Some(Said::Refused(Code::InvalidArgument));
                }
                self.gone(of, record, Some(fence));
                Some(Said::absent())
            }
            OwnerAction::Suspend(_) => {
                let (check_at, looking) = match &record.state {
                    State::Doubtful(Doubtful { tag: ReasonTag::Owner, .. }) => return Some(self.changed(&record)),
                    State::Doubtful(before) => (before.check_at, before.looking),
                    _ => (None, None),
                };
                let doubtful = Doubtful { since: self.now, tag: ReasonTag::Owner, check_at, looking };
                Some(self.put(of, Record { state: State::Doubtful(doubtful), ..record }))
            }
        }
    }

    /// Begin, renew, checkpoint while the lease runs.
    fn go_on(&mut self, of: &RecordRef, action: &OwnerAction, mut record: Record) -> Option<Said> {
        let before = (record.grant.begun, record.grant.lease_ms, record.grant.deadline, record.grant.point);
        let begins = match action {
            OwnerAction::Begin(lease_ms) => {
                if let Some(wanted) = lease_ms.filter(|ms| *ms > 0) {
                    self.extend(of, &mut record, wanted);
                }
                true
            }
            OwnerAction::Renew(lease_ms) => {
                let wanted = lease_ms.filter(|ms| *ms > 0).unwrap_or(record.grant.lease_ms);
                self.extend(of, &mut record, wanted);
                false
            }
            OwnerAction::Checkpoint(point) => {
                if let Some(refused) = self.keep(of, &mut record, point) {
                    return refused;
                }
                true
            }
            _ => false,
        };
        record.grant.begun |= begins;
        record.grant.ever_begun |= begins;
        let after = (record.grant.begun, record.grant.lease_ms, record.grant.deadline, record.grant.point);
        Some(if before == after { self.changed(&record) } else { self.put(of, record) })
    }

    fn extend(&self, of: &RecordRef, record: &mut Record, wanted: u32) {
        let lease_ms = self.lease_ms(of, Some(wanted));
        record.grant.lease_ms = lease_ms;
        record.grant.deadline = record.grant.deadline.max(self.now + u64::from(lease_ms));
    }

    /// Keeps a point. Some: refused, or left open (its bytes are not counted here).
    fn keep(&self, of: &RecordRef, record: &mut Record, point: &ProposedPoint) -> Option<Option<Said>> {
        if record.grant.begun && record.grant.point == Some(point.digest) {
            return None;
        }
        let policy = self.policy(of);
        if point.data_bytes > policy.checkpoint_bytes_max {
            return Some(Some(Said::Refused(Code::InvalidArgument)));
        }
        if policy.bytes_max.is_some() {
            return Some(None);
        }
        record.grant.point = Some(point.digest);
        None
    }

    /// Completes, by the owner or by a verdict.
    pub(super) fn complete(&mut self, of: &RecordRef, mut record: Record, outcome: &ProposedOutcome) -> Said {
        let policy = self.policy(of);
        let is_stored = outcome.body_bytes <= policy.outcome_bytes_max;
        if !is_stored && policy.oversize == Oversize::Reject {
            return Said::Refused(Code::OutcomeTooLarge);
        }
        let grant = &record.grant;
        let (replay_ms, evidence_ms) = self.windows_ms(of, grant.replay_asked, grant.evidence_asked);
        record.state = State::Done(Done {
            at: self.now,
            outcome: outcome.clone(),
            is_stored,
            replay_until: self.now + replay_ms.max(grant.replay_ms),
            evidence_until: self.now + evidence_ms.max(grant.evidence_ms),
            forgotten: None,
        });
        self.put(of, record)
    }

    /// Leaves a trace, and nothing else.
    pub(super) fn gone(&mut self, of: &RecordRef, record: Record, released: Option<u64>) {
        let until = self.now + record.grant.evidence_ms;
        let cleared = self.position;
        let version = self.position;
        let gone = Record { state: State::Gone { until, released }, cleared, version, ..record };
        self.records.insert(of.clone(), gone);
    }

    /// Keeps a record that was visibly changed.
    pub(super) fn put(&mut self, of: &RecordRef, record: Record) -> Said {
        let record = Record { version: self.position, ..record };
        let said = self.changed(&record);
        self.records.insert(of.clone(), record);
        said
    }

    /// What a command answers of the record as it is now.
    pub(super) fn changed(&self, record: &Record) -> Said {
        let word = record.word(self.now, self.doubt).filter(|_| !record.is_over(self.now));
        let Some(word) = word else { return Said::absent() };
        let owned = matches!(word, Word::Owned { .. });
        Said::Changed {
            state: if owned { StateWord::InProgress } else { word.state() },
            begun: owned.then_some(record.grant.begun),
            lease_ms: owned.then_some(record.grant.lease_ms),
            deadline: owned.then_some(record.grant.deadline),
            version: Some(record.version),
        }
    }
}
