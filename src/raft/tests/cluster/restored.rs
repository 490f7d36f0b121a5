//! A cluster of several members that comes to be from a backup.

use super::{
    super::restore::{NEW, first, is_in_doubt, rows},
    *,
};
use crate::{
    raft::{
        forming::{Plan, founders, joined},
        restore::{Gap, Incoming, RestoreError, Restoring, begin, lay_out},
        state_machine::{CoreSnapshot, SnapshotFile, core_meta},
        types::Vote,
    },
    store::snapshot::{SnapshotOwner, store::SnapshotStore},
};

/// The rows of a cluster that has worked, on their way into another.
async fn incoming() -> (Incoming<impl Iterator<Item = Result<Row, EngineError>> + Send>, Fence) {
    let old = Cluster::new(1).await;
    let fence = fence(&old.claim(1).await);
    let (globals, rows) = rows(&old.node(1).records());
    old.node(1).shutdown().await;
    let first = first(&globals, Gap::Unknown);
    (Incoming { cluster_id: NEW, globals, first, rows: rows.into_iter().map(Ok) }, fence)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_forms_a_cluster_of_three() {
    let (incoming, old_fence) = incoming().await;
    let mut cluster = Cluster::unformed(3).await;
    begin(&cluster.members[0].disk, Path::new(DIR)).unwrap();
    let formed = cluster.node(1).init_restored(cluster.addresses(), incoming).await.unwrap();
    assert_eq!(formed, Forming { cluster_id: NEW, created: true });
    assert!(is_in_doubt(&cluster.claim(1).await) && is_in_doubt(&cluster.claim(2).await));
    cluster.agree().await;
    for id in 1..=3 {
        assert_eq!(cluster.node(id).status().cluster_id, Some(NEW), "node {id} holds the restored state");
        assert!(cluster.node(id).records().read().globals().fence_floor.0 > old_fence.0);
    }
    // The node that the backup came through is one of three, no more.
    cluster.member(1).kill(false).await;
    assert!(is_in_doubt(&cluster.claim(3).await));
    cluster.member(1).start().await;
    assert!(is_in_doubt(&cluster.claim(1).await));
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_member_is_not_there_or_formed_elsewhere_nothing_is_restored() {
    let (incoming, _) = incoming().await;
    let (globals, first_command) = (incoming.globals.clone(), incoming.first.clone());
    let mut cluster = Cluster::unformed(3).await;
    begin(&cluster.members[0].disk, Path::new(DIR)).unwrap();
    cluster.member(3).kill(false).await;
    let missing = cluster.node(1).init_restored(cluster.addresses(), incoming).await.unwrap_err();
    assert!(matches!(missing, FormError::Unreachable { node_id: 3, .. }), "{missing}");
    assert!((1..=2).all(|id| !cluster.node(id).has_log() && cluster.node(id).status().role == RoleWord::Unformed));
    cluster.member(3).start().await;
    let alone = BTreeMap::from([(3, cluster.members[2].addresses.clone())]);
    cluster.node(3).init(alone, init()).await.unwrap();
    let again = || Incoming {
        cluster_id: NEW,
        globals: globals.clone(),
        first: first_command.clone(),
        rows: std::iter::empty(),
    };
    // A node that could not be reached is not tried again for a moment.
    let until = tokio::time::Instant::now() + AT_MOST;
    let elsewhere = loop {
        match cluster.node(1).init_restored(cluster.addresses(), again()).await.unwrap_err() {
            FormError::Unreachable { .. } if tokio::time::Instant::now() < until => {}
            other => break other,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(matches!(elsewhere, FormError::Elsewhere { node_id: 3 }), "{elsewhere}");
    let formed = cluster.node(3).init_restored(cluster.addresses(), again()).await.unwrap_err();
    assert!(matches!(formed, FormError::OtherMembers), "{formed}");
    let occupied = begin(&cluster.members[2].disk, Path::new(DIR)).unwrap_err();
    assert!(matches!(occupied, RestoreError::Occupied));
}

/// The node that the backup came through dies when it alone has begun the log: started again, it and the others finish it, and
/// whoever asks for the same restore again is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_that_broke_off_behind_its_log_is_finished() {
    let (mut incoming, _) = incoming().await;
    let mut cluster = Cluster::unformed(3).await;
    let addresses = cluster.addresses();
    let shared = Arc::clone(&cluster.node(1).shared);
    let lineage_id = incoming.globals.formed.as_ref().unwrap().lineage_id;
    let plan = Plan { lineage_id, cluster_id: NEW, founders: founders(&addresses) };
    let disks = shared.collect_promises(&plan).await.unwrap();
    let identity = shared.standing.lock().promise.as_ref().unwrap().identity();
    let layout = shared.options.wal_options().unwrap();
    drop(shared);
    let restoring = Restoring {
        identity,
        members: joined(&plan.founders, &disks),
        globals: incoming.globals.clone(),
        first: incoming.first.clone(),
    };
    cluster.member(1).kill(false).await;
    let disk: Arc<dyn Disk> = Arc::new(cluster.members[0].disk.clone());
    begin(&*disk, Path::new(DIR)).unwrap();
    lay_out(&disk, Path::new(DIR), &layout, restoring, &mut incoming.rows).unwrap();
    cluster.member(1).start().await;
    assert!(is_in_doubt(&cluster.claim(1).await));
    cluster.agree().await;
    let (cluster_id, lineage, first_position) = cluster.node(1).restored(&addresses).await.unwrap();
    assert_eq!((cluster_id, lineage, first_position), (NEW, lineage_id, incoming.first.first_position()));
    let fewer = addresses.into_iter().filter(|(node, _)| *node != 3).collect();
    assert_eq!(cluster.node(1).restored(&fewer).await.unwrap_err().code, Code::WrongState);
}

/// The node that the backup came through dies when the others have the snapshot and not the first command. They do not lead:
/// what they hold is the state before the restore, as if nothing had been lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_have_not_got_the_first_command_do_not_go_on_without_it() {
    let (mut incoming, _) = incoming().await;
    let mut cluster = Cluster::unformed(3).await;
    let addresses = cluster.addresses();
    let shared = Arc::clone(&cluster.node(1).shared);
    let lineage_id = incoming.globals.formed.as_ref().unwrap().lineage_id;
    let plan = Plan { lineage_id, cluster_id: NEW, founders: founders(&addresses) };
    let disks = shared.collect_promises(&plan).await.unwrap();
    let identity = shared.standing.lock().promise.as_ref().unwrap().identity();
    let layout = shared.options.wal_options().unwrap();
    drop(shared);
    let restoring = Restoring {
        identity,
        members: joined(&plan.founders, &disks),
        globals: incoming.globals.clone(),
        first: incoming.first.clone(),
    };
    cluster.member(1).kill(false).await;
    let disk: Arc<dyn Disk> = Arc::new(cluster.members[0].disk.clone());
    begin(&*disk, Path::new(DIR)).unwrap();
    lay_out(&disk, Path::new(DIR), &layout, restoring, &mut incoming.rows).unwrap();
    let owner = SnapshotOwner { lineage: lineage_id.0, cluster: NEW.0 };
    let store = Arc::new(SnapshotStore::open(disk, Path::new(DIR).join("snapshots"), owner, []).unwrap());
    for id in [2, 3] {
        let file = store.newest_verified().unwrap().unwrap();
        let meta = core_meta(&file.meta).unwrap();
        let vote = Vote { leader_id: meta.last_log_id.unwrap().leader_id, committed: true };
        let snapshot = CoreSnapshot { meta, snapshot: SnapshotFile::new(file, Arc::clone(&store)) };
        let running = cluster.node(id).shared.join(disks[&id]).await.unwrap();
        running.raft.install_full_snapshot(vote, snapshot).await.unwrap();
    }
    // Longer than either waits before it stands.
    let until = tokio::time::Instant::now() + Duration::from_secs(6);
    while tokio::time::Instant::now() < until {
        assert!([2, 3].iter().all(|id| cluster.node(*id).status().role != RoleWord::Leader));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.member(1).start().await;
    assert!(is_in_doubt(&cluster.claim(1).await));
    cluster.agree().await;
}
