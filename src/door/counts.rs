//! What a door has done, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use super::work::Verdict;

/// Counts since the door was made.
#[derive(Debug, Default)]
pub(super) struct Counts {
    completed: AtomicU64,
    released: AtomicU64,
    indeterminate: AtomicU64,
    unkept: AtomicU64,
    late: AtomicU64,
}

/// What a door has done and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doings {
    /// Requests with a key whose answer was recorded.
    pub completed: u64,
    /// Of which it is known that nothing happened.
    pub released: u64,
    /// Of which nobody knows.
    pub indeterminate: u64,
    /// Answers that were too large to be kept with their body.
    pub unkept: u64,
    /// Answers that could not be recorded within their lease, and are still tried.
    pub late: u64,
    /// Requests with a key that are being answered or worked at.
    pub at_work: u64,
    /// Bytes of such requests that are held, in whole KiB.
    pub held_bytes: u64,
}

impl Counts {
    /// This came of a request.
    pub fn ended(&self, verdict: Verdict) {
        let count = match verdict {
            Verdict::Completed => &self.completed,
            Verdict::Released => &self.released,
            Verdict::Indeterminate => &self.indeterminate,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer was too large.
    pub fn unkept(&self) {
        self.unkept.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer is late, until what this returns is dropped.
    pub fn late(&self) -> Late<'_> {
        self.late.fetch_add(1, Ordering::Relaxed);
        Late(&self.late)
    }

    /// All of them, and nothing of what the door knows otherwise.
    pub fn doings(&self) -> Doings {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Doings {
            completed: of(&self.completed),
            released: of(&self.released),
            indeterminate: of(&self.indeterminate),
            unkept: of(&self.unkept),
            late: of(&self.late),
            ..Doings::default()
        }
    }
}

/// A late answer.
pub(super) struct Late<'a>(&'a AtomicU64);

impl Drop for Late<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
