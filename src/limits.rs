//! Every number that bounds something, with its unit last. What `apply` uses is written into the replicated state at
//! init from here ([`records`](crate::records) reads the state, never this module).

mod access;
mod console;

pub use access::*;
pub use console::*;

mod backups;
mod client;
mod command_line;
mod door;
mod requests;
mod sealing;

use std::ops::RangeInclusive;

pub use backups::*;
pub use client::*;
pub use command_line::*;
pub use door::*;
pub use requests::*;
pub use sealing::*;

// Identity (shape, judged at the edge).

/// Longest tenant, bytes.
pub const TENANT_BYTES_MAX: usize = 64;
/// Longest principal, bytes.
pub const PRINCIPAL_BYTES_MAX: usize = 128;
/// Longest operation, bytes.
pub const OPERATION_BYTES_MAX: usize = 128;
/// Longest key, bytes.
pub const KEY_BYTES_MAX: usize = 255;

// Requests (shape, judged at the edge).

/// Largest HTTP body and gRPC message, bytes.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Most items of a batch.
pub const BATCH_ITEMS_MAX: usize = 256;
/// Most fingerprints of a claim, each of another scheme.
pub const FINGERPRINTS_MAX: usize = 4;
/// Most labels of a claim.
pub const LABELS_MAX: usize = 16;
/// Longest name of a label, bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 64;
/// Longest value of a label, bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 256;
/// Longest name of a checkpoint, bytes.
pub const CHECKPOINT_NAME_BYTES_MAX: usize = 128;
/// Largest data of a checkpoint that any policy can allow, bytes.
pub const CHECKPOINT_BYTES_MAX: u32 = 16 << 10;
/// Largest decoded outcome body that any policy can allow, bytes: what fits a request in base64.
pub const OUTCOME_BYTES_MAX: u32 = 3 << 20;
/// Most headers of an outcome.
pub const OUTCOME_HEADERS_MAX: usize = 64;
/// Names and values of an outcome's headers together, bytes.
pub const OUTCOME_HEADER_BYTES_MAX: usize = 16 << 10;
/// Longest content type of an outcome, bytes.
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;
/// Longest reason and longest evidence, bytes.
pub const STATEMENT_BYTES_MAX: usize = 1024;
/// Longest actor, bytes.
pub const ACTOR_BYTES_MAX: usize = 128;
/// Page size of a list when none is given.
pub const PAGE_SIZE_DEFAULT: u32 = 100;
/// Largest page of a list; larger ones are clamped.
pub const PAGE_SIZE_MAX: u32 = 1000;
/// Latest time of the wire, s: the end of the year 9999, beyond which RFC 3339 can't write one.
pub const TIME_S_MAX: u64 = 253_402_300_799;
/// Records that one page examines at most before it ends short with a cursor.
pub const PAGE_EXAMINED_MAX: usize = 10_000;

// JSON and fingerprints.

/// Arrays and objects within each other that a JSON value may have.
pub const JSON_DEPTH_MAX: usize = 64;
/// How many more levels a request body may have around a caller's own value: body, items, item, command.
pub const JSON_ENVELOPE_DEPTH: usize = 4;
/// Members of an object that is read field by field. No object of the API has half as many fields.
pub const JSON_FIELDS_MAX: usize = 64;
/// Bytes of an unknown field's name up to which a message shows it and looks for what was meant.
pub const JSON_HINT_NAME_BYTES_MAX: usize = 40;
/// JSON pointers that can be left out of one fingerprint.
pub const FINGERPRINT_IGNORE_MAX: usize = 16;
/// Decimal digits of an integer in canonical JSON.
pub const FINGERPRINT_INTEGER_DIGITS_MAX: usize = 1024;
/// Differences between two requests that are listed.
pub const FINGERPRINT_DIFFERENCES_MAX: usize = 1000;

const _: () = assert!(JSON_FIELDS_MAX <= u64::BITS as usize, "the fields taken are the bits of a u64");

// Policies.

