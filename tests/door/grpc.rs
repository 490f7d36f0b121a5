//! Calls of gRPC through the proxy: HTTP/2 on both sides, the status behind the body, replayed with it; and a client of
//! gRPC that has never heard of doors.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Router, body::Body, extract::Request, response::Response};
use http::{HeaderMap, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel::{Client, client::Found, proto::v1::State};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{
    Asked, Setting, Upstream,
    certified::{Set, connect},
    until,
};

/// A service of gRPC in its barest form: what was sent comes back in one message, and a status stands behind it.
#[derive(Clone, Default)]
struct Bare {
    calls: Arc<AtomicUsize>,
    last: Arc<Mutex<Option<(Version, HeaderMap)>>>,
}

impl Bare {
    async fn serve(self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(move |request| async move { self.answer(request).await });
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    async fn answer(self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        self.calls.fetch_add(1, Ordering::SeqCst);
        *self.last.lock().unwrap() = Some((head.version, head.headers.clone()));
        let message = body.collect().await.unwrap().to_bytes();
        let response = http::Response::builder().header("content-type", "application/grpc").header("x-region", "north");
        if head.uri.path() == "/shop.Orders/Browse" {
            return http::Response::builder().header("content-type", "text/html").body(Body::from("welcome")).unwrap();
        }
        if head.uri.path() == "/shop.Orders/Fail" {
            // Without a message the status stands in the head.
            return response.header("grpc-status", "14").body(Body::empty()).unwrap();
        }
        let trailers = [("grpc-status", "0"), ("x-cost", "3")];
        let trailers = trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let frames = [Frame::data(message), Frame::trailers(trailers)];
        response.body(Body::new(StreamBody::new(tokio_stream::iter(frames.map(Ok::<_, std::io::Error>))))).unwrap()
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// What came of a call: its status, whether it was given before, its message, what else came behind it.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    status: String,
    is_replay: bool,
    message: Vec<u8>,
    cost: Option<String>,
}

fn said(status: &str, is_replay: bool, message: &str) -> Said {
    let cost = (status == "0").then(|| "3".to_owned());
    Said { status: status.to_owned(), is_replay, message: message.as_bytes().to_vec(), cost }
}

async fn call<S>(stream: S, path: &str, key: Option<&str>, message: &'static str) -> Said
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (head, body) = send(stream, path, key, message).await.into_parts();
    let is_replay = head.headers.contains_key("idempotent-replayed");
    let body = body.collect().await.unwrap();
    let behind = body.trailers().cloned().unwrap_or_default();
    let text = |fields: &HeaderMap, name: &str| fields.get(name).map(|value| value.to_str().unwrap().to_owned());
    let status = text(&head.headers, "grpc-status").or_else(|| text(&behind, "grpc-status")).expect("a status");
    Said { status, is_replay, message: body.to_bytes().to_vec(), cost: text(&behind, "x-cost") }
}

async fn send<S>(stream: S, path: &str, key: Option<&str>, message: &'static str) -> http::Response<Incoming>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::post(format!("http://shop{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "10S");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let response = sender.send_request(request.body(Full::new(bytes::Bytes::from(message))).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    response
}

#[tokio::test]
async fn a_call_with_a_key_is_replayed_with_its_status_and_one_without_passes() {
    let bare = Bare::default();
    let url = format!("http://{}", bare.clone().serve().await);
    let setting = Setting::at("", Upstream::counting().await, &url).await;
    let ask = async |path: &str, key: Option<&str>, message: &'static str| {
        call(TcpStream::connect(setting.serving.listen()).await.unwrap(), path, key, message).await
    };
    let make = "/shop.Orders/Make";
    assert_eq!(ask(make, Some("k"), "one").await, said("0", false, "one"));
    let (version, fields) = bare.last.lock().unwrap().clone().unwrap();
    assert_eq!(
        (version, fields["te"].as_bytes(), fields["grpc-timeout"].as_bytes()),
        (Version::HTTP_2, &b"trailers"[..], &b"10S"[..])
    );
    assert!(fields.contains_key("semel-fence") && fields["idempotency-key"] == "k");
    assert_eq!(ask(make, Some("k"), "one").await, said("0", true, "one"));
    assert_eq!(bare.calls(), 1);
    for _ in 0..2 {
        assert_eq!(ask(make, None, "two").await, said("0", false, "two"));
    }
    // FAILED_PRECONDITION: the key belongs to another message. INVALID_ARGUMENT: it is none.
    assert_eq!(ask(make, Some("k"), "two").await, said("9", false, ""));
    assert_eq!(ask(make, Some("a,b"), "two").await, said("3", false, ""));
    // UNAVAILABLE says nothing of what happened: ABORTED until somebody has looked.
    assert_eq!(ask("/shop.Orders/Fail", Some("f"), "one").await, said("14", false, ""));
    assert_eq!(ask("/shop.Orders/Fail", Some("f"), "one").await, said("10", false, ""));
    assert_eq!(bare.calls(), 4);
    // Beside it HTTP/1.1 goes on in HTTP/1.1.
    assert_eq!(setting.ask(Asked::new("GET", "/plain")).await.status, 200);
    assert_eq!(bare.last.lock().unwrap().as_ref().unwrap().0, Version::HTTP_11);
}

#[tokio::test]
async fn a_call_to_a_service_without_http_2_is_refused_and_its_key_stays_free() {
    // It takes what it doesn't understand for a request, and answers: 505, 400, even 200 with what it shows to browsers; or ends.
    let answers = [
        super::Answer::of(505, "", "what?"),
        super::Answer::Close(b"HTTP/1.1 400 No\r\n\r\n".to_vec()),
        super::Answer::of(200, "", "welcome"),
        super::Answer::Close(Vec::new()),
    ];
    let setting = Setting::before(Upstream::new(move |call| answers[call % answers.len()].clone()).await).await;
    for at in 0..8 {
        let key = (at < 4).then_some("k");
        let stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
        let refused = send(stream, "/shop.Orders/Make", key, "one").await;
        let text = |name: &str| refused.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(text("grpc-status"), "14", "{at}");
        assert!(text("grpc-message").contains("HTTP/2"), "{}", text("grpc-message"));
        assert!(!setting.upstream.last().contains("shop.Orders"), "it never saw the call");
    }
    let is_free = async || setting.record_of("POST /shop.Orders/Make", "k").await.is_none();
    until("the key is free: nothing is done, nor in doubt", is_free).await;
}

#[tokio::test]
async fn an_answer_that_is_none_of_grpc_leaves_a_call_in_doubt() {
    let bare = Bare::default();
    let url = format!("http://{}", bare.clone().serve().await);
    let setting = Setting::at("", Upstream::counting().await, &url).await;
    for call in 1..=2 {
        let stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
        let said = send(stream, "/shop.Orders/Browse", Some("k"), "one").await;
        let status = said.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned());
        // It gets what the service said, whatever that is; and then ABORTED: nobody knows.
        assert_eq!(status.as_deref(), (call == 2).then_some("10"));
        let _ = said.into_body().collect().await;
        until("it is in doubt", async || {
            let record = setting.record_of("POST /shop.Orders/Browse", "k").await;
            record.is_some_and(|record| record.state() != State::InProgress)
        })
        .await;
        let record = setting.record_of("POST /shop.Orders/Browse", "k").await.unwrap();
        assert_eq!(record.state(), State::Indeterminate);
    }
    assert_eq!(bare.calls(), 1);
}

#[tokio::test]
async fn calls_go_encrypted_on_both_sides() {
    let (set, bare) = (Set::new(), Bare::default());
    set.certify("door", &["127.0.0.1"], None);
    let service = set.before(bare.clone().serve().await).await;
    let url = format!("https://127.0.0.1:{}", service.port());
    let setting = Setting::trusting(&set.table(), Upstream::counting().await, &url, Some(set.trust(None))).await;
    for is_replay in [false, true] {
        let stream = connect(&set.trust(None), setting.serving.listen(), b"h2").await.unwrap();
        assert_eq!(call(stream, "/shop.Orders/Make", Some("k"), "one").await, said("0", is_replay, "one"));
    }
    assert_eq!(bare.calls(), 1);
}

#[tokio::test]
async fn everything_goes_in_http_2_where_the_file_says_so() {
    let bare = Bare::default();
    let url = format!("http://{}", bare.clone().serve().await);
    let setting = Setting::at("[proxy]\nupstream_http2 = true\n", Upstream::counting().await, &url).await;
    let reply = setting.ask(Asked::order("k").line("TE", "trailers")).await;
    assert_eq!((reply.status, reply.body.as_slice()), (200, &b"{\"amount\":100}"[..]));
    let (version, fields) = bare.last.lock().unwrap().clone().unwrap();
    assert_eq!(version, Version::HTTP_2);
    assert!(fields["x-forwarded-host"] == "shop" && !fields.contains_key("connection"), "{fields:?}");
    assert_eq!(setting.ask(Asked::new("GET", "/plain")).await.status, 200);
    assert_eq!(bare.calls(), 2);
}

#[tokio::test]
async fn without_a_connection_a_call_says_so_as_grpc_does() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let setting = Setting::at("", Upstream::counting().await, &url).await;
    let listen = setting.serving.listen();
    for key in [Some("k"), None] {
        let stream = TcpStream::connect(listen).await.unwrap();
        assert_eq!(call(stream, "/shop.Orders/Make", key, "one").await.status, "14", "UNAVAILABLE");
    }
    // What is no HTTP/2 is no gRPC.
    let reply = setting.ask(Asked::post("/shop.Orders/Make").line("Content-Type", "application/grpc").body("")).await;
    assert_eq!(reply.status, 502);
}

