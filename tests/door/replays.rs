//! Answers of every kind, and the same once more.

use std::{sync::Arc, time::Duration};

use semel::proto::v1::State;
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Notify};

use super::{Answer, Asked, Setting, Upstream, until, wire};

/// Asks twice for each answer, and gives the second of each: the first one's replay, byte for byte.
async fn twice(answers: Vec<Answer>) -> Vec<(super::Reply, super::Reply)> {
    let calls = answers.len();
    let setting = Setting::before(Upstream::these(answers).await).await;
    let mut pairs = Vec::new();
    for call in 1..=calls {
        let key = format!("k-{call}");
        let (first, again) = (setting.order(&key).await, setting.order(&key).await);
        assert_eq!((first.status, &first.body), (again.status, &again.body));
        assert!(!first.is_replay() && again.is_replay(), "{again:?}");
        assert_eq!(setting.upstream.calls(), call);
        pairs.push((first, again));
    }
    pairs
}

#[tokio::test]
async fn bodies_come_back_byte_for_byte() {
    let random: [u8; 64 << 10] = semel::entropy::bytes();
    let zipped = b"\x1f\x8b\x08\x00not really";
    let pairs = twice(vec![
        Answer::of(200, "Content-Type: application/octet-stream\r\n", random),
        Answer::of(200, "Content-Encoding: gzip\r\n", zipped),
        Answer::Bytes(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n".to_vec(),
        ),
        Answer::Close(b"HTTP/1.0 200 OK\r\n\r\nabcdef".to_vec()),
        Answer::of(200, "Content-Type: application/json\r\n", "null"),
        Answer::of(200, "Content-Type: application/json\r\n", "\"\""),
    ])
    .await;
    let again: Vec<_> = pairs.iter().map(|(_, again)| again).collect();
    assert_eq!(again[0].body, random);
    assert_eq!((again[1].field("content-encoding"), again[1].body.as_slice()), (Some("gzip"), &zipped[..]));
    assert_eq!((again[2].body.as_slice(), again[2].field("content-length")), (&b"abcdef"[..], Some("6")));
    assert_eq!(again[3].body, b"abcdef");
    assert_eq!((again[4].body.as_slice(), again[5].body.as_slice()), (&b"null"[..], &b"\"\""[..]));
}

#[tokio::test]
async fn empty_answers_stay_empty_in_their_own_way() {
    let answers = [Answer::bare(204, ""), Answer::of(200, "", ""), Answer::of(302, "Location: /orders/7\r\n", "")];
    let pairs = twice(answers.to_vec()).await;
    let again: Vec<_> = pairs.iter().map(|(_, again)| again).collect();
    assert_eq!((again[0].status, again[0].field("content-length")), (204, None));
    assert_eq!((again[1].status, again[1].field("content-length")), (200, Some("0")));
    assert_eq!((again[2].status, again[2].field("location")), (302, Some("/orders/7")));
}

#[tokio::test]
async fn refusals_of_the_service_are_answers_too() {
    let statuses = [400, 402, 404, 409, 410, 418, 422];
    let pairs = twice(statuses.map(|status| Answer::of(status, "", "no")).to_vec()).await;
    assert!(pairs.iter().map(|(_, again)| again.status).eq(statuses));
}

#[tokio::test]
async fn only_some_fields_are_kept() {
    let lines = "Location: /1\r\nSet-Cookie: s=1\r\nX-Other: o\r\nIdempotent-Replayed: true\r\nETag: \"e\"\r\n\
        Connection: X-Hop\r\nX-Hop: 1\r\n";
    let (first, again) = twice(vec![Answer::of(201, lines, "x")]).await.remove(0);
    assert_eq!((first.field("set-cookie"), first.field("x-other")), (Some("s=1"), Some("o")));
    assert_eq!((first.field("x-hop"), first.field("idempotent-replayed")), (None, None));
    assert_eq!((again.field("location"), again.field("etag")), (Some("/1"), Some("\"e\"")));
    assert_eq!((again.field("set-cookie"), again.field("x-other")), (None, None));
}

#[tokio::test]
async fn large_answers_stream_and_say_later_that_they_are_not_kept() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect();
    let setting = Setting::before(Upstream::always(Answer::of(200, "", &body)).await).await;
    let first = setting.order("k").await;
    assert!(first.status == 200 && first.whole && first.body == body);
    let again = setting.order("k").await;
    assert_eq!(again.refusal(), (409, "outcome_not_stored".to_owned()));
    assert_eq!(setting.upstream.calls(), 1);
    assert_eq!(setting.state("k").await, Some(State::Completed));
}

#[tokio::test]
async fn at_the_limit_a_body_is_kept_and_beyond_it_is_not() {
    let config = "[proxy]\noutcome_bytes_max = 1000\n";
    let answers = [1000, 1001].map(|length| Answer::of(200, "", vec![b'x'; length])).to_vec();
    let setting = Setting::with(config, Upstream::these(answers).await).await;
    for (length, kept) in [(1000, true), (1001, false)] {
        let key = length.to_string();
        assert_eq!(setting.order(&key).await.body.len(), length);
        assert_eq!(setting.order(&key).await.is_replay(), kept, "{length}");
    }
}

