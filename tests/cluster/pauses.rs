//! Processes that stand still for a while and go on as if nothing had happened.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    caller::record,
    cluster::Cluster,
    ledger::{Load, verify},
};

/// Longer than the lease of the claim in the middle, and than any election.
const PAUSE: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_answers_nothing_stale() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), 6);
    load.wait_for_answers(100).await;
    let paused = cluster.leader().await;
    let (old, other) = (cluster.nodes[paused].listen, cluster.nodes[(paused + 1) % 3].listen);
    let within = Duration::from_secs(40);

    cluster.nodes[paused].pause();
    // Sent while it stands still: it reads it when it goes on.
    let caller = cluster.caller.clone();
    let claim = json!({"record": record("paused"), "request": {"by": "anyone"}, "lease_ms": 2000, "on_lapse": "hold"});
    let asked = {
        let (caller, claim) = (caller.clone(), claim.clone());
        tokio::spawn(async move { caller.post(old, "/v1/claim", &claim, within).await })
    };
    let since = Instant::now();
    load.ledger.wait_for_recovery(since).await;
    // Others own and complete the same record meanwhile. Where an answer was lost with the leader, the same attempt asks.
    let own = json!({"record": record("paused"), "request": {"by": "anyone"}, "lease_ms": 7000, "on_lapse": "hold",
                     "attempt_id": "00000000-0000-4000-8000-000000000001"});
    let granted = loop {
        let reply = caller.post(other, "/v1/claim", &own, within).await;
        match reply {
            Ok(reply) if reply.status == 200 => break reply,
            _ => assert!(since.elapsed() < crate::cluster::PATIENCE, "{reply:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(granted.word(), "new", "{granted:?}");
    let complete = json!({"record": record("paused"), "fence": granted.json["fence"], "outcome": {"status": 200}});
    let completed = caller.post(other, "/v1/complete", &complete, within).await.unwrap();
    assert_eq!(completed.status, 200, "{completed:?}");
    sleep(PAUSE.saturating_sub(since.elapsed())).await;
    cluster.nodes[paused].signal(Signal::CONT);

    let late = asked.await.unwrap();
    if let Ok(late) = late {
        assert!(["completed", "unavailable", "result_unknown"].contains(&late.word()), "stale: {late:?}");
        if late.word() == "completed" {
            assert!(late.number("index") > granted.number("index"), "{late:?}");
        }
    }
    let get = json!({"record": record("paused")});
    for _ in 0..20 {
        if let Ok(reply) = caller.post(old, "/v1/get", &get, within).await
            && reply.status == 200
        {
            assert_eq!(reply.json["state"], "completed", "stale: {reply:?}");
        }
    }
    load.wait_for_answers(100).await;
    let ledger = load.end().await;
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}
