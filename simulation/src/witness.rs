//! The witness check: every answer names its position. In that order the log is replayed against the contract (`spec`),
//! each client's answer is compared with what the contract says at its position, reads after the step that they reflect,
//! and one sweep looks for an order that real time forbids. What passes is linearizable: the order is the proof.
//!
//! Calls whose result nobody knows need no guess: what took place of them stands in the log.

use std::collections::BTreeMap;

use semel::{
    id::Uuid,
    proto::v1,
    records::{
        command::{Command, RecordRef},
        memory::MemoryState,
        record::Standing,
        state::State as _,
    },
};

use crate::{
    history::{Answered, Call, Operation},
    invariants::{Broken, Evidence, Names, is_same},
    spec::{
        Spec,
        said::{Said, agrees_with_body, ms, word},
    },
};

/// Checks, and tells how many answers it has certified.
///
/// # Errors
/// The first answer that no order explains.
pub fn check(evidence: &Evidence, names: &Names) -> Result<u64, Broken> {
    real_time(evidence)?;
    let mut witness = Witness::new(evidence, names);
    let mut spec = Spec::default();
    // The states that backups may hold.
    let mut kept: BTreeMap<u64, Spec> = BTreeMap::new();
    let mut before = None;
    for step in &evidence.steps {
        let is_restore = step.commands.iter().any(|(command, _)| matches!(**command, Command::Restored(_)));
        if let Some(backup) = evidence.restores.get(&step.position) {
            spec = kept.range(..=*backup).next_back().map(|(_, spec)| spec.clone()).unwrap_or_default();
        }
        let first = step.position - step.commands.len() as u64;
        if let Some(before) = before.filter(|before| !is_restore && first != before + 1) {
            let detail = format!("positions {} to {} were applied by no node that was watched", before + 1, first);
            return Err(Broken::of("log", None, detail));
        }
        before = Some(step.position);
        for (command, applied) in &step.commands {
            witness.command(&mut spec, command, applied)?;
        }
        spec.pass(step.position, step.time);
        witness.reads(&spec, step.position)?;
        if evidence.restores.values().any(|backup| *backup == step.position) {
            kept.insert(step.position, spec.clone());
        }
    }
    witness.nothing_left()?;
    final_states(evidence, &spec, names)?;
    Ok(witness.certified)
}

/// What returned before something else was sent comes before it.
fn real_time(evidence: &Evidence) -> Result<(), Broken> {
    let mut ends: Vec<(u64, u64)> = Vec::new();
    let mut begins: Vec<(u64, u64, &Operation)> = Vec::new();
    for operation in evidence.answered() {
        let (Some(index), Some(returned)) = (operation.answered.index(), operation.returned) else { continue };
        ends.push((returned, index));
        begins.push((operation.invoked, index, operation));
    }
    ends.sort_unstable();
    begins.sort_by_key(|(invoked, index, _)| (*invoked, *index));
    let (mut at, mut highest) = (0, 0);
    for (invoked, index, operation) in begins {
        while let Some((_, answered)) = ends.get(at).filter(|(returned, _)| *returned < invoked) {
            highest = highest.max(*answered);
            at += 1;
        }
        if index < highest {
            let detail = format!("{operation}: sent after an answer at position {highest} was known");
            return Err(Broken::of("linearizable", Some(&operation.name), detail));
        }
    }
    Ok(())
}

struct Witness<'a> {
    names: &'a Names,
    /// Answered operations by the position that they reflect.
    at: BTreeMap<u64, Vec<&'a Operation>>,
    /// The claims by their attempt ids, whose plain fingerprints tell what a read was compared with.
    attempts: BTreeMap<Uuid, &'a v1::ClaimRequest>,
    certified: u64,
}