/// Longest lease that a policy can allow, ms.
pub const LEASE_MS_LIMIT: u32 = 30 * 24 * 3600 * 1000;
/// Longest wait that a policy can allow, ms.
pub const WAIT_MS_LIMIT: u32 = 600_000;
/// Longest window that a policy can allow, s.
pub const WINDOW_S_LIMIT: u32 = 20 * 366 * 24 * 3600;
/// Lease when neither claim nor policy names one, ms.
pub const LEASE_MS_DEFAULT: u32 = 30_000;
/// Longest lease under the default policy, ms.
pub const LEASE_MS_MAX_DEFAULT: u32 = 24 * 3600 * 1000;
/// Longest wait under the default policy, ms.
pub const WAIT_MS_MAX_DEFAULT: u32 = 60_000;
/// Replay window under the default policy, s.
pub const REPLAY_S_DEFAULT: u32 = 24 * 3600;
/// Evidence window under the default policy, s.
pub const EVIDENCE_S_DEFAULT: u32 = 30 * 24 * 3600;
/// Longest replay window under the default policy, s.
pub const REPLAY_S_MAX_DEFAULT: u32 = 366 * 24 * 3600;
/// Longest evidence window under the default policy, s.
pub const EVIDENCE_S_MAX_DEFAULT: u32 = 10 * 366 * 24 * 3600;
/// Largest outcome body under the default policy, bytes.
pub const OUTCOME_BYTES_MAX_DEFAULT: u32 = 1 << 20;
/// Indeterminate records of a tenant under the default policy.
pub const INDETERMINATE_MAX_DEFAULT: u64 = 1_000_000;
/// How long after its lease an owner may still send, under the default policy, ms.
pub const EFFECT_MS_MAX_DEFAULT: u32 = 60_000;

// ---- Credentials ----

/// Tokens of a token file.
pub const FILE_TOKENS_MAX: usize = 1000;
/// Shortest token of a token file, bytes.
pub const FILE_TOKEN_BYTES_MIN: usize = 16;
/// Longest token of a token file, bytes.
pub const FILE_TOKEN_BYTES_MAX: usize = 256;
/// Patterns of operations that a credential can have.
pub const OPERATION_PATTERNS_MAX: usize = 32;
/// Tokens of the log that a tenant can have, and the cluster beside its tenants.
pub const TOKENS_PER_TENANT_MAX: u32 = 1000;
/// Tokens of the log at all.
pub const TOKENS_MAX: u32 = 10_000;
/// How long a token is good by default, s.
pub const TOKEN_TTL_S_DEFAULT: u32 = 90 * 24 * 3600;
/// The longest that can be chosen for it, s.
pub const TOKEN_TTL_S_MAX: u32 = 366 * 24 * 3600;
/// How long a token that has ended is kept, ms.
pub const TOKEN_KEPT_MS: u64 = 30 * 24 * 3600 * 1000;
/// How often it is looked for tokens that ended so long ago, s.
pub const TOKENS_LOOKED_S: u64 = 3600;
/// Tokens that are dropped at once.
pub const TOKENS_DROPPED_MAX: usize = 1000;
/// A node that has been out of touch with its leader for so long ends what only listens, ms: it may not have heard that a
/// token was revoked. Touch is lost after `HELLO_FRESH_MS`; both together stay below 5 s.
pub const CUT_OFF_MS: u64 = 1000;
/// How often certificates and the token file are looked at by default, s.
pub const RELOAD_S_DEFAULT: u64 = 10;
/// What can be chosen for it, s.
pub const RELOAD_S: RangeInclusive<u64> = 1..=3600;
/// How old an encrypted connection gets by default, s.
pub const CONNECTION_AGE_S_DEFAULT: u64 = 3600;
/// What can be chosen for it, s.
pub const CONNECTION_AGE_S: RangeInclusive<u64> = 1..=30 * 24 * 3600;
/// From when such a connection takes no more until it is cut, s.
pub const CONNECTION_AGE_GRACE_S: u64 = 30;
/// How long a handshake may take by default, ms.
pub const HANDSHAKE_TIMEOUT_MS_DEFAULT: u64 = 5000;
/// What can be chosen for it, ms.
pub const HANDSHAKE_TIMEOUT_MS: RangeInclusive<u64> = 100..=60_000;
/// Handshakes at once on one port by default.
pub const HANDSHAKES_DEFAULT: u64 = 1024;
/// Longest name of a cluster, bytes.
pub const CLUSTER_NAME_BYTES_MAX: usize = 63;
/// How often the token file is looked at, s.
pub const TOKEN_FILE_RELOAD_S: u64 = 10;

// ---- The configuration of a node ----

