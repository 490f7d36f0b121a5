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
    http::serve::Bounds,
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
        idle: Duration::from_secs(300),
        unauthenticated: None,
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
        idle: Duration::from_secs(1),
        unauthenticated: None,
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
