//! R2: an acknowledged command is never lost (records.md, Invariants): it stands in the log at the position that its answer
//! named, every replica reaches that position, and what it completed is in every final state.

use std::collections::BTreeMap;

use semel::{
    id::{Position, Uuid},
    records::{
        command::{Command, OwnerAction},
        memory::MemoryState,
        state::State,
    },
};

use super::{Broken, Checked, Evidence, Names, changed};
use crate::history::{Answered, Call, Operation};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    let log: BTreeMap<u64, &Command> =
        evidence.commands().map(|(command, applied, _)| (applied.index.0, command)).collect();
    for operation in evidence.answered() {
        let Some(index) = operation.answered.index() else { continue };
        if is_from_the_log(operation) && !log.get(&index).is_some_and(|command| is_same(operation, command)) {
            let detail = format!("{operation}: acknowledged at position {index}, where the log has something else");
            return Err(Broken::of("R2", Some(&operation.name), detail));
        }
        let behind = evidence.dumps.iter().find(|(_, position, _)| *position < index);
        if let Some((node, position, _)) = behind {
            let detail = format!("{operation}: n{node} ends at position {position}, before it");
            return Err(Broken::of("R2", Some(&operation.name), detail));
        }
    }
    in_final_states(evidence, names)
}

/// What was completed last is still there, unless its evidence is over or a restore came.
fn in_final_states(evidence: &Evidence, names: &Names) -> Checked {
    if evidence.was_restored() {
        return Ok(());
    }
    let mut completed = BTreeMap::new();
    for (command, applied, _) in evidence.commands() {
        if let Command::Owner(owner) = command
            && let OwnerAction::Complete(outcome) = &owner.action
            && changed(applied).is_some_and(|left| left.version == Some(applied.index))
        {
            completed.insert(&owner.record, (applied.index.0, outcome.digest));
        }
    }
    for (node, _, dump) in &evidence.dumps {
        let state = MemoryState::load(dump)
            .map_err(|error| Broken::of("R2", None, format!("n{node} holds what can't be read: {error}")))?;
        for (record, (index, digest)) in &completed {
            let head = state.head(record);
            let found = head.as_deref().and_then(|head| match &head.stored {
                semel::records::record::Stored::Completed(both) => Some((head.version.0, both.1.digest)),
                _ => None,
            });
            // Past its evidence it is gone, or began a new life: a later version then.
            let is_over = head.as_deref().is_none_or(|head| head.version > Position(*index));
            if !is_over && found != Some((*index, *digest)) {
                let detail = format!("n{node} has lost the outcome that was recorded at position {index}");
                return Err(Broken::of("R2", names.name(record), detail));
            }
        }
    }
    Ok(())
}

/// Whether an answer to this can only come from the log.
fn is_from_the_log(operation: &Operation) -> bool {
    match (&operation.call, &operation.answered) {
        (_, Answered::Refused { .. }) => false,
        (Call::Claim(_), Answered::Claim(answer)) => {
            answer.answer() == semel::proto::v1::Answer::New && !answer.repeated()
        }
        (call, _) => call.fence().is_some() || matches!(call, Call::Resolve(_) | Call::Forget(_)),
    }
}

/// Whether a command of the log is the one that was asked for.
pub fn is_same(operation: &Operation, command: &Command) -> bool {
    match (&operation.call, command) {
        (Call::Claim(request), Command::Claim(claim)) => {
            request.attempt_id.as_deref().and_then(Uuid::parse_hyphenated) == Some(claim.attempt_id)
        }
        (Call::Resolve(request), Command::Resolve(resolve)) => {
            request.request_id.as_deref().and_then(Uuid::parse_hyphenated) == Some(resolve.request_id)
        }
        (Call::Forget(_), Command::Forget(_)) | (Call::Investigate(_), Command::Investigate(_)) => true,
        (Call::SetPolicy(_), Command::PolicySet(_)) => true,
        (call, Command::Owner(owner)) => {
            let word = match owner.action {
                OwnerAction::Begin(_) => "begin",
                OwnerAction::Renew(_) => "renew",
                OwnerAction::Checkpoint(_) => "checkpoint",
                OwnerAction::Complete(_) => "complete",
                OwnerAction::Release(_) => "release",
                OwnerAction::Suspend(_) => "suspend",
            };
            call.fence() == Some(owner.fence.0) && call.word() == word
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    fn made() -> Made {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.complete(&name, fence, "done");
        made
    }

    fn checked(evidence: &Evidence) -> Checked {
        check(evidence, &Names::of(evidence)?)
    }

    #[test]
    fn what_was_acknowledged_and_is_not_in_the_log_is_found() {
        let mut evidence = made().evidence();
        assert_eq!(checked(&evidence), Ok(()));
        evidence.steps.pop();
        assert!(checked(&evidence).is_err());
    }

    #[test]
    fn a_replica_that_ends_before_it_is_found() {
        let mut evidence = made().evidence();
        evidence.dumps[1].1 = 2;
        assert!(checked(&evidence).is_err_and(|broken| broken.detail.contains("n2")));
    }

    #[test]
    fn an_outcome_that_is_missing_from_a_final_state_is_found() {
        let made = made();
        let mut evidence = made.evidence();
        let position = evidence.dumps[2].1;
        let mut other = Made::new();
        let name = made::name("a");
        other.claim(made::claim(&name, 1, 1), &name);
        evidence.dumps[2] = (3, position, other.state.dump());
        assert!(checked(&evidence).is_err_and(|broken| broken.detail.contains("n3")));
    }
}
