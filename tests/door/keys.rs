//! Keys as they are sent: which are taken, which are refused, and that a refused request never reaches the upstream.

use semel::proto::v1::State;

use super::{Asked, Setting, Upstream, wire};

#[tokio::test]
async fn one_key_runs_once_and_is_replayed() {
    let setting = Setting::before(Upstream::counting().await).await;
    let first = setting.order("k-1").await;
    assert_eq!((first.status, first.body.as_slice(), first.is_replay()), (201, &b"order 1"[..], false));
    let again = setting.order("k-1").await;
    assert_eq!((again.status, again.body.as_slice(), again.is_replay()), (201, &b"order 1"[..], true));
    assert_eq!(again.field("content-type"), Some("text/plain"));
    assert_eq!(again.field("content-length"), Some("7"));
    assert!(again.field("semel-completed-at").is_some_and(|at| at.len() == "2026-11-30T12:00:00.000Z".len()));
    assert!(again.field("date").is_some());
    assert_eq!(setting.order("k-2").await.body, b"order 2");
    assert_eq!(setting.upstream.calls(), 2);
    assert_eq!(setting.state("k-1").await, Some(State::Completed));
}

#[tokio::test]
async fn quotes_and_case_make_no_other_key() {
    let setting = Setting::before(Upstream::counting().await).await;
    let ask = async |name: &str, key: &str| {
        let reply = setting.ask(Asked::post("/orders").line(name, key).json("{}")).await;
        (reply.status, String::from_utf8(reply.body).unwrap())
    };
    let first = (201, "order 1".to_owned());
    assert_eq!(ask("Idempotency-Key", "\"k\"").await, first);
    assert_eq!(setting.upstream.last_fields("idempotency-key"), ["\"k\""]);
    assert_eq!(ask("idempotency-KEY", "k").await, first);
    assert_eq!(ask("IDEMPOTENCY-KEY", "  k\t").await, first);
    // Another name is another field, unless the route says so.
    assert_eq!(ask("X-Idempotency-Key", "k").await, (201, "order 2".to_owned()));
    assert_eq!(ask("X-Idempotency-Key", "k").await, (201, "order 3".to_owned()));
}

#[tokio::test]
async fn what_is_no_key_is_refused_and_goes_nowhere() {
    let setting = Setting::before(Upstream::counting().await).await;
    let long = "x".repeat(256);
    for key in ["", " ", "\"\"", "a,b", "a;b", long.as_str(), "\"a", "\"a\"b", "\"a\";p=1", "k\u{e9}", "a\tb"] {
        let reply = setting.order(key).await;
        assert_eq!(reply.refusal(), (400, "key_invalid".to_owned()), "{key:?}");
        assert_eq!(reply.problem("effect"), "none");
    }
    for twice in [["k", "k"], ["a", "b"], ["", "a"]] {
        let reply = setting.ask(Asked::post("/orders").key(twice[0]).key(twice[1]).json("{}")).await;
        assert_eq!(reply.refusal(), (400, "key_invalid".to_owned()), "{twice:?}");
    }
    assert_eq!(setting.upstream.calls(), 0);
    assert_eq!(setting.order(&"x".repeat(255)).await.status, 201);
}

