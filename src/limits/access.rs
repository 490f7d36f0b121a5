//! Bounds of credentials, and of whoever shows no good one.

use std::ops::RangeInclusive;

/// Calls without a good credential from one address, a second.
pub const AUTHENTICATION_FAILURES_DEFAULT: u32 = 10;
/// What a configuration may say of that.
pub const AUTHENTICATION_FAILURES: RangeInclusive<u64> = 1..=1_000_000;
/// How many seconds' worth of them may come at once.
pub const AUTHENTICATION_FAILURES_BURST_S: std::num::NonZeroU32 = std::num::NonZeroU32::new(10).unwrap();
/// Addresses that are remembered; of more, those that called last.
pub const ADDRESSES_KEPT_MAX: usize = 65_536;

/// Longest credential, bytes: a JSON Web Token with its signature.
pub const JWT_BYTES_MAX: usize = 8192;
/// How far clocks of whoever issues JSON Web Tokens may be off, ms.
pub const JWT_LEEWAY_MS: u64 = 30_000;
/// How long after its issue a JSON Web Token is taken by default, s.
pub const JWT_AGE_S_DEFAULT: u64 = 3600;
/// What can be chosen for it, s.
pub const JWT_AGE_S: RangeInclusive<u64> = 1..=31 * 24 * 3600;
/// The latest moment with a fraction that a JSON Web Token can name, ms since 1970: what a double counts one by one.
pub const JWT_MOMENT_MS_MAX: f64 = 9_007_199_254_740_991.0;
/// Largest file of keys of JSON Web Tokens, bytes.
pub const JWKS_BYTES_MAX: u64 = 256 << 10;
/// Keys in it.
pub const JWKS_KEYS_MAX: usize = 100;
/// Bytes of the modulus of an RSA key.
pub const JWKS_RSA_BYTES: RangeInclusive<usize> = 256..=1024;
/// How long a connection may be without a good credential by default, ms.
pub const UNAUTHENTICATED_TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// What can be chosen for it, ms.
pub const UNAUTHENTICATED_TIMEOUT_MS: RangeInclusive<u64> = 100..=3_600_000;
/// Between two looks whether this node is in touch with its cluster, ms.
pub const TOUCH_LOOK_MS: u64 = 250;
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
