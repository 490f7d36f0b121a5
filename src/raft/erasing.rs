//! After keys were destroyed: what a node keeps from before that must go too. Their wrapped form, and what they sealed, stood in
//! the log, in snapshots and in the store's files.
//!
//! The log goes on in a new segment; two snapshots are taken of what came after; the log before the segment is purged, what is
//! freed is overwritten and removed; the store is written anew; what an earlier disk has left in this directory is removed.
//! Only then does this node say that it is done, in a file first: broken off, all of it begins anew.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    Shared,
    running::{Running, blocking},
};
use crate::{
    disk::{Disk, DiskError, Mode},
    id::Position,
    json::{Fields, Json},
    limits,
    records::state::State,
    wal::Identity,
};

const NAME: &str = "erased.json";
const TEMPORARY: &str = "erased.json.tmp";

/// Erases whenever there is something to be erased, for as long as the node is there.
pub(super) async fn erase(shared: Weak<Shared>) {
    let mut known: Option<Identity> = None;
    loop {
        tokio::time::sleep(Duration::from_millis(limits::ERASE_LOOKED_MS)).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(running) = shared.running.load_full() else { continue };
        if known != Some(running.identity) {
            // Another disk, or another cluster: what was erased before says nothing of it.
            let (disk, dir, identity) =
                (Arc::clone(&shared.options.disk), shared.options.dir.clone(), running.identity);
            let erased = blocking(move || read(&*disk, &dir, &identity)).await.unwrap_or_default();
            shared.peers.roster.is_erased_to(erased);
            known = Some(running.identity);
        }
        let Some(wanted) = running.erased_wanted().filter(|wanted| *wanted > shared.peers.roster.erased()) else {
            continue;
        };
        match shared.erase(&running, wanted).await {
            Ok(()) => tracing::info!(%wanted, "nothing is left here of keys that were destroyed"),
            Err(error) => tracing::warn!(%error, "what is left of destroyed keys could not be erased yet"),
        }
    }
}

/// Logs empty entries while a member that can be reached has still to erase, if this node leads: what is purged lies far below
/// what is applied, and an idle cluster would never come to it.
pub(super) async fn pace(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(Duration::from_millis(limits::ERASE_LOOKED_MS)).await;
        let Some(shared) = shared.upgrade() else { return };
        let Some(running) = shared.running.load_full() else { continue };
        let Some(wanted) = running.erased_wanted() else { continue };
        let waits = |member: &super::Keeping| member.is_reachable && member.erased < wanted;
        while running.leadership.role().leading.is_some() && running.keeping().iter().any(waits) {
            for _ in 0..limits::ERASE_TICKS {
                if running.queue.tick(running.propose_timeout).await.is_err() {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(4 * limits::ERASE_WAIT_MS)).await;
        }
    }
}

impl Running {
    /// Up to which position nothing may be left of keys that were destroyed.
    pub(super) fn erased_wanted(&self) -> Option<Position> {
        self.records.read().key_table().closings.values().filter_map(|closing| closing.emptied).max()
    }

    /// Waits a while until this is so: each try of erasing begins anew, and each is bounded.
    async fn wait_for(&self, what: &'static str, is_so: impl Fn(&Self) -> bool) -> io::Result<()> {
        let until = Instant::now() + Duration::from_millis(limits::ERASE_TRY_MS);
        while !is_so(self) {
            if Instant::now() >= until || self.is_stopping() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            tokio::time::sleep(Duration::from_millis(limits::ERASE_WAIT_MS)).await;
        }
        Ok(())
    }

    /// Has the log go on in a new segment. Answers the last index that may lie in an older one.
    async fn roll(&self) -> io::Result<u64> {
        let applied = self.applied().unwrap_or(0);
        let (done, told) = oneshot::channel();
        self.wal.roll(move |rolled| drop(done.send(rolled)));
        told.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
        match self.wal.newest_first() {
            first if first > applied => Ok(first - 1),
            _ => Err(io::Error::other("the disk has no room for another segment of the log")),
        }
    }

