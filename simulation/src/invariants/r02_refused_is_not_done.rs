//! R2, the other way round: a command that was refused as not done (refusal.rs, effect `none`) was not done: no grant, change
//! or verdict of it stands in the log. Commands that were sent in several calls are left out: another one of them may have
//! done it.

use std::collections::BTreeMap;

use semel::records::command::Command;

use super::{Broken, Checked, Evidence, Names, changed, granted, is_same};
use crate::history::{Answered, Call, Operation};

/// What tells a command from all others: the id of its attempt or request, or its fence and what it does.
type Identity<'a> = (&'a str, u64, &'static str);

pub fn check(evidence: &Evidence, _: &Names) -> Checked {
    let mut sent: BTreeMap<Identity<'_>, Vec<&Operation>> = BTreeMap::new();
    for operation in &evidence.operations {
        if let Some(identity) = identity(&operation.call) {
            sent.entry(identity).or_default().push(operation);
        }
    }
    let refused: Vec<&Operation> = sent
        .values()
        .filter(|calls| calls.len() == 1)
        .map(|calls| calls[0])
        .filter(|operation| matches!(operation.answered, Answered::Refused { .. }))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    for (command, applied, _) in evidence.commands() {
        let is_done = granted(applied).is_some()
            || changed(applied).is_some_and(|left| left.version == Some(applied.index))
                && !matches!(command, Command::Claim(_));
        if !is_done || evidence.is_lost(applied.index.0) {
            continue;
        }
        if let Some(operation) = refused.iter().find(|operation| is_same(operation, command)) {
            let detail = format!("{operation}: was done all the same, at position {}", applied.index.0);
            return Err(Broken::of("R2", Some(&operation.name), detail));
        }
    }
    Ok(())
}

fn identity(call: &Call) -> Option<Identity<'_>> {
    match call {
        Call::Claim(request) => Some((request.attempt_id.as_deref()?, 0, call.word())),
        Call::Resolve(request) => Some((request.request_id.as_deref()?, 0, call.word())),
        _ => Some(("", call.fence()?, call.word())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    fn run(code: &str, is_known: bool) -> Checked {
        let mut made = Made::new();
        let a = made::name("a");
        let fence = made.claim(made::claim(&a, 1, 1), &a).expect("it is new");
        made.complete(&a, fence, "done");
        let last = made.evidence.operations.last_mut().expect("a report was recorded");
        last.answered = match is_known {
            true => Answered::Refused { code: code.to_owned(), index: None },
            false => Answered::Unknown("lost".to_owned()),
        };
        let evidence = made.evidence();
        check(&evidence, &Names::of(&evidence).expect("names are apart"))
    }

    #[test]
    fn what_was_refused_and_is_done_is_found_and_what_nobody_knows_is_not() {
        assert_eq!(run("unavailable", true).unwrap_err().what, "R2");
        assert_eq!(run("unavailable", false), Ok(()));
    }

    #[test]
    fn a_command_of_two_calls_may_have_been_done_by_the_other() {
        let mut made = Made::new();
        let a = made::name("a");
        let fence = made.claim(made::claim(&a, 1, 1), &a).expect("it is new");
        made.complete(&a, fence, "done");
        let mut again = made.evidence.operations.last().expect("a report was recorded").clone();
        again.answered = Answered::Refused { code: "unavailable".to_owned(), index: None };
        made.evidence.operations.push(again);
        let evidence = made.evidence();
        assert_eq!(check(&evidence, &Names::of(&evidence).expect("names are apart")), Ok(()));
    }
}
