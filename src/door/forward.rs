//! What a proxy changes of a message on its way, and which messages it takes at all.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version, header, request, uri};
use http_body_util::BodyExt;
use hyper::body::Frame;

use super::{
    body::{self, Body},
    connect::Protocol,
    problem::Problem,
    replay::{IDEMPOTENT_REPLAYED, OWN_PREFIX},
    route::IDEMPOTENCY_KEY,
};
use crate::refusal::Code;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// What concerns one connection alone.
const OF_ONE_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade", "http2-settings"];
/// What `Connection` can't take away: it would change what the message means to whoever comes next.
const STAYS: [&str; 7] =
    ["authorization", "content-encoding", "content-length", "content-type", "cookie", "host", "idempotency-key"];

/// Refuses what two readers could read in two ways.
pub(super) fn check(head: &request::Parts) -> Result<(), Problem> {
    let invalid = |detail: &'static str| Err(Problem::new(Code::InvalidArgument, detail));
    if head.method == Method::CONNECT {
        return invalid("this is no tunnel");
    }
    let hosts = head.headers.get_all(header::HOST).iter().count();
    if hosts > 1 {
        return invalid("there is more than one Host");
    }
    match (head.version, head.uri.authority()) {
        (Version::HTTP_11, None) if hosts == 0 => return invalid("there is no Host"),
        (Version::HTTP_2, Some(authority))
            if head.headers.get(header::HOST).is_some_and(|host| host != authority.as_str()) =>
        {
            return invalid("Host is not the authority");
        }
        _ => {}
    }
    let mut codings = head.headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() || head.headers.contains_key(header::CONTENT_LENGTH) {
            return invalid("Transfer-Encoding must be one chunked, without Content-Length");
        }
    }
    Ok(())
}

/// Whether the request asks for another protocol on its connection.
pub(super) fn asks_for_upgrade(head: &request::Parts) -> bool {
    head.version == Version::HTTP_11
        && head.headers.contains_key(header::UPGRADE)
        && named_in_connection(&head.headers).any(|name| name == header::UPGRADE)
}

/// The head as it goes on to the upstream.
pub(super) fn onward(head: &request::Parts, from: IpAddr, scheme: &'static str) -> request::Parts {
    let mut headers = head.headers.clone();
    let takes_trailers = takes_trailers(&headers);
    strip(&mut headers);
    if takes_trailers {
        // It is true of the next hop as well: what comes behind an answer is passed on.
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    drop_own(&mut headers);
    if let Some(authority) = head.uri.authority() {
        // Of a request-target with an authority, that is the host, whatever the field says.
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            headers.insert(header::HOST, host);
        }
    }
    // HTTP/2 may send each cookie by itself; HTTP/1.1 has one line.
    if headers.get_all(header::COOKIE).iter().nth(1).is_some() {
        let cookies: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(cookies) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
            headers.insert(header::COOKIE, cookies);
        }
    }
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.append(FORWARDED_HOST, host);
    }
    if let Ok(from) = HeaderValue::from_str(&from.to_canonical().to_string()) {
        headers.append(FORWARDED_FOR, from);
    }
    headers.append(FORWARDED_PROTO, HeaderValue::from_static(scheme));
    headers.append(header::VIA, via(head.version));
    let mut onward = http::Request::new(()).into_parts().0;
    onward.method = head.method.clone();
    onward.uri = target(&head.uri);
    onward.version = Version::HTTP_11;
    onward.headers = headers;
    onward
}

/// Gives a request the form that the connection's protocol wants: of HTTP/2 the host is the target's authority, and of
/// HTTP/1.1 a field.
pub(super) fn shape(request: &mut Request<Body>, protocol: Protocol, scheme: &'static str, address: &str) {
    let target = target(request.uri());
    let headers = request.headers_mut();
    match protocol {
        Protocol::Http1 => {
            if headers.contains_key(header::TE) && !headers.contains_key(header::CONNECTION) {
                headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
            }
            *request.version_mut() = Version::HTTP_11;
        }
        Protocol::Http2 => {
            headers.remove(header::CONNECTION);
            let host = headers.remove(header::HOST);
            let authority = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or(address);
            let built = |authority: &str| {
                uri::Builder::new().scheme(scheme).authority(authority).path_and_query(target.to_string()).build()
            };
            if let Ok(absolute) = built(authority).or_else(|_| built(address)) {
                *request.uri_mut() = absolute;
            }
            *request.version_mut() = Version::HTTP_2;
        }
    }
}

/// Whether the sender of these fields takes what comes behind an answer.
fn takes_trailers(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::TE).iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .any(|coding| coding.split(';').next().is_some_and(|coding| coding.trim().eq_ignore_ascii_case("trailers")))
}

/// A body whose trailers carry nothing that counts before it: no key, nothing of the door's own, nothing of one hop.
pub(super) fn behind<B>(body: B, keys: &[HeaderName]) -> Body
where
    B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<body::BoxError>,
{
    let keys = keys.to_vec();
    body::boxed(body.map_frame(move |frame| match frame.into_trailers() {
        Ok(mut trailers) => {
            strip(&mut trailers);
            drop_own(&mut trailers);
            for name in keys.iter().chain([&IDEMPOTENCY_KEY, &header::HOST, &header::CONTENT_LENGTH]) {
                trailers.remove(name);
            }
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }))
}

fn drop_own(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(OWN_PREFIX)).cloned().collect();
    own.iter().for_each(|name| drop(headers.remove(name)));
}

