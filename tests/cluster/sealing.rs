//! Sealed clusters: what callers say stands in none of their files, and only the right key opens it.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    node::{Node, semel},
};

pub const WITHIN: Duration = Duration::from_secs(20);

/// Texts that must be found nowhere. Each is long enough not to occur by chance.
pub const PLANTED: [&str; 14] = [
    "planted-key-one",
    "planted-key-two",
    "planted-key-three",
    "planted-principal",
    "planted-operation",
    "planted-label",
    "planted-checkpoint-name",
    "planted-checkpoint-data",
    "planted-outcome-body",
    "planted-outcome-header",
    "planted-reason",
    "planted-evidence",
    "planted-actor",
    "planted-note",
];

/// A key file of its own for each node, all alike.
pub fn seal(cluster: &Cluster) -> PathBuf {
    let first = cluster.nodes[0].file("seal.keys");
    generate(&first);
    for node in &cluster.nodes {
        let own = node.file("seal.keys");
        if own != first {
            fs::copy(&first, &own).unwrap();
        }
        node.configure(&format!("\n[seal]\nkey_file = \"{}\"\n", own.display()));
    }
    first
}

pub fn generate(path: &Path) {
    let made = semel().args(["keys", "generate", "--out"]).arg(path).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

pub fn record(key: &str) -> Value {
    json!({"principal": "planted-principal", "operation": "planted-operation", "key": key})
}

pub async fn ok(cluster: &Cluster, node: usize, path: &str, body: Value) -> Value {
    let reply = cluster.caller.post(cluster.nodes[node].listen, path, &body, WITHIN).await.unwrap();
    assert_eq!(reply.status, 200, "{path}: {reply:?}");
    reply.json
}

pub fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

pub fn outcome() -> Value {
    let body = encoded("planted-outcome-body");
    json!({"status": 201, "headers": {"x-planted": "planted-outcome-header"}, "content_type": "text/plain", "body": body})
}

/// A life of three records, with everything that callers can say. Answers the fence of the second.
pub async fn live(cluster: &Cluster, last: usize) -> Value {
    let claim = |key: &str| {
        json!({"record": record(key), "request": {"amount": 1}, "staged": true, "lease_ms": 60000,
               "labels": {"planted-label": "planted-label"}})
    };
    let one = ok(cluster, 0, "/v1/claim", claim("planted-key-one")).await;
    let owner = |key: &str, fence: &Value| json!({"record": record(key), "fence": fence});
    let with = |mut body: Value, name: &str, value: Value| {
        body[name] = value;
        body
    };
    let of_one = owner("planted-key-one", &one["fence"]);
    ok(cluster, last, "/v1/begin", of_one.clone()).await;
    let point = json!({"name": "planted-checkpoint-name", "data": encoded("planted-checkpoint-data")});
    let kept = with(with(of_one.clone(), "name", point["name"].clone()), "data", point["data"].clone());
    ok(cluster, 0, "/v1/checkpoint", kept).await;
    let read = ok(cluster, last, "/v1/get", json!({"record": record("planted-key-one")})).await;
    assert_eq!((&read["checkpoint"], &read["labels"]["planted-label"]), (&point, &json!("planted-label")), "{read}");
    assert_eq!(read["record"]["key"], "planted-key-one");
    ok(cluster, 0, "/v1/complete", with(of_one, "outcome", outcome())).await;

    let two = ok(cluster, last, "/v1/claim", claim("planted-key-two")).await;
    let of_two = owner("planted-key-two", &two["fence"]);
    ok(cluster, 0, "/v1/begin", of_two.clone()).await;
    ok(cluster, 0, "/v1/suspend", with(of_two, "reason", json!("planted-reason"))).await;
    let doubtful = ok(cluster, last, "/v1/claim", claim("planted-key-two")).await;
    assert_eq!((&doubtful["answer"], &doubtful["reason"]), (&json!("indeterminate"), &json!("planted-reason")));
    let listed = ok(cluster, last, "/v1/list", json!({"state": "indeterminate"})).await;
    assert_eq!(listed["records"][0]["record"]["key"], "planted-key-two", "{listed}");
    let held = json!({"record": record("planted-key-two"), "actor": "planted-actor"});
    let held = ok(cluster, 0, "/v1/investigate", held).await;
    let verdict = json!({"record": record("planted-key-two"), "version": held["version"], "verdict": "completed",
                         "outcome": outcome(), "actor": "planted-actor", "evidence": "planted-evidence"});
    ok(cluster, last, "/v1/resolve", verdict).await;

    let three = ok(cluster, 0, "/v1/claim", claim("planted-key-three")).await;
    let of_three = owner("planted-key-three", &three["fence"]);
    ok(cluster, 0, "/v1/begin", of_three.clone()).await;
    ok(cluster, 0, "/v1/release", with(of_three, "evidence", json!("planted-evidence"))).await;
    let token = json!({"operations": ["planted-operation*"], "permissions": ["claim"], "note": "planted-note"});
    let token = ok(cluster, last, "/v1/token/create", token).await;
    let revoked = json!({"token_id": token["token_id"], "reason": "planted-reason"});
    ok(cluster, 0, "/v1/token/revoke", revoked).await;
    ok(cluster, 0, "/v1/policy/set", json!({"operation": "planted-operation", "policy": {"lease_ms_default": 60000}}))
        .await;
    two["fence"].clone()
}

/// What is replayed, read and told of the past; the same whenever it is asked for, but for the position of the answer.
pub async fn told(cluster: &Cluster, node: usize) -> Vec<String> {
    let mut told = Vec::new();
    for key in ["planted-key-one", "planted-key-two"] {
        let claim = json!({"record": record(key), "request": {"amount": 1}});
        told.push(ok(cluster, node, "/v1/claim", claim).await);
        told.push(ok(cluster, node, "/v1/get", json!({"record": record(key), "with_outcome": true})).await);
        told.push(ok(cluster, node, "/v1/history", json!({"record": record(key)})).await);
    }
    told.push(ok(cluster, node, "/v1/history", json!({"record": record("planted-key-three")})).await);
    told.push(ok(cluster, node, "/v1/token/list", json!({})).await);
    // Opened, row by row: who, and with what evidence.
    let mut audit = ok(cluster, node, "/v1/audit", json!({})).await;
    // Which data keys there are may change; what the rows say may not.
    audit["head"].as_object_mut().unwrap().remove("data_keys");
    assert!(audit.to_string().contains("planted-evidence") && audit.to_string().contains("planted-reason"), "{audit}");
    told.push(audit);
    for said in &mut told {
        for name in ["index", "attempt_id"] {
            said.as_object_mut().unwrap().remove(name);
        }
    }
    told.iter().map(Value::to_string).collect()
}

pub fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

/// How many files stand below here, and which of the planted texts stand in them, as they are or in base64.
fn searched(dir: &Path) -> (usize, Vec<String>) {
    let texts: Vec<String> = PLANTED.iter().flat_map(|text| [(*text).to_owned(), encoded(text)]).collect();
    searched_for(dir, &texts, &[])
}

/// How many files stand below here, without those of these names, and which of the texts stand in them.
pub fn searched_for(dir: &Path, texts: &[String], without: &[&str]) -> (usize, Vec<String>) {
    const PIECE: usize = 64 << 10;
    const OVERLAP: usize = 64;
    let zeros = vec![0; PIECE + OVERLAP];
    let (mut paths, mut hits) = (Vec::new(), Vec::new());
    files(dir, &mut paths);
    let is_searched = |path: &PathBuf| !without.iter().any(|name| path.ends_with(name));
    paths.retain(is_searched);
    for path in &paths {
        let bytes = fs::read(path).unwrap();
        for from in (0..bytes.len()).step_by(PIECE) {
            let piece = &bytes[from..bytes.len().min(from + PIECE + OVERLAP)];
            // Most of a log is zeros.
            if piece == &zeros[..piece.len()] {
                continue;
            }
            let piece = String::from_utf8_lossy(piece);
            let found = texts.iter().filter(|text| piece.contains(text.as_str()));
            hits.extend(found.map(|text| format!("{text} in {}", path.display())));
        }
    }
    (paths.len(), hits)
}

fn names(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    files(dir, &mut found);
    found.sort();
    // Large files are of zeros mostly; their beginnings and their lengths do.
    let told = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        let told = [&bytes.len().to_be_bytes()[..], &bytes[..bytes.len().min(65536)]].concat();
        (path, told)
    };
    found.into_iter().map(told).collect()
}

