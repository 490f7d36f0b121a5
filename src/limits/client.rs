//! The client library.

use super::{REQUEST_BYTES_MAX, SESSION_FRAME_BYTES_MAX};

/// Commands of a client that wait for a place in its session.
pub const CLIENT_QUEUE_MAX: usize = 4096;
/// Commands of a session that may be unanswered at once.
pub const CLIENT_IN_FLIGHT_MAX: usize = 4096;
/// Commands in one frame of a session.
pub const CLIENT_FRAME_ITEMS_MAX: usize = 256;
/// A frame of a session takes no further command beyond this, bytes: it stays far below `REQUEST_BYTES_MAX`.
pub const CLIENT_FRAME_BYTES_MAX: usize = 512 << 10;
/// Largest command of a session, bytes: with its frame around it, it still fits `REQUEST_BYTES_MAX`.
pub const CLIENT_ITEM_BYTES_MAX: usize = REQUEST_BYTES_MAX - 256;
/// Frames of a session that wait for the connection.
pub const CLIENT_FRAMES_MAX: usize = 8;
/// Largest message that a client takes from a server, bytes: a frame of several replayed outcomes.
pub const CLIENT_ANSWER_BYTES_MAX: usize = 32 << 20;
/// How long the oldest command of a session may be unanswered before the connection is given up, ms.
pub const CLIENT_STALL_MS: u64 = 10_000;
/// How long a client tries to connect to one endpoint, ms.
pub const CLIENT_CONNECT_MS: u64 = 3_000;
/// How long a call may take in all, retries included, when the caller names nothing else, ms.
pub const CLIENT_DEADLINE_MS: u64 = 15_000;
/// How long one attempt of a call may take before it is repeated, ms.
pub const CLIENT_ATTEMPT_MS: u64 = 5_000;
/// How long an owner's report (complete, release, suspend) is repeated when its result isn't learnt, ms.
pub const CLIENT_REPORT_MS: u64 = 60_000;
/// An idle connection is asked for a sign of life this often, ms.
pub const CLIENT_KEEP_ALIVE_MS: u64 = 10_000;
/// Endpoints of a client, those learnt from leaders included.
pub const CLIENT_ENDPOINTS_MAX: usize = 32;
/// Claims of a client that wait for another owner at once; a server takes no more streams on one connection.
pub const CLIENT_WAITS_MAX: usize = 200;
/// Claims dropped without a report that wait to be reported.
pub const CLIENT_ABANDONED_MAX: usize = 4096;
/// Claims dropped without a report that are being reported at once.
pub const CLIENT_ABANDONED_AT_ONCE_MAX: usize = 64;
/// Retries that a client may spend at once; refilled by what it calls. Enough for what is in flight while a leader is
/// elected.
pub const CLIENT_RETRIES_MAX: u32 = 1000;
/// Retries that are kept back for owners' reports.
pub const CLIENT_RETRIES_RESERVED: u32 = 250;
/// Calls that succeed for one more retry to be allowed.
pub const CLIENT_CALLS_PER_RETRY: u32 = 5;
/// First pause before a retry, ms; doubled each time, and drawn between 0 and itself.
pub const CLIENT_BACKOFF_MS: u64 = 20;
/// Longest pause before a retry where the server names none, ms.
pub const CLIENT_BACKOFF_MS_MAX: u64 = 2_000;
/// Leaders that a client is sent to, one by the other, before it takes any node.
pub const CLIENT_REDIRECTS_MAX: u32 = 4;
/// How long a client is content with any node after no leader was known, ms.
pub const CLIENT_LEADER_AGAIN_MS: u64 = 2_000;
/// How long a client is content with any node after the leader could not be reached from where it is, ms.
pub const CLIENT_LEADER_UNREACHABLE_MS: u64 = 300_000;
/// Of its lease an owner starts an effect within the first so many hundredths only.
pub const CLIENT_LEASE_PERCENT: u32 = 95;
/// A lease is renewed once one of so many parts of it has passed.
pub const CLIENT_RENEWALS_PER_LEASE: u32 = 3;
/// Records that a reconciler has set aside until they may be looked at again.
pub const RECONCILER_POSTPONED_MAX: usize = 10_000;
/// Records that a reconciler asks about at once, when nothing else is said.
pub const RECONCILER_AT_ONCE: usize = 8;
/// How often a reconciler looks through the list, when nothing else is said, ms.
pub const RECONCILER_EVERY_MS: u64 = 10_000;
/// How long a reconciler keeps a record to itself, when nothing else is said, ms.
pub const RECONCILER_LEASE_MS: u32 = 60_000;

const _: () = assert!(SESSION_FRAME_BYTES_MAX + REQUEST_BYTES_MAX <= CLIENT_ANSWER_BYTES_MAX);
const _: () = assert!(CLIENT_FRAME_BYTES_MAX < REQUEST_BYTES_MAX && CLIENT_RETRIES_RESERVED < CLIENT_RETRIES_MAX);
const _: () = assert!(CLIENT_ATTEMPT_MS < CLIENT_STALL_MS && CLIENT_ATTEMPT_MS < CLIENT_DEADLINE_MS);
const _: () = assert!(CLIENT_LEASE_PERCENT <= 95 && CLIENT_RENEWALS_PER_LEASE >= 2);
/// Time that an attempt must have left to be begun at all, ms.
pub const CLIENT_ATTEMPT_MS_MIN: u64 = 20;
