//! The way to other nodes: encrypted, each end sure of the other.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use futures_util::future::BoxFuture;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::ClientCertVerifier,
};
use tokio_rustls::TlsConnector;

use super::{
    files::{Certificates, Role},
    identity,
    listener::{Cut, Guarded},
};
use crate::{
    id::NodeId,
    net::{Listener, Net, Stream},
};

/// Judges a server's certificate as a client's would be, whatever host it is for: whom it names is looked at afterwards.
pub(super) struct AnyName(Arc<dyn ClientCertVerifier>);

impl AnyName {
    pub fn new(verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self(verifier)
    }
}

impl fmt::Debug for AnyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyName")
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now).map(|_| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        None
    }
}

/// A network whose connections are encrypted and lead to the node that was meant.
pub struct TlsNet {
    inner: Arc<dyn Net>,
    certificates: Arc<Certificates>,
}

impl TlsNet {
    /// Over this network, with these certificates of a node.
    pub fn new(inner: Arc<dyn Net>, certificates: Arc<Certificates>) -> Self {
        Self { inner, certificates }
    }

    async fn encrypted(&self, node: Option<NodeId>, address: &str) -> io::Result<Stream> {
        let Role::Peer { cluster_name, .. } = self.certificates.role() else {
            return Err(io::Error::other("these certificates are not those of a node"));
        };
        let client = self.certificates.client().ok_or_else(|| io::Error::other("no authority of nodes is named"))?;
        let readings = self.certificates.readings();
        let stream = self.inner.connect(address).await?;
        // Looked at by nobody: the name that counts is in the certificate, and is a node's.
        let any = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
        let stream = TlsConnector::from(client).connect(any, stream).await?;
        let chain: Vec<CertificateDer<'static>> = {
            let (_, session) = stream.get_ref();
            session.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect()
        };
        let shown = identity::shown(&chain).map_err(io::Error::other)?;
        let named = identity::node_of(&shown, cluster_name);
        if named.is_none() || node.is_some_and(|wanted| named != Some(wanted)) {
            let wanted = node.map_or_else(|| "a node".to_owned(), |node| format!("node {node}"));
            let reason = format!("{address} shows no certificate of {wanted} of cluster {cluster_name}");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        let cut = Cut::new(Arc::clone(&self.certificates), readings, Some((chain, Arc::new(shown))), None);
        Ok(Box::new(Guarded::new(stream, cut)))
    }
}

impl Net for TlsNet {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(self.encrypted(None, address))
    }

    fn connect_to<'a>(&'a self, node: NodeId, address: &'a str) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(self.encrypted(Some(node), address))
    }

    /// Not over this one: a port is listened on first, and encrypted by [`TlsListener`](super::TlsListener).
    fn listen(&self, _: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