/// Between two heartbeats of a leader by default, ms.
pub const HEARTBEAT_MS_DEFAULT: u64 = 200;
/// What can be chosen for it, ms.
pub const HEARTBEAT_MS: RangeInclusive<u64> = 10..=10_000;
/// Shortest time without a leader before an election by default, ms.
pub const ELECTION_MS_MIN_DEFAULT: u64 = 800;
/// Longest time without a leader before an election by default, ms.
pub const ELECTION_MS_MAX_DEFAULT: u64 = 1600;
/// The longest that can be chosen for the shorter of the two, ms.
pub const ELECTION_MS_LIMIT: u64 = 60_000;
/// Size of a segment of the log by default, bytes.
pub const WAL_SEGMENT_BYTES_DEFAULT: u64 = 64 << 20;
/// What can be chosen for it, bytes.
pub const WAL_SEGMENT_BYTES: RangeInclusive<u64> = (1 << 20)..=(1 << 30);
/// Size of the log at which a snapshot is taken by default, bytes.
pub const SNAPSHOT_LOG_BYTES_DEFAULT: u64 = 1 << 30;
/// The smallest that can be chosen for it, bytes.
pub const SNAPSHOT_LOG_BYTES_MIN: u64 = 4 << 20;
/// How long a proposed command is waited for by default, ms.
pub const PROPOSE_TIMEOUT_MS_DEFAULT: u64 = 5000;
/// What can be chosen for it, ms: no call but a waiting one lasts over 10 s.
pub const PROPOSE_TIMEOUT_MS: RangeInclusive<u64> = 100..=10_000;
/// From the beginning of one round of checking the disk to the next one's by default, hours.
pub const SCRUB_HOURS_DEFAULT: u64 = 24;
/// The longest that can be chosen for it, hours.
pub const SCRUB_HOURS_LIMIT: u64 = 366 * 24;
/// Bytes of the disk that a node holds back by default, as so many segments of its log.
pub const DISK_RESERVE_SEGMENTS: u64 = 4;
/// Between two looks how much room the disk has, ms.
pub const SPACE_LOOK_MS: u64 = 200;
/// Between two tries to hand over leadership for want of room, and to write the store anew once there is room, ms.
pub const SPACE_AGAIN_MS: u64 = 5000;
/// Connections of clients by default.
pub const CONNECTIONS_DEFAULT: u64 = 8192;
/// Connections from one address by default.
pub const CONNECTIONS_PER_ADDRESS_DEFAULT: u64 = 2048;
/// How long a connection may be open without a request by default, s.
pub const IDLE_TIMEOUT_S_DEFAULT: u64 = 300;
/// What can be chosen for it, s.
pub const IDLE_TIMEOUT_S: RangeInclusive<u64> = 1..=24 * 3600;
/// Connections that may wait to be accepted. The system may allow fewer.
pub const LISTEN_BACKLOG: u32 = 4096;
/// The most that can be chosen where something is counted.
pub const COUNT_LIMIT: u64 = 1 << 24;
/// Longest address that a member is given, bytes.
pub const ADVERTISED_BYTES_MAX: usize = 256;
/// Longest key of the configuration file that a hint is looked for, bytes.
pub const CONFIG_KEY_BYTES_MAX: usize = 64;

// Consensus.

