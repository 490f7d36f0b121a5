//! Bounds of whoever shows no good credential.

use std::ops::RangeInclusive;

/// Calls without a good credential from one address, a second.
pub const AUTHENTICATION_FAILURES_DEFAULT: u32 = 10;
/// What a configuration may say of that.
pub const AUTHENTICATION_FAILURES: RangeInclusive<u64> = 1..=1_000_000;
/// How many seconds' worth of them may come at once.
pub const AUTHENTICATION_FAILURES_BURST_S: std::num::NonZeroU32 = std::num::NonZeroU32::new(10).unwrap();
/// Addresses that are remembered before those that were quiet are forgotten.
pub const ADDRESSES_KEPT_MAX: usize = 65_536;
