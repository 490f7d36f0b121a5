//! The client library against a real node in this process, over its real port.
#![allow(clippy::unwrap_used, reason = "the lint knows test functions alone, and this is what they share")]

mod cluster;
mod owning;
#[path = "../ports/mod.rs"]
mod ports;
mod reconciling;

use std::time::Duration;

use semel::{
    Client,
    client::{Found, Operation},
    config::{Exposure, Overrides, Purpose, Source},
    node::Node,
    proto::v1,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A node over a directory of its own.
pub struct Single {
    node: Node,
    // Removed last.
    dir: tempfile::TempDir,
}

impl Single {
    /// A node on free ports, in a directory of its own.
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { node: node(&dir, "127.0.0.1:0").await, dir }
    }

    /// Stops it and starts it again over the same directory and port.
    pub async fn restarted(self) -> Self {
        let listen = self.node.listen().to_string();
        self.node.stop().await;
        Self { node: node(&self.dir, &listen).await, dir: self.dir }
    }

    /// A metric without labels, as its operators' port shows it.
    pub async fn metric(&self, name: &str) -> Option<u64> {
        let mut stream = tokio::net::TcpStream::connect(self.node.admin_listen()).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// A client of it.
    pub async fn client(&self) -> Client {
        Client::connect(format!("http://{}", self.node.listen())).await.unwrap()
    }
}

async fn node(dir: &tempfile::TempDir, listen: &str) -> Node {
    let port = || Some("127.0.0.1:0".to_owned());
    let source = Source::default().with(Overrides {
        data_dir: Some(dir.path().display().to_string()),
        listen: Some(listen.to_owned()),
        peer_listen: port(),
        admin_listen: port(),
        ..Overrides::default()
    });
    Node::start(source.check(Purpose::Dev, Exposure::default()).unwrap()).await.unwrap()
}

/// One operation, by its key.
pub fn charge(client: &Client, key: &str) -> Operation {
    client.operation("charge.create").key(key).request_json(r#"{"amount":100}"#)
}

/// The record under this key.
pub async fn read(client: &Client, key: &str) -> v1::Record {
    let record = v1::RecordId { operation: "charge.create".to_owned(), key: key.to_owned(), ..v1::RecordId::default() };
    client.get(v1::GetRequest { record: Some(record), with_outcome: None }).await.unwrap()
}

/// Waits until it holds, for half a minute at most.
pub async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// The claim of a record that is free.
pub fn new(found: Found) -> semel::client::Claim {
    match found {
        Found::New(claim) => claim,
        other => panic!("it should be new, and is {other:?}"),
    }
}