/// Between two comparisons of cluster time with the members' wall clocks, ms.
pub const TIME_COMPARE_MS: u64 = 1000;
/// How far cluster time may be behind before it jumps instead of running faster, ms.
pub const TIME_JUMP_MS: u64 = 1000;
/// Commands of one log entry.
pub const ENTRY_COMMANDS_MAX: usize = 4096;
/// Bytes of one log entry's commands, one larger command apart.
pub const ENTRY_BYTES_MAX: usize = 4 << 20;
/// Bytes of one command: what still fits the log's largest payload.
pub const COMMAND_BYTES_MAX: usize = 16 << 20;
/// Log entries with commands that are proposed and not applied yet.
pub const PROPOSALS_IN_FLIGHT_MAX: usize = 4;
/// Commands that wait to be proposed, in the lines of all tenants.
pub const PROPOSE_QUEUE_MAX: usize = 65_536;
/// Bytes of the commands that wait to be proposed.
pub const PROPOSE_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Commands on their way into those lines: they are taken in between two entries, and from half of this on at once.
pub const PROPOSE_INTAKE_MAX: usize = 16_384;
/// Bytes of those commands.
pub const PROPOSE_INTAKE_BYTES_MAX: usize = 16 << 20;
/// What one turn of a tenant is worth while another waits, bytes: some hundred claims.
pub const PROPOSE_TURN_BYTES: usize = 64 << 10;
/// Lines beyond which those of tenants that have nothing to propose are dropped.
pub const PROPOSE_LINES_KEPT: usize = 1024;
/// Places that an empty line keeps at most.
pub const PROPOSE_LINE_KEPT: usize = 8192;
/// How long a command waits for a leader before it is refused, ms.
pub const LEADER_WAIT_MS: u64 = 2000;
/// How long a linearizable read waits for its barrier, ms.
pub const READ_BARRIER_MS: u64 = 5000;
/// Readers that wait for the next barrier.
pub const BARRIER_QUEUE_MAX: usize = 65_536;
/// When a refused command or read is worth another try, ms.
pub const RETRY_AFTER_UNAVAILABLE_MS: u64 = 1000;
/// Between two looks of the ticker at what is due, ms.
pub const TICK_MS: u64 = 1000;
/// Bytes of entries that are kept in memory behind the log's end, so that applying and replicating read no disk.
pub const LOG_TAIL_BYTES_MAX: usize = 4 << 20;
/// The same, with what is on the disk and not applied yet.
pub const LOG_TAIL_UNAPPLIED_BYTES_MAX: usize = 64 << 20;
/// Entries that one read of the log hands out.
pub const LOG_READ_ENTRIES_MAX: u64 = 4096;
/// Bytes of entries that one read of the log hands out, the first entry apart.
pub const LOG_READ_BYTES_MAX: usize = 8 << 20;
/// Between two looks at the size of the log, ms.
pub const SNAPSHOT_LOOK_MS: u64 = 1000;
/// Entries below the last applied one that are never purged: what the consensus core has queued but not yet applied must
/// still be in its log: a race of the core otherwise. This is far above what can be queued.
pub const PURGE_MARGIN_ENTRIES: u64 = 128;
/// How many entries of the log a snapshot on its way to a member holds back at most.
pub const PURGE_HELD_ENTRIES_MAX: u64 = 1_000_000;
/// How long consensus waits at its end for what is in flight, ms.
pub const CONSENSUS_STOP_MS: u64 = 3000;

// Between nodes.

/// Largest message between nodes, bytes: a batch of log entries, or one entry of its own.
pub const PEER_MESSAGE_BYTES_MAX: usize = 40 << 20;
/// How long a connection to a member may take to open, ms.
pub const PEER_CONNECT_MS: u64 = 1000;
/// First pause after a connection that failed before the next is tried, ms; doubled each time.
pub const PEER_PAUSE_MS: u64 = 50;
/// Longest such pause, ms: a member that comes back is found within it.
pub const PEER_PAUSE_MS_MAX: u64 = 400;
/// A connection between nodes is asked for a sign of life this often, idle too, ms.
pub const PEER_PING_MS: u64 = 500;
/// How long the sign of life may take, ms. Then the connection is given up, and with it whatever hung on it.
pub const PEER_PING_TIMEOUT_MS: u64 = 1500;
/// Unacknowledged bytes of one stream between nodes.
pub const PEER_STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Unacknowledged bytes of one connection between nodes.
pub const PEER_CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
/// Connections that a node takes from other nodes at once: a few of each member, and those that are dying.
pub const PEER_CONNECTIONS_MAX: usize = 256;
/// Streams of one connection between nodes.
pub const PEER_STREAMS_MAX: u32 = 4096;
/// How long a short question between nodes may take to be answered, ms.
pub const PEER_ANSWER_MS: u64 = 1000;
/// How long a node that is asked to promise itself to a cluster may take, ms: it writes and syncs a file.
pub const PEER_PROMISE_MS: u64 = 5000;
/// How long the next piece of a snapshot may take to come, ms.
pub const PEER_SNAPSHOT_IDLE_MS: u64 = 10_000;
/// Between two rounds in which a node asks every member how it stands, ms.
pub const HELLO_MS: u64 = 1000;
/// What a member's clock showed is believed for so long, ms.
pub const HELLO_FRESH_MS: u64 = 3000;
/// How long a change of the sealing key waits for members to tell that they have it: a node that has just started hears
/// of the others within a hello or two.
pub const KEYS_TOLD_PATIENCE_MS: u64 = 4 * HELLO_MS;
/// How often it looks meanwhile.
pub const KEYS_TOLD_POLL_MS: u64 = 50;
/// What members have acknowledged is noted in the log this often, ms: never more than a second late.
pub const PEER_MARKS_MS: u64 = 500;
/// Between two tries to reach the leader, ms.
pub const FORWARD_PAUSE_MS: u64 = 20;
/// Messages with forwarded commands that may be unanswered at once.
pub const FORWARDS_IN_FLIGHT_MAX: usize = 16;
/// Largest file of a promise, bytes: as many members as there can be, with the longest addresses.
pub const PROMISE_BYTES_MAX: usize = 64 << 10;
/// Longest address of a node, bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Members of a cluster.
pub const MEMBERS_MAX: usize = 32;
/// How long a leader that stops waits for another to take over, ms.
pub const RESIGN_MS: u64 = 2000;
/// How far behind a learner may be to be promoted, entries.
pub const PROMOTE_LAG_MAX: u64 = 1000;
/// A disk that was seen so lately is not replaced unless an operator insists, ms.
pub const REPLACE_SEEN_MS: u64 = 10_000;
/// Between two times that a member is asked to take over, ms.
pub const TRANSFER_AGAIN_MS: u64 = 400;
/// Between two rounds in which a restarted node asks who vouches for it, ms.
pub const VOUCH_MS: u64 = 200;
/// How often a node that nobody vouches for says so, ms.
pub const VOUCH_SAY_MS: u64 = 10_000;
/// How many directories that were put aside are kept, the newest.
pub const QUARANTINES_KEPT: usize = 2;
/// Between two times that a node with a new disk asks to be healed, ms.
pub const HEAL_AGAIN_MS: u64 = 1000;
/// How long one such try may take, ms: a snapshot may have to be sent.
pub const HEAL_MS: u64 = 600_000;
/// How long forming a cluster may take after every node has promised itself, ms.
pub const FORM_MS: u64 = 20_000;

