//! Which requests are those of the console's own pages: by the host they were sent to, and by where they come from.

use http::{HeaderMap, HeaderValue, Uri, header};

use crate::{
    auth::{caller::forbidden, origin},
    refusal::Refusal,
};

/// The names under which the console is reached.
pub(super) struct Guard {
    hosts: Vec<String>,
    scheme: &'static str,
}

impl Guard {
    /// `own`: addresses as HOST:PORT or HOST. `hosts`: further names.
    pub fn new(own: Vec<String>, hosts: Vec<String>, is_encrypted: bool) -> Self {
        let own = own.iter().map(|address| origin::host_of(address).to_owned());
        Self { hosts: own.chain(hosts).collect(), scheme: if is_encrypted { "https" } else { "http" } }
    }

    /// Refuses a name that somebody else has made lead here.
    pub fn check_host(&self, uri: &Uri, head: &HeaderMap) -> Result<(), Refusal> {
        let authority = origin::authority(uri, head)?;
        let host = origin::host_of(authority);
        let is_known = origin::is_loopback(host) || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host));
        if is_known { Ok(()) } else { Err(forbidden()) }
    }

    /// Refuses a page of an open node to a request that says it comes from another one: whoever reaches such a node may do
    /// everything, with no cookie of its own.
    pub fn check_open(&self, uri: &Uri, head: &HeaderMap) -> Result<(), Refusal> {
        if head.contains_key(header::ORIGIN) { self.check_origin(uri, head) } else { self.check_host(uri, head) }
    }

    /// Refuses what another page sends: an unsafe request says where it comes from, and that must be here.
    pub fn check_origin(&self, uri: &Uri, head: &HeaderMap) -> Result<(), Refusal> {
        self.check_host(uri, head)?;
        let authority = origin::authority(uri, head)?;
        let own = format!("{}://{authority}", self.scheme);
        let is_own = |origin: &[u8]| origin.eq_ignore_ascii_case(own.as_bytes());
        let mut origins = head.get_all(header::ORIGIN).iter().map(HeaderValue::as_bytes);
        let origins = (origins.next(), origins.next());
        let site = head.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_here = match (site, origins) {
            // No page can set this field, nor keep it from being sent. Browsers that tell no referrer, as these pages ask
            // of them, call the origin of their forms null.
            (Some(b"same-origin"), (None, _)) | (Some(b"same-origin"), (Some(b"null"), None)) => true,
            (Some(b"same-origin") | None, (Some(origin), None)) => is_own(origin),
            _ => false,
        };
        if is_here { Ok(()) } else { Err(forbidden()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut head = HeaderMap::new();
        for (name, value) in fields {
            head.append(*name, value.parse().expect("a field"));
        }
        head
    }

    #[test]
    fn only_known_hosts_and_the_own_origin_pass() {
        let guard = Guard::new(vec!["10.1.2.3:7173".into()], vec!["console.example".into()], false);
        let host = |host: &str| guard.check_host(&Uri::from_static("/console"), &head(&[("host", host)])).is_ok();
        for known in ["127.0.0.1:1", "localhost:9", "[::1]:1", "10.1.2.3:7173", "CONSOLE.example"] {
            assert!(host(known), "{known}");
        }
        for other in ["evil.example", "10.1.2.4:7173", "console.example.evil", ""] {
            assert!(!host(other), "{other}");
        }
        let sent = |fields: &[(&'static str, &str)]| {
            let mut all = vec![("host", "127.0.0.1:7173")];
            all.extend_from_slice(fields);
            guard.check_origin(&Uri::from_static("/console/resolve"), &head(&all)).is_ok()
        };
        assert!(sent(&[("origin", "http://127.0.0.1:7173")]));
        assert!(sent(&[("sec-fetch-site", "same-origin")]));
        for other in ["http://127.0.0.1:7174", "https://127.0.0.1:7173", "http://evil.example", "null"] {
            assert!(!sent(&[("origin", other)]), "{other}");
            assert!(!sent(&[("origin", other), ("sec-fetch-site", "cross-site")]), "{other}");
            let is_form = other == "null";
            assert_eq!(sent(&[("origin", other), ("sec-fetch-site", "same-origin")]), is_form, "{other}");
        }
        assert!(!sent(&[("origin", "http://127.0.0.1:7173"), ("sec-fetch-site", "same-site")]));
        assert!(!sent(&[]), "whoever does not say where it comes from");
        assert!(!sent(&[("sec-fetch-site", "cross-site")]));
        assert!(!sent(&[("origin", "http://127.0.0.1:7173"), ("origin", "http://127.0.0.1:7173")]));
    }
}
