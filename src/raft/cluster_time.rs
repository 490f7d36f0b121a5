//! Cluster time: the one clock of the records, kept by the leader and stamped into every entry.
//!
//! The leader starts from the last applied time and advances it by its monotonic clock, never by its wall clock. It
//! compares with the highest time that a quorum of members' wall clocks has reached, once a second, before its first grant,
//! and whenever its own wall clock has moved more than a second ahead: ahead of the quorum, time runs at half rate until
//! the quorum has caught up; behind it by up to a second, 5 % fast until it has caught up; by more, it jumps. So no bad
//! clock among a majority of good ones stops time, turns it back or rushes it.
//!
//! # Invariants
//!
//! - T1. Time never decreases, and is never below the last applied time.
//! - T2. Between two comparisons time advances by at least half and at most 1.05 times what the monotonic clock did.
//! - T3. Time jumps only to a time that a quorum of wall clocks has reached.
//!
//! Nothing here reads a clock: every reading is an argument.

use std::time::Duration;

use crate::{clock::Monotonic, id::Time, limits};

/// How fast time runs, in thousandths of the monotonic clock.
const RATE_EVEN: u64 = 1000;
const RATE_SLOW: u64 = 500;
const RATE_FAST: u64 = 1050;

/// What a comparison led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Time goes on, at whatever rate; nothing has to be logged.
    Runs,
    /// Time has jumped forward by this many ms: an entry has to carry the new time into the log before any further grant.
    Jumped {
        /// How far.
        by_ms: u64,
    },
}

/// The cluster time of one leader's term.
#[derive(Clone, Debug)]
pub struct ClusterTime {
    /// Time at `anchored`, µs.
    at_us: u64,
    anchored: Monotonic,
    /// The rate until `corrected`; even after it.
    rate: u64,
    corrected: Monotonic,
    floor: Time,
    compared: Option<Compared>,
}

/// What the last comparison saw.
#[derive(Clone, Copy, Debug)]
struct Compared {
    at: Monotonic,
    /// How far the leader's own wall clock was ahead of time afterwards, ms.
    own_ahead_ms: u64,
}

impl ClusterTime {
    /// The time of a new leader that has applied everything up to its own first entry: it goes on from `applied`, and wants
    /// a comparison before the first grant.
    pub fn new(applied: Time, at: Monotonic) -> Self {
        let at_us = applied.0.saturating_mul(1000);
        Self { at_us, anchored: at, rate: RATE_EVEN, corrected: at, floor: applied, compared: None }
    }

    /// The time now.
    pub fn now(&self, at: Monotonic) -> Time {
        Time(self.now_us(at) / 1000).max(self.floor)
    }

    /// Never lets time be below what was applied (T1).
    pub fn applied(&mut self, time: Time) {
        self.floor = self.floor.max(time);
    }

    /// Whether a grant has to wait for a comparison: there was none yet, the last is a second old, or the leader's own wall
    /// clock has moved ahead by more than a second since. The last tells that the machine was asleep, which its monotonic
    /// clock does not count; a wall clock that is merely wrong by a constant is not asked about again and again.
    pub fn wants_comparison(&self, at: Monotonic, own_wall: Time) -> bool {
        let is_old =
            |compared: Compared| at.saturating_sub(compared.at) >= Duration::from_millis(limits::TIME_COMPARE_MS);
        self.compared.is_none_or(is_old) || self.is_left_behind(at, own_wall)
    }

    /// How fast time runs now, in thousandths of the monotonic clock.
    pub fn rate(&self, at: Monotonic) -> u64 {
        if at < self.corrected { self.rate } else { RATE_EVEN }
    }

    /// Whether there was no comparison yet.
    pub fn is_fresh(&self) -> bool {
        self.compared.is_none()
    }

    /// Whether there was no comparison yet, or the leader's own wall clock has moved ahead by more than a second since.
    pub fn is_left_behind(&self, at: Monotonic, own_wall: Time) -> bool {
        let Some(compared) = self.compared else { return true };
        own_wall.since_ms(self.now(at)) > compared.own_ahead_ms + limits::TIME_JUMP_MS
    }

    /// Compares with `quorum`, the highest time that a quorum of wall clocks has reached, and chooses how time runs on.
    pub fn compare(&mut self, at: Monotonic, own_wall: Time, quorum: Time) -> Comparison {
        let now = self.now(at);
        self.at_us = self.now_us(at).max(now.0.saturating_mul(1000));
        self.anchored = at;
        let (rate, for_ms, comparison) = if now > quorum {
            // Half rate loses half a ms on the quorum with each ms.
            (RATE_SLOW, now.since_ms(quorum).saturating_mul(2), Comparison::Runs)
        } else {
            let behind_ms = quorum.since_ms(now);
            if behind_ms > limits::TIME_JUMP_MS {
                self.at_us = quorum.0.saturating_mul(1000);
                (RATE_EVEN, 0, Comparison::Jumped { by_ms: behind_ms })
            } else {
                (RATE_FAST, behind_ms * RATE_EVEN / (RATE_FAST - RATE_EVEN), Comparison::Runs)
            }
        };
        self.rate = rate;
        self.corrected = at.saturating_add(Duration::from_millis(for_ms));
        self.compared = Some(Compared { at, own_ahead_ms: own_wall.since_ms(self.now(at)) });
        comparison
    }

    fn now_us(&self, at: Monotonic) -> u64 {
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let corrected = us(at.min(self.corrected).saturating_sub(self.anchored));
        let even = us(at.saturating_sub(self.corrected.max(self.anchored)));
        self.at_us.saturating_add(corrected.saturating_mul(self.rate) / RATE_EVEN).saturating_add(even)
    }
}

/// The highest time that a quorum of wall clocks has reached, in each of the sets of voters (two while a membership
/// changes). A member that is silent has reached nothing.
pub fn quorum_time(voter_sets: &[Vec<Option<Time>>]) -> Time {
    let reached = |clocks: &Vec<Option<Time>>| {
        let mut times: Vec<Time> = clocks.iter().map(|clock| clock.unwrap_or_default()).collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.get(clocks.len() / 2).copied().unwrap_or_default()
    };
    voter_sets.iter().map(reached).min().unwrap_or_default()
}

#[cfg(test)]
mod tests;
