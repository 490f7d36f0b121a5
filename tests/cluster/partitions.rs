//! Cuts of the network: whole, one way, and such that two nodes see the third but not each other.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{
    caller::record,
    cluster::{Cluster, PATIENCE},
    ledger::{Load, verify},
};

const WORKERS: u64 = 8;

/// Ends the load, asks about everything, and compares the nodes.
async fn all_holds(mut cluster: Cluster, load: Load) {
    load.wait_for_answers(50).await;
    let ledger = load.end().await;
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    verify(&ledger, &cluster.caller, &cluster.client_addresses()).await;
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_serves_nothing_and_the_majority_everything() {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(100).await;
    let cut_off = cluster.leader().await;
    let node = cluster.nodes[cut_off].listen;
    cluster.links.isolate(cluster.nodes[cut_off].id, cluster.ids());
    let since = Instant::now();
    load.ledger.wait_for_recovery(since).await;
    // Whatever it is asked from now on, it knows nothing.
    let mut refused = 0;
    let until = Instant::now() + PATIENCE;
    while refused < 5 {
        let get = json!({"record": record("own-0-1")});
        let reply = cluster.caller.post(node, "/v1/get", &get, Duration::from_secs(12)).await.unwrap();
        assert_eq!((reply.status, reply.word()), (503, "unavailable"), "a read at a node that is cut off: {reply:?}");
        let claim = json!({"record": record("cut-off"), "request": {}});
        let reply = cluster.caller.post(node, "/v1/claim", &claim, Duration::from_secs(12)).await.unwrap();
        match reply.status {
            503 => refused += 1,
            504 => assert!(Instant::now() < until, "it still takes commands: {reply:?}"),
            _ => panic!("a claim at a node that is cut off: {reply:?}"),
        }
    }
    // Nor does whoever is ready to wait for a minute wait for it.
    let waiting = json!({"record": record("own-0-1"), "request": {"amount": 0}, "wait_ms": 60_000});
    let began = Instant::now();
    let reply = cluster.caller.post(node, "/v1/claim", &waiting, Duration::from_secs(12)).await.unwrap();
    assert_eq!((reply.status, reply.word()), (503, "unavailable"), "{reply:?}");
    assert!(began.elapsed() < Duration::from_millis(5500), "{:?}", began.elapsed());
    cluster.links.heal();
    all_holds(cluster, load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_sends_but_hears_nothing_is_replaced() {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(100).await;
    let deaf = cluster.nodes[cluster.leader().await].id;
    for other in cluster.ids().into_iter().filter(|id| *id != deaf) {
        cluster.links.cut_one_way(other, deaf);
    }
    let took = load.ledger.wait_for_recovery(Instant::now()).await;
    println!("one way: new grants after {took:?}");
    cluster.links.heal();
    all_holds(cluster, load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_but_is_not_heard_is_replaced() {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(100).await;
    let mute = cluster.nodes[cluster.leader().await].id;
    for other in cluster.ids().into_iter().filter(|id| *id != mute) {
        cluster.links.cut_one_way(mute, other);
    }
    let took = load.ledger.wait_for_recovery(Instant::now()).await;
    println!("the other way: new grants after {took:?}");
    cluster.links.heal();
    all_holds(cluster, load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bridge_between_two_that_do_not_see_each_other_serves() {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(100).await;
    // The leader loses one of its followers; the other follower sees both.
    let leader = cluster.leader().await;
    cluster.links.cut(cluster.nodes[leader].id, cluster.nodes[(leader + 1) % 3].id);
    let took = load.ledger.wait_for_recovery(Instant::now()).await;
    println!("bridge: new grants after {took:?}");
    load.wait_for_answers(100).await;
    cluster.links.heal();
    all_holds(cluster, load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_die_without_a_word_are_noticed() {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(100).await;
    cluster.links.leave_half_open();
    let took = load.ledger.wait_for_recovery(Instant::now()).await;
    println!("half open: new grants after {took:?}");
    all_holds(cluster, load).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_and_flapping_network_loses_nothing() {
    let cluster = Cluster::formed().await;
    let load = Load::start(&cluster.caller, &cluster.client_addresses(), WORKERS);
    load.wait_for_answers(50).await;
    for flap in 0..crate::rounds() {
        let (a, b) = (flap % 3 + 1, (flap + 1) % 3 + 1);
        cluster.links.delay(b, a, Duration::from_millis(40));
        cluster.links.cut(a, b);
        sleep(Duration::from_millis(700)).await;
        cluster.links.heal();
        load.wait_for_answers(20).await;
    }
    all_holds(cluster, load).await;
}
