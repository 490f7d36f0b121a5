use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use openraft::{
    storage::RaftLogStorageExt,
    testing::log::{StoreBuilder, Suite},
    type_config::TypeConfigExt,
};

use super::*;
use crate::{
    disk::{
        Disk, OsDisk, Space,
        fault::{Crash, FaultDisk},
    },
    id::{ClusterId, DiskId, LineageId, Time},
    raft::{
        state_machine::StateMachine,
        tests::MemoryEngines,
        types::{LeaderId, Proposal, log_id},
    },
    records::command::{Command, DoubtEnded, Entry, Sealed},
    store::{
        memory::MemoryEngine,
        records::Records,
        snapshot::{SnapshotOwner, store::SnapshotStore},
    },
    wal::{Identity, Options},
};

const IDENTITY: Identity =
    Identity { lineage_id: LineageId([1; 16]), cluster_id: ClusterId([2; 16]), node_id: 1, disk_id: DiskId([3; 16]) };

fn create(disk: &Arc<dyn Disk>, dir: &Path) -> LogStore {
    Wal::create(Arc::clone(disk), dir, IDENTITY, &Options::new(1 << 20).unwrap()).unwrap().close();
    open(disk, dir)
}

fn open(disk: &Arc<dyn Disk>, dir: &Path) -> LogStore {
    let (wal, recovered) = Wal::open(Arc::clone(disk), dir, IDENTITY, &Options::new(1 << 20).unwrap()).unwrap();
    LogStore::open(wal, &recovered, Arc::new(Progress::default())).unwrap()
}

fn state_machine(disk: Arc<dyn Disk>, dir: PathBuf, progress: Arc<Progress>) -> StateMachine {
    let owner = SnapshotOwner { lineage: [1; 16], cluster: [2; 16] };
    let space = Arc::new(Space::new(Arc::clone(&disk), &dir, 0));
    StateMachine {
        records: Arc::new(Records::open(Arc::new(MemoryEngine::new())).unwrap()),
        engines: Arc::new(MemoryEngines::default()),
        snapshots: Arc::new(SnapshotStore::open(Arc::clone(&disk), dir, owner, []).unwrap()),
        owner,
        disk,
        progress,
        metrics: Arc::default(),
        space,
        prepared: Arc::default(),
    }
}

/// Real files below a directory that goes with the test.
struct OnFiles;

impl StoreBuilder<Types, LogStore, StateMachine, tempfile::TempDir> for OnFiles {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, StateMachine), openraft::StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk);
        let log = create(&disk, &dir.path().join("wal"));
        let state = state_machine(disk, dir.path().join("snapshots"), Arc::clone(&log.progress));
        Ok((dir, log, state))
    }
}

/// A disk that keeps nothing that was not synced.
struct OnFaultDisk;

impl StoreBuilder<Types, LogStore, StateMachine> for OnFaultDisk {
    async fn build(&self) -> Result<((), LogStore, StateMachine), openraft::StorageError<Types>> {
        let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new());
        let log = create(&disk, Path::new("/node/wal"));
        let state = state_machine(disk, "/node/snapshots".into(), Arc::clone(&log.progress));
        Ok(((), log, state))
    }
}

#[test]
fn the_official_suite_passes_on_files() {
    Types::run(async { Suite::test_all(OnFiles).await }).unwrap();
}

#[test]
fn the_official_suite_passes_on_a_disk_that_forgets() {
    Types::run(async { Suite::test_all(OnFaultDisk).await }).unwrap();
}

