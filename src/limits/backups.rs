//! Bounds of backups, of their way into and out of a node, and of dumps.

/// Bytes of a part of a backup, the last one apart.
pub const BACKUP_PART_BYTES: u64 = 64 << 20;
/// Parts of a backup: 6.4 TB.
pub const BACKUP_PARTS_MAX: usize = 100_000;
/// Largest manifest of a backup, bytes.
pub const BACKUP_MANIFEST_BYTES_MAX: u64 = 32 << 20;
/// Largest key ring file, bytes.
pub const KEY_RING_BYTES_MAX: u64 = 64 << 20;
/// How long a node keeps a backup that nobody fetches, ms.
pub const BACKUP_KEPT_MS: u64 = 600_000;
/// How long a backup that nobody fetches keeps others from being made, ms.
pub const BACKUP_BUSY_MS: u64 = 30_000;
/// How long a request waits for a backup that is being written, ms: then it is told how far it is.
pub const BACKUP_WAIT_MS: u64 = 2000;
/// From one look whether all that a backup is to hold is durable here to the next, ms.
pub const BACKUP_LOOK_MS: u64 = 10;
/// Pieces of a backup that wait for the connection.
pub const BACKUP_PIECES_MAX: usize = 2;
/// How long a quorum of a restored cluster may take to have its state, before the call that restored it stops waiting, ms.
pub const RESTORE_SETTLED_MS: u64 = 4 * 3_600_000;
/// Longest description in front of a backup that is streamed into a node, bytes.
pub const RESTORE_HEAD_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(BACKUP_PARTS_MAX <= 1_000_000, "the number of a part has six digits");
/// What an entry of a stopped node's log adds to a state, guessed, bytes: where a dump decides between memory and disk.
pub const REPLAYED_ENTRY_BYTES: u64 = 1 << 10;
/// Size up to which a state that is dumped is built in memory, bytes.
pub const DUMP_MEMORY_BYTES: u64 = 64 << 20;
