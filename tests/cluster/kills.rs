//! kill -9: of one node, of two, of all.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    cluster::Cluster,
    ledger::{Load, verify},
    node::Node,
    rounds,
};

const WORKERS: u64 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_nodes_are_killed_in_turn() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    let mut recoveries = Vec::new();
    for round in 0..rounds() {
        load.wait_for_answers(100).await;
        // The leader two times of three: that is where it hurts.
        let leader = cluster.leader().await;
        let victim = if round % 3 == 2 { (leader + 1) % 3 } else { leader };
        cluster.nodes[victim].kill();
        let recovered = load.ledger.wait_for_recovery(Instant::now()).await;
        recoveries.push(recovered);
        load.wait_for_answers(50).await;
        cluster.nodes[victim].start();
        cluster.wait_until_ready(&[cluster.nodes[victim].listen]).await;
    }
    let ledger = load.end().await;
    recoveries.sort_unstable();
    println!("{} answers; new grants after {recoveries:?}", ledger.answers());
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_all_nodes_are_killed_at_once() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    for _ in 0..rounds().div_ceil(2) {
        load.wait_for_answers(100).await;
        cluster.nodes.iter_mut().for_each(Node::kill);
        let since = Instant::now();
        cluster.nodes.iter_mut().for_each(Node::start);
        load.ledger.wait_for_recovery(since).await;
    }
    let ledger = load.end().await;
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_grants_nothing_and_says_that_nothing_was_done() {
    let mut cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(100).await;
    let ledger = load.end().await;
    let alone = cluster.leader().await;
    for other in [(alone + 1) % 3, (alone + 2) % 3] {
        cluster.nodes[other].kill();
    }
    // The leader takes a while to notice; what it took before is not decided either way.
    let until = Instant::now() + Duration::from_secs(15);
    let node = cluster.nodes[alone].listen;
    for number in 0.. {
        let key = format!("alone-{number}");
        let claim = serde_json::json!({"record": crate::caller::record(&key), "request": {"key": key}});
        let reply = cluster.caller.post(node, "/v1/claim", &claim, Duration::from_secs(12)).await;
        let reply = reply.expect("no call but a waiting one lasts over ten seconds");
        match (reply.status, reply.word()) {
            (503, "unavailable") => {
                assert_eq!(reply.json["effect"], "none", "{reply:?}");
                break;
            }
            (504, "result_unknown") => assert!(Instant::now() < until, "still takes commands: {reply:?}"),
            _ => panic!("one of three answered {reply:?}"),
        }
    }
    let ready = cluster.caller.get(cluster.nodes[alone].admin, "/readyz", Duration::from_secs(6)).await.unwrap();
    assert_eq!(ready.status, 503);
    for other in [(alone + 1) % 3, (alone + 2) % 3] {
        cluster.nodes[other].start();
    }
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}
