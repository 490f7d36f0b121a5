//! Damage to the files of one node while it is stopped, and disks that are full.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    caller::record,
    cluster::{Cluster, PATIENCE},
    ledger::{Load, verify},
    node::semel,
};

const OUTCOME_BYTES: usize = 300 * 1024;
const WITHIN: Duration = Duration::from_secs(12);

/// The files below `dir` with this ending, oldest first.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<PathBuf> = names.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    names.sort();
    names
}

/// Flips the lowest bit of one byte.
fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// A cluster under load whose logs have a sealed segment that is not purged.
async fn with_sealed_segments() -> (Cluster, Load) {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 8);
    let body = STANDARD.encode(vec![b'x'; OUTCOME_BYTES]);
    let (node, since) = (cluster.nodes[0].listen, Instant::now());
    // One is being filled and one lies ready.
    for number in 0.. {
        if files(&cluster.nodes[0].data_dir().join("wal"), "wal").len() >= 4 {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "the log doesn't grow");
        let key = record(&format!("large-{number}"));
        let claim = json!({"record": key, "request": {}});
        let granted = cluster.caller.post(node, "/v1/claim", &claim, WITHIN).await.unwrap();
        let outcome = json!({"status": 200, "body": body});
        let complete = json!({"record": key, "fence": granted.json["fence"], "outcome": outcome});
        let completed = cluster.caller.post(node, "/v1/complete", &complete, WITHIN).await.unwrap();
        assert_eq!(completed.status, 200, "{completed:?}");
    }
    (cluster, load)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_flipped_in_a_sealed_segment_is_healed_from_the_others() {
    let (mut cluster, load) = with_sealed_segments().await;
    let victim = (cluster.leader().await + 1) % 3;
    assert_eq!(cluster.nodes[victim].stop(PATIENCE).await, Some(0));
    let data = cluster.nodes[victim].data_dir();
    let sealed = files(&data.join("wal"), "wal").remove(0);
    flip(&sealed, 6000);
    let verified = semel().arg("verify").arg(&data).output().unwrap();
    assert_eq!(verified.status.code(), Some(1), "{}", String::from_utf8_lossy(&verified.stdout));
    cluster.nodes[victim].start();
    let since = Instant::now();
    loop {
        let quarantined = fs::read_dir(&data).unwrap().filter_map(Result::ok);
        if quarantined.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("quarantine-")) {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "it was not quarantined: {}", cluster.nodes[victim].log_tail());
        // A node may end itself to start again without what is damaged: a supervisor starts it.
        if !cluster.nodes[victim].is_running() {
            cluster.nodes[victim].kill();
            cluster.nodes[victim].start();
        }
        sleep(Duration::from_millis(100)).await;
    }
    if !cluster.nodes[victim].is_running() {
        cluster.nodes[victim].kill();
        cluster.nodes[victim].start();
    }
    cluster.wait_until_ready(&[cluster.nodes[victim].listen]).await;
    load.wait_for_answers(50).await;
    let ledger = load.end().await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_is_rebuilt() {
    let (mut cluster, load) = with_sealed_segments().await;
    for _ in 0..2 {
        let taken = cluster.operate(0, &["snapshot", "2"]).await;
        assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
        load.wait_for_answers(50).await;
    }
    assert_eq!(cluster.nodes[1].stop(PATIENCE).await, Some(0));
    let snapshots = cluster.nodes[1].data_dir().join("snapshots");
    let newest = fs::read_dir(&snapshots).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    flip(&newest, 200);
    fs::remove_dir_all(cluster.nodes[1].data_dir().join("store")).unwrap();
    cluster.nodes[1].start();
    cluster.wait_until_ready(&[cluster.nodes[1].listen]).await;
    let ledger = load.end().await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}