const _: () = assert!(ENTRY_BYTES_MAX + COMMAND_BYTES_MAX + LOG_READ_BYTES_MAX < PEER_MESSAGE_BYTES_MAX);
const _: () = assert!(COMMAND_BYTES_MAX + 64 < WAL_PAYLOAD_BYTES_MAX && SNAPSHOT_PIECE_BYTES < PEER_MESSAGE_BYTES_MAX);
const _: () = assert!(MEMBERS_MAX <= WAL_PEER_MARKS_MAX && HELLO_MS < HELLO_FRESH_MS);

const _: () = assert!(PURGE_MARGIN_ENTRIES > 16 * PROPOSALS_IN_FLIGHT_MAX as u64);
const _: () = assert!(ELECTION_MS_MIN_DEFAULT > 3 * HEARTBEAT_MS_DEFAULT);

// Replicated at init: what `apply` uses.

/// Records that one sweep writes down at most.
pub const SWEPT_PER_ENTRY_MAX: u32 = 1024;
/// Shortest lease, ms; shorter ones are raised.
pub const LEASE_MS_MIN: u32 = 100;
/// Shortest `retry_after_ms` of an answer.
pub const RETRY_AFTER_MS_MIN: u32 = 1000;
/// `retry_after_ms` of an indeterminate record without a time to check again.
pub const RETRY_AFTER_MS_INDETERMINATE: u32 = 60_000;
/// Longest `retry_after_ms` of an indeterminate record.
pub const RETRY_AFTER_MS_MAX: u32 = 3_600_000;
/// Rows of a record's history; beyond it the oldest that may go are evicted or folded.
pub const HISTORY_ROWS_MAX: u8 = 64;
/// Verdicts of a record whose first answer is kept for a repeated request id.
pub const RESOLVES_KEPT: u8 = 8;
/// Largest sealed body that is stored inside its head, bytes.
pub const INLINE_BODY_BYTES_MAX: u32 = 1024;
/// Tenants of a cluster.
pub const TENANTS_MAX: u32 = 100_000;
/// Policies of a tenant's operations.
pub const POLICIES_PER_TENANT_MAX: u32 = 1000;
/// How long rows of the audit chains are kept, s.
pub const AUDIT_S: u32 = 400 * 24 * 3600;
/// Skew of clients' clocks that a restore allows for, ms.
pub const GAP_SKEW_MS: u32 = 60_000;
/// How far a restore's first position must be above the backup's.
pub const RESTORE_POSITION_GAP: u64 = 1 << 20;
/// A restore's first position is its Unix time in ms times this.
pub const RESTORE_POSITIONS_PER_MS: u64 = 1 << 20;

