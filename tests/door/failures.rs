//! Upstreams that fail, and what is known of it: the table of the door, row by row.

use std::sync::Arc;

use semel::proto::v1::{self, State};
use tokio::sync::Notify;

use super::{Answer, Asked, Setting, Upstream};

/// The answer leaves the record indeterminate: nothing is sent again, whoever asks.
async fn stays_open(setting: &Setting, key: &str) {
    let calls = setting.upstream.calls();
    setting.becomes(key, State::Indeterminate).await;
    let again = setting.order(key).await;
    assert_eq!(again.refusal(), (409, "outcome_indeterminate".to_owned()), "{key}");
    assert_eq!(again.problem("effect"), "unknown");
    assert_eq!(setting.upstream.calls(), calls);
}

#[tokio::test]
async fn without_a_connection_the_key_is_free() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let setting = Setting::at("", Upstream::counting().await, &format!("http://{address}")).await;
    let reply = setting.order("k").await;
    assert_eq!(reply.refusal(), (502, "upstream_unreachable".to_owned()));
    assert_eq!(reply.problem("effect"), "none");
    setting.is_free("k").await;
    assert_eq!(setting.order("k").await.status, 502, "it is tried again");
}

#[tokio::test]
async fn whatever_ends_without_a_whole_answer_is_indeterminate() {
    let kinds = [
        ("reset", Answer::Reset(Vec::new())),
        ("end", Answer::Close(Vec::new())),
        ("garbage", Answer::Close(b"\x16\x03\x01 what is this\r\n\r\n".to_vec())),
        ("half a head", Answer::Close(b"HTTP/1.1 200 OK\r\nContent-Le".to_vec())),
        ("half a body", Answer::Close(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".to_vec())),
        ("half a chunk", Answer::Close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf".to_vec())),
        (
            "no last chunk",
            Answer::Close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n".to_vec()),
        ),
        ("half a refusal", Answer::Close(b"HTTP/1.1 401 No\r\nContent-Length: 10\r\n\r\nhalf".to_vec())),
    ];
    let setting =
        Setting::before(Upstream::these(kinds.iter().map(|(_, answer)| answer.clone()).collect()).await).await;
    for (what, _) in &kinds {
        let reply = setting.order(what).await;
        assert_eq!(reply.refusal(), (502, "outcome_indeterminate".to_owned()), "{what}");
        assert_eq!(reply.problem("effect"), "unknown");
        stays_open(&setting, what).await;
    }
}

#[tokio::test]
async fn no_answer_in_time_is_indeterminate() {
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nupstream_timeout_s = 1\n";
    let said = ["", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"];
    let upstream = Upstream::these(said.map(|said| Answer::Hang(said.into())).to_vec()).await;
    let setting = Setting::with(config, upstream).await;
    for key in ["nothing", "half"] {
        assert_eq!(setting.order(key).await.refusal(), (504, "outcome_indeterminate".to_owned()), "{key}");
        stays_open(&setting, key).await;
    }
}

#[tokio::test]
async fn a_service_that_failed_leaves_it_open_and_its_answer_is_passed_on() {
    let statuses = [408, 500, 502, 503, 504];
    let answers = statuses.map(|status| Answer::of(status, "X-Own: 1\r\n", "sorry")).to_vec();
    let setting = Setting::before(Upstream::these(answers).await).await;
    for status in statuses {
        let key = status.to_string();
        let reply = setting.order(&key).await;
        assert_eq!((reply.status, reply.body.as_slice(), reply.field("x-own")), (status, &b"sorry"[..], Some("1")));
        stays_open(&setting, &key).await;
    }
}

#[tokio::test]
async fn a_service_that_did_not_even_begin_frees_the_key() {
    let statuses = [401, 403, 407, 421, 425, 429, 503];
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nrelease = [503]\n";
    let answers = statuses.iter().flat_map(|status| [*status, 201]).map(|status| Answer::of(status, "", "said"));
    let setting = Setting::with(config, Upstream::these(answers.collect()).await).await;
    for status in statuses {
        let key = status.to_string();
        assert_eq!(setting.order(&key).await.status, status);
        assert_eq!(setting.order(&key).await.status, 201, "{status} was not kept");
    }
}

#[tokio::test]
async fn a_large_answer_that_breaks_off_is_cut_and_indeterminate() {
    let mut said = b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n".to_vec();
    said.extend_from_slice(&[b'x'; 2_000_000]);
    let setting = Setting::before(Upstream::always(Answer::Close(said)).await).await;
    let reply = setting.order("k").await;
    assert_eq!((reply.status, reply.whole), (200, false));
    assert!(reply.body.len() < 4_000_000);
    stays_open(&setting, "k").await;
}

#[tokio::test]
async fn what_is_found_out_is_replayed() {
    let setting = Setting::before(Upstream::always(Answer::Reset(Vec::new())).await).await;
    assert_eq!(setting.order("k").await.status, 502);
    setting.becomes("k", State::Indeterminate).await;
    let record = setting.record("k").await.unwrap();
    let outcome = v1::Outcome { status: Some(201), body: Some("found".into()), ..v1::Outcome::default() };
    let resolve = v1::ResolveRequest {
        record: record.record,
        version: Some(record.version),
        verdict: v1::Verdict::Completed.into(),
        outcome: Some(outcome),
        actor: Some("ops".to_owned()),
        evidence: "the order stands in the ledger".to_owned(),
        ..v1::ResolveRequest::default()
    };
    setting.client.resolve(resolve).await.unwrap();
    let again = setting.order("k").await;
    assert_eq!((again.status, again.body.as_slice(), again.is_replay()), (201, &b"found"[..], true));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn without_a_store_keys_go_nowhere_and_the_rest_passes() {
    let mut setting = Setting::before(Upstream::counting().await).await;
    assert_eq!(setting.order("k").await.status, 201);
    setting.lose_store().await;
    let reply = setting.order("other").await;
    assert_eq!(reply.refusal(), (503, "store_unavailable".to_owned()));
    assert_eq!(reply.problem("effect"), "none");
    assert_eq!(setting.order("k").await.status, 503, "nor is anything replayed from memory");
    assert_eq!(setting.upstream.calls(), 1);
    let keyless = setting.ask(Asked::post("/orders").json("{}")).await;
    assert_eq!((keyless.status, setting.upstream.calls()), (201, 2));
}

#[tokio::test]
async fn an_answer_that_can_not_be_recorded_is_not_given() {
    let held = Arc::new(Notify::new());
    let answer = Answer::Held(held.clone(), b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone".to_vec());
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nlease_s = 1\n";
    let mut setting = Setting::with(config, Upstream::always(answer).await).await;
    let first = tokio::spawn(Asked::order("k").send(setting.serving.listen()));
    super::until("the upstream is asked", async || setting.upstream.calls() == 1).await;
    setting.lose_store().await;
    held.notify_one();
    let reply = first.await.unwrap();
    assert_eq!(reply.refusal(), (503, "store_unavailable".to_owned()));
    assert_eq!(reply.problem("effect"), "unknown");
}

#[tokio::test]
async fn a_warm_connection_that_has_ended_costs_nobody_their_key() {
    // Each answer says that the connection stays, and then it doesn't: as servers do that give up idle ones.
    let answer = Answer::Close(b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone".to_vec());
    let setting = Setting::before(Upstream::always(answer).await).await;
    for at in 0..20 {
        assert_eq!(setting.order(&format!("k-{at}")).await.status, 201, "{at}");
    }
    assert_eq!(setting.upstream.calls(), 20);
}
