//! R1: at most one owner per record; under `hold` at most one effect between two statements that none happened (records.md,
//! Invariants; reliability.md, Online oracles).
//!
//! A statement is a `no_effect` verdict or an owner's release that was taken. A grant that begins a new life (the evidence
//! of the one before is over, or the tenant chose `run_as_new`) permits an effect anew as well.

use std::collections::BTreeMap;

use semel::records::command::{Command, LapseRule, OwnerAction, Verdict};

use super::{Broken, Checked, Evidence, Names, changed, granted};
use crate::{
    history::{Micros, Name},
    ledger::Effect,
};

pub fn check(evidence: &Evidence, names: &Names) -> Checked {
    let mut effects: BTreeMap<&Name, Vec<&Effect>> = BTreeMap::new();
    for effect in &evidence.effects {
        effects.entry(&effect.name).or_default().push(effect);
    }
    let (grants, clear) = permissions(evidence, names);
    for (name, effects) in effects {
        for effect in &effects {
            if !grants.contains_key(&(name.clone(), effect.fence)) {
                let detail = format!("an effect under fence {} that was never granted", effect.fence);
                return Err(Broken::of("R1", Some(name), detail));
            }
        }
        let mut ordered = effects.clone();
        ordered.sort_by_key(|effect| effect.at);
        for pair in ordered.windows(2) {
            let may_repeat = pair.iter().all(|effect| {
                grants.get(&(name.clone(), effect.fence)).is_some_and(|rule| *rule == Some(LapseRule::Retake))
            });
            // A restore in between: what the new cluster knows not to be done it has been told after it.
            let restored = evidence.restores.keys().copied().filter(|first| *first <= pair[1].fence).max();
            let restored = restored.filter(|first| pair[0].fence < *first);
            let moments = clear.get(name).map(Vec::as_slice).unwrap_or_default();
            let cleared = moments.iter().any(|moment| {
                let counts = match restored {
                    Some(first) => moment.kind != Kind::Granted && first <= moment.position,
                    None => moment.kind != Kind::Settled,
                };
                counts && pair[0].fence < moment.position && moment.position <= pair[1].fence
            });
            // A statement that was false: the effect of the owner before it came after it.
            let was_false = moments.iter().any(|moment| {
                moment.kind != Kind::Settled && pair[0].fence < moment.position && moment.seen < pair[0].at
            });
            if !may_repeat && (!cleared || was_false) && !evidence.doubt_was_ended() {
                let detail = format!(
                    "two effects, under fence {} at {} µs and under fence {} at {} µs, and nobody stated truly in \
                     between that none happened",
                    pair[0].fence, pair[0].at, pair[1].fence, pair[1].at
                );
                return Err(Broken::of("R1", Some(name), detail));
            }
        }
    }
    Ok(())
}

/// The lapse rule that each grant asked for, by record and fence.
type Grants = BTreeMap<(Name, u64), Option<LapseRule>>;
/// What permits an effect anew, by record.
type Clear = BTreeMap<Name, Vec<Moment>>;

/// From this position on an effect is permitted anew.
struct Moment {
    position: u64,
    /// The simulated time.
    seen: Micros,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By the grant of a first attempt: whatever was before is over by the evidence window, a statement, or the tenant's own
    /// choice. Whether rightly so is for R5 and R6.
    Granted,
    /// By a statement that nothing happened.
    Stated,
    /// Not at all within one cluster: it was found out what happened. What a restore lost is known by it.
    Settled,
}

