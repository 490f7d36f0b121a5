//! R5: within the evidence window expired never becomes new, unless the policy in force at the claim says `run_as_new`
//! (records.md, Invariants). What counts is what callers were told: until when the key can't run again.

use std::collections::BTreeMap;

use semel::records::{
    command::{Command, PolicySet},
    policy::{ExpiredClaims, Patch},
};

use super::{Broken, Checked, Evidence, Names, granted};
use crate::{
    history::{Answered, Name},
    spec::said::ms,
};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    if evidence.was_restored() {
        return Ok(());
    }
    // Of each record: until when, by the position at which it was promised.
    let mut promised: BTreeMap<&Name, BTreeMap<u64, u64>> = BTreeMap::new();
    for operation in evidence.answered() {
        let until = match &operation.answered {
            Answered::Claim(answer) => answer.evidence_until.as_ref().map(ms),
            Answered::Record(record) => record.evidence_until.as_ref().map(ms),
            _ => None,
        };
        if let (Some(index), Some(until)) = (operation.answered.index(), until) {
            let known = promised.entry(&operation.name).or_default().entry(index).or_default();
            *known = (*known).max(until);
        }
    }
    let mut runs_again = BTreeMap::new();
    for (command, applied, _) in evidence.commands() {
        if let Command::PolicySet(set) = command
            && applied.answer.is_ok()
        {
            note(set, &mut runs_again);
        }
        let Command::Claim(claim) = command else { continue };
        let (Some(new), Some(name)) = (granted(applied), names.name(&claim.record)) else { continue };
        let chosen = [None, Some(claim.record.operation)]
            .into_iter()
            .filter_map(|level| runs_again.get(&(claim.record.tenant.clone(), level)).copied().flatten())
            .next_back()
            .unwrap_or(false);
        let before = promised.get(name).and_then(|of| of.range(..new.fence.0).next_back());
        if let Some((index, until)) = before
            && applied.now.0 < *until
            && !chosen
            && new.attempt == 1
        {
            let detail = format!(
                "granted anew at position {}, cluster time {}: at position {index} somebody was told that it can't run \
                 again before {until}",
                new.fence.0, applied.now.0
            );
            return Err(Broken::of("R5", Some(name), detail));
        }
    }
    Ok(())
}

type Level = (semel::id::Tenant, Option<semel::id::KeyedHash>);

fn note(set: &PolicySet, runs_again: &mut BTreeMap<Level, Option<bool>>) {
    let level = runs_again.entry((set.tenant.clone(), set.operation)).or_default();
    match set.patch.expired_claims {
        Patch::Keep => {}
        Patch::Clear => *level = None,
        Patch::Set(chosen) => *level = Some(chosen == ExpiredClaims::RunAsNew),
    }
}

#[cfg(test)]
mod tests {
    use semel::records::command::Claim;

    use super::*;
    use crate::made::{self, Made};

    /// Completed, expired, and seen so by somebody.
    fn expired() -> (Made, Name) {
        let mut made = Made::new();
        let name = made::name("a");
        let brief = |attempt| Claim { replay_s: Some(1), evidence_s: Some(10), ..made::claim(&name, attempt, 1) };
        let fence = made.claim(brief(1), &name).expect("it is new");
        made.complete(&name, fence, "done");
        made.wait_ms(2_000);
        assert_eq!(made.claim(brief(2), &name), None);
        made.wait_ms(9_000);
        assert!(made.claim(brief(3), &name).is_some(), "the evidence is over");
        (made, name)
    }

    #[test]
    fn a_grant_before_the_promised_end_is_found() {
        let (made, _) = expired();
        let mut evidence = made.evidence();
        let names = Names::of(&evidence).expect("one record");
        assert_eq!(check(&evidence, &names), Ok(()));
        let last = evidence.steps.last_mut().expect("the grant");
        last.commands[0].1.now.0 -= 5_000;
        assert!(check(&evidence, &names).is_err());
    }

    #[test]
    fn a_tenant_may_choose_to_run_again() {
        let (made, name) = expired();
        let mut evidence = made.evidence();
        let names = Names::of(&evidence).expect("one record");
        let mut other = Made::new();
        let patch = semel::records::policy::PolicyPatch {
            expired_claims: Patch::Set(ExpiredClaims::RunAsNew),
            ..Default::default()
        };
        other.set_policy(&name, patch);
        let set = other.evidence.steps.pop().expect("the policy");
        evidence.steps.insert(0, set);
        evidence.steps.last_mut().expect("the grant").commands[0].1.now.0 -= 5_000;
        assert_eq!(check(&evidence, &names), Ok(()));
    }
}
