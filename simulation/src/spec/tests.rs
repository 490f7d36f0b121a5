//! The contract as it is told here against the product's core: the same commands, drawn at random, are answered the same.

use rand::{Rng, seq::IndexedRandom};
use semel::records::{
    answer::Applied,
    command::{Claim, Command, OwnerAction, Verdict},
    policy::{ExpiredClaims, Oversize, Patch, PolicyPatch},
    state::State as _,
};

use super::{Spec, said::Said};
use crate::{
    history::Name,
    made::{self, Made},
    options::rng,
};

fn compare(spec: &mut Spec, made: &Made, from: usize) -> usize {
    for step in &made.evidence.steps[from..] {
        for (command, Applied { index, now, answer }) in &step.commands {
            let expected = spec.apply(command, index.0, now.0);
            let actual = Said::of(answer);
            if let (Some(expected), Some(actual)) = (&expected, &actual) {
                assert_eq!(actual, expected, "at {index:?}, {now:?}: {command:?}");
            } else if let Some(actual) = actual {
                spec.follow(command, &actual);
            }
        }
        spec.pass(step.position, step.time);
    }
    made.evidence.steps.len()
}

#[test]
fn the_core_answers_as_the_contract_says() {
    for seed in 0..60 {
        let rng = &mut rng(seed, "spec");
        let (mut made, mut spec) = (Made::new(), Spec::default());
        let mut told = compare(&mut spec, &made, 0);
        let names: Vec<Name> = ["a", "b", "c"].iter().map(|key| made::name(key)).collect();
        for _ in 0..150 {
            let name = names.choose(rng).expect("not empty").clone();
            made.wait_ms(*[0, 0, 1, 500, 999, 1_000, 2_000, 5_000, 20_000].choose(rng).expect("not empty"));
            let own = made.state.head(&made::reference(&name)).and_then(|head| head.grant().map(|g| g.fence().0));
            let fence = if rng.random_ratio(1, 8) { rng.random_range(0..200) } else { own.unwrap_or(1) };
            match rng.random_range(0..20) {
                0..7 => {
                    let drawn = Claim {
                        staged: rng.random(),
                        on_lapse: *[None, Some(semel::records::command::LapseRule::Retake)].choose(rng).expect("two"),
                        lease_ms: *[None, Some(50), Some(1_000), Some(2_000)].choose(rng).expect("four"),
                        evidence_s: *[None, Some(10)].choose(rng).expect("two"),
                        first_sent_at: rng
                            .random_ratio(1, 6)
                            .then(|| semel::id::Time(made.now_ms - rng.random_range(0..20_000))),
                        ..made::claim(&name, rng.random_range(0..20), rng.random_range(1..3))
                    };
                    made.run(Command::Claim(Box::new(drawn)));
                }
                7 => drop(made.owner(&name, fence, OwnerAction::Begin(*[None, Some(3_000)].choose(rng).expect("two")))),
                8 => drop(made.owner(&name, fence, OwnerAction::Renew(*[None, Some(900)].choose(rng).expect("two")))),
                9 => drop(made.checkpoint(&name, fence, ["x", "y"].choose(rng).expect("two"))),
                10 | 11 => drop(made.complete(&name, fence, ["x", "y", &"z".repeat(80)].choose(rng).expect("three"))),
                12 => drop(made.release(&name, fence)),
                13 => drop(made.suspend(&name, fence)),
                14 => drop(made.investigate(&name)),
                15 | 16 => {
                    let verdict = match rng.random_range(0..3) {
                        0 => Verdict::Completed(made::proposed("found")),
                        1 => Verdict::NoEffect(()),
                        _ => Verdict::Unknown(semel::id::Time(made.now_ms + 3_000)),
                    };
                    made.resolve(&name, verdict, rng.random_range(0..6));
                }
                17 => drop(made.forget(&name)),
                18 => made.tick(),
                _ => {
                    let mut patch = PolicyPatch::default();
                    match rng.random_range(0..6) {
                        0 => (patch.replay_s, patch.evidence_s) = (Patch::Set(5), Patch::Set(10)),
                        1 => patch.expired_claims = Patch::Set(ExpiredClaims::RunAsNew),
                        2 => {
                            (patch.outcome_bytes_max, patch.oversize) =
                                (Patch::Set(50), Patch::Set(Oversize::DigestOnly))
                        }
                        3 => patch.oversize = Patch::Clear,
                        4 => patch.effect_ms_max = Patch::Set(2_000),
                        _ => patch.records_max = *[Patch::Set(2), Patch::Clear].choose(rng).expect("two"),
                    }
                    made.set_policy(&name, patch);
                }
            }
            told = compare(&mut spec, &made, told);
        }
    }
}
