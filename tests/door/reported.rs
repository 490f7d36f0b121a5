//! What has gone wrong at others' doors, as their users reported it: each kind of fault, tried on this one.

use semel::proto::v1::State;

use super::{Answer, Asked, Reply, Setting, Upstream, until};

/// `POST /orders` with the key `k` and this body.
async fn order(setting: &Setting, json: &str) -> Reply {
    setting.ask(Asked::post("/orders").key("k").json(json)).await
}

fn conflict() -> (u16, String) {
    (422, "key_reused".to_owned())
}

#[tokio::test]
async fn a_refusal_that_is_replayed_shows_that_it_is_and_from_when() {
    let refused = Answer::of(422, "Content-Type: application/json\r\n", "{\"code\":\"card_declined\"}");
    let setting = Setting::before(Upstream::always(refused).await).await;
    let first = setting.order("k").await;
    assert_eq!((first.status, first.is_replay(), first.field("semel-completed-at")), (422, false, None));
    let replays = [setting.order("k").await, setting.order("k").await];
    let at = replays[0].field("semel-completed-at").expect("when it was").to_owned();
    for again in &replays {
        assert_eq!((again.status, &again.body, again.is_replay()), (422, &first.body, true));
        assert_eq!(again.field("semel-completed-at"), Some(at.as_str()), "of the first, not of the replay");
    }
    // The door's own refusal has the same status, and is another kind of document.
    let own = order(&setting, "{\"other\":1}").await;
    assert_eq!((own.refusal(), own.is_replay()), (conflict(), false));
    assert_eq!(own.field("content-type"), Some("application/problem+json"));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn what_was_refused_before_anything_happened_can_be_corrected_under_its_key() {
    let setting =
        Setting::before(Upstream::these(vec![Answer::of(429, "", "later"), Answer::of(201, "", "done")]).await).await;
    assert_eq!(order(&setting, "{\"amount\":1}").await.status, 429);
    assert_eq!(order(&setting, "{\"amount\":2}").await.status, 201);
    assert_eq!(order(&setting, "{\"amount\":1}").await.refusal(), conflict());
    assert!(order(&setting, "{\"amount\":2}").await.is_replay());
}

#[tokio::test]
async fn another_request_is_a_conflict_whatever_became_of_the_first() {
    // In doubt.
    let setting = Setting::before(Upstream::always(Answer::Reset(Vec::new())).await).await;
    assert_eq!(order(&setting, "{\"amount\":1}").await.status, 502);
    setting.becomes("k", State::Indeterminate).await;
    assert_eq!(order(&setting, "{\"amount\":2}").await.refusal(), conflict());
    assert_eq!((setting.upstream.calls(), setting.state("k").await), (1, Some(State::Indeterminate)));
    // Not kept.
    let setting =
        Setting::with("[proxy]\noutcome_bytes_max = 10\n", Upstream::always(Answer::of(200, "", [b'x'; 99])).await)
            .await;
    assert_eq!(order(&setting, "{\"amount\":1}").await.status, 200);
    assert_eq!(order(&setting, "{\"amount\":2}").await.refusal(), conflict());
    // Too long ago to be replayed.
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nreplay_s = 1\nevidence_s = 3600\n";
    let setting = Setting::with(config, Upstream::counting().await).await;
    assert_eq!(order(&setting, "{\"amount\":1}").await.status, 201);
    until("the replay window is over", async || order(&setting, "{\"amount\":1}").await.status == 410).await;
    assert_eq!(order(&setting, "{\"amount\":2}").await.refusal(), conflict());
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn a_body_is_the_same_by_what_it_means_and_never_by_less() {
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nfingerprint_without = [\"/client_ts\"]\n";
    let alike = [
        ("{\"a\":{\"x\":1,\"y\":[1,2]},\"b\":1}", "{ \"b\": 1.0, \"a\": {\"y\":[1,2],\"x\":1e0} }", true),
        ("{\"y\":[1,2]}", "{\"y\":[2,1]}", false),
        ("{\"n\":1}", "{\"n\":\"1\"}", false),
        // The same double; another amount.
        ("{\"n\":9007199254740992}", "{\"n\":9007199254740993}", false),
        // The same to look at, and other text: nothing is normalized.
        ("{\"name\":\"caf\u{e9}\"}", "{\"name\":\"cafe\u{301}\"}", false),
        ("{\"amount\":1,\"client_ts\":1}", "{\"amount\":1,\"client_ts\":2}", true),
        ("{\"amount\":1,\"client_ts\":1}", "{\"amount\":2,\"client_ts\":1}", false),
    ];
    let setting = Setting::with(config, Upstream::counting().await).await;
    for (at, (first, other, is_same)) in alike.into_iter().enumerate() {
        let key = format!("k-{at}");
        let ask = async |json: &str| setting.ask(Asked::post("/orders").key(&key).json(json)).await;
        assert_eq!(ask(first).await.status, 201);
        let again = ask(other).await;
        assert_eq!(again.is_replay(), is_same, "{first} {other}");
        assert!(is_same || again.refusal() == conflict(), "{first} {other}");
    }
}

#[tokio::test]
async fn a_retried_upload_is_the_same_under_another_boundary() {
    let setting = Setting::before(Upstream::counting().await).await;
    let ask = async |boundary: &str, name: &str, file: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{name}\"\r\n\r\n{file}\r\n--{boundary}--\r\n"
        );
        let kind = format!("multipart/form-data; boundary={boundary}");
        setting.ask(Asked::post("/orders").key("k").line("Content-Type", &kind).body(body)).await
    };
    assert_eq!(ask("one", "a.txt", "contents").await.status, 201);
    assert!(ask("another", "a.txt", "contents").await.is_replay());
    assert_eq!(ask("one", "a.txt", "Contents").await.refusal(), conflict());
    assert_eq!(ask("one", "b.txt", "contents").await.refusal(), conflict());
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn what_is_of_one_answer_alone_is_not_even_recorded() {
    let lines = "Location: /orders/7\r\nETag: \"e\"\r\nLink: </next>; rel=\"next\"\r\nSet-Cookie: session=secret\r\n\
        Date: Mon, 30 Nov 2026 00:00:00 GMT\r\nX-RateLimit-Remaining: 7\r\nProxy-Authenticate: Basic\r\nAge: 3\r\n";
    let setting = Setting::before(Upstream::always(Answer::of(201, lines, "done")).await).await;
    let (first, again) = (setting.order("k").await, setting.order("k").await);
    assert_eq!(first.field("set-cookie"), Some("session=secret"));
    for (name, value) in [("location", "/orders/7"), ("etag", "\"e\""), ("link", "</next>; rel=\"next\"")] {
        assert_eq!((first.field(name), again.field(name)), (Some(value), Some(value)));
    }
    let recorded = setting.record("k").await.unwrap().outcome.unwrap().headers;
    let names: std::collections::BTreeSet<_> = recorded.keys().map(String::as_str).collect();
    assert_eq!(names, ["etag", "link", "location"].into());
}

#[tokio::test]
async fn names_that_read_alike_when_joined_are_not_the_same() {
    let config = "[proxy]\nprincipal = { header = \"X-User\" }\n";
    let setting = Setting::with(config, Upstream::counting().await).await;
    for (at, (user, key)) in [("a:b", "c"), ("a", "b:c"), ("a:", "b:c")].into_iter().enumerate() {
        let reply = setting.ask(Asked::order(key).line("X-User", user)).await;
        assert_eq!((reply.status, reply.body), (201, format!("order {}", at + 1).into_bytes()));
    }
}

#[tokio::test]
async fn whoever_must_send_a_key_gets_none_made_up() {
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nkey = \"required\"\n";
    let setting = Setting::with(config, Upstream::counting().await).await;
    assert_eq!(setting.ask(Asked::post("/orders").json("{}")).await.refusal(), (400, "key_missing".to_owned()));
    for empty in ["", " ", " \t ", "\"\""] {
        assert_eq!(setting.order(empty).await.refusal(), (400, "key_invalid".to_owned()), "{empty:?}");
    }
    assert_eq!(setting.upstream.calls(), 0);
}

#[tokio::test]
async fn an_endless_answer_is_in_doubt_and_its_half_is_never_replayed() {
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nupstream_timeout_s = 1\n";
    let events =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
    let setting = Setting::with(config, Upstream::always(Answer::Hang(events.into())).await).await;
    assert_eq!(setting.order("k").await.refusal(), (504, "outcome_indeterminate".to_owned()));
    setting.becomes("k", State::Indeterminate).await;
    let again = setting.order("k").await;
    assert_eq!((again.refusal(), again.is_replay()), ((409, "outcome_indeterminate".to_owned()), false));
    assert_eq!(setting.upstream.calls(), 1);
}
