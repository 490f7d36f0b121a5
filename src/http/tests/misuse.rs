//! What no well-meaning client sends: a clear refusal, and nothing asked of the service.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::Code;
use tonic_types::StatusExt;

use super::Server;
use crate::{auth::Authenticator, limits, proto::v1};

/// Sends this text, and what is written on, over a connection of its own; gives what comes back until it is closed.
async fn raw(server: &Server, head: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    for part in body.chunks(1 << 16) {
        stream.write_all(part).await.unwrap();
    }
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
    read.await.expect("the connection is closed").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn types_and_spellings() {
    let server = Server::start().await;
    let record = r#""record":{"operation":"o","key":"k"}"#;
    let claims = [
        String::new(),
        "{".into(),
        "[]".into(),
        "null".into(),
        "\u{feff}{}".into(),
        format!(r#"{{{record},"request":{{}}}} {{}}"#),
        format!(r#"{{{record},"request":{{}},"extra":1}}"#),
        format!(r#"{{{record},"request":{{}},"lease_ms":"30000"}}"#),
        format!(r#"{{{record},"request":{{}},"lease_ms":1.0}}"#),
        format!(r#"{{{record},"request":{{}},"lease_ms":1e3}}"#),
        format!(r#"{{{record},"request":{{}},"lease_ms":-1}}"#),
        format!(r#"{{{record},"request":{{}},"lease_ms":4294967296}}"#),
        format!(r#"{{{record},"request":{{}},"staged":"true"}}"#),
        format!(r#"{{{record},"request":{{}},"on_lapse":"HOLD"}}"#),
        format!(r#"{{{record},"request":{{}},"on_lapse":"unspecified"}}"#),
        format!(r#"{{{record},"request":{{}},"on_lapse":""}}"#),
        format!(r#"{{{record},"request":{{}},"first_sent_at":1769851800}}"#),
        format!(r#"{{{record},"request":{{}},"first_sent_at":"2026-01-31"}}"#),
        format!(r#"{{{record},"request":{{}},"labels":{{"a":1}}}}"#),
        format!(r#"{{{record},"request":{{}},"labels":["a"]}}"#),
        format!(r#"{{{record},"request":{{"a":1,"a":1}}}}"#),
        format!(r#"{{{record},"request":{{"a":1,"\u0061":1}}}}"#),
        format!(r#"{{{record},{record},"request":{{}}}}"#),
        format!(r#"{{{record},"request":"\ud800"}}"#),
        format!(r#"{{{record},"request":1{}}}"#, "0".repeat(1024)),
        format!(r#"{{{record},"request":1{}.5}}"#, "0".repeat(400)),
        format!(r#"{{{record},"request":{}1{}}}"#, "[".repeat(65), "]".repeat(65)),
        format!(r#"{{{record},"request":{}"#, "[".repeat(100_000)),
        format!(r#"{{{record},"fingerprints":[{{"scheme":1,"digest":"{}"}}]}}"#, "AB".repeat(32)),
        format!(r#"{{{record},"fingerprints":[{{"scheme":1,"digest":"ab"}}]}}"#),
        r#"{"record":{"operation":"o","key":1},"request":{}}"#.into(),
        r#"{"record":{"operation":"o","key":"k","x":1},"request":{}}"#.into(),
        r#"{"record":"k","request":{}}"#.into(),
    ];
    for body in claims {
        assert_eq!(server.post("/v1/claim", body.clone()).await.code(), "invalid_argument", "{body}");
    }
    let invalid_utf8 = b"{\"record\":{\"operation\":\"o\",\"key\":\"\xff\"},\"request\":{}}".to_vec();
    assert_eq!(server.post("/v1/claim", invalid_utf8).await.code(), "invalid_argument");
    for fence in
        ["1", "-1", "\"-1\"", "\"+1\"", "\"01\"", "\"\"", "\" 1\"", "\"18446744073709551616\"", "\"1.0\"", "1.5"]
    {
        let body = format!(r#"{{{record},"fence":{fence}}}"#);
        assert_eq!(server.post("/v1/begin", body).await.code(), "invalid_argument", "{fence}");
    }
    for data in ["\"A\"", "\"AA\"", "\"AA==\\n\"", "\"_-==\"", "\"AB==\"", "5"] {
        let body = format!(r#"{{{record},"fence":"1","name":"n","data":{data}}}"#);
        assert_eq!(server.post("/v1/checkpoint", body).await.code(), "invalid_argument", "{data}");
    }
    assert!(server.calls.asked().is_empty());
}

#[tokio::test]
async fn paths_and_methods() {
    let server = Server::start().await;
    for (verb, path) in
        [("POST", "/"), ("GET", "/v2/claim"), ("POST", "/v1/claim/"), ("POST", "/v1"), ("GET", "/healthz")]
    {
        assert_eq!(server.send(verb, path, &[], "").await.code(), "not_found", "{verb} {path}");
    }
    for (verb, path, allowed) in [
        ("GET", "/v1/claim", "POST"),
        ("PUT", "/v1/policy/set", "POST"),
        ("DELETE", "/v1/get", "POST"),
        ("POST", "/v1/watch", "GET"),
    ] {
        let reply = server.send(verb, path, &[], "").await;
        assert_eq!((reply.code().as_str(), reply.field("allow")), ("method_not_allowed", allowed), "{verb} {path}");
    }
    for path in ["/v1/claim", "/v1/watch"] {
        assert_eq!(server.send("HEAD", path, &[], "").await.status, 405);
    }
    assert!(server.calls.asked().is_empty());
}

#[tokio::test]
async fn content_codings_are_refused_and_types_not_looked_at() {
    let server = Server::start().await;
    let body = r#"{"record":{"operation":"o","key":"k"},"request":{}}"#;
    let coded = server.send("POST", "/v1/claim", &[("content-encoding", "gzip")], body).await;
    assert_eq!(coded.code(), "invalid_argument");
    let fields = [("content-encoding", "identity"), ("content-type", "text/html")];
    assert_eq!(server.send("POST", "/v1/claim", &fields, body).await.status, 200);
}

#[tokio::test]
async fn bodies_over_the_limit_are_refused_before_they_are_read() {
    let server = Server::start().await;
    let over = vec![b' '; limits::REQUEST_BYTES_MAX + 1];
    let head = format!("POST /v1/claim HTTP/1.1\r\nhost: {}\r\n", server.address);
    // Announced, and sent by somebody who reads the answer only afterwards.
    let answer = raw(&server, &format!("{head}content-length: {}\r\n\r\n", over.len()), &over).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"request_too_large\""), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    // Announced, and never sent: the answer doesn't wait for it.
    let answer = raw(&server, &format!("{head}content-length: 5000000000\r\n\r\n"), b"").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let answer = raw(&server, &format!("{head}expect: 100-continue\r\ncontent-length: 5000000\r\n\r\n"), b"").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    // Not announced.
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20));
    let chunked = format!("{}0\r\n\r\n", chunk.repeat(5));
    let answer = raw(&server, &format!("{head}transfer-encoding: chunked\r\n\r\n"), chunked.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("\"request_too_large\""), "{answer}");
    // The limit itself passes.
    let mut whole = br#"{"record":{"operation":"o","key":"k"},"request":{}}"#.to_vec();
    whole.resize(limits::REQUEST_BYTES_MAX, b' ');
    assert_eq!(server.post("/v1/claim", whole).await.status, 200);

    server.calls.asked();
    let large = v1::ClaimRequest { request: Some(over.into()), ..Default::default() };
    let status = server.records.clone().claim(large).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "request_too_large");
    assert!(server.calls.asked().is_empty());
}

#[tokio::test]
async fn grpc_that_is_none() {
    let server = Server::start().await;
    let frame = |message: &[u8]| {
        let mut frame = vec![0];
        frame.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(message);
        frame
    };
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let told = |reply: &super::Reply| tonic::Status::from_header_map(&reply.fields).expect("a status");
    // A key that is no UTF-8, a message cut short, a field of another type.
    for message in [&b"\x0a\x05\x22\x03\xff\xff\xff"[..], b"\x0a\x05\x22", b"\x0d"] {
        let reply = server.send("POST", "/semel.v1.Records/Get", &grpc, frame(message)).await;
        let status = told(&reply);
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert_eq!(status.get_error_details().error_info().unwrap().reason, "invalid_argument");
    }
    for path in ["/semel.v1.Records/Nothing", "/semel.v2.Records/Get", "/"] {
        let status = told(&server.send("POST", path, &grpc, frame(b"")).await);
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
    let coded = [grpc[0], grpc[1], ("grpc-encoding", "gzip")];
    let status = told(&server.send("POST", "/semel.v1.Records/Get", &coded, frame(b"")).await);
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "invalid_argument");
    let enums = v1::ClaimRequest {
        record: Some(v1::RecordId { tenant: None, principal: None, operation: "o".into(), key: "k".into() }),
        request: Some("1".into()),
        on_lapse: Some(77),
        ..Default::default()
    };
    let status = server.records.clone().claim(enums).await.unwrap_err();
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "invalid_argument");
    assert!(server.calls.asked().is_empty());
}

#[tokio::test]
async fn web_pages_are_kept_away_from_an_open_node() {
    let server = Server::start().await;
    let own = format!("http://{}", server.address);
    let body = r#"{"record":{"operation":"o","key":"k"},"request":{}}"#;
    for fields in [[("origin", "http://evil.example")], [("host", "evil.example")], [("origin", "null")]] {
        assert_eq!(server.send("POST", "/v1/claim", &fields, body).await.code(), "forbidden", "{fields:?}");
    }
    assert!(server.calls.asked().is_empty());
    assert_eq!(server.send("POST", "/v1/claim", &[("origin", &own)], body).await.status, 200);
    assert_eq!(server.send("POST", "/v1/claim", &[("host", "localhost:1")], body).await.status, 200);
}

#[tokio::test]
async fn without_a_credential_nothing_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.toml");
    let token = "0123456789abcdef";
    std::fs::write(&path, format!("[[token]]\ntoken = \"{token}\"\ntenant = \"acme\"\npermissions = [\"claim\"]\n"))
        .unwrap();
    let server = Server::with(Authenticator::token_file(&path).unwrap()).await;
    let body = r#"{"record":{"operation":"o","key":"k"},"request":{}}"#;
    let bearer = format!("Bearer {token}");
    for fields in [vec![], vec![("authorization", "Bearer 0123456789abcdeX")], vec![("authorization", "Basic x")]] {
        let reply = server.send("POST", "/v1/claim", &fields, body).await;
        assert_eq!((reply.code().as_str(), reply.field("www-authenticate")), ("unauthenticated", "Bearer"));
    }
    // Its body is announced and never sent: the answer comes all the same, and the connection is closed.
    let head = format!("POST /v1/claim HTTP/1.1\r\nhost: {}\r\ncontent-length: 10\r\n\r\n", server.address);
    let answer = raw(&server, &head, b"").await;
    assert!(
        answer.starts_with("HTTP/1.1 401 ") && answer.to_ascii_lowercase().contains("connection: close"),
        "{answer}"
    );
    let status = server.records.clone().get(v1::GetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(status.get_error_details().error_info().unwrap().reason, "unauthenticated");

    let fields = [("authorization", bearer.as_str())];
    // What the token doesn't allow is refused before its body is looked at.
    for path in ["/v1/list", "/v1/resolve", "/v1/forget", "/v1/policy/set"] {
        assert_eq!(server.send("POST", path, &fields, "not JSON").await.code(), "forbidden", "{path}");
    }
    assert_eq!(server.send("GET", "/v1/watch", &fields, "").await.code(), "forbidden");
    assert!(server.calls.asked().is_empty());
    assert_eq!(server.send("POST", "/v1/claim", &fields, body).await.status, 200);
    let mut request = tonic::Request::new(v1::ForgetRequest::default());
    request.metadata_mut().insert("authorization", bearer.parse().unwrap());
    let status = server.records.clone().forget(request).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_node_that_stops_answers_what_runs_and_ends_its_streams() {
    let server = Server::start().await;
    let (calls, mut records) = (server.calls.clone(), server.records.clone());
    let running = tokio::spawn(async move {
        let record = Some(v1::RecordId { tenant: None, principal: None, operation: "o".into(), key: "slow".into() });
        records.begin(v1::BeginRequest { record, fence: Some(1), lease_ms: None }).await
    });
    while calls.asked().is_empty() {
        tokio::task::yield_now().await;
    }
    server.stop.send(true).unwrap();
    server.calls.released.notify_one();
    assert!(running.await.unwrap().is_ok());
    let refused = TcpStream::connect(server.address).await;
    assert!(refused.is_err(), "no new connection is taken");
    drop(server.records);
    drop(server.policies);
    drop(server.http);
    tokio::time::timeout(Duration::from_secs(5), server.served).await.expect("it stops").unwrap();
}

#[tokio::test]
async fn health_and_reflection() {
    use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };

    let server = Server::start().await;
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", server.address)).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "semel.v1.Records", "semel.v1.Policies"] {
        let asked = HealthCheckRequest { service: service.into() };
        assert_eq!(health.check(asked).await.unwrap().get_ref().status(), ServingStatus::Serving);
    }
    assert_eq!(health.check(HealthCheckRequest { service: "x".into() }).await.unwrap_err().code(), Code::NotFound);

    let message_request = Some(MessageRequest::FileContainingSymbol("semel.v1.Records".into()));
    let asked = ServerReflectionRequest { host: String::new(), message_request };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([asked]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{answer:?}");

    let mut watched = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.stop.send(true).unwrap();
    assert_eq!(watched.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert!(watched.message().await.unwrap().is_none());
}