const _: () = assert!(LEASE_MS_MIN <= LEASE_MS_DEFAULT && LEASE_MS_DEFAULT <= LEASE_MS_MAX_DEFAULT);
const _: () = assert!(LEASE_MS_MAX_DEFAULT <= LEASE_MS_LIMIT && WAIT_MS_MAX_DEFAULT <= WAIT_MS_LIMIT);
const _: () = assert!(REPLAY_S_DEFAULT <= EVIDENCE_S_DEFAULT && REPLAY_S_MAX_DEFAULT <= EVIDENCE_S_MAX_DEFAULT);
const _: () = assert!(EVIDENCE_S_MAX_DEFAULT <= WINDOW_S_LIMIT);
const _: () =
    assert!(OUTCOME_BYTES_MAX_DEFAULT <= OUTCOME_BYTES_MAX && (OUTCOME_BYTES_MAX as usize) < REQUEST_BYTES_MAX);
const _: () =
    assert!(RETRY_AFTER_MS_MIN <= RETRY_AFTER_MS_INDETERMINATE && RETRY_AFTER_MS_INDETERMINATE <= RETRY_AFTER_MS_MAX);

// Disk.

/// Zeros written at a time when a file is filled ahead of use, bytes.
pub const DISK_ZERO_CHUNK_BYTES: usize = 1 << 20;

// The log.

/// Fewest bytes of a segment.
pub const WAL_SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Largest payload of a frame, bytes: no length above it is believed. A segment grows for one that doesn't fit.
pub const WAL_PAYLOAD_BYTES_MAX: usize = 32 << 20;
/// Largest payload of what every segment repeats at its head (vote, purge, each peer mark), bytes.
pub const WAL_REPEATED_BYTES_MAX: usize = 1 << 10;
/// Most peers whose marks are kept.
pub const WAL_PEER_MARKS_MAX: usize = 64;
/// Most calls that wait for the writer; a call beyond them is refused.
pub const WAL_QUEUE_CALLS_MAX: usize = 1 << 16;
/// Bytes of payload that wait for the writer before further calls are refused.
pub const WAL_QUEUE_BYTES_MAX: u64 = 32 << 20;
/// Bytes that one write takes before it's synced; one larger frame is written alone.
pub const WAL_BATCH_BYTES_MAX: usize = 4 << 20;
/// Looks of the log's writer for the next call after a batch, before it falls asleep: about 20 µs on an idle processor.
pub const WAL_LOOKS_BEFORE_SLEEP: u32 = 50;
/// Time without new calls after which the writer seals what it acknowledged last. Half of what the format promises:
/// the sync needs the rest.
pub const WAL_SEAL_AFTER: std::time::Duration = std::time::Duration::from_millis(5);
/// Bytes of frames from one remembered place to the next: what a read passes over at most.
pub const WAL_POINT_BYTES: u64 = 64 << 10;
/// Bytes that the scrub reads between two rests.
pub const SCRUB_STEP_BYTES: u64 = 1 << 20;
/// Bytes that the scrub reads a second, about: little beside what a disk can do, and 100 GiB in under an hour.
pub const SCRUB_BYTES_PER_S: u64 = 32 << 20;
/// Bytes read from a segment at a time.
pub const WAL_READ_CHUNK_BYTES: usize = 1 << 20;
/// Between two looks for room for the next segment, while there is none.
pub const WAL_ROOM_AGAIN: std::time::Duration = std::time::Duration::from_millis(250);
/// This part of a segment is kept for votes and memberships while there is no room for the next one.
pub const WAL_ROOM_KEPT: u64 = 16;
/// Segments without entries that wait to be used again; others are removed.
pub const WAL_RETIRED_MAX: usize = 2;
/// Copies of torn tails that are kept; older ones are removed.
pub const WAL_TORN_COPIES_MAX: usize = 8;

const _: () = assert!(WAL_SEGMENT_BYTES_MIN <= WAL_SEGMENT_BYTES_DEFAULT);
const _: () = assert!(WAL_REPEATED_BYTES_MAX * 2 * (WAL_PEER_MARKS_MAX + 2) <= WAL_SEGMENT_BYTES_MIN as usize);
const _: () = assert!(WAL_PAYLOAD_BYTES_MAX < u32::MAX as usize / 2);

// ---- The store's engines ----

/// Rows an engine without read views of its own hands over under one lock.
pub const STORE_SCAN_PAGE_ROWS: usize = 256;

