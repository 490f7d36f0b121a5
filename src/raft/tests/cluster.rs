//! Several nodes in one process, over loopback: what a cluster does when nodes come, go, and can't hear each other.

mod disks;
mod net;
mod operating;
mod restored;
mod snapshots;

use std::collections::BTreeMap;

use net::{CutNet, Cuttable};
use tokio::{net::TcpListener, task::JoinHandle};

use super::*;
use crate::store::engine::Row;

/// Longer than any wait in here on a busy machine.
const AT_MOST: Duration = Duration::from_secs(30);

/// Who changes the membership.
const BY: &str = "file:1";

/// What stands in the cluster's audit chain: what was done, by whom, to what.
fn audited(consensus: &Consensus) -> Vec<String> {
    let records = consensus.records();
    let state = records.read();
    let rows = (1..=state.globals().audit.map_or(0, |head| head.sequence)).map(|sequence| {
        let row = state.audit_row(None, sequence).expect("a row of the chain");
        let text = |sealed: Option<Sealed>| String::from_utf8(sealed.unwrap_or_default().bytes.0.to_vec()).unwrap();
        format!("{} {} {}", row.kind.as_str(), text(row.actor.clone()), text(row.detail.clone()))
    });
    rows.collect()
}

/// A node of a cluster on a disk that forgets what was not synced.
struct Member {
    id: NodeId,
    disk: FaultDisk,
    engines: Arc<MemoryEngines>,
    addresses: Addresses,
    cut: Arc<Cuttable>,
    clock: Arc<operating::Skewed>,
    running: Option<(Consensus, watch::Sender<bool>, JoinHandle<()>)>,
}

