//! R6: an indeterminate record becomes claimable only by a `no_effect` verdict, or the owner's own release (records.md,
//! Invariants). Once anybody was told, or the log says, that a record is indeterminate, no grant comes before one of these.

use std::collections::BTreeMap;

use semel::{
    proto::v1,
    records::{
        answer::{Answer, ClaimAnswer},
        command::Command,
        record::StateWord,
    },
};

use super::{Broken, Checked, Evidence, Names, changed, granted};
use crate::history::{Answered, Name};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    // Positions at which clients were told by a read.
    let mut told: BTreeMap<u64, Vec<&Name>> = BTreeMap::new();
    for operation in evidence.answered() {
        let is_so = match &operation.answered {
            Answered::Claim(answer) => answer.answer() == v1::Answer::Indeterminate,
            Answered::Record(record) => record.state() == v1::State::Indeterminate,
            _ => false,
        };
        if let (true, Some(index)) = (is_so, operation.answered.index()) {
            told.entry(index).or_default().push(&operation.name);
        }
    }
    let mut doubtful: BTreeMap<&Name, u64> = BTreeMap::new();
    for (command, applied, _) in evidence.commands() {
        let index = applied.index.0;
        if let Command::Restored(_) = command {
            // What was told before is of a cluster that is lost.
            told = told.split_off(&index);
            doubtful.clear();
        }
        // What was told of positions before this one.
        while let Some(entry) = told.first_entry().filter(|entry| *entry.key() < index) {
            let (at, names) = entry.remove_entry();
            doubtful.extend(names.into_iter().map(|name| (name, at)));
        }
        let Some(name) = crate::spec::record_of(command).and_then(|record| names.name(record)) else { continue };
        if granted(applied).is_some() {
            if let Some(since) = doubtful.get(name) {
                let detail =
                    format!("granted at position {index}, although indeterminate since position {since} at the latest");
                return Err(Broken::of("R6", Some(name), detail));
            }
            continue;
        }
        if let Ok(Answer::Claim(ClaimAnswer::Indeterminate { .. }) | Answer::Investigated(_)) = &applied.answer {
            doubtful.insert(name, index);
        }
        match changed(applied).map(|left| left.state) {
            Some(StateWord::Indeterminate) => {
                doubtful.insert(name, index);
            }
            // Absent by a release or a verdict, or settled for good.
            Some(StateWord::Absent | StateWord::Completed | StateWord::Expired) => {
                doubtful.remove(name);
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use semel::records::command::Verdict;

    use super::*;
    use crate::made::{self, Made};

    fn checked(evidence: &Evidence) -> Checked {
        check(evidence, &Names::of(evidence)?)
    }

    #[test]
    fn a_grant_after_a_suspension_needs_a_verdict() {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.suspend(&name, fence);
        made.resolve(&name, Verdict::NoEffect(()), 1);
        made.claim(made::claim(&name, 2, 1), &name).expect("it is new again");
        let mut evidence = made.evidence();
        assert_eq!(checked(&evidence), Ok(()));
        evidence.steps.retain(|step| !step.commands.iter().any(|(one, _)| matches!(**one, Command::Resolve(_))));
        assert!(checked(&evidence).is_err());
    }

    #[test]
    fn what_a_reader_was_told_counts_too() {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.release(&name, fence);
        made.tick();
        let index = made.evidence.steps.last().expect("the tick").position;
        made.claim(made::claim(&name, 2, 1), &name).expect("it is new again");
        let mut evidence = made.evidence();
        assert_eq!(checked(&evidence), Ok(()));
        let mut read = evidence.operations[0].clone();
        let record = v1::Record { state: v1::State::Indeterminate.into(), index, ..v1::Record::default() };
        read.answered = Answered::Record(Box::new(record));
        evidence.operations.push(read);
        assert!(checked(&evidence).is_err());
    }
}