fn entry(term: u64, index: u64, bytes: usize) -> LogEntry {
    let payload = match bytes {
        0 => Payload::Blank,
        bytes => {
            let ended = DoubtEnded { actor: Sealed::plain(vec![7; bytes]) };
            let commands = vec![Arc::new(Command::DoubtEnded(ended))];
            Payload::Normal(Proposal::new(Entry { time: Time(index), commands }))
        }
    };
    LogEntry { log_id: log_id(term, 1, index), payload }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_crash() {
    let disk = FaultDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = create(&shared, Path::new("/wal"));
    let vote = Vote { leader_id: LeaderId { term: 4, node_id: 1 }, committed: true };
    log.save_vote(&vote).await.unwrap();
    log.blocking_append((0..50).map(|index| entry(4, index, 300))).await.unwrap();
    let crashed: Arc<dyn Disk> = Arc::new(disk.crashed(Crash::LoseUnsynced));
    let mut log = open(&crashed, Path::new("/wal"));
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(log_id(4, 1, 49)));
    let entries = log.try_get_log_entries(..).await.unwrap();
    assert_eq!(entries, (0..50).map(|index| entry(4, index, 300)).collect::<Vec<_>>());
}

#[tokio::test]
async fn truncated_entries_are_gone_also_after_a_crash() {
    let disk = FaultDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = create(&shared, Path::new("/wal"));
    log.blocking_append((0..10).map(|index| entry(1, index, 0))).await.unwrap();
    log.truncate_after(Some(log_id(1, 1, 4))).await.unwrap();
    assert_eq!(log.try_get_log_entries(5..).await.unwrap(), []);
    log.blocking_append([entry(2, 5, 10)]).await.unwrap();
    let crashed: Arc<dyn Disk> = Arc::new(disk.crashed(Crash::LoseUnsynced));
    let mut log = open(&crashed, Path::new("/wal"));
    assert_eq!(log.try_get_log_entries(4..).await.unwrap(), [entry(1, 4, 0), entry(2, 5, 10)]);
}

/// After a restart the tail is empty, and the whole log on the disk. What takes the place of its end is in the tail before
/// the disk has heard of it: whoever reads across the border must not be handed what was replaced.
#[tokio::test]
async fn what_was_replaced_is_not_read_while_the_disk_still_has_it() {
    let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new());
    let mut log = create(&disk, Path::new("/wal"));
    log.blocking_append((0..10).map(|index| entry(1, index, 0))).await.unwrap();
    log.wal.close();
    // Its writer never gets a turn.
    let (parts, recovered) =
        Wal::open_parts(disk, Path::new("/wal"), IDENTITY, &Options::new(1 << 20).unwrap()).unwrap();
    let mut log = LogStore::open(parts.wal, &recovered, Arc::new(Progress::default())).unwrap();
    log.truncate_after(Some(log_id(1, 1, 7))).await.unwrap();
    assert_eq!(log.try_get_log_entries(6..).await.unwrap(), [entry(1, 6, 0), entry(1, 7, 0)]);
    log.append((8..12).map(|index| entry(2, index, 10)), IOFlushed::noop()).await.unwrap();
    let expected: Vec<_> =
        (6..12).map(|index| if index < 8 { entry(1, index, 0) } else { entry(2, index, 10) }).collect();
    assert_eq!(log.try_get_log_entries(6..).await.unwrap(), expected);
    assert_eq!(log.limited_get_log_entries(6, 12).await.unwrap(), expected[..2]);
    let streamed: Vec<_> = futures_util::TryStreamExt::try_collect(log.entries_stream(6..12).await).await.unwrap();
    assert_eq!(streamed, expected);
}

#[tokio::test]
async fn a_purge_leaves_the_log_where_it_ends() {
    let shared: Arc<dyn Disk> = Arc::new(FaultDisk::new());
    let mut log = create(&shared, Path::new("/wal"));
    log.blocking_append((0..10).map(|index| entry(1, index, 0))).await.unwrap();
    log.purge(log_id(1, 1, 9)).await.unwrap();
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(1, 1, 9)), Some(log_id(1, 1, 9))));
    log.blocking_append([entry(1, 10, 0)]).await.unwrap();
    assert_eq!(log.try_get_log_entries(..).await.unwrap(), [entry(1, 10, 0)]);
    log.wal.close();
    let mut log = open(&shared, Path::new("/wal"));
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(1, 1, 9)), Some(log_id(1, 1, 10))));
}

