//! Many connections, idle ones, and bodies that unfold to many times their size.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::Server;
use crate::{
    auth::Authenticator,
    http::serve::{Bounds, Heads},
    limits,
    proto::v1::{self, RecordId},
};

const WAIT: Duration = Duration::from_secs(20);

/// Asks on an open connection, and gives the status.
async fn ask(stream: &mut TcpStream, server: &Server) -> u16 {
    let body = r#"{"record":{"operation":"o","key":"k"},"request":{}}"#;
    let head = format!("POST /v1/claim HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n", server.address, body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let (mut answer, mut chunk) = (String::new(), [0; 4096]);
    while !answer.contains("\"index\"") {
        let read = timeout(WAIT, stream.read(&mut chunk)).await.expect("an answer").unwrap();
        assert!(read > 0, "closed after {answer}");
        answer.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
    }
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Whether the other side closes, without a byte.
async fn is_closed(stream: &mut TcpStream) -> bool {
    matches!(timeout(WAIT, stream.read(&mut [0; 16])).await.expect("it is closed in time"), Ok(0) | Err(_))
}

#[tokio::test]
async fn connections_of_one_address_are_bounded() {
    let bounds = Bounds {
        connections_max: 64,
        per_address_max: 3,
        heads: Default::default(),
        idle: Duration::from_secs(300),
        unauthenticated: None,
        answers_half_closed: false,
        drain: WAIT,
    };
    let server = Server::bounded(Authenticator::open(), bounds).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        assert_eq!(ask(&mut stream, &server).await, 200);
        open.push(stream);
    }
    assert!(is_closed(&mut TcpStream::connect(server.address).await.unwrap()).await);
    assert_eq!(ask(&mut open[2], &server).await, 200, "those that are in go on");
    open.pop();
    let again = async {
        loop {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            if matches!(stream.read(&mut [0; 16]).await, Ok(read) if read > 0) {
                break;
            }
        }
    };
    timeout(WAIT, again).await.expect("a place is given back");
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_the_end() {
    let bounds = Bounds {
        connections_max: 64,
        per_address_max: 64,
        heads: Default::default(),
        idle: Duration::from_secs(1),
        unauthenticated: None,
        answers_half_closed: false,
        drain: WAIT,
    };
    let server = Server::bounded(Authenticator::open(), bounds).await;
    let mut used = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(ask(&mut used, &server).await, 200);
    assert_eq!(ask(&mut used, &server).await, 200);
    assert!(is_closed(&mut used).await);
    assert!(is_closed(&mut TcpStream::connect(server.address).await.unwrap()).await, "one that never asked");
}

/// Of as many values as fit, and together more than may be parsed at once: they take their turns, and each is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bodies_of_many_values_are_answered_at_both_doors() {
    let server = Server::start().await;
    let zeros = |bytes: usize| format!("[{}0]", "0,".repeat(bytes / 2 - 2));
    let room = limits::PARSED_AT_ONCE_BYTES_MAX / 8;
    let body = format!(r#"{{"record":{{"operation":"o","key":"k"}},"request":{}}}"#, zeros(room));
    let message = v1::ClaimRequest {
        record: Some(RecordId { tenant: None, principal: None, operation: "o".into(), key: "k".into() }),
        request: Some(zeros(room).into()),
        ..Default::default()
    };
    let json = (0..5).map(|_| server.post("/v1/claim", body.clone()));
    let grpc = (0..5).map(|_| {
        let (mut records, message) = (server.records.clone(), message.clone());
        async move { records.claim(message).await }
    });
    let (json, grpc) = tokio::join!(futures_util::future::join_all(json), futures_util::future::join_all(grpc));
    assert!(json.iter().all(|reply| reply.status == 200));
    assert!(grpc.iter().all(Result::is_ok));
}

/// Sends this over a connection of its own, and gives the status of what comes back; 0 where it is closed without a word.
async fn status_of(server: &Server, bytes: &str) -> u16 {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // Closed over what it had not read: what was said before counts.
    let _ = timeout(WAIT, stream.read_to_end(&mut answer)).await.expect("it ends");
    String::from_utf8_lossy(&answer).split(' ').nth(1).map_or(0, |status| status.parse().unwrap())
}

#[tokio::test]
async fn heads_and_bodies_are_bounded_as_configured() {
    let bounds = Bounds {
        connections_max: 64,
        per_address_max: 64,
        heads: Heads { timeout: Duration::from_millis(300), bytes_max: 8192, fields_max: 20, streams_max: 1 },
        idle: Duration::from_secs(300),
        unauthenticated: None,
        answers_half_closed: false,
        drain: WAIT,
    };
    let server = Server::limited(Authenticator::open(), bounds, Duration::from_millis(300)).await;
    let body = r#"{"record":{"operation":"o","key":"k"},"request":{}}"#;
    let head = |more: &str| {
        let (host, length) = (server.address, body.len());
        format!(
            "POST /v1/claim HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}content-length: {length}\r\n\r\n"
        )
    };
    let field = |number: usize, bytes: usize| format!("x-{number}: {}\r\n", "a".repeat(bytes));
    let fields = |count: usize| (0..count).map(|number| field(number, 1)).collect::<String>();
    assert_eq!(status_of(&server, &(head(&fields(17)) + body)).await, 200);
    assert_eq!(status_of(&server, &(head(&fields(18)) + body)).await, 431);
    assert_eq!(status_of(&server, &(head(&field(1, 7000)) + body)).await, 200);
    assert_eq!(status_of(&server, &(head(&field(1, 9000)) + body)).await, 431);
    // Neither a head nor a body that stops arriving is waited for.
    assert_eq!(status_of(&server, &head("")[..40]).await, 0);
    assert_eq!(status_of(&server, &(head("") + &body[..10])).await, 400);
    // The same over gRPC: the head of a message, and nothing behind it.
    let (frames, rest) = tokio::sync::mpsc::channel::<Result<hyper::body::Frame<bytes::Bytes>, std::io::Error>>(1);
    frames.send(Ok(hyper::body::Frame::data(bytes::Bytes::from_static(&[0, 0, 0, 0, 9])))).await.unwrap();
    let request = http::Request::post(format!("http://{}/semel.v1.Records/Claim", server.address))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let slow = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(rest));
    let client =
        hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).http2_only(true).build_http();
    let answered = timeout(WAIT, client.request(request.body(slow).unwrap())).await.expect("an answer").unwrap();
    assert_eq!(answered.headers()["grpc-status"], "3");
    drop(frames);
}

/// Of HTTP/2, further requests wait at the client, which is told how many there may be.
#[tokio::test]
async fn streams_of_a_connection_are_bounded_as_configured() {
    for streams_max in [1, 300] {
        let bounds = Bounds {
            connections_max: 64,
            per_address_max: 64,
            heads: Heads { streams_max, ..Heads::default() },
            idle: Duration::from_secs(300),
            unauthenticated: None,
            answers_half_closed: false,
            drain: WAIT,
        };
        let server = Server::bounded(Authenticator::open(), bounds).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = [0; 9];
        timeout(WAIT, stream.read_exact(&mut head)).await.expect("its settings").unwrap();
        let mut settings = vec![0; usize::from(head[2])];
        timeout(WAIT, stream.read_exact(&mut settings)).await.expect("its settings").unwrap();
        // SETTINGS_MAX_CONCURRENT_STREAMS.
        let told = settings.chunks(6).find(|one| one[..2] == [0, 3]).expect("it is told");
        assert_eq!(u32::from_be_bytes(told[2..].try_into().unwrap()), streams_max);
    }
}