/// Bytes after which such a page ends, however few its rows.
pub const STORE_SCAN_PAGE_BYTES: usize = 1 << 20;
/// fjall: blocks kept in memory. With the memtables, this is what the engine takes: 64 MiB at most.
pub const FJALL_CACHE_BYTES: u64 = 16 << 20;
/// fjall: bytes of one memtable.
pub const FJALL_MEMTABLE_BYTES: u64 = 8 << 20;
/// fjall: memtables there can be at once. It stops writers at four that wait to be written, and one is being filled.
pub const FJALL_MEMTABLES_MAX: u64 = 5;
/// fjall: bytes of journals, beyond which it writes memtables out early.
pub const FJALL_JOURNAL_BYTES: u64 = 128 << 20;
/// fjall: files held open.
pub const FJALL_OPEN_FILES: usize = 256;
/// fjall: threads that write memtables out and merge tables. A second one spins while the other merges.
pub const FJALL_WORKER_THREADS: usize = 1;
/// sled: pages kept in memory.
pub const SLED_CACHE_BYTES: u64 = 32 << 20;
/// sled: overwritten values remembered for one read view; beyond it, writers wait for the reader.
pub const SLED_VIEW_BYTES: usize = 16 << 20;
/// sled: bytes of one batch of a bulk load.
pub const SLED_LOAD_BATCH_BYTES: usize = 256 << 10;
/// sled: changes for each round in which replaced pages are freed after a batch. A round frees up to 512 pages.
pub const SLED_CHANGES_PER_COLLECTION: usize = 128;
/// sled: such rounds after any batch; a page is freed in the third round after it was replaced.
pub const SLED_COLLECTIONS_MIN: usize = 3;
/// sled: how often its lock is asked for before the files count as another process's.
pub const SLED_LOCK_TRIES: u32 = 200;
/// sled: free bytes for each byte of a batch, without which it is not written: whole pages are.
pub const SLED_ROOM_FACTOR: u64 = 4;
/// sled: free bytes beside them, of its segments and of what is logged meanwhile.
pub const SLED_ROOM_BYTES: u64 = 4 << 20;
/// sled: the pause between two such tries.
pub const SLED_LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);

const _: () = assert!(FJALL_CACHE_BYTES + FJALL_MEMTABLES_MAX * FJALL_MEMTABLE_BYTES <= 64 << 20);
const _: () = assert!(SLED_CACHE_BYTES + SLED_VIEW_BYTES as u64 <= 64 << 20);

// ---- The overlay over the engine ----

/// Size of the overlay's active layer at which it is flushed, bytes.
pub const OVERLAY_FLUSH_BYTES: usize = 4 << 20;
/// Age of changes at which they are flushed, ms.
pub const OVERLAY_FLUSH_MS: u64 = 1000;
/// Size of what is not flushed yet at which proposals wait, bytes.
pub const OVERLAY_BYTES_MAX: usize = 48 << 20;
/// Records that are remembered to stand nowhere, so that a claim is looked for once.
pub const OVERLAY_ABSENT_MAX: usize = 16_384;

// ---- Snapshot files ----

/// Rows are gathered into chunks of about so many bytes, each with a checksum of its own.
pub const SNAPSHOT_CHUNK_BYTES: usize = 1 << 20;
/// Longest key of a row, bytes: its length has two bytes.
pub const SNAPSHOT_KEY_BYTES_MAX: usize = u16::MAX as usize;
/// Largest row, bytes: lengths, key and value.
pub const SNAPSHOT_ROW_BYTES_MAX: usize = 16 << 20;
/// Largest content of a frame, bytes: a chunk is ended by the row that reaches its size.
pub const SNAPSHOT_FRAME_BYTES_MAX: usize = SNAPSHOT_CHUNK_BYTES + SNAPSHOT_ROW_BYTES_MAX;
/// Longest encoded log id, bytes.
pub const SNAPSHOT_LOG_ID_BYTES_MAX: usize = 256;
/// Largest encoded membership, bytes.
pub const SNAPSHOT_MEMBERSHIP_BYTES_MAX: usize = 64 << 10;
/// A file travels to a peer in pieces of at most so many bytes.
pub const SNAPSHOT_PIECE_BYTES: usize = 1 << 20;
/// Good files kept, and how many there must be before the log forgets what the older one holds.
pub const SNAPSHOTS_KEPT: usize = 2;

const _: () = assert!(SNAPSHOT_ROW_BYTES_MAX > 2 * OUTCOME_BYTES_MAX as usize + CHECKPOINT_BYTES_MAX as usize);
const _: () = assert!(SNAPSHOT_LOG_ID_BYTES_MAX + SNAPSHOT_MEMBERSHIP_BYTES_MAX + 1024 < SNAPSHOT_FRAME_BYTES_MAX);

// ---- The service ----

