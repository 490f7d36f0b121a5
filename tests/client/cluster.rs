//! Three nodes: any of them answers, and a client that knows several never hears that one is being replaced.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use semel::{
    Client,
    client::{Done, Verdict},
    config::{Config, Exposure, Forming, NodeLimits, Overrides, Purpose, RaftTimes, Source},
    json::Json,
    node::Node,
    proto::v1::{self, records_client::RecordsClient},
};
use tonic::{Request, transport::Endpoint};
use tonic_types::StatusExt;

use super::{charge, ports::Port};

/// A cluster of three in this process.
struct Cluster {
    nodes: Vec<Option<Node>>,
    ports: Vec<[Port; 3]>,
    // Removed last.
    dir: tempfile::TempDir,
}

async fn ask(verb: &str, url: String, body: String) -> (u16, Json) {
    let http = legacy::Client::builder(TokioExecutor::new()).build_http();
    let request = http::Request::builder().method(verb).uri(url).body(Full::new(Bytes::from(body))).unwrap();
    let Ok(response) = http.request(request).await else { return (0, Json::Null) };
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    (status, Json::parse(&body).unwrap_or(Json::Null))
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Cluster {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ports = (0..3).map(|_| [Port::local(), Port::local(), Port::local()]).collect();
        let mut cluster = Self { nodes: vec![None, None, None], ports, dir };
        for at in 0..3 {
            cluster.begin(at).await;
        }
        let member = |at: usize| {
            let [client, peer, _] = cluster.ports[at].each_ref().map(Port::address);
            format!(r#""{}":{{"peer":"{peer}","client":"{client}"}}"#, at + 1)
        };
        let body = format!(r#"{{"nodes":{{{},{},{}}}}}"#, member(0), member(1), member(2));
        let (status, formed) = ask("POST", cluster.admin(0, "/v1/admin/init"), body).await;
        assert_eq!(status, 200, "{}", formed.to_text());
        for at in 0..3 {
            cluster.ready(at).await;
        }
        cluster
    }

    fn config(&self, at: usize) -> Config {
        let [client, peer, admin] = self.ports[at].each_ref().map(|port| Some(port.address().to_string()));
        let source = Source::default().with(Overrides {
            node_id: Some(at as u64 + 1),
            data_dir: Some(self.dir.path().join(format!("node-{}", at + 1)).display().to_string()),
            listen: client,
            peer_listen: peer,
            admin_listen: admin,
            ..Overrides::default()
        });
        let config = source.check(Purpose::Dev, Exposure::default()).unwrap();
        // Small files, and patience: other tests use the same disk and the same processors.
        let limits = NodeLimits { wal_segment_bytes: 1 << 20, ..config.limits };
        let ms = Duration::from_millis;
        let raft = RaftTimes { heartbeat: ms(300), election_min: ms(1500), election_max: ms(3000) };
        Config { forming: Forming::OnInit, limits, raft, ..config }
    }

    async fn begin(&mut self, at: usize) {
        self.nodes[at] = Some(Node::start(self.config(at)).await.unwrap());
    }

    async fn stop(&mut self, at: usize) {
        self.nodes[at].take().expect("it runs").stop().await;
    }

    async fn ready(&self, at: usize) {
        until("a node is ready", async || ask("GET", self.admin(at, "/readyz"), String::new()).await.0 == 200).await;
    }

    fn admin(&self, at: usize, path: &str) -> String {
        format!("http://{}{path}", self.ports[at][2].address())
    }

    fn endpoint(&self, at: usize) -> String {
        format!("http://{}", self.ports[at][0].address())
    }

    async fn client(&self) -> Client {
        Client::builder().endpoints((0..3).map(|at| self.endpoint(at))).connect().await.unwrap()
    }

    /// Which node leads, as most of those that answer say.
    async fn leader(&self) -> usize {
        let mut found = None;
        until("a leader is known", async || {
            for at in (0..3).filter(|at| self.nodes[*at].is_some()) {
                let (_, status) = ask("GET", self.admin(at, "/v1/status"), String::new()).await;
                if status.member("role").and_then(Json::as_str) == Some("leader") {
                    found = Some(at);
                }
            }
            found.is_some()
        })
        .await;
        found.expect("it was just found")
    }

    async fn end(mut self) {
        for node in self.nodes.iter_mut().filter_map(Option::take) {
            node.stop().await;
        }
    }
}

fn claim(key: &str, wait_ms: u32) -> v1::ClaimRequest {
    let record = v1::RecordId { operation: "charge.create".to_owned(), key: key.to_owned(), ..v1::RecordId::default() };
    let request = Some(r#"{"amount":100}"#.into());
    v1::ClaimRequest { record: Some(record), request, wait_ms: Some(wait_ms), ..v1::ClaimRequest::default() }
}

fn complete(key: &str, fence: u64) -> v1::CompleteRequest {
    let record = claim(key, 0).record;
    let outcome = Some(v1::Outcome { status: Some(201), body: Some("done".into()), ..v1::Outcome::default() });
    v1::CompleteRequest { record, fence: Some(fence), outcome }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_answers_for_the_cluster() {
    let cluster = Cluster::start().await;
    let mut index = 0;
    for key in 0..6 {
        let (key, at) = (format!("k-{key}"), key % 3);
        // One endpoint each: what isn't the leader's is forwarded, or followed.
        let one = Client::connect(cluster.endpoint(at)).await.unwrap();
        let granted = one.claim(claim(&key, 0)).await.unwrap();
        assert_eq!(granted.answer(), v1::Answer::New);
        let other = Client::connect(cluster.endpoint((at + 1) % 3)).await.unwrap();
        let seen = other.claim(claim(&key, 0)).await.unwrap();
        assert_eq!(seen.answer(), v1::Answer::InProgress, "what one node granted another knows at once");
        let completed = other.complete(complete(&key, granted.fence())).await.unwrap();
        let record = one.get(v1::GetRequest { record: claim(&key, 0).record, with_outcome: None }).await.unwrap();
        assert_eq!(record.state(), v1::State::Completed);
        for next in [granted.index, seen.index, completed.index, record.index] {
            assert!(next >= index, "the index never goes back: {next} after {index}");
            index = next;
        }
    }
    cluster.end().await;
}

/// By a follower's own HTTP door, which forwards: the same answers, with the leader's name where forwarding is not wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_forwards_and_says_who_leads() {
    let cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let body = r#"{"record":{"operation":"o","key":"k"},"request":1,"ttl_ms":5000}"#;
    // What it forwards is judged by the leader's time. It has asked for that at the latest when it said that it was ready;
    // so it is asked once nothing that it was told is believed any more.
    let (was_ready, believed) = (Instant::now(), Duration::from_millis(semel::limits::LEADER_TIME_MS_MAX));
    until("the follower's own idea of the time is old", async || was_ready.elapsed() > believed).await;
    let (status, answer) = ask("POST", format!("{}/v1/claim", cluster.endpoint(follower)), body.to_owned()).await;
    assert_eq!((status, answer.member("answer").and_then(Json::as_str)), (200, Some("new")), "{}", answer.to_text());
    let no_forward = |at: usize| {
        let request = http::Request::post(format!("{}/v1/claim", cluster.endpoint(at)));
        let request = request.header("semel-no-forward", "1").body(Full::new(Bytes::from(body))).unwrap();
        legacy::Client::builder(TokioExecutor::new()).build_http().request(request)
    };
    let refused = no_forward(follower).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("semel-cluster-id"));
    let problem = Json::parse(&refused.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let expected = format!(r#"{{"id":{},"endpoint":"{}"}}"#, leader + 1, cluster.endpoint(leader));
    assert_eq!(problem.member("leader").unwrap().to_text(), expected);
    assert_eq!(no_forward(leader).await.unwrap().status(), 200);
    // The other door says the same.
    for at in [follower, leader] {
        let channel = Endpoint::from_shared(cluster.endpoint(at)).unwrap().connect().await.unwrap();
        let mut request = Request::new(claim("by-grpc", 0));
        request.metadata_mut().insert("semel-no-forward", "1".parse().unwrap());
        let answered = RecordsClient::new(channel).claim(request).await;
        if at == leader {
            assert_eq!(answered.unwrap().into_inner().answer(), v1::Answer::New);
            continue;
        }
        let refused = answered.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        let info = refused.get_details_error_info().expect("our own details");
        assert_eq!((info.reason.as_str(), info.metadata["effect"].as_str()), ("unavailable", "none"));
        assert_eq!(info.metadata["leader_id"], (leader + 1).to_string());
        assert_eq!(info.metadata["leader_endpoint"], cluster.endpoint(leader));
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_passes_over_an_endpoint_where_nobody_listens() {
    let cluster = Cluster::start().await;
    let nobody = Port::local();
    let dead = format!("http://{}", nobody.address());
    for (number, at) in [0, 1, 2].into_iter().enumerate() {
        let client = Client::builder().endpoints([dead.clone(), cluster.endpoint(at)]).connect().await.unwrap();
        let key = format!("past-the-dead-{number}");
        let began = Instant::now();
        assert_eq!(client.claim(claim(&key, 0)).await.unwrap().answer(), v1::Answer::New);
        let ran = charge(&client, &format!("{key}-run")).run(async |_| Verdict::completed(201, "done")).await;
        assert!(matches!(ran, Ok(Done::Ran(_))), "{ran:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        client.close().await;
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_outlives_the_leader() {
    let mut cluster = Cluster::start().await;
    let leader = cluster.leader().await;
    let (waits_at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let owner = Client::connect(cluster.endpoint(other)).await.unwrap();
    let granted = owner.claim(claim("k", 0)).await.unwrap();
    let url = format!("{}/v1/claim", cluster.endpoint(waits_at));
    let body = r#"{"record":{"operation":"charge.create","key":"k"},"request":{"amount":100},"wait_ms":60000}"#;
    let waiting = tokio::spawn(ask("POST", url, body.to_owned()));
    until("it waits", async || {
        let metrics = cluster.nodes[waits_at].as_ref().unwrap().calls().waiting();
        metrics == 1
    })
    .await;
    cluster.stop(leader).await;
    let owner = Client::builder().endpoint(cluster.endpoint(other)).endpoint(cluster.endpoint(waits_at));
    owner.connect().await.unwrap().complete(complete("k", granted.fence())).await.unwrap();
    let (status, answer) = tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it is woken").unwrap();
    let word = answer.member("answer").and_then(Json::as_str);
    assert_eq!((status, word), (200, Some("completed")), "{}", answer.to_text());
    assert_eq!(cluster.nodes[waits_at].as_ref().unwrap().calls().waiting(), 0);
    cluster.end().await;
}

/// What runs while nodes come and go: each key once, and never an error.
struct Load {
    stop: AtomicBool,
    done: AtomicU64,
    ran: Mutex<HashMap<String, u32>>,
}

async fn work(client: Client, load: Arc<Load>, task: u32) {
    let mut round = 0;
    while !load.stop.load(Ordering::Relaxed) {
        round += 1;
        let key = format!("{task}-{round}");
        let ran = charge(&client, &key)
            .run(async |_| {
                *load.ran.lock().unwrap().entry(key.clone()).or_default() += 1;
                Verdict::completed(201, "done")
            })
            .await;
        assert!(matches!(ran, Ok(Done::Ran(_))), "{key}: {ran:?}");
        load.done.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rolling_restart_under_load_reaches_no_caller() {
    let mut cluster = Cluster::start().await;
    let client = cluster.client().await;
    let load = Arc::new(Load { stop: AtomicBool::new(false), done: AtomicU64::new(0), ran: Mutex::default() });
    let tasks: Vec<_> = (0..8).map(|task| tokio::spawn(work(client.clone(), load.clone(), task))).collect();
    let progress = async |by: u64| {
        let before = load.done.load(Ordering::Relaxed);
        until("work goes on", async || load.done.load(Ordering::Relaxed) >= before + by).await;
    };
    progress(20).await;
    for at in 0..3 {
        cluster.stop(at).await;
        progress(20).await;
        cluster.begin(at).await;
        cluster.ready(at).await;
        progress(20).await;
    }
    // And the leader once more, whichever it is by now.
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    progress(20).await;
    load.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no caller saw an error");
    }
    let ran = load.ran.lock().unwrap().clone();
    assert!(ran.values().all(|times| *times == 1), "a handler ran twice");
    assert_eq!(ran.len() as u64, load.done.load(Ordering::Relaxed));
    client.close().await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_where_the_leader_is() {
    let mut cluster = Cluster::start().await;
    let client = cluster.client().await;
    let at_leader = async |cluster: &Cluster, key: &str| {
        client.claim(claim(key, 0)).await.unwrap();
        format!("{client:?}").contains(&cluster.endpoint(cluster.leader().await))
    };
    let mut key = 0;
    until("the leader is found", async || {
        key += 1;
        at_leader(&cluster, &format!("a-{key}")).await
    })
    .await;
    let leader = cluster.leader().await;
    cluster.stop(leader).await;
    until("the next leader is found", async || {
        key += 1;
        at_leader(&cluster, &format!("b-{key}")).await
    })
    .await;
    cluster.end().await;
}
