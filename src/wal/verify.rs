//! A stopped node's log, read to its last byte.

use std::path::Path;
use std::sync::Arc;

use super::error::{Damage, WalError};
use super::recovery::{self, Mending, is_torn};
use super::scrub::Scrub;
use super::segment::Identity;
use super::tape::Tape;
use crate::disk::{Disk, Mode};

/// What a whole log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Whose log it is.
    pub identity: Identity,
    /// Segments in use.
    pub segments: u64,
    /// Bytes of them that were read.
    pub bytes: u64,
    /// The first entry there is, if `first < next`.
    pub first: u64,
    /// One above the last entry.
    pub next: u64,
    /// Where the newest segment's frames end, if a torn tail lies behind them: the next start copies it aside and cuts it.
    pub torn_at: Option<u64>,
}

/// Reads every byte of the log in `dir` that was ever acknowledged. Changes nothing. The log must not be in use.
///
/// # Errors
/// [`WalError::Damaged`] with every damage found, where the start of a node would refuse it or a read of it would find it;
/// [`WalError::NotCreated`] where there is no log; whatever the disk says.
pub fn verify(disk: &dyn Disk, dir: &Path) -> Result<Verified, WalError> {
    let not_created = || WalError::NotCreated(dir.to_owned());
    let identity = recovery::identity(disk, dir)?.ok_or_else(not_created)?;
    let survey = recovery::survey(disk, dir, &identity, Mode::Read)?;
    if survey.used.is_empty() {
        return Err(not_created());
    }
    let (replay, newest) = recovery::replay(disk, dir, survey.used, Mending::Leave)?;
    let extracts = replay.map.extracts();
    let segments = extracts.len() as u64;
    let (mut bytes, mut damages) = (0, Vec::<Damage>::new());
    for step in Scrub::new(extracts) {
        let step = step?;
        bytes += step.bytes;
        damages.extend(step.damage);
    }
    if !damages.is_empty() {
        return Err(WalError::Damaged(Arc::new(damages)));
    }
    let segment = &newest.segment;
    let behind = Tape::new(&*segment.file, segment.bytes()).behind(newest.end, segment.header.salt)?;
    let torn = !newest.sealed && is_torn(segment, newest.end, &behind);
    let bounds = replay.map.bounds;
    let torn_at = torn.then_some(newest.end);
    Ok(Verified { identity, segments, bytes, first: bounds.first, next: bounds.next, torn_at })
}
