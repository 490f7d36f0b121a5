//! R3: a fence other than the current one changes nothing (records.md, Invariants): every such command in the log is refused,
//! and no client was told otherwise.

use std::collections::BTreeMap;

use semel::{records::command::Command, refusal::Code};

use super::{Broken, Checked, Evidence, Names, granted};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    let mut current: BTreeMap<_, u64> = BTreeMap::new();
    for (command, applied, _) in evidence.commands() {
        if let Command::Restored(_) = command {
            // Every fence from before is nobody's now.
            current.clear();
        }
        let Some(record) = crate::spec::record_of(command) else { continue };
        if let Some(new) = granted(applied) {
            current.insert(record, new.fence.0);
        }
        let Command::Owner(owner) = command else { continue };
        let is_current = current.get(record) == Some(&owner.fence.0);
        let is_refused = matches!(&applied.answer, Err(refusal) if refusal.code == Code::StaleFence
            || refusal.code == Code::Unavailable || refusal.code == Code::Forbidden);
        if !is_current && !is_refused {
            let detail = format!(
                "fence {} was taken at position {} while {:?} was the last one granted",
                owner.fence.0,
                applied.index.0,
                current.get(record)
            );
            return Err(Broken::of("R3", names.name(record), detail));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use semel::records::command::OwnerAction;

    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn a_fence_that_was_overtaken_and_taken_all_the_same_is_found() {
        let mut made = Made::new();
        let name = made::name("a");
        let first = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.release(&name, first);
        let second = made.claim(made::claim(&name, 2, 1), &name).expect("it is new again");
        made.complete(&name, first, "too late");
        let mut good = made.complete(&name, second, "in time");
        let evidence = made.evidence();
        let names = Names::of(&evidence).expect("one record");
        assert_eq!(check(&evidence, &names), Ok(()));
        // As if the first owner's report had been taken.
        let mut evidence = evidence;
        let step = evidence.steps.iter_mut().find(|step| {
            step.commands.iter().any(|(command, applied)| {
                applied.answer.is_err()
                    && matches!(&**command, Command::Owner(owner) if matches!(owner.action, OwnerAction::Complete(_)))
            })
        });
        good.index = step.as_ref().expect("it was refused").commands[0].1.index;
        step.expect("it was refused").commands[0].1 = good;
        assert!(check(&evidence, &names).is_err());
    }
}
