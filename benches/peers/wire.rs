//! A connection of loopback on which requests are written and answers read, one after the other.

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub struct Wire {
    stream: TcpStream,
    read: BytesMut,
}

impl Wire {
    pub async fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("the server takes connections");
        stream.set_nodelay(true).expect("TCP has no delay");
        Self { stream, read: BytesMut::with_capacity(4096) }
    }

    pub async fn write(&mut self, request: &[u8]) {
        self.stream.write_all(request).await.expect("the connection stands");
    }

    async fn more(&mut self) {
        let read = self.stream.read_buf(&mut self.read).await.expect("the connection stands");
        assert!(read > 0, "the server ended the connection");
    }

    /// Reads up to and with this mark, which is left out.
    pub async fn until(&mut self, mark: &[u8]) -> BytesMut {
        let mut looked = 0;
        loop {
            let found = self.read[looked..].windows(mark.len()).position(|window| window == mark);
            if let Some(at) = found {
                let head = self.read.split_to(looked + at);
                self.read.advance(mark.len());
                return head;
            }
            looked = self.read.len().saturating_sub(mark.len() - 1);
            self.more().await;
        }
    }

    pub async fn exactly(&mut self, bytes: usize) -> BytesMut {
        while self.read.len() < bytes {
            self.more().await;
        }
        self.read.split_to(bytes)
    }
}
