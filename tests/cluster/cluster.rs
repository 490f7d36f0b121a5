//! Several nodes, the network between them, and what must hold of them once they are quiet.

use std::{net::SocketAddr, process::Output, sync::Arc, time::Duration};

use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    caller::Caller,
    links::{Links, own_address},
    node::{CLUSTER_TOKEN, Node, semel},
    ports::Port,
};

/// What a debug build on a busy machine may take for what takes a second.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Nodes of one cluster.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub links: Arc<Links>,
    pub caller: Caller,
    // Removed last.
    dir: TempDir,
}

impl Cluster {
    /// Three nodes that run and serve.
    pub async fn formed() -> Self {
        let mut cluster = Self::unformed(3).await;
        cluster.nodes.iter_mut().for_each(Node::start);
        cluster.init().await;
        cluster
    }

    /// Nodes that don't run yet.
    pub async fn unformed(count: u64) -> Self {
        let mut cluster =
            Self { nodes: Vec::new(), links: Links::new(), caller: Caller::new(), dir: tempfile::tempdir().unwrap() };
        for id in 1..=count {
            cluster.prepare(id).await;
        }
        cluster
    }

    /// One more node that doesn't run yet. Answers where it stands in `nodes`.
    pub async fn prepare(&mut self, id: u64) -> usize {
        let port = Port::any(own_address(id));
        let told = self.links.in_front_of(id, port.address()).await;
        // Two engines among three: what they hold has to be the same.
        let store = if id == 3 { "sled" } else { "fjall" };
        self.nodes.push(Node::new(self.dir.path(), id, port, told, store));
        self.nodes.len() - 1
    }

    /// Forms the cluster of all nodes that there are.
    pub async fn init(&self) {
        self.wait_until_up().await;
        let names: Vec<String> = self.nodes.iter().flat_map(|node| ["--node".to_owned(), node.named()]).collect();
        let mut arguments = vec!["init"];
        arguments.extend(names.iter().map(String::as_str));
        let done = self.operate(0, &arguments).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        self.wait_until_ready(&self.client_addresses()).await;
    }

