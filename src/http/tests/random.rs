//! Whatever is sent, the answer is an answer or a well-formed problem, and the server lives on.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::Server;
use crate::fuzz::Target;

const PATHS: [&str; 16] = [
    "claim",
    "begin",
    "renew",
    "checkpoint",
    "complete",
    "release",
    "suspend",
    "get",
    "batch",
    "list",
    "investigate",
    "resolve",
    "forget",
    "history",
    "policy/get",
    "policy/set",
];

/// Names that the API has, so that random objects get past the first check.
const NAMES: [&str; 24] = [
    "record",
    "tenant",
    "principal",
    "operation",
    "key",
    "request",
    "fingerprints",
    "scheme",
    "digest",
    "ignore",
    "attempt_id",
    "lease_ms",
    "fence",
    "outcome",
    "status",
    "headers",
    "body",
    "items",
    "claim",
    "get",
    "policy",
    "version",
    "verdict",
    "evidence",
];

fn json() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        Just("\"\"".to_owned()),
        Just("\"k\"".to_owned()),
        Just("\"42\"".to_owned()),
        Just("\"no_effect\"".to_owned()),
        Just("\"2026-01-31T09:30:00Z\"".to_owned()),
        "[a-z ]{0,12}".prop_map(|text| format!("\"{text}\"")),
    ];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        any::<i64>().prop_map(|value| value.to_string()),
        any::<f64>()
            .prop_filter("JSON has no such number", |value| value.is_finite())
            .prop_map(|value| value.to_string()),
        text,
    ];
    leaf.prop_recursive(5, 48, 6, |inner| {
        let member =
            (prop::sample::select(&NAMES[..]), inner.clone()).prop_map(|(name, value)| format!("\"{name}\":{value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    })
}

/// Runs a property in which a server is asked.
fn check<S: Strategy>(cases: u32, strategy: S, body: impl Fn(S::Value) -> Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let whole = (strategy, prop::sample::select(&PATHS[..]));
    let run = runner.run(&whole, |(value, path)| {
        let body = body(value);
        runtime.block_on(async {
            let reply = server.post(&format!("/v1/{path}"), body.clone()).await;
            if reply.status == 200 {
                reply.json();
            } else {
                reply.code();
            }
            let mut frame = vec![0];
            frame.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
            frame.extend_from_slice(&body);
            let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
            let method = path.split('/').next_back().map(|word| word[..1].to_ascii_uppercase() + &word[1..]).unwrap();
            let service = if path.starts_with("policy") { "Policies" } else { "Records" };
            let reply = server.send("POST", &format!("/semel.v1.{service}/{method}"), &grpc, frame).await;
            assert_eq!(reply.status, 200, "{method}");
        });
        Ok(())
    });
    run.unwrap();
}

#[test]
fn random_bytes() {
    check(256, prop::collection::vec(any::<u8>(), 0..200), |bytes| bytes);
}

#[test]
fn random_json() {
    check(1024, json(), String::into_bytes);
}

#[test]
fn damaged_requests() {
    let good = br#"{"record":{"tenant":"t","operation":"o","key":"k"},"request":{"a":[1,"\u00e9"]},"lease_ms":1}"#;
    check(512, (0..good.len(), any::<u8>(), any::<bool>()), |(at, byte, cut)| {
        let mut body = good.to_vec();
        if cut {
            body.truncate(at);
        } else {
            body[at] = byte;
        }
        body
    });
}

/// Heads of any bytes, on a connection each: answered or closed, and the server lives on.
#[test]
fn fuzz_http_heads() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(Server::start());
    let body = r#"{"record":{"operation":"o","key":"k"},"request":1}"#;
    let claim =
        format!("POST /v1/claim HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n{body}", server.address, body.len());
    let list = "GET /v1/list?tenant=a%20b&x HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\n\r\n".to_owned();
    let good =
        vec![claim.into_bytes(), list.into_bytes(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()];
    let words = &[
        "\r\n",
        "\r\n\r\n",
        "content-length: 0\r\n",
        "content-length: 18446744073709551615\r\n",
        "transfer-encoding: chunked\r\n",
        "authorization: Bearer x\r\n",
        "host: a\r\n",
        "expect: 100-continue\r\n",
        "HTTP/1.0",
        "HEAD ",
        "%00",
        "?",
        "/v1/watch",
        "\t",
    ];
    Target { name: "http-heads", good, words, cases: 400 }.run(
        |_| {},
        |bytes| {
            runtime.block_on(async {
                let mut stream = TcpStream::connect(server.address).await.unwrap();
                // It may be refused before all of it is sent.
                let _ = stream.write_all(bytes).await;
                let _ = stream.shutdown().await;
                let mut answer = Vec::new();
                let read = stream.read_to_end(&mut answer);
                let ended = tokio::time::timeout(std::time::Duration::from_secs(15), read).await;
                assert!(ended.is_ok(), "it is neither answered nor closed");
                answer.starts_with(b"HTTP/1.") || answer.get(3) == Some(&4)
            })
        },
    );
    runtime.block_on(async { assert_eq!(server.post("/v1/claim", body).await.status, 200) });
}
