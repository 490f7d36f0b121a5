//! A cluster that is lost, and what its backup says afterwards.

use std::time::Duration;

use serde_json::json;

use crate::{caller::record, cluster::Cluster, node::Node};

const KEYS: u32 = 200;
const WITHIN: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_completed_before_the_backup_replays_after_the_restore() {
    let mut cluster = Cluster::formed().await;
    let caller = cluster.caller.clone();
    let node = cluster.nodes[1].listen;
    let claim = |key: &str, amount: u32| json!({"record": record(key), "request": {"amount": amount}});
    let mut fences = Vec::new();
    for number in 0..KEYS {
        let key = format!("kept-{number}");
        let granted = caller.post(node, "/v1/claim", &claim(&key, number), WITHIN).await.unwrap();
        let fence = granted.json["fence"].clone();
        let outcome = json!({"status": 201, "body": "a2VwdA=="});
        let complete = json!({"record": record(&key), "fence": fence, "outcome": outcome});
        assert_eq!(caller.post(node, "/v1/complete", &complete, WITHIN).await.unwrap().status, 200);
        fences.push(granted.number("fence"));
    }
    let owned = caller.post(node, "/v1/claim", &claim("owned", 1), WITHIN).await.unwrap();
    assert_eq!(owned.word(), "new");
    let dir = tempfile::tempdir().unwrap();
    let backup = dir.path().join("backup");
    let made = cluster.run(&["backup", "--out", backup.to_str().unwrap(), "--json"], 2).await;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let verified = cluster.run(&["verify", backup.to_str().unwrap()], 2).await;
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    cluster.nodes.iter_mut().for_each(Node::kill);

    let mut restored = Cluster::unformed(3).await;
    restored.nodes.iter_mut().for_each(Node::start);
    restored.wait_until_up().await;
    let mut arguments = vec!["restore", backup.to_str().unwrap()];
    let names: Vec<String> = restored.nodes.iter().map(Node::named).collect();
    names.iter().for_each(|name| arguments.extend(["--node", name]));
    let done = restored.run(&arguments, 0).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    restored.wait_until_ready(&restored.client_addresses()).await;
    for number in 0..KEYS {
        let key = format!("kept-{number}");
        let node = restored.nodes[number as usize % 3].listen;
        let replayed = caller.post(node, "/v1/claim", &claim(&key, number), WITHIN).await.unwrap();
        assert_eq!(replayed.word(), "completed", "{key}: {replayed:?}");
        let changed = caller.post(node, "/v1/claim", &claim(&key, number + 1), WITHIN).await.unwrap();
        assert_eq!(changed.word(), "conflict", "{key}: {changed:?}");
    }
    // The old owner's fence is worth nothing, and nobody knows whether a new key was used in the gap.
    let node = restored.nodes[0].listen;
    let outcome = json!({"record": record("owned"), "fence": owned.json["fence"], "outcome": {"status": 200}});
    let late = caller.post(node, "/v1/complete", &outcome, WITHIN).await.unwrap();
    assert_eq!(late.word(), "stale_fence", "{late:?}");
    for key in ["owned", "never-seen"] {
        let doubtful = caller.post(node, "/v1/claim", &claim(key, 1), WITHIN).await.unwrap();
        assert_eq!(doubtful.word(), "indeterminate", "{key}: {doubtful:?}");
    }
    let ended = restored.operate(1, &["end-doubt"]).await;
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let fresh = caller.post(node, "/v1/claim", &claim("fresh", 1), WITHIN).await.unwrap();
    assert_eq!(fresh.word(), "new", "{fresh:?}");
    assert!(fences.iter().all(|fence| *fence < fresh.number("fence")), "fences go on above the old ones (R11)");
    restored.wait_until_level().await;
    restored.stop_and_compare().await;
}
