//! A stopped node's log, read and left as it lies.

use std::{ops::Range, path::Path};

use parking_lot::RwLock;

use super::{
    Recovered, WalEntry, WalError,
    handle::recovered,
    map::Map,
    recovery::{self, Mending},
    segment::Identity,
};
use crate::disk::{Disk, Mode};

/// A log that nobody appends to. Nothing of it is written, moved or removed: a torn tail stays where it is and counts for
/// nothing.
pub struct WalView {
    map: RwLock<Map>,
    recovered: Recovered,
}

impl WalView {
    /// Looks at the log in `dir`. Its node must be stopped.
    ///
    /// # Errors
    /// Those of [`Wal::open`](super::Wal::open).
    pub fn open(disk: &dyn Disk, dir: &Path, identity: Identity) -> Result<Self, WalError> {
        let survey = recovery::survey(disk, dir, &identity, Mode::Read)?;
        if survey.used.is_empty() {
            return Err(WalError::NotCreated(dir.to_owned()));
        }
        let (replay, newest) = recovery::replay(disk, dir, survey.used, Mending::Leave)?;
        let recovered = recovered(&replay, &newest, identity);
        Ok(Self { map: RwLock::new(replay.map), recovered })
    }

    /// What the log holds.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Entries, as [`Wal::read`](super::Wal::read) gives them.
    ///
    /// # Errors
    /// Those of [`Wal::read`](super::Wal::read).
    pub fn read(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<WalEntry>, WalError> {
        super::read::read(&self.map, range, bytes_max)
    }
}