    /// Two snapshots of what came after this entry, and a log that begins after it.
    async fn leave_behind(&self, last: u64) -> io::Result<()> {
        let far = last + limits::PURGE_MARGIN_ENTRIES;
        self.wait_for("too few entries were applied", |this| this.applied() > Some(far)).await?;
        for _ in 0..limits::SNAPSHOTS_KEPT {
            let taken = self.compaction.take().await?;
            // A second one of the same state would be the first.
            self.wait_for("nothing more was applied", |this| this.applied() > Some(taken.index)).await?;
        }
        if self.state.snapshots.older_verified_index() < Some(last) {
            return Err(io::Error::other("an older snapshot is still kept"));
        }
        // A snapshot on its way to a member may hold the log back for a while.
        self.compaction.purge().await?;
        self.wait_for("the log is held back", |this| this.wal.bounds().start > last).await
    }
}

impl Shared {
    async fn erase(&self, running: &Running, wanted: Position) -> io::Result<()> {
        let wal = running.wal.clone();
        let erase_freed = move || wal.erase_freed();
        blocking(erase_freed.clone()).await.map_err(io::Error::other)?;
        let last = running.roll().await?;
        running.leave_behind(last).await?;
        let (records, engines) = (Arc::clone(&running.records), Arc::clone(&running.state.engines));
        blocking(move || records.write_anew(&*engines)).await.map_err(io::Error::other)?;
        let options = self.options.clone();
        blocking(move || options.remove_quarantines(0)).await.map_err(io::Error::other)?;
        blocking(erase_freed).await.map_err(io::Error::other)?;
        running.wal.reuse_freed();
        let (disk, dir, identity) = (Arc::clone(&self.options.disk), self.options.dir.clone(), running.identity);
        blocking(move || write(&*disk, &dir, &identity, wanted)).await.map_err(io::Error::other)?;
        self.peers.roster.is_erased_to(wanted);
        Ok(())
    }
}

fn text(identity: &Identity, position: Position) -> String {
    let text = Json::object([
        ("version", Json::String("1".to_owned())),
        ("cluster_id", Json::String(identity.cluster_id.to_string())),
        ("disk_id", Json::String(identity.disk_id.to_string())),
        ("position", Json::String(position.to_string())),
    ]);
    text.to_text() + "\n"
}

/// How far this disk was erased; from its beginning where there is nothing, or nothing of this disk.
fn read(disk: &dyn Disk, dir: &Path, identity: &Identity) -> Option<Position> {
    let file = disk.open(&dir.join(NAME), Mode::Read).ok()?;
    let length = usize::try_from(file.len().ok()?).ok().filter(|length| *length <= limits::ERASED_BYTES_MAX)?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let mut fields = Fields::new(Json::parse(&bytes).ok()?).ok()?;
    let mut word = |name: &'static str| fields.string(name).ok();
    let position = word("position")?.parse().ok().map(Position)?;
    // In exactly this spelling, or it is not believed.
    (text(identity, position).as_bytes() == bytes).then_some(position)
}

fn write(disk: &dyn Disk, dir: &Path, identity: &Identity, position: Position) -> Result<(), DiskError> {
    let (temporary, path): (PathBuf, PathBuf) = (dir.join(TEMPORARY), dir.join(NAME));
    match disk.remove(&temporary) {
        Err(error) if !error.is_not_found() => return Err(error),
        _ => {}
    }
    let file = disk.open(&temporary, Mode::CreateNew)?;
    file.write_at(text(identity, position).as_bytes(), 0)?;
    file.sync_data()?;
    disk.rename(&temporary, &path)?;
    disk.sync_dir(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        disk::fault::FaultDisk,
        id::{ClusterId, DiskId, LineageId},
    };

    #[test]
    fn what_was_erased_is_remembered_of_this_disk_alone() {
        let (disk, dir) = (FaultDisk::new(), PathBuf::from("/data"));
        disk.create_dir_all(&dir).unwrap();
        let of = |disk: u8| Identity {
            lineage_id: LineageId([1; 16]),
            cluster_id: ClusterId([2; 16]),
            node_id: 3,
            disk_id: DiskId([disk; 16]),
        };
        assert_eq!(read(&disk, &dir, &of(4)), None);
        write(&disk, &dir, &of(4), Position(77)).unwrap();
        write(&disk, &dir, &of(4), Position(78)).unwrap();
        assert_eq!(read(&disk, &dir, &of(4)), Some(Position(78)));
        assert_eq!(read(&disk, &dir, &of(5)), None);
        let file = disk.open(&dir.join(NAME), Mode::ReadWrite).unwrap();
        file.write_at(b"?", 3).unwrap();
        assert_eq!(read(&disk, &dir, &of(4)), None);
    }
}
