//! When a command is repeated: a budget for all, a pause with jitter for each.
//!
//! The budget is a token bucket that calls fill and retries empty, so that a client whose every call fails adds a
//! fifth to its load at most, however many tasks share it (the rule of Finagle's `RetryBudget`). The pauses are drawn
//! between 0 and a doubling bound ("full jitter"), after what the server asks for.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::draw;
use crate::limits;

/// What a command is about: owners' reports may use the reserve of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Claims and reads: the caller can try again.
    Ordinary,
    /// Complete, release, suspend, renew, begin: something that others wait for.
    Owner,
}

/// Retries that may be spent, in parts of a retry: a call that succeeds gives one part.
#[derive(Debug)]
pub(super) struct Budget {
    parts: AtomicU32,
}

const PARTS: u32 = limits::CLIENT_CALLS_PER_RETRY;
const PARTS_MAX: u32 = limits::CLIENT_RETRIES_MAX * PARTS;
const PARTS_RESERVED: u32 = limits::CLIENT_RETRIES_RESERVED * PARTS;

impl Budget {
    pub(super) fn full() -> Self {
        Self { parts: AtomicU32::new(PARTS_MAX) }
    }

    /// A call succeeded.
    pub(super) fn deposit(&self) {
        if self.parts.load(Ordering::Relaxed) < PARTS_MAX {
            let more = |parts: u32| (parts < PARTS_MAX).then(|| parts + 1);
            // `Err` means that it is full: nothing to add.
            let _ = self.parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// Takes one retry, if there is one for this kind.
    pub(super) fn withdraw(&self, kind: Kind) -> bool {
        let floor = match kind {
            Kind::Ordinary => PARTS_RESERVED,
            Kind::Owner => 0,
        };
        let less = |parts: u32| parts.checked_sub(PARTS).filter(|left| *left >= floor);
        self.parts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// The pauses of one command's retries, or of one connection's.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The next pause. What the server asks for is a floor under it.
    pub(super) fn pause(&mut self, retry_after_ms: Option<u64>) -> Duration {
        let bound =
            limits::CLIENT_BACKOFF_MS.saturating_mul(1 << self.tries.min(16)).min(limits::CLIENT_BACKOFF_MS_MAX);
        self.tries = self.tries.saturating_add(1);
        // At least 1: "up to" alone could draw 0 many times over, a busy loop against a server that is down.
        Duration::from_millis(retry_after_ms.unwrap_or(0).saturating_add(1 + draw::up_to(bound)))
    }

    /// Things went well: the next pause is a first one.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_and_keeps_a_reserve_for_owners() {
        let budget = Budget::full();
        let ordinary = (0..).take_while(|_| budget.withdraw(Kind::Ordinary)).count();
        assert_eq!(ordinary as u32, limits::CLIENT_RETRIES_MAX - limits::CLIENT_RETRIES_RESERVED);
        let owners = (0..).take_while(|_| budget.withdraw(Kind::Owner)).count();
        assert_eq!(owners as u32, limits::CLIENT_RETRIES_RESERVED);
    }

    #[test]
    fn a_budget_refills_with_calls_and_never_overflows() {
        let budget = Budget::full();
        budget.deposit();
        while budget.withdraw(Kind::Owner) {}
        for _ in 0..limits::CLIENT_CALLS_PER_RETRY - 1 {
            budget.deposit();
        }
        assert!(!budget.withdraw(Kind::Owner), "not yet a whole retry");
        budget.deposit();
        assert!(budget.withdraw(Kind::Owner));
        assert!(!budget.withdraw(Kind::Owner));
    }

    #[test]
    fn pauses_grow_to_a_bound_above_what_the_server_asks() {
        let mut backoff = Backoff::default();
        assert!(backoff.pause(None) <= Duration::from_millis(limits::CLIENT_BACKOFF_MS + 1));
        for _ in 0..100 {
            let pause = backoff.pause(Some(5000));
            assert!(pause > Duration::from_millis(5000));
            assert!(pause <= Duration::from_millis(5001 + limits::CLIENT_BACKOFF_MS_MAX));
        }
        backoff.reset();
        assert!(backoff.pause(None) <= Duration::from_millis(limits::CLIENT_BACKOFF_MS + 1));
    }
}
