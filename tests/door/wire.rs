//! Requests and answers as bytes: nothing between the test and the door tidies up.

use std::{net::SocketAddr, time::Duration};

use semel::json::Json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// How long a test waits for bytes.
pub const LONG: Duration = Duration::from_secs(30);

/// A request, written as it stands.
#[derive(Clone)]
pub struct Asked {
    line: String,
    lines: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Asked {
    /// `POST /orders` with this key and a small JSON body.
    pub fn order(key: &str) -> Self {
        Self::post("/orders").key(key).json("{\"amount\":100}")
    }

    pub fn post(path: &str) -> Self {
        Self::new("POST", path)
    }

    pub fn new(method: &str, path: &str) -> Self {
        Self {
            line: format!("{method} {path} HTTP/1.1"),
            lines: vec![("Host".into(), "shop".into())],
            body: Vec::new(),
        }
    }

    pub fn line(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn key(self, key: &str) -> Self {
        self.line("Idempotency-Key", key)
    }

    pub fn json(self, text: &str) -> Self {
        self.line("Content-Type", "application/json").body(text)
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self.line("Content-Length", &body.as_ref().len().to_string())
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{}\r\n", self.line).into_bytes();
        for (name, value) in &self.lines {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Sends it over a connection of its own, and reads the answer.
    pub async fn send(self, to: SocketAddr) -> Reply {
        self.over(&mut TcpStream::connect(to).await.unwrap()).await
    }

    /// Sends it over this connection, as the last request, and reads the answer.
    pub async fn over(self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Reply {
        let is_head = self.line.starts_with("HEAD ");
        stream.write_all(&self.line("Connection", "close").bytes()).await.unwrap();
        Reply::read(stream, is_head).await
    }
}

/// Sends these bytes over a connection of its own, and reads what comes until the other side closes.
pub async fn raw(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    // The other side may well close before it has read all of it.
    let _ = stream.write_all(bytes).await;
    let mut got = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut got)).await.expect("the connection ends");
    got
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub lines: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// What came behind the body, as text.
    pub behind: String,
    /// Whether it came to its end as its head said.
    pub whole: bool,
}

impl Reply {
    /// Reads one answer.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin), is_head: bool) -> Self {
        let mut got = Vec::new();
        loop {
            let at = loop {
                if let Some(at) = got.windows(4).position(|four| four == b"\r\n\r\n") {
                    break at;
                }
                let more = timeout(LONG, stream.read_buf(&mut got)).await.expect("an answer comes").unwrap_or(0);
                assert!(more > 0, "the connection ended before a head: {:?}", String::from_utf8_lossy(&got));
            };
            let head = String::from_utf8_lossy(&got[..at]).into_owned();
            let mut rest = got.split_off(at + 4);
            let mut reply = Self::head(&head);
            if reply.status == 100 {
                got = rest;
                continue;
            }
            reply.read_body(stream, &mut rest, is_head).await;
            return reply;
        }
    }

    /// Reads the head of an answer that switches to another protocol.
    pub async fn read_switched(stream: &mut (impl AsyncRead + Unpin)) -> Self {
        let mut got = Vec::new();
        while !got.ends_with(b"\r\n\r\n") {
            let byte = timeout(LONG, stream.read_u8()).await.expect("a head comes").unwrap();
            got.push(byte);
        }
        Self::head(String::from_utf8_lossy(&got).trim_end())
    }

    fn head(text: &str) -> Self {
        let mut lines = text.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let lines = lines.map(|line| line.split_once(':').unwrap());
        let lines = lines.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Self { status, lines, body: Vec::new(), behind: String::new(), whole: false }
    }

    async fn read_body(&mut self, stream: &mut (impl AsyncRead + Unpin), got: &mut Vec<u8>, is_head: bool) {
        if is_head || self.status == 204 || self.status == 304 {
            self.whole = true;
            return;
        }
        if let Some(length) = self.field("content-length").map(|length| length.parse::<usize>().unwrap()) {
            while got.len() < length && more(stream, got).await {}
            self.whole = got.len() >= length;
            self.body = got[..got.len().min(length)].to_vec();
        } else if self.field("transfer-encoding").is_some() {
            self.whole = loop {
                if let Some(end) = self.chunks(got) {
                    break end;
                }
                if !more(stream, got).await {
                    break false;
                }
            };
        } else {
            while more(stream, got).await {}
            self.body = got.clone();
            self.whole = true;
        }
    }

    /// The chunks so far: true once the last one is there.
    fn chunks(&mut self, got: &[u8]) -> Option<bool> {
        self.body.clear();
        let mut rest = got;
        loop {
            let line = rest.windows(2).position(|two| two == b"\r\n")?;
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
            rest = &rest[line + 2..];
            if size == 0 {
                self.behind = String::from_utf8_lossy(rest).trim().to_ascii_lowercase();
                return rest.ends_with(b"\r\n").then_some(true);
            }
            let chunk = &rest[..size.min(rest.len())];
            self.body.extend_from_slice(chunk);
            rest = rest.get(size + 2..)?;
        }
    }

    /// The value of a field, if it is there.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.lines.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Whether it was given before.
    pub fn is_replay(&self) -> bool {
        self.field("idempotent-replayed") == Some("true")
    }

    /// A member of the problem that it is, as text.
    pub fn problem(&self, member: &str) -> String {
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        let json = Json::parse(&self.body).unwrap();
        let value = json.member(member).unwrap_or_else(|| panic!("no {member}: {json}"));
        value.as_str().map_or_else(|| value.to_text(), str::to_owned)
    }

    /// Status and code of the problem that it is.
    pub fn refusal(&self) -> (u16, String) {
        assert_eq!(self.problem("status"), self.status.to_string());
        assert_eq!(self.field("retry-after").is_some().to_string(), self.problem("retryable"));
        assert_eq!(self.field("cache-control"), Some("no-store"));
        let code = self.problem("code");
        assert!(self.problem("type").ends_with(&format!("#{}", code.replace('_', "-"))));
        (self.status, code)
    }
}

async fn more(stream: &mut (impl AsyncRead + Unpin), got: &mut Vec<u8>) -> bool {
    // A reset ends it as much as an end does.
    timeout(LONG, stream.read_buf(got)).await.expect("bytes come or the connection ends").is_ok_and(|more| more > 0)
}
