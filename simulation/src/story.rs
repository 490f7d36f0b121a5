//! The shortest timeline that shows a failure: of one record, what clients asked and were told, what the log says, and
//! what happened outside, in simulated time.

use semel::records::{
    answer::{Answer, ClaimAnswer},
    command::{Command, OwnerAction, Verdict},
};

use crate::{
    history::{Answered, Call, Micros, Name},
    invariants::{Evidence, Names},
};

/// Lines of a story, at most: its beginning, which explains, and its end, which shows.
const LINES_MAX: usize = 60;

/// The story of a record.
pub fn of(evidence: &Evidence, about: &Name) -> Vec<String> {
    let mut lines: Vec<(Micros, u8, String)> = Vec::new();
    for operation in evidence.operations.iter().filter(|operation| operation.name == *about) {
        // What changed nothing and failed nobody is left out: a story is short.
        if operation.call.only_reads() && !matches!(operation.answered, Answered::Record(_)) {
            continue;
        }
        let at = operation.returned.unwrap_or(operation.invoked);
        let took = operation.returned.map_or("never returned".to_owned(), |returned| {
            format!("took {} ms", (returned - operation.invoked) / 1_000)
        });
        let line = match &operation.call {
            Call::Claim(request) => format!("{operation} ({took}, attempt {})", request.attempt_id()),
            _ => format!("{operation} ({took})"),
        };
        lines.push((at, 2, line));
    }
    let names = Names::of(evidence).unwrap_or_default();
    for (command, applied, step) in evidence.commands() {
        let record = crate::spec::record_of(command);
        if record.is_none_or(|record| names.name(record) != Some(about)) {
            continue;
        }
        let line = format!(
            "  log @{} cluster time {} ms, n{}: {} → {}",
            applied.index.0,
            applied.now.0,
            step.by,
            asked(command),
            answered(&applied.answer)
        );
        lines.push((step.seen, 0, line));
    }
    for effect in evidence.effects.iter().filter(|effect| effect.name == *about) {
        let late = (effect.at - effect.sent) / 1_000;
        lines.push((effect.at, 1, format!("    EFFECT under fence {}, {late} ms after it was sent", effect.fence)));
    }
    lines.sort_by_key(|(at, rank, _)| (*at, *rank));
    let mut told: Vec<String> =
        lines.into_iter().map(|(at, _, line)| format!("{:>10.3} s  {line}", at as f64 / 1e6)).collect();
    if told.len() > LINES_MAX {
        let left_out = told.len() - LINES_MAX;
        told.splice(LINES_MAX / 3..LINES_MAX / 3 + left_out, [format!("           … {left_out} lines more …")]);
    }
    told
}

fn asked(command: &Command) -> String {
    match command {
        Command::Claim(claim) => {
            format!("claim attempt {}{}", claim.attempt_id.hyphenated(), if claim.staged { " staged" } else { "" })
        }
        Command::Owner(owner) => {
            let word = match owner.action {
                OwnerAction::Begin(_) => "begin",
                OwnerAction::Renew(_) => "renew",
                OwnerAction::Checkpoint(_) => "checkpoint",
                OwnerAction::Complete(_) => "complete",
                OwnerAction::Release(_) => "release",
                OwnerAction::Suspend(_) => "suspend",
            };
            format!("{word} fence {}", owner.fence.0)
        }
        Command::Investigate(_) => "investigate".to_owned(),
        Command::Resolve(resolve) => {
            let verdict = match resolve.verdict {
                Verdict::Completed(_) => "completed",
                Verdict::NoEffect(()) => "no_effect",
                Verdict::Unknown(_) => "unknown",
            };
            format!("resolve {verdict} version {}", resolve.version.0)
        }
        Command::Forget(_) => "forget".to_owned(),
        _ => "something else".to_owned(),
    }
}

fn answered(answer: &Result<Answer, semel::refusal::Refusal>) -> String {
    match answer {
        Err(refusal) => format!("refused {}", refusal.code.as_str()),
        Ok(Answer::Claim(claim)) => match claim {
            ClaimAnswer::New(new) => {
                let repeated = if new.repeated { " again" } else { "" };
                format!("new{repeated} fence {} attempt {}", new.fence.0, new.attempt)
            }
            ClaimAnswer::InProgress { .. } => "in_progress".to_owned(),
            ClaimAnswer::Conflict { state, .. } => format!("conflict with {}", state.as_str()),
            ClaimAnswer::Indeterminate { reason, .. } => format!("indeterminate {}", reason.tag.as_str()),
            ClaimAnswer::Completed(_) => "completed".to_owned(),
            ClaimAnswer::Expired { reason, .. } => format!("expired {}", reason.as_str()),
        },
        Ok(Answer::Changed(changed)) => changed.state.as_str().to_owned(),
        Ok(Answer::Investigated(head)) => format!("indeterminate version {}", head.version.0),
        Ok(Answer::Policy(_) | Answer::Token(_) | Answer::Done) => "done".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{self, Made};

    #[test]
    fn it_tells_of_one_record_in_the_order_of_time_and_stays_short() {
        let mut made = Made::new();
        let (a, b) = (made::name("a"), made::name("b"));
        let fence = made.claim(made::claim(&a, 1, 1), &a).expect("it is new");
        made.claim(made::claim(&b, 2, 1), &b);
        made.effect(&a, fence);
        made.complete(&a, fence, "done");
        let story = of(&made.evidence(), &a);
        let at = |what: &str| story.iter().position(|line| line.contains(what)).unwrap_or_else(|| panic!("{story:#?}"));
        assert!(at("new fence") < at("EFFECT") && at("EFFECT") < at("complete fence"));
        assert!(story.iter().all(|line| !line.contains("charge/b")));
        for _ in 0..200 {
            made.claim(made::claim(&a, 3, 1), &a);
        }
        assert_eq!(of(&made.evidence(), &a).len(), LINES_MAX + 1);
    }
}
