//! Whatever is sent, the answer is an answer or a well-formed problem, and the server lives on.

use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

use super::Server;

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
