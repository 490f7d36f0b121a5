//! Both doors of a real node: one record's life, told alike.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy, rt::TokioExecutor};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::transport::Channel;
use tonic_types::StatusExt;

use crate::{
    config::{Config, Exposure, Overrides, Purpose, Source},
    http::write::ToJson,
    json::Json,
    node::Node,
    proto::v1::{self, policies_client::PoliciesClient, records_client::RecordsClient},
};

pub(super) struct Running {
    pub node: Node,
    http: legacy::Client<legacy::connect::HttpConnector, Full<Bytes>>,
    pub records: RecordsClient<Channel>,
    policies: PoliciesClient<Channel>,
    _directory: tempfile::TempDir,
}

impl Running {
    pub async fn start() -> Running {
        Self::with(|_| ()).await
    }

    /// With what this changes of the configuration.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = Some(directory.path().join("data").display().to_string());
        let source = Source::default().with(Overrides { data_dir, ..Overrides::default() });
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = source.check(Purpose::Dev, Exposure::default()).unwrap();
        change(&mut config);
        let node = Node::start(Config { listen: any, peer_listen: any, admin_listen: any, ..config }).await.unwrap();
        let channel = Channel::from_shared(format!("http://{}", node.listen())).unwrap().connect_lazy();
        let running = Running {
            node,
            http: legacy::Client::builder(TokioExecutor::new()).build_http(),
            records: RecordsClient::new(channel.clone()),
            policies: PoliciesClient::new(channel),
            _directory: directory,
        };
        let ready = async { while running.operators("/readyz").await.0 != 200 {} };
        timeout(Duration::from_secs(60), ready).await.expect("the node becomes ready");
        running
    }

    async fn send(&self, verb: &str, to: SocketAddr, path: &str, body: String) -> (u16, String) {
        let request = Request::builder().method(verb).uri(format!("http://{to}{path}"));
        let (head, body) = self.http.request(request.body(Full::from(body)).unwrap()).await.unwrap().into_parts();
        (head.status.as_u16(), String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    pub async fn operators(&self, path: &str) -> (u16, String) {
        self.send("GET", self.node.admin_listen(), path, String::new()).await
    }

    pub async fn post(&self, path: &str, body: &str) -> (u16, Json) {
        let (status, body) = self.send("POST", self.node.listen(), path, body.to_owned()).await;
        (status, Json::parse(body.as_bytes()).unwrap())
    }
}

fn id() -> Option<v1::RecordId> {
    Some(v1::RecordId { tenant: Some("acme".into()), principal: None, operation: "op".into(), key: "k".into() })
}

const RECORD: &str = r#""record":{"tenant":"acme","operation":"op","key":"k"}"#;

/// The member of an answer, as text.
fn text<'a>(json: &'a Json, name: &str) -> &'a str {
    json.member(name).and_then(Json::as_str).unwrap_or_default()
}

