//! Encryption on both sides of the door, and whom a certificate names.

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    Asked, Setting, Upstream,
    certified::{Set, connect},
};

#[tokio::test]
async fn an_encrypted_service_is_reached_and_must_be_the_one_that_is_meant() {
    let set = Set::new();
    let upstream = Upstream::counting().await;
    let service = set.before(upstream.address()).await;
    let url = format!("https://localhost:{}", service.port());
    let setting = Setting::trusting("", upstream, &url, Some(set.trust(None))).await;
    assert_eq!(setting.order("k").await.body, b"order 1");
    assert!(setting.order("k").await.is_replay());
    assert_eq!(setting.ask(Asked::new("GET", "/")).await.status, 201);
    assert_eq!((setting.upstream.calls(), setting.upstream.last_fields("host")), (2, vec!["shop".to_owned()]));

    // Of an authority that isn't trusted, nothing is sent to it, and the key stays free.
    let upstream = Upstream::counting().await;
    let service = set.before(upstream.address()).await;
    let url = format!("https://localhost:{}", service.port());
    let setting = Setting::trusting("", upstream, &url, Some(Set::new().trust(None))).await;
    let refused = setting.order("k").await;
    assert_eq!(refused.refusal(), (502, "upstream_unreachable".to_owned()));
    assert_eq!(refused.problem("effect"), "none");
    setting.is_free("k").await;
    assert_eq!(setting.upstream.calls(), 0);
}

#[tokio::test]
async fn the_own_port_speaks_both_protocols_encrypted() {
    let set = Set::new();
    set.certify("door", &["127.0.0.1"], None);
    let setting = Setting::with(&set.table(), Upstream::counting().await).await;
    let (trust, door) = (set.trust(None), setting.serving.listen());
    assert_eq!(setting.serving.scheme(), "https");

    let mut stream = connect(&trust, door, b"http/1.1").await.unwrap();
    let first = Asked::order("k").over(&mut stream).await;
    assert_eq!((first.status, first.is_replay()), (201, false));
    assert_eq!(setting.upstream.last_fields("x-forwarded-proto"), ["https"]);

    let stream = connect(&trust, door, b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("https://shop/orders")
        .header("idempotency-key", "k")
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from_static(b"{\"amount\":100}")))
        .unwrap();
    let again = sender.send_request(request).await.unwrap();
    assert_eq!(
        (again.status(), again.headers()["idempotent-replayed"].as_bytes()),
        (http::StatusCode::CREATED, &b"true"[..])
    );
    assert_eq!(again.into_body().collect().await.unwrap().to_bytes(), first.body);

    // Whoever doesn't encrypt gets nowhere.
    let plain = super::wire::raw(door, &Asked::order("plain").bytes()).await;
    assert!(!plain.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&plain));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn a_certificate_says_whose_a_request_is() {
    let set = Set::new();
    set.certify("door", &["127.0.0.1"], None);
    set.certify("acme", &["acme"], None);
    set.certify("other", &[], Some("semel://semel/client/other"));
    let config = "[proxy]\ntenant = { client_certificate = true }\nprincipal = { client_certificate = true }\n"
        .to_owned()
        + &set.table();
    let setting = Setting::with(&config, Upstream::counting().await).await;
    let order = async |shown: Option<&str>| {
        let mut stream = connect(&set.trust(shown), setting.serving.listen(), b"http/1.1").await.unwrap();
        Asked::order("k").over(&mut stream).await
    };
    assert_eq!(order(Some("acme")).await.body, b"order 1");
    assert_eq!(order(Some("other")).await.body, b"order 2");
    let again = order(Some("acme")).await;
    assert_eq!((again.is_replay(), again.body.as_slice()), (true, &b"order 1"[..]));
    assert_eq!(order(None).await.refusal(), (400, "invalid_argument".to_owned()));
    let record = setting.record_as("acme", "acme", "k").await.unwrap();
    assert_eq!(record.record.unwrap().tenant.as_deref(), Some("acme"));
    assert_eq!(setting.upstream.calls(), 2);

    let required = config.replace("ca =", "client_certificate = \"required\"\nca =");
    let setting = Setting::with(&required, Upstream::counting().await).await;
    let mut stream = connect(&set.trust(Some("acme")), setting.serving.listen(), b"http/1.1").await.unwrap();
    assert_eq!(Asked::order("k").over(&mut stream).await.status, 201);
    // In TLS 1.3 a client learns with its first read that it was refused.
    let mut stream = connect(&set.trust(None), setting.serving.listen(), b"http/1.1").await.unwrap();
    let _ = stream.write_all(&Asked::order("k").bytes()).await;
    let mut got = Vec::new();
    let ended = timeout(super::wire::LONG, stream.read_to_end(&mut got)).await.expect("the connection ends");
    assert!(ended.is_err() && got.is_empty(), "{ended:?}");
    assert_eq!(setting.upstream.calls(), 1);
}
