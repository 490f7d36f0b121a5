//! The same case at both doors: asked alike, answered alike, refused alike.

use std::collections::BTreeMap;

use prost_types::Timestamp;
use tonic::{Response, Status};
use tonic_types::StatusExt;

use super::{Server, scripted::Asked};
use crate::{http::write::ToJson, json::Json, proto::v1, refusal::Code};

const DIGEST: &str = "abababababababababababababababababababababababababababababababab";

fn id(key: &str) -> Option<v1::RecordId> {
    Some(v1::RecordId {
        tenant: Some("acme".into()),
        principal: None,
        operation: "POST /v1/charges".into(),
        key: key.into(),
    })
}

/// A JSON body with this record and these further members.
fn with(key: &str, rest: &str) -> String {
    let comma = if rest.is_empty() { "" } else { "," };
    format!(r#"{{"record":{{"tenant":"acme","operation":"POST /v1/charges","key":"{key}"}}{comma}{rest}}}"#)
}

/// What a door answered, without the spelling.
#[derive(Debug, PartialEq)]
enum Said {
    Answer(Json),
    Refused {
        code: String,
        detail: String,
        retry_after_ms: Option<u64>,
        index: Option<String>,
        attempt: Option<String>,
    },
}

fn by_grpc<M: ToJson>(answer: Result<Response<M>, Status>) -> Said {
    let status = match answer {
        Ok(answer) => {
            assert!(answer.metadata().contains_key("semel-cluster-id"));
            return Said::Answer(answer.get_ref().to_json());
        }
        Err(status) => status,
    };
    let details = status.get_error_details();
    let info = details.error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    let code = Code::parse(&info.reason).expect("a code of the table");
    assert_eq!(status.code(), code.grpc());
    assert_eq!(info.domain, "semel");
    assert_eq!(info.metadata["effect"], code.effect().as_str());
    assert_eq!(info.metadata["retryable"], code.retryable().to_string());
    let retry = details.retry_info().and_then(|retry| retry.retry_delay);
    assert_eq!(retry.is_some(), code.retryable());
    Said::Refused {
        code: info.reason.clone(),
        detail: status.message().to_owned(),
        retry_after_ms: retry.map(|delay| delay.as_millis().try_into().unwrap()),
        index: info.metadata.get("index").cloned(),
        attempt: info.metadata.get("attempt_id").cloned(),
    }
}

async fn by_http(server: &Server, path: &str, body: &str) -> Said {
    let reply = server.post(path, body.to_owned()).await;
    assert_eq!(reply.field("semel-cluster-id"), "c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1c1");
    let json = reply.json();
    if reply.status.is_success() {
        assert_eq!(reply.field("content-type"), "application/json");
        return Said::Answer(json);
    }
    let code = reply.code();
    let text = |name: &str| json.member(name).and_then(Json::as_str).map(str::to_owned);
    let retry_after_ms = match json.member("retry_after_ms") {
        Some(Json::Number(ms)) => Some(ms.as_str().parse().unwrap()),
        _ => None,
    };
    assert_eq!(reply.field("retry-after").parse().ok(), retry_after_ms.map(|ms: u64| ms.div_ceil(1000)));
    let (detail, index, attempt) = (text("detail").unwrap(), text("index"), text("attempt_id"));
    Said::Refused { code, detail, retry_after_ms, index, attempt }
}

/// Asks both doors and checks that they asked the service the same and said the same. Gives what was asked and said.
macro_rules! alike {
    ($server:expr, $path:literal, $json:expr, $client:ident . $call:ident ( $message:expr )) => {{
        let json: String = $json.into();
        let http = by_http(&$server, $path, &json).await;
        let asked_by_http = $server.calls.asked();
        let grpc = by_grpc($server.$client.clone().$call($message).await);
        let asked_by_grpc = $server.calls.asked();
        assert_eq!(asked_by_http, asked_by_grpc, "{json}");
        assert_eq!(http, grpc, "{json}");
        (asked_by_http, http)
    }};
}

// Behind the macro, which it uses.
mod bounds;

fn claim(key: &str) -> v1::ClaimRequest {
    v1::ClaimRequest { record: id(key), request: Some("{}".into()), ..Default::default() }
}

#[tokio::test]
async fn every_answer_to_a_claim() {
    let server = Server::start().await;
    let keys = [
        "new",
        "taken_over",
        "in_progress",
        "completed",
        "not_stored",
        "conflict",
        "indeterminate",
        "expired",
        "too_old",
    ];
    for key in keys {
        let (_, said) = alike!(server, "/v1/claim", with(key, r#""request":{}"#), records.claim(claim(key)));
        let Said::Answer(json) = said else { panic!("{key}: {said:?}") };
        let word = match key {
            "taken_over" => "new",
            "not_stored" => "completed",
            "too_old" => "expired",
            key => key,
        };
        assert_eq!(json.member("answer").and_then(Json::as_str), Some(word));
    }
}

#[tokio::test]
async fn every_field_of_a_claim() {
    let server = Server::start().await;
    let json = with(
        "k",
        &format!(
            r#""fingerprints":[{{"scheme":2,"digest":"{DIGEST}"}},{{"scheme":1,"digest":"{DIGEST}"}}],
            "attempt_id":"00112233-4455-6677-8899-AABBCCDDEEFF","lease_ms":1,"wait_ms":2,"staged":true,"on_lapse":"retake",
            "labels":{{"b":"2","a":"€"}},"first_sent_at":"2026-01-31T10:30:00.9999999+01:00","replay_s":3,"evidence_s":4,
            "ttl_ms":5,"request":null"#
        )
        .replace(r#","request":null"#, ""),
    );
    let digest = |scheme| v1::Fingerprint { scheme, digest: vec![0xab; 32].into() };
    let message = v1::ClaimRequest {
        record: id("k"),
        fingerprints: vec![digest(1), digest(2)],
        request: None,
        ignore: Vec::new(),
        attempt_id: Some("00112233-4455-6677-8899-aabbccddeeff".into()),
        lease_ms: Some(1),
        wait_ms: Some(2),
        staged: Some(true),
        on_lapse: Some(v1::OnLapse::Retake.into()),
        labels: BTreeMap::from([("a".into(), "€".into()), ("b".into(), "2".into())]),
        first_sent_at: Some(Timestamp { seconds: 1_769_851_800, nanos: 999_000_000 }),
        replay_s: Some(3),
        evidence_s: Some(4),
        ttl_ms: Some(5),
    };
    let (asked, _) = alike!(server, "/v1/claim", json, records.claim(message));
    let [Asked::Claim(claim)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(claim.fingerprints.iter().map(|own| own.scheme()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(claim.first_sent_at.map(|time| time.0), Some(1_769_851_800_999));
}

#[tokio::test]
async fn a_request_is_hashed_alike_however_it_is_written() {
    let server = Server::start().await;
    let json = with("k", r#""request": {"b" : 1.0, "a":"\u0041", "t": 9 }, "ignore":["/t"]"#);
    let message =
        v1::ClaimRequest { request: Some(r#"{"a":"A","t":0,"b":1}"#.into()), ignore: vec!["/t".into()], ..claim("k") };
    alike!(server, "/v1/claim", json, records.claim(message));
    let null = v1::ClaimRequest { request: Some("null".into()), ..claim("k") };
    alike!(server, "/v1/claim", with("k", r#""request":null"#), records.claim(null));
    // 64 levels are the caller's own, whatever is around them.
    let deep = format!("{}1{}", "[".repeat(64), "]".repeat(64));
    let message = v1::ClaimRequest { request: Some(deep.clone().into()), ..claim("k") };
    let (asked, _) = alike!(server, "/v1/claim", with("k", &format!(r#""request":{deep}"#)), records.claim(message));
    assert_eq!(asked.len(), 1);
}

#[tokio::test]
async fn every_command_of_an_owner() {
    let server = Server::start().await;
    let fence = Some(u64::MAX);
    let f = r#""fence":"18446744073709551615""#;
    let lease = format!(r#"{f},"lease_ms":7"#);
    let none = format!(r#"{f},"lease_ms":0"#);
    let begin = |lease_ms| v1::BeginRequest { record: id("k"), fence, lease_ms };
    alike!(server, "/v1/begin", with("k", f), records.begin(begin(None)));
    alike!(server, "/v1/begin", with("k", &lease), records.begin(begin(Some(7))));
    alike!(server, "/v1/begin", with("k", &none), records.begin(begin(None)));
    let renew = |lease_ms| v1::RenewRequest { record: id("k"), fence, lease_ms };
    alike!(server, "/v1/renew", with("k", f), records.renew(renew(None)));
    alike!(server, "/v1/renew", with("k", &lease), records.renew(renew(Some(7))));
    let checkpoint = |data: Option<&'static [u8]>| v1::CheckpointRequest {
        record: id("k"),
        fence,
        name: "step".into(),
        data: data.map(Into::into),
    };
    let json = with("k", &format!(r#"{f},"name":"step","data":"AP8=""#));
    alike!(server, "/v1/checkpoint", json, records.checkpoint(checkpoint(Some(b"\0\xff"))));
    let json = with("k", &format!(r#"{f},"name":"step","data":null"#));
    alike!(server, "/v1/checkpoint", json, records.checkpoint(checkpoint(None)));
    let release =
        |evidence: Option<&str>| v1::ReleaseRequest { record: id("k"), fence, evidence: evidence.map(Into::into) };
    alike!(server, "/v1/release", with("k", f), records.release(release(None)));
    let json = with("k", &format!(r#"{f},"evidence":"nothing was sent""#));
    alike!(server, "/v1/release", json, records.release(release(Some("nothing was sent"))));
    let suspend = |reason: Option<&str>| v1::SuspendRequest { record: id("k"), fence, reason: reason.map(Into::into) };
    alike!(server, "/v1/suspend", with("k", &format!(r#"{f},"reason":"""#)), records.suspend(suspend(None)));
    let json = with("k", &format!(r#"{f},"reason":"time-out""#));
    alike!(server, "/v1/suspend", json, records.suspend(suspend(Some("time-out"))));
}

#[tokio::test]
async fn every_form_of_an_outcome() {
    let server = Server::start().await;
    let outcome = |body: Option<&'static [u8]>| v1::Outcome {
        status: Some(-7),
        headers: BTreeMap::from([("LOCATION".into(), "/x".into())]),
        content_type: Some("application/json".into()),
        body: body.map(Into::into),
        valid_until: Some(Timestamp { seconds: 1, nanos: 500_000_000 }),
        not_stored: false,
    };
    let complete = |body| v1::CompleteRequest { record: id("k"), fence: Some(0), outcome: Some(outcome(body)) };
    let bodies: [(&str, Option<&'static [u8]>); 5] = [
        ("", None),
        (r#","body":null"#, None),
        (r#","body":"""#, Some(b"")),
        (r#","body":"bnVsbA==""#, Some(b"null")),
        (r#","body":"IiI=""#, Some(b"\"\"")),
    ];
    for (member, body) in bodies {
        let rest = format!(
            r#""fence":"0","outcome":{{"status":-7,"headers":{{"location":"/x"}},"content_type":"application/json",
            "valid_until":"1970-01-01T00:00:01.5Z"{member}}}"#
        );
        alike!(server, "/v1/complete", with("k", &rest), records.complete(complete(body)));
    }
}

#[tokio::test]
async fn reads_and_verdicts() {
    let server = Server::start().await;
    for with_outcome in [false, true] {
        let json = with("k", &format!(r#""with_outcome":{with_outcome}"#));
        let message = v1::GetRequest { record: id("k"), with_outcome: Some(with_outcome) };
        alike!(server, "/v1/get", json, records.get(message));
    }
    let json = with("k", r#""lease_ms":60000,"actor":"ops@example","version":"8""#);
    let message = v1::InvestigateRequest {
        record: id("k"),
        lease_ms: Some(60_000),
        actor: Some("ops@example".into()),
        version: Some(8),
    };
    alike!(server, "/v1/investigate", json, records.investigate(message));

    let resolve = |verdict: v1::Verdict| v1::ResolveRequest {
        record: id("k"),
        version: Some(9),
        verdict: verdict.into(),
        evidence: "ledger line 7".into(),
        request_id: Some("00112233-4455-6677-8899-aabbccddeeff".into()),
        ..Default::default()
    };
    let rest = r#""version":"9","evidence":"ledger line 7","request_id":"00112233-4455-6677-8899-aabbccddeeff""#;
    let json = with("k", &format!(r#"{rest},"verdict":"no_effect""#));
    alike!(server, "/v1/resolve", json, records.resolve(resolve(v1::Verdict::NoEffect)));
    let json = with("k", &format!(r#"{rest},"verdict":"unknown","check_again_at":"1970-01-01T00:00:02Z""#));
    let check_again_at = Some(Timestamp { seconds: 2, nanos: 0 });
    let message = v1::ResolveRequest { check_again_at, ..resolve(v1::Verdict::Unknown) };
    alike!(server, "/v1/resolve", json, records.resolve(message));
    let json = with("k", &format!(r#"{rest},"verdict":"completed","outcome":{{"status":200}}"#));
    let outcome = Some(v1::Outcome { status: Some(200), ..Default::default() });
    let message = v1::ResolveRequest { outcome, ..resolve(v1::Verdict::Completed) };
    alike!(server, "/v1/resolve", json, records.resolve(message));

    let message = v1::ForgetRequest { record: id("k"), reason: Some("erasure".into()) };
    alike!(server, "/v1/forget", with("k", r#""reason":"erasure""#), records.forget(message));
    let message = v1::HistoryRequest { record: id("k"), page_size: Some(5), cursor: Some("c".into()) };
    alike!(server, "/v1/history", with("k", r#""page_size":5,"cursor":"c""#), records.history(message));
}

#[tokio::test]
async fn policies() {
    let server = Server::start().await;
    let message = v1::GetPolicyRequest { tenant: Some("acme".into()), operation: None };
    alike!(server, "/v1/policy/get", r#"{"tenant":"acme"}"#, policies.get(message));
    let json = r#"{"tenant":"acme","operation":"op","policy":{"lease_ms_default":1000,"oversize":"digest_only",
        "records_max":"0","replay_s":null,"claims_per_s":null}}"#;
    let policy = v1::Policy {
        lease_ms_default: Some(1000),
        oversize: Some(v1::Oversize::DigestOnly.into()),
        records_max: Some(0),
        ..Default::default()
    };
    let message = v1::SetPolicyRequest {
        tenant: Some("acme".into()),
        operation: Some("op".into()),
        policy: Some(policy),
        remove: vec!["claims_per_s".into(), "replay_s".into()],
    };
    let (_, said) = alike!(server, "/v1/policy/set", json, policies.set(message));
    let Said::Answer(answer) = said else { panic!("{said:?}") };
    assert_eq!(answer.member("overrides").and_then(|own| own.member("replay_s")), Some(&Json::Null));
    assert_eq!(answer.member("policy").and_then(|own| own.member("replay_s")), Some(&86_400_u32.into()));
}

#[tokio::test]
async fn a_batch_answers_item_by_item() {
    let server = Server::start().await;
    let item = |command| v1::Item { command: Some(command) };
    let get = v1::GetRequest { record: id("not_found"), with_outcome: None };
    let nameless = v1::GetRequest { record: None, with_outcome: None };
    let begin = v1::BeginRequest { record: id("k"), fence: Some(1), lease_ms: None };
    let message = v1::BatchRequest {
        items: vec![
            item(v1::item::Command::Claim(claim("completed"))),
            item(v1::item::Command::Get(get)),
            item(v1::item::Command::Get(nameless)),
            item(v1::item::Command::Begin(begin)),
        ],
    };
    let json = format!(
        r#"{{"items":[{{"claim":{}}},{{"get":{},"claim":null}},{{"get":{{}}}},{{"begin":{}}}]}}"#,
        with("completed", r#""request":{}"#),
        with("not_found", ""),
        with("k", r#""fence":"1""#),
    );
    let (_, said) = alike!(server, "/v1/batch", json, records.batch(message));
    let Said::Answer(answer) = said else { panic!("{said:?}") };
    let Some(Json::Array(items)) = answer.member("items") else { panic!("{answer}") };
    let code = |at: usize| items[at].member("refused").and_then(|own| own.member("code")).and_then(Json::as_str);
    assert_eq!((code(0), code(1), code(2), code(3)), (None, Some("not_found"), Some("invalid_argument"), None));
    alike!(server, "/v1/batch", r#"{"items":[]}"#, records.batch(v1::BatchRequest::default()));
    alike!(server, "/v1/batch", "{}", records.batch(v1::BatchRequest::default()));

    // An item whose types are wrong is refused alone, too.
    let json = format!(r#"{{"items":[{{"get":5}},{{"get":{}}}]}}"#, with("k", r#""with_outcome":"yes""#));
    let Said::Answer(answer) = by_http(&server, "/v1/batch", &json).await else { panic!("refused") };
    assert_eq!(answer.to_text().matches("invalid_argument").count(), 2);
    // One without exactly one known kind refuses them all.
    let none = r#"{"items":[{"claims":{}}]}"#.to_owned();
    let two = format!(r#"{{"items":[{{"get":{0},"claim":{0}}}]}}"#, with("k", ""));
    let other = format!(r#"{{"items":[{{"get":{0},"x":1}}]}}"#, with("k", ""));
    for json in [none, two, other, r#"{"items":[null]}"#.into(), r#"{"items":[{}]}"#.into(), r#"{"items":{}}"#.into()] {
        let said = by_http(&server, "/v1/batch", &json).await;
        assert!(matches!(&said, Said::Refused { code, .. } if code == "invalid_argument"), "{json}: {said:?}");
    }
    let unknown = v1::BatchRequest { items: vec![v1::Item { command: None }] };
    let said = by_grpc(server.records.clone().batch(unknown).await);
    assert!(matches!(&said, Said::Refused { code, .. } if code == "invalid_argument"), "{said:?}");
    server.calls.asked();
    let many = vec![item(v1::item::Command::Get(v1::GetRequest::default())); 257];
    let json = format!(r#"{{"items":[{}]}}"#, vec![r#"{"get":{"record":null}}"#; 257].join(","));
    alike!(server, "/v1/batch", json, records.batch(v1::BatchRequest { items: many }));
}

#[tokio::test]
async fn lists_by_page() {
    let server = Server::start().await;
    let json = r#"{"tenant":"acme","principal":"","state":"indeterminate","older_than_ms":7,"page_size":5000}"#;
    let Said::Answer(first) = by_http(&server, "/v1/list", json).await else { panic!("refused") };
    let second = r#"{"tenant":"acme","state":"indeterminate","older_than_ms":7,"page_size":1000,"cursor":"second"}"#;
    let Said::Answer(second) = by_http(&server, "/v1/list", second).await else { panic!("refused") };
    let asked_by_http = server.calls.asked();
    let message = v1::ListRequest {
        tenant: Some("acme".into()),
        principal: Some(String::new()),
        state: Some(v1::State::Indeterminate.into()),
        operation: None,
        older_than_ms: Some(7),
        page_size: Some(5000),
        cursor: None,
    };
    let mut pages = server.records.clone().list(message).await.unwrap().into_inner();
    let mut seen = Vec::new();
    while let Some(page) = pages.message().await.unwrap() {
        seen.push(page.to_json());
    }
    assert_eq!(seen, [first, second]);
    assert_eq!(server.calls.asked(), asked_by_http);
    let foreign = v1::ListRequest { cursor: Some("é".into()), ..Default::default() };
    let refused = server.records.clone().list(foreign).await.unwrap_err();
    assert_eq!(refused.get_error_details().error_info().unwrap().reason, "invalid_argument");
    assert!(matches!(by_http(&server, "/v1/list", r#"{"cursor":"é"}"#).await, Said::Refused { .. }));
}

#[tokio::test]
async fn watches() {
    let server = Server::start().await;
    let reply = server.send("GET", "/v1/watch?tenant=acme&operation=POST%20/v1+x&from_index=3", &[], "").await;
    assert_eq!(reply.field("content-type"), "text/event-stream");
    let asked_by_http = server.calls.asked();
    let text = String::from_utf8(reply.body.to_vec()).unwrap().replace(": \n\n", "");
    let message =
        v1::WatchRequest { tenant: Some("acme".into()), operation: Some("POST /v1 x".into()), from_index: Some(3) };
    let mut changes = server.records.clone().watch_indeterminate(message).await.unwrap().into_inner();
    let (set, next) = (changes.message().await.unwrap().unwrap(), changes.message().await.unwrap().unwrap());
    assert_eq!(server.calls.asked(), asked_by_http);
    let wanted = [
        "event: reset\ndata: {\"index\":\"5\"}\n\n".to_owned(),
        format!("id: 5\nevent: indeterminate\ndata: {}\n\n", set.indeterminate[0].to_json()),
        format!("event: indeterminate\ndata: {}\n\n", next.indeterminate[0].to_json()),
        format!("id: 6\nevent: gone\ndata: {}\n\n", next.gone[0].to_json()),
    ];
    assert!(text.starts_with(&wanted.concat()), "{text}");
    assert!(text[wanted.concat().len()..].starts_with("event: refused\n"), "{text}");

    server.send("GET", "/v1/watch", &[("last-event-id", "9")], "").await;
    let asked = server.calls.asked();
    assert!(matches!(&asked[..], [Asked::Watch(watch)] if watch.from_index.map(|index| index.0) == Some(9)));
    for bad in ["from_index=x", "from_index=-1", "from_index=", "tenant=a&tenant=a", "x=1", "tenant=A", "tenant=%ff"] {
        assert_eq!(server.send("GET", &format!("/v1/watch?{bad}"), &[], "").await.code(), "invalid_argument", "{bad}");
    }
}

#[tokio::test]
async fn every_refusal_of_the_table() {
    let server = Server::start().await;
    for code in Code::ALL {
        let key = code.as_str();
        // A method that isn't allowed is no answer of the service, and `in_progress` as a refusal is the Idempotency-Key door's.
        if matches!(code, Code::MethodNotAllowed | Code::InProgress) {
            continue;
        }
        let (_, said) = alike!(server, "/v1/claim", with(key, r#""request":{}"#), records.claim(claim(key)));
        let Said::Refused { code: told, retry_after_ms, index, attempt, .. } = said else { panic!("{said:?}") };
        assert_eq!(told, key);
        assert_eq!(retry_after_ms, code.retryable().then_some(1_001));
        assert_eq!(index.as_deref(), Some("18446744073709551615"));
        assert_eq!(attempt.as_deref(), Some("00112233-4455-6677-8899-aabbccddeeff"));
    }
}

#[tokio::test]
async fn what_is_wrong_in_shape() {
    let server = Server::start().await;
    let long = |n: usize| "k".repeat(n);
    let digest = |scheme, n| v1::Fingerprint { scheme, digest: vec![0xab; n].into() };
    let json_digest = |scheme: u32| format!(r#"{{"scheme":{scheme},"digest":"{DIGEST}"}}"#);
    let fingerprints =
        |list: Vec<v1::Fingerprint>| v1::ClaimRequest { request: None, fingerprints: list, ..claim("k") };
    let labels = |map: Vec<(String, String)>| v1::ClaimRequest { labels: map.into_iter().collect(), ..claim("k") };
    let cases: Vec<(String, v1::ClaimRequest)> = vec![
        (r#"{"request":{}}"#.into(), v1::ClaimRequest { record: None, ..claim("k") }),
        (with("", r#""request":{}"#), claim("")),
        (with(&long(256), r#""request":{}"#), claim(&long(256))),
        (with("é", r#""request":{}"#), claim("é")),
        (with("k", ""), v1::ClaimRequest { request: None, ..claim("k") }),
        (
            with("k", r#""request":{},"attempt_id":"x""#),
            v1::ClaimRequest { attempt_id: Some("x".into()), ..claim("k") },
        ),
        (with("k", r#""request":{},"attempt_id":"""#), v1::ClaimRequest { attempt_id: Some("".into()), ..claim("k") }),
        (
            with("k", r#""request":{},"replay_s":2,"evidence_s":1"#),
            v1::ClaimRequest { replay_s: Some(2), evidence_s: Some(1), ..claim("k") },
        ),
        (with("k", &format!(r#""fingerprints":[{}]"#, json_digest(0))), fingerprints(vec![digest(0, 32)])),
        (
            with("k", &format!(r#""fingerprints":[{0},{0}]"#, json_digest(1))),
            fingerprints(vec![digest(1, 32), digest(1, 32)]),
        ),
        (
            with("k", &format!(r#""fingerprints":[{}]"#, (1..=5).map(json_digest).collect::<Vec<_>>().join(","))),
            fingerprints((1..=5).map(|scheme| digest(scheme, 32)).collect()),
        ),
        (
            with("k", &format!(r#""request":{{}},"fingerprints":[{}]"#, json_digest(1))),
            v1::ClaimRequest { fingerprints: vec![digest(1, 32)], ..claim("k") },
        ),
        (
            with("k", &format!(r#""ignore":["/a"],"fingerprints":[{}]"#, json_digest(1))),
            v1::ClaimRequest { ignore: vec!["/a".into()], ..fingerprints(vec![digest(1, 32)]) },
        ),
        (with("k", r#""request":{},"ignore":["a"]"#), v1::ClaimRequest { ignore: vec!["a".into()], ..claim("k") }),
        (with("k", r#""request":{},"labels":{"":"x"}"#), labels(vec![("".into(), "x".into())])),
        (with("k", r#""request":{},"labels":{"x":""}"#), labels(vec![("x".into(), "".into())])),
        (
            with("k", &format!(r#""request":{{}},"labels":{{"x":"{}"}}"#, long(257))),
            labels(vec![("x".into(), long(257))]),
        ),
        (
            with("k", r#""request":{},"first_sent_at":"1969-12-31T23:59:59Z""#),
            v1::ClaimRequest { first_sent_at: Some(Timestamp { seconds: -1, nanos: 0 }), ..claim("k") },
        ),
        (
            r#"{"record":{"tenant":"A","operation":"o","key":"k"},"request":{}}"#.into(),
            v1::ClaimRequest {
                record: Some(v1::RecordId {
                    tenant: Some("A".into()),
                    principal: None,
                    operation: "o".into(),
                    key: "k".into(),
                }),
                ..claim("k")
            },
        ),
    ];
    for (json, message) in cases {
        let (asked, said) = alike!(server, "/v1/claim", json.clone(), records.claim(message));
        assert!(asked.is_empty(), "{json}");
        assert!(matches!(&said, Said::Refused { code, .. } if code == "invalid_argument"), "{json}: {said:?}");
    }
    let sixteen: Vec<String> = (0..17).map(|n| format!(r#""l{n}":"x""#)).collect();
    let message = labels((0..17).map(|n| (format!("l{n}"), "x".into())).collect());
    let json = with("k", &format!(r#""request":{{}},"labels":{{{}}}"#, sixteen.join(",")));
    alike!(server, "/v1/claim", json, records.claim(message));
}

#[tokio::test]
async fn what_is_wrong_with_an_outcome_or_a_verdict() {
    let server = Server::start().await;
    let complete = |outcome| v1::CompleteRequest { record: id("k"), fence: Some(1), outcome };
    let headers = |list: &[(&str, &str)]| {
        let headers = list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Some(v1::Outcome { status: Some(1), headers, ..Default::default() })
    };
    let cases = [
        ("", None),
        (r#","outcome":{}"#, Some(v1::Outcome::default())),
        (r#","outcome":{"status":1,"headers":{"Content-Type":"x"}}"#, headers(&[("Content-Type", "x")])),
        (r#","outcome":{"status":1,"headers":{"A":"x","a":"x"}}"#, headers(&[("A", "x"), ("a", "x")])),
        (r#","outcome":{"status":1,"headers":{"a b":"x"}}"#, headers(&[("a b", "x")])),
        (r#","outcome":{"status":1,"headers":{"a":"x\r\ny"}}"#, headers(&[("a", "x\r\ny")])),
        (
            r#","outcome":{"status":1,"content_type":""}"#,
            Some(v1::Outcome { status: Some(1), content_type: Some(String::new()), ..Default::default() }),
        ),
    ];
    for (member, outcome) in cases {
        let json = with("k", &format!(r#""fence":"1"{member}"#));
        let (_, said) = alike!(server, "/v1/complete", json.clone(), records.complete(complete(outcome)));
        assert!(matches!(&said, Said::Refused { code, .. } if code == "invalid_argument"), "{json}: {said:?}");
    }
    let resolve = v1::ResolveRequest { record: id("k"), version: Some(1), evidence: "e".into(), ..Default::default() };
    let rest = r#""version":"1","evidence":"e""#;
    alike!(server, "/v1/resolve", with("k", rest), records.resolve(resolve.clone()));
    let no_effect = v1::ResolveRequest { verdict: v1::Verdict::NoEffect.into(), ..resolve.clone() };
    let with_outcome = v1::ResolveRequest { outcome: headers(&[]), ..no_effect.clone() };
    let json = with("k", &format!(r#"{rest},"verdict":"no_effect","outcome":{{"status":1}}"#));
    alike!(server, "/v1/resolve", json, records.resolve(with_outcome));
    let check_again_at = Some(Timestamp::default());
    let json = with("k", &format!(r#"{rest},"verdict":"no_effect","check_again_at":"1970-01-01T00:00:00Z""#));
    let message = v1::ResolveRequest { check_again_at, ..no_effect.clone() };
    alike!(server, "/v1/resolve", json, records.resolve(message));
    let json = with("k", r#""version":"1","verdict":"no_effect""#);
    let message = v1::ResolveRequest { evidence: String::new(), ..no_effect.clone() };
    alike!(server, "/v1/resolve", json, records.resolve(message));
    let json = with("k", r#""evidence":"e","verdict":"no_effect""#);
    let message = v1::ResolveRequest { version: None, ..no_effect };
    alike!(server, "/v1/resolve", json, records.resolve(message));
    let begin = v1::BeginRequest { record: id("k"), fence: None, lease_ms: None };
    let (asked, _) = alike!(server, "/v1/begin", with("k", ""), records.begin(begin));
    assert!(asked.is_empty());
}
