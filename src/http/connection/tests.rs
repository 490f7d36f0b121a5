//! In real time: short spans, of which the lower bounds alone are checked.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{sleep, timeout},
};

use super::*;

const IDLE: Duration = Duration::from_millis(1500);
const HEAD: Duration = Duration::from_millis(300);

/// A client's end, and the server's as it is watched.
fn pair() -> (DuplexStream, Watched<DuplexStream>, Arc<Doing>) {
    let (client, socket) = duplex(1024);
    let doing = Doing::new();
    (client, Watched { socket, doing: Arc::clone(&doing) }, doing)
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
    let why = timeout(20 * IDLE, doing.overstays(HEAD, IDLE)).await.unwrap_or("never");
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
    assert!(timeout(2 * IDLE, doing.overstays(HEAD, IDLE)).await.is_err());
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
