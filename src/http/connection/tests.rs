//! In real time: short spans, of which the lower bounds alone are checked.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{sleep, timeout},
};

use super::*;

const IDLE: Duration = Duration::from_millis(1500);
const HEAD: Duration = Duration::from_millis(300);
const SPANS: Spans = Spans { head: HEAD, idle: IDLE, unproven: None };

/// A client's end, and the server's as it is watched.
fn pair() -> (DuplexStream, Watched<DuplexStream>, Arc<Doing>) {
    let (client, socket) = duplex(1024);
    let doing = Doing::new(true);
    (client, Watched::new(socket, &doing), doing)
}

async fn pass(client: &mut DuplexStream, server: &mut Watched<DuplexStream>, bytes: &[u8]) {
    client.write_all(bytes).await.unwrap();
    let mut read = vec![0; bytes.len()];
    server.read_exact(&mut read).await.unwrap();
    assert_eq!(read, bytes);
}

/// Why it outstays, and after how long.
async fn overstays(doing: &Doing) -> (&'static str, Duration) {
    let began = Instant::now();
    let why = timeout(20 * IDLE, doing.overstays(SPANS)).await.unwrap_or("never");
    (why, began.elapsed())
}

#[tokio::test]
async fn a_connection_without_a_byte_is_idle() {
    let (_client, _server, doing) = pair();
    let (why, after) = overstays(&doing).await;
    assert!(why == "idle_timeout" && after >= IDLE, "{why} {after:?}");
}

#[tokio::test]
async fn a_head_counts_from_its_first_byte_also_after_a_pause() {
    let (mut client, mut server, doing) = pair();
    let watched = Arc::clone(&doing);
    let watching = tokio::spawn(async move { overstays(&watched).await });
    sleep(2 * HEAD).await;
    pass(&mut client, &mut server, b"POST /v1").await;
    sleep(HEAD / 2).await;
    pass(&mut client, &mut server, b"/claim HT").await;
    let (why, after) = watching.await.unwrap();
    assert!(why == "head_timeout" && after >= 3 * HEAD, "{why} {after:?}");
}

#[tokio::test]
async fn a_connection_is_idle_from_its_last_answer_on() {
    let (mut client, mut server, doing) = pair();
    pass(&mut client, &mut server, b"POST /v1/claim HTTP/1.1\r\n\r\n").await;
    let answering = doing.answering();
    // What comes now is its body, however slowly, and nothing outstays while it is answered.
    pass(&mut client, &mut server, b"{}").await;
    assert!(timeout(2 * IDLE, doing.overstays(SPANS)).await.is_err());
    server.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    drop(answering);
    // A line break too many, as some clients send it, begins no head.
    pass(&mut client, &mut server, b"\r\n").await;
    let (why, after) = overstays(&doing).await;
    assert!(why == "idle_timeout" && after >= IDLE - HEAD, "{why} {after:?}");
}

#[tokio::test]
async fn frames_of_http_2_are_no_slow_head() {
    let (mut client, mut server, doing) = pair();
    pass(&mut client, &mut server, b"PR").await;
    pass(&mut client, &mut server, b"I * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    pass(&mut client, &mut server, b"a ping").await;
    let (why, _) = overstays(&doing).await;
    assert_eq!(why, "idle_timeout");
}

#[tokio::test]
async fn without_a_credential_a_connection_ends_whatever_moves_on_it() {
    let spans = Spans { unproven: Some(2 * HEAD), ..SPANS };
    let (mut client, mut server, doing) = pair();
    let began = Instant::now();
    let moving = async {
        loop {
            pass(&mut client, &mut server, b"\r\n").await;
            sleep(HEAD / 4).await;
        }
    };
    let why = tokio::select! {
        why = doing.overstays(spans) => why,
        () = moving => "",
        () = sleep(20 * IDLE) => "never",
    };
    assert!(why == "unauthenticated_timeout" && began.elapsed() >= 2 * HEAD, "{why}");
    // While it is being refused, too: it may be made to go on for long.
    let (_client, _server, doing) = pair();
    let _answering = doing.answering();
    assert_eq!(doing.overstays(spans).await, "unauthenticated_timeout");
    // A good one, once, is enough.
    let (_client, _server, doing) = pair();
    doing.proven.prove();
    assert_eq!(doing.overstays(spans).await, "idle_timeout");
}

#[tokio::test]
async fn too_many_resets_without_a_credential_end_the_connection_with_a_word() {
    let reset = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8];
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for is_proven in [false, true] {
        let (mut client, mut server, doing) = pair();
        pass(&mut client, &mut server, preface).await;
        // Settings of its own, whole.
        server.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        if is_proven {
            doing.proven.prove();
        }
        for _ in 0..crate::limits::RESETS_MAX {
            pass(&mut client, &mut server, &reset).await;
        }
        client.write_all(&reset).await.unwrap();
        let read = server.read_exact(&mut [0; 13]).await;
        assert_eq!((read.is_ok(), doing.too_much()), (is_proven, (!is_proven).then_some("resets_max")));
        drop(server);
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent.ends_with(&CALM), !is_proven, "{sent:?}");
    }
}
