//! Both protocols on one port, and the end of a proxy.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use semel::proto::v1::{self, State};
use tokio::{net::TcpStream, sync::Notify};

use super::{Answer, Asked, Setting, Upstream, until};

/// One request over HTTP/2.
async fn over_http_2(setting: &Setting, key: &str) -> (u16, bool, Vec<u8>) {
    let stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post("http://shop/orders")
        .header("idempotency-key", key)
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from_static(b"{\"amount\":100}")))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let (status, replayed) = (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
    (status, replayed, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test]
async fn keys_are_shared_across_protocols() {
    let setting = Setting::before(Upstream::counting().await).await;
    assert_eq!(over_http_2(&setting, "k").await, (201, false, b"order 1".to_vec()));
    assert_eq!(setting.upstream.last_fields("host"), ["shop"]);
    assert_eq!(setting.upstream.last_fields("via"), ["2.0 semel"]);
    assert!(setting.order("k").await.is_replay());
    assert_eq!(over_http_2(&setting, "k").await, (201, true, b"order 1".to_vec()));
    assert_eq!(setting.upstream.calls(), 1);
}

#[tokio::test]
async fn what_runs_is_finished_before_the_end() {
    let held = Arc::new(Notify::new());
    let answer = Answer::Held(held.clone(), b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone".to_vec());
    let setting = Setting::before(Upstream::always(answer).await).await;
    let listen = setting.serving.listen();
    let first = tokio::spawn(Asked::order("k").send(listen));
    until("the upstream is asked", async || setting.upstream.calls() == 1).await;
    let Setting { serving, client, upstream: _upstream, .. } = setting;
    let stopping = tokio::spawn(serving.stop());
    until("nobody listens any more", async || TcpStream::connect(listen).await.is_err()).await;
    held.notify_one();
    assert_eq!(first.await.unwrap().body, b"done");
    assert!(stopping.await.unwrap(), "everything came to its end");
    let record = v1::RecordId { operation: "POST /orders".into(), key: "k".into(), ..v1::RecordId::default() };
    let record = client.get(v1::GetRequest { record: Some(record), with_outcome: None }).await.unwrap();
    assert_eq!(record.state(), State::Completed);
}