#[tokio::test]
async fn routes_say_where_a_key_stands_and_whether_it_must() {
    let config = r#"
        [[proxy.route]]
        match = "POST /orders"
        key = "required"
        key_headers = ["Idempotency-Key", "X-Idempotency-Key"]
        [[proxy.route]]
        match = "POST /search"
        key = "ignore"
        [[proxy.route]]
        match = "PUT /orders/{id}"
    "#;
    let setting = Setting::with(config, Upstream::counting().await).await;
    let missing = setting.ask(Asked::post("/orders").json("{}")).await;
    assert_eq!(missing.refusal(), (400, "key_missing".to_owned()));
    assert_eq!(missing.problem("title"), "Idempotency-Key is missing");
    let both = setting.ask(Asked::post("/orders").key("k").line("X-Idempotency-Key", "k").json("{}")).await;
    assert_eq!(both.refusal(), (400, "key_invalid".to_owned()));
    assert_eq!(setting.upstream.calls(), 0);
    let alias = async || setting.ask(Asked::post("/orders").line("x-idempotency-key", "k").json("{}")).await;
    assert_eq!((alias().await.body.as_slice(), alias().await.is_replay()), (&b"order 1"[..], true));
    assert_eq!(setting.upstream.last_fields("idempotency-key"), ["k"]);
    assert!(setting.upstream.last_fields("x-idempotency-key").is_empty());
    // A key that isn't looked at may be anything.
    let ignored = setting.ask(Asked::post("/search").key("a,b").json("{}")).await;
    assert_eq!((ignored.status, setting.upstream.last_fields("idempotency-key")), (201, vec!["a,b".to_owned()]));
    let put = async || setting.ask(Asked::new("PUT", "/orders/7").key("p").json("{}")).await;
    assert_eq!((put().await.is_replay(), put().await.is_replay()), (false, true));
    let other = async || setting.ask(Asked::new("PUT", "/other").key("p").json("{}")).await;
    assert_eq!((other().await.is_replay(), other().await.is_replay()), (false, false));
}

#[tokio::test]
async fn a_key_belongs_to_one_request() {
    let setting = Setting::before(Upstream::counting().await).await;
    let ask = async |path: &str, json: &str| setting.ask(Asked::post(path).key("k").json(json)).await;
    assert_eq!(ask("/orders", "{\"amount\":100}").await.status, 201);
    assert!(ask("/orders", "{ \"amount\" : 1e2 }").await.is_replay());
    for (path, json) in
        [("/orders", "{\"amount\":101}"), ("/orders?x", "{\"amount\":100}"), ("/orders?", "{\"amount\":100}")]
    {
        let reply = ask(path, json).await;
        assert_eq!(reply.refusal(), (422, "key_reused".to_owned()), "{path} {json}");
        assert_eq!(reply.problem("title"), "Idempotency-Key is already used");
    }
    // Another path is another operation.
    assert_eq!(ask("/payments", "{\"amount\":101}").await.body, b"order 2");
}

#[tokio::test]
async fn a_key_in_a_trailer_is_none_and_connection_takes_none_away() {
    let setting = Setting::before(Upstream::counting().await).await;
    let trailer = b"POST /orders HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n\
        Connection: close\r\n\r\n2\r\n{}\r\n0\r\nIdempotency-Key: k\r\n\r\n";
    for call in 1..=2 {
        let got = wire::raw(setting.serving.listen(), trailer).await;
        assert!(String::from_utf8_lossy(&got).contains(&format!("order {call}")), "{}", String::from_utf8_lossy(&got));
    }
    let named = Asked::order("n").line("Connection", "Idempotency-Key");
    assert!(!setting.ask(named.clone()).await.is_replay());
    assert!(setting.ask(named).await.is_replay());
    assert_eq!(setting.upstream.last_fields("idempotency-key"), ["n"]);
}

#[tokio::test]
async fn tenants_and_principals_have_keys_of_their_own() {
    let config = r#"
        [proxy]
        tenant = { header = "X-Tenant" }
        principal = { header = "X-User" }
    "#;
    let setting = Setting::with(config, Upstream::counting().await).await;
    let ask = async |tenant: &str, user: &str| {
        setting.ask(Asked::order("k").line("X-Tenant", tenant).line("X-User", user)).await
    };
    assert_eq!(ask("acme", "ann").await.body, b"order 1");
    assert_eq!(ask("acme", "bob").await.body, b"order 2");
    assert_eq!(ask("other", "ann").await.body, b"order 3");
    assert!(ask("acme", "ann").await.is_replay());
    assert_eq!(ask("ACME", "ann").await.refusal(), (400, "invalid_argument".to_owned()));
    assert_eq!(setting.ask(Asked::order("k")).await.refusal(), (400, "invalid_argument".to_owned()));
    assert_eq!(setting.upstream.calls(), 3);
}
