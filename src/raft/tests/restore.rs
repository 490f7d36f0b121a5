//! A cluster that comes to be from the state of another, and goes on in doubt.

use std::collections::BTreeMap;

use super::*;
use crate::{
    raft::restore::{FirstCommand, Gap, Incoming, RestoreError, Restoring, begin, clear, lay_out},
    records::{
        command::{DoubtEnded, OwnerAction, OwnerCommand, WritesEnded},
        state::Globals,
    },
    store::{dump, engine::Row},
    wal::{self, Identity},
};

pub(super) const NEW: ClusterId = ClusterId([7; 16]);

pub(super) fn rows(records: &Records) -> (Globals, Vec<Row>) {
    let view = records.snapshot().unwrap();
    let rows = view.rows.into_scan().unwrap().map(|row| row.unwrap());
    (view.globals, rows.filter(|(key, _)| !dump::is_local(key)).collect())
}

pub(super) fn first(globals: &Globals, gap: Gap) -> FirstCommand {
    let wall = Time(globals.time.0 + 60_000);
    FirstCommand::new(globals, true, wall, gap, Sealed::plain(&b"ops"[..])).unwrap()
}

fn suspend(key: u64, fence: Fence) -> Arc<Command> {
    let actor = Sealed::plain(&b"owner"[..]);
    Arc::new(Command::Owner(Box::new(OwnerCommand {
        record: record(key),
        fence,
        action: OwnerAction::Suspend(None),
        actor,
    })))
}

pub(super) fn is_in_doubt(applied: &Applied) -> bool {
    matches!(&applied.answer, Ok(Answer::Claim(ClaimAnswer::Indeterminate { reason, .. }))
        if reason.tag == crate::records::record::ReasonTag::Restored)
}

/// A cluster that has worked: key 1 is owned, by the fence that is answered.
async fn worked() -> (Node, Fence) {
    let node = Node::new().await;
    node.consensus.propose(open_tenant()).await.unwrap();
    let fence = fence(&node.claim(1).await);
    (node, fence)
}

