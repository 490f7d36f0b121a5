//! What operators do: HTTP/1.1 on a node's port for them, as any of their tools would.

use std::{io, time::Duration};

use semel::net::Net;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::net::SimNet;

/// Longest wait for an answer.
const AT_MOST: Duration = Duration::from_secs(3);

/// An answer: status and body.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// Whether it was done.
    pub fn is_ok(&self) -> bool {
        self.status / 100 == 2
    }
}

/// One request on a connection of its own.
///
/// # Errors
/// Where no answer came.
pub async fn ask(net: &SimNet, address: &str, request: &str, body: &str) -> io::Result<Answer> {
    let asked = async {
        let mut stream = net.connect(address).await?;
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: \
             close\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP");
        let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
        let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(wrong)?;
        Ok(Answer { status, body: body.to_owned() })
    };
    timeout(AT_MOST, asked).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
