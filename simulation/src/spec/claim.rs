//! Claim: the answers, in the contract's order of precedence.

use semel::{
    id::Uuid,
    records::{
        answer::ExpiredReason,
        command::{Claim, KeyedDigest, LapseRule, RecordRef},
        policy::ExpiredClaims,
        record::ReasonTag,
    },
    refusal::Code,
};

use super::{
    Spec,
    record::{Doubtful, Grant, Record, State, Word},
    said::Said,
};

impl Spec {
    pub(super) fn claim(&mut self, claim: &Claim) -> Option<Said> {
        if claim.not_after.is_some_and(|not_after| self.now > not_after.0) {
            return Some(Said::Refused(Code::Unavailable));
        }
        let Some((word, record)) = self.read(&claim.record) else {
            if self.is_too_old(claim) {
                return Some(too_old());
            }
            return self.admitted(claim, 1, None, false);
        };
        if !matches(&record.grant.prints, &claim.fingerprints.keyed) {
            return Some(Said::Conflict { state: word.state(), since: record.since(&word) });
        }
        let grant = record.grant.clone();
        match word {
            Word::Owned { lapsed: true } => {
                Some(self.grant(claim, grant.attempt.saturating_add(1), grant.point, grant.ever_begun))
            }
            Word::Expired { .. } if self.runs_again(&claim.record) => {
                if self.is_too_old(claim) {
                    return Some(too_old());
                }
                Some(self.grant(claim, 1, None, false))
            }
            _ => Some(self.found(&claim.record, claim.attempt_id)),
        }
    }

    /// What a claim of the same request finds, where it is granted nothing new: what a read decides, too.
    pub fn found(&self, of: &RecordRef, attempt_id: Uuid) -> Said {
        let Some((word, record)) = self.read(of) else { return Said::Done };
        let grant = &record.grant;
        match &word {
            Word::Owned { lapsed: true } => Said::Done,
            Word::Owned { lapsed: false } if grant.attempt_id == attempt_id && grant.fence >= self.floor => {
                granted(record, true)
            }
            Word::Owned { lapsed: false } => {
                let remaining = (grant.deadline - self.now).min(grant.lease_ms.into());
                let retry_after_ms = remaining.max(self.limits.retry_after_ms_min.into());
                Said::InProgress { retry_after_ms, since: grant.since }
            }
            Word::Doubtful(doubtful) => self.in_doubt(doubtful),
            Word::Completed => {
                let State::Done(done) = &record.state else { return Said::Done };
                let body = done.is_stored.then(|| done.outcome.body.clone());
                Said::Completed { at: done.at, meta: done.outcome.meta.clone(), body }
            }
            Word::Expired { .. } => {
                let State::Done(done) = &record.state else { return Said::Done };
                let reason =
                    if done.forgotten.is_some() { ExpiredReason::Forgotten } else { ExpiredReason::ReplayOver };
                Said::Expired { reason, at: Some(done.at), until: Some(done.evidence_until) }
            }
        }
    }

    fn in_doubt(&self, doubtful: &Doubtful) -> Said {
        let limits = &self.limits;
        let retry_after_ms = match doubtful.check_at {
            Some(at) => {
                at.saturating_sub(self.now).clamp(limits.retry_after_ms_min.into(), limits.retry_after_ms_max.into())
            }
            None => limits.retry_after_ms_indeterminate.into(),
        };
        Said::Indeterminate { since: doubtful.since, tag: doubtful.tag, retry_after_ms }
    }

    /// A forgotten record never runs again before its original replay window is over.
    fn runs_again(&self, of: &RecordRef) -> bool {
        let run_as_new = self.policy(of).expired_claims == ExpiredClaims::RunAsNew;
        let over = self.records.get(of).is_some_and(|record| match &record.state {
            State::Done(done) => self.now >= done.replay_until,
            _ => false,
        });
        run_as_new && over
    }

    fn is_too_old(&self, claim: &Claim) -> bool {
        let Some(first_sent_at) = claim.first_sent_at else { return false };
        let policy = self.policy(&claim.record);
        let own_ms = u64::from(policy.evidence_s.min(policy.evidence_s_max)) * 1_000;
        let (_, asked_ms) = self.windows_ms(&claim.record, claim.replay_s, claim.evidence_s);
        let evidence_ms = if claim.evidence_s.is_some() { asked_ms.min(own_ms) } else { own_ms };
        first_sent_at.0 + evidence_ms < self.now
    }

