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
/// How long a connection may be without a good credential by default, ms.
pub const UNAUTHENTICATED_TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// What can be chosen for it, ms.
pub const UNAUTHENTICATED_TIMEOUT_MS: RangeInclusive<u64> = 100..=3_600_000;
/// Groups of refusals (why, and by which token) that one row of the audit tells of.
pub const REFUSED_GROUPS_MAX: usize = 64;
/// How often refusals are told to the audit at most, s.
pub const REFUSED_TOLD_S: u64 = 60;
/// How long a node that stops tries to tell the last ones, ms.
pub const REFUSED_LAST_MS: u64 = 500;
/// The span in which frames of HTTP/2 are counted on a connection without a good credential, ms.
pub const FRAMES_COUNTED_MS: u64 = 10_000;
/// Streams that such a connection may reset in it.
pub const RESETS_MAX: u32 = 200;
/// Settings and pings that it may send in it.
pub const SETTINGS_AND_PINGS_MAX: u32 = 100;
/// Fields of one message over gRPC, each item of a list counted: as many as a session may have unanswered.
pub const MESSAGE_FIELDS_MAX: usize = super::SESSION_UNANSWERED_MAX;
/// Streams of one tenant (sessions and watches) that are open at once on a node.
pub const TENANT_STREAMS_MAX: usize = 4096;
