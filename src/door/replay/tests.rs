//! From answers to outcomes and back.

use std::time::{Duration, UNIX_EPOCH};

use http_body_util::BodyExt;

use super::*;

fn head(status: u16, lines: &[(&str, &str)]) -> response::Parts {
    let mut response = Response::builder().status(status);
    for (name, value) in lines {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap().into_parts().0
}

fn recording() -> Recording {
    Recording { more: vec!["x-request-id".parse().unwrap()], origin: Some("https://a.example".parse().unwrap()) }
}

async fn again(outcome: &Outcome, origin: Option<&str>) -> (response::Parts, Bytes) {
    let origin = origin.map(|origin| origin.parse().unwrap());
    let (head, body) = replay(outcome, origin.as_ref()).unwrap().into_parts();
    (head, body.collect().await.unwrap().to_bytes())
}

#[tokio::test]
async fn what_is_allowed_comes_back_and_nothing_else() {
    let head = head(
        201,
        &[
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Location", "/orders/7"),
            ("Link", "</a>; rel=x"),
            ("Link", "</b>; rel=y"),
            ("ETag", "\"1\""),
            ("X-Request-Id", "r"),
            ("X-Other", "o"),
            ("Set-Cookie", "session=1"),
            ("Date", "Mon, 30 Nov 2026 00:00:00 GMT"),
            ("WWW-Authenticate", "Basic"),
            ("Semel-Other", "x"),
        ],
    );
    let mut outcome = recording().outcome(&head, Some(Bytes::from_static(b"\x00\xff")), None);
    outcome.completed_at = Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_120));
    let (head, body) = again(&outcome, Some("https://a.example")).await;
    assert_eq!((head.status.as_u16(), &body[..]), (201, &b"\x00\xff"[..]));
    let fields: BTreeMap<_, _> =
        head.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let wanted = BTreeMap::from([
        ("content-type", "text/plain; charset=utf-8"),
        ("location", "/orders/7"),
        ("link", "</a>; rel=x, </b>; rel=y"),
        ("etag", "\"1\""),
        ("x-request-id", "r"),
        ("idempotent-replayed", "true"),
        ("semel-completed-at", "2023-11-14T22:13:20.120Z"),
    ]);
    assert_eq!(fields, wanted);
}

#[tokio::test]
async fn what_speaks_to_one_origin_is_told_to_it_alone() {
    let head = head(200, &[("Access-Control-Allow-Origin", "https://a.example"), ("Vary", "Origin")]);
    let outcome = recording().outcome(&head, Some(Bytes::new()), None);
    let count = async |origin| again(&outcome, origin).await.0.headers.len();
    assert_eq!(count(Some("https://a.example")).await, 3);
    assert_eq!(count(Some("https://b.example")).await, 1);
    assert_eq!(count(None).await, 1);
}

#[test]
fn what_does_not_fit_is_not_kept_and_says_so() {
    let many: Vec<(String, String)> = (0..3).map(|at| (format!("x-{at}"), "v".repeat(6000))).collect();
    let lines: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let more = many.iter().map(|(name, _)| name.parse().unwrap()).collect();
    let recording = Recording { more, origin: None };
    let kept = |lines: &[(&str, &str)], body| is_stored(&recording.outcome(&head(200, lines), body, None));
    assert!(kept(&lines[..2], Some(Bytes::new())));
    assert!(!kept(&lines, Some(Bytes::new())), "more than an outcome holds");
    assert!(!kept(&[], None), "no body");
    let mut latin = head(200, &[]);
    latin.headers.insert("location", HeaderValue::from_bytes(b"/\xe9").unwrap());
    assert!(!is_stored(&recording.outcome(&latin, Some(Bytes::new()), None)), "not text");
}

#[test]
fn cookies_and_the_doors_own_can_not_be_recorded() {
    for name in ["set-cookie", "content-type", "semel-fence", "date", "connection", "idempotent-replayed"] {
        assert!(!is_recordable(&name.parse().unwrap()), "{name}");
    }
    assert!(is_recordable(&"x-request-id".parse().unwrap()));
}

#[test]
fn an_outcome_of_no_http_is_no_answer() {
    for status in [-1, 0, 42, 100, 101, 1000] {
        assert!(replay(&Outcome::new(status), None).is_none(), "{status}");
    }
}

#[tokio::test]
async fn the_status_of_grpc_comes_back_behind_the_body_and_no_other_trailers() {
    let trailers: HeaderMap = [("grpc-status".parse().unwrap(), "0".parse().unwrap())].into_iter().collect();
    for (kind, kept) in [("application/grpc", Some(&trailers)), ("text/plain", None)] {
        let head = head(200, &[("Content-Type", kind)]);
        let outcome = recording().outcome(&head, Some(Bytes::from_static(b"x")), Some(&trailers));
        let collected = replay(&outcome, None).unwrap().into_body().collect().await.unwrap();
        assert_eq!(collected.trailers(), kept, "{kind}");
    }
}
