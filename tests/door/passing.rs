//! What a proxy does besides: passing on, and refusing what two readers could read in two ways.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{Answer, Asked, Reply, Setting, Upstream, wire};

#[tokio::test]
async fn requests_without_a_key_pass() {
    let setting = Setting::before(Upstream::counting().await).await;
    for call in 1..=2 {
        let reply = setting.ask(Asked::post("/orders").json("{}")).await;
        assert_eq!((reply.status, reply.body), (201, format!("order {call}").into_bytes()));
    }
    let got = setting.ask(Asked::new("GET", "/orders?x=1&x=2%20")).await;
    assert_eq!((got.status, got.field("via")), (201, Some("1.1 semel")));
    assert!(setting.upstream.last().starts_with("GET /orders?x=1&x=2%20 HTTP/1.1\r\n"));
    let head = setting.ask(Asked::new("HEAD", "/orders")).await;
    assert_eq!((head.status, head.field("content-length"), head.body.len()), (201, Some("7"), 0));
}

/// With a key and without: some clients end their side when they have asked.
#[tokio::test]
async fn a_client_that_has_ended_its_side_is_answered() {
    let setting = Setting::before(Upstream::counting().await).await;
    for (call, asked) in [(1, Asked::order("k")), (2, Asked::post("/orders").json("{}"))] {
        let mut stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
        stream.write_all(&asked.bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let reply = Reply::read(&mut stream, false).await;
        assert_eq!((reply.status, reply.body), (201, format!("order {call}").into_bytes()));
    }
}

#[tokio::test]
async fn an_empty_body_is_announced() {
    let setting = Setting::before(Upstream::counting().await).await;
    for asked in [Asked::post("/orders").key("none"), Asked::post("/orders").key("empty").body("")] {
        assert_eq!(setting.ask(asked).await.status, 201);
        assert_eq!(setting.upstream.last_fields("content-length"), ["0"]);
        assert!(setting.upstream.last_fields("transfer-encoding").is_empty());
    }
}

#[tokio::test]
async fn chunks_that_are_none_are_a_bad_request_without_a_key_too() {
    let setting = Setting::before(Upstream::counting().await).await;
    for key in ["", "Idempotency-Key: k\r\n"] {
        let head = format!("POST /orders HTTP/1.1\r\nHost: h\r\n{key}Transfer-Encoding: chunked\r\n\r\n");
        for bad in ["zz\r\nx\r\n0\r\n\r\n", "1\r\nxx\r\n0\r\n\r\n"] {
            let got = wire::raw(setting.serving.listen(), format!("{head}{bad}").as_bytes()).await;
            assert!(got.starts_with(b"HTTP/1.1 400 "), "{key:?} {bad:?}: {}", String::from_utf8_lossy(&got));
        }
    }
}

#[tokio::test]
async fn the_upstream_learns_who_asks_and_what_for() {
    let setting = Setting::before(Upstream::counting().await).await;
    setting
        .ask(Asked::order("k").line("X-Forwarded-For", "192.0.2.1").line("Semel-Fence", "9").line("Via", "1.0 x"))
        .await;
    let fields = |name| setting.upstream.last_fields(name);
    assert_eq!(fields("host"), ["shop"]);
    assert_eq!(fields("x-forwarded-for"), ["192.0.2.1", "127.0.0.1"]);
    assert_eq!((fields("x-forwarded-proto"), fields("x-forwarded-host")), (vec!["http".into()], vec!["shop".into()]));
    assert_eq!(fields("via"), ["1.0 x", "1.1 semel"]);
    assert_eq!(fields("content-length"), ["14"]);
    let fence = fields("semel-fence");
    assert!(fence.len() == 1 && fence[0] != "9" && fence[0].parse::<u64>().is_ok(), "{fence:?}");
    let downstream = fields("semel-downstream-key");
    assert!(downstream.len() == 1 && (16..=255).contains(&downstream[0].len()), "{downstream:?}");
    assert_eq!(setting.record("k").await.unwrap().downstream_key, downstream[0]);
}

#[tokio::test]
async fn large_bodies_stream_without_a_key_and_are_bounded_with_one() {
    let config = "[proxy]\nbody_bytes_max = 1000\n";
    let setting = Setting::with(config, Upstream::counting().await).await;
    let large = vec![b'x'; 3_000_000];
    assert_eq!(setting.ask(Asked::post("/a").body(&large)).await.status, 201);
    let refused = setting.ask(Asked::post("/a").key("k").body(&large)).await;
    assert_eq!(refused.refusal(), (413, "body_too_large".to_owned()));
    let chunked = [
        b"POST /a HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n".to_vec(),
        vec![b'x'; 2000],
        b"\r\n0\r\n\r\n".to_vec(),
    ];
    let got = wire::raw(setting.serving.listen(), &chunked.concat()).await;
    assert!(got.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&got));
    assert_eq!(setting.ask(Asked::post("/a").key("k").body(&large[..1000])).await.status, 201);
    assert_eq!(setting.upstream.calls(), 2);
}