async fn restored(gap: Gap) -> (Node, Fence) {
    let (old, fence) = worked().await;
    let (globals, rows) = rows(&old.consensus.records());
    old.consensus.shutdown().await;
    let disk = FaultDisk::new();
    let engines = Arc::new(MemoryEngines::default());
    let consensus = start(&disk, &engines).await.unwrap();
    let node = Node { disk, engines, consensus };
    begin(&node.disk, Path::new(DIR)).unwrap();
    let first = first(&globals, gap);
    let rows = rows.into_iter().map(Ok);
    let incoming = Incoming { cluster_id: NEW, globals, first, rows };
    let members = BTreeMap::from([(1, addresses())]);
    let formed = node.consensus.init_restored(members, incoming).await.unwrap();
    assert_eq!(formed, Forming { cluster_id: NEW, created: true });
    (node, fence)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_cluster_goes_on_in_doubt_under_a_new_id() {
    let (mut node, old_fence) = restored(Gap::Unknown).await;
    for _ in 0..2 {
        let formed = node.consensus.records().read().globals().formed.clone().unwrap();
        assert_eq!((formed.cluster_id, formed.lineage_id), (NEW, LineageId([1; 16])));
        assert_eq!(node.consensus.status().cluster_id, Some(NEW));
        let stale = node.consensus.propose(suspend(1, old_fence)).await.unwrap();
        assert_eq!(stale.answer.unwrap_err().code, Code::StaleFence, "every older fence is refused");
        assert!(stale.index.0 > 1 << 60, "positions go on from the restore's time");
        assert!(is_in_doubt(&node.claim(1).await) && is_in_doubt(&node.claim(2).await));
        node = node.crash(false).await.unwrap();
        node.consensus.read_barrier().await.unwrap();
    }
    let ended = DoubtEnded { actor: Sealed::plain(&b"ops"[..]) };
    node.consensus.propose(Arc::new(Command::DoubtEnded(ended))).await.unwrap().answer.unwrap();
    assert!(fence(&node.claim(3).await).0 > 1 << 60);
    assert!(is_in_doubt(&node.claim(2).await), "what was marked stays");
    node.consensus.snapshot_now().await.unwrap();
    let again = node.consensus.init_single(addresses(), init()).await.unwrap();
    assert!(!again.created && again.cluster_id == NEW);
    node.consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_gap_there_is_no_doubt_and_old_fences_are_stale_all_the_same() {
    let (node, old_fence) = restored(Gap::None).await;
    assert!(fence(&node.claim(2).await).0 > 1 << 60);
    assert!(is_in_progress(&node.claim(1).await));
    let stale = node.consensus.propose(suspend(1, old_fence)).await.unwrap();
    assert_eq!(stale.answer.unwrap_err().code, Code::StaleFence);
    node.consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_writes_stay_ended_until_a_restore() {
    let (node, _) = worked().await;
    let ended = WritesEnded { actor: Sealed::plain(&b"ops"[..]) };
    node.consensus.propose(Arc::new(Command::WritesEnded(ended))).await.unwrap().answer.unwrap();
    assert_eq!(node.claim(2).await.answer.unwrap_err().code, Code::Unavailable);
    let node = node.crash(true).await.unwrap();
    node.consensus.read_barrier().await.unwrap();
    assert_eq!(node.claim(2).await.answer.unwrap_err().code, Code::Unavailable);
    let node = node.crash(false).await.unwrap();
    node.consensus.read_barrier().await.unwrap();
    assert!(node.consensus.records().read().ended().is_some());
    node.consensus.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_and_a_clock_that_do_not_fit_the_backup_are_refused() {
    let (node, _) = worked().await;
    let globals = node.consensus.records().read().globals().clone();
    node.consensus.shutdown().await;
    let command = |is_final, wall, gap| FirstCommand::new(&globals, is_final, wall, gap, Sealed::default());
    let now = globals.time;
    assert!(matches!(command(false, now, Gap::None), Err(RestoreError::NotFinal)));
    assert!(command(true, now, Gap::None).is_ok() && command(false, now, Gap::EndedBy(now)).is_ok());
    let early = Gap::EndedBy(Time(now.0 - 1));
    assert!(matches!(command(true, now, early), Err(RestoreError::GapEndsEarly { .. })));
    let told = command(true, now, early).unwrap_err().to_string();
    assert_eq!(told, format!("the gap ends before the backup was made, at {}", now.text()), "in the form of --gap-end");
    // A backup of a restored cluster, on a machine whose clock stands before that restore.
    let mut later = globals.clone();
    later.position = Position(now.0 << 20);
    let command = |wall| FirstCommand::new(&later, true, wall, Gap::Unknown, Sealed::default());
    assert!(matches!(command(now), Err(RestoreError::ClockBehind { .. })));
    assert!(matches!(command(Time(u64::MAX)), Err(RestoreError::ClockBehind { .. })));
    assert!(matches!(command(Time(now.0 + 1)), Err(RestoreError::ClockBehind { .. })));
    assert!(command(Time(now.0 + 2)).is_ok());
}

/// Whichever call of the disk fails, and whatever a crash then takes: the node is in no cluster and can be restored again, or
/// it is restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_off_restore_can_be_repeated() {
    let (old, _) = worked().await;
    let (globals, rows) = rows(&old.consensus.records());
    old.consensus.shutdown().await;
    let layout = wal::Options::new(1 << 20).unwrap();
    let dir = Path::new(DIR);
    let attempt = |disk: &FaultDisk| {
        begin(disk, dir)?;
        let disk_id = crate::id::DiskId([8; 16]);
        let identity = Identity { lineage_id: LineageId([1; 16]), cluster_id: NEW, node_id: 1, disk_id };
        let Addresses { peer, client } = addresses();
        let member = Member { peer_addr: peer, client_addr: client, disk_id };
        let members = BTreeMap::from([(1, member)]);
        let first = first(&globals, Gap::Unknown);
        let restoring = Restoring { identity, members, globals: globals.clone(), first };
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        lay_out(&disk, dir, &layout, restoring, &mut rows.iter().cloned().map(Ok))
    };
    let (mut nth, mut broken, mut whole) = (0, 0, 0);
    loop {
        let disk = FaultDisk::new();
        disk.fail_any(nth, Failure::Eio);
        let result = attempt(&disk);
        if disk.fired() == 0 {
            result.unwrap();
            break;
        }
        disk.heal();
        let disk = disk.crashed(Crash::LoseUnsynced);
        clear(&disk, dir).unwrap();
        match attempt(&disk) {
            Ok(()) => broken += 1,
            Err(RestoreError::Occupied) => whole += 1,
            Err(error) => panic!("call {nth}: {error}"),
        }
        assert!(matches!(attempt(&disk), Err(RestoreError::Occupied)));
        // Now and then all the way: it starts, and its first command is applied.
        if nth % 16 == 0 {
            let consensus = start(&disk, &Arc::default()).await.unwrap();
            consensus.read_barrier().await.unwrap();
            assert!(consensus.records().read().globals().doubt.is_some(), "call {nth}");
            consensus.shutdown().await;
        }
        nth += 1;
    }
    assert!(broken > 20 && whole > 0, "{broken} broken off, {whole} whole");
}