fn permissions(evidence: &Evidence, names: &Names) -> (Grants, Clear) {
    let (mut grants, mut clear) = (Grants::new(), Clear::new());
    for (command, applied, step) in evidence.commands() {
        let Some(record) = crate::spec::record_of(command) else { continue };
        let Some(name) = names.name(record) else { continue };
        let is_taken = changed(applied).is_some();
        let kind = match command {
            Command::Claim(_) => granted(applied).and_then(|new| {
                grants.insert((name.clone(), new.fence.0), Some(rule(&new.head)));
                (new.attempt == 1).then_some(Kind::Granted)
            }),
            Command::Owner(owner) => {
                (matches!(owner.action, OwnerAction::Release(_)) && is_taken).then_some(Kind::Stated)
            }
            Command::Resolve(resolve) => match resolve.verdict {
                Verdict::NoEffect(()) => is_taken.then_some(Kind::Stated),
                Verdict::Completed(_) => is_taken.then_some(Kind::Settled),
                Verdict::Unknown(_) => None,
            },
            _ => None,
        };
        if let Some(kind) = kind {
            clear.entry(name.clone()).or_default().push(Moment { position: applied.index.0, seen: step.seen, kind });
        }
    }
    (grants, clear)
}

fn rule(head: &semel::records::record::Head) -> LapseRule {
    head.grant().map_or(LapseRule::Hold, |grant| grant.on_lapse)
}

#[cfg(test)]
mod tests {
    use semel::records::command::Claim;

    use super::*;
    use crate::made::{self, Made};

    fn checked(made: &Made) -> Checked {
        let evidence = made.evidence();
        let names = Names::of(&evidence)?;
        check(&evidence, &names)
    }

    #[test]
    fn a_second_effect_under_the_same_or_another_fence_is_found() {
        let mut made = Made::new();
        let name = made::name("a");
        let fence = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.effect(&name, fence);
        assert_eq!(checked(&made), Ok(()));
        made.effect(&name, fence);
        assert!(checked(&made).is_err());
    }

    #[test]
    fn an_effect_without_a_grant_is_found() {
        let mut made = Made::new();
        let name = made::name("a");
        made.claim(made::claim(&name, 1, 1), &name);
        made.effect(&name, 1);
        assert!(checked(&made).is_err_and(|broken| broken.detail.contains("never granted")));
    }

    #[test]
    fn after_a_release_there_may_be_another_effect_and_before_it_none() {
        let mut made = Made::new();
        let name = made::name("a");
        let first = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.release(&name, first);
        let second = made.claim(made::claim(&name, 2, 1), &name).expect("it is new again");
        made.effect(&name, second);
        assert_eq!(checked(&made), Ok(()));
        // The owner who stated that nothing happened acts all the same.
        made.effect(&name, first);
        assert!(checked(&made).is_err());
    }

    #[test]
    fn after_a_restore_what_was_lost_has_to_be_found_out_first() {
        let mut made = Made::new();
        let name = made::name("a");
        let dump = made.evidence().dumps.remove(0).2;
        let lost = made.claim(made::claim(&name, 1, 1), &name).expect("it is new");
        made.effect(&name, lost);
        made.restore(&dump);
        assert_eq!(made.claim(made::claim(&name, 2, 1), &name), None, "nobody knows");
        made.wait_ms(60_000);
        made.resolve(&name, Verdict::NoEffect(()), 1);
        let second = made.claim(made::claim(&name, 3, 1), &name).expect("somebody has said that it did not happen");
        assert_eq!(checked(&made), Ok(()));
        made.effect(&name, second);
        assert_eq!(checked(&made), Ok(()), "what was said is not the cluster's doing");
        // As if nobody had been asked.
        made.evidence.steps.retain(|step| !step.commands.iter().any(|(one, _)| matches!(**one, Command::Resolve(_))));
        assert!(checked(&made).is_err());
        made.run(Command::DoubtEnded(semel::records::command::DoubtEnded { actor: made::sealed("ops") }));
        assert_eq!(checked(&made), Ok(()), "somebody knew better");
    }

    #[test]
    fn what_may_be_retaken_may_be_repeated() {
        let mut made = Made::new();
        let name = made::name("a");
        let retake = |attempt| Claim { on_lapse: Some(LapseRule::Retake), ..made::claim(&name, attempt, 1) };
        let first = made.claim(retake(1), &name).expect("it is new");
        made.effect(&name, first);
        made.wait_ms(5_000);
        let second = made.claim(retake(2), &name).expect("taken over");
        made.effect(&name, second);
        assert_eq!(checked(&made), Ok(()));
    }
}
