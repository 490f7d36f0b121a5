//! Disks that are full for a while: small file systems in memory under the data directories, filled by load and by a file
//! that is not the product's.

use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    caller::{Reply, record},
    cluster::{Cluster, PATIENCE},
    ledger::{Load, verify},
    node::Node,
};

const WITHIN: Duration = Duration::from_secs(12);
const OUTCOME_BYTES: usize = 200 * 1024;

/// A file system of its own under a data directory, gone with this.
struct Small {
    path: PathBuf,
}

impl Small {
    /// None where this machine doesn't let it be mounted.
    fn under(node: &Node, mebibytes: u64) -> Option<Self> {
        let path = node.data_dir();
        fs::create_dir_all(&path).unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self { path })
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("not-the-products")
    }

    /// Takes so many bytes away, or as many as there are.
    fn fill(&self, bytes: usize) {
        let mut file = File::options().create(true).append(true).open(self.ballast()).unwrap();
        let chunk = vec![7; 64 << 10];
        for _ in 0..bytes.div_ceil(chunk.len()) {
            if file.write_all(&chunk).is_err() {
                return;
            }
        }
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Whoever still has files open keeps them until it ends.
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}

/// Three nodes that serve, each on a small disk; none where there can't be any.
async fn small_cluster(mebibytes: [u64; 3]) -> Option<(Cluster, Vec<Small>)> {
    let mut cluster = Cluster::unformed(3).await;
    let mut disks = Vec::new();
    for (node, mebibytes) in cluster.nodes.iter().zip(mebibytes) {
        let Some(disk) = Small::under(node, mebibytes) else {
            eprintln!("skipped: this machine lets nobody mount a small file system");
            return None;
        };
        disks.push(disk);
    }
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.init().await;
    Some((cluster, disks))
}

/// Large outcomes that were acknowledged.
#[derive(Default)]
struct Large {
    completed: Vec<(String, String)>,
    tried: u64,
}

impl Large {
    /// Claims and completes one more, at one node. Answers the refusal, where it was one.
    async fn add(&mut self, cluster: &Cluster, node: usize) -> Option<Reply> {
        self.tried += 1;
        let (to, key) = (cluster.nodes[node].listen, format!("large-{}", self.tried));
        let claim = json!({"record": record(&key), "request": {}});
        let granted = cluster.caller.post(to, "/v1/claim", &claim, WITHIN).await.unwrap();
        if granted.status != 200 {
            return Some(granted);
        }
        let text = format!("{key}/").repeat(OUTCOME_BYTES / (key.len() + 1));
        let outcome = json!({"status": 200, "body": STANDARD.encode(&text)});
        let complete = json!({"record": record(&key), "fence": granted.json["fence"], "outcome": outcome});
        let completed = cluster.caller.post(to, "/v1/complete", &complete, WITHIN).await.unwrap();
        if completed.status != 200 {
            return Some(completed);
        }
        self.completed.push((key, text));
        None
    }

    /// Asks every node for everything back, byte for byte.
    async fn verify(&self, cluster: &Cluster) {
        for (number, (key, text)) in self.completed.iter().enumerate() {
            let to = cluster.nodes[number % cluster.nodes.len()].listen;
            let claim = json!({"record": record(key), "request": {}});
            let since = Instant::now();
            let reply = loop {
                match cluster.caller.post(to, "/v1/claim", &claim, WITHIN).await {
                    Ok(reply) if reply.status == 200 => break reply,
                    other => assert!(since.elapsed() < PATIENCE, "{key}: {other:?}"),
                }
                sleep(Duration::from_millis(50)).await;
            };
            assert_eq!(reply.word(), "completed", "{key}");
            assert!(reply.json["outcome"]["body"] == STANDARD.encode(text).as_str(), "{key}: another outcome");
        }
    }
}

/// Waits until a node's status has this word of its disk.
async fn wait_until_full(cluster: &Cluster, node: usize, is_full: bool) -> Value {
    let since = Instant::now();
    loop {
        let status = cluster.nodes[node].status(&cluster.caller).await;
        if let Some(status) = status.filter(|status| status["disk_is_full"] == is_full) {
            return status;
        }
        assert!(since.elapsed() < PATIENCE, "{is_full}: {}", cluster.nodes[node].log_tail());
        sleep(Duration::from_millis(50)).await;
    }
}

/// A node that says that its disk is full, and what it says.
async fn some_full_node(cluster: &Cluster) -> (usize, Value) {
    let since = Instant::now();
    loop {
        for (at, node) in cluster.nodes.iter().enumerate() {
            if let Some(status) = node.status(&cluster.caller).await.filter(|status| status["disk_is_full"] == true) {
                return (at, status);
            }
        }
        assert!(since.elapsed() < PATIENCE, "no disk is full");
        sleep(Duration::from_millis(50)).await;
    }
}

fn assert_running(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        assert!(node.is_running(), "node {} has ended: {}", node.id, node.log_tail());
    }
}

