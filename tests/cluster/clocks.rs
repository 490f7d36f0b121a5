//! Wall clocks that are an hour off or jump about. Needs libfaketime; where it is not installed nothing is tried, and said.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    caller::record,
    cluster::{Cluster, PATIENCE},
    ledger::{Load, verify},
    node::Node,
};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// A lease, and how long it may last in real time at most: twice that and two seconds.
const LEASE_MS: u64 = 2000;

/// Starts a node whose wall clock reads what the file says: `+3600` for an hour ahead.
fn start_with_clock(node: &mut Node, offset: &Path) {
    let file = offset.to_str().unwrap();
    node.start_with(&[
        ("LD_PRELOAD", LIBRARY),
        ("FAKETIME_TIMESTAMP_FILE", file),
        ("FAKETIME_NO_CACHE", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
    ]);
}

/// Claims a fresh key at `node` and measures how long its lease keeps others off.
async fn lease_lasts(cluster: &Cluster, node: usize, key: &str) -> Duration {
    let at = cluster.nodes[node].listen;
    let claim = |attempt: u32| {
        json!({"record": record(key), "request": {}, "lease_ms": LEASE_MS, "on_lapse": "retake",
               "attempt_id": format!("00000000-0000-4000-8000-{attempt:012x}")})
    };
    let since = Instant::now();
    let mut granted = None;
    for attempt in 1.. {
        let asked = if granted.is_some() { claim(attempt) } else { claim(0) };
        let reply = cluster.caller.post(at, "/v1/claim", &asked, Duration::from_secs(12)).await;
        assert!(since.elapsed() < PATIENCE, "{reply:?}");
        let Ok(reply) = reply else { continue };
        match (reply.word(), granted) {
            ("new", None) => granted = Some(Instant::now()),
            ("new", Some(granted)) => return Instant::now() - granted,
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
    unreachable!("it answers or panics")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_wrong_clock_neither_stops_nor_rushes_time() {
    if !Path::new(LIBRARY).exists() {
        println!("skipped: {LIBRARY} is not installed (Debian's package libfaketime)");
        return;
    }
    let mut cluster = Cluster::unformed(3).await;
    let dir = tempfile::tempdir().unwrap();
    let offsets: Vec<PathBuf> = (0..3).map(|at| dir.path().join(format!("clock-{at}"))).collect();
    for (node, offset) in cluster.nodes.iter_mut().zip(&offsets) {
        fs::write(offset, "+0").unwrap();
        start_with_clock(node, offset);
    }
    cluster.init().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 4);
    load.wait_for_answers(50).await;
    let leader = cluster.leader().await;
    for (number, wrong) in ["+3600", "-3600", "strobe"].into_iter().enumerate() {
        let strobing = (wrong == "strobe").then(|| {
            let file = offsets[leader].clone();
            tokio::spawn(async move {
                for turn in 0_u32.. {
                    fs::write(&file, if turn.is_multiple_of(2) { "+3600" } else { "-3600" }).unwrap();
                    sleep(Duration::from_millis(150)).await;
                }
            })
        });
        if strobing.is_none() {
            fs::write(&offsets[leader], wrong).unwrap();
        }
        // Seen by the cluster itself: without it the clock may not have been wrong at all.
        cluster.wait_until_clock_is_off(leader, 3_000_000).await;
        let lasted = lease_lasts(&cluster, leader, &format!("wrong-{number}")).await;
        println!("{wrong}: a lease of {LEASE_MS} ms kept others off for {lasted:?}");
        // The reply took a while to come, so what was measured may be that much shorter.
        assert!(lasted >= Duration::from_millis(LEASE_MS - 200), "{wrong}: a lease that ends early");
        assert!(lasted <= Duration::from_millis(2 * LEASE_MS + 2000), "{wrong}: a lease that doesn't end");
        if let Some(strobing) = strobing {
            strobing.abort();
        }
        fs::write(&offsets[leader], "+0").unwrap();
    }
    let ledger = load.end().await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}
