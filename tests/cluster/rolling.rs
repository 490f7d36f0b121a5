//! All nodes stopped and started in turn, as for a new version: callers of the client library notice nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use semel::{
    Client,
    client::{Done, Verdict},
};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    cluster::{Cluster, PATIENCE},
    node::CALLER_TOKEN,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_shows_no_error_to_the_client_librarys_callers() {
    let mut cluster = Cluster::formed().await;
    let endpoints: Vec<String> = cluster.nodes.iter().map(|node| format!("http://{}", node.listen)).collect();
    let client = Client::builder().endpoints(endpoints).token(CALLER_TOKEN).connect().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let ran = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for number in 0..8 {
        let (client, stop, ran) = (client.clone(), Arc::clone(&stop), Arc::clone(&ran));
        callers.spawn(async move {
            let mut round = 0_u64;
            while !stop.load(Ordering::SeqCst) {
                round += 1;
                let key = format!("rolling-{number}-{round}");
                let operation =
                    client.operation("charge.create").key(&key).request_json(format!("{{\"key\":\"{key}\"}}"));
                let done = operation.run(async |_| Verdict::completed(201, key.clone())).await;
                match done {
                    Ok(Done::Ran(_)) => ran.fetch_add(1, Ordering::SeqCst),
                    other => panic!("{key}: {other:?}"),
                };
            }
        });
    }
    for at in 0..cluster.nodes.len() {
        let (since, wanted) = (tokio::time::Instant::now(), ran.load(Ordering::SeqCst) + 50);
        while ran.load(Ordering::SeqCst) < wanted {
            assert!(since.elapsed() < PATIENCE, "the callers stand still");
            sleep(Duration::from_millis(10)).await;
        }
        let status = cluster.nodes[at].stop(PATIENCE).await;
        assert_eq!(status, Some(0), "{}", cluster.nodes[at].log_tail());
        cluster.nodes[at].start();
        cluster.wait_until_ready(&[cluster.nodes[at].listen]).await;
    }
    stop.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.expect("a caller saw an error");
    }
    client.close().await;
    println!("{} ran", ran.load(Ordering::SeqCst));
    cluster.wait_until_level().await;
    cluster.stop_and_compare().await;
}
