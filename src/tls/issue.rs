//! Certificates of a set of one's own: authorities, and what they certify. For development, tests, and clusters without an
//! authority of their own.

use std::{net::IpAddr, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::OffsetDateTime;

use super::{TlsError, unfit};
use crate::id::Time;

/// How long an authority lasts.
const AUTHORITY: Duration = Duration::from_secs(3653 * 24 * 3600);
/// How long before now a certificate begins: clocks differ.
const BEFORE: Duration = Duration::from_secs(3600);

/// A certificate and its key, PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

// A key is shown nowhere.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Issued(secret)")
    }
}

/// What a certificate is for.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// A name for people.
    pub name: String,
    /// The URI that it names, if any.
    pub uri: Option<String>,
    /// Names and addresses of the host.
    pub hosts: Vec<String>,
}

/// Whoever certifies.
pub struct Authority(Issuer<'static, KeyPair>);

fn failed(error: impl std::fmt::Display) -> TlsError {
    unfit("a certificate could not be made", error)
}

fn date(time: Time) -> Result<OffsetDateTime, TlsError> {
    OffsetDateTime::from_unix_timestamp(i64::try_from(time.0 / 1000).unwrap_or(i64::MAX)).map_err(failed)
}

fn params(name: &str, now: Time, lasts: Duration) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date(now)? - BEFORE;
    params.not_after = date(now)? + lasts;
    Ok(params)
}

impl Authority {
    /// A new authority: it, and its certificate and key to keep.
    ///
    /// # Errors
    /// [`TlsError`] where it can't be made.
    pub fn draw(name: &str, now: Time) -> Result<(Self, Issued), TlsError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = params(name, now, AUTHORITY)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let cert = params.self_signed(&key).map_err(failed)?;
        let issued = Issued { cert: cert.pem(), key: key.serialize_pem() };
        Ok((Self(Issuer::new(params, key)), issued))
    }

    /// The authority that was kept so.
    ///
    /// # Errors
    /// [`TlsError`] where it can't be read.
    pub fn of(kept: &Issued) -> Result<Self, TlsError> {
        let unreadable = |error| unfit("the authority", error);
        let key = KeyPair::from_pem(&kept.key).map_err(unreadable)?;
        Ok(Self(Issuer::from_ca_cert_pem(&kept.cert, key).map_err(unreadable)?))
    }

    /// Certifies a subject, for so long from now on.
    ///
    /// # Errors
    /// [`TlsError`] where a name is none, or the certificate can't be made.
    pub fn certify(&self, subject: &Subject, now: Time, lasts: Duration) -> Result<Issued, TlsError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = params(&subject.name, now, lasts)?;
        for host in &subject.hosts {
            let name = match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into().map_err(|error| unfit(host, error))?),
            };
            params.subject_alt_names.push(name);
        }
        if let Some(uri) = &subject.uri {
            params.subject_alt_names.push(SanType::URI(uri.as_str().try_into().map_err(|error| unfit(uri, error))?));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let cert = params.signed_by(&key, &self.0).map_err(failed)?;
        Ok(Issued { cert: cert.pem(), key: key.serialize_pem() })
    }
}