#[tokio::test]
async fn a_policy_that_keeps_less_costs_the_body_and_nothing_else() {
    let setting = Setting::before(Upstream::always(Answer::of(201, "", vec![b'x'; 100])).await).await;
    let policy = semel::proto::v1::Policy { outcome_bytes_max: Some(10), ..Default::default() };
    let request = semel::proto::v1::SetPolicyRequest { policy: Some(policy), ..Default::default() };
    setting.client.set_policy(request).await.unwrap();
    assert_eq!(setting.order("k").await.body.len(), 100);
    assert_eq!(setting.order("k").await.refusal(), (409, "outcome_not_stored".to_owned()));
}

#[tokio::test]
async fn a_client_that_leaves_changes_nothing() {
    let held = Arc::new(Notify::new());
    let answer = Answer::Held(held.clone(), b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone".to_vec());
    let setting = Setting::before(Upstream::always(answer).await).await;
    let mut stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
    stream.write_all(&Asked::order("k").bytes()).await.unwrap();
    until("the upstream is asked", async || setting.upstream.calls() == 1).await;
    #[allow(deprecated, reason = "a reset is what is wanted")]
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    held.notify_one();
    setting.becomes("k", State::Completed).await;
    let again = setting.order("k").await;
    assert_eq!((again.body.as_slice(), again.is_replay()), (&b"done"[..], true));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_before_its_body_is_whole_leaves_no_trace() {
    let setting = Setting::before(Upstream::counting().await).await;
    let mut stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
    let bytes = Asked::order("k").bytes();
    stream.write_all(&bytes[..bytes.len() - 3]).await.unwrap();
    drop(stream);
    assert_eq!(setting.order("other").await.body, b"order 1");
    assert_eq!((setting.state("k").await, setting.upstream.calls()), (None, 1));
}

#[tokio::test]
async fn whoever_comes_meanwhile_is_told_to_wait_or_waits() {
    let held = Arc::new(Notify::new());
    let answer = Answer::Held(held.clone(), b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone".to_vec());
    let setting = Setting::before(Upstream::always(answer).await).await;
    let listen = setting.serving.listen();
    let first = tokio::spawn(Asked::order("k").send(listen));
    until("the upstream is asked", async || setting.upstream.calls() == 1).await;
    let busy = setting.order("k").await;
    assert_eq!(busy.refusal(), (409, "in_progress".to_owned()));
    assert_eq!(busy.problem("title"), "A request is outstanding for this Idempotency-Key");
    let other = setting.ask(Asked::post("/orders").key("k").json("{}")).await;
    assert_eq!(other.refusal(), (422, "key_reused".to_owned()), "another request comes first");
    let waits = tokio::spawn(Asked::order("k").line("Prefer", "respond-async, WAIT=\"20\"").send(listen));
    let short = setting.ask(Asked::order("k").line("Prefer", "wait=1")).await;
    assert_eq!((short.status, short.field("preference-applied")), (409, Some("wait=1")));
    held.notify_one();
    assert_eq!(first.await.unwrap().body, b"done");
    let waited = waits.await.unwrap();
    assert_eq!((waited.body.as_slice(), waited.is_replay()), (&b"done"[..], true));
    assert_eq!(waited.field("preference-applied"), Some("wait=20"));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn many_at_once_run_once() {
    let setting = Setting::before(Upstream::counting().await).await;
    let listen = setting.serving.listen();
    let ask = || tokio::spawn(Asked::order("k").line("Prefer", "wait=20").send(listen));
    let asked: Vec<_> = (0..32).map(|_| ask()).collect();
    let mut replays = 0;
    for reply in asked {
        let reply = reply.await.unwrap();
        assert_eq!((reply.status, reply.body.as_slice()), (201, &b"order 1"[..]));
        replays += usize::from(reply.is_replay());
    }
    assert_eq!((replays, setting.upstream.calls()), (31, 1));
}

#[tokio::test]
async fn replays_speak_to_their_own_origin_alone() {
    let lines = "Access-Control-Allow-Origin: https://a.example\r\nVary: Origin\r\n";
    let setting = Setting::before(Upstream::always(Answer::of(200, lines, "x")).await).await;
    let ask = async |origin: &str| setting.ask(Asked::order("k").line("Origin", origin)).await;
    assert!(!ask("https://a.example").await.is_replay());
    let own = ask("https://a.example").await;
    assert!(own.is_replay() && own.field("access-control-allow-origin").is_some());
    let other = ask("https://b.example").await;
    assert!(other.is_replay() && other.field("access-control-allow-origin").is_none());
}

#[tokio::test]
async fn a_key_whose_time_is_over_says_so() {
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nreplay_s = 1\nevidence_s = 3600\nexpired_status = 422\n";
    let setting = Setting::with(config, Upstream::counting().await).await;
    assert_eq!(setting.order("k").await.status, 201);
    until("the replay window is over", async || !setting.order("k").await.is_replay()).await;
    assert_eq!(setting.order("k").await.refusal(), (422, "key_expired".to_owned()));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn expect_continue_is_answered_after_the_head_is_judged() {
    let setting = Setting::before(Upstream::counting().await).await;
    let head = |key: &str| {
        format!(
            "POST /orders HTTP/1.1\r\nHost: h\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
        )
    };
    let refused = wire::raw(setting.serving.listen(), head("a,b").as_bytes()).await;
    assert!(refused.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&refused));
    let taken = wire::raw(setting.serving.listen(), (head("k") + "{}").as_bytes()).await;
    assert!(taken.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&taken));
    assert!(String::from_utf8_lossy(&taken).contains("order 1"));
}
