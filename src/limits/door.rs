//! The Idempotency-Key door.

use super::{HTTP2_STREAM_WINDOW_BYTES, KEY_BYTES_MAX, OPERATION_BYTES_MAX, OUTCOME_BYTES_MAX};

/// Longest method that a route can name, bytes.
pub const DOOR_METHOD_BYTES_MAX: usize = 32;
/// Bytes of a path that an operation shows where it can't show all.
pub const DOOR_OPERATION_PATH_BYTES: usize = 60;
/// Parts of a multipart body that is hashed by its parts.
pub const DOOR_PARTS_MAX: usize = 1000;
/// Longest boundary of a multipart body, bytes.
pub const DOOR_BOUNDARY_BYTES_MAX: usize = 70;
/// Routes of a door.
pub const DOOR_ROUTES_MAX: usize = 1000;
/// Names in one list of a route.
pub const DOOR_NAMES_MAX: usize = 32;
/// Largest body of a request with a key by default, bytes.
pub const DOOR_BODY_BYTES_MAX_DEFAULT: usize = 16 << 20;
/// The most that can be chosen for it, bytes.
pub const DOOR_BODY_BYTES_LIMIT: u64 = 1 << 30;
/// Largest answer whose body is recorded by default, bytes.
pub const DOOR_OUTCOME_BYTES_MAX_DEFAULT: usize = 1 << 20;
/// The longest that a caller may wait for another one by default, ms.
pub const DOOR_WAIT_MS_MAX_DEFAULT: u32 = 30_000;
/// How long the upstream may take by default, s.
pub const DOOR_UPSTREAM_TIMEOUT_S_DEFAULT: u64 = 60;
/// The longest that can be chosen for a time of the door, s.
pub const DOOR_TIME_S_LIMIT: u64 = 24 * 3600;
/// How long what runs may go on after a signal to end, by default, s.
pub const DOOR_DRAIN_S_DEFAULT: u64 = 30;
/// How long a connection to the upstream may take to open, ms.
pub const DOOR_CONNECT_MS: u64 = 5_000;
/// How long a connection to the upstream is kept without a request, ms: less than servers keep theirs.
pub const DOOR_IDLE_MS: u64 = 1_000;
/// Connections to the upstream that are kept without a request.
pub const DOOR_IDLE_MAX: usize = 128;
/// Requests that share one connection of HTTP/2 to the upstream, where it allows as many.
pub const DOOR_STREAMS_MAX: usize = 128;
/// Unacknowledged bytes of such a connection: so many that one who doesn't read an answer holds up nobody else's.
pub const DOOR_HTTP2_CONNECTION_WINDOW_BYTES: u32 = 128 * HTTP2_STREAM_WINDOW_BYTES;
/// How often it is looked whether the upstream's first frame of HTTP/2 has come, ms.
pub const DOOR_SETTINGS_LOOK_MS: u64 = 1;
/// Largest head of an upstream's answer over HTTP/2, bytes.
pub const DOOR_ANSWER_HEAD_BYTES_MAX: u32 = 64 << 10;
/// How long a call to the store may take in all, ms.
pub const DOOR_STORE_MS: u64 = 5_000;
/// How long one attempt of a call to the store may take, ms.
pub const DOOR_STORE_ATTEMPT_MS: u64 = 2_000;
/// How long an outcome is reported again and again, ms.
pub const DOOR_REPORT_MS: u64 = 600_000;
/// How long a caller whose answer is no recorded outcome is held until the record says so, ms.
pub const DOOR_SETTLE_MS: u64 = 5_000;
/// Requests with a key at once.
pub const DOOR_WORKS_MAX: usize = 2048;
/// Bytes of requests with a key that are held at once, KiB.
pub const DOOR_SPOOL_KIB_MAX: usize = 512 << 10;
/// Pieces of a streamed answer that wait for its caller.
pub const DOOR_PIECES_MAX: usize = 8;
/// JSON bodies up to this size are read beside each other, bytes; larger ones take turns.
pub const DOOR_TURN_BYTES_MIN: usize = 64 << 10;
/// Open tunnels: connections that were upgraded to another protocol.
pub const DOOR_TUNNELS_MAX: usize = 1024;
/// Connections to the port of a door's metrics.
pub const DOOR_METRICS_CONNECTIONS_MAX: usize = 64;
/// Largest configuration of a door, bytes.
pub const DOOR_CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Bytes that a connection inside this process holds each way.
pub const INSIDE_PIPE_BYTES: usize = 256 << 10;
/// Connections inside this process that wait to be accepted.
pub const INSIDE_BACKLOG: usize = 64;

const _: () = assert!(DOOR_METHOD_BYTES_MAX + 1 + DOOR_OPERATION_PATH_BYTES + 1 + 32 <= OPERATION_BYTES_MAX);
const _: () = assert!(DOOR_OUTCOME_BYTES_MAX_DEFAULT <= OUTCOME_BYTES_MAX as usize && KEY_BYTES_MAX == 255);
const _: () = assert!(DOOR_STORE_ATTEMPT_MS < DOOR_STORE_MS && DOOR_STORE_MS < DOOR_REPORT_MS);
const _: () =
    assert!(DOOR_STREAMS_MAX * HTTP2_STREAM_WINDOW_BYTES as usize <= DOOR_HTTP2_CONNECTION_WINDOW_BYTES as usize);
