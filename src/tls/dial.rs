//! A client's side: whom it trusts, and what it shows.

use std::{fmt, io, sync::Arc};

use rustls::{ClientConfig, RootCertStore, client::Resumption, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{TlsError, certificates, private_key, provider, unfit};

/// An encrypted connection to a server whose name was checked.
pub type ClientStream<S> = tokio_rustls::client::TlsStream<S>;

/// Whose certificates a client takes, and its own where it shows one.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

impl Trust {
    /// Trusts the authorities of this PEM text, and no others; shows this certificate with its key (PEM both), where one is
    /// given.
    ///
    /// # Errors
    /// [`TlsError`] where one of them can't be used.
    pub fn new(authorities: &[u8], shown: Option<(&[u8], &[u8])>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates("the file of authorities", authorities)? {
            roots.add(certificate).map_err(|error| unfit("the file of authorities", error))?;
        }
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit("TLS", error))?
            .with_root_certificates(roots);
        let mut config = match shown {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates("the certificate", certificate)?;
                let key = private_key("the certificate's key", key)?;
                config.with_client_auth_cert(chain, key).map_err(|error| unfit("the certificate", error))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }

    /// The same, that speaks these protocols alone (ALPN).
    pub fn speaking(&self, protocols: &[&[u8]]) -> Self {
        let mut config = (*self.0).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Self(Arc::new(config))
    }

    /// Makes this connection an encrypted one to `host`, a name or an address that the server's certificate must be for.
    ///
    /// # Errors
    /// When it isn't, or anything else keeps the handshake from its end.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<ClientStream<S>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}