/// A start with other keys, or with none, says so and changes nothing.
fn refuses_other_keys(node: &Node, keys: &Path) {
    let right = fs::read(keys).unwrap();
    let before = names(&node.data_dir());
    fs::remove_file(keys).unwrap();
    generate(keys);
    let differs = "semel: sealing key 1 is not the key this cluster was sealed with; nothing was changed";
    assert_eq!(node.fails_to_start(), (Some(2), differs.to_owned()));
    let text = fs::read_to_string(keys).unwrap().replace("id = 1", "id = 2");
    fs::write(keys, text).unwrap();
    let missing = "semel: sealing key 1 is missing (found: 2); nothing was changed";
    assert_eq!(node.fails_to_start(), (Some(2), missing.to_owned()));
    let config = fs::read_to_string(node.file("semel.toml")).unwrap();
    fs::write(node.file("semel.toml"), config.split("[seal]").next().unwrap()).unwrap();
    let none = "semel: sealing key 1 is missing (found: none); nothing was changed";
    assert_eq!(node.fails_to_start(), (Some(2), none.to_owned()));
    fs::write(node.file("semel.toml"), config).unwrap();
    fs::set_permissions(keys, fs::Permissions::from_mode(0o644)).unwrap();
    let (status, said) = node.fails_to_start();
    assert!(status == Some(2) && said.contains("can be read by group or others"), "{status:?} {said}");
    fs::set_permissions(keys, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(before == names(&node.data_dir()), "a file has changed");
    fs::write(keys, right).unwrap();
}

async fn sealed_life(nodes: u64) {
    let mut cluster = Cluster::unformed(nodes).await;
    let last = cluster.nodes.len() - 1;
    let keys = seal(&cluster);
    for node in &mut cluster.nodes {
        node.start_with(&[("SEMEL_LOG", "trace,h2=warn,hyper=warn,tower=warn")]);
    }
    cluster.init().await;
    live(&cluster, last).await;
    let before = told(&cluster, last).await;
    assert!(before[0].contains(&encoded("planted-outcome-body")), "{}", before[0]);
    assert!(before[2].contains("planted-outcome") || before[2].contains("completed"), "{}", before[2]);
    assert!(before.iter().any(|text| text.contains("planted-evidence")), "{before:?}");
    for node in 0..=last {
        assert_eq!(told(&cluster, node).await, before, "node {node} tells otherwise");
    }
    for _ in 0..2 {
        for (at, id) in cluster.ids().into_iter().enumerate() {
            let taken = cluster.operate(at, &["snapshot", &id.to_string()]).await;
            assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        }
    }
    cluster.nodes.iter_mut().for_each(Node::kill);
    refuses_other_keys(&cluster.nodes[0], &keys);
    for node in &cluster.nodes {
        let (count, hits) = searched(node.file("log").parent().unwrap());
        assert!(count > 5 && hits.is_empty(), "{hits:?}");
        let noted = fs::read_to_string(node.data_dir().join("seal.json")).unwrap();
        assert!(noted.contains("\"current\":1"), "{noted}");
    }
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    for node in 0..=last {
        assert_eq!(told(&cluster, node).await, before, "node {node} tells otherwise after the restart");
    }
    if nodes > 1 {
        cluster.wait_until_level().await;
        cluster.stop_and_compare().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_node_keeps_no_plaintext_and_opens_with_its_key_alone() {
    sealed_life(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sealed_nodes_keep_no_plaintext_and_tell_the_same() {
    sealed_life(3).await;
}

/// A backup without its ring is of no use to anybody; with it and the key file it is the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_backup_opens_with_its_ring_and_the_key_file() {
    let mut cluster = Cluster::unformed(1).await;
    let keys = seal(&cluster);
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.init().await;
    live(&cluster, 0).await;
    let before = told(&cluster, 0).await;
    let dir = tempfile::tempdir().unwrap();
    let (backup, ring) = (dir.path().join("backup"), dir.path().join("semel.ring"));
    let (backup, ring) = (backup.to_str().unwrap(), ring.to_str().unwrap());
    let refused = cluster.run(&["backup", "--out", backup], 0).await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("--no-keyring"), "{said}");
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "something was made");
    let made = cluster.run(&["backup", "--out", backup, "--keyring", ring], 0).await;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    cluster.nodes[0].kill();
    let (count, hits) = searched(dir.path());
    assert!(count >= 3 && hits.is_empty(), "{hits:?}");

    // Without the ring, with another's, and into a node without the key file.
    let mut restored = Cluster::unformed(1).await;
    let other = seal(&restored);
    restored.nodes[0].start();
    restored.wait_until_up().await;
    let name = restored.nodes[0].named();
    let refused = async |restored: &Cluster, more: &[&str], why: &str| {
        let done = restored.run(&[&["restore", backup, "--node", &name], more].concat(), 0).await;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && said.contains(why), "{said}");
    };
    refused(&restored, &[], "the backup is sealed: --keyring").await;
    refused(&restored, &["--keyring", ring], "sealing key 1 is not the key").await;
    restored.nodes[0].kill();
    fs::copy(&keys, &other).unwrap();
    restored.nodes[0].start();
    restored.wait_until_up().await;
    let done = restored.run(&["restore", backup, "--node", &name, "--keyring", ring], 0).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    restored.wait_until_ready(&restored.client_addresses()).await;
    assert_eq!(told(&restored, 0).await, before);
    restored.nodes[0].kill();
    let (_, hits) = searched(restored.nodes[0].file("log").parent().unwrap());
    assert!(hits.is_empty(), "{hits:?}");

    // Into an empty directory, of a node that does not run.
    let offline = Cluster::unformed(1).await;
    let own = seal(&offline);
    fs::copy(&keys, &own).unwrap();
    let data = offline.nodes[0].data_dir();
    let done = offline.run(&["restore", backup, "--data-dir", data.to_str().unwrap(), "--keyring", ring], 0).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut offline = offline;
    offline.nodes[0].start();
    offline.wait_until_ready(&offline.client_addresses()).await;
    assert_eq!(told(&offline, 0).await, before);
}

/// A member that was given no key replicates what it can't read, takes nothing on, and serves once it has the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_the_key_replicates_and_is_not_ready() {
    let mut cluster = Cluster::unformed(3).await;
    let config = fs::read_to_string(cluster.nodes[2].file("semel.toml")).unwrap();
    seal(&cluster);
    let sealed = fs::read_to_string(cluster.nodes[2].file("semel.toml")).unwrap();
    fs::write(cluster.nodes[2].file("semel.toml"), config).unwrap();
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.wait_until_up().await;
    let names: Vec<String> = cluster.nodes.iter().flat_map(|node| ["--node".to_owned(), node.named()]).collect();
    let arguments: Vec<&str> = std::iter::once("init").chain(names.iter().map(String::as_str)).collect();
    let done = cluster.operate(0, &arguments).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let all = cluster.client_addresses();
    cluster.wait_until_ready(&all[..2]).await;
    let claim = |key: &str| json!({"record": record(key), "request": {"amount": 1}});
    assert_eq!(ok(&cluster, 1, "/v1/claim", claim("planted-key-one")).await["answer"], "new");
    let reply = cluster.caller.post(cluster.nodes[2].listen, "/v1/claim", &claim("planted-key-one"), WITHIN).await;
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.word()), (503, "unavailable"), "{reply:?}");
    let ready = cluster.caller.get(cluster.nodes[2].admin, "/readyz", WITHIN).await.unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    assert_ne!(cluster.leader().await, 2, "it leads");
    cluster.wait_until_level().await;

    cluster.nodes[2].kill();
    fs::write(cluster.nodes[2].file("semel.toml"), sealed).unwrap();
    cluster.nodes[2].start();
    cluster.wait_until_ready(&all[2..]).await;
    let again = ok(&cluster, 2, "/v1/get", json!({"record": record("planted-key-one")})).await;
    assert_eq!(again["record"]["key"], "planted-key-one");
    cluster.stop_and_compare().await;
}