/// Without the position, which may have moved between two looks.
fn still(json: &Json) -> Json {
    match json {
        Json::Object(members) => Json::Object(
            members.iter().filter(|(name, _)| name != "index").map(|(n, v)| (n.clone(), still(v))).collect(),
        ),
        Json::Array(items) => Json::Array(items.iter().map(still).collect()),
        other => other.clone(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_records_life_at_both_doors() {
    let running = Running::start().await;
    let mut grpc = running.records.clone();
    let attempt = "00112233-4455-6677-8899-aabbccddeeff";
    let body =
        format!(r#"{{{RECORD},"request":{{"amount":1}},"staged":true,"attempt_id":"{attempt}","labels":{{"a":"b"}}}}"#);
    let (status, new) = running.post("/v1/claim", &body).await;
    assert_eq!((status, text(&new, "answer")), (200, "new"), "{new}");
    let claim = v1::ClaimRequest {
        record: id(),
        request: Some(r#"{"amount":1.0}"#.into()),
        attempt_id: Some(attempt.to_ascii_uppercase()),
        ..Default::default()
    };
    let again = grpc.claim(claim.clone()).await.unwrap().into_inner();
    assert_eq!((again.answer(), again.repeated), (v1::Answer::New, Some(true)));
    let fence = again.fence.unwrap();
    assert_eq!(fence.to_string(), text(&new, "fence"));

    let other = v1::ClaimRequest { attempt_id: None, ..claim.clone() };
    let busy = grpc.claim(other.clone()).await.unwrap().into_inner();
    let (_, busy_too) = running.post("/v1/claim", &format!(r#"{{{RECORD},"request":{{"amount":1}}}}"#)).await;
    assert_eq!((busy.answer(), text(&busy_too, "answer")), (v1::Answer::InProgress, "in_progress"));
    let conflict =
        grpc.claim(v1::ClaimRequest { request: Some("2".into()), ..other.clone() }).await.unwrap().into_inner();
    let (_, conflict_too) = running.post("/v1/claim", &format!(r#"{{{RECORD},"request":2}}"#)).await;
    assert_eq!(still(&conflict.to_json()).member("since"), still(&conflict_too).member("since"));

    let stale =
        grpc.begin(v1::BeginRequest { record: id(), fence: Some(fence - 1), lease_ms: None }).await.unwrap_err();
    let (status, stale_too) = running.post("/v1/begin", &format!(r#"{{{RECORD},"fence":"{}"}}"#, fence - 1)).await;
    assert_eq!((status, text(&stale_too, "code")), (409, "stale_fence"));
    assert_eq!(stale.get_error_details().error_info().unwrap().reason, "stale_fence");
    assert_eq!(stale.message(), text(&stale_too, "detail"));
    assert!(stale.get_error_details().error_info().unwrap().metadata.contains_key("index"));

    let point = format!(r#"{{{RECORD},"fence":"{fence}","name":"sent","data":"AAEC"}}"#);
    assert_eq!(running.post("/v1/checkpoint", &point).await.0, 200);
    let outcome = v1::Outcome { status: Some(201), body: Some(b"\0done".as_slice().into()), ..Default::default() };
    grpc.complete(v1::CompleteRequest { record: id(), fence: Some(fence), outcome: Some(outcome) }).await.unwrap();
    let replay = grpc.claim(other).await.unwrap().into_inner();
    let (_, replay_too) = running.post("/v1/claim", &format!(r#"{{{RECORD},"request":{{"amount":1}}}}"#)).await;
    assert_eq!(replay.to_json().member("outcome"), replay_too.member("outcome"));
    assert_eq!(replay.outcome.unwrap().body.as_deref(), Some(b"\0done".as_slice()));

    let get = grpc.get(v1::GetRequest { record: id(), with_outcome: Some(true) }).await.unwrap().into_inner();
    let (_, get_too) = running.post("/v1/get", &format!(r#"{{{RECORD},"with_outcome":true}}"#)).await;
    assert_eq!(still(&get.to_json()), still(&get_too));
    let history = v1::HistoryRequest { record: id(), page_size: None, cursor: None };
    let history = grpc.history(history).await.unwrap().into_inner();
    let (_, history_too) = running.post("/v1/history", &format!("{{{RECORD}}}")).await;
    assert_eq!(still(&history.to_json()), still(&history_too));
    let kinds: Vec<_> = history.events.iter().map(|event| event.kind().as_str_name()).collect();
    let told =
        ["CLAIMED", "STALE_FENCE", "CHECKPOINTED", "BEGUN", "COMPLETED"].map(|kind| format!("HISTORY_KIND_{kind}"));
    assert!(told.iter().all(|kind| kinds.contains(&kind.as_str())), "{kinds:?}");
    let list = v1::ListRequest { tenant: Some("acme".into()), ..Default::default() };
    let page = grpc.list(list).await.unwrap().into_inner().message().await.unwrap().unwrap();
    let (_, page_too) = running.post("/v1/list", r#"{"tenant":"acme"}"#).await;
    assert_eq!(still(&page.to_json()).member("records"), still(&page_too).member("records"));
    assert_eq!(page.records.len(), 1);

    let (_, set) =
        running.post("/v1/policy/set", r#"{"tenant":"acme","policy":{"replay_s":5,"records_max":"9"}}"#).await;
    let scope = v1::GetPolicyRequest { tenant: Some("acme".into()), operation: None };
    let policy = running.policies.clone().get(scope).await.unwrap().into_inner();
    assert_eq!(still(&set), still(&policy.to_json()));
    assert_eq!(policy.overrides.unwrap().records_max, Some(9));
    let (_, cleared) = running.post("/v1/policy/set", r#"{"tenant":"acme","policy":{"records_max":null}}"#).await;
    assert_eq!(cleared.member("overrides").and_then(|own| own.member("records_max")), Some(&Json::Null));
    running.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_ends_with_its_connection_and_with_the_node() {
    let running = Running::start().await;
    let claim = |key: &str, wait_ms: u32| {
        format!(r#"{{"record":{{"operation":"op","key":"{key}"}},"request":1,"wait_ms":{wait_ms}}}"#)
    };
    assert_eq!(running.post("/v1/claim", &claim("k", 0)).await.0, 200);
    let waiters = async |wanted: u32| {
        let look =
            async { while !running.operators("/metrics").await.1.contains(&format!("semel_waiters {wanted}\n")) {} };
        timeout(Duration::from_secs(20), look).await.unwrap_or_else(|_| panic!("{wanted} claims wait"));
    };
    // A connection that is closed takes its waiter with it.
    let body = claim("k", 60_000);
    let head =
        format!("POST /v1/claim HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n", running.node.listen(), body.len());
    let mut stream = TcpStream::connect(running.node.listen()).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    waiters(1).await;
    drop(stream);
    waiters(0).await;
    // A node that stops answers whoever waits, as things stand.
    let http = running.http.clone();
    let to = format!("http://{}/v1/claim", running.node.listen());
    let waiting = tokio::spawn(async move {
        let request = Request::post(to).body(Full::from(body)).unwrap();
        http.request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes()
    });
    waiters(1).await;
    timeout(Duration::from_secs(20), running.node.stop()).await.expect("it stops");
    let answer = Json::parse(&waiting.await.unwrap()).unwrap();
    assert_eq!(text(&answer, "answer"), "in_progress", "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_cluster_has_ended_is_not_ready() {
    let running = Running::start().await;
    assert_eq!(running.post("/v1/claim", &format!(r#"{{{RECORD},"request":1}}"#)).await.0, 200);
    let back_up = async |asked: String| {
        let (status, said) = running.send("POST", running.node.admin_listen(), "/v1/admin/backup", asked).await;
        assert_eq!(status, 200, "{said}");
        Json::parse(said.as_bytes()).unwrap()
    };
    let id = text(&back_up(r#"{"final":true}"#.to_owned()).await, "id").to_owned();
    let written = async { while text(&back_up(format!(r#"{{"id":"{id}"}}"#)).await, "state") != "ready" {} };
    timeout(Duration::from_secs(60), written).await.expect("it is written");
    let (status, said) = running.operators("/readyz").await;
    assert!(status == 503 && said.contains("final backup"), "{status} {said}");
    assert_eq!(running.operators("/healthz").await.0, 200);
    running.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_is_added_again_is_told_as_one() {
    let running = Running::start().await;
    let member = running.node.status().members[0].member.clone();
    let asked = format!(r#"{{"id":1,"peer":"{}","client":"{}"}}"#, member.peer_addr, member.client_addr);
    let (status, said) = running.send("POST", running.node.admin_listen(), "/v1/admin/add", asked).await;
    assert_eq!((status, said.as_str()), (200, r#"{"id":1,"role":"voter"}"#));
    running.node.stop().await;
}
