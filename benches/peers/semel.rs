//! Semel: nodes as operators run them (`semel serve`), called through each of its doors.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use semel::{
    Client,
    fingerprint::Fingerprint,
    proto::v1::{self, Answer, records_client::RecordsClient},
};
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use super::{
    drive::Caller,
    processes::{Process, free_port, listening},
    wire::Wire,
};

const TOKEN: &str = "the-caller-of-this-benchmark";
const OPERATOR: &str = "the-operator-of-this-benchmark";
const OPERATION: &str = "charge.create";
/// Callers of plain gRPC that share a connection.
const CALLERS_A_CONNECTION: usize = 16;

struct Node {
    process: Process,
    client: u16,
    admin: u16,
}

/// One node or several.
pub struct Semel {
    nodes: Vec<Node>,
}

impl Semel {
    pub async fn start(bin: &Path, dir: &Path, count: usize) -> Self {
        std::fs::create_dir_all(dir).expect("the directory can be written");
        let tokens = dir.join("tokens.toml");
        let text = format!(
            "[[token]]\ntoken = \"{TOKEN}\"\ntenant = \"bench\"\noperations = [\"*\"]\n\
             permissions = [\"claim\", \"read_outcomes\"]\n\n[[token]]\ntoken = \"{OPERATOR}\"\npermissions = [\"cluster\"]\n"
        );
        std::fs::write(&tokens, text).expect("the directory can be written");
        let mut init = Command::new(bin);
        init.args(["cluster", "init"]).env("SEMEL_TOKEN", OPERATOR);
        let nodes: Vec<Node> = (1..=count)
            .map(|id| {
                let (client, peer, admin) = (free_port(), free_port(), free_port());
                let (config, data) = (dir.join(format!("node-{id}.toml")), dir.join(format!("node-{id}")));
                let text = format!(
                    "node_id = {id}\ndata_dir = \"{}\"\nlisten = \"127.0.0.1:{client}\"\n\
                     peer_listen = \"127.0.0.1:{peer}\"\nadmin_listen = \"127.0.0.1:{admin}\"\n\n\
                     [auth]\ntoken_file = \"{}\"\n",
                    data.display(),
                    tokens.display()
                );
                std::fs::write(&config, text).expect("the directory can be written");
                init.arg("--node").arg(format!("{id}=127.0.0.1:{peer},127.0.0.1:{client}"));
                let mut serve = Command::new(bin);
                serve.arg("serve").arg("--config").arg(&config);
                let process = Process::start(&mut serve, &dir.join(format!("node-{id}.log")), "-TERM");
                Node { process, client, admin }
            })
            .collect();
        for node in &nodes {
            listening(node.admin).await;
        }
        init.arg("--admin-endpoint").arg(format!("http://127.0.0.1:{}", nodes[0].admin));
        let done = init.output().expect("the command line runs");
        assert!(done.status.success(), "init: {}", String::from_utf8_lossy(&done.stderr));
        let semel = Self { nodes };
        semel.leader().await;
        semel
    }

    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.process.pid()).collect()
    }

    /// The clients' port of the node that leads, once all are ready.
    async fn leader(&self) -> u16 {
        for _ in 0..300 {
            let (mut leads, mut ready) = (None, 0);
            for node in &self.nodes {
                let Ok(stream) = tokio::net::TcpStream::connect(("127.0.0.1", node.admin)).await else { continue };
                drop(stream);
                let mut wire = Wire::connect(node.admin).await;
                ready += usize::from(http(&mut wire, "GET", "/readyz", OPERATOR, "").await.0 == 200);
                let (_, status) = http(&mut wire, "GET", "/v1/status", OPERATOR, "").await;
                if status.contains(r#""role":"leader""#) && leads_itself(&status) {
                    leads = Some(node.client);
                }
            }
            if let (Some(port), true) = (leads, ready == self.nodes.len()) {
                return port;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("no node of Semel leads");
    }

    /// Callers that share sessions of the client library.
    pub async fn sessions(&self, callers: usize, sessions: usize) -> Vec<SessionCaller> {
        let endpoints: Vec<String> =
            self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.client)).collect();
        let mut clients = Vec::new();
        for _ in 0..sessions {
            let client = Client::builder().endpoints(endpoints.clone()).token(TOKEN).connect().await;
            clients.push(client.expect("the node takes calls"));
        }
        (0..callers).map(|n| SessionCaller(clients[n % clients.len()].clone())).collect()
    }

    /// Callers of plain gRPC at the leader, a call for each write.
    pub async fn plain(&self, callers: usize) -> Vec<PlainCaller> {
        let port = self.leader().await;
        let channel = || {
            let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("it is an address");
            endpoint.tcp_nodelay(true).connect_lazy()
        };
        let channels: Vec<Channel> = (0..callers.div_ceil(CALLERS_A_CONNECTION)).map(|_| channel()).collect();
        let token: MetadataValue<Ascii> = format!("Bearer {TOKEN}").parse().expect("it is a header's value");
        let caller = |n: usize| PlainCaller {
            stub: RecordsClient::new(channels[n % channels.len()].clone()),
            token: token.clone(),
        };
        (0..callers).map(caller).collect()
    }

    /// Callers of HTTP/JSON at the leader, each with a connection that it keeps.
    pub async fn http(&self, callers: usize) -> Vec<HttpCaller> {
        let port = self.leader().await;
        let mut all = Vec::new();
        for _ in 0..callers {
            all.push(HttpCaller(Wire::connect(port).await));
        }
        all
    }
}

/// Whether a node that says that it leads is the one that it names.
fn leads_itself(status: &str) -> bool {
    let status: serde_json::Value = serde_json::from_str(status).unwrap_or_default();
    status["role"] == "leader" && status["leader_id"] == status["node_id"]
}

