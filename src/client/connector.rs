//! How connections to nodes are made: by the transport itself, or over a network that is handed in.

use std::fmt;
#[cfg(feature = "server")]
use std::sync::Arc;

#[cfg(feature = "server")]
use http::Uri;
#[cfg(feature = "server")]
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Error};

#[cfg(feature = "server")]
use crate::net::Net;

/// Connects to endpoints.
#[derive(Clone, Default)]
pub(super) struct Connector {
    /// The network to use. None: the operating system's, which the transport knows best by itself.
    #[cfg(feature = "server")]
    pub(super) net: Option<Arc<dyn Net>>,
}

impl Connector {
    /// A channel that connects when it is first used.
    pub(super) fn connect_lazy(&self, target: &Endpoint) -> Channel {
        #[cfg(feature = "server")]
        if let Some(net) = &self.net {
            return target.connect_with_connector_lazy(tower::service_fn(over(net.clone())));
        }
        target.connect_lazy()
    }

    /// A channel that is connected.
    pub(super) async fn connect(&self, target: &Endpoint) -> Result<Channel, Error> {
        #[cfg(feature = "server")]
        if let Some(net) = &self.net {
            return target.connect_with_connector(tower::service_fn(over(net.clone()))).await;
        }
        target.connect().await
    }
}

/// The connector of a channel over `net`.
#[cfg(feature = "server")]
fn over(
    net: Arc<dyn Net>,
) -> impl Fn(Uri) -> futures_util::future::BoxFuture<'static, std::io::Result<TokioIo<crate::net::Stream>>> + Clone {
    move |uri| {
        let net = net.clone();
        Box::pin(async move {
            let host = uri.host().unwrap_or_default();
            let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
            net.connect(&format!("{host}:{port}")).await.map(TokioIo::new)
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
