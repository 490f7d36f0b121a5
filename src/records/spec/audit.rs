//! What the sweep leaves of audit chains.

use super::{
    line::Line,
    world::{Sweeps, World},
};
use crate::{
    id::Tenant,
    records::{audit, state::State},
};

fn run(world: &mut World, lines: &[&str]) {
    for line in lines {
        let answer = world.run(&Line::parse(line));
        assert!(!answer.starts_with("invalid") && !answer.starts_with("wrong_state"), "{line}: {answer}");
    }
}

/// Sequences of the rows that stand in the state.
fn kept(world: &World, chain: Option<&Tenant>) -> Vec<u64> {
    (1..20).filter(|sequence| world.state.audit_row(chain, *sequence).is_some()).collect()
}

/// Chains that do not grow are trimmed, at most as many rows an entry as it may sweep.
#[test]
fn idle_chains_are_trimmed_by_ticks_alone() {
    let mut world = World::new(Sweeps::AsTold, Some(&Line::parse("limits audit_s=1h swept_per_entry_max=2")));
    run(
        &mut world,
        &["policy replay_s=1s at=0s", "policy replay_s=2s", "policy replay_s=3s", "policy replay_s=4s at=1m"],
    );
    run(&mut world, &["restored gap_end=0s at=2m", "end-doubt"]);
    let tenant = world.state.due(crate::id::Time(u64::MAX), 1)[0].1.tenant.clone();
    assert_eq!((kept(&world, Some(&tenant)), kept(&world, None)), (vec![1, 2, 3, 4, 5], vec![1, 2]));
    let due = audit::cluster_due(world.state.globals()).expect("it has rows");
    assert_eq!(due, world.time(62 * 60_000));
    run(&mut world, &["tick at=1h"]);
    assert_eq!(kept(&world, Some(&tenant)), [3, 4, 5]);
    run(&mut world, &["tick at=1h"]);
    assert_eq!(kept(&world, Some(&tenant)), [5]);
    // Each chain in its turn, the oldest entry first.
    run(&mut world, &["tick at=3h"]);
    assert_eq!((kept(&world, Some(&tenant)), kept(&world, None)), (vec![], vec![2]));
    run(&mut world, &["tick"]);
    assert_eq!((kept(&world, None), audit::cluster_due(world.state.globals())), (vec![], None));
    assert!(world.state.due(crate::id::Time(u64::MAX), 1).is_empty(), "nothing is waited for");
    // Both go on behind their heads.
    run(&mut world, &["policy replay_s=5s", "restored gap_end=3h"]);
    assert_eq!((kept(&world, Some(&tenant)), kept(&world, None)), (vec![6], vec![3]));
    world.end();
}
