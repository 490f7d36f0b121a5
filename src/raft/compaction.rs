//! When a snapshot is taken, and what of the log may then be purged. The consensus core's own policies for both are off.
//!
//! A snapshot is taken when the log since the last one is larger than a limit and larger than that snapshot, so that its
//! cost stays in proportion to what was written. The log is purged only up to the older of two verified snapshots, and
//! never close to what is being applied.

use std::{io, sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::sync::Mutex;

use super::{
    roster::Holds,
    running::blocking,
    state_machine::{StateMachine, applied},
    types::{LogId, Raft},
};
use crate::limits;

/// Takes snapshots and purges.
pub(super) struct Compaction {
    raft: Raft,
    state: StateMachine,
    log_bytes_max: u64,
    holds: Arc<Holds>,
    /// Held while a snapshot is taken: one at a time.
    taking: Mutex<()>,
}

impl Compaction {
    pub fn new(raft: Raft, state: StateMachine, log_bytes_max: u64, holds: Arc<Holds>) -> Arc<Self> {
        Arc::new(Self { raft, state, log_bytes_max, holds, taking: Mutex::new(()) })
    }

    /// Takes snapshots as the log grows, and in place of lost ones, for good.
    pub async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(Duration::from_millis(limits::SNAPSHOT_LOOK_MS)).await;
            if self.state.snapshots.is_one_lost()
                && let Err(error) = self.replace_lost().await
            {
                tracing::error!(%error, "a snapshot could not be taken in place of a lost one");
            }
            if self.state.progress.since_snapshot() <= self.threshold() {
                continue;
            }
            // What can't be written is the end of the core, whose watcher says so.
            if let Err(error) = self.take().await {
                tracing::error!(%error, "a snapshot could not be taken");
            }
        }
    }

    fn threshold(&self) -> u64 {
        let last = self.state.snapshots.newest_verified().ok().flatten();
        self.log_bytes_max.max(last.map_or(0, |snapshot| snapshot.bytes))
    }

    /// Takes a snapshot of what is applied now, at least, and purges as the rule allows. Answers how far it reaches.
    pub async fn take(&self) -> io::Result<LogId> {
        let _alone = self.taking.lock().await;
        let bytes = self.state.progress.since_snapshot();
        let Some(wanted) = applied(&self.state.records.mark()) else {
            return Err(io::Error::other("nothing was applied yet"));
        };
        let mut metrics = self.raft.metrics();
        // Where the newest one reaches as far already, the core is not bothered: what it is told waits in front of commands.
        if metrics.borrow_watched().snapshot < Some(wanted) {
            self.raft.trigger().snapshot().await.map_err(io::Error::other)?;
        }
        let taken = loop {
            let seen = {
                let metrics = metrics.borrow_watched();
                metrics.running_state.clone().map_err(io::Error::other)?;
                metrics.snapshot
            };
            match seen {
                Some(taken) if taken >= wanted => break taken,
                _ => {}
            }
            let looked = Duration::from_millis(limits::SNAPSHOT_LOOK_MS);
            match tokio::time::timeout(looked, metrics.changed()).await {
                Ok(changed) => changed.map_err(|_| io::Error::other("consensus has stopped"))?,
                // One that was being taken already may not reach far enough.
                Err(_) => self.raft.trigger().snapshot().await.map_err(io::Error::other)?,
            }
        };
        self.state.progress.snapshot_taken(bytes);
        self.purge().await?;
        Ok(taken)
    }

    /// Writes a snapshot in place of one that was found bad: from the state, which the log has made, and not from the file.
    /// Where the newest good one reaches as far as the state, a second one of the same is of no use: it waits.
    async fn replace_lost(&self) -> io::Result<()> {
        let _alone = self.taking.lock().await;
        let state = self.state.clone();
        let written = blocking(move || {
            let newest = state.snapshots.newest_verified().map_err(io::Error::other)?;
            let applied = applied(&state.records.mark()).map(|id| id.index);
            if applied.is_none() || newest.is_some_and(|newest| Some(newest.meta.index) >= applied) {
                return Ok(None);
            }
            state.write_snapshot().map(Some)
        });
        if let Some(written) = written.await? {
            tracing::warn!(last = ?written.meta.last_log_id, "a snapshot was taken in place of a lost one");
        }
        Ok(())
    }

    /// Purges what two verified snapshots hold, but for a margin below what is applied (see [`limits::PURGE_MARGIN_ENTRIES`]).
    async fn purge(&self) -> io::Result<()> {
        let older = self.state.snapshots.older_verified_index();
        let applied = self.state.progress.applied();
        let (Some(older), Some(applied)) = (older, applied) else { return Ok(()) };
        let Some(far) = applied.checked_sub(limits::PURGE_MARGIN_ENTRIES) else { return Ok(()) };
        // A snapshot on its way to a member is worth nothing without the log behind it. Not for ever: a member so slow that
        // several snapshots are taken meanwhile gets the newest one next.
        let held = self.holds.lowest().filter(|held| held + limits::PURGE_HELD_ENTRIES_MAX > far);
        let upto = older.min(far).min(held.unwrap_or(u64::MAX));
        self.raft.trigger().purge_log(upto).await.map_err(io::Error::other)
    }
}
