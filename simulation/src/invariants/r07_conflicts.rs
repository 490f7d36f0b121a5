//! R7: another fingerprint is a conflict in every state of a record that exists (records.md, Invariants): whatever else a
//! claim in the log is answered, it carries a fingerprint of the grant that the record stands under.

use std::collections::BTreeMap;

use semel::records::{
    answer::{Answer, ClaimAnswer, ExpiredReason},
    command::{Command, Fingerprints, RecordRef},
};

use super::{Broken, Checked, Evidence, Names, granted};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    let mut bound: BTreeMap<&RecordRef, &Fingerprints> = BTreeMap::new();
    for (command, applied, _) in evidence.commands() {
        if let Command::Restored(_) = command {
            bound.clear();
        }
        let Command::Claim(claim) = command else { continue };
        let Ok(Answer::Claim(answer)) = &applied.answer else { continue };
        let matches = bound.get(&claim.record).is_none_or(|of| of.matches(&claim.fingerprints));
        let new = granted(applied);
        let needs_match = match answer {
            ClaimAnswer::Conflict { .. } => false,
            ClaimAnswer::Expired { reason: ExpiredReason::TooOld, .. } => false,
            // Attempt 1 begins a life: nothing was there to differ from.
            ClaimAnswer::New(new) => new.repeated || new.attempt > 1,
            // The doubt of a restore binds the record to the claim that it records.
            ClaimAnswer::Indeterminate { .. } => !is_recorded_doubt(applied),
            _ => true,
        };
        if needs_match && !matches {
            let detail = format!("a claim of another request was answered {answer:?} at position {}", applied.index.0);
            return Err(Broken::of("R7", names.name(&claim.record), detail));
        }
        if new.is_some() || is_recorded_doubt(applied) {
            bound.insert(&claim.record, &claim.fingerprints);
        }
    }
    Ok(())
}

fn is_recorded_doubt(applied: &semel::records::answer::Applied) -> bool {
    matches!(&applied.answer, Ok(Answer::Claim(ClaimAnswer::Indeterminate { since, reason, .. }))
        if *since == applied.now && reason.tag == semel::records::record::ReasonTag::Restored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn another_request_that_is_answered_anything_but_conflict_is_found() {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.complete(&name, fence, "done");
        made.claim(made::claim(&name, 2, 2), &name);
        made.claim(made::claim(&name, 3, 1), &name);
        let mut evidence = made.evidence();
        let names = Names::of(&evidence).expect("one record");
        assert_eq!(check(&evidence, &names), Ok(()));
        let replay = evidence.steps.last().expect("the replay").commands[0].1.answer.clone();
        let at = evidence.steps.len() - 2;
        evidence.steps[at].commands[0].1.answer = replay;
        assert!(check(&evidence, &names).is_err());
    }
}