async fn metric(cluster: &Cluster, node: usize, name: &str) -> f64 {
    let at = cluster.nodes[node].admin;
    let text = cluster.caller.with_token(crate::node::CLUSTER_TOKEN).text(at, "/metrics", WITHIN).await;
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && !line.starts_with('#'))
        .unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disks_refuse_and_lose_nothing_and_the_nodes_go_on_when_there_is_room() {
    let Some((mut cluster, disks)) = small_cluster([72, 72, 160]).await else { return };
    // The third node's engine takes several times as much as the others'. What is freed later leaves room for writing each
    // anew, beside what is there.
    disks.iter().zip([54, 54, 138]).for_each(|(disk, mebibytes)| disk.fill(mebibytes << 20));
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 2);
    let mut large = Large::default();
    // Full is what refuses for a while, not once.
    let (mut refusal, since) = (None, Instant::now());
    let mut refused_since: Option<Instant> = None;
    while refused_since.is_none_or(|since| since.elapsed() < Duration::from_secs(3)) {
        assert!(since.elapsed() < 3 * PATIENCE, "the disks don't fill: {} outcomes", large.completed.len());
        let node = usize::try_from(large.tried % 3).unwrap();
        match large.add(&cluster, node).await {
            None => refused_since = None,
            Some(reply) => {
                assert!(reply.status == 503 || reply.status == 504, "{reply:?}");
                // A busy machine has other reasons too.
                if reply.json.to_string().contains("disk") {
                    refused_since.get_or_insert_with(Instant::now);
                    refusal = Some(reply);
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    let refusal = refusal.expect("some are refused");
    assert_eq!((refusal.word(), refusal.json["effect"].as_str()), ("unavailable", Some("none")), "{refusal:?}");
    assert!(large.completed.len() > 10, "{}", large.completed.len());
    assert_running(&mut cluster);
    let (full, status) = some_full_node(&cluster).await;
    let free: u64 = status["disk_free_bytes"].as_str().unwrap().parse().unwrap();
    assert!(free < 8 << 20 && status["disk_reserve_bytes"] == (4_u64 << 20).to_string().as_str(), "{status}");
    assert_eq!(metric(&cluster, full, "semel_disk_is_full").await, 1.0);
    let admin = cluster.nodes[full].admin;
    assert_eq!(cluster.caller.get(admin, "/healthz", WITHIN).await.unwrap().status, 200);
    let unready = cluster.caller.get(admin, "/readyz", WITHIN).await.unwrap();
    assert!(unready.status == 503 && unready.json.to_string().contains("disk"), "{unready:?}");
    // What is known is still told.
    let (key, text) = large.completed.last().unwrap();
    let claim = json!({"record": record(key), "request": {}});
    let since = Instant::now();
    loop {
        let leader = cluster.leader().await;
        let told = cluster.caller.post(cluster.nodes[leader].listen, "/v1/claim", &claim, WITHIN).await.unwrap();
        if told.status == 200 {
            assert!(told.word() == "completed" && told.json["outcome"]["body"] == STANDARD.encode(text).as_str());
            break;
        }
        // Between two leaders nobody tells.
        assert!(since.elapsed() < PATIENCE, "{told:?}");
    }

    disks.iter().for_each(Small::free);
    for node in 0..3 {
        wait_until_full(&cluster, node, false).await;
    }
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    load.wait_for_answers(50).await;
    let ledger = load.end().await;
    assert_running(&mut cluster);
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    large.verify(&cluster).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_full_disk_stops_no_cluster_whoever_has_it() {
    let Some((mut cluster, disks)) = small_cluster([96; 3]).await else { return };
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 2);
    let mut large = Large::default();
    for leads in [false, true] {
        let leader = cluster.leader().await;
        let victim = if leads { leader } else { (leader + 1) % 3 };
        // Nothing at all is left.
        disks[victim].fill(usize::MAX);
        wait_until_full(&cluster, victim, true).await;
        let since = Instant::now();
        while leads && cluster.leader().await == victim {
            assert!(since.elapsed() < PATIENCE, "a full leader keeps leading: {}", cluster.nodes[victim].log_tail());
        }
        // More than the victim's log has room for.
        for _ in 0..12 {
            let other = (victim + 1) % 3;
            while let Some(refused) = large.add(&cluster, other).await {
                assert!(refused.status == 503 || refused.status == 504, "{refused:?}");
                assert!(since.elapsed() < PATIENCE, "the others don't go on: {refused:?}");
                sleep(Duration::from_millis(50)).await;
            }
        }
        load.wait_for_answers(100).await;
        assert_running(&mut cluster);
        let leader = cluster.leader().await;
        let status = cluster.nodes[leader].status(&cluster.caller).await.unwrap();
        let told = status["members"].as_array().unwrap().iter().find(|one| one["id"] == cluster.nodes[victim].id);
        assert_eq!(told.unwrap()["disk_is_full"], true, "{status}");
        disks[victim].free();
        wait_until_full(&cluster, victim, false).await;
        cluster.wait_until_ready(&[cluster.nodes[victim].listen]).await;
        load.wait_for_answers(50).await;
    }
    let ledger = load.end().await;
    assert_running(&mut cluster);
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    large.verify(&cluster).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}
