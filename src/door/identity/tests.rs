//! Operations and fingerprints of requests.

use proptest::prelude::*;

use super::*;

fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap())).collect()
}

fn of(uri: &str, lines: &[(&str, &str)], body: &[u8]) -> Fingerprint {
    with(&Route::default(), uri, lines, body)
}

fn with(route: &Route, uri: &str, lines: &[(&str, &str)], body: &[u8]) -> Fingerprint {
    fingerprint(route, &Method::POST, &uri.parse().unwrap(), &fields(lines), body)
}

const JSON: &[(&str, &str)] = &[("content-type", "application/json; charset=utf-8")];

#[test]
fn operations_are_method_and_path_or_their_digest() {
    assert_eq!(operation(&Method::POST, "/orders/7"), "POST /orders/7");
    let fits = format!("/{}", "a".repeat(122));
    assert_eq!(operation(&Method::POST, &fits), format!("POST {fits}"));
    let long = operation(&Method::POST, &format!("{fits}b"));
    assert_eq!(long.len(), "POST ".len() + 60 + 1 + 32);
    assert_ne!(long, operation(&Method::POST, &format!("{fits}c")));
    // sha256("/" + 123 × "a" …) begins so: the form is the contract's, and must not drift.
    let digest = Sha256::digest(format!("{fits}b"));
    assert_eq!(long, format!("POST {}~{:032x}", &fits[..60], u128::from_be_bytes(digest[..16].try_into().unwrap())));
    assert!(operation(&Method::POST, "/é").starts_with("POST /??~"));
}

#[test]
fn the_query_counts_as_received() {
    let all = ["/a", "/a?", "/a?x=1", "/a?x=1&y=2", "/a?y=2&x=1", "/b", "/a%2f"].map(|uri| of(uri, &[], b""));
    for (at, one) in all.iter().enumerate() {
        assert!(all[at + 1..].iter().all(|other| other != one), "{at}");
    }
    assert_eq!(of("http://host/a?x=1", &[], b""), of("/a?x=1", &[], b""), "absolute form is origin form");
    assert_eq!(of("/a", &[("host", "x")], b""), of("/a", &[("host", "y")], b""));
}

#[test]
fn json_counts_by_value() {
    let one = of("/a", JSON, br#"{"amount": 100, "to": "x"}"#);
    assert_eq!(of("/a", JSON, br#"{"to":"\u0078","amount":1e2}"#), one);
    assert_eq!(of("/a", &[("content-type", "application/vnd.api+JSON")], br#"{"to":"x","amount":100}"#), one);
    assert_ne!(of("/a", JSON, br#"{"amount": 101, "to": "x"}"#), one);
    let raw = |body| (of("/a", &[], body), of("/a", JSON, body));
    let (bytes, json) = raw(br#"{"amount": 100, "to": "x"}"#);
    assert_ne!(bytes, json);
    for twice in [&br#"{"a":1,"a":2}"#[..], b"{", b"", b"\xff"] {
        let (bytes, json) = raw(twice);
        assert_eq!(bytes, json, "what has two readings or none is taken as it came");
    }
    let encoded = [JSON[0], ("content-encoding", "gzip")];
    assert_eq!(of("/a", &encoded, b"{}"), of("/a", &[], b"{}"));
}

#[test]
fn chosen_fields_and_left_out_members() {
    let route = Route {
        fingerprint_headers: vec!["x-session-id".parse().unwrap()],
        fingerprint_without: Ignore::new(["/client_ts"]).unwrap(),
        ..Route::default()
    };
    let one = with(&route, "/a", JSON, br#"{"amount":1,"client_ts":1}"#);
    assert_eq!(with(&route, "/a", JSON, br#"{"amount":1,"client_ts":2}"#), one);
    assert_ne!(with(&route, "/a", &[JSON[0], ("x-session-id", "1")], br#"{"amount":1}"#), one);
    assert_ne!(with(&route, "/a", &[JSON[0], ("x-session-id", "")], br#"{"amount":1}"#), one);
}

#[test]
fn multipart_counts_by_its_parts() {
    let body = |boundary: &str| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--{boundary}--\r\n")
            .into_bytes()
    };
    let of = |boundary: &str, body: &[u8]| {
        of("/a", &[("content-type", &format!("multipart/form-data; boundary={boundary}"))], body)
    };
    assert_eq!(of("one", &body("one")), of("two", &body("two")));
    assert_ne!(of("one", &body("one")), of("one", &body("two")), "not its parts: taken as it came");
}

proptest! {
    #[test]
    fn operations_always_fit(method in "[A-Z]{1,16}", path in "/[ -~é]{0,300}") {
        let operation = operation(&method.parse().unwrap(), &path);
        prop_assert!(operation.len() <= limits::OPERATION_BYTES_MAX);
        prop_assert!(operation.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
    }

    #[test]
    fn any_body_has_a_fingerprint(kind in "(application/json|multipart/form-data; boundary=b|[ -~]{0,20})", body in prop::collection::vec(any::<u8>(), 0..100)) {
        let first = of("/a", &[("content-type", kind.trim())], &body);
        prop_assert_eq!(of("/a", &[("content-type", kind.trim())], &body), first);
    }
}
