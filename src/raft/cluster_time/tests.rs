use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Time = Time(86_400_000);
const HOUR_MS: u64 = 3_600_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A leader that was elected at monotonic 0 with this applied time and compares with `quorum` at once.
fn leader(applied: Time, quorum: Time) -> ClusterTime {
    let mut time = ClusterTime::new(applied, ms(0));
    time.compare(ms(0), quorum, quorum);
    time
}

#[test]
fn a_new_leader_compares_before_its_first_grant_and_goes_on_from_applied_time() {
    let mut time = ClusterTime::new(DAY, ms(500));
    assert!(time.wants_comparison(ms(500), DAY));
    assert_eq!(time.now(ms(500)), DAY);
    assert_eq!(time.compare(ms(500), DAY, DAY), Comparison::Runs);
    assert!(!time.wants_comparison(ms(1499), DAY.plus_ms(999)));
    assert!(time.wants_comparison(ms(1500), DAY.plus_ms(1000)));
    assert_eq!(time.now(ms(1500)), DAY.plus_ms(1000));
}

#[test]
fn a_quorum_an_hour_ahead_is_met_by_one_jump() {
    let mut time = leader(DAY, DAY);
    let quorum = DAY.plus_ms(HOUR_MS);
    assert_eq!(time.compare(SECOND, quorum, quorum), Comparison::Jumped { by_ms: HOUR_MS - 1000 });
    assert_eq!(time.now(SECOND), quorum);
    assert_eq!(time.compare(2 * SECOND, quorum.plus_ms(1000), quorum.plus_ms(1000)), Comparison::Runs);
}

#[test]
fn a_quorum_an_hour_behind_is_waited_for_at_half_rate_until_it_is_met() {
    let mut time = leader(DAY, Time(DAY.0 - HOUR_MS));
    assert_eq!(time.now(ms(2 * HOUR_MS - 2)), DAY.plus_ms(HOUR_MS - 1));
    assert_eq!(time.now(ms(2 * HOUR_MS)), DAY.plus_ms(HOUR_MS));
    // They have met, and time runs evenly again.
    assert_eq!(time.now(ms(2 * HOUR_MS + 1000)), DAY.plus_ms(HOUR_MS + 1000));
    let met = DAY.plus_ms(HOUR_MS);
    assert_eq!(time.compare(ms(2 * HOUR_MS), met, met), Comparison::Runs);
}

#[test]
fn half_a_second_behind_is_caught_up_at_five_per_cent() {
    let time = leader(DAY, DAY.plus_ms(500));
    assert_eq!(time.now(SECOND), DAY.plus_ms(1050));
    assert_eq!(time.now(10 * SECOND), DAY.plus_ms(10_500));
    assert_eq!(time.now(11 * SECOND), DAY.plus_ms(11_500));
}

#[test]
fn a_second_behind_is_the_most_that_is_caught_up_without_a_jump() {
    let mut time = leader(DAY, DAY);
    assert_eq!(time.compare(ms(0), DAY, DAY.plus_ms(1000)), Comparison::Runs);
    assert_eq!(time.compare(ms(0), DAY, DAY.plus_ms(1001)), Comparison::Jumped { by_ms: 1001 });
}

#[test]
fn a_machine_that_slept_compares_before_it_grants() {
    let time = leader(DAY, DAY);
    // The monotonic clock stood still while the wall clock went on.
    assert!(!time.wants_comparison(ms(10), DAY.plus_ms(1010)));
    assert!(time.wants_comparison(ms(10), DAY.plus_ms(1011)));
}

#[test]
fn a_leader_whose_own_clock_is_an_hour_ahead_is_not_asked_at_every_grant() {
    let mut time = leader(DAY, DAY);
    time.compare(ms(0), DAY.plus_ms(HOUR_MS), DAY);
    assert_eq!(time.now(ms(500)), DAY.plus_ms(500));
    assert!(!time.wants_comparison(ms(500), DAY.plus_ms(HOUR_MS + 500)));
    assert!(time.wants_comparison(ms(500), DAY.plus_ms(HOUR_MS + 1501)));
}

#[test]
fn one_strobing_clock_of_three_moves_nothing() {
    let mut time = leader(DAY, DAY);
    for second in 1..=600 {
        let honest = DAY.plus_ms(second * 1000);
        let strobe = if second % 2 == 0 { honest.plus_ms(HOUR_MS) } else { Time(honest.0 - HOUR_MS) };
        let quorum = quorum_time(&[vec![Some(honest), Some(strobe), Some(honest)]]);
        assert_eq!(time.compare(ms(second * 1000), honest, quorum), Comparison::Runs);
        assert_eq!(time.now(ms(second * 1000)), honest);
    }
}

#[test]
fn applied_time_is_a_floor() {
    let mut time = leader(DAY, DAY);
    time.applied(DAY.plus_ms(10_000));
    assert_eq!(time.now(SECOND), DAY.plus_ms(10_000));
    time.compare(SECOND, DAY.plus_ms(1000), DAY.plus_ms(1000));
    assert_eq!(time.now(3 * SECOND), DAY.plus_ms(11_000));
}

#[test]
fn a_quorum_is_counted_in_every_set_of_voters_and_silence_has_reached_nothing() {
    let at = |ms| Some(Time(ms));
    assert_eq!(quorum_time(&[vec![at(7)]]), Time(7));
    assert_eq!(quorum_time(&[vec![at(9), at(5), at(7)]]), Time(7));
    assert_eq!(quorum_time(&[vec![at(9), None, at(7)]]), Time(7));
    assert_eq!(quorum_time(&[vec![at(9), None, None]]), Time(0));
    assert_eq!(quorum_time(&[vec![at(9), at(8), at(7), at(6)]]), Time(7));
    assert_eq!(quorum_time(&[vec![at(9), at(5), at(7)], vec![at(9), at(6), at(3)]]), Time(6));
    assert_eq!(quorum_time(&[]), Time(0));
}

proptest! {
    /// T1, T2 and T3 under any sequence of waits and of quorum clocks.
    #[test]
    fn no_sequence_of_clocks_breaks_the_invariants(
        steps in prop::collection::vec((0u64..5_000, 0u64..200_000_000, prop::option::of(0u64..200_000_000)), 1..60)
    ) {
        let mut time = ClusterTime::new(DAY, ms(0));
        let (mut at, mut last) = (0, DAY);
        for (wait, wall, quorum) in steps {
            let before = time.now(ms(at));
            at += wait;
            let after = time.now(ms(at));
            prop_assert!(after >= last);
            let passed = after.since_ms(before);
            prop_assert!(passed <= wait * 105 / 100 + 1 && passed + 1 >= wait / 2, "{passed} of {wait}");
            last = after;
            if let Some(quorum) = quorum {
                let comparison = time.compare(ms(at), Time(wall), Time(quorum));
                let now = time.now(ms(at));
                prop_assert!(now >= last);
                match comparison {
                    Comparison::Runs => prop_assert_eq!(now, last),
                    Comparison::Jumped { .. } => prop_assert_eq!(now, Time(quorum)),
                }
                last = now;
            }
        }
    }
}