impl<'a> Witness<'a> {
    fn new(evidence: &'a Evidence, names: &'a Names) -> Self {
        let mut witness = Self { names, at: BTreeMap::new(), attempts: BTreeMap::new(), certified: 0 };
        for operation in &evidence.operations {
            if let Call::Claim(request) = &operation.call
                && let Some(id) = request.attempt_id.as_deref().and_then(Uuid::parse_hyphenated)
            {
                witness.attempts.insert(id, request);
            }
            let is_followed = !matches!(operation.call, Call::History(_) | Call::SetPolicy(_) | Call::Run);
            if let Some(index) = operation.answered.index().filter(|_| is_followed) {
                witness.at.entry(index).or_default().push(operation);
            }
        }
        witness
    }

    /// A command of the log: answered as the contract says, and whoever asked for it was told so.
    fn command(
        &mut self,
        spec: &mut Spec,
        command: &Command,
        applied: &semel::records::answer::Applied,
    ) -> Result<(), Broken> {
        let about = crate::spec::record_of(command).and_then(|record| self.names.name(record));
        let index = applied.index.0;
        let expected = spec.apply(command, index, applied.now.0);
        let Some(actual) = Said::of(&applied.answer) else { return Ok(()) };
        match &expected {
            Some(expected) if *expected != actual => {
                let detail =
                    format!("position {index}: answered {actual:?}, the contract says {expected:?}; to {command:?}");
                return Err(Broken::of("contract", about, detail));
            }
            Some(_) => {}
            None => spec.follow(command, &actual),
        }
        let Some(waiting) = self.at.get_mut(&index) else { return Ok(()) };
        let mut told = Vec::new();
        let is_first = matches!(actual, Said::New { repeated: false, .. });
        waiting.retain(|operation| {
            // A second try that is answered by a look at the state stands at the position of the first.
            let is_look = is_first && matches!(&operation.answered, Answered::Claim(told) if told.repeated());
            let same = !is_look && is_same(operation, command) && Some(&operation.name) == about;
            if same {
                told.push(*operation);
            }
            !same
        });
        for operation in told {
            let agrees = match &operation.answered {
                Answered::Claim(answer) => actual.agrees_with_claim(answer),
                Answered::Owner(answer) => actual.agrees_with_owner(answer),
                Answered::Record(record) => actual == Said::Investigated { version: record.version },
                Answered::Refused { code, .. } => matches!(actual, Said::Refused(actual) if actual.as_str() == code),
                _ => true,
            };
            if !agrees {
                let detail = format!("{operation}: told {:?}, the log says {actual:?}", operation.answered);
                return Err(Broken::of("linearizable", Some(&operation.name), detail));
            }
            self.certified += 1;
        }
        Ok(())
    }

    /// What was read after this step.
    fn reads(&mut self, spec: &Spec, position: u64) -> Result<(), Broken> {
        for operation in self.at.remove(&position).unwrap_or_default() {
            let record = self.names.record(&operation.name);
            let problem = match (&operation.call, &operation.answered, record) {
                (Call::Get(_), Answered::Record(read), Some(record)) => differs(spec, record, read),
                (Call::Get(_), Answered::Refused { code, .. }, record) if code == "not_found" => record
                    .and_then(|record| spec.read(record))
                    .map(|(word, _)| format!("not found, while it was {word:?}")),
                (Call::Claim(request), Answered::Claim(answer), Some(record)) => {
                    self.claim_differs(spec, record, request, answer)
                }
                (_, Answered::Refused { .. }, _) => None,
                (Call::Get(_), Answered::Record(_), None) => Some("a record that no claim ever made".to_owned()),
                (Call::Claim(_), Answered::Claim(answer), None)
                    if answer.answer() == v1::Answer::Expired && answer.reason() == "too_old" =>
                {
                    None
                }
                _ => Some("acknowledged, and not in the log at its position".to_owned()),
            };
            if let Some(problem) = problem {
                return Err(Broken::of("linearizable", Some(&operation.name), format!("{operation}: {problem}")));
            }
            self.certified += 1;
        }
        Ok(())
    }

