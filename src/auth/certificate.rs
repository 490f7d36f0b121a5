//! Callers by certificate: whom the configuration names, by exactly one name of theirs.

use std::sync::Arc;

use super::{
    caller::{Caller, Credential},
    grant::{Grant, GrantError},
};
use crate::{limits, net::Shown};

/// A name as a certificate carries it (subject alternative name).
#[derive(Clone, Debug, PartialEq, Eq)]
enum San {
    Uri(String),
    Dns(String),
}

/// What is said of a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// Its URI.
    pub uri: Option<&'a str>,
    /// Or its DNS name.
    pub dns: Option<&'a str>,
    /// Whose records; none: the cluster's.
    pub tenant: Option<&'a str>,
    /// Patterns of operations.
    pub operations: &'a [String],
    /// What it may.
    pub permissions: &'a [String],
}

/// Why it is none.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Neither name, or both.
    #[error("a certificate is named by `uri` or by `dns`, by one of them, whole")]
    Name,
    /// Two with one name: whose call would it be?
    #[error("it is named twice")]
    Twice,
    /// Of what it may.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

/// A caller that shows a certificate instead of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedCaller {
    san: San,
    grant: Grant,
}

impl CertifiedCaller {
    /// The callers that are described.
    ///
    /// # Errors
    /// The place of the first that is none, from 1, and why.
    pub fn all<'a>(described: impl IntoIterator<Item = Described<'a>>) -> Result<Vec<Self>, (usize, CertificateError)> {
        let mut all: Vec<Self> = Vec::new();
        for (at, one) in described.into_iter().enumerate() {
            let parsed = Self::parse(one).map_err(|error| (at + 1, error))?;
            if all.iter().any(|other| other.san == parsed.san) {
                return Err((at + 1, CertificateError::Twice));
            }
            all.push(parsed);
        }
        Ok(all)
    }

    fn parse(of: Described<'_>) -> Result<Self, CertificateError> {
        let san = match (of.uri, of.dns) {
            (Some(uri), None) if !uri.is_empty() => San::Uri(uri.to_owned()),
            (None, Some(dns)) if !dns.is_empty() => San::Dns(dns.to_owned()),
            _ => return Err(CertificateError::Name),
        };
        Ok(Self { san, grant: Grant::parse(of.tenant, of.operations, of.permissions)? })
    }

    /// The caller who has shown this certificate; none where nobody of it is named.
    pub(super) fn find(all: &[Self], shown: &Shown) -> Option<Caller> {
        let is_shown = |one: &&Self| match &one.san {
            San::Uri(uri) => shown.uris.contains(uri),
            San::Dns(name) => shown.names.iter().any(|own| own.eq_ignore_ascii_case(name)),
        };
        all.iter().find(is_shown).map(Self::caller)
    }

    fn caller(&self) -> Caller {
        let (San::Uri(name) | San::Dns(name)) = &self.san;
        let actor: String = format!("certificate:{name}").chars().take(limits::ACTOR_BYTES_MAX).collect();
        let Grant { scope, operations, permissions } = self.grant.clone();
        Caller { scope, actor: Arc::from(actor), operations, permissions, credential: Some(Credential::Certificate) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{auth::Method, id::Time};

    fn shown(uris: &[&str], names: &[&str]) -> Shown {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Shown { uris: owned(uris), names: owned(names), not_after: Time(1) }
    }

    fn described<'a>(uri: Option<&'a str>, dns: Option<&'a str>, words: &'a [String]) -> Described<'a> {
        Described { uri, dns, tenant: Some("acme"), operations: words, permissions: words }
    }

    #[test]
    fn a_certificate_is_known_by_one_whole_name() {
        let words = ["claim".to_owned()];
        let uri = "semel://semel/client/billing";
        let one = described(Some(uri), None, &words);
        let all = CertifiedCaller::all([one, described(None, Some("billing.example"), &words)]).unwrap();
        let found = |uris: &[&str], names: &[&str]| CertifiedCaller::find(&all, &shown(uris, names));
        let caller = found(&["semel://semel/client/other", uri], &[]).expect("it is named");
        assert_eq!(caller.actor(None), "certificate:semel://semel/client/billing");
        assert!(caller.permit(Method::Claim).is_ok() && caller.permit(Method::List).is_err());
        assert!(found(&[], &["Billing.Example"]).is_some());
        for other in ["semel://semel/client/billing2", "semel://semel/client/Billing", "semel://semel/client"] {
            assert!(found(&[other], &["x.billing.example"]).is_none(), "{other}");
        }
        for bad in
            [described(None, None, &words), described(Some(uri), Some("x"), &words), described(Some(""), None, &words)]
        {
            assert!(matches!(CertifiedCaller::all([bad]), Err((1, CertificateError::Name))));
        }
        assert!(matches!(CertifiedCaller::all([one, one]), Err((2, CertificateError::Twice))));
        let wrong = ["rule".to_owned()];
        let wrong = Described { permissions: &wrong, ..one };
        assert!(matches!(CertifiedCaller::all([wrong]), Err((1, CertificateError::Grant(GrantError::Permissions)))));
    }
}
