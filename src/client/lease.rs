//! An owner's own count of its lease.
//!
//! The owner trusts no clock but its own monotonic one, and counts from before it sent the request that was granted:
//! so its count always ends before the cluster's. It starts no effect after [`CLIENT_LEASE_PERCENT`] of it.
//!
//! [`CLIENT_LEASE_PERCENT`]: limits::CLIENT_LEASE_PERCENT

use std::time::Duration;

use tokio::time::Instant;

use crate::limits;

/// A lease as its owner counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    counted_from: Instant,
    granted: Duration,
}

impl Lease {
    /// A lease of this length, asked for at `sent_at` or later.
    pub(super) fn new(sent_at: Instant, granted_ms: u32) -> Self {
        Self { counted_from: sent_at, granted: Duration::from_millis(granted_ms.into()) }
    }

    /// The later of the two: a renewal that was overtaken takes nothing away.
    pub(super) fn extended(self, other: Lease) -> Self {
        if other.ends_at() > self.ends_at() { other } else { self }
    }

    /// When it ends.
    pub(super) fn ends_at(&self) -> Instant {
        self.counted_from + self.granted
    }

    /// From when on no effect may be started.
    pub(super) fn last_start_at(&self) -> Instant {
        self.counted_from + self.granted * limits::CLIENT_LEASE_PERCENT / 100
    }

    /// When to renew it.
    pub(super) fn renew_at(&self) -> Instant {
        self.counted_from + self.granted / limits::CLIENT_RENEWALS_PER_LEASE
    }

    /// Whether an effect may be started now.
    pub(super) fn allows_start(&self, now: Instant) -> bool {
        now < self.last_start_at()
    }

    /// The length as granted.
    pub(super) fn granted_ms(&self) -> u32 {
        u32::try_from(self.granted.as_millis()).expect("a lease is granted in ms of a u32")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn no_effect_starts_after_95_percent() {
        let sent_at = Instant::now();
        let lease = Lease::new(sent_at, 30_000);
        assert!(lease.allows_start(sent_at));
        assert!(lease.allows_start(sent_at + 28_500 * MS - MS));
        assert!(!lease.allows_start(sent_at + 28_500 * MS));
        assert_eq!(lease.renew_at(), sent_at + 10_000 * MS);
        assert_eq!(lease.ends_at(), sent_at + 30_000 * MS);
    }

    #[test]
    fn a_renewal_that_was_overtaken_takes_nothing_away() {
        let sent_at = Instant::now();
        let (old, new) = (Lease::new(sent_at, 30_000), Lease::new(sent_at + 10_000 * MS, 30_000));
        assert_eq!(old.extended(new), new);
        assert_eq!(new.extended(old), new);
        assert_eq!(new.extended(Lease::new(sent_at + 20_000 * MS, 100)), new);
    }
}
