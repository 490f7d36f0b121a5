//! R13: a window promised is never shortened (records.md, Invariants): of one completion, nobody is told an earlier end than
//! somebody before; and within the replay window that was told, a claim of the same request is not answered `expired`.

use std::collections::BTreeMap;

use semel::proto::v1;

use super::{Broken, Checked, Evidence, Names};
use crate::{
    history::{Answered, Name},
    spec::said::ms,
};

pub fn check(evidence: &Evidence, _: &Names) -> Checked {
    // What was told of each completion, in the order of positions.
    let mut told = Told::new();
    for operation in evidence.answered() {
        let (completed_at, replay, evidence_until) = match &operation.answered {
            Answered::Claim(answer) => (answer.completed_at, None, answer.evidence_until),
            Answered::Record(record) => (record.completed_at, record.replay_until, record.evidence_until),
            _ => continue,
        };
        let (Some(at), Some(index)) = (completed_at, operation.answered.index()) else { continue };
        let windows = (replay.as_ref().map(ms), evidence_until.as_ref().map(ms));
        let known = told.entry((&operation.name, ms(&at))).or_default().entry(index).or_default();
        *known = (known.0.max(windows.0), known.1.max(windows.1));
    }
    for ((name, _), of) in &told {
        let (mut replay, mut evidence_until) = (None, None);
        for (index, windows) in of {
            for (what, before, now) in
                [("replay", &mut replay, windows.0), ("evidence", &mut evidence_until, windows.1)]
            {
                let Some(now) = now else { continue };
                if before.is_some_and(|before| now < before) {
                    let detail = format!("the {what} window was to end at {before:?} and ends at {now} at {index}");
                    return Err(Broken::of("R13", Some(name), detail));
                }
                *before = Some(now);
            }
        }
    }
    not_expired_early(evidence, &told)
}

/// Ends of the replay and the evidence window.
type Windows = (Option<u64>, Option<u64>);
/// By record and time of completion: what was told, by position.
type Told<'a> = BTreeMap<(&'a Name, u64), BTreeMap<u64, Windows>>;

fn not_expired_early(evidence: &Evidence, told: &Told<'_>) -> Checked {
    let times: BTreeMap<u64, u64> = evidence.steps.iter().map(|step| (step.position, step.time)).collect();
    for operation in evidence.answered() {
        let Answered::Claim(answer) = &operation.answered else { continue };
        if answer.answer() != v1::Answer::Expired || answer.reason() != "replay_over" {
            continue;
        }
        let Some(at) = answer.completed_at.as_ref().map(ms) else { continue };
        let now = times.range(..=answer.index).next_back().map_or(0, |(_, time)| *time);
        let promised = told.get(&(&operation.name, at)).and_then(|of| of.values().filter_map(|of| of.0).max());
        if let Some(replay_until) = promised.filter(|until| now > 0 && now < *until) {
            // Applied time is the highest stamp so far; the stamp of one entry alone may be lower.
            let highest = times.range(..=answer.index).map(|(_, time)| *time).max().unwrap_or(now);
            if highest < replay_until {
                let detail = format!("{operation}: replay was promised until {replay_until}, and it is {highest}");
                return Err(Broken::of("R13", Some(&operation.name), detail));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::Call,
        made::{self, Made},
    };

    fn record(evidence_ms: u64, index: u64) -> Answered {
        let time = |ms: u64| prost_types::Timestamp { seconds: (ms / 1000) as i64, nanos: 0 };
        Answered::Record(Box::new(v1::Record {
            completed_at: Some(time(5_000)),
            replay_until: Some(time(9_000)),
            evidence_until: Some(time(evidence_ms)),
            index,
            ..v1::Record::default()
        }))
    }

    fn get(name: &Name) -> Call {
        Call::Get(v1::GetRequest { record: Some(name.to_id()), with_outcome: None })
    }

    #[test]
    fn a_window_that_shrinks_is_found() {
        let mut made = Made::new();
        let name = made::name("a");
        made.told(&name, get(&name), record(20_000, 7));
        made.told(&name, get(&name), record(20_000, 8));
        assert_eq!(check(&made.evidence(), &Names::default()), Ok(()));
        made.told(&name, get(&name), record(19_000, 9));
        assert!(check(&made.evidence(), &Names::default()).is_err());
    }

    #[test]
    fn a_replay_that_ends_early_is_found() {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.complete(&name, fence, "done");
        let index = made.evidence.steps.last().expect("the report").position;
        let at = prost_types::Timestamp { seconds: 5, nanos: 0 };
        let replay_until = prost_types::Timestamp { seconds: i64::MAX / 10_000, nanos: 0 };
        let read =
            v1::Record { completed_at: Some(at), replay_until: Some(replay_until), index, ..v1::Record::default() };
        made.told(&name, get(&name), Answered::Record(Box::new(read)));
        let mut expired = v1::ClaimAnswer { index, completed_at: Some(at), ..v1::ClaimAnswer::default() };
        expired.set_answer(v1::Answer::Expired);
        expired.reason = Some("replay_over".into());
        let claim = made.evidence.operations[0].call.clone();
        assert_eq!(check(&made.evidence(), &Names::default()), Ok(()));
        made.told(&name, claim, Answered::Claim(Box::new(expired)));
        assert!(check(&made.evidence(), &Names::default()).is_err());
    }
}
