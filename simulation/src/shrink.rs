//! A smaller run that still fails: fewer faults, clients, keys, operations, less time. Deterministic, and it knows nothing
//! of how a run is made: it asks `fails`.

use crate::options::Options;

/// At most this many runs are tried.
pub const TRIES_MAX: usize = 400;

/// The smallest options found that still fail, and how many runs that took. `fails(&options)` is taken for granted.
pub fn shrink(options: &Options, tries_max: usize, mut fails: impl FnMut(&Options) -> bool) -> (Options, usize) {
    let (mut smallest, mut tries) = (options.clone(), 0);
    // After a pass that helped comes another: what could not be left out before may be left out now.
    loop {
        let (mut at, mut helped) = (0, false);
        while let Some(smaller) = candidates(&smallest).into_iter().nth(at) {
            if tries == tries_max {
                return (smallest, tries);
            }
            tries += 1;
            if fails(&smaller) {
                (smallest, helped) = (smaller, true);
            } else {
                at += 1;
            }
        }
        if !helped {
            break;
        }
    }
    (smallest, tries)
}

/// Options a step smaller, the largest steps first. Every one is smaller in at least one thing and larger in none, so
/// that shrinking ends.
fn candidates(options: &Options) -> Vec<Options> {
    let mut found = Vec::new();
    let mut with = |change: &dyn Fn(&mut Options)| {
        let mut smaller = options.clone();
        change(&mut smaller);
        if smaller != *options {
            found.push(smaller);
        }
    };
    let faults: Vec<_> = options.faults.keys().copied().collect();
    // All faults, halves, quarters, …, single ones.
    let mut size = faults.len();
    while size > 0 {
        for group in faults.chunks(size) {
            with(&|smaller| smaller.faults.retain(|kind, _| !group.contains(kind)));
        }
        size /= 2;
    }
    for part in [4, 2] {
        with(&|smaller| smaller.operations = (smaller.operations / part).max(1));
        with(&|smaller| smaller.duration_ms = (smaller.duration_ms / u64::from(part)).max(1_000));
        with(&|smaller| smaller.clients = (smaller.clients / part as u16).max(1));
        with(&|smaller| smaller.cold_keys /= part as u16);
        with(&|smaller| smaller.hot_keys = (smaller.hot_keys / part as u16).max(1));
    }
    with(&|smaller| smaller.nodes = 3);
    with(&|smaller| smaller.tenants = 1);
    with(&|smaller| smaller.reconcilers = 0);
    with(&|smaller| smaller.clients = (smaller.clients - 1).max(1));
    with(&|smaller| smaller.operations = (smaller.operations * 7 / 8).max(1));
    with(&|smaller| smaller.duration_ms = (smaller.duration_ms * 7 / 8).max(1_000));
    for kind in faults {
        with(&|smaller| {
            smaller.faults.entry(kind).and_modify(|rate| *rate = (*rate / 2).max(1));
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind::{self, Crash, Partition};

    fn large() -> Options {
        let mut options = Options::draw(1);
        options.faults = FaultKind::ALL.iter().map(|kind| (*kind, 8)).collect();
        (options.nodes, options.clients, options.operations, options.duration_ms) = (5, 12, 1_000, 60_000);
        options
    }

    #[test]
    fn what_a_failure_needs_is_left_and_nothing_else() {
        let needs = |options: &Options| {
            options.has(Crash) && options.has(Partition) && options.operations >= 37 && options.clients >= 3
        };
        let (smallest, tries) = shrink(&large(), TRIES_MAX, needs);
        assert!(needs(&smallest));
        assert_eq!(smallest.faults.keys().copied().collect::<Vec<_>>(), [Partition, Crash]);
        assert_eq!((smallest.clients, smallest.nodes, smallest.duration_ms), (3, 3, 1_000));
        assert!((37..42).contains(&smallest.operations), "{}", smallest.operations);
        assert!(tries < TRIES_MAX / 2, "{tries}");
    }

    #[test]
    fn it_is_deterministic_and_bounded() {
        let needs = |options: &Options| options.has(Crash);
        assert_eq!(shrink(&large(), TRIES_MAX, needs), shrink(&large(), TRIES_MAX, needs));
        assert_eq!(shrink(&large(), 5, |_| false), (large(), 5));
    }

    #[test]
    fn no_step_makes_anything_larger() {
        let options = large();
        for smaller in candidates(&options) {
            assert!(smaller.faults.iter().all(|(kind, rate)| *rate <= options.rate(*kind)));
            assert!(smaller.operations <= options.operations && smaller.duration_ms <= options.duration_ms);
            assert!(smaller.clients <= options.clients && smaller.nodes <= options.nodes);
        }
    }
}