    /// Waits until all nodes answer their operators, formed or not.
    pub async fn wait_until_up(&self) {
        let until = Instant::now() + PATIENCE;
        for node in &self.nodes {
            while self.caller.get(node.admin, "/healthz", Duration::from_secs(2)).await.is_err() {
                assert!(Instant::now() < until, "node {} does not come up", node.id);
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// `semel cluster …`, asked of this node.
    pub async fn operate(&self, node: usize, arguments: &[&str]) -> Output {
        self.run(&[&["cluster"], arguments].concat(), node).await
    }

    /// A command of the product's against this node's admin port.
    pub async fn run(&self, arguments: &[&str], node: usize) -> Output {
        let mut command = semel();
        command.args(arguments).env("SEMEL_ADMIN_ENDPOINT", format!("http://{}", self.nodes[node].admin));
        command.env("SEMEL_TOKEN", CLUSTER_TOKEN);
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
    }

    pub fn ids(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    pub fn client_addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.listen).collect()
    }

    /// Waits until the nodes behind these client addresses are ready.
    pub async fn wait_until_ready(&self, listening: &[SocketAddr]) {
        let until = Instant::now() + PATIENCE;
        for node in self.nodes.iter().filter(|node| listening.contains(&node.listen)) {
            while !self.is_ready(node).await {
                assert!(Instant::now() < until, "node {} is not ready", node.id);
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn is_ready(&self, node: &Node) -> bool {
        let reply = self.caller.get(node.admin, "/readyz", Duration::from_secs(6)).await;
        reply.is_ok_and(|reply| reply.status == 200)
    }

    /// Where the leader stands in `nodes`, as most of those that answer say.
    pub async fn leader(&self) -> usize {
        let until = Instant::now() + PATIENCE;
        loop {
            for (at, node) in self.nodes.iter().enumerate() {
                let Some(status) = node.status(&self.caller).await else { continue };
                if status["role"] == "leader" && status["leader_id"] == node.id && self.is_followed(node).await {
                    return at;
                }
            }
            assert!(Instant::now() < until, "nobody leads");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether a majority takes this node for the leader.
    async fn is_followed(&self, leader: &Node) -> bool {
        let mut followers = 0;
        for node in &self.nodes {
            let status = node.status(&self.caller).await;
            followers += usize::from(status.is_some_and(|status| status["leader_id"] == leader.id));
        }
        2 * followers > self.nodes.len()
    }

    /// Waits until a node tells that its wall clock is so far from the cluster's time, ms, in either direction.
    pub async fn wait_until_clock_is_off(&self, node: usize, least_ms: u64) {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.nodes[node].status(&self.caller).await;
            let offset = status.as_ref().and_then(|status| status["clock_offset_ms"].as_i64());
            if offset.is_some_and(|offset| offset.unsigned_abs() >= least_ms) {
                return;
            }
            assert!(Instant::now() < until, "node {node} doesn't tell of its clock: {status:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until all nodes have applied the same entries, and nothing is proposed any more.
    pub async fn wait_until_level(&self) {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut seen = Vec::new();
            for node in &self.nodes {
                seen.push(
                    node.status(&self.caller)
                        .await
                        .map(|status| (field(&status, "applied"), field(&status, "last_log"))),
                );
            }
            let first = seen[0].clone();
            if first.as_ref().is_some_and(|(applied, last)| applied == last) && seen.iter().all(|one| *one == first) {
                return;
            }
            assert!(Instant::now() < until, "the nodes don't come level: {seen:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops all nodes and compares what they hold, byte for byte (R10): each node's index with what its own log says at
    /// the same position, and what the logs say at the newest position that all of them know.
    pub async fn stop_and_compare(&mut self) {
        for node in &mut self.nodes {
            if node.is_running() {
                let status = node.stop(PATIENCE).await;
                assert_eq!(status, Some(0), "node {}: {}", node.id, node.log_tail());
            }
        }
        let mut positions = Vec::new();
        for node in &self.nodes {
            positions.push(position(&dump(node, None)));
            let index = dump_index(node);
            let log = dump(node, Some(position(&index)));
            assert!(
                index == log,
                "node {}'s index is not what its log says: {}",
                node.id,
                first_difference(&index, &log)
            );
        }
        let common = *positions.iter().min().expect("there are nodes");
        let first = dump(&self.nodes[0], Some(common));
        for node in &self.nodes[1..] {
            let other = dump(node, Some(common));
            let difference = || first_difference(&first, &other);
            assert!(first == other, "nodes 1 and {} differ at position {common}: {}", node.id, difference());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // What a failure left behind is worth looking at.
        if std::thread::panicking() {
            self.nodes.iter_mut().for_each(Node::kill);
            self.dir.disable_cleanup(true);
            eprintln!("what the nodes hold is kept in {}", self.dir.path().display());
        }
    }
}

fn field(status: &Value, name: &str) -> String {
    status[name].as_str().unwrap_or_default().to_owned()
}

fn first_difference(a: &str, b: &str) -> String {
    match a.lines().zip(b.lines()).enumerate().find(|(_, (a, b))| a != b) {
        Some((line, (a, b))) => format!("line {}:\n{a}\n{b}", line + 1),
        None => format!("{} and {} bytes, and the shorter one begins the longer", a.len(), b.len()),
    }
}

/// What a stopped node's log and snapshots say.
pub fn dump(node: &Node, at: Option<u64>) -> String {
    let position = at.map(|position| ["--position".to_owned(), position.to_string()]);
    inspect_store(node, &position.map_or_else(Vec::new, Vec::from))
}

/// What a stopped node's index holds.
pub fn dump_index(node: &Node) -> String {
    inspect_store(node, &["--index".to_owned()])
}

fn inspect_store(node: &Node, more: &[String]) -> String {
    let mut command = semel();
    command.args(["inspect", "store"]).arg(node.data_dir()).arg("--dump").args(more);
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "node {}: {}", node.id, String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn position(dump: &str) -> u64 {
    let first = dump.lines().next().unwrap_or_default();
    first
        .strip_prefix("position ")
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no position in {first:?}"))
}
