//! How much room is left for the data directory, measured against a reserve.
//!
//! A write that fails for want of room is as final for its file as any other: so room is looked for before anything is
//! written that needs it, and what can be put off is put off while there is little. The reserve is what is left then for
//! what can't be: votes, memberships, the entries of a leader that has room.

use std::{
    error::Error,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use super::Disk;

pub(super) fn is_of_full_disk(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Whether an error, or what caused it, is that the disk was full.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // A shared error of the operating system is an error of its own kind.
        let io = error.downcast_ref::<io::Error>();
        let io = io.or_else(|| error.downcast_ref::<Arc<io::Error>>().map(|shared| &**shared));
        if io.is_some_and(|io| is_of_full_disk(io.kind())) {
            return true;
        }
        // What an `io::Error` was made of is not its source, but it itself.
        cause = match io.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

/// The room that is left for one directory. Shared by all who write below it.
pub struct Space {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    reserve: u64,
    free: AtomicU64,
    is_short: AtomicBool,
    was_short: AtomicBool,
}

impl Space {
    /// The room of `dir`, of which `reserve` bytes are held back. Not looked at yet.
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, reserve: u64) -> Self {
        let free = AtomicU64::new(u64::MAX);
        Self {
            disk,
            dir: dir.to_owned(),
            reserve,
            free,
            is_short: AtomicBool::new(false),
            was_short: AtomicBool::new(false),
        }
    }

    /// Looks how much is free. Blocks on the disk. Answers whether that is less than the reserve; and once it was, whether
    /// it is not a good deal more again: what is only just enough would be too little at once.
    pub fn look(&self) -> bool {
        let free = match self.disk.free_bytes(&self.dir) {
            Ok(free) => free,
            Err(error) => {
                // What was found before is as good a guess as any.
                tracing::warn!(%error, "nobody knows how much room the disk has");
                return self.is_short();
            }
        };
        self.free.store(free, Ordering::Relaxed);
        let enough = if self.is_short() { self.reserve.saturating_add(self.reserve / 4) } else { self.reserve };
        self.is_short.store(free < enough, Ordering::Relaxed);
        self.was_short.fetch_or(free < enough, Ordering::Relaxed);
        free < enough
    }

    /// Looks, and answers whether so many bytes fit and leave half of the reserve.
    pub fn fits(&self, bytes: u64) -> bool {
        self.look();
        self.free() >= bytes.saturating_add(self.reserve / 2)
    }

    /// Whether less than the reserve was free when somebody looked last.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Whether somebody who looked has found less than the reserve, ever or since that was [forgotten](Space::forget).
    pub fn was_short(&self) -> bool {
        self.was_short.load(Ordering::Relaxed)
    }

    /// Forgets that it was short before.
    pub fn forget(&self) {
        self.was_short.store(self.is_short(), Ordering::Relaxed);
    }

    /// Bytes that were free when somebody looked last.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Bytes that are held back.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }
}
