//! Upstreams of HTTP/2: requests share connections as far as the other end lets them, and no further.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body_util::{Full, StreamBody};
use hyper::{body::Frame, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel::proto::v1::State;
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
};

use super::{Asked, Reply, Setting, Upstream, until};

const HTTP_2: &str = "[proxy]\nupstream_http2 = true\n[[proxy.route]]\nmatch = \"POST /orders\"\nupstream_timeout_s = 10\n\
    [[proxy.route]]\nmatch = \"POST /never\"\nupstream_timeout_s = 1\n";

/// A service that answers orders once it is let, and `/never` not at all.
struct Service {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    calls: AtomicUsize,
    answers: watch::Sender<bool>,
    /// Tells the connections of now to end once what runs on them has.
    ending: Notify,
}

impl Service {
    /// One that allows so many streams on a connection.
    async fn allowing(streams: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Seen>::default());
        let shared = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let seen = shared.clone();
                seen.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let own = seen.clone();
                    let service = service_fn(move |request| answer(own.clone(), request));
                    let mut server = http2::Builder::new(TokioExecutor::new());
                    let serving =
                        server.max_concurrent_streams(streams).serve_connection(TokioIo::new(stream), service);
                    let mut serving = std::pin::pin!(serving);
                    tokio::select! {
                        _ = serving.as_mut() => return,
                        () = seen.ending.notified() => serving.as_mut().graceful_shutdown(),
                    }
                    let _ = serving.await;
                });
            }
        });
        Self { address, seen }
    }

    async fn setting(&self) -> Setting {
        Setting::at(HTTP_2, Upstream::counting().await, &format!("http://{}", self.address)).await
    }

    fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    async fn has_seen(&self, calls: usize) {
        until(&format!("{calls} calls came"), async || self.seen.calls.load(Ordering::SeqCst) == calls).await;
    }

    fn answers(&self) {
        self.seen.answers.send_replace(true);
    }
}

async fn answer(
    seen: Arc<Seen>,
    request: http::Request<hyper::body::Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    seen.calls.fetch_add(1, Ordering::SeqCst);
    match request.uri().path() {
        "/never" => std::future::pending().await,
        "/broken" => return Ok(Response::new(broken())),
        _ => {}
    }
    let mut answers = seen.answers.subscribe();
    answers.wait_for(|answers| *answers).await.unwrap();
    Ok(Response::builder().status(201).body(Body::new(Full::from("done"))).unwrap())
}

/// A body that begins and doesn't end.
fn broken() -> Body {
    let pieces = [Ok(Frame::data(Bytes::from("half"))), Err(std::io::Error::other("broken"))];
    Body::new(StreamBody::new(tokio_stream::iter(pieces)))
}

fn order(setting: &Setting, key: &str) -> tokio::task::JoinHandle<Reply> {
    tokio::spawn(Asked::order(key).send(setting.serving.listen()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_share_connections_up_to_what_the_service_allows() {
    let service = Service::allowing(4).await;
    let setting = service.setting().await;
    let mut asked: Vec<_> = (0..11).map(|at| order(&setting, &format!("k-{at}"))).collect();
    // One without a key among them.
    asked.push(tokio::spawn(Asked::post("/orders").json("{}").send(setting.serving.listen())));
    // All at once: none waits for another's stream.
    service.has_seen(12).await;
    assert_eq!(service.connections(), 3);
    service.answers();
    for asked in asked {
        assert_eq!(asked.await.unwrap().status, 201);
    }
    assert_eq!(setting.order("later").await.status, 201);
    assert_eq!(service.connections(), 3, "one that is warm is used again");
}

#[tokio::test]
async fn a_connection_on_which_one_got_no_answer_takes_no_others() {
    let service = Service::allowing(100).await;
    let setting = service.setting().await;
    service.answers();
    assert_eq!(setting.order("first").await.status, 201);
    let never = setting.ask(Asked::post("/never").key("k").json("{}")).await;
    assert_eq!(never.refusal(), (504, "outcome_indeterminate".to_owned()));
    assert_eq!((setting.order("second").await.status, service.connections()), (201, 2));
}

#[tokio::test]
async fn a_service_that_ends_a_connection_on_which_others_run_costs_nobody_their_key() {
    let service = Service::allowing(100).await;
    let setting = service.setting().await;
    let first = order(&setting, "first");
    service.has_seen(1).await;
    service.seen.ending.notify_waiters();
    let others: Vec<_> = (0..20).map(|at| order(&setting, &format!("k-{at}"))).collect();
    service.has_seen(21).await;
    service.answers();
    for asked in others.into_iter().chain([first]) {
        assert_eq!(asked.await.unwrap().status, 201);
    }
    setting.becomes("first", State::Completed).await;
}

#[tokio::test]
async fn a_stream_that_is_reset_leaves_its_own_request_in_doubt_and_no_other() {
    let service = Service::allowing(100).await;
    let setting = service.setting().await;
    let beside = order(&setting, "beside");
    service.has_seen(1).await;
    let broken = setting.ask(Asked::post("/broken").key("k").json("{}")).await;
    assert_eq!(broken.refusal(), (502, "outcome_indeterminate".to_owned()));
    assert_eq!(setting.record_of("POST /broken", "k").await.map(|record| record.state()), Some(State::Indeterminate));
    assert_eq!(service.connections(), 1);
    service.answers();
    assert_eq!(beside.await.unwrap().status, 201);
}
