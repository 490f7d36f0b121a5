//! Bounds of requests as they arrive.

use std::ops::RangeInclusive;

/// Pause within a body after which it is given up by default, ms.
pub const BODY_IDLE_MS: u64 = 30_000;
/// What can be chosen for it, ms.
pub const BODY_IDLE_MS_RANGE: RangeInclusive<u64> = 100..=3_600_000;
/// Time from the first byte of a request's head to its last by default, ms.
pub const HEAD_TIMEOUT_MS: u64 = 10_000;
/// What can be chosen for it, ms.
pub const HEAD_TIMEOUT_MS_RANGE: RangeInclusive<u64> = 100..=600_000;
/// Fields of a head by default.
pub const HEAD_FIELDS_MAX: usize = 100;
/// What can be chosen for it: what common clients and proxies send, up to what is still looked through at once.
pub const HEAD_FIELDS_MAX_RANGE: RangeInclusive<u64> = 16..=1000;
/// Largest head by default, bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// What can be chosen for it, bytes: the library that reads HTTP/1 wants 8 KiB at least.
pub const HEAD_BYTES_MAX_RANGE: RangeInclusive<u64> = (8 << 10)..=(1 << 20);
/// Streams of an HTTP/2 connection by default.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// What can be chosen for it.
pub const STREAMS_PER_CONNECTION_MAX_RANGE: RangeInclusive<u64> = 1..=65_536;
/// What can be chosen for the requests of one token, or of one tenant, a second.
pub const REQUESTS_PER_S: RangeInclusive<u64> = 1..=1 << 24;
/// Callers whose requests are counted; of more, those that called last.
pub const RATED_CALLERS_KEPT_MAX: usize = 65_536;
