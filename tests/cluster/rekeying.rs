//! Keys that take the place of others while the cluster serves.

use std::{fs, path::Path, process::Command, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{Cluster, PATIENCE},
    node::{Node, semel},
    sealing::{generate, live, ok, record, seal, told},
    shredding::asked,
};

async fn status(cluster: &Cluster) -> Value {
    let leader = cluster.leader().await;
    asked(cluster, leader, "/v1/admin/keys/status", json!({})).await
}

/// Waits until the keys stand so.
async fn wait_until(cluster: &Cluster, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(cluster).await;
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{what}: {status}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn run(cluster: &Cluster, arguments: &[&str]) -> (bool, String) {
    let done = cluster.run(arguments, 0).await;
    let said = [&done.stdout[..], &done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn key(status: &Value, id: u64) -> &Value {
    status["keys"].as_array().unwrap().iter().find(|key| key["id"] == id).unwrap_or(&Value::Null)
}

/// A key file without the key of this id.
fn without(path: &Path, id: u32) {
    let text = fs::read_to_string(path).unwrap();
    let kept = text.split("[[key]]").skip(1).filter(|entry| !entry.contains(&format!("id = {id}\n")));
    fs::write(path, kept.map(|entry| format!("[[key]]{entry}")).collect::<String>()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_takes_over_once_every_member_has_it() {
    let mut cluster = Cluster::unformed(3).await;
    let first = seal(&cluster);
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.init().await;
    live(&cluster, 2).await;
    let before = told(&cluster, 2).await;
    let (is_done, said) = run(&cluster, &["keys", "rotate"]).await;
    assert!(!is_done && said.contains("is the newest"), "{said}");

    // The first node alone has the next key.
    generate(&first);
    cluster.nodes[0].signal(Signal::HUP);
    let told_of = |nodes: &'static [u64]| move |status: &Value| key(status, 2)["nodes"] == json!(nodes);
    wait_until(&cluster, "node 1 tells of it", told_of(&[1])).await;
    let (is_done, said) = run(&cluster, &["keys", "rotate", "--to", "2"]).await;
    assert!(!is_done && said.contains("nodes 2, 3"), "{said}");
    for node in &cluster.nodes[1..] {
        fs::copy(&first, node.file("seal.keys")).unwrap();
        node.signal(Signal::HUP);
    }
    let held = wait_until(&cluster, "all have it", told_of(&[1, 2, 3])).await;
    assert_eq!((&key(&held, 2)["state"], &key(&held, 1)["state"]), (&json!("unused"), &json!("current")), "{held}");
    assert_eq!((&held["sealing"], &held["current"]), (&json!("on"), &json!(1)), "{held}");

    let (is_done, said) = run(&cluster, &["keys", "rotate"]).await;
    assert!(is_done, "{said}");
    let over = wait_until(&cluster, "all roots are wrapped anew", |status| {
        status["current"] == 2
            && status["rewrap"]["done"] == status["rewrap"]["of"]
            && key(status, 1)["state"] == "unused"
    })
    .await;
    assert_eq!((&key(&over, 2)["wraps"], &key(&over, 1)["wraps"]), (&json!(2), &json!(0)), "{over}");
    assert_eq!(told(&cluster, 0).await, before);
    // The older one may go.
    cluster.wait_until_level().await;
    let until = Instant::now() + PATIENCE;
    let noted = |node: &Node| fs::read_to_string(node.data_dir().join("seal.json")).unwrap();
    while !cluster.nodes.iter().all(|node| noted(node).contains("\"keys\":[{\"id\":2,")) {
        assert!(Instant::now() < until, "the older key is still wanted");
        sleep(Duration::from_millis(50)).await;
    }
    for node in &mut cluster.nodes {
        node.kill();
        without(&node.file("seal.keys"), 1);
        node.start();
    }
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    for node in 0..3 {
        assert_eq!(told(&cluster, node).await, before, "node {node} tells otherwise");
    }
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

/// What lies on the disk of a stopped node, as text.
fn dumped(node: &Node) -> String {
    let mut dump: Command = semel();
    let done = dump.args(["inspect", "store", "--dump"]).arg(node.data_dir()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The sealed fields of records in a dump that this data key has sealed.
fn sealed_by(dump: &str, id: u32) -> Vec<&str> {
    const FIELDS: [&str; 8] = ["id", "checkpoint", "labels", "actor", "reason_text", "outcome_meta", "body", "detail"];
    let of_records =
        |line: &&str| [" head ", " body ", " row "].iter().any(|kind| line.contains(&format!("{kind}acme/")));
    let words = dump.lines().filter(of_records).flat_map(|line| line.split(' '));
    let by = |word: &&str| {
        word.split_once('=').is_some_and(|(name, value)| {
            FIELDS.contains(&name) && value.split_once(':').is_some_and(|(key, _)| key == id.to_string())
        })
    };
    words.filter(by).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_sealed_anew_by_another_data_key_and_say_what_they_said() {
    let mut cluster = Cluster::unformed(1).await;
    seal(&cluster);
    cluster.nodes[0].start();
    cluster.init().await;
    live(&cluster, 0).await;
    for number in 0..40 {
        let claim = json!({"record": record(&format!("more-{number}")), "request": {"amount": number}});
        ok(&cluster, 0, "/v1/claim", claim).await;
    }
    let before = told(&cluster, 0).await;
    let (is_done, said) = run(&cluster, &["keys", "rotate", "--data", "--tenant", "acme"]).await;
    assert!(is_done, "{said}");
    let done = wait_until(&cluster, "all is sealed anew", |status| {
        let of_acme = status["reseal"].as_array().unwrap().iter().find(|one| one["tenant"] == "acme");
        of_acme.is_some_and(|one| one["key_id"] == 2 && one["done"] == one["of"] && one["done"].as_u64() > Some(40))
    })
    .await;
    // Rows of the audit chain stay as they were, and so does the key that opens them.
    assert_eq!(done["reseal"][0]["older"], json!([1]), "{done}");
    assert_eq!(told(&cluster, 0).await, before);
    let claim = json!({"record": record("after"), "request": {"amount": 1}});
    assert_eq!(ok(&cluster, 0, "/v1/claim", claim).await["answer"], "new");
    cluster.nodes[0].stop(PATIENCE).await;
    let dump = dumped(&cluster.nodes[0]);
    let (older, newer) = (sealed_by(&dump, 1), sealed_by(&dump, 2));
    assert!(older.is_empty() && newer.len() > 80, "{} by key 2; {older:?}", newer.len());
}

/// A cluster that was formed without keys is sealed while it holds records, and says what it said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_was_formed_without_keys_is_sealed_later() {
    let mut cluster = Cluster::unformed(3).await;
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.init().await;
    live(&cluster, 2).await;
    let before = told(&cluster, 0).await;
    assert_eq!(status(&cluster).await["sealing"], "off");
    let (is_done, said) = run(&cluster, &["keys", "enable"]).await;
    assert!(!is_done && said.contains("no sealing key"), "{said}");
    cluster.nodes.iter_mut().for_each(Node::kill);
    seal(&cluster);
    cluster.nodes.iter_mut().for_each(Node::start);
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    wait_until(&cluster, "all have it", |status| key(status, 1)["nodes"] == json!([1, 2, 3])).await;
    let (is_done, said) = run(&cluster, &["keys", "enable"]).await;
    assert!(is_done, "{said}");
    wait_until(&cluster, "all is sealed", |status| status["sealing"] == "on").await;
    for node in 0..3 {
        assert_eq!(told(&cluster, node).await, before, "node {node} tells otherwise");
    }
    let claim = json!({"record": record("after"), "request": {"amount": 1}});
    assert_eq!(ok(&cluster, 1, "/v1/claim", claim).await["answer"], "new");
    let (is_done, said) = run(&cluster, &["tenant", "shred", "acme", "--confirm", "acme", "--reason", "over"]).await;
    assert!(!is_done && said.contains("older_copies_stay"), "{said}");
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
    let dump = dumped(&cluster.nodes[0]);
    let (clear, sealed) = (sealed_by(&dump, 0), sealed_by(&dump, 1));
    assert!(clear.is_empty() && sealed.len() > 8, "{} by key 1; {clear:?}", sealed.len());
}
