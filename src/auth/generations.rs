//! Rates of many: the state of each of them, in bounded memory and at a bounded cost a call.
//!
//! There are two generations. Whoever calls is in the young one; once that has had its time, or is full, it becomes the
//! old one, and what was left in the old one goes. So nobody is ever looked for among all, and who goes has been quiet for a
//! whole generation: long enough to have regained all that there is to use up, unless there are more callers at once than
//! are kept.

use std::{
    collections::HashMap,
    hash::Hash,
    mem,
    time::{Duration, Instant},
};

use governor::{
    NotUntil, Quota, RateLimiter,
    clock::{Clock, MonotonicClock},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::StateStore,
};
use parking_lot::Mutex;

/// One rate for each of many.
pub(super) struct Rates<K: Hash + Eq + Clone>(RateLimiter<K, Generations<K>, MonotonicClock, NoOpMiddleware<Instant>>);

impl<K: Hash + Eq + Clone> Rates<K> {
    /// This rate for each; of so many at once it is known how much they have used up.
    pub fn new(quota: Quota, kept_max: usize) -> Self {
        // Not the default clock, which measures the processor's against the system's when it is made: in a simulation that one
        // stands still meanwhile.
        Self(RateLimiter::new(quota, Generations::new(quota, kept_max), MonotonicClock))
    }

    /// Counts one of this caller's.
    ///
    /// # Errors
    /// It has used up what it may; with how many milliseconds to wait.
    pub fn count(&self, key: &K) -> Result<(), u64> {
        self.0.check_key(key).map_err(|not_until: NotUntil<Instant>| {
            let wait = not_until.wait_time_from(MonotonicClock.now());
            u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

struct Generations<K> {
    kept: Mutex<Kept<K>>,
    /// Most of one generation.
    most: usize,
    /// After which whoever was quiet has regained everything.
    lasts: Duration,
}

struct Kept<K> {
    young: HashMap<K, Nanos>,
    old: HashMap<K, Nanos>,
    since: Instant,
}

impl<K: Hash + Eq + Clone> Generations<K> {
    fn new(quota: Quota, kept_max: usize) -> Self {
        let kept = Kept { young: HashMap::new(), old: HashMap::new(), since: MonotonicClock.now() };
        let lasts = quota.burst_size_replenished_in() + quota.replenish_interval();
        Self { kept: Mutex::new(kept), most: (kept_max / 2).max(1), lasts }
    }

    /// Makes room for one more, if it must. Returns whoever goes, so that nobody waits for that.
    fn turn(&self, kept: &mut Kept<K>) -> HashMap<K, Nanos> {
        let now = MonotonicClock.now();
        if kept.young.len() < self.most && now.duration_since(kept.since) < self.lasts {
            return HashMap::new();
        }
        kept.since = now;
        let young = mem::take(&mut kept.young);
        mem::replace(&mut kept.old, young)
    }
}

impl<K: Hash + Eq + Clone> StateStore for Generations<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut kept = self.kept.lock();
        let gone = self.turn(&mut kept);
        let before = kept.young.get(key).copied().or_else(|| kept.old.get(key).copied());
        let measured = measure(before);
        // Also whoever is refused has called: what it has used up must be known next time.
        let state = measured.as_ref().ok().map(|(_, state)| *state).or(before);
        if let Some(state) = state {
            match kept.young.get_mut(key) {
                Some(known) => *known = state,
                None => drop(kept.young.insert(key.clone(), state)),
            }
        }
        drop(kept);
        drop(gone);
        measured.map(|(positive, _)| positive)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn per_s(most: u32) -> Quota {
        Quota::per_second(NonZeroU32::new(most).unwrap())
    }

    #[test]
    fn of_more_callers_than_are_kept_the_last_are() {
        let (quota, kept_max) = (per_s(1), 1000);
        let generations = Generations::new(quota, kept_max);
        let kept = || {
            let kept = generations.kept.lock();
            kept.young.len() + kept.old.len()
        };
        for caller in 0..100 * kept_max {
            let state = Nanos::new(caller as u64);
            let found = generations.measure_and_replace(&caller, |before| Ok::<_, ()>((before, state))).unwrap();
            assert_eq!(found, None, "{caller}");
            assert!(kept() <= kept_max, "{} after {caller}", kept());
        }
        let last = 100 * kept_max - 1;
        let found = generations.measure_and_replace(&last, Err::<((), Nanos), _>).unwrap_err();
        assert_eq!(found, Some(Nanos::new(last as u64)));
    }

    #[test]
    fn who_goes_on_calling_is_known_whatever_the_others_do() {
        let rates = Rates::new(per_s(1), 8);
        assert_eq!(rates.count(&0), Ok(()));
        let refused = (1..1000).filter(|other| {
            let _ = rates.count(other);
            rates.count(&0).is_err()
        });
        // A second more of it at most comes while this runs.
        assert!(refused.count() > 900);
    }

    #[test]
    fn a_generation_ends_once_it_has_regained_everything() {
        let generations = Generations::new(per_s(1), 1000);
        let count =
            |caller: u64| generations.measure_and_replace(&caller, |before| Ok::<_, ()>((before, Nanos::new(caller))));
        let age = |by: Duration| {
            let mut kept = generations.kept.lock();
            kept.since = kept.since.checked_sub(by).expect("the clock has run for a while");
        };
        assert_eq!(count(1), Ok(None));
        age(generations.lasts);
        assert_eq!(count(2), Ok(None));
        assert_eq!(generations.kept.lock().old.len(), 1, "the first may still lack something");
        age(generations.lasts);
        assert_eq!((count(2), count(1)), (Ok(Some(Nanos::new(2))), Ok(None)));
    }
}
