//! What an operator does to one real process: signals, limits of the machine, floods of connections.

use std::{fs, time::Duration};

use rustix::process::Signal;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    caller::record,
    cluster::{Cluster, PATIENCE},
    node::{CLUSTER_TOKEN, TENANT},
};

const WITHIN: Duration = Duration::from_secs(12);
const FLOOD: usize = 3000;

async fn until(what: &str, within: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !is_so().await {
        assert!(since.elapsed() < within, "not within {within:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// One node that serves.
async fn alone(variables: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::unformed(1).await;
    cluster.nodes[0].start_with(variables);
    cluster.init().await;
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_has_tokens_and_the_log_filter_read_again() {
    let cluster = alone(&[]).await;
    let node = &cluster.nodes[0];
    let newcomer = cluster.caller.with_token("a-token-that-came-later");
    let claim = |key: &str| json!({"record": record(key), "request": 1});
    let called = newcomer.post(node.listen, "/v1/claim", &claim("k"), WITHIN).await.unwrap();
    assert_eq!((called.status, called.word()), (401, "unauthenticated"));

    // Sooner than the file is looked at anyway.
    let soon = Duration::from_secs(semel::limits::TOKEN_FILE_RELOAD_S / 2);
    let tokens = fs::read_to_string(node.file("tokens.toml")).unwrap();
    let more = format!(
        "{tokens}\n[[token]]\ntoken = \"a-token-that-came-later\"\ntenant = \"{TENANT}\"\noperations = [\"*\"]\n\
         permissions = [\"claim\"]\n"
    );
    fs::write(node.file("tokens.toml"), &more).unwrap();
    node.signal(Signal::HUP);
    until("the new token is good", soon, async || {
        newcomer.post(node.listen, "/v1/claim", &claim("k"), WITHIN).await.is_ok_and(|reply| reply.status == 200)
    })
    .await;
    let failures = async || {
        let text = cluster.caller.with_token(CLUSTER_TOKEN).text(node.admin, "/metrics", WITHIN).await;
        let name = "semel_token_file_reload_failures_total ";
        text.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok())
    };
    assert_eq!(failures().await, Some(0));
    fs::write(node.file("tokens.toml"), "[[token]]\ntoken = \"short\"\n").unwrap();
    node.signal(Signal::HUP);
    until("the bad file is counted", soon, async || failures().await == Some(1)).await;
    let still = newcomer.post(node.listen, "/v1/claim", &claim("k2"), WITHIN).await.unwrap();
    assert_eq!(still.word(), "new", "the tokens before stay in force");
    fs::write(node.file("tokens.toml"), &more).unwrap();

    // The log: nothing of what is said at this level until it is wanted.
    let says = |text: &str| fs::read_to_string(node.file("log")).unwrap().contains(text);
    assert!(!says("DEBUG"));
    let config = fs::read_to_string(node.file("semel.toml")).unwrap();
    fs::write(node.file("semel.toml"), format!("log = \"debug\"\n{config}")).unwrap();
    node.signal(Signal::HUP);
    until("more is logged", PATIENCE, async || says("DEBUG") && says("the log filter is now debug")).await;
    fs::write(node.file("semel.toml"), format!("log = \"semel=loud\"\n{config}")).unwrap();
    node.signal(Signal::HUP);
    until("what is no filter is said", PATIENCE, async || says("the log filter stays as it was")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_connections_is_answered_whatever_the_soft_limit_of_files() {
    let mut cluster = Cluster::unformed(1).await;
    // As many shells have it: far fewer than there may be connections.
    cluster.nodes[0].start_below(256);
    cluster.init().await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", cluster.nodes[0].pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<u64> = files.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers[0], numbers[1], "{files}");
    if numbers[1] < 2 * FLOOD as u64 + 1000 {
        eprintln!("skipped: this machine allows {} files", numbers[1]);
        return;
    }
    // This process needs as many.
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let all = rustix::process::Rlimit { current: hard, maximum: hard };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let to = cluster.client_addresses()[0];
    // All connect before any asks, from several addresses: there is a limit for each.
    let mut connecting = JoinSet::new();
    for number in 0..FLOOD {
        connecting.spawn(async move {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            let from = std::net::Ipv4Addr::new(127, 0, 1, u8::try_from(1 + number % 4).unwrap());
            socket.bind((from, 0).into()).unwrap();
            socket.connect(to).await.unwrap()
        });
    }
    let connected: Vec<TcpStream> = connecting.join_all().await;
    let mut asking = JoinSet::new();
    for mut stream in connected {
        asking.spawn(async move {
            // Without a credential: what it is answered is no matter, as long as it is.
            let ask = "GET /v1/policy HTTP/1.1\r\nhost: semel\r\nconnection: close\r\n\r\n";
            stream.write_all(ask.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            // Of so many from one address most are told to come more slowly.
            let is_told = answer.starts_with("HTTP/1.1 401") || answer.starts_with("HTTP/1.1 429");
            assert!(is_told, "{answer}");
        });
    }
    let answered = tokio::time::timeout(PATIENCE, asking.join_all()).await.expect("all are answered");
    assert_eq!(answered.len(), FLOOD);
}