#[tokio::test]
async fn a_whole_client_of_grpc_works_through_the_door() {
    // Streams both ways, deadlines, unary calls: the client of the store itself, in front of a node.
    let behind = Setting::before(Upstream::counting().await).await;
    let setting = Setting::at("", Upstream::counting().await, &behind.endpoint()).await;
    let client = Client::builder()
        .endpoint(format!("http://{}", setting.serving.listen()))
        .tenant("default")
        .connect()
        .await
        .unwrap();
    let claim = || client.operation("charge").key("k").request_json("{\"n\":1}");
    match claim().claim().await.unwrap() {
        Found::New(claim) => claim.complete(semel::client::Outcome::new(0).body("done")).await.unwrap(),
        other => panic!("{other:?}"),
    }
    assert!(matches!(claim().claim().await.unwrap(), Found::Completed(_)));
    client.close().await;
}

#[tokio::test]
async fn trailers_pass_both_ways_over_http_1() {
    let answer =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\ndone\r\n0\r\nX-Sum: 7\r\n\r\n";
    let setting = Setting::before(Upstream::always(super::Answer::Bytes(answer.into())).await).await;
    let plain = setting.ask(Asked::new("GET", "/").line("TE", "trailers")).await;
    assert_eq!((plain.behind.as_str(), setting.upstream.last_fields("te")), ("x-sum: 7", vec!["trailers".to_owned()]));
    assert_eq!(setting.ask(Asked::new("GET", "/")).await.behind, "", "whoever doesn't take them gets none");
    let first = setting.ask(Asked::order("k").line("TE", "trailers")).await;
    assert_eq!((first.body.as_slice(), first.behind.as_str()), (&b"done"[..], "x-sum: 7"));
    let again = setting.ask(Asked::order("k").line("TE", "trailers")).await;
    assert_eq!((again.is_replay(), again.field("content-length"), again.field("trailer")), (true, Some("4"), None));

    let mut stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
    let request = "POST /up HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Semel-Fence\r\n\r\n\
        2\r\n{}\r\n0\r\nX-Sum: 9\r\nSemel-Fence: 1\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(super::Reply::read(&mut stream, false).await.status, 200);
    let seen = setting.upstream.last().to_ascii_lowercase();
    assert!(seen.ends_with("0\r\nx-sum: 9\r\n\r\n"), "{seen}");
}
