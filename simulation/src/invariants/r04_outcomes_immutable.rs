//! R4: a completed outcome never changes (records.md, Invariants): whoever is shown an outcome is shown, byte for byte, the
//! one that was recorded last before, in the life of the record at that position.

use std::collections::BTreeMap;

use semel::records::command::{Command, OwnerAction, ProposedOutcome, Verdict};

use super::{Broken, Checked, Evidence, Names, changed, granted, shown_outcome};
use crate::{history::Name, spec::said::agrees_with_body};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    // Of each record: from which position on which outcome stands, none while there is none.
    let mut stands: BTreeMap<&Name, BTreeMap<u64, Option<&ProposedOutcome>>> = BTreeMap::new();
    for (command, applied, _) in evidence.commands() {
        if let Command::Restored(_) = command {
            // What stood at the backup stands again.
            let backup = evidence.restores.get(&applied.index.0).copied().unwrap_or_default();
            for of in stands.values_mut() {
                let stood = of.range(..=backup).next_back().map(|(_, stood)| *stood);
                of.insert(applied.index.0, stood.flatten());
            }
        }
        let Some(name) = crate::spec::record_of(command).and_then(|record| names.name(record)) else { continue };
        let of = stands.entry(name).or_default();
        let index = applied.index.0;
        let now = of.values().next_back().copied().flatten();
        let reported = match command {
            Command::Owner(owner) => match &owner.action {
                OwnerAction::Complete(outcome) => Some(outcome),
                _ => None,
            },
            Command::Resolve(resolve) => match &resolve.verdict {
                Verdict::Completed(outcome) => Some(outcome),
                _ => None,
            },
            _ => None,
        };
        if granted(applied).is_some() {
            of.insert(index, None);
        } else if let Some(outcome) = reported
            && changed(applied).is_some_and(|left| left.version == Some(applied.index))
        {
            if let Some(before) = now {
                let same = before.digest == outcome.digest;
                let detail = format!("the outcome was reported anew at position {index} (the same: {same})");
                return Err(Broken::of("R4", Some(name), detail));
            }
            of.insert(index, Some(outcome));
        }
    }
    for operation in evidence.answered() {
        let Some((index, shown)) = shown_outcome(operation) else { continue };
        let stood = stands.get(&operation.name).and_then(|of| of.range(..=index).next_back()).map(|(_, stood)| stood);
        let agrees = match stood {
            Some(Some(outcome)) => shown.not_stored || agrees_with_body(Some(&outcome.body), shown),
            // The log's beginning, or a backup's content, isn't known here.
            None => true,
            Some(None) => evidence.was_restored(),
        };
        if !agrees {
            let detail = format!("{operation}: not what was recorded");
            return Err(Broken::of("R4", Some(&operation.name), detail));
        }
    }
    shown_alike(evidence)
}

/// Two who are shown the outcome of one completion are shown the same, status, headers and all.
fn shown_alike(evidence: &Evidence) -> Checked {
    let mut first = BTreeMap::new();
    for operation in evidence.answered() {
        let Some((_, shown)) = shown_outcome(operation) else { continue };
        let completed_at = match &operation.answered {
            crate::history::Answered::Claim(answer) => answer.completed_at,
            crate::history::Answered::Record(record) => record.completed_at,
            _ => None,
        };
        let Some(at) = completed_at else { continue };
        let known = first.entry((&operation.name, at.seconds, at.nanos)).or_insert(shown);
        if *known != shown {
            let detail = format!("{operation}: another outcome than others were shown of the same completion");
            return Err(Broken::of("R4", Some(&operation.name), detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::Answered,
        made::{self, Made},
    };

    fn replayed() -> (Evidence, Names) {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.complete(&name, fence, "done");
        made.complete(&name, fence, "done");
        made.complete(&name, fence, "other");
        made.claim(made::claim(&name, 2, 1), &name);
        let evidence = made.evidence();
        let names = Names::of(&evidence).expect("one record");
        (evidence, names)
    }

    #[test]
    fn a_replay_of_something_else_is_found() {
        let (mut evidence, names) = replayed();
        assert_eq!(check(&evidence, &names), Ok(()));
        let Some(Answered::Claim(answer)) = evidence.operations.last_mut().map(|last| &mut last.answered) else {
            panic!("the last is a replay");
        };
        answer.outcome.as_mut().expect("a replay").body = Some("forged".into());
        assert!(check(&evidence, &names).is_err());
    }

    #[test]
    fn a_second_outcome_that_was_recorded_is_found() {
        let (mut evidence, names) = replayed();
        let refused = evidence.steps.iter_mut().find(|step| step.commands.iter().any(|(_, one)| one.answer.is_err()));
        let applied = &mut refused.expect("the other outcome").commands[0].1;
        applied.answer = Ok(semel::records::answer::Answer::Changed(semel::records::answer::Changed {
            state: semel::records::record::StateWord::Completed,
            phase: None,
            lease_ms: None,
            lease_deadline: None,
            version: Some(applied.index),
        }));
        assert!(check(&evidence, &names).is_err());
    }

    #[test]
    fn two_who_are_shown_different_headers_are_found() {
        let (mut evidence, names) = replayed();
        let mut again = evidence.operations.last().expect("a replay").clone();
        let Answered::Claim(answer) = &mut again.answered else { panic!("a replay") };
        answer.outcome.as_mut().expect("a replay").status = Some(500);
        evidence.operations.push(again);
        assert!(check(&evidence, &names).is_err());
    }
}
