//! Connections that mean no good, against one real process: it stays small, and whoever has a credential is served
//! meanwhile.

use std::{
    fs,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    caller::{Caller, record},
    cluster::{Cluster, PATIENCE},
    node::{CALLER_TOKEN, CLUSTER_TOKEN, Node, semel},
};

/// How much the node may grow by, whatever comes, KiB.
const GROWTH_KIB: u64 = 400 << 10;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// POST http://localhost/
const HEAD: &[u8] = b"\x83\x86\x84\x01\x09localhost";
const ENHANCE_YOUR_CALM: [u8; 4] = [0, 0, 0, 0xb];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Connects from one of several addresses.
async fn connect(to: SocketAddr, number: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    let from = std::net::Ipv4Addr::new(127, 0, 2, u8::try_from(1 + number % 4).unwrap());
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn http2(to: SocketAddr, number: usize) -> TcpStream {
    let mut stream = connect(to, number).await;
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    stream
}

/// Everything that still comes, until the other side closes.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset says as much as an end.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the connection is ended");
    all
}

/// Whether it is told to calm down.
fn is_calmed(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while rest.len() >= 9 {
        let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
        if rest[3] == GOAWAY && rest.get(13..17) == Some(&ENHANCE_YOUR_CALM) {
            return true;
        }
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    false
}

/// The largest that the process ever was, KiB.
fn peak_kib(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the system tells");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

async fn refused(cluster: &Cluster, reason: &str) -> u64 {
    let text = cluster.caller.with_token(CLUSTER_TOKEN).text(cluster.nodes[0].admin, "/metrics", PATIENCE).await;
    let name = format!("semel_refused_connections_total{{reason=\"{reason}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

/// Somebody with a credential, all the while: how often it was served, until it is told to stop.
struct Honest {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Honest {
    fn begin(caller: &Caller, to: SocketAddr) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (caller, ends, count) = (caller.clone(), Arc::clone(&stop), Arc::clone(&served));
        let task = tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let key = format!("honest-{}", count.load(Ordering::Relaxed));
                let claim = json!({"record": record(&key), "request": 1});
                let reply = caller.post(to, "/v1/claim", &claim, PATIENCE).await.expect("it is answered");
                assert_eq!((reply.status, reply.word()), (200, "new"), "{reply:?}");
                count.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { stop, served, task }
    }

    /// Is served so many times more.
    async fn goes_on(&self, times: u64) {
        let (from, until) = (self.served.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while self.served.load(Ordering::Relaxed) < from + times {
            assert!(!self.task.is_finished() && Instant::now() < until, "it is not served");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

/// Heads that come a byte at a time, and bodies that never do.
async fn slow(to: SocketAddr, honest: &Honest) {
    let mut slow = JoinSet::new();
    for number in 0..400 {
        slow.spawn(async move {
            let mut stream = connect(to, number).await;
            let (head, pause) = match number % 4 {
                0 => ("GET /v1/policy HTTP/1.1\r\nhost: a\r\nx: ".to_owned(), 40),
                1 => ("POST /v1/claim HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n".to_owned(), 40),
                2 => (format!("POST /v1/claim HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {CALLER_TOKEN}\r\ncontent-length: 100000\r\n\r\n"), 40),
                _ => (String::new(), 400),
            };
            // Until it is ended, one way or the other; or the test is over.
            for byte in head.bytes().chain(std::iter::repeat(b'x')) {
                if stream.write_all(&[byte]).await.is_err() {
                    break;
                }
                sleep(Duration::from_millis(if byte == b'x' { pause } else { 1 })).await;
            }
        });
    }
    honest.goes_on(100).await;
    slow.abort_all();
}

/// Streams that are opened and reset, at once and one by one; pings; heads without an end.
async fn rapid(cluster: &Cluster, to: SocketAddr, honest: &Honest) {
    let reset = |stream| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    for number in 0..8 {
        let mut stream = http2(to, number).await;
        let streams = (0..2000u32).map(|n| 2 * n + 1);
        let flood: Vec<u8> =
            streams.flat_map(|id| [frame(HEADERS, END_HEADERS, id, HEAD), reset(id)].concat()).collect();
        let _ = stream.write_all(&flood).await;
        rest(&mut stream).await;
    }
    // Slowly enough for the library under it not to mind.
    let before = refused(cluster, "resets_max").await;
    let mut stream = http2(to, 0).await;
    for number in 0..=semel::limits::RESETS_MAX {
        let id = 2 * number + 1;
        let both = [frame(HEADERS, END_HEADERS, id, HEAD), reset(id)].concat();
        stream.write_all(&both).await.unwrap();
        sleep(Duration::from_millis(2)).await;
    }
    assert!(is_calmed(&rest(&mut stream).await), "resets");
    assert_eq!(refused(cluster, "resets_max").await, before + 1);

    let mut stream = http2(to, 1).await;
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(semel::limits::SETTINGS_AND_PINGS_MAX as usize);
    stream.write_all(&pings).await.unwrap();
    rest(&mut stream).await;
    assert_eq!(refused(cluster, "settings_and_pings_max").await, 1);

    let mut stream = http2(to, 2).await;
    let mut endless = frame(HEADERS, END_STREAM, 1, HEAD);
    (0..100).for_each(|_| endless.extend(frame(CONTINUATION, 0, 1, &[])));
    let _ = stream.write_all(&endless).await;
    assert!(is_calmed(&rest(&mut stream).await), "continuations");
    honest.goes_on(20).await;
}

/// Heads of many fields and of large ones, on both protocols.
async fn heads(to: SocketAddr, honest: &Honest) {
    let mut attacks = JoinSet::new();
    for number in 0..32 {
        attacks.spawn(async move {
            let mut stream = connect(to, number).await;
            let fields = match number % 2 {
                0 => format!("x: {}\r\n", "y".repeat(1 << 20)),
                _ => (0..5000).map(|field| format!("x{field}: y\r\n")).collect(),
            };
            // Its end is refused while it is still sent.
            let _ = stream.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes()).await;
            let answer = rest(&mut stream).await;
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&answer));
        });
    }
    attacks.join_all().await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    // Many short ones; some that are too large together; and far more than anybody goes on reading.
    for (fields, size) in [(200, 10), (10, 1700), (20, 2000)] {
        let mut request = Request::builder().uri(format!("http://{to}/v1/policy"));
        for field in 0..fields {
            request = request.header(format!("x-{field}"), "y".repeat(size));
        }
        match client.request(request.body(Full::default()).unwrap()).await {
            Ok(reply) => assert_eq!(reply.status(), 431, "{fields} fields of {size} bytes"),
            Err(ended) => assert_eq!(fields, 20, "{ended}"),
        }
    }
    honest.goes_on(20).await;
}

/// Lengths that are not true, lists that unfold to many times their size, and codings.
async fn lies(to: SocketAddr, honest: &Honest) {
    let bearer = format!("Bearer {CALLER_TOKEN}");
    let head = format!("POST /v1/claim HTTP/1.1\r\nhost: a\r\nauthorization: {bearer}\r\n");
    let answers = [
        ("content-length: 18446744073709551615\r\n\r\n{}", "HTTP/1.1 4"),
        ("content-length: 9223372036854775807\r\n\r\n{}", "HTTP/1.1 413"),
        ("content-length: 99999999999999999999999\r\n\r\n", "HTTP/1.1 400"),
        ("content-length: 2\r\ncontent-length: 3\r\n\r\n{}", "HTTP/1.1 400"),
        ("content-length: -1\r\n\r\n", "HTTP/1.1 400"),
        ("transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n", "HTTP/1.1 400"),
        ("content-encoding: gzip\r\ncontent-length: 20\r\n\r\n01234567890123456789", "HTTP/1.1 400"),
    ];
    for (more, begins) in answers {
        let mut stream = connect(to, 0).await;
        stream.write_all(format!("{head}connection: close\r\n{more}").as_bytes()).await.unwrap();
        let answer = String::from_utf8_lossy(&rest(&mut stream).await).into_owned();
        assert!(answer.starts_with(begins), "{more:?}: {answer}");
    }
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let grpc = async |method: &str, coding: &str, length: u32, body: &[u8]| {
        let framed = [&[u8::from(coding != "identity")], &length.to_be_bytes()[..], body].concat();
        let request = Request::builder().method("POST").uri(format!("http://{to}/semel.v1.Records/{method}"));
        let request = request.header("te", "trailers").header(header::CONTENT_TYPE, "application/grpc");
        let request = request.header(header::AUTHORIZATION, &bearer).header("grpc-encoding", coding);
        let reply = client.request(request.body(Full::new(framed.into())).unwrap()).await.expect("an answer");
        let (head, body) = reply.into_parts();
        let trailers = timeout(PATIENCE, body.collect()).await.expect("an end").unwrap().trailers().cloned();
        let fields = if head.headers.contains_key("grpc-status") { head.headers } else { trailers.unwrap() };
        fields.get("grpc-status").unwrap().to_str().unwrap().to_owned()
    };
    let (invalid, unimplemented, ok) = ("3", "12", "0");
    assert_eq!(grpc("Claim", "identity", u32::MAX, b"1234").await, invalid);
    assert_eq!(grpc("Claim", "gzip", 4, b"1234").await, unimplemented);
    // A million items in two bytes each.
    let items = [0x0a, 0].repeat(1 << 20);
    let length = u32::try_from(items.len()).unwrap();
    for _ in 0..4 {
        assert_eq!(grpc("Batch", "identity", length, &items).await, invalid);
        assert_eq!(grpc("Session", "identity", length, &items).await, invalid);
    }
    // As many as a session may have are each refused by themselves.
    let some = [0x0a, 0].repeat(1000);
    assert_eq!(grpc("Session", "identity", 2000, &some).await, ok);
    honest.goes_on(20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_connections_leave_a_node_small_and_its_callers_served() {
    let mut cluster = Cluster::unformed(1).await;
    cluster.nodes[0].start();
    cluster.init().await;
    let (node, to) = (&cluster.nodes[0], cluster.nodes[0].listen);
    let honest = Honest::begin(&cluster.caller, to);
    honest.goes_on(50).await;
    let before = peak_kib(node);
    rapid(&cluster, to, &honest).await;
    heads(to, &honest).await;
    lies(to, &honest).await;
    slow(to, &honest).await;
    honest.end().await;
    let after = peak_kib(node);
    assert!(after < before + GROWTH_KIB, "it grew from {before} to {after} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_credential_end_and_make_room() {
    let mut cluster = Cluster::unformed(1).await;
    let config = fs::read_to_string(cluster.nodes[0].file("semel.toml")).unwrap();
    let limits = "[limits]\nconnections_max = 50\nunauthenticated_timeout_ms = 3000";
    fs::write(cluster.nodes[0].file("semel.toml"), config.replace("[limits]", limits)).unwrap();
    cluster.nodes[0].start();
    cluster.init().await;
    let to = cluster.nodes[0].listen;
    let honest = Honest::begin(&cluster.caller, to);
    honest.goes_on(5).await;
    // Far more than there is room for, and none of them says anything.
    let mut silent = Vec::new();
    for number in 0..300 {
        silent.push(connect(to, number).await);
    }
    // Who comes now has a credential, and gets a place; who was there has kept it.
    let newcomer = Caller::new();
    let claim = json!({"record": record("newcomer"), "request": 1});
    let reply = newcomer.post(to, "/v1/claim", &claim, PATIENCE).await.expect("there is room");
    assert_eq!(reply.status, 200);
    honest.goes_on(20).await;
    assert!(refused(&cluster, "connections_max").await >= 250);
    for mut stream in silent {
        assert!(rest(&mut stream).await.is_empty());
    }
    assert!(refused(&cluster, "unauthenticated_timeout").await > 0);
    honest.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_handshakes_that_never_end_keep_nobody_out() {
    const HALF_DONE: usize = 1000;
    let mut cluster = Cluster::unformed(1).await;
    cluster.nodes[0].start();
    cluster.init().await;
    let certs = cluster.nodes[0].file("certs");
    let node = cluster.nodes[0].named();
    let made = semel().args(["certs", "--node", "1=127.0.0.1", "--out"]).arg(&certs).output().unwrap();
    assert!(made.status.success(), "{node}: {}", String::from_utf8_lossy(&made.stderr));
    assert_eq!(cluster.nodes[0].stop(PATIENCE).await, Some(0));
    let (cert, key) = (certs.join("node-1-client.pem"), certs.join("node-1-client-key.pem"));
    let tls = format!("\n[tls.client]\ncert = \"{}\"\nkey = \"{}\"\n", cert.display(), key.display());
    cluster.nodes[0].configure(&tls);
    cluster.nodes[0].start();
    cluster.wait_until_ready(&cluster.client_addresses()).await;
    let (node, to) = (&cluster.nodes[0], cluster.nodes[0].listen);
    let before = peak_kib(node);
    let mut held = Vec::new();
    for number in 0..HALF_DONE {
        let mut stream = connect(to, number).await;
        // A record that promises more than comes.
        let begun = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 32]].concat();
        stream.write_all(&begun).await.unwrap();
        held.push(stream);
    }
    let claimed = |key: &str| {
        let mut command = semel();
        command.args([
            "claim",
            "charge.create",
            key,
            "--fingerprint",
            &"1".repeat(64),
            "--endpoint",
            &format!("https://{to}"),
        ]);
        command.arg("--ca").arg(certs.join("clients-ca.pem")).env("SEMEL_TOKEN", CALLER_TOKEN);
        async move { tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap() }
    };
    for number in 0..3 {
        let done = claimed(&format!("k{number}")).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let after = peak_kib(node);
    assert!(after < before + GROWTH_KIB, "it grew from {before} to {after} KiB");
    for mut stream in held {
        assert!(rest(&mut stream).await.is_empty(), "it is ended, sooner or later");
    }
    assert_eq!(refused(&cluster, "handshake_timeout").await, HALF_DONE as u64);
}
