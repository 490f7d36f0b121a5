//! Bounds of sealing.

/// Largest key file, and the most that a key command may print, bytes.
pub const KEY_FILE_BYTES_MAX: usize = 64 << 10;
/// How long a key command may take, s.
pub const KEY_COMMAND_S: u64 = 30;
/// How often a key command is looked at, ms.
pub const KEY_COMMAND_POLL_MS: u64 = 10;
/// Largest `seal.json`, bytes.
pub const SEAL_NOTE_BYTES_MAX: usize = 64 << 10;
/// Tenants whose opened keys are remembered.
pub const CIPHERS_KEPT_MAX: usize = 4096;
/// Tenants whose index keys are remembered, ready to hash with.
pub const NAMES_KEPT_MAX: usize = 100_000;
/// How often a node looks whether something is left on its disk of keys that were destroyed, ms.
pub const ERASE_LOOKED_MS: u64 = 500;
/// Between two looks at whether others, or the disk, have come as far as the erasing waits for, ms.
pub const ERASE_WAIT_MS: u64 = 50;
/// How long erasing waits for entries or a purge before it begins anew, ms.
pub const ERASE_TRY_MS: u64 = 30_000;
/// Empty entries that a leader logs at once for members that still have to erase: their logs are purged only far below
/// what is applied.
pub const ERASE_TICKS: usize = 16;
/// Largest file that says how far a node has erased, bytes.
pub const ERASED_BYTES_MAX: usize = 4096;
/// Root keys that one command wraps anew.
pub const REWRAPPED_MAX: usize = 256;
/// Data keys that a tenant may have at once: one seals, the others wait until nothing is sealed by them any more.
pub const DATA_KEYS_MAX: u32 = 16;
/// How often a leader looks whether keys are to be replaced or destroyed, ms.
pub const KEYS_LOOKED_MS: u64 = 500;
/// Records that are looked at in one step of resealing, for what may be sealed by an older key.
pub const RESEALED_STEP: usize = 256;
/// Bytes of new fields that one step of resealing proposes.
pub const RESEALED_BYTES_MAX: usize = 1 << 20;
/// After a whole look that has left something sealed by an older key (rows of the audit chain, which can't be sealed anew), the
/// next one begins so much later, s.
pub const RESEAL_AGAIN_S: u64 = 3600;
/// The same, where something was changed while it was looked at, s.
pub const RESEAL_LEFT_S: u64 = 2;
/// How often a node that lacks a sealing key looks whether it leads, ms.
pub const LOCKED_LOOKED_MS: u64 = 500;
