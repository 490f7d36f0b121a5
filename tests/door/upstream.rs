//! Upstreams over plain TCP: each request is read whole, counted, and answered as the test says.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

/// How long it works on what is posted to /slow.
const SLOW: std::time::Duration = std::time::Duration::from_millis(1500);

/// What an upstream does with a request.
#[derive(Clone)]
pub enum Answer {
    /// Writes these bytes; the connection stays.
    Bytes(Vec<u8>),
    /// Writes these bytes and closes.
    Close(Vec<u8>),
    /// Writes these bytes and resets.
    Reset(Vec<u8>),
    /// Writes these bytes and says no more.
    Hang(Vec<u8>),
    /// Waits until it is let go, then writes these bytes.
    Held(Arc<Notify>, Vec<u8>),
}

impl Answer {
    /// An answer with a body.
    pub fn of(status: u16, lines: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes = format!("HTTP/1.1 {status} Said\r\n{lines}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        Answer::Bytes(bytes)
    }

    /// An answer without a length or a body.
    pub fn bare(status: u16, lines: &str) -> Self {
        Answer::Bytes(format!("HTTP/1.1 {status} Said\r\n{lines}\r\n").into_bytes())
    }
}

/// An upstream.
pub struct Upstream {
    address: SocketAddr,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    calls: AtomicUsize,
    requests: Mutex<Vec<Vec<u8>>>,
}

impl Upstream {
    /// Answers the n-th request (from 1) with what this says.
    pub async fn new(answer: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen, answer) = (listener.local_addr().unwrap(), Arc::<Seen>::default(), Arc::new(answer));
        let counted = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, counted.clone(), answer.clone()));
            }
        });
        Self { address, seen }
    }

    /// Always the same.
    pub async fn always(answer: Answer) -> Self {
        Self::new(move |_| answer.clone()).await
    }

    /// Answers one after the other with these.
    pub async fn these(answers: Vec<Answer>) -> Self {
        Self::new(move |call| answers[call - 1].clone()).await
    }

    /// Says what number each request has: `order 1`, `order 2`.
    pub async fn counting() -> Self {
        Self::new(|call| Answer::of(201, "Content-Type: text/plain\r\n", format!("order {call}"))).await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests came.
    pub fn calls(&self) -> usize {
        self.seen.calls.load(Ordering::SeqCst)
    }

    /// The bytes of the last request.
    pub fn last(&self) -> String {
        String::from_utf8_lossy(self.seen.requests.lock().unwrap().last().unwrap()).into_owned()
    }

    /// The values of a field of the last request.
    pub fn last_fields(&self, name: &str) -> Vec<String> {
        let last = self.last();
        let head = last.split("\r\n\r\n").next().unwrap();
        let lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).collect()
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Seen>, answer: Arc<impl Fn(usize) -> Answer>) {
    let mut got = Vec::new();
    while let Some(request) = request(&mut stream, &mut got).await {
        let is_head = request.starts_with(b"HEAD ");
        let is_slow = request.starts_with(b"POST /slow");
        seen.requests.lock().unwrap().push(request);
        let call = seen.calls.fetch_add(1, Ordering::SeqCst) + 1;
        if is_slow {
            tokio::time::sleep(SLOW).await;
        }
        let write = match answer(call) {
            Answer::Bytes(bytes) => bytes,
            Answer::Held(held, bytes) => {
                held.notified().await;
                bytes
            }
            Answer::Close(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            Answer::Reset(bytes) => {
                let _ = stream.write_all(&bytes).await;
                let _ = stream.flush().await;
                #[allow(deprecated, reason = "a reset is what is wanted")]
                stream.set_linger(Some(std::time::Duration::ZERO)).unwrap();
                return;
            }
            Answer::Hang(bytes) => {
                let _ = stream.write_all(&bytes).await;
                std::future::pending::<()>().await;
                return;
            }
        };
        let end =
            if is_head { write.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4 } else { write.len() };
        if stream.write_all(&write[..end]).await.is_err() {
            return;
        }
    }
}

/// Where the last chunk ends, with what comes behind it.
fn last_chunk(chunks: &[u8]) -> Option<usize> {
    let from = chunks.windows(5).position(|five| five == b"\r\n0\r\n")? + 3;
    chunks[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|end| from + end + 4)
}

/// One request with its body; none where the connection ends first.
async fn request(stream: &mut TcpStream, got: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = got.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&got[..at]).to_ascii_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            let end = if head.contains("transfer-encoding: chunked") {
                last_chunk(&got[at + 2..]).map(|end| at + 2 + end)
            } else {
                Some(at + 4 + length.unwrap_or(0))
            };
            if let Some(end) = end.filter(|end| got.len() >= *end) {
                let rest = got.split_off(end);
                return Some(std::mem::replace(got, rest));
            }
        }
        if stream.read_buf(got).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}
