//! When a snapshot is taken, and what of the log may then be purged. The consensus core's own policies for both are off.
//!
//! A snapshot is taken when the log since the last one is larger than a limit and larger than that snapshot, so that its
//! cost stays in proportion to what was written. The log is purged only up to the older of two verified snapshots, and
//! never close to what is being applied.
//!
//! A snapshot for which the disk has no room is written later: nothing hangs on when it is. So it is written here, and the
//! core, for which an error is the end, only hears of one that is there.

use std::{io, sync::Arc, time::Duration};

use openraft::async_runtime::WatchReceiver;
use tokio::sync::Mutex;

use super::{
    roster::Holds,
    running::blocking,
    state_machine::{CoreSnapshot, StateMachine, applied},
    types::{LogId, Raft},
};
use crate::{fatal, limits};

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
        let mut was_put_off = false;
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
            let (state, least) = (self.state.clone(), self.least_bytes());
            if !blocking(move || state.space.fits(least)).await {
                was_put_off = self.put_off(was_put_off);
                continue;
            }
            match self.take().await {
                Ok(_) => was_put_off = false,
                Err(error) if self.state.records.is_for_room(&error) => {
                    was_put_off = self.put_off(was_put_off);
                    tokio::time::sleep(Duration::from_millis(limits::SPACE_AGAIN_MS)).await;
                }
                Err(error) => tracing::error!(%error, "a snapshot could not be taken"),
            }
        }
    }

    fn put_off(&self, was_put_off: bool) -> bool {
        if !was_put_off {
            tracing::warn!("the disk has no room for a snapshot: it is put off");
        }
        true
    }

    /// What the next snapshot takes, by what the last one took and what has been written since.
    fn least_bytes(&self) -> u64 {
        let last = self.state.snapshots.newest_verified().ok().flatten();
        self.state.progress.since_snapshot().max(last.map_or(0, |snapshot| snapshot.bytes))
    }

    fn threshold(&self) -> u64 {
        let last = self.state.snapshots.newest_verified().ok().flatten();
        self.log_bytes_max.max(last.map_or(0, |snapshot| snapshot.bytes))
    }

    /// Takes a snapshot of what is applied now, at least, and purges as the rule allows. Answers how far it reaches.
    pub async fn take(&self) -> io::Result<LogId> {
        let _alone = self.taking.lock().await;
        let bytes = self.state.progress.since_snapshot();
        if applied(&self.state.records.mark()).is_none() {
            return Err(io::Error::other("nothing was applied yet"));
        }
        let written = self.write().await?;
        let Some(wanted) = written.meta.last_log_id else {
            return Err(io::Error::other("nothing was applied yet"));
        };
        *self.state.prepared.lock() = Some(written);
        let told = self.tell(wanted).await;
        *self.state.prepared.lock() = None;
        let taken = told?;
        self.state.progress.snapshot_taken(bytes);
        self.purge().await?;
        Ok(taken)
    }

    /// Writes a snapshot. What keeps it from being written, other than a full disk, is final.
    async fn write(&self) -> io::Result<CoreSnapshot> {
        let state = self.state.clone();
        let written = blocking(move || state.write_snapshot()).await;
        if let Err(error) = &written
            && !self.state.records.is_for_room(error)
        {
            fatal::end(format!("a snapshot can't be written: {error}"));
        }
        written
    }

    /// Has the core know of the snapshot that was prepared.
    async fn tell(&self, wanted: LogId) -> io::Result<LogId> {
        let mut metrics = self.raft.metrics();
        // Where the newest one reaches as far already, the core is not bothered: what it is told waits in front of commands.
        if metrics.borrow_watched().snapshot < Some(wanted) {
            self.raft.trigger().snapshot().await.map_err(io::Error::other)?;
        }
        loop {
            let seen = {
                let metrics = metrics.borrow_watched();
                metrics.running_state.clone().map_err(io::Error::other)?;
                metrics.snapshot
            };
            match seen {
                Some(taken) if taken >= wanted => return Ok(taken),
                _ => {}
            }
            let looked = Duration::from_millis(limits::SNAPSHOT_LOOK_MS);
            match tokio::time::timeout(looked, metrics.changed()).await {
                Ok(changed) => changed.map_err(|_| io::Error::other("consensus has stopped"))?,
                // One that was being taken already may not reach far enough.
                Err(_) => self.raft.trigger().snapshot().await.map_err(io::Error::other)?,
            }
        }
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
    pub async fn purge(&self) -> io::Result<()> {
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
