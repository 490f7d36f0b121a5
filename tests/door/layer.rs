//! The door before services of the same process: the same keys, the same answers, over both protocols.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    routing::post,
};
use semel::{
    Client,
    door::{Door, IdempotencyLayer, Settings, engine},
    proto::v1::State,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Notify};

use super::{Asked, Setting, Upstream, until};

/// A service behind the layer, over a real port, before the node of a setting.
struct Service {
    address: SocketAddr,
    door: Door,
    calls: Arc<AtomicUsize>,
    held: Arc<Notify>,
    setting: Setting,
}

impl Service {
    async fn start() -> Self {
        let setting = Setting::before(Upstream::counting().await).await;
        let store = engine::patience(Client::builder().endpoint(setting.endpoint()).tenant("default"));
        let door = Door::new(store.connect_lazy().unwrap(), Settings::default());
        let (calls, held) = (Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
        let (count, wait) = (calls.clone(), held.clone());
        let order = async |headers: HeaderMap, body: String, count: Arc<AtomicUsize>, wait: Arc<Notify>| {
            let call = count.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(headers.contains_key("semel-fence") == headers.contains_key("idempotency-key"));
            match body.as_str() {
                "panic" => panic!("as it was asked"),
                "fail" => return (StatusCode::INTERNAL_SERVER_ERROR, HeaderMap::new(), String::new()),
                "hold" => wait.notified().await,
                _ => {}
            }
            let location = [(header::LOCATION, format!("/orders/{call}").parse().unwrap())].into_iter().collect();
            (StatusCode::CREATED, location, format!("order {call}"))
        };
        let orders = move |headers, body| order(headers, body, count.clone(), wait.clone());
        let app = Router::new().route("/orders", post(orders)).layer(IdempotencyLayer::new(door.clone()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, door, calls, held, setting }
    }

    async fn order(&self, key: &str, body: &str) -> super::Reply {
        Asked::post("/orders").key(key).body(body).send(self.address).await
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_handler_runs_once_for_each_key() {
    let service = Service::start().await;
    let first = service.order("k", "pizza").await;
    assert_eq!((first.status, first.body.as_slice(), first.is_replay()), (201, &b"order 1"[..], false));
    let again = service.order("\"k\"", "pizza").await;
    assert_eq!((again.status, again.body.as_slice(), again.is_replay()), (201, &b"order 1"[..], true));
    assert_eq!(again.field("location"), Some("/orders/1"));
    assert_eq!(service.order("k", "pasta").await.refusal(), (422, "key_reused".to_owned()));
    assert_eq!(service.order("a,b", "pizza").await.refusal(), (400, "key_invalid".to_owned()));
    let plain = Asked::post("/orders").body("pizza").send(service.address).await;
    assert_eq!((plain.body.as_slice(), service.calls()), (&b"order 2"[..], 2));
    assert!(service.door.drain(Duration::from_secs(20)).await);
}

#[tokio::test]
async fn a_handler_that_fails_leaves_its_key_open() {
    let service = Service::start().await;
    assert_eq!(service.order("failed", "fail").await.status, 500);
    assert_eq!(service.order("failed", "fail").await.refusal(), (409, "outcome_indeterminate".to_owned()));
    let reply = service.order("panicked", "panic").await;
    assert_eq!((reply.status, reply.problem("effect")), (502, "unknown".to_owned()));
    service.setting.becomes("panicked", State::Indeterminate).await;
    assert_eq!(service.calls(), 2);
}

#[tokio::test]
async fn a_caller_that_leaves_ends_no_handler() {
    let service = Service::start().await;
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(&Asked::post("/orders").key("k").body("hold").bytes()).await.unwrap();
    until("the handler runs", async || service.calls() == 1).await;
    drop(stream);
    service.held.notify_one();
    service.setting.becomes("k", State::Completed).await;
    assert!(service.order("k", "hold").await.is_replay());
}

/// A service of gRPC in its barest form: one message, and a status behind it.
#[derive(Clone, Default)]
struct Bare(Arc<AtomicUsize>);

impl tower::Service<http::Request<semel::door::body::Body>> for Bare {
    type Response = http::Response<semel::door::body::Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<semel::door::body::Body>) -> Self::Future {
        self.0.fetch_add(1, Ordering::SeqCst);
        let status = if request.uri().path() == "/shop.Orders/Make" { "0" } else { "14" };
        let trailers: HeaderMap = [("grpc-status".parse().unwrap(), status.parse().unwrap())].into_iter().collect();
        let frames = [
            hyper::body::Frame::data(bytes::Bytes::from_static(b"\0\0\0\0\x01x")),
            hyper::body::Frame::trailers(trailers),
        ];
        let body = http_body_util::StreamBody::new(tokio_stream::iter(frames.map(Ok::<_, Infallible>)));
        let response = http::Response::builder().header("content-type", "application/grpc");
        std::future::ready(Ok(response.body(semel::door::body::boxed(body)).unwrap()))
    }
}

#[tokio::test]
async fn calls_of_grpc_are_replayed_with_their_status() {
    use http_body_util::BodyExt;
    use tower::{Layer, ServiceExt};

    let service = Service::start().await;
    let bare = Bare::default();
    let layered = IdempotencyLayer::new(service.door.clone()).layer(bare.clone());
    let call = async |path: &str, key: &str, message: &'static [u8]| {
        let request = http::Request::post(path)
            .header("content-type", "application/grpc")
            .header("idempotency-key", key)
            .body(semel::door::body::full(message))
            .unwrap();
        let response = layered.clone().oneshot(request).await.unwrap();
        let in_head = response.headers().get("grpc-status").cloned();
        let replayed = response.headers().contains_key("idempotent-replayed");
        let body = response.into_body().collect().await.unwrap();
        let behind = body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned());
        let status = in_head.or(behind).unwrap().to_str().unwrap().to_owned();
        (status, replayed, body.to_bytes().len())
    };
    assert_eq!(call("/shop.Orders/Make", "k", b"one").await, ("0".to_owned(), false, 6));
    assert_eq!(call("/shop.Orders/Make", "k", b"one").await, ("0".to_owned(), true, 6));
    // FAILED_PRECONDITION: the key belongs to another message.
    assert_eq!(call("/shop.Orders/Make", "k", b"two").await, ("9".to_owned(), false, 0));
    assert_eq!(call("/shop.Orders/Fail", "f", b"one").await.0, "14");
    // ABORTED: nobody knows what came of it.
    assert_eq!(call("/shop.Orders/Fail", "f", b"one").await.0, "10");
    assert_eq!(bare.0.load(Ordering::SeqCst), 2);
}