    /// A claim that was answered from the state as it was.
    fn claim_differs(
        &self,
        spec: &Spec,
        of: &RecordRef,
        request: &v1::ClaimRequest,
        answer: &v1::ClaimAnswer,
    ) -> Option<String> {
        if answer.answer() == v1::Answer::Expired && answer.reason() == "too_old" {
            return request.first_sent_at.is_none().then(|| "too old without having named a time".to_owned());
        }
        let Some((found, record)) = spec.read(of) else {
            return Some(format!("told {:?} of a record that was absent", answer.answer()));
        };
        let own = self.attempts.get(&record.grant.attempt_id);
        // Of what the library claimed by itself the plain fingerprint isn't known; it makes no conflicts.
        let matches = own.map(|own| own.fingerprints.iter().any(|one| request.fingerprints.contains(one)));
        if answer.answer() == v1::Answer::Conflict {
            let same_state = word(answer.state()) == Some(found.state());
            let same_since = answer.since.as_ref().map(ms) == Some(record.since(&found));
            return (matches == Some(true) || !same_state || !same_since)
                .then(|| format!("a conflict, while it was {found:?} under the same request ({matches:?})"));
        }
        if matches == Some(false) {
            return Some(format!("told {:?} under another request", answer.answer()));
        }
        let id = request.attempt_id.as_deref().and_then(Uuid::parse_hyphenated).unwrap_or_default();
        let expected = spec.found(of, id);
        (!expected.agrees_with_claim(answer)).then(|| format!("told {answer:?}, while the contract says {expected:?}"))
    }

    /// Every answer was explained.
    fn nothing_left(&self) -> Result<(), Broken> {
        let left = self.at.values().flatten().find(|operation| {
            // A refusal without a command may name the position at which it was judged.
            !matches!(operation.answered, Answered::Refused { .. })
        });
        match left {
            None => Ok(()),
            Some(operation) => {
                let detail = format!("{operation}: at a position that no node has stood at");
                Err(Broken::of("linearizable", Some(&operation.name), detail))
            }
        }
    }
}