/// Claims that wait at once on a node.
pub const WAITERS_MAX: usize = 50_000;
/// Claims of one tenant that wait at once on a node.
pub const TENANT_WAITERS_MAX: usize = 20_000;
/// When a claim that found no place to wait should come back, ms.
pub const WAITERS_RETRY_AFTER_MS: u64 = 1000;
/// Shortest pause of a waiter before a lapse that it expects, ms.
pub const LAPSE_POLL_MS_MIN: u64 = 1;
/// Longest pause of a waiter before a lapse that it expects, ms: cluster time may run faster than this node's clock.
pub const LAPSE_POLL_MS_MAX: u64 = 1000;
/// Pause of a waiting claim while nobody leads, ms.
pub const LEADERLESS_PAUSE_MS: u64 = 100;
/// How long ago a node may have heard the leader's time to go on from it by its own clock, ms.
pub const LEADER_TIME_MS_MAX: u64 = 1000;
/// Limiters of claims that a node keeps; beyond it they start afresh.
pub const RATES_KEPT_MAX: usize = 10_000;
/// Changes of indeterminate records that watchers can resume from.
pub const WATCH_CHANGES_KEPT: usize = 16_384;
/// Records in one message of a watch.
pub const WATCH_PAGE_RECORDS: usize = 256;

// ---- The node ----

/// How long a node's log and store may take to close before the process ends all the same, ms.
pub const NODE_CLOSE_MS: u64 = 4000;
/// Between two tries to finish the forming of a cluster that was broken off, ms.
pub const FORM_AGAIN_MS: u64 = 200;
/// How long a node may take to stop altogether before its process ends all the same, ms.
pub const NODE_STOP_MS: u64 = 9000;
/// Tenants whose oldest indeterminate record a look at the metrics asks for.
pub const OLDEST_TENANTS_EXAMINED: usize = 1000;

/// How long one request to change the members may take, ms: what takes longer is asked for again.
pub const MEMBER_CHANGE_MS: u64 = 10_000;
/// How long it is tried to have what was done stand in the audit chain, ms.
pub const NOTE_MS: u64 = 5000;
/// How long a node may take to find out whether it is ready, ms.
pub const READY_MS: u64 = 2500;

// ---- Doors ----

/// Commands of a session that wait for their answers; more are not read before some are answered.
pub const SESSION_UNANSWERED_MAX: usize = 8192;
/// Answers in one frame of a session.
pub const SESSION_FRAME_ITEMS_MAX: usize = 256;
/// A frame of answers takes no further one beyond this, bytes: whoever reads it must hold it whole.
pub const SESSION_FRAME_BYTES_MAX: usize = 4 << 20;
/// Frames of a session that its client has not taken yet.
pub const SESSION_FRAMES_MAX: usize = 16;
/// How often the credential behind an open stream is looked at again, ms.
pub const STREAM_JUDGED_MS: u64 = 500;
/// A JSON document up to this size is parsed at once, bytes.
pub const PARSED_FREELY_BYTES_MAX: usize = 16 << 10;
/// Bytes of larger JSON documents that are parsed at once. A document of a million zeros takes 24 times its size for a
/// moment; with this bound all of them together take less than 160 MiB.
pub const PARSED_AT_ONCE_BYTES_MAX: usize = 6 << 20;
/// How long a refused body may go on arriving, ms.
pub const LINGER_MS: u64 = 2_000;
/// How much of a refused body may go on arriving, bytes.
pub const LINGER_BYTES_MAX: usize = 64 << 20;
/// How often a watch says that it is alive, s.
pub const WATCH_KEEP_ALIVE_S: u64 = 15;
/// Pause after a connection could not be accepted, ms.
pub const ACCEPT_PAUSE_MS: u64 = 50;
/// How long what runs may take to finish once the node stops, ms.
pub const DRAIN_MS: u64 = 4_000;
/// How often an HTTP/2 connection is asked whether it is alive, s.
pub const HTTP2_PING_S: u64 = 30;
/// How long it may take to say so, s.
pub const HTTP2_PING_TIMEOUT_S: u64 = 20;
/// Unacknowledged bytes of an HTTP/2 stream.
pub const HTTP2_STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Unacknowledged bytes of an HTTP/2 connection.
pub const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

const _: () = assert!(REQUEST_BYTES_MAX <= PARSED_AT_ONCE_BYTES_MAX, "the largest document has a turn");
// Whoever listens or waits on a node that is cut off is told within 5 s.
const _: () = assert!(HELLO_FRESH_MS + TOUCH_LOOK_MS + CUT_OFF_MS + STREAM_JUDGED_MS < 5000);