fn record(key: &str) -> Option<v1::RecordId> {
    Some(v1::RecordId { operation: OPERATION.into(), key: key.to_owned(), ..v1::RecordId::default() })
}

fn claim_of(key: &str) -> v1::ClaimRequest {
    let fingerprint = Fingerprint::new(1, [7; 32]);
    v1::ClaimRequest {
        record: record(key),
        fingerprints: vec![v1::Fingerprint { scheme: 1, digest: Bytes::copy_from_slice(fingerprint.digest()) }],
        staged: Some(false),
        ..v1::ClaimRequest::default()
    }
}

fn complete_of(key: &str, fence: u64, outcome: Bytes) -> v1::CompleteRequest {
    let outcome = v1::Outcome { status: Some(201), body: Some(outcome), ..v1::Outcome::default() };
    v1::CompleteRequest { record: record(key), fence: Some(fence), outcome: Some(outcome) }
}

fn granted(answer: &v1::ClaimAnswer) -> u64 {
    assert_eq!(answer.answer(), Answer::New, "a fresh key is new: {answer:?}");
    assert_eq!(answer.attempt, Some(1), "it is granted once: {answer:?}");
    answer.fence.expect("a grant has a fence")
}

fn replayed(answer: v1::ClaimAnswer) -> Bytes {
    assert_eq!(answer.answer(), Answer::Completed, "{answer:?}");
    answer.outcome.and_then(|outcome| outcome.body).expect("an outcome has its body")
}

pub struct SessionCaller(Client);

impl Caller for SessionCaller {
    async fn claim(&mut self, key: &str) -> u64 {
        granted(&self.0.claim(claim_of(key)).await.expect("the claim is answered"))
    }

    async fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) {
        let done = self.0.complete(complete_of(key, fence, outcome)).await.expect("the completion is answered");
        assert_eq!(done.state(), v1::State::Completed);
    }

    async fn outcome(&mut self, key: &str) -> Bytes {
        replayed(self.0.claim(claim_of(key)).await.expect("the claim is answered"))
    }
}

pub struct PlainCaller {
    stub: RecordsClient<Channel>,
    token: MetadataValue<Ascii>,
}

impl PlainCaller {
    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.clone());
        request
    }
}

impl Caller for PlainCaller {
    async fn claim(&mut self, key: &str) -> u64 {
        let request = self.request(claim_of(key));
        granted(self.stub.claim(request).await.expect("the claim is answered").get_ref())
    }

    async fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) {
        let request = self.request(complete_of(key, fence, outcome));
        let done = self.stub.complete(request).await.expect("the completion is answered");
        assert_eq!(done.get_ref().state(), v1::State::Completed);
    }

    async fn outcome(&mut self, key: &str) -> Bytes {
        let request = self.request(claim_of(key));
        replayed(self.stub.claim(request).await.expect("the claim is answered").into_inner())
    }
}

/// One request, and the status and body of its answer.
async fn http(wire: &mut Wire, method: &str, path: &str, token: &str, body: &str) -> (u16, String) {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: semel\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    wire.write(request.as_bytes()).await;
    let head = wire.until(b"\r\n\r\n").await;
    let head = std::str::from_utf8(&head).expect("a head is text");
    let status = head.get(9..12).and_then(|text| text.parse().ok()).expect("a status");
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().expect("a length"))
    });
    let body = wire.exactly(length.unwrap_or_else(|| panic!("an answer has a length: {head}"))).await;
    (status, String::from_utf8(body.into()).expect("JSON is text"))
}

/// The text of a member whose value is a plain string.
fn member<'a>(json: &'a str, name: &str) -> &'a str {
    let behind = json.split_once(&format!("\"{name}\":\"")).unwrap_or_else(|| panic!("no {name} in {json}")).1;
    behind.split('"').next().unwrap_or_default()
}

pub struct HttpCaller(Wire);

impl HttpCaller {
    async fn post(&mut self, path: &str, body: &str) -> String {
        let (status, answer) = http(&mut self.0, "POST", path, TOKEN, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    async fn ask(&mut self, key: &str) -> String {
        let digest = "07".repeat(32);
        let claim = format!(
            "{{\"record\":{{\"operation\":\"{OPERATION}\",\"key\":\"{key}\"}},\"staged\":false,\
             \"fingerprints\":[{{\"scheme\":1,\"digest\":\"{digest}\"}}]}}"
        );
        self.post("/v1/claim", &claim).await
    }
}

impl Caller for HttpCaller {
    async fn claim(&mut self, key: &str) -> u64 {
        let answer = self.ask(key).await;
        assert_eq!(member(&answer, "answer"), "new", "a fresh key is new: {answer}");
        member(&answer, "fence").parse().expect("a fence is a number")
    }

    async fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) {
        let complete = format!(
            "{{\"record\":{{\"operation\":\"{OPERATION}\",\"key\":\"{key}\"}},\"fence\":\"{fence}\",\
             \"outcome\":{{\"status\":201,\"body\":\"{}\"}}}}",
            STANDARD.encode(&outcome)
        );
        let answer = self.post("/v1/complete", &complete).await;
        assert_eq!(member(&answer, "state"), "completed");
    }

    async fn outcome(&mut self, key: &str) -> Bytes {
        let answer = self.ask(key).await;
        assert_eq!(member(&answer, "answer"), "completed", "{answer}");
        STANDARD.decode(member(&answer, "body")).expect("a body is base64").into()
    }
}

/// Where a build of Semel lies, when it is not this one.
pub fn build(named: Option<&str>) -> PathBuf {
    named.unwrap_or(env!("CARGO_BIN_EXE_semel")).into()
}
