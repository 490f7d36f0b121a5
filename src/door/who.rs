//! Whose a request is: where the proxy finds tenant and principal.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderName, header, request};

use super::{engine::Who, problem::Problem};
use crate::{
    id::{Principal, Tenant},
    json::Json,
    net::Shown,
    refusal::Code,
};

/// Where a name comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The same for everybody.
    Fixed(String),
    /// A field, set by whoever stands before the door.
    Header(HeaderName),
    /// A claim of the bearer's token. Its signature is not looked at here: whoever authorizes does.
    JwtClaim(String),
    /// The certificate that the client shows: its first DNS name, else its first URI.
    ClientCertificate,
}

/// Where tenant and principal come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The tenant.
    pub tenant: Source,
    /// The principal, if any.
    pub principal: Option<Source>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { tenant: Source::Fixed("default".to_owned()), principal: None }
    }
}

impl Sources {
    /// Whose request this is.
    ///
    /// # Errors
    /// `invalid_argument` where it doesn't say so as it must.
    pub(super) fn who(&self, head: &request::Parts) -> Result<Who, Problem> {
        let invalid = |what: &str| {
            let detail = format!("the request doesn't say whose it is: the {what} is missing or none");
            Problem::new(Code::InvalidArgument, detail)
        };
        let tenant = self.tenant.find(head).filter(|tenant| Tenant::parse(tenant).is_ok());
        let tenant = tenant.ok_or_else(|| invalid("tenant"))?;
        let principal = match &self.principal {
            None => None,
            Some(source) => {
                let principal = source.find(head).filter(|name| !name.is_empty() && Principal::parse(name).is_ok());
                Some(principal.ok_or_else(|| invalid("principal"))?)
            }
        };
        Ok(Who { tenant: Some(tenant), principal })
    }
}

impl Source {
    fn find(&self, head: &request::Parts) -> Option<String> {
        match self {
            Source::Fixed(name) => Some(name.clone()),
            Source::Header(name) => {
                let mut lines = head.headers.get_all(name).iter();
                let line = lines.next().filter(|_| lines.next().is_none())?;
                line.to_str().ok().map(|line| line.trim().to_owned())
            }
            Source::JwtClaim(claim) => jwt_claim(head, claim),
            Source::ClientCertificate => {
                let shown = head.extensions.get::<Arc<Shown>>()?;
                shown.names.first().cloned().or_else(|| shown.uris.first().map(|uri| client(uri).to_owned()))
            }
        }
    }
}

/// The client that a URI of `semel certs` names (`semel://CLUSTER/client/NAME`); any other URI is a name by itself.
fn client(uri: &str) -> &str {
    let named = uri.strip_prefix("semel://").and_then(|rest| rest.split_once("/client/"));
    match named {
        Some((cluster, name)) if !cluster.contains('/') && !name.contains('/') => name,
        _ => uri,
    }
}

fn jwt_claim(head: &request::Parts, claim: &str) -> Option<String> {
    let mut lines = head.headers.get_all(header::AUTHORIZATION).iter();
    let line = lines.next().filter(|_| lines.next().is_none())?.to_str().ok()?;
    let (scheme, token) = line.split_once(' ')?;
    let mut parts = token.trim().split('.');
    let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
    if !scheme.eq_ignore_ascii_case("bearer") || parts.next().is_some() {
        return None;
    }
    let payload = Json::parse(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    payload.member(claim)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&str, &str)]) -> request::Parts {
        let request =
            lines.iter().fold(http::Request::post("/"), |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap().into_parts().0
    }

    fn sources(tenant: Source) -> Sources {
        Sources { tenant, principal: None }
    }

    #[test]
    fn a_field_names_the_tenant_once_or_not_at_all() {
        let sources = sources(Source::Header("x-tenant".parse().unwrap()));
        let tenant = |lines: &[(&str, &str)]| sources.who(&head(lines)).ok().and_then(|who| who.tenant);
        assert_eq!(tenant(&[("X-Tenant", "acme")]).as_deref(), Some("acme"));
        for lines in [&[][..], &[("X-Tenant", "")], &[("X-Tenant", "ACME!")], &[("X-Tenant", "a"), ("X-Tenant", "b")]] {
            assert_eq!(tenant(lines), None, "{lines:?}");
        }
    }

    #[test]
    fn a_certificate_names_it_by_its_first_name() {
        let tenant = |names: &[&str], uris: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let mut head = head(&[]);
            let shown = Shown { names: owned(names), uris: owned(uris), not_after: crate::id::Time(1) };
            head.extensions.insert(Arc::new(shown));
            sources(Source::ClientCertificate).who(&head).ok().and_then(|who| who.tenant)
        };
        assert_eq!(tenant(&["acme", "other"], &["semel://semel/client/third"]).as_deref(), Some("acme"));
        assert_eq!(tenant(&[], &["semel://semel/client/acme"]).as_deref(), Some("acme"));
        for uri in ["semel://semel/node/1", "semel://a/b/client/acme", "semel://semel/client/a/b", "x://a/client/acme"]
        {
            assert_eq!(tenant(&[], &[uri]), None, "{uri} is no name of a tenant");
        }
        assert_eq!(tenant(&[], &[]), None);
        assert!(sources(Source::ClientCertificate).who(&head(&[])).is_err(), "no certificate was shown");
    }

    #[test]
    fn a_claim_of_the_token_names_it() {
        let token = |payload: &str| format!("Bearer e30.{}.sig", URL_SAFE_NO_PAD.encode(payload));
        let sources = sources(Source::JwtClaim("org".to_owned()));
        let tenant = |line: &str| sources.who(&head(&[("Authorization", line)])).ok().and_then(|who| who.tenant);
        assert_eq!(tenant(&token(r#"{"org":"acme"}"#)).as_deref(), Some("acme"));
        for line in ["Basic x", "Bearer x", "Bearer a.b.c", &token("{}"), &token(r#"{"org":1}"#), &token("[]")] {
            assert_eq!(tenant(line), None, "{line}");
        }
    }
}
