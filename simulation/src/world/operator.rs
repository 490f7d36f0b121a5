//! What operators do: HTTP/1.1 on a node's port for them, as any of their tools would.

use std::{io, time::Duration};

use semel::{
    json::{Fields, Json},
    net::Net,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    net::SimNet,
    restores::{BACK_UP, RESTORE},
};

/// Longest wait for an answer.
const AT_MOST: Duration = Duration::from_secs(3);
/// Longest wait for the answer to a whole cluster's state.
const RESTORE_AT_MOST: Duration = Duration::from_secs(8);
/// How often it is looked whether a backup is written.
const LOOKS: u32 = 5;

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

/// A backup as it was fetched.
#[derive(Clone, Debug)]
pub struct Backup {
    /// Where the state in it stands.
    pub position: u64,
    /// What the node said of the bytes.
    pub sha256: String,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// One request on a connection of its own.
///
/// # Errors
/// Where no answer came.
pub async fn ask(net: &SimNet, address: &str, request: &str, body: &str) -> io::Result<Answer> {
    let (status, body) = ask_bytes(net, address, request, body.as_bytes(), AT_MOST).await?;
    Ok(Answer { status, body: String::from_utf8(body).map_err(|_| wrong())? })
}

/// Has a node take a backup, and fetches it.
///
/// # Errors
/// Where none was had.
pub async fn take_backup(net: &SimNet, address: &str) -> io::Result<Backup> {
    let mut told = ask(net, address, BACK_UP, "{}").await?;
    for _ in 0..LOOKS {
        let answer = Json::parse(told.body.as_bytes()).map_err(|_| wrong())?;
        let mut fields = Fields::new(answer).map_err(|_| wrong())?;
        let mut text = |name| fields.opt_string(name).ok().flatten().ok_or_else(wrong);
        let (id, state) = (text("id")?, text("state")?);
        if state != "ready" {
            told = ask(net, address, BACK_UP, &format!("{{\"id\":\"{id}\"}}")).await?;
            continue;
        }
        let position = text("position")?.parse().map_err(|_| wrong())?;
        let (sha256, length) = (text("sha256")?, text("bytes")?);
        let fetch = format!("{{\"id\":\"{id}\",\"offset\":\"0\"}}");
        let (status, bytes) = ask_bytes(net, address, BACK_UP, fetch.as_bytes(), AT_MOST).await?;
        let is_whole = status == 200 && length == bytes.len().to_string();
        // Nobody has to know that it isn't wanted any more.
        let _ = ask(net, address, BACK_UP, &format!("{{\"id\":\"{id}\",\"release\":true}}")).await;
        return if is_whole { Ok(Backup { position, sha256, bytes }) } else { Err(wrong()) };
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Has a node restore a backup: `head` is the line in front of it.
///
/// # Errors
/// Where no answer came.
pub async fn restore(net: &SimNet, address: &str, head: &str, backup: &[u8]) -> io::Result<Answer> {
    let whole = [head.as_bytes(), backup].concat();
    let (status, body) = ask_bytes(net, address, RESTORE, &whole, RESTORE_AT_MOST).await?;
    Ok(Answer { status, body: String::from_utf8(body).map_err(|_| wrong())? })
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no answer of HTTP")
}

async fn ask_bytes(
    net: &SimNet,
    address: &str,
    request: &str,
    body: &[u8],
    at_most: Duration,
) -> io::Result<(u16, Vec<u8>)> {
    let asked = async {
        let mut stream = net.connect(address).await?;
        let length = body.len();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: \
             close\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(wrong)?;
        let body = answer.split_off(end + 4);
        let head = String::from_utf8(answer).map_err(|_| wrong())?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
        Ok((status, body))
    };
    timeout(at_most, asked).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
