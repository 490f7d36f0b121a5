//! The command line, and several nodes on one machine.

/// How long a change of a cluster is waited for when nothing else is said, ms.
pub const CLUSTER_CHANGE_MS: u32 = 30_000;
/// The same where a node has to catch up first, ms.
pub const CLUSTER_CATCH_UP_MS: u32 = 60_000;

/// Nodes of `semel dev`.
pub const DEV_NODES_MAX: u64 = 9;
/// Size of a segment of the log of one of several nodes of `semel dev`, bytes.
pub const DEV_WAL_SEGMENT_BYTES: u64 = 4 << 20;
/// Between the first port of one node and that of the next.
pub const DEV_PORTS_PER_NODE: u64 = 10;
/// Pause before a node that died is started again, ms; doubled each time.
pub const DEV_RESPAWN_MS: u64 = 500;
/// The longest such pause, ms.
pub const DEV_RESPAWN_MS_MAX: u64 = 10_000;
/// How long nodes may take to end when they are told to, ms.
pub const DEV_STOP_MS: u64 = 8500;
/// How long nodes may take to be gone when they are ended, ms.
pub const DEV_KILL_MS: u64 = 1000;
/// Between two looks at the nodes, ms.
pub const DEV_LOOK_MS: u64 = 250;
/// How long a node may take to answer such a look, ms.
pub const DEV_ANSWER_MS: u64 = 2000;
/// Things seen that wait to be told.
pub const DEV_EVENTS_MAX: usize = 64;
/// A line that a node says is cut at so many bytes.
pub const DEV_LINE_BYTES_MAX: u64 = 16 << 10;
/// Callers of `semel bench` at once.
pub const BENCH_CALLERS_MAX: u32 = 10_000;
/// When a record that a verdict leaves unknown is to be looked at again, where nobody says, ms.
pub const CHECK_AGAIN_MS: u64 = 3_600_000;

const _: () = assert!(DEV_STOP_MS + DEV_KILL_MS < 10_000, "all of them end within 10 s");
/// How often a data directory is tried to be taken that another process has: 3 s in all, for one that was killed and whose
/// last call to the disk isn't over.
pub const DIRECTORY_LOCK_TRIES: u32 = 61;
/// Between two such tries, ms.
pub const DIRECTORY_LOCK_PAUSE_MS: u64 = 50;
