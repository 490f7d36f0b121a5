//! What becomes of a node whose disk has lost, forgotten or changed something.

use std::path::PathBuf;

use super::*;

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
    // It counts again.
    let other = cluster.live().map(|m| m.id).find(|other| *other != id).unwrap();
    cluster.member(other).kill(true).await;
    assert!(is_in_progress(&cluster.claim(19).await));
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
        cluster.node(1).transfer(2, AT_MOST).await.unwrap();
    }
    let member = cluster.member(1);
    member.kill(false).await;
    (member.disk, member.engines) = (foreign, engines);
    member.start().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let id = cluster.leader_among(&[1]).await.status().node_id;
    assert_ne!(id, 1);
    assert_ne!(cluster.node(1).status().cluster_id, Some(ClusterId([2; 16])), "it takes no part");
    cluster.node(id).replace(1, None, true, AT_MOST).await.unwrap();
    wait_long(|| (cluster.node(1).status().cluster_id == Some(ClusterId([2; 16]))).then_some(())).await;
    cluster.claim(2).await;
    cluster.agree().await;
    assert!(cluster.quarantines(1));
}