/// An answer as it goes back.
pub(super) fn back(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    strip(&mut head.headers);
    head.headers.remove(IDEMPOTENT_REPLAYED);
    head.headers.append(header::VIA, via(head.version));
    // Each hop has its own.
    head.version = Version::HTTP_11;
    Response::from_parts(head, body)
}

/// Origin form: path and query as received.
fn target(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned();
    path.map_or_else(|| Uri::from_static("/"), Uri::from)
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2.0 semel",
        Version::HTTP_10 => "1.0 semel",
        _ => "1.1 semel",
    })
}

/// Takes away what concerns one connection alone.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = named_in_connection(headers).filter(|name| !STAYS.contains(&name.as_str())).collect();
    named.iter().for_each(|name| drop(headers.remove(name)));
    OF_ONE_HOP.iter().for_each(|name| drop(headers.remove(*name)));
}

fn named_in_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + '_ {
    let lines = headers.get_all(header::CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).filter_map(|name| name.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(request: http::request::Builder) -> request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn hop_by_hop_fields_end_here_and_keys_do_not() {
        let head = head(
            http::Request::post("/a?b")
                .header("Host", "h")
                .header("Connection", "keep-alive, X-Hop, Idempotency-Key, Host")
                .header("X-Hop", "1")
                .header("Keep-Alive", "timeout=5")
                .header("TE", "gzip")
                .header("Idempotency-Key", "k")
                .header("Semel-Fence", "7")
                .header("X-Forwarded-For", "10.0.0.1")
                .header("X-Other", "o"),
        );
        let onward = onward(&head, "192.0.2.1".parse().unwrap(), "http");
        for name in ["connection", "x-hop", "keep-alive", "te", "semel-fence"] {
            assert!(!onward.headers.contains_key(name), "{name}");
        }
        for name in ["host", "idempotency-key", "x-other"] {
            assert!(onward.headers.contains_key(name), "{name}");
        }
        let lines: Vec<_> = onward.headers.get_all("x-forwarded-for").iter().collect();
        assert_eq!(lines, ["10.0.0.1", "192.0.2.1"]);
        assert_eq!(onward.headers["via"], "1.1 semel");
        assert_eq!(onward.uri, "/a?b");
    }

    #[test]
    fn trailers_are_asked_for_where_the_client_takes_them() {
        let onward = |te: &str| {
            let head = head(http::Request::post("/a").header("Host", "h").header("TE", te));
            super::onward(&head, "192.0.2.1".parse().unwrap(), "http").headers.get("te").cloned()
        };
        assert_eq!(onward("gzip, Trailers;q=0.5").unwrap(), "trailers");
        assert_eq!(onward("gzip"), None);
    }

    #[tokio::test]
    async fn nothing_that_counts_before_a_body_counts_behind_it() {
        let trailers = [("idempotency-key", "k"), ("x-key", "k"), ("semel-fence", "1"), ("te", "x"), ("sum", "5")];
        let trailers = trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let frames = [Frame::data(bytes::Bytes::from_static(b"x")), Frame::trailers(trailers)];
        let body = http_body_util::StreamBody::new(tokio_stream::iter(frames.map(Ok::<_, body::BoxError>)));
        let collected = behind(body, &["x-key".parse().unwrap()]).collect().await.unwrap();
        let left: Vec<_> = collected.trailers().unwrap().keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["sum"]);
    }

    #[test]
    fn a_request_has_the_form_of_its_protocol() {
        let request = Request::post("/a?b").header("Host", "shop:1").header("TE", "trailers");
        let mut request = request.body(body::empty()).unwrap();
        shape(&mut request, Protocol::Http2, "https", "real:443");
        assert_eq!(request.uri(), "https://shop:1/a?b");
        assert!(!request.headers().contains_key("host") && request.headers()["te"] == "trailers");
        let mut request = Request::post("/a").header("Host", "a b").body(body::empty()).unwrap();
        shape(&mut request, Protocol::Http2, "http", "real:80");
        assert_eq!(request.uri(), "http://real:80/a", "a host that is none");
        let mut request =
            Request::post("/a").header("Host", "shop").header("TE", "trailers").body(body::empty()).unwrap();
        shape(&mut request, Protocol::Http1, "http", "real:80");
        assert_eq!(
            (request.uri().path(), &request.headers()["connection"]),
            ("/a", &"te".parse::<HeaderValue>().unwrap())
        );
    }

    #[test]
    fn the_authority_is_the_host() {
        let head = head(http::Request::post("http://real:1/a").header("Host", "other"));
        let onward = onward(&head, "192.0.2.1".parse().unwrap(), "http");
        assert_eq!((onward.headers["host"].as_bytes(), onward.uri.path()), (&b"real:1"[..], "/a"));
    }

    #[test]
    fn two_readings_are_refused() {
        let base = || http::Request::post("/a").header("Host", "h");
        assert!(check(&head(base())).is_ok());
        assert!(check(&head(base().header("Transfer-Encoding", "Chunked"))).is_ok());
        for request in [
            base().header("Host", "h"),
            base().header("Transfer-Encoding", "gzip, chunked"),
            base().header("Transfer-Encoding", "chunked").header("Transfer-Encoding", "chunked"),
            base().header("Transfer-Encoding", "chunked").header("Content-Length", "1"),
            http::Request::post("/a"),
            http::Request::connect("h:1").header("Host", "h"),
        ] {
            assert!(check(&head(request)).is_err());
        }
    }

    #[test]
    fn cookies_are_one_line() {
        let head = head(http::Request::post("/").header("Cookie", "a=1").header("Cookie", "b=2"));
        let onward = onward(&head, "192.0.2.1".parse().unwrap(), "http");
        assert_eq!(onward.headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }
}
