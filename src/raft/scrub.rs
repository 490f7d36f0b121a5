//! Reads every byte of the log and of the snapshots, at the start and then again and again, slowly.
//!
//! Damage to the log is found while a member or a backup can still make it good, and not when its bytes are needed. A
//! bad snapshot file is deleted where there is a good one, and `compaction` writes another in its place. The store is not
//! read: it is an index that is rebuilt from these.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::{roster::Peers, running::blocking};
use crate::{
    limits::SCRUB_BYTES_PER_S,
    store::snapshot::{scrub::Which, store::SnapshotStore},
    wal::{Scrubbed, Wal},
};

const LOOK_AFTER_THE_DISK: &str = "look after the disk: what can't be read any more is damage";

/// What scrubbing has come to since the start.
#[derive(Debug, Default)]
pub(super) struct Figures {
    bytes: AtomicU64,
    passes: AtomicU64,
}

/// The same, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubFigures {
    /// Bytes read.
    pub bytes: u64,
    /// Passes that came to their end.
    pub passes: u64,
}

impl Figures {
    pub fn read(&self) -> ScrubFigures {
        ScrubFigures { bytes: self.bytes.load(Ordering::Relaxed), passes: self.passes.load(Ordering::Relaxed) }
    }
}

/// Reads, for as long as the node runs.
pub(super) struct Scrubber {
    pub wal: Wal,
    pub snapshots: Arc<SnapshotStore>,
    /// Who is told of damage: a node alone ends then, a member heals.
    pub peers: Arc<Peers>,
    /// From the beginning of a pass to the next one's, unless it takes longer.
    pub every: Duration,
    pub figures: Arc<Figures>,
}

impl Scrubber {
    pub async fn run(self) {
        // What was read since the start need not be read twice in the first pass.
        let mut which = Which::Unread;
        loop {
            let began = Instant::now();
            if !self.pass(which).await {
                return;
            }
            self.figures.passes.fetch_add(1, Ordering::Relaxed);
            which = Which::All;
            sleep_until(began + self.every).await;
        }
    }

    /// Whether the log is as it was written: there is nothing more to be found where it isn't.
    async fn pass(&self, which: Which) -> bool {
        // The snapshots first: until they are read, the log is not purged on their account.
        let mut snapshots = self.snapshots.scrub(which);
        let mut pace = Pace::new(&self.figures);
        while let (Some(step), left) = blocking(move || (snapshots.next(), snapshots)).await {
            snapshots = left;
            match step {
                Ok(bytes) => pace.rest(bytes).await,
                Err(error) => tracing::error!(%error, "a snapshot file can't be judged"),
            }
        }
        let mut log = self.wal.scrub();
        while let (Some(step), left) = blocking(move || (log.next(), log)).await {
            log = left;
            match step {
                Ok(Scrubbed { bytes, damage: None }) => pace.rest(bytes).await,
                Ok(Scrubbed { damage: Some(damage), .. }) => {
                    self.peers.report(format!("the log is damaged: {damage}"));
                    return false;
                }
                Err(error) => {
                    self.peers.report(format!("the log can't be read: {error}; {LOOK_AFTER_THE_DISK}"));
                    return false;
                }
            }
        }
        true
    }
}

/// Keeps a pass at its rate.
struct Pace<'a> {
    figures: &'a Figures,
    next: Instant,
}

impl<'a> Pace<'a> {
    fn new(figures: &'a Figures) -> Self {
        Self { figures, next: Instant::now() }
    }

    /// Rests until so many bytes more may have been read.
    async fn rest(&mut self, bytes: u64) {
        self.figures.bytes.fetch_add(bytes, Ordering::Relaxed);
        let span = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / SCRUB_BYTES_PER_S);
        // From now at the earliest: time that was lost is not made up for.
        self.next = self.next.max(Instant::now()) + span;
        sleep_until(self.next).await;
    }
}