#[tokio::test]
async fn the_tail_is_bounded_and_what_left_it_is_read_from_the_disk() {
    const ENTRIES: u64 = 40;
    // So that all of them are more than the tail holds, and more than one read takes.
    let size = limits::LOG_TAIL_BYTES_MAX.max(3 * limits::LOG_READ_BYTES_MAX) / ENTRIES as usize;
    let shared: Arc<dyn Disk> = Arc::new(FaultDisk::new());
    let mut log = create(&shared, Path::new("/wal"));
    for index in 0..ENTRIES {
        log.blocking_append([entry(1, index, size)]).await.unwrap();
    }
    assert_eq!(log.tail.lock().first, 0, "nothing that is not applied leaves the tail");
    log.progress.set_applied(ENTRIES - 1);
    log.blocking_append([entry(1, ENTRIES, size)]).await.unwrap();
    let first = log.tail.lock().first;
    assert!(first > ENTRIES / 3 && log.tail.lock().bytes <= limits::LOG_TAIL_BYTES_MAX, "first {first}");
    for index in [0, first - 1, first, ENTRIES] {
        assert_eq!(log.try_get_log_entries(index..=index).await.unwrap(), [entry(1, index, size)]);
    }
    let bounded = log.limited_get_log_entries(0, ENTRIES + 1).await.unwrap();
    assert!(!bounded.is_empty() && (bounded.len() as u64) < ENTRIES / 2, "{} entries", bounded.len());
    let all: Vec<_> = futures_util::TryStreamExt::try_collect(log.entries_stream(0..=ENTRIES).await).await.unwrap();
    assert_eq!(all, (0..=ENTRIES).map(|index| entry(1, index, size)).collect::<Vec<_>>());
}

/// A node that catches up has a log that is far ahead of what it has applied.
#[tokio::test]
async fn what_is_not_applied_is_bounded_too_and_may_be_replaced() {
    const SIZE: usize = 1 << 20;
    let count = (limits::LOG_TAIL_UNAPPLIED_BYTES_MAX / SIZE) as u64;
    let disk = FaultDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut log = create(&shared, Path::new("/wal"));
    for index in 0..count {
        log.blocking_append([entry(1, index, SIZE)]).await.unwrap();
        // What is being appended is held until it is durable.
        assert!(log.tail.lock().bytes <= limits::LOG_TAIL_UNAPPLIED_BYTES_MAX + 3 * SIZE);
    }
    let first = log.tail.lock().first;
    assert!(first > count / 3, "first {first}");
    let mut reader = log.clone();
    let mut streamed = std::pin::pin!(reader.entries_stream(0..count).await.enumerate());
    while let Some((index, read)) = streamed.next().await {
        assert_eq!(read.unwrap(), entry(1, index as u64, SIZE));
    }
    // Nothing of it is committed: another leader replaces what has left the tail already.
    log.truncate_after(Some(log_id(1, 1, first - 3))).await.unwrap();
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(log_id(1, 1, first - 3)));
    assert_eq!(log.try_get_log_entries(first - 3..).await.unwrap(), [entry(1, first - 3, SIZE)]);
    log.blocking_append((first - 2..first + 2).map(|index| entry(2, index, 10))).await.unwrap();
    let expected: Vec<_> = (first - 2..first + 2).map(|index| entry(2, index, 10)).collect();
    assert_eq!(log.try_get_log_entries(first - 2..).await.unwrap(), expected);
    let crashed: Arc<dyn Disk> = Arc::new(disk.crashed(Crash::LoseUnsynced));
    let mut log = open(&crashed, Path::new("/wal"));
    assert_eq!(log.try_get_log_entries(first - 2..).await.unwrap(), expected);
}
