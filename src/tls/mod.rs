//! TLS 1.3, on every port of a node and in every client; nothing older, no early data, no resumption.
//!
//! `dial` a client's side: whom it trusts and what it shows · `files` a listener's certificates, read again while it runs ·
//! `identity` whom a certificate names · `listener`, `peers` what stands under the doors instead of plain TCP: who uses
//! [`Listener`](crate::net::Listener) and [`Net`](crate::net::Net) notices no difference · `issue` certificates of a set of
//! one's own (`semel certs`).

mod dial;
#[cfg(feature = "server")]
mod files;
#[cfg(feature = "server")]
mod identity;
#[cfg(feature = "server")]
pub mod issue;
#[cfg(feature = "server")]
mod listener;
#[cfg(feature = "server")]
mod peers;
#[cfg(test)]
#[cfg(feature = "server")]
mod tests;

use std::{io, path::PathBuf, sync::Arc};

pub use dial::{ClientStream, Trust};
#[cfg(feature = "server")]
pub use files::{Asked, Certificates, Role, TlsFiles};
#[cfg(feature = "server")]
pub use listener::{Bounds, TlsListener};
#[cfg(feature = "server")]
pub use peers::TlsNet;
use rustls::{
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A key that others on this machine can read.
    #[error("{}: the key can be read by group or others; chmod 600", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// No PEM, or nothing of what was looked for in it.
    #[error("{what} holds no {wanted} in PEM")]
    Pem {
        /// Which file or argument.
        what: String,
        /// What was looked for.
        wanted: &'static str,
    },
    /// Certificate, key and authorities don't work together.
    #[error("{what}: {reason}")]
    Unfit {
        /// Which file or argument.
        what: String,
        /// Why.
        reason: String,
    },
    /// One authority for clients and peers: whoever it certifies as a client could then be a node.
    #[error("{} and {} have a certificate in common: clients and peers need authorities of their own", client.display(), peer.display())]
    SharedAuthority {
        /// That of clients.
        client: PathBuf,
        /// That of peers.
        peer: PathBuf,
    },
}

/// The cryptography underneath.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates of a PEM text, at least one.
fn certificates(what: &str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let missing = || TlsError::Pem { what: what.to_owned(), wanted: "certificate" };
    found.ok().filter(|found| !found.is_empty()).ok_or_else(missing)
}

/// The key of a PEM text.
fn private_key(what: &str, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::Pem { what: what.to_owned(), wanted: "private key" },
        // What the parser says could quote the key.
        _ => TlsError::Unfit { what: what.to_owned(), reason: "the private key can't be read".to_owned() },
    })
}

fn unfit(what: impl std::fmt::Display, reason: impl std::fmt::Display) -> TlsError {
    TlsError::Unfit { what: what.to_string(), reason: reason.to_string() }
}
