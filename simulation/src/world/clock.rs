//! A node's clocks, which run, jump and stand still as the faults have it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel::{
    clock::{Clock, Monotonic},
    id::Time,
};

use super::interpose;

/// How far a clock may run fast or slow, parts per million.
pub const DRIFT_PPM_MAX: i64 = 50_000;

#[derive(Debug, Default)]
struct Reading {
    /// Simulated time at which `monotonic` and `offset_ms` were right, ns.
    since: u64,
    /// The monotonic clock at that moment, ns.
    monotonic: u64,
    /// The wall clock is that much ahead of the date that the monotonic clock would make, ms.
    offset_ms: i64,
    /// How much faster than simulated time both run, parts per million.
    drift_ppm: i64,
    /// Both stand still: the node does, and will not know of it.
    is_frozen: bool,
    /// The wall clock goes to and fro: every so many ms, by so many ms.
    strobe: Option<(u64, i64)>,
}

impl Reading {
    fn monotonic(&self) -> u64 {
        if self.is_frozen {
            return self.monotonic;
        }
        let elapsed = interpose::now().saturating_sub(self.since);
        let gained = i128::from(elapsed) * i128::from(self.drift_ppm) / 1_000_000;
        self.monotonic + (i128::from(elapsed) + gained).max(0) as u64
    }

    fn settle(&mut self) {
        (self.monotonic, self.since) = (self.monotonic(), interpose::now());
    }
}

/// The clocks of one node.
#[derive(Debug, Default)]
pub struct SimClock(Mutex<Reading>);

impl SimClock {
    /// The wall clock jumps.
    pub fn jump(&self, by_ms: i64) {
        self.lock().offset_ms += by_ms;
    }

    /// Both clocks run at this speed from now on.
    pub fn drift(&self, ppm: i64) {
        let mut reading = self.lock();
        reading.settle();
        reading.drift_ppm = ppm.clamp(-DRIFT_PPM_MAX, DRIFT_PPM_MAX);
    }

    /// The wall clock goes to and fro, or stops doing so.
    pub fn strobe(&self, how: Option<(u64, i64)>) {
        self.lock().strobe = how;
    }

    /// Both clocks stand still, or go on.
    pub fn freeze(&self, is_frozen: bool) {
        let mut reading = self.lock();
        reading.settle();
        reading.is_frozen = is_frozen;
    }

    /// All is right again.
    pub fn heal(&self) {
        let mut reading = self.lock();
        reading.settle();
        (reading.drift_ppm, reading.strobe, reading.is_frozen) = (0, None, false);
        // What was missed while it stood or ran wrong is set right, as a time service does.
        reading.offset_ms = interpose::now() as i64 / 1_000_000 - reading.monotonic as i64 / 1_000_000;
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Monotonic {
        Duration::from_nanos(self.lock().monotonic())
    }

    fn wall(&self) -> Time {
        let reading = self.lock();
        let ms = interpose::date_ms(reading.monotonic() / 1_000_000);
        let strobe = match reading.strobe {
            Some((every_ms, by_ms)) if (interpose::now() / 1_000_000 / every_ms) % 2 == 1 => by_ms,
            _ => 0,
        };
        Time(ms.saturating_add_signed(reading.offset_ms).saturating_add_signed(strobe))
    }
}
