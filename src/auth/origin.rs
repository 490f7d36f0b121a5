//! Keeps web pages away from an open node: a page in a developer's browser can send requests to loopback, and by a
//! name that it makes resolve to 127.0.0.1 it can even read the answers.

use http::{HeaderMap, Uri, header};

use super::caller::forbidden;
use crate::refusal::Refusal;

/// Refuses, on an open node that listens on loopback, a request whose Host isn't loopback or whose Origin isn't the
/// request's own.
///
/// # Errors
/// `forbidden`.
pub fn check_open(uri: &Uri, head: &HeaderMap) -> Result<(), Refusal> {
    let authority = authority(uri, head)?;
    if !is_loopback(host_of(authority)) {
        return Err(forbidden());
    }
    let mut origins = head.get_all(header::ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (None, _) => Ok(()),
        (Some(origin), None) if same_origin(origin.as_bytes(), authority) => Ok(()),
        _ => Err(forbidden()),
    }
}

/// Which host and port a request was sent to, where it says so once.
///
/// # Errors
/// `forbidden`.
pub(crate) fn authority<'a>(uri: &'a Uri, head: &'a HeaderMap) -> Result<&'a str, Refusal> {
    let mut hosts = head.get_all(header::HOST).iter();
    match (uri.authority(), hosts.next(), hosts.next()) {
        // HTTP/2 carries it in the target; a Host field beside it must say the same.
        (Some(authority), None, None) => Ok(authority.as_str()),
        (Some(authority), Some(host), None) if host == authority.as_str() => Ok(authority.as_str()),
        (None, Some(host), None) => host.to_str().map_err(|_| forbidden()),
        _ => Err(forbidden()),
    }
}

fn same_origin(origin: &[u8], authority: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| {
        origin.strip_prefix(scheme.as_bytes()).is_some_and(|rest| rest.eq_ignore_ascii_case(authority.as_bytes()))
    })
}

/// The host of `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(crate) fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(host, _)| host);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// `localhost`, or an address in 127.0.0.0/8 or ::1.
pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(host: Option<&str>, origin: Option<&str>) -> bool {
        let mut head = HeaderMap::new();
        if let Some(host) = host {
            head.insert(header::HOST, host.parse().unwrap());
        }
        if let Some(origin) = origin {
            head.insert(header::ORIGIN, origin.parse().unwrap());
        }
        check_open(&Uri::from_static("/v1/claim"), &head).is_ok()
    }

    #[test]
    fn only_loopback_hosts_pass() {
        for host in ["127.0.0.1:7171", "127.8.9.1", "localhost:7171", "LOCALHOST", "[::1]:7171", "[::1]"] {
            assert!(judged(Some(host), None), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example:7171", "10.0.0.1:7171", "[::2]", "localhost.evil", "", ":1"]
        {
            assert!(!judged(Some(host), None), "{host}");
        }
        assert!(!judged(None, None));
    }

    #[test]
    fn only_the_requests_own_origin_passes() {
        assert!(judged(Some("127.0.0.1:7171"), Some("http://127.0.0.1:7171")));
        for origin in ["http://evil.example", "http://127.0.0.1:8080", "http://localhost:7171", "null", "http://"] {
            assert!(!judged(Some("127.0.0.1:7171"), Some(origin)), "{origin}");
        }
    }

    #[test]
    fn the_target_of_http_2_counts() {
        let head = HeaderMap::new();
        assert!(check_open(&Uri::from_static("http://127.0.0.1:7171/v1/claim"), &head).is_ok());
        assert!(check_open(&Uri::from_static("http://evil.example/v1/claim"), &head).is_err());
        let mut two = HeaderMap::new();
        two.insert(header::HOST, "evil.example".parse().unwrap());
        assert!(check_open(&Uri::from_static("http://127.0.0.1:7171/"), &two).is_err());
    }
}
