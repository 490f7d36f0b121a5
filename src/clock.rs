//! The only clock: the wall clock and the monotonic clock of this node. Whoever needs one is handed a [`Clock`], so that a
//! test or the simulation can set it, stop it, and let it jump.

use std::{
    sync::Mutex,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::id::Time;

/// A reading of a monotonic clock: the time since an origin of the clock's own. Only differences mean anything.
pub type Monotonic = Duration;

/// What tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Never goes back, knows no date.
    fn monotonic(&self) -> Monotonic;

    /// The date as this node believes it, which may jump either way.
    fn wall(&self) -> Time;
}

/// The clocks of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    // Tokio's instant and not the standard library's: it is the same clock, but follows a paused runtime.
    origin: tokio::time::Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Monotonic {
        self.origin.elapsed()
    }

    fn wall(&self) -> Time {
        // A clock before 1970 is as wrong as one at 1970, and cluster time does not follow either.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that stands still until it is told to move.
#[derive(Debug)]
pub struct ManualClock {
    reading: Mutex<(Monotonic, Time)>,
}

impl ManualClock {
    /// A clock that shows this date.
    pub fn at(wall: Time) -> Self {
        Self { reading: Mutex::new((Monotonic::ZERO, wall)) }
    }

    /// Lets both clocks run on by this long.
    pub fn advance(&self, by: Duration) {
        let mut reading = self.lock();
        reading.0 += by;
        reading.1 = reading.1.plus_ms(u64::try_from(by.as_millis()).unwrap_or(u64::MAX));
    }

    /// Sets the date alone, forwards or back.
    pub fn set_wall(&self, wall: Time) {
        self.lock().1 = wall;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Monotonic, Time)> {
        self.reading.lock().expect("no holder of a clock's reading panics")
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Monotonic {
        self.lock().0
    }

    fn wall(&self) -> Time {
        self.lock().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_shows_a_date_of_this_century_and_never_goes_back() {
        let clock = SystemClock::default();
        assert!(clock.wall() > Time(1_700_000_000_000));
        let first = clock.monotonic();
        assert!(clock.monotonic() >= first);
    }

    #[test]
    fn a_manual_clock_moves_when_told() {
        let clock = ManualClock::at(Time(5_000));
        clock.advance(Duration::from_millis(250));
        assert_eq!((clock.monotonic(), clock.wall()), (Duration::from_millis(250), Time(5_250)));
        clock.set_wall(Time(1));
        assert_eq!((clock.monotonic(), clock.wall()), (Duration::from_millis(250), Time(1)));
    }
}
