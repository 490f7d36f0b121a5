//! How connections to nodes are made: by the transport itself, or over a network that is handed in.

#[cfg(feature = "server")]
use std::sync::Arc;
use std::{
    fmt, io,
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tonic::{
    codegen::Service,
    transport::{Channel, Endpoint, Error},
};

#[cfg(feature = "server")]
use crate::net::Net;
use crate::tls::Trust;

/// Connects to endpoints.
#[derive(Clone, Default)]
pub(super) struct Connector {
    /// The network to use. None: the operating system's, which the transport knows best by itself.
    #[cfg(feature = "server")]
    pub(super) net: Option<Arc<dyn Net>>,
    /// Whose certificates are taken from `https://` endpoints.
    pub(super) trust: Option<Trust>,
}

/// Bytes to and from a node.
trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

type Stream = Box<dyn Io>;

impl Connector {
    /// A channel that connects when it is first used.
    pub(super) fn connect_lazy(&self, target: &Endpoint) -> Channel {
        match self.own_way(target) {
            Some(own) => target.connect_with_connector_lazy(own),
            None => target.connect_lazy(),
        }
    }

    /// A channel that is connected.
    pub(super) async fn connect(&self, target: &Endpoint) -> Result<Channel, Error> {
        match self.own_way(target) {
            Some(own) => target.connect_with_connector(own).await,
            None => target.connect().await,
        }
    }

    /// What connects where the transport can't by itself: over another network, or encrypted.
    fn own_way(&self, target: &Endpoint) -> Option<Over> {
        let is_encrypted = target.uri().scheme_str() == Some("https");
        let trust = self.trust.clone().filter(|_| is_encrypted);
        #[cfg(feature = "server")]
        let is_own = self.net.is_some() || trust.is_some();
        #[cfg(not(feature = "server"))]
        let is_own = trust.is_some();
        is_own.then(|| Over(Self { trust, ..self.clone() }))
    }

    async fn stream(&self, host: &str, port: u16) -> io::Result<Stream> {
        #[cfg(feature = "server")]
        if let Some(net) = &self.net {
            return net.connect(&format!("{host}:{port}")).await.map(|stream| Box::new(stream) as Stream);
        }
        let stream = TcpStream::connect((host.trim_start_matches('[').trim_end_matches(']'), port)).await?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

/// Connects a channel.
struct Over(Connector);

impl Service<Uri> for Over {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
            let stream = connector.stream(host, port).await?;
            let stream = match &connector.trust {
                Some(trust) => Box::new(trust.connect(host, stream).await?) as Stream,
                None => stream,
            };
            Ok(TokioIo::new(stream))
        })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use std::{
        io,
        net::SocketAddr,
        sync::{Mutex, PoisonError},
    };

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::net::{Listener, Stream};

    /// A network that takes notes and reaches nobody.
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl Net for Notes {
        fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(address.to_owned());
            Box::pin(async { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) })
        }

        fn listen(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
            Box::pin(async { Err(io::Error::from(io::ErrorKind::Unsupported)) })
        }
    }

    #[tokio::test]
    async fn a_client_connects_over_the_network_that_it_was_given() {
        let notes = Arc::new(Notes::default());
        let client = crate::Client::builder().endpoint("http://n1:7171").endpoint("n2").net(notes.clone());
        assert!(matches!(client.connect().await, Err(crate::client::Error::Unreachable { .. })));
        assert_eq!(*notes.0.lock().unwrap(), ["n1:7171", "n2:80"]);
    }
}