impl Member {
    async fn new(id: NodeId) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = listener.local_addr().unwrap().to_string();
        let addresses = Addresses { peer, client: format!("client-of-{id}:1") };
        let (disk, engines, cut) = (FaultDisk::new(), Arc::default(), Arc::default());
        let mut member = Self { id, disk, engines, addresses, cut, clock: Arc::default(), running: None };
        member.start_on(listener).await;
        member
    }

    async fn start_on(&mut self, listener: TcpListener) {
        let ms = Duration::from_millis;
        let base = options(Arc::new(self.disk.clone()), Path::new(DIR), self.engines.clone());
        let consensus = Consensus::start(Options {
            node_id: self.id,
            times: RaftTimes { heartbeat: ms(100), election_min: ms(800), election_max: ms(1600) },
            net: Arc::new(CutNet(Arc::clone(&self.cut))),
            addresses: self.addresses.clone(),
            clock: self.clock.clone(),
            ..base
        });
        let consensus = consensus.await.unwrap();
        let (stop, stopping) = watch::channel(false);
        let listener = net::CutListener { listener, cut: Arc::clone(&self.cut) };
        let server = tokio::spawn(consensus.serve_peers(Box::new(listener), stopping));
        self.running = Some((consensus, stop, server));
    }

    /// Starts again on what the disk holds.
    async fn start(&mut self) {
        // While it was down, its port may have been lent to a connection of somebody else's.
        let until = tokio::time::Instant::now() + AT_MOST;
        let listener = loop {
            match TcpListener::bind(&self.addresses.peer).await {
                Ok(listener) => break listener,
                Err(error) => assert!(tokio::time::Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        self.start_on(listener).await;
    }

    /// The process dies: what was not synced is lost, and with it the store unless `keep_store`.
    async fn kill(&mut self, keep_store: bool) {
        let (consensus, stop, server) = self.running.take().expect("it runs");
        // First it is silent: what it says after the disk was looked at would be said by nobody.
        self.cut.cut();
        stop.send_replace(true);
        server.await.unwrap();
        consensus.shared.tasks.lock().iter().for_each(JoinHandle::abort);
        if let Some(running) = consensus.shared.running.load_full() {
            running.crash().await;
        }
        self.disk = self.disk.crashed(Crash::LoseUnsynced);
        self.cut = Arc::default();
        if !keep_store {
            self.engines.delete();
        }
    }

    fn consensus(&self) -> &Consensus {
        &self.running.as_ref().expect("it runs").0
    }

    fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Everything that it has applied, row by row.
    fn dump(&self) -> Vec<Row> {
        let view = self.consensus().records().snapshot().unwrap();
        view.rows.into_scan().unwrap().map(|row| row.unwrap()).collect()
    }
}

struct Cluster {
    members: Vec<Member>,
}

impl Cluster {
    /// Nodes that run and are in no cluster.
    async fn unformed(count: u64) -> Self {
        let mut members = Vec::new();
        for id in 1..=count {
            members.push(Member::new(id).await);
        }
        Self { members }
    }

    async fn new(count: u64) -> Self {
        let cluster = Self::unformed(count).await;
        let formed = cluster.node(1).init(cluster.addresses(), init()).await.unwrap();
        assert!(formed.created);
        cluster.leader().await.propose(open_tenant()).await.unwrap().answer.unwrap();
        cluster
    }

    fn addresses(&self) -> BTreeMap<NodeId, Addresses> {
        self.members.iter().map(|member| (member.id, member.addresses.clone())).collect()
    }

    fn member(&mut self, id: NodeId) -> &mut Member {
        self.members.iter_mut().find(|member| member.id == id).expect("a node of this id")
    }

    fn node(&self, id: NodeId) -> &Consensus {
        self.members.iter().find(|member| member.id == id).expect("a node of this id").consensus()
    }

    fn live(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_running())
    }

    /// The leader, once those that run and are not cut off agree on one.
    async fn leader(&self) -> &Consensus {
        let id = wait_long(|| {
            let reachable = || self.live().filter(|member| !member.cut.is_cut());
            let mut leaders = reachable().map(|member| member.consensus().status().leader_id);
            let first = leaders.next()??;
            let leads = reachable().any(|member| member.id == first);
            (leads && leaders.all(|leader| leader == Some(first))).then_some(first)
        });
        self.node(id.await)
    }

    /// A node that follows.
    async fn follower(&self) -> &Consensus {
        let leader = self.leader().await.status().node_id;
        let follower = self.live().find(|member| member.id != leader && !member.cut.is_cut());
        follower.expect("there is a follower").consensus()
    }

    /// Claims on whoever leads, until it is answered.
    async fn claim(&self, key: u64) -> Applied {
        let until = tokio::time::Instant::now() + AT_MOST;
        loop {
            let leader = self.leader().await;
            match leader.propose(claim(key)).await {
                Ok(applied) => return applied,
                Err(refusal) => assert!(tokio::time::Instant::now() < until, "{refusal}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// All that run have applied the same, and hold the same.
    async fn agree(&self) {
        let position = self.leader().await.records().figures().position;
        let same = || {
            let positions: Vec<_> = self.live().map(|m| m.consensus().status().applied).collect();
            let all_reached = self.live().all(|m| m.consensus().records().figures().position >= position);
            (all_reached && positions.windows(2).all(|pair| pair[0] == pair[1])).then_some(())
        };
        let until = tokio::time::Instant::now() + AT_MOST;
        loop {
            wait_long(same).await;
            let dumps: Vec<_> = self.live().map(Member::dump).collect();
            if same().is_some() {
                let is_same = dumps.windows(2).all(|pair| pair[0] == pair[1]);
                // An idle leader ticks now and then: only dumps of one moment can be compared.
                if is_same || tokio::time::Instant::now() > until {
                    assert!(is_same, "the replicas differ");
                    return;
                }
            }
        }
    }
}

async fn wait_long<T>(found: impl Fn() -> Option<T>) -> T {
    tokio::time::timeout(AT_MOST, async {
        loop {
            match found() {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await
    .expect("it comes to be")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_form_one_cluster_and_every_node_answers() {
    let cluster = Cluster::new(3).await;
    // The same set again, on any node, changes nothing; another set is refused.
    for id in 1..=3 {
        let again = wait_until_answered(|| cluster.node(id).init(cluster.addresses(), init())).await;
        assert_eq!(again, Forming { cluster_id: ClusterId([2; 16]), created: false }, "node {id}");
        let two = cluster.addresses().into_iter().filter(|(node, _)| *node == id || *node == 1).collect();
        assert!(matches!(cluster.node(id).init(two, init()).await, Err(FormError::OtherMembers)), "node {id}");
    }
    let first = cluster.leader().await.propose(claim(1)).await.unwrap();
    assert_eq!(fence(&first), Fence(first.index.0));
    for id in 1..=3 {
        let node = cluster.node(id);
        node.read_barrier().await.unwrap();
        assert!(node.records().figures().position >= first.index, "a barrier shows what was answered before it");
        assert!(is_in_progress(&node.propose(claim(1)).await.unwrap()), "node {id}");
        let own = node.propose(claim(100 + id)).await.unwrap();
        assert!(node.records().figures().position >= own.index, "an answer is given after it is applied here");
        let now = node.now();
        assert!(node.tick_to(now).await.unwrap() >= now);
        let status = node.status();
        assert_eq!(status.members.len(), 3);
        assert_eq!(status.cluster_id, Some(ClusterId([2; 16])));
    }
    let disks: Vec<_> = (1..=3).map(|id| cluster.node(id).status().disk_id.unwrap()).collect();
    for (member, disk) in cluster.node(1).status().members.iter().zip(disks) {
        assert_eq!(member.member.disk_id, disk);
    }
    let told = || {
        let status = cluster.node(1).status();
        let mut others = status.members.iter().filter(|member| member.node_id != 1);
        others.all(|member| member.told.as_ref().is_some_and(|told| told.is_reachable)).then_some(())
    };
    wait_long(told).await;
    cluster.agree().await;
}

/// Asks until it is done: of a busy machine a leader may say for a moment that it has reached no quorum lately.
async fn done<T, F: Future<Output = Result<T, Refusal>>>(call: impl Fn() -> F) -> T {
    let until = tokio::time::Instant::now() + AT_MOST;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(refusal) if refusal.code == Code::Unavailable && tokio::time::Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

async fn wait_until_answered<T, F: Future<Output = Result<T, FormError>>>(call: impl Fn() -> F) -> T {
    let until = tokio::time::Instant::now() + AT_MOST;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(FormError::Refused(_)) if tokio::time::Instant::now() < until => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_init_that_can_not_reach_all_writes_nothing() {
    let mut cluster = Cluster::unformed(3).await;
    let addresses = cluster.addresses();
    cluster.member(3).kill(true).await;
    let refused = cluster.node(1).init(addresses.clone(), init()).await.unwrap_err();
    assert!(matches!(refused, FormError::Unreachable { node_id: 3, .. }), "{refused}");
    let mut others = addresses.clone();
    others.remove(&1);
    assert!(matches!(cluster.node(1).init(others, init()).await, Err(FormError::NotNamed { node_id: 1 })));
    // Node 2's address under node 3's name.
    let mut swapped = addresses.clone();
    swapped.insert(3, addresses[&2].clone());
    let refused = cluster.node(1).init(swapped, init()).await.unwrap_err();
    assert!(matches!(refused, FormError::Unreachable { node_id: 3, .. }), "{refused}");
    for id in [1, 2] {
        assert!(cluster.node(id).shared.options.read_promise().unwrap().is_none(), "node {id} has written something");
        assert!(!cluster.node(id).has_log());
    }
    cluster.member(3).start().await;
    assert!(cluster.node(2).init(addresses, init()).await.unwrap().created);
    cluster.leader().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_inits_at_once_at_most_one_succeeds() {
    for round in 0..4 {
        let cluster = Cluster::unformed(3).await;
        let other = Init { cluster_id: ClusterId([9; 16]), lineage_id: LineageId([9; 16]), ..init() };
        let mut fewer = cluster.addresses();
        if round % 2 == 1 {
            fewer.remove(&1);
        }
        let first = cluster.node(1).init(cluster.addresses(), init());
        let second = cluster.node(2).init(fewer, other);
        let (first, second) = tokio::join!(first, second);
        let clusters: std::collections::BTreeSet<_> =
            [&first, &second].into_iter().filter_map(|formed| formed.as_ref().ok()).map(|f| f.cluster_id).collect();
        assert!(clusters.len() <= 1, "{first:?} {second:?}");
        let logs: std::collections::BTreeSet<_> = cluster
            .live()
            .filter_map(|member| member.consensus().shared.running.load_full())
            .map(|running| running.identity.cluster_id)
            .collect();
        assert!(logs.len() <= 1, "two clusters were begun");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_survives_the_death_of_any_node_and_brings_it_back_by_its_log() {
    let mut cluster = Cluster::new(3).await;
    for round in 0..3_u64 {
        let dead = match round {
            0 => cluster.leader().await.status().node_id,
            _ => cluster.follower().await.status().node_id,
        };
        cluster.claim(1000 * round).await;
        cluster.member(dead).kill(round != 1).await;
        for key in 1..20 {
            cluster.claim(1000 * round + key).await;
        }
        cluster.member(dead).start().await;
        cluster.agree().await;
    }
    for key in [0, 19, 1000, 1019, 2000, 2019] {
        assert!(is_in_progress(&cluster.claim(key).await), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_far_behind_catches_up_by_snapshot() {
    let mut cluster = Cluster::new(3).await;
    let behind = cluster.follower().await.status().node_id;
    cluster.member(behind).kill(true).await;
    for part in 0..3 {
        for key in 0..150 {
            cluster.claim(part * 1000 + key).await;
        }
        for member in cluster.live() {
            member.consensus().snapshot_now().await.unwrap();
        }
    }
    let leader = cluster.leader().await;
    wait_long(|| leader.status().purged.filter(|purged| *purged > 100)).await;
    cluster.member(behind).start().await;
    let snapshot = wait_long(|| cluster.node(behind).status().snapshot).await;
    assert!(snapshot > 100);
    cluster.agree().await;
    assert!(is_in_progress(&cluster.claim(2149).await));
    // What it was sent is what it starts from.
    cluster.member(behind).kill(false).await;
    cluster.claim(9999).await;
    cluster.member(behind).start().await;
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_where_it_is_sent_under_load() {
    let cluster = Arc::new(Cluster::new(3).await);
    let done = Arc::new(AtomicU64::new(0));
    let (loaded, counted) = (Arc::clone(&cluster), Arc::clone(&done));
    let load = tokio::spawn(async move {
        for key in 0..200 {
            loaded.claim(key).await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for round in 0..4_u64 {
        let to = 1 + round % 3;
        // Asked of a node that mostly does not lead.
        cluster.node(1 + (round + 1) % 3).transfer(to, BY, AT_MOST).await.unwrap();
        wait_long(|| (cluster.node(to).status().role == RoleWord::Leader).then_some(())).await;
    }
    load.await.unwrap();
    assert_eq!(done.load(Ordering::Relaxed), 200);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_refuses_and_the_others_go_on() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let cut = cluster.leader().await.status().node_id;
    cluster.member(cut).cut.cut();
    let refused = wait_long_async(|| async {
        let refused = cluster.node(cut).propose(claim(2)).await.err()?;
        (refused.code == Code::Unavailable).then_some(refused)
    });
    refused.await;
    assert_eq!(cluster.node(cut).read_barrier().await.unwrap_err().code, Code::Unavailable);
    assert!(cluster.node(cut).propose(claim(3)).await.is_err());
    let new = cluster.leader().await.status().node_id;
    assert_ne!(new, cut);
    for key in 10..30 {
        cluster.claim(key).await;
    }
    cluster.member(cut).cut.heal();
    cluster.agree().await;
    let node = cluster.node(cut);
    node.read_barrier().await.unwrap();
    assert!(is_in_progress(&node.propose(claim(29)).await.unwrap()));
}

async fn wait_long_async<T, F: Future<Output = Option<T>>>(found: impl Fn() -> F) -> T {
    tokio::time::timeout(AT_MOST, async {
        loop {
            if let Some(found) = found().await {
                return found;
            }
        }
    })
    .await
    .expect("it comes to be")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_decided_and_with_it_all_goes_on() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    for id in [1, 2] {
        cluster.member(id).kill(true).await;
    }
    let refused = wait_long_async(|| async {
        let refused = cluster.node(3).propose(claim(2)).await.err()?;
        (refused.code == Code::Unavailable).then_some(())
    });
    refused.await;
    assert_eq!(cluster.node(3).read_barrier().await.unwrap_err().code, Code::Unavailable);
    cluster.member(2).start().await;
    assert!(is_in_progress(&cluster.claim(1).await));
    cluster.member(1).start().await;
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_added_promoted_and_removed_and_ids_are_never_used_again() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let follower = cluster.follower().await.clone();
    cluster.members.push(Member::new(4).await);
    let address = cluster.member(4).addresses.clone();
    follower.add(4, address.clone(), BY, AT_MOST).await.unwrap();
    follower.add(4, address.clone(), BY, AT_MOST).await.unwrap();
    let elsewhere = Addresses { peer: "127.0.0.1:1".into(), ..address.clone() };
    assert_eq!(follower.add(4, elsewhere, BY, AT_MOST).await.unwrap_err().code, Code::WrongState);
    wait_long(|| (cluster.node(4).status().role == RoleWord::Learner).then_some(())).await;
    follower.promote(4, BY, AT_MOST).await.unwrap();
    wait_long(|| (cluster.node(4).status().role == RoleWord::Follower).then_some(())).await;
    cluster.agree().await;
    // The leader itself is removed: another leads first.
    let leader = cluster.leader().await.status().node_id;
    cluster.leader().await.remove(leader, false, BY, AT_MOST).await.unwrap();
    cluster.member(leader).kill(true).await;
    let left = cluster.leader().await;
    assert!(left.status().members.iter().all(|member| member.node_id != leader));
    left.remove(leader, false, BY, AT_MOST).await.unwrap();
    let again = Addresses { peer: "127.0.0.1:1".into(), client: "c:1".into() };
    let refused = left.add(leader, again, BY, AT_MOST).await.unwrap_err();
    assert_eq!(refused.code, Code::WrongState, "{refused}");
    cluster.claim(2).await;
    cluster.agree().await;
    // What was done once stands in the audit chain once, however often and on whatever node it was asked for.
    let Addresses { peer, client } = address;
    let expected = [
        format!(r#"member_added file:1 {{"node_id":4,"peer":"{peer}","client":"{client}"}}"#),
        r#"member_promoted file:1 {"node_id":4}"#.to_owned(),
        format!(r#"member_removed file:1 {{"node_id":{leader}}}"#),
    ];
    assert_eq!(audited(cluster.leader().await), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_disk_never_votes_and_is_replaced() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let wiped = cluster.follower().await.status().node_id;
    let old = cluster.node(wiped).status().disk_id;
    let member = cluster.member(wiped);
    member.kill(false).await;
    member.disk = FaultDisk::new();
    member.start().await;
    // It is contacted under the disk that it has lost.
    wait_long(|| (cluster.node(wiped).status().role == RoleWord::WaitingForReplace).then_some(())).await;
    let refused = cluster.node(wiped).init(cluster.addresses(), init()).await.unwrap_err();
    assert!(matches!(refused, FormError::WaitingForReplace), "{refused}");
    assert!(cluster.node(wiped).propose(claim(5)).await.is_err());
    let leader = cluster.leader_among(&[wiped]).await.clone();
    done(|| leader.replace(wiped, None, true, BY, AT_MOST)).await;
    wait_long(|| (cluster.node(wiped).status().role == RoleWord::Follower).then_some(())).await;
    assert_ne!(cluster.node(wiped).status().disk_id, old);
    let done = audited(cluster.leader_among(&[wiped]).await);
    assert_eq!(done, [format!(r#"member_replaced file:1 {{"node_id":{wiped}}}"#)]);
    cluster.claim(2).await;
    cluster.agree().await;
    // Now it counts: without another one there still is a majority.
    let other = cluster.live().map(|m| m.id).find(|id| *id != wiped && *id != leader.status().node_id).unwrap();
    cluster.member(other).kill(true).await;
    assert!(is_in_progress(&cluster.claim(2).await));
}

/// Whoever leads since a moment ago may not have heard of a node yet: that doesn't make its disk a lost one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_disk_is_not_replaced_by_a_leader_that_has_not_heard_of_it_yet() {
    let mut cluster = Cluster::new(3).await;
    cluster.claim(1).await;
    let healthy = cluster.follower().await.status().node_id;
    let disk = cluster.node(healthy).status().disk_id;
    let restarted = cluster.live().map(|member| member.id).find(|id| *id != healthy).unwrap();
    // The restarted node hears nothing of the healthy one until it leads.
    cluster.member(healthy).cut.cut();
    let member = cluster.member(restarted);
    member.kill(true).await;
    member.start().await;
    let leader = cluster.leader_among(&[healthy]).await;
    if leader.status().node_id != restarted {
        leader.transfer(restarted, BY, AT_MOST).await.unwrap();
    }
    wait_long(|| (cluster.node(restarted).status().role == RoleWord::Leader).then_some(())).await;
    cluster.member(healthy).cut.heal();
    let refused = cluster.node(restarted).replace(healthy, None, false, BY, AT_MOST).await.unwrap_err();
    assert!(refused.detail.contains("it is not lost"), "{refused}");
    assert_eq!(cluster.node(healthy).status().disk_id, disk);
}

impl Cluster {
    /// The leader that those besides `without` agree on.
    async fn leader_among(&self, without: &[NodeId]) -> &Consensus {
        let id = wait_long(|| {
            let mut leaders = self
                .live()
                .filter(|member| !without.contains(&member.id))
                .map(|member| member.consensus().status().leader_id);
            let first = leaders.next()??;
            leaders.all(|leader| leader == Some(first)).then_some(first)
        });
        self.node(id.await)
    }
}
