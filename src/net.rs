//! The way to other machines: connect and listen. Whoever needs a connection is handed a [`Net`], so that the simulation
//! can put a network of its own underneath: one that loses, delays and cuts.

use std::{io, net::SocketAddr};

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

/// Bytes to and from another machine.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A connection.
pub type Stream = Box<dyn Io>;

/// What connects.
pub trait Net: Send + Sync + 'static {
    /// Connects to `HOST:PORT`. Small messages leave at once.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>>;
}

/// What listens. Dropping it gives the port back.
pub trait Listener: Send + Sync + 'static {
    /// The next connection, and where it comes from. Small messages leave at once on it.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;
}

/// The network of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNet;

impl Net for TcpNet {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Stream)
        })
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let (stream, from) = TcpListener::accept(self).await?;
            // A socket where this fails is broken, which its first read will tell.
            let _ = stream.set_nodelay(true);
            Ok((Box::new(stream) as Stream, from))
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_one_side_writes_the_other_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (accepted, connected) = tokio::join!(Listener::accept(&listener), TcpNet.connect(&address));
        let ((mut there, from), mut here) = (accepted.unwrap(), connected.unwrap());
        assert!(from.ip().is_loopback());
        here.write_all(b"once").await.unwrap();
        let mut read = [0; 4];
        there.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"once");
        drop(listener);
        assert!(TcpNet.connect(&address).await.is_err());
    }
}
