//! The end of a tenant: it is refused everything, and neither disks nor an old backup give anything back.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{Cluster, PATIENCE},
    node::{CLUSTER_TOKEN, Node},
    sealing::{WITHIN, files, live, ok, outcome, record, seal},
};

/// What opens the tenant's fields, as it stands in a backup and in its key ring: wrapped, but that is all there is.
struct Keys {
    root: Vec<u8>,
    data: Vec<u8>,
    index: Vec<u8>,
}

fn after<'a>(bytes: &'a [u8], begin: &[u8]) -> &'a [u8] {
    let at = bytes.windows(begin.len()).position(|window| window == begin);
    &bytes[at.unwrap_or_else(|| panic!("{begin:?} is not there")) + begin.len()..]
}

fn keys_of(backup: &Path, ring: &Path) -> Keys {
    let ring = fs::read(ring).unwrap();
    // Length and name, state, since when, length and root key.
    let root = &after(&ring, b"\x00\x00\x00\x04acme\x01")[8..];
    assert_eq!(root[..4], [0, 0, 0, 76]);
    let part = fs::read(backup.join("part-000000")).unwrap();
    let wrapped = |row: &[u8], value: &[u8]| after(after(&part, row), value)[..72].to_vec();
    Keys {
        root: root[8..80].to_vec(),
        data: wrapped(b"\x0d\x04acme", &[1, 1, 1, 1, 1, 72]),
        index: wrapped(b"\x09\x04acme", &[1, 1, 72]),
    }
}

/// In which files below here any of these keys stands.
fn found(dir: &Path, keys: &Keys) -> Vec<PathBuf> {
    const PIECE: usize = 64 << 10;
    const TOLD: usize = 32;
    let zeros = vec![0; PIECE + TOLD];
    let (mut paths, mut hits) = (Vec::new(), Vec::new());
    files(dir, &mut paths);
    for path in paths {
        let bytes = fs::read(&path).unwrap();
        // Its nonce and the first bytes: what a file cuts in two is found too.
        let needles = [&keys.root[..TOLD], &keys.data[..TOLD], &keys.index[..TOLD]];
        for from in (0..bytes.len()).step_by(PIECE) {
            let piece = &bytes[from..bytes.len().min(from + PIECE + TOLD)];
            // Most of a log is zeros.
            if piece != &zeros[..piece.len()] && piece.windows(TOLD).any(|window| needles.contains(&window)) {
                hits.push(path.clone());
            }
        }
    }
    hits
}

