//! Investigate, resolve, forget.

use semel::{
    records::{
        command::{Forget, Investigate, KeyedDigest, RecordRef, Resolve, Verdict},
        record::{ReasonTag, StateWord},
    },
    refusal::Code,
};

use super::{
    Spec,
    record::{Doubtful, Record, State, Word},
    said::Said,
};

impl Spec {
    /// The record, where it is in doubt and nobody else is looking into it.
    fn doubtful(&self, of: &RecordRef, by: &KeyedDigest) -> Result<(Record, Doubtful), Code> {
        let (word, record) = self.read(of).ok_or(Code::NotFound)?;
        let Word::Doubtful(doubtful) = word else { return Err(Code::WrongState) };
        if doubtful.looking.is_some_and(|(other, until)| other != *by && self.now < until) {
            return Err(Code::WrongState);
        }
        Ok((record.clone(), doubtful))
    }

    pub(super) fn investigate(&mut self, command: &Investigate) -> Said {
        let of = &command.record;
        let (record, mut doubtful) = match self.doubtful(of, &command.by.digest) {
            Ok(found) => found,
            Err(code) => return Said::Refused(code),
        };
        if command.version.is_some_and(|version| version.0 != record.version) {
            return Said::Refused(Code::VersionChanged);
        }
        let until = self.now + u64::from(self.lease_ms(of, command.lease_ms));
        let running = doubtful.looking.map_or(until, |(_, running)| running);
        doubtful.looking = Some((command.by.digest, running.max(until)));
        self.put(of, Record { state: State::Doubtful(doubtful), ..record });
        Said::Investigated { version: self.position }
    }

    pub(super) fn resolve(&mut self, command: &Resolve) -> Said {
        let of = &command.record;
        if let Some(record) = self.records.get(of)
            && let Some((_, state, version)) = record.verdicts.iter().find(|(id, ..)| *id == command.request_id)
        {
            let version = (*state != StateWord::Absent).then_some(*version);
            return Said::Changed { state: *state, begun: None, lease_ms: None, deadline: None, version };
        }
        let (record, doubtful) = match self.doubtful(of, &command.by.digest) {
            Ok(found) => found,
            Err(code) => return Said::Refused(code),
        };
        if command.version.0 != record.version {
            return Said::Refused(Code::VersionChanged);
        }
        let said = match &command.verdict {
            Verdict::Completed(outcome) => {
                match self.complete(of, Record { cleared: self.position, ..record }, outcome) {
                    Said::Refused(code) => return Said::Refused(code),
                    said => said,
                }
            }
            Verdict::NoEffect(()) => {
                if self.now < self.owner_is_out(of, &record, &doubtful) {
                    return Said::Refused(Code::OwnerMayAct);
                }
                self.gone(of, record, None);
                Said::absent()
            }
            Verdict::Unknown(check_at) => {
                let doubtful = Doubtful { check_at: Some(check_at.0), looking: None, ..doubtful };
                self.put(of, Record { state: State::Doubtful(doubtful), ..record })
            }
        };
        let Said::Changed { state, .. } = said else { return said };
        let kept = usize::from(self.limits.resolves_kept.max(1));
        let position = self.position;
        if let Some(record) = self.records.get_mut(of) {
            record.verdicts.push((command.request_id, state, position));
            let surplus = record.verdicts.len().saturating_sub(kept);
            record.verdicts.drain(..surplus);
        }
        said
    }

    /// From when on the owner sends nothing more.
    fn owner_is_out(&self, of: &RecordRef, record: &Record, doubtful: &Doubtful) -> u64 {
        let last = match doubtful.tag {
            ReasonTag::Owner => return 0,
            ReasonTag::LeaseLapsed => record.grant.deadline,
            ReasonTag::Restored if record.grant.attempt == 0 => doubtful.since,
            ReasonTag::Restored => record.grant.deadline.max(self.doubt.map_or(doubtful.since, |doubt| doubt.since)),
        };
        last + u64::from(self.policy(of).effect_ms_max)
    }

    pub(super) fn forget(&mut self, command: &Forget) -> Said {
        let of = &command.record;
        let Some((word, record)) = self.read(of) else { return Said::Refused(Code::NotFound) };
        let mut record = record.clone();
        match word {
            Word::Owned { .. } | Word::Doubtful(_) => Said::Refused(Code::WrongState),
            Word::Expired { .. } => self.changed(&record),
            Word::Completed => {
                if let State::Done(done) = &mut record.state {
                    done.forgotten = Some(self.now);
                }
                self.put(of, record)
            }
        }
    }
}
