//! Callers that show a certificate, and those that show nothing good.

use super::{
    ConfigError, Source,
    settings::{AuthSettings, LimitSettings},
};
use crate::{
    auth::certificate::{CertifiedCaller, Described},
    limits,
};

impl Source {
    /// How many bad credentials an address may show, a second.
    pub(super) fn failures(&self, limits: &LimitSettings) -> Result<u32, ConfigError> {
        let key = "limits.authentication_failures_per_s";
        let per_s = self.within(key, limits.authentication_failures_per_s, limits::AUTHENTICATION_FAILURES)?;
        Ok(u32::try_from(per_s).expect("the limit fits a u32"))
    }

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