#[tokio::test]
async fn what_has_two_readings_is_refused() {
    let setting = Setting::before(Upstream::counting().await).await;
    let key = "Host: h\r\nIdempotency-Key: k\r\n";
    for request in [
        format!("POST /a HTTP/1.1\r\n{key}Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
        format!("POST /a HTTP/1.1\r\n{key}Content-Length: +1\r\n\r\nx"),
        format!("POST /a HTTP/1.1\r\n{key}Content-Length: 1, 1\r\n\r\nx"),
        format!("POST /a HTTP/1.1\r\n{key}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}Transfer-Encoding: identity\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("POST /a HTTP/1.0\r\n{key}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}X: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}Content-Length : 0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}X: a\0b\r\nContent-Length: 0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}X: a\rb\r\nContent-Length: 0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}Host: other\r\nContent-Length: 0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n0\r\n\r\n"),
        format!("POST /a HTTP/1.1\r\n{key}Transfer-Encoding: chunked\r\n\r\n1\r\nxx0\r\n\r\n"),
        "POST /a HTTP/1.1\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n".to_owned(),
    ] {
        let got = wire::raw(setting.serving.listen(), request.as_bytes()).await;
        assert!(
            got.starts_with(b"HTTP/1.1 400 ") || got.starts_with(b"HTTP/1.0 400 "),
            "{request:?}\n{}",
            String::from_utf8_lossy(&got)
        );
    }
    assert_eq!(setting.upstream.calls(), 0);
}

#[tokio::test]
async fn a_length_beside_chunks_is_dropped_and_ends_the_connection() {
    let setting = Setting::before(Upstream::counting().await).await;
    let hidden = "POST /hidden HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
    let request = format!(
        "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n{hidden}"
    );
    let got = String::from_utf8(wire::raw(setting.serving.listen(), request.as_bytes()).await).unwrap();
    assert_eq!(got.matches("HTTP/1.1 ").count(), 1, "{got}");
    assert!(setting.upstream.calls() <= 1);
}

#[tokio::test]
async fn other_protocols_pass_through() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut got).await.unwrap();
            }
            let head = String::from_utf8(got).unwrap().to_ascii_lowercase();
            assert!(head.contains("upgrade: echo\r\n") && head.contains("connection: upgrade\r\n"), "{head}");
            stream.write_all(b"HTTP/1.1 101 Switching\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n").await.unwrap();
            let mut said = [0; 5];
            stream.read_exact(&mut said).await.unwrap();
            stream.write_all(&said).await.unwrap();
        }
    });
    let setting = Setting::at("", Upstream::counting().await, &url).await;
    let mut stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
    stream.write_all(b"GET /chat HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n").await.unwrap();
    let reply = Reply::read_switched(&mut stream).await;
    assert_eq!((reply.status, reply.field("upgrade")), (101, Some("echo")));
    stream.write_all(b"hello").await.unwrap();
    let mut said = [0; 5];
    stream.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, b"hello");
}