pub async fn asked(cluster: &Cluster, node: usize, path: &str, body: Value) -> Value {
    let operator = cluster.caller.with_token(CLUSTER_TOKEN);
    let until = Instant::now() + PATIENCE;
    loop {
        let reply = operator.post(cluster.nodes[node].admin, path, &body, WITHIN).await.unwrap();
        // On a busy machine leaders come and go.
        if reply.status != 503 || Instant::now() > until {
            assert_eq!(reply.status, 200, "{path}: {reply:?}");
            return reply.json;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until every node has nothing left of the tenant.
async fn wait_until_scrubbed(cluster: &Cluster) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = asked(cluster, 0, "/v1/admin/tenant/status", json!({"tenant": "acme"})).await;
        let nodes = status["nodes"].as_array().unwrap();
        if nodes.len() == cluster.nodes.len() && nodes.iter().all(|node| node["state"] == "scrubbed") {
            return status;
        }
        assert!(Instant::now() < until, "{status}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn is_forbidden(cluster: &Cluster, node: usize) {
    let caller = &cluster.caller;
    let claim = json!({"record": record("planted-key-one"), "request": {"amount": 1}});
    for (path, body) in [
        ("/v1/claim", claim.clone()),
        ("/v1/complete", json!({"record": record("planted-key-one"), "fence": "9", "outcome": outcome()})),
        ("/v1/get", json!({"record": record("planted-key-one")})),
        ("/v1/list", json!({})),
        ("/v1/history", json!({"record": record("planted-key-one")})),
        ("/v1/policy/get", json!({})),
        ("/v1/token/list", json!({})),
        ("/v1/audit", json!({})),
        ("/v1/batch", json!({"items": [{"claim": claim}]})),
    ] {
        let reply = caller.post(cluster.nodes[node].listen, path, &body, WITHIN).await.unwrap();
        assert_eq!((reply.status, reply.word()), (403, "forbidden"), "{path} at node {node}: {reply:?}");
    }
}

async fn run(cluster: &Cluster, arguments: &[&str]) -> String {
    let done = cluster.run(arguments, 0).await;
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// A claim that waits for another owner, and a watch, end when their tenant does.
async fn shred_under_waiters(cluster: &Cluster, last: usize) {
    let held = json!({"record": record("held"), "request": {"amount": 1}, "lease_ms": 60000});
    ok(cluster, 0, "/v1/claim", held.clone()).await;
    let waiting = json!({"record": record("held"), "request": {"amount": 1}, "wait_ms": 30000});
    let (caller, listen) = (cluster.caller.clone(), cluster.nodes[last].listen);
    let waiter = tokio::spawn(async move { caller.post(listen, "/v1/claim", &waiting, WITHIN + WITHIN).await });
    let operator = cluster.caller.with_token(CLUSTER_TOKEN);
    let until = Instant::now() + PATIENCE;
    loop {
        let metrics = operator.text(cluster.nodes[last].admin, "/metrics", WITHIN).await;
        if metrics.lines().any(|line| line == "semel_waiters 1") {
            break;
        }
        assert!(Instant::now() < until, "nobody waits");
        sleep(Duration::from_millis(20)).await;
    }
    let refused = cluster.run(&["tenant", "shred", "acme", "--confirm", "acm", "--reason", "over"], 0).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("confirm"), "{said}");
    let told =
        run(cluster, &["tenant", "shred", "acme", "--confirm", "acme", "--reason", "contract ended", "--json"]).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(!told["closed_at"].is_null() && told["older_copies_stay"] == false, "{told}");
    let ended =
        tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("it waits no more").unwrap().unwrap();
    assert_eq!((ended.status, ended.word()), (403, "forbidden"), "{ended:?}");
}

async fn shredded_life(nodes: u64) {
    let mut cluster = Cluster::unformed(nodes).await;
    let last = cluster.nodes.len() - 1;
    let key_file = seal(&cluster);
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.init().await;
    live(&cluster, last).await;
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    run(&cluster, &["backup", "--out", &path("before"), "--keyring", &path("old.ring")]).await;
    let keys = keys_of(&dir.path().join("before"), &dir.path().join("old.ring"));
    for node in &cluster.nodes {
        assert!(!found(&node.data_dir(), &keys).is_empty(), "what is looked for can be found");
    }
    shred_under_waiters(&cluster, last).await;
    is_forbidden(&cluster, last).await;
    wait_until_scrubbed(&cluster).await;
    for node in 0..=last {
        is_forbidden(&cluster, node).await;
        assert_eq!(found(&cluster.nodes[node].data_dir(), &keys), Vec::<PathBuf>::new(), "node {node} has it still");
    }
    let again = run(&cluster, &["tenant", "shred", "acme", "--confirm", "acme", "--reason", "again", "--json"]).await;
    assert!(again.contains("\"state\":\"scrubbed\""), "{again}");
    if nodes > 1 {
        cluster.wait_until_level().await;
        cluster.stop_and_compare().await;
        cluster.nodes.iter_mut().for_each(Node::start);
        cluster.wait_until_ready(&cluster.client_addresses()).await;
    }
    // Killed and started again, it has not forgotten.
    cluster.nodes.iter_mut().for_each(Node::kill);
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    is_forbidden(&cluster, last).await;
    let status = wait_until_scrubbed(&cluster).await;
    assert_eq!(status["records_left"], 0, "{status}");
    let audit = asked_audit(&cluster).await;
    for word in ["tenant_closed", "tenant_keys_destroyed", "contract ended"] {
        assert!(audit.contains(word), "{word}: {audit}");
    }
    run(&cluster, &["backup", "--out", &path("after"), "--keyring", &path("new.ring")]).await;

    // The old backup with the ring of now: closed before anything is served, and emptied.
    let mut restored = Cluster::unformed(1).await;
    let own = seal(&restored);
    fs::copy(&key_file, &own).unwrap();
    restored.nodes[0].start();
    restored.wait_until_up().await;
    let name = restored.nodes[0].named();
    run(&restored, &["restore", &path("before"), "--node", &name, "--keyring", &path("new.ring")]).await;
    restored.wait_until_ready(&restored.client_addresses()).await;
    is_forbidden(&restored, 0).await;
    wait_until_scrubbed(&restored).await;
    assert_eq!(found(&restored.nodes[0].data_dir(), &keys), Vec::<PathBuf>::new());
}

async fn asked_audit(cluster: &Cluster) -> String {
    let operator = cluster.caller.with_token(CLUSTER_TOKEN);
    let reply = operator.post(cluster.nodes[0].listen, "/v1/audit", &json!({}), WITHIN).await.unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shredded_tenant_is_gone_from_the_disk_and_an_old_backup_stays_shut() {
    shredded_life(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_shred_a_tenant_from_all_their_disks() {
    shredded_life(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_not_sealed_shreds_nothing() {
    let mut cluster = Cluster::unformed(1).await;
    cluster.nodes[0].start();
    cluster.init().await;
    let claim = json!({"record": record("k"), "request": {"amount": 1}});
    ok(&cluster, 0, "/v1/claim", claim.clone()).await;
    let refused = cluster.run(&["tenant", "shred", "acme", "--confirm", "acme", "--reason", "over"], 0).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("not sealed"), "{said}");
    ok(&cluster, 0, "/v1/claim", claim).await;
}
