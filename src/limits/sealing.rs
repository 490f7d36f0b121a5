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
/// How often a node that lacks a sealing key looks whether it leads, ms.
pub const LOCKED_LOOKED_MS: u64 = 500;