#[tokio::test]
async fn a_key_is_not_lost_behind_an_upgrade() {
    let setting = Setting::before(Upstream::counting().await).await;
    // As curl does with --http2: it would like HTTP/2, and takes HTTP/1.1.
    let ask = || {
        Asked::order("k")
            .line("Upgrade", "h2c")
            .line("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA")
            .line("Connection", "Upgrade, HTTP2-Settings")
    };
    assert!(!setting.ask(ask()).await.is_replay());
    assert!(setting.ask(ask()).await.is_replay());
    assert!(setting.upstream.last_fields("upgrade").is_empty());
}

#[tokio::test]
async fn whoever_authorizes_is_asked_for_replays_too() {
    let auth =
        Upstream::new(|call| Answer::of(if call <= 2 { 200 } else { 403 }, "X-Why: no\r\n", "who are you")).await;
    let config = format!("[proxy]\nauth_url = \"http://{}/auth\"\n", auth.address());
    let setting = Setting::with(&config, Upstream::counting().await).await;
    assert_eq!(setting.ask(Asked::order("k").line("Authorization", "Bearer t")).await.status, 201);
    let asked = auth.last();
    assert!(asked.starts_with("GET /auth HTTP/1.1\r\n") && asked.contains("authorization: Bearer t\r\n"), "{asked}");
    assert_eq!(auth.last_fields("x-forwarded-uri"), ["/orders"]);
    assert!(setting.order("k").await.is_replay());
    let refused = setting.order("k").await;
    assert_eq!(
        (refused.status, refused.body.as_slice(), refused.field("x-why")),
        (403, &b"who are you"[..], Some("no"))
    );
    assert_eq!(setting.ask(Asked::new("GET", "/")).await.status, 403);
    assert_eq!((setting.upstream.calls(), auth.calls()), (1, 4));
}

#[tokio::test]
async fn a_browser_asks_before_it_sends_and_is_answered_by_the_service() {
    let lines = "Access-Control-Allow-Origin: https://a.example\r\nAccess-Control-Allow-Headers: Idempotency-Key\r\n";
    let config = "[[proxy.route]]\nmatch = \"POST /orders\"\nkey = \"required\"\n";
    let setting = Setting::with(config, Upstream::always(Answer::bare(204, lines)).await).await;
    let asked = Asked::new("OPTIONS", "/orders")
        .line("Origin", "https://a.example")
        .line("Access-Control-Request-Method", "POST")
        .line("Access-Control-Request-Headers", "idempotency-key");
    for _ in 0..2 {
        let reply = setting.ask(asked.clone()).await;
        assert_eq!((reply.status, reply.field("access-control-allow-headers")), (204, Some("Idempotency-Key")));
        assert!(!reply.is_replay());
    }
    assert_eq!(setting.upstream.last_fields("access-control-request-headers"), ["idempotency-key"]);
    assert_eq!(setting.upstream.calls(), 2);
    assert_eq!(setting.ask(Asked::post("/orders").json("{}")).await.refusal(), (400, "key_missing".to_owned()));
}

#[tokio::test]
async fn who_waits_to_be_told_to_go_on_is_told() {
    let setting = Setting::before(Upstream::counting().await).await;
    for key in ["", "Idempotency-Key: k\r\n"] {
        let mut stream = TcpStream::connect(setting.serving.listen()).await.unwrap();
        let head = format!("POST /a HTTP/1.1\r\nHost: h\r\n{key}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(Reply::read_switched(&mut stream).await.status, 100, "{key}");
        stream.write_all(b"{}").await.unwrap();
        assert_eq!(Reply::read(&mut stream, false).await.status, 201, "{key}");
        assert!(setting.upstream.last_fields("expect").is_empty());
    }
}
