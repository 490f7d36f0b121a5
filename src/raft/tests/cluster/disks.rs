//! What becomes of a node whose disk has lost, forgotten or changed something.

use std::path::PathBuf;

use super::*;
use crate::raft::codec::message::{End, Envelope, PEER_VERSION};

/// A command that fills a good part of a segment.
fn large(number: u64) -> Arc<Command> {
    let index_key = Wrapped { wrapping_id: 0, bytes: Blob(vec![3; 300_000].into()) };
    let tenant = Tenant::parse(&format!("large-{number}")).unwrap();
    Arc::new(Command::TenantOpened(TenantOpened { tenant, index_key }))
}

impl Member {
    /// The files of its log, the oldest first.
    fn segments(&self) -> Vec<PathBuf> {
        let dir = Path::new(DIR).join("wal");
        self.disk.list(&dir).unwrap().into_iter().map(|name| dir.join(name)).collect()
    }

    fn disk_id(&self) -> Option<crate::id::DiskId> {
        self.consensus().status().disk_id
    }
}

impl Cluster {
    async fn propose_on_leader(&self, command: Arc<Command>) {
        let until = tokio::time::Instant::now() + AT_MOST;
        while let Err(refusal) = self.leader().await.propose(Arc::clone(&command)).await {
            assert!(tokio::time::Instant::now() < until, "{refusal}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_death_of_all_one_alone_waits_and_two_go_on() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    for id in 1..=3 {
        cluster.member(id).kill(true).await;
    }
    cluster.member(1).start().await;
    let alone = cluster.node(1);
    assert!(alone.has_log());
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let status = alone.status();
    assert_eq!((status.role, status.leader_id), (RoleWord::Follower, None), "no timer ends the waiting");
    assert_eq!(status.cluster_id, Some(ClusterId([2; 16])));
    assert_eq!(alone.propose(claim(1)).await.unwrap_err().code, Code::Unavailable);
    assert!(alone.shared.running.load().is_none(), "there is nothing that could vote");
    cluster.member(2).start().await;
    assert!(is_in_progress(&cluster.claim(1).await));
    cluster.member(3).start().await;
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_of_yesterday_is_put_aside_and_healed() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    cluster.agree().await;
    let id = cluster.follower().await.status().node_id;
    let (old, yesterday) = (cluster_disk(&cluster, id), member_disk(&cluster, id));
    for key in 2..20 {
        cluster.claim(key).await;
    }
    cluster.agree().await;
    // What it has acknowledged is noted at most a second late.
    tokio::time::sleep(Duration::from_millis(2 * limits::PEER_MARKS_MS)).await;
    let member = cluster.member(id);
    member.kill(false).await;
    member.disk = yesterday;
    member.start().await;
    let healed = wait_long(|| cluster.members.iter().find(|m| m.id == id)?.disk_id().filter(|disk| Some(*disk) != old));
    let new = healed.await;
    let is_voter = || {
        let status = cluster.node(id).status();
        let member = status.members.iter().find(|member| member.node_id == id)?;
        let votes = member.standing == MemberStanding::Voter && member.member.disk_id == new;
        (votes && status.role == RoleWord::Follower).then_some(())
    };
    wait_long(is_voter).await;
    // Until the change is through, both sets of voters have to agree.
    let is_settled = || {
        let settled = |member: &Member| {
            let running = member.consensus().shared.running.load_full()?;
            (running.membership().membership().get_joint_config().len() == 1).then_some(())
        };
        cluster.live().all(|member| settled(member).is_some()).then_some(())
    };
    wait_long(is_settled).await;
    cluster.agree().await;
    assert!(cluster.quarantines(id), "what was there is kept");
    let replaced = format!("member_replaced node:{id} ");
    let is_audited = || {
        let rows = audited(cluster.live().next()?.consensus());
        rows.iter().any(|row| row.starts_with(&replaced)).then_some(())
    };
    wait_long(is_audited).await;
    // It counts again.
    let other = cluster.live().map(|m| m.id).find(|other| *other != id).unwrap();
    cluster.member(other).kill(true).await;
    assert!(is_in_progress(&cluster.claim(19).await));
}

/// What a leader holds it acknowledges to nobody: the others remember what it has told them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaders_disk_of_yesterday_is_put_aside_though_only_one_member_can_tell() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    cluster.agree().await;
    let leader = cluster.leader().await.status().node_id;
    let yesterday = member_disk(&cluster, leader);
    for key in 2..20 {
        cluster.claim(key).await;
    }
    cluster.agree().await;
    let last = cluster.node(leader).status().last_log;
    let others: Vec<NodeId> = (1..=3).filter(|id| *id != leader).collect();
    let is_remembered = || {
        let (_, acknowledged) = cluster.node(others[0]).shared.peers.roster.remembered(leader)?;
        (acknowledged.log.map(|id| id.index) >= last).then_some(())
    };
    wait_long(is_remembered).await;
    for id in [leader, others[1]] {
        cluster.member(id).kill(false).await;
    }
    let member = cluster.member(leader);
    member.disk = yesterday;
    member.start().await;
    wait_long(|| cluster.quarantines(leader).then_some(())).await;
    // Nothing that was decided is missing once the third is back.
    cluster.member(others[1]).start().await;
    for key in 1..20 {
        assert!(is_in_progress(&cluster.claim(key).await));
    }
}

fn cluster_disk(cluster: &Cluster, id: NodeId) -> Option<crate::id::DiskId> {
    cluster.node(id).status().disk_id
}

fn member_disk(cluster: &Cluster, id: NodeId) -> FaultDisk {
    let member = cluster.members.iter().find(|member| member.id == id).expect("a node of this id");
    member.disk.crashed(Crash::LoseUnsynced)
}

impl Cluster {
    /// Whether a node has put something aside.
    fn quarantines(&self, id: NodeId) -> bool {
        let member = self.members.iter().find(|member| member.id == id).expect("a node of this id");
        member.disk.paths().iter().any(|path| path.to_string_lossy().contains("quarantine-"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_flipped_in_a_sealed_segment_of_one_node_is_found_and_healed() {
    let mut cluster = Cluster::new(3).await;
    for number in 0..8 {
        cluster.propose_on_leader(large(number)).await;
    }
    cluster.agree().await;
    let id = cluster.follower().await.status().node_id;
    let old = cluster_disk(&cluster, id);
    let member = cluster.member(id);
    member.kill(true).await;
    let sealed = member.segments().first().expect("a segment").clone();
    assert!(member.segments().len() > 2, "several segments: {:?}", member.segments());
    assert!(member.disk.flip_bit(&sealed, 200_000, 5));
    member.start().await;
    let healed = wait_long(|| cluster.members.iter().find(|m| m.id == id)?.disk_id().filter(|disk| Some(*disk) != old));
    healed.await;
    wait_long(|| (cluster.node(id).status().role == RoleWord::Follower).then_some(())).await;
    cluster.claim(1).await;
    cluster.agree().await;
    assert!(cluster.quarantines(id));
}

/// A message is on its way in while the log that it is for is put aside: the empty one in its place must not answer it, or
/// the leader counts what was lost as kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_meant_for_the_old_disk_is_not_heard_by_the_new_one() {
    let cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    cluster.agree().await;
    let leader = cluster.leader().await.status().node_id;
    let from = End { node_id: leader, disk_id: cluster_disk(&cluster, leader).unwrap() };
    let id = cluster.follower().await.status().node_id;
    let shared = Arc::clone(&cluster.node(id).shared);
    let running = shared.running.load_full().unwrap();
    let (identity, membership) = (running.identity, running.membership());
    let to = End { node_id: id, disk_id: identity.disk_id };
    let envelope = Envelope { version: PEER_VERSION, cluster_id: identity.cluster_id, from, to };
    assert!(shared.admit(&envelope).await.is_ok());

    let alone = shared.forming.lock().await;
    shared.running.store(None);
    let mut late = std::pin::pin!(shared.admit(&envelope));
    assert!(futures_util::poll!(&mut late).is_pending());
    running.shutdown().await;
    drop(running);
    shared.quarantine(identity, &membership).await;
    drop(alone);
    let refused = late.await.err().expect("the disk it was meant for is gone");
    assert!(refused.message().contains("disk"), "{refused}");
    assert!(shared.admit(&envelope).await.is_err());
    // It is healed all the same.
    wait_long(|| (cluster.node(id).status().role == RoleWord::Follower).then_some(())).await;
    assert_ne!(cluster_disk(&cluster, id), Some(identity.disk_id));
}

/// What a node goes on with is found damaged while its core starts, before it knows of any member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_core_that_has_not_told_of_its_members_yet_has_those_that_were_noted() {
    let cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    cluster.agree().await;
    let shared = Arc::clone(&cluster.follower().await.shared);
    let noted = || shared.standing.lock().promise.as_ref().map_or(0, |promise| promise.known.len());
    wait_long(|| (noted() == 3).then_some(())).await;
    assert_eq!(shared.members_count(0), 3);
    assert_eq!(shared.members_count(1), 1, "the others were removed");
    let alone = Cluster::new(1).await;
    let shared = Arc::clone(&alone.node(1).shared);
    assert!(shared.members_count(0) < 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_flipped_in_a_node_that_is_alone_ends_it_with_a_line() {
    let mut cluster = Cluster::new(1).await;
    for number in 0..8 {
        cluster.propose_on_leader(large(number)).await;
    }
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    fatal::set_hook(Arc::new(move |reason| heard.lock().push(reason.to_owned())));
    let member = cluster.member(1);
    member.kill(true).await;
    let sealed = member.segments().first().expect("a segment").clone();
    assert!(member.disk.flip_bit(&sealed, 200_000, 5));
    member.start().await;
    let line = wait_long(|| said.lock().iter().find(|line| line.contains("the log is damaged")).cloned()).await;
    assert!(line.contains(&sealed.display().to_string()) && line.contains("backup"), "{line}");
    assert!(!cluster.quarantines(1), "a node alone puts nothing aside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_cluster_left_is_put_aside_only_when_an_operator_says_so() {
    let mut cluster = Cluster::new(3).await;
    let stranger = Cluster::unformed(1).await;
    let other = Init { cluster_id: ClusterId([9; 16]), lineage_id: LineageId([9; 16]), ..init() };
    stranger.node(1).init(stranger.addresses(), other).await.unwrap();
    stranger.leader().await.propose(open_tenant()).await.unwrap().answer.unwrap();
    let (foreign, engines) =
        (stranger.members[0].disk.crashed(Crash::LoseUnsynced), stranger.members[0].engines.clone());
    cluster.claim(1).await;
    let leader = cluster.leader().await.status().node_id;
    if leader == 1 {
        cluster.node(1).transfer(2, BY, AT_MOST).await.unwrap();
    }
    let member = cluster.member(1);
    member.kill(false).await;
    (member.disk, member.engines) = (foreign, engines);
    member.start().await;
    let id = cluster.leader_among(&[1]).await.status().node_id;
    assert_ne!(id, 1);
    // The first word of a member ends its own cluster: it neither votes nor serves, in whichever.
    wait_long(|| (cluster.node(1).status().role == RoleWord::WaitingForReplace).then_some(())).await;
    assert_eq!(cluster.node(1).propose(claim(1)).await.unwrap_err().code, Code::Unavailable);
    assert_eq!(cluster.node(1).read_barrier().await.unwrap_err().code, Code::Unavailable);
    done(|| cluster.node(id).replace(1, None, true, BY, AT_MOST)).await;
    wait_long(|| (cluster.node(1).status().cluster_id == Some(ClusterId([2; 16]))).then_some(())).await;
    cluster.claim(2).await;
    cluster.agree().await;
    assert!(cluster.quarantines(1));
}

/// Whoever was to see to it may be gone after the first step: then the node itself asks until it votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_broke_off_is_finished_by_the_node_itself() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let wiped = cluster.follower().await.status().node_id;
    let member = cluster.member(wiped);
    member.kill(false).await;
    member.disk = FaultDisk::new();
    member.start().await;
    wait_long(|| (cluster.node(wiped).status().role == RoleWord::WaitingForReplace).then_some(())).await;
    let leader = cluster.leader_among(&[wiped]).await.clone();
    // Too short for the new disk to catch up: it stays a learner.
    let refused = leader.replace(wiped, None, true, BY, Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "{refused}");
    let standing = |status: &crate::raft::Status| {
        let member = status.members.iter().find(|member| member.node_id == wiped)?;
        Some(member.standing)
    };
    assert_eq!(standing(&leader.status()), Some(MemberStanding::Learner));
    wait_long(|| (standing(&leader.status()) == Some(MemberStanding::Voter)).then_some(())).await;
    wait_long(|| (cluster.node(wiped).status().role == RoleWord::Follower).then_some(())).await;
    // Whoever had asked for it asks again, and is told that it is done; another replacement of a disk that is there is refused.
    leader.replace(wiped, None, false, BY, AT_MOST).await.unwrap();
    assert_eq!(leader.replace(wiped, None, false, BY, AT_MOST).await.unwrap_err().code, Code::WrongState);
    assert!(is_in_progress(&cluster.claim(1).await));
    cluster.agree().await;
}

/// The log is gone and the promise is not: whoever remembers the disk tells that there was one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_vanished_is_no_new_beginning() {
    for keeps_store in [true, false] {
        let mut cluster = Cluster::new(3).await;
        cluster.claim(1).await;
        cluster.agree().await;
        let id = cluster.follower().await.status().node_id;
        let old = cluster_disk(&cluster, id);
        let noted = || cluster.node(id).shared.options.read_promise().unwrap().filter(|p| p.known.len() == 3);
        wait_long(noted).await;
        let member = cluster.member(id);
        member.kill(keeps_store).await;
        member.disk.remove_dir_all(&Path::new(DIR).join("wal")).unwrap();
        member.start().await;
        let healed = || cluster.members.iter().find(|m| m.id == id)?.disk_id().filter(|disk| Some(*disk) != old);
        wait_long(healed).await;
        wait_long(|| (cluster.node(id).status().role == RoleWord::Follower).then_some(())).await;
        assert!(is_in_progress(&cluster.claim(1).await));
        cluster.agree().await;
    }
}

/// A promise that rotted: whoever has a log is known by it, whoever has none waits for an operator; both start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_promise_keeps_nobody_from_starting() {
    for keeps_log in [true, false] {
        let mut cluster = Cluster::new(3).await;
        cluster.claim(1).await;
        cluster.agree().await;
        let id = cluster.follower().await.status().node_id;
        let member = cluster.member(id);
        member.kill(keeps_log).await;
        if !keeps_log {
            member.disk.remove_dir_all(&Path::new(DIR).join("wal")).unwrap();
        }
        assert!(member.disk.flip_bit(Path::new(DIR).join("promise"), 20, 3));
        member.start().await;
        assert!(member.disk.contents(Path::new(DIR).join("promise.damaged")).is_some());
        let role = if keeps_log { RoleWord::Follower } else { RoleWord::WaitingForReplace };
        wait_long(|| (cluster.node(id).status().role == role).then_some(())).await;
        if !keeps_log {
            let leader = cluster.leader_among(&[id]).await.clone();
            done(|| leader.replace(id, None, true, BY, AT_MOST)).await;
            wait_long(|| (cluster.node(id).status().role == RoleWord::Follower).then_some(())).await;
        }
        assert!(is_in_progress(&cluster.claim(1).await));
        cluster.agree().await;
    }
}

/// Nothing of a cluster that was begun and never got its first entry is lost by a restart: the same call goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_init_that_broke_off_before_the_first_entry_goes_on_after_a_restart() {
    let mut cluster = Cluster::unformed(3).await;
    let shared = Arc::clone(&cluster.node(1).shared);
    let addresses = cluster.addresses();
    let founders = crate::raft::forming::founders(&addresses);
    let Init { lineage_id, cluster_id, .. } = init();
    let plan = crate::raft::forming::Plan { lineage_id, cluster_id, founders };
    shared.collect_promises(&plan).await.unwrap();
    let promise = shared.standing.lock().promise.clone().unwrap();
    drop(shared);
    cluster.member(1).kill(true).await;
    let (disk, layout) = (cluster.members[0].disk.clone(), crate::wal::Options::new(1 << 20).unwrap());
    crate::wal::Wal::create_parts(Arc::new(disk), &Path::new(DIR).join("wal"), promise.identity(), &layout).unwrap();
    cluster.member(1).start().await;
    let formed = wait_until_answered(|| cluster.node(1).init(addresses.clone(), init())).await;
    assert_eq!(formed, Forming { cluster_id, created: true });
    cluster.leader().await.propose(open_tenant()).await.unwrap().answer.unwrap();
    cluster.claim(1).await;
    cluster.agree().await;
}

/// The newest two of what was put aside stay; older ones go once the node votes again, not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_quarantines_go_once_the_node_is_healed() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let id = cluster.follower().await.status().node_id;
    let member = cluster.member(id);
    member.kill(true).await;
    for old in [1, 2, 3] {
        let dir = Path::new(DIR).join(format!("quarantine-{old}/wal"));
        member.disk.create_dir_all(&dir).unwrap();
        member.disk.open(&dir.join("segment"), crate::disk::Mode::CreateNew).unwrap();
    }
    let kept = |cluster: &Cluster| {
        let member = cluster.members.iter().find(|member| member.id == id).expect("a node of this id");
        let dirs = member.disk.dirs(Path::new(DIR)).unwrap();
        let at = dirs.iter().filter_map(|name| name.strip_prefix("quarantine-")?.parse::<u64>().ok());
        at.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    assert_eq!(kept(&cluster), [1, 2, 3]);
    cluster.member(id).start().await;
    wait_long(|| (kept(&cluster) == [2, 3]).then_some(())).await;
    // Damage adds one, and the oldest goes.
    cluster.node(id).shared.peers.report("the log is damaged".to_owned());
    let newest = wait_long(|| kept(&cluster).last().filter(|at| **at > 3).copied()).await;
    wait_long(|| (kept(&cluster) == [3, newest]).then_some(())).await;
    cluster.agree().await;
}