/// Where a record as it was read differs from the contract's.
fn differs(spec: &Spec, of: &RecordRef, read: &v1::Record) -> Option<String> {
    let Some((found, record)) = spec.read(of) else {
        return Some(format!("read as {:?}, while it was absent", read.state()));
    };
    let grant = &record.grant;
    let mut problems = Vec::new();
    let mut same = |what: &str, told: String, is: String| {
        if told != is {
            problems.push(format!("{what} {told}, not {is}"));
        }
    };
    same("state", format!("{:?}", word(read.state())), format!("{:?}", Some(found.state())));
    same("version", read.version.to_string(), record.version.to_string());
    same("fence", read.fence.to_string(), grant.fence.to_string());
    same("attempt", read.attempt.to_string(), grant.attempt.to_string());
    same("since", format!("{:?}", read.since.as_ref().map(ms)), format!("{:?}", Some(record.since(&found))));
    if let crate::spec::record::State::Done(done) = &record.state {
        let told = [read.completed_at, read.replay_until, read.evidence_until].map(|time| time.as_ref().map(ms));
        let is = [done.at, done.replay_until, done.evidence_until].map(Some);
        same("windows", format!("{told:?}"), format!("{is:?}"));
        if let Some(outcome) = &read.outcome {
            let body = done.is_stored.then_some(&done.outcome.body);
            same("body as recorded", agrees_with_body(body, outcome).to_string(), true.to_string());
        }
    }
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// The replicas hold what the contract says is left, and nothing more that can be seen.
fn final_states(evidence: &Evidence, spec: &Spec, names: &Names) -> Result<(), Broken> {
    for (node, position, dump) in &evidence.dumps {
        if *position != spec.position {
            continue;
        }
        let state = MemoryState::load(dump)
            .map_err(|error| Broken::of("log", None, format!("n{node} holds what can't be read: {error}")))?;
        let globals = state.globals();
        for record in spec.records.keys() {
            let head = state.head(record);
            let standing = Standing::of(head.as_deref(), globals.time, globals);
            let found = standing.present().map(|(head, _)| (standing.word(), head.version.0));
            let expected = spec.read(record).map(|(word, record)| (word.state(), record.version));
            if found != expected {
                let detail = format!("n{node} ends with {found:?}, the contract with {expected:?}");
                return Err(Broken::of("R2", names.name(record), detail));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    fn good() -> Made {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.claim(made::claim(&name, 2, 1), &name);
        made.claim(made::claim(&name, 3, 2), &name);
        made.complete(&name, fence, "done");
        made.complete(&name, fence, "other");
        made.claim_again(&name, 4);
        made
    }

    impl Made {
        /// A claim that is answered by the log.
        fn claim_again(&mut self, name: &crate::history::Name, attempt: u8) -> v1::ClaimAnswer {
            self.claim(made::claim(name, attempt, 1), name);
            match &self.evidence.operations.last().expect("just claimed").answered {
                Answered::Claim(answer) => (**answer).clone(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn checked(evidence: &Evidence) -> Result<u64, Broken> {
        check(evidence, &Names::of(evidence)?)
    }

    #[test]
    fn a_good_run_is_certified_answer_by_answer() {
        let evidence = good().evidence();
        assert_eq!(checked(&evidence), Ok(evidence.operations.len() as u64));
    }

    #[test]
    fn a_read_is_compared_with_the_state_at_its_position() {
        let mut made = good();
        let name = made::name("a");
        // A replay that was read, not proposed: the same answer at the position of a tick.
        let mut answer = made.claim_again(&name, 5);
        made.tick();
        answer.index = made.evidence.steps.last().expect("the tick").position;
        let call = made.evidence.operations.last().expect("the claim").call.clone();
        made.told(&name, call.clone(), Answered::Claim(Box::new(answer.clone())));
        assert!(checked(&made.evidence()).is_ok());
        let mut stale = answer;
        stale.set_answer(v1::Answer::InProgress);
        made.told(&name, call, Answered::Claim(Box::new(stale)));
        assert!(checked(&made.evidence()).is_err());
    }

    #[test]
    fn an_answer_that_the_log_does_not_give_is_found() {
        let mut evidence = good().evidence();
        let Answered::Claim(answer) = &mut evidence.operations[0].answered else { panic!("a claim") };
        answer.lease_ms = Some(9_999);
        assert!(checked(&evidence).is_err_and(|broken| broken.what == "linearizable"));
    }

    #[test]
    fn a_log_that_answers_against_the_contract_is_found() {
        let mut evidence = good().evidence();
        let conflict = evidence.steps.iter_mut().find(|step| {
            matches!(step.commands.first(), Some((_, applied)) if matches!(&applied.answer,
                Ok(semel::records::answer::Answer::Claim(semel::records::answer::ClaimAnswer::Conflict { .. }))))
        });
        let applied = &mut conflict.expect("a conflict").commands[0].1;
        applied.answer = Ok(semel::records::answer::Answer::Claim(semel::records::answer::ClaimAnswer::InProgress {
            retry_after_ms: 1_000,
            since: applied.now,
        }));
        assert!(checked(&evidence).is_err_and(|broken| broken.what == "contract"));
    }

    #[test]
    fn an_order_that_real_time_forbids_is_found() {
        let mut evidence = good().evidence();
        let last = evidence.operations.len() - 1;
        evidence.operations[last].invoked = 0;
        evidence.operations[last].returned = Some(1);
        assert!(checked(&evidence).is_err_and(|broken| broken.detail.contains("sent after")));
    }

    #[test]
    fn a_gap_in_the_log_is_no_proof() {
        let mut evidence = good().evidence();
        evidence.operations.clear();
        evidence.steps.remove(4);
        assert!(checked(&evidence).is_err_and(|broken| broken.what == "log"));
    }

    #[test]
    fn a_final_state_that_is_not_the_contracts_is_found() {
        let made = good();
        let mut evidence = made.evidence();
        let position = evidence.dumps[0].1;
        let mut other = Made::new();
        while other.state.globals().position.0 < position {
            other.tick();
        }
        evidence.dumps[2] = (3, position, other.state.dump());
        assert!(checked(&evidence).is_err_and(|broken| broken.detail.starts_with("n3")));
    }
}
