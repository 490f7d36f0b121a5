//! What protects callers' secrets: certificates of the ports, keys of what is stored.

use std::{path::PathBuf, time::Duration};

use super::{
    ConfigError, Source,
    settings::{LimitSettings, ListenerTlsSettings, SealSettings, TlsSettings},
};
use crate::{
    limits,
    seal::key_file::KeySource,
    tls::{Asked, TlsFiles},
};

/// Encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// How often files are looked at.
    pub reload: Duration,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Handshakes at once on each port.
    pub handshakes_max: usize,
    /// How old a connection may get, about.
    pub age_max: Duration,
    /// Of the clients' port; none: it is not encrypted.
    pub client: Option<TlsFiles>,
    /// Of the other nodes' port.
    pub peer: Option<TlsFiles>,
    /// Of the operators' port.
    pub admin: Option<TlsFiles>,
}

impl Default for Tls {
    /// Nothing is encrypted.
    fn default() -> Self {
        Self {
            reload: Duration::from_secs(limits::RELOAD_S_DEFAULT),
            handshake: Duration::from_millis(limits::HANDSHAKE_TIMEOUT_MS_DEFAULT),
            handshakes_max: usize::try_from(limits::HANDSHAKES_DEFAULT)
                .expect("the default fits every machine's usize"),
            age_max: Duration::from_secs(limits::CONNECTION_AGE_S_DEFAULT),
            client: None,
            peer: None,
            admin: None,
        }
    }
}

impl Source {
    pub(super) fn tls(&self, tls: &TlsSettings, limits: &LimitSettings) -> Result<Tls, ConfigError> {
        let seconds = |key, value, bounds| self.within(key, value, bounds).map(Duration::from_secs);
        let timeout =
            self.within("limits.handshake_timeout_ms", limits.handshake_timeout_ms, limits::HANDSHAKE_TIMEOUT_MS)?;
        let handshakes = self.within("limits.handshakes_max", limits.handshakes_max, 1..=limits::COUNT_LIMIT)?;
        let peer = self.tls_files("tls.peer", &tls.peer)?;
        if peer.as_ref().is_some_and(|peer| peer.ca.is_none()) {
            return Err(self.value("tls.peer", "needs `ca`: nodes are known by their certificates"));
        }
        Ok(Tls {
            reload: seconds("tls.reload_s", tls.reload_s, limits::RELOAD_S)?,
            handshake: Duration::from_millis(timeout),
            handshakes_max: usize::try_from(handshakes).expect("the limit fits every machine's usize"),
            age_max: seconds("tls.connection_age_max_s", tls.connection_age_max_s, limits::CONNECTION_AGE_S)?,
            client: self.tls_files("tls.client", &tls.client)?,
            peer: peer.map(|peer| TlsFiles { asked: Asked::Required, ..peer }),
            admin: self.tls_files("tls.admin", &tls.admin)?,
        })
    }

    fn tls_files(&self, table: &'static str, of: &ListenerTlsSettings) -> Result<Option<TlsFiles>, ConfigError> {
        let asked = match of.client_certificate.as_str() {
            "optional" => Asked::Optional,
            "required" => Asked::Required,
            _ => return Err(self.value(table, "client_certificate must be \"optional\" or \"required\"")),
        };
        let path = |text: &Option<String>| text.as_ref().map(PathBuf::from);
        match (path(&of.cert), path(&of.key)) {
            (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key, ca: path(&of.ca), crl: path(&of.crl), asked })),
            (None, None) if of.ca.is_none() && of.crl.is_none() => Ok(None),
            _ => Err(self.value(table, "needs both `cert` and `key`")),
        }
    }

    pub(super) fn seal(&self, seal: &SealSettings) -> Result<Option<KeySource>, ConfigError> {
        match (seal.key_file.as_deref(), seal.key_command.as_deref()) {
            (None, None) => Ok(None),
            (Some(""), None) => Err(self.value("seal.key_file", "must name a file")),
            (Some(path), None) => Ok(Some(KeySource::File(PathBuf::from(path)))),
            (None, Some(words)) if words.first().is_none_or(String::is_empty) => {
                Err(self.value("seal.key_command", "must name a program, with its arguments behind it"))
            }
            (None, Some(words)) => Ok(Some(KeySource::Command(words.to_vec()))),
            (Some(_), Some(_)) => Err(self.value("seal.key_command", "and `seal.key_file` exclude each other")),
        }
    }
}
