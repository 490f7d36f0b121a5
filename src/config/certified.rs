//! Callers that show a certificate.

use super::{ConfigError, Source, settings::AuthSettings};
use crate::auth::certificate::{CertifiedCaller, Described};

impl Source {
    /// The callers that are named by their certificates.
    pub(super) fn certified(&self, auth: &AuthSettings) -> Result<Vec<CertifiedCaller>, ConfigError> {
        let described = auth.certificate.iter().map(|one| Described {
            uri: one.uri.as_deref(),
            dns: one.dns.as_deref(),
            tenant: one.tenant.as_deref(),
            operations: &one.operations,
            permissions: &one.permissions,
        });
        let wrong = |(at, error)| self.value("auth.certificate", &format!("(number {at}): {error}"));
        CertifiedCaller::all(described).map_err(wrong)
    }
}
