//! The way to other machines: connect and listen. Whoever needs a connection is handed a [`Net`], so that the simulation
//! can put a network of its own underneath: one that loses, delays and cuts.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, TcpStream, lookup_host},
    time::Instant,
};

use crate::{
    id::{NodeId, Time},
    limits::LISTEN_BACKLOG,
};

/// Bytes to and from another machine.
pub trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A connection.
pub type Stream = Box<dyn Io>;

/// Whom the certificate at the other end of a connection names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// By URI.
    pub uris: Vec<String>,
    /// By DNS name.
    pub names: Vec<String>,
    /// Until when.
    pub not_after: Time,
}

/// The node at the other end of a connection, as its certificate names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertifiedNode(pub NodeId);

/// Whether a good credential was shown on a connection. Shared by the connection, its requests and whoever bounds it.
#[derive(Debug, Default)]
pub struct Proven(AtomicBool);

impl Proven {
    /// A good credential was shown.
    pub fn prove(&self) {
        // Most of the time it was long ago.
        if !self.is_proven() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Whether one was.
    pub fn is_proven(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// From this moment on a connection takes nothing new: it is about to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retires(pub Instant);

/// A connection that was accepted.
pub struct Accepted {
    /// Its bytes.
    pub stream: Stream,
    /// Where it comes from.
    pub from: SocketAddr,
    /// Whom the other end's certificate names, where it has shown one.
    pub shown: Option<Arc<Shown>>,
    /// Which node that is, where it is one.
    pub node: Option<CertifiedNode>,
    /// When it should take no more, if ever. It is cut a while later.
    pub retires: Option<Retires>,
}

/// What connects.
pub trait Net: Send + Sync + 'static {
    /// Connects to `HOST:PORT`. Small messages leave at once.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>>;

    /// The same, to this node and nobody else, as far as whoever listens there can show who it is.
    fn connect_to<'a>(&'a self, _node: NodeId, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        self.connect(address)
    }

    /// Takes this address, or any free port where the port is 0. Whoever connects before [`Listener::open`] may be refused.
    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
}

/// What listens. Dropping it gives the port back.
pub trait Listener: Send + Sync + 'static {
    /// From now on connections come about. Until then they are refused, where the network can do that: a caller of a node
    /// that still reads its log goes to another one at once.
    ///
    /// # Errors
    /// Whatever the operating system says: that another process has opened the address meanwhile.
    fn open(&self) -> io::Result<()> {
        Ok(())
    }

    /// The next connection, and where it comes from. Small messages leave at once on it.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;

    /// The same, with everything that is known of it.
    fn accepted(&self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(async move {
            let (stream, from) = self.accept().await?;
            Ok(Accepted { stream, from, shown: None, node: None, retires: None })
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Whatever the operating system says.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// The network of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpNet {
    /// Where connections come from, where that is fixed.
    from: Option<IpAddr>,
}

impl TcpNet {
    /// Connections come from the address that is listened on, where that is one address: on a machine with several, what
    /// a firewall lets in is then what it sees come out.
    pub fn beside(listening: IpAddr) -> Self {
        Self { from: Some(listening).filter(|ip| !ip.is_unspecified()) }
    }

    async fn connect_from(&self, to: SocketAddr) -> io::Result<TcpStream> {
        // From loopback nothing but loopback can be reached.
        let fits = |from: &IpAddr| from.is_ipv4() == to.is_ipv4() && from.is_loopback() == to.ip().is_loopback();
        let Some(from) = self.from.filter(fits) else { return TcpStream::connect(to).await };
        let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(to).await
    }
}

impl Net for TcpNet {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move {
            let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for to in lookup_host(address).await? {
                match self.connect_from(to).await {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(Box::new(stream) as Stream);
                    }
                    Err(error) => failed = error,
                }
            }
            Err(failed)
        })
    }

    fn listen(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // As after every restart: connections of the process before may linger. A free port has none, and must not be
            // one that another process has taken and not opened yet; after a restart it is no free one any more.
            socket.set_reuseaddr(address.port() != 0)?;
            socket.bind(address)?;
            socket.set_reuseaddr(true)?;
            let address = socket.local_addr()?;
            Ok(Box::new(Taken { address, socket: Mutex::new(Some(socket)), listener: OnceLock::new() })
                as Box<dyn Listener>)
        })
    }
}

/// An address that is this process's, and what listens there once it is open.
struct Taken {
    address: SocketAddr,
    socket: Mutex<Option<TcpSocket>>,
    listener: OnceLock<TcpListener>,
}

impl Listener for Taken {
    fn open(&self) -> io::Result<()> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = socket.take() {
            let _ = self.listener.set(socket.listen(LISTEN_BACKLOG)?);
        }
        Ok(())
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            self.open()?;
            let closed = || io::Error::new(io::ErrorKind::NotConnected, "it could not be opened");
            Listener::accept(self.listener.get().ok_or_else(closed)?).await
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
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

    fn local_addr(&self) -> io::Result<SocketAddr> {
        TcpListener::local_addr(self)
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
        let net = TcpNet::default();
        let (accepted, connected) = tokio::join!(Listener::accept(&listener), net.connect(&address));
        let ((mut there, from), mut here) = (accepted.unwrap(), connected.unwrap());
        assert!(from.ip().is_loopback());
        here.write_all(b"once").await.unwrap();
        let mut read = [0; 4];
        there.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"once");
        drop(listener);
        assert!(net.connect(&address).await.is_err());
    }

    #[tokio::test]
    async fn an_address_is_taken_before_it_is_open() {
        let net = TcpNet::default();
        let listener = net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let refused = net.connect(&address.to_string()).await.err().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        listener.open().unwrap();
        assert_eq!(net.listen(address).await.err().unwrap().kind(), io::ErrorKind::AddrInUse);
        let address = address.to_string();
        let (accepted, connected) = tokio::join!(listener.accept(), net.connect(&address));
        assert!(accepted.is_ok() && connected.is_ok());
    }

    #[tokio::test]
    async fn of_two_who_took_an_address_one_opens_it() {
        let net = TcpNet::default();
        let first = net.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = first.local_addr().unwrap();
        drop(first);
        let (one, other) = (net.listen(address).await.unwrap(), net.listen(address).await.unwrap());
        one.open().unwrap();
        assert_eq!(other.open().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(other.accept().await.is_err());
    }

    #[tokio::test]
    async fn a_connection_comes_from_the_address_that_is_listened_on() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other: IpAddr = [127, 0, 0, 2].into();
        for (net, seen) in
            [(TcpNet::beside(other), other), (TcpNet::beside([0, 0, 0, 0].into()), [127, 0, 0, 1].into())]
        {
            let (accepted, connected) = tokio::join!(Listener::accept(&listener), net.connect(&address));
            connected.unwrap();
            assert_eq!(accepted.unwrap().1.ip(), seen);
        }
    }
}