    /// A claim that would create a record: the quotas come first. What is due and not swept may or may not count yet, so
    /// that between the two counts both answers are right.
    fn admitted(&mut self, claim: &Claim, attempt: u32, point: Option<KeyedDigest>, begun: bool) -> Option<Said> {
        for operation in [None, Some(claim.record.operation)] {
            let quotas = match operation {
                None => self.policy_of(&claim.record.tenant, None),
                Some(operation) => {
                    let own = self.overrides.get(&(claim.record.tenant.clone(), Some(operation)));
                    let mut none = semel::records::policy::Policy { indeterminate_max: None, ..Default::default() };
                    if let Some(own) = own {
                        none = none.under(own);
                    }
                    none
                }
            };
            if quotas.bytes_max.is_some() {
                return None;
            }
            let (least, most, doubtful) = self.tally(&claim.record, operation);
            if quotas.records_max.is_some_and(|max| least >= max) {
                return Some(Said::Refused(Code::QuotaExceeded));
            }
            if quotas.indeterminate_max.is_some_and(|max| doubtful.0 >= max) {
                return Some(Said::Refused(Code::QuotaExceeded));
            }
            let open = quotas.records_max.is_some_and(|max| most >= max)
                || quotas.indeterminate_max.is_some_and(|max| doubtful.1 >= max);
            if open {
                return None;
            }
        }
        Some(self.grant(claim, attempt, point, begun))
    }

    /// Records of a level: as few as may count, as many as may; and how many are in doubt, likewise.
    fn tally(&self, own: &RecordRef, operation: Option<semel::id::KeyedHash>) -> (u64, u64, (u64, u64)) {
        let (mut least, mut most, mut doubtful) = (0, 0, (0, 0));
        for (of, record) in &self.records {
            let same = of.tenant == own.tenant && operation.is_none_or(|operation| operation == of.operation);
            if !same || of == own || matches!(record.state, State::Gone { .. }) {
                continue;
            }
            most += 1;
            least += u64::from(!record.is_over(self.now));
            match (&record.state, record.word(self.now, self.doubt)) {
                // Written down.
                (State::Doubtful(_), _) => doubtful = (doubtful.0 + 1, doubtful.1 + 1),
                // So by the clock alone: counted once a sweep has seen it.
                (_, Some(Word::Doubtful(_))) => doubtful.1 += 1,
                _ => {}
            }
        }
        (least, most, doubtful)
    }

    /// Grants, or records as in doubt.
    pub(super) fn grant(&mut self, claim: &Claim, attempt: u32, point: Option<KeyedDigest>, ever_begun: bool) -> Said {
        let old = self.records.remove(&claim.record);
        let cleared = old.as_ref().map_or(0, |old| old.cleared);
        let is_doubted = self.doubt.is_some_and(|doubt| {
            let sent_after = match (doubt.gap_end, claim.first_sent_at) {
                (Some(gap_end), Some(sent)) => {
                    sent.0 > gap_end + u64::from(self.limits.gap_skew_ms) && sent.0 <= self.now
                }
                _ => false,
            };
            cleared < doubt.first && !sent_after
        });
        let lease_ms = self.lease_ms(&claim.record, claim.lease_ms);
        let (replay_ms, evidence_ms) = self.windows_ms(&claim.record, claim.replay_s, claim.evidence_s);
        let rule = claim.on_lapse.unwrap_or(self.policy(&claim.record).on_lapse);
        let grant = Grant {
            fence: self.position,
            since: self.now,
            attempt: if is_doubted { 0 } else { attempt },
            attempt_id: claim.attempt_id,
            prints: claim.fingerprints.keyed.clone(),
            lease_ms,
            deadline: self.now + u64::from(lease_ms),
            hold: rule == LapseRule::Hold,
            begun: !claim.staged,
            ever_begun: ever_begun || !claim.staged,
            replay_asked: claim.replay_s,
            evidence_asked: claim.evidence_s,
            replay_ms,
            evidence_ms,
            point,
        };
        let doubtful = Doubtful { since: self.now, tag: ReasonTag::Restored, check_at: None, looking: None };
        let record = Record {
            version: self.position,
            cleared: if is_doubted { cleared } else { self.position },
            grant,
            state: if is_doubted { State::Doubtful(doubtful.clone()) } else { State::Owned },
            verdicts: old.map(|old| old.verdicts).unwrap_or_default(),
        };
        let said = if is_doubted { self.in_doubt(&doubtful) } else { granted(&record, false) };
        self.records.insert(claim.record.clone(), record);
        said
    }
}

fn granted(record: &Record, repeated: bool) -> Said {
    let grant = &record.grant;
    Said::New {
        fence: grant.fence,
        attempt: grant.attempt,
        begun: grant.begun,
        version: record.version,
        repeated,
        lease_ms: grant.lease_ms,
        deadline: grant.deadline,
        point: grant.point,
    }
}

fn too_old() -> Said {
    Said::Expired { reason: ExpiredReason::TooOld, at: None, until: None }
}

/// Whether a scheme in common matches.
fn matches(one: &[(u32, KeyedDigest)], other: &[(u32, KeyedDigest)]) -> bool {
    one.iter().any(|pair| other.contains(pair))
}
