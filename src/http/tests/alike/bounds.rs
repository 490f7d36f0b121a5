//! Values at their bound and one beyond it, characters that are none, and fences and versions that are no numbers of ours.

use super::*;
use crate::limits::*;

fn record(tenant: &str, principal: &str, operation: &str, key: &str) -> Option<v1::RecordId> {
    Some(v1::RecordId {
        tenant: Some(tenant.into()),
        principal: Some(principal.into()),
        operation: operation.into(),
        key: key.into(),
    })
}

/// Asks both doors for a claim of this record; says whether the service was asked.
async fn is_taken(server: &Server, parts: [&str; 4]) -> bool {
    let [tenant, principal, operation, key] = parts.map(|part| Json::from(part).to_text());
    let json = format!(
        r#"{{"record":{{"tenant":{tenant},"principal":{principal},"operation":{operation},"key":{key}}},"request":{{}}}}"#
    );
    let [tenant, principal, operation, key] = parts;
    let message = v1::ClaimRequest { record: record(tenant, principal, operation, key), ..claim("k") };
    let (asked, said) = alike!(server, "/v1/claim", json.clone(), records.claim(message));
    match said {
        Said::Answer(_) => assert_eq!(asked.len(), 1),
        Said::Refused { code, .. } => assert!(asked.is_empty() && code == "invalid_argument", "{json}: {code}"),
    }
    !asked.is_empty()
}

#[tokio::test]
async fn names_of_records() {
    let server = Server::start().await;
    let long = |n: usize| "k".repeat(n);
    let printable: String = (' '..='~').collect();
    for (parts, taken) in [
        (["acme", "", "op", "key"], true),
        ([&long(TENANT_BYTES_MAX), &long(PRINCIPAL_BYTES_MAX), &long(OPERATION_BYTES_MAX), &long(KEY_BYTES_MAX)], true),
        ([&long(TENANT_BYTES_MAX + 1), "", "op", "key"], false),
        (["acme", &long(PRINCIPAL_BYTES_MAX + 1), "op", "key"], false),
        (["acme", "", &long(OPERATION_BYTES_MAX + 1), "key"], false),
        (["acme", "", "op", &long(KEY_BYTES_MAX + 1)], false),
        (["a.b_c-9", &printable, &printable, &printable], true),
        (["Acme", "", "op", "key"], false),
        (["ac me", "", "op", "key"], false),
        (["ac/me", "", "op", "key"], false),
        (["acmé", "", "op", "key"], false),
        (["acme", "prin\ncipal", "op", "key"], false),
        (["acme", "", "op\u{0}", "key"], false),
        (["acme", "", "öp", "key"], false),
        (["acme", "", "", "key"], false),
        (["acme", "", "op", ""], false),
        (["acme", "", "op", "k\u{7f}"], false),
        (["acme", "", "op", "k\ty"], false),
        (["acme", "", "op", "🔑"], false),
    ] {
        assert_eq!(is_taken(&server, parts).await, taken, "{parts:?}");
    }
}

#[tokio::test]
async fn leases_of_any_length_are_taken_and_clamped_later() {
    let server = Server::start().await;
    for lease_ms in [0, 1, 99, u32::MAX] {
        let json = with("new", &format!(r#""request":{{}},"lease_ms":{lease_ms},"wait_ms":{lease_ms}"#));
        let message = v1::ClaimRequest { lease_ms: Some(lease_ms), wait_ms: Some(lease_ms), ..claim("new") };
        let (asked, _) = alike!(server, "/v1/claim", json, records.claim(message));
        assert_eq!(asked.len(), 1, "{lease_ms}");
    }
}

#[tokio::test]
async fn checkpoints_and_statements() {
    let server = Server::start().await;
    let long = |n: usize| "s".repeat(n);
    let point = |name: &str, bytes: usize| v1::CheckpointRequest {
        record: id("k"),
        fence: Some(1),
        name: name.into(),
        data: Some(vec![0; bytes].into()),
    };
    // All zeros in base64 are all A.
    let data = |bytes: usize| format!("{}{}", "AAAA".repeat(bytes / 3), ["", "AA==", "AAA="][bytes % 3]);
    let at_most = usize::try_from(CHECKPOINT_BYTES_MAX).unwrap();
    for (name, bytes, taken) in [
        (long(CHECKPOINT_NAME_BYTES_MAX), at_most, true),
        (long(CHECKPOINT_NAME_BYTES_MAX + 1), 1, false),
        (String::new(), 1, false),
        ("st\u{1}ep".into(), 1, false),
        ("schritt-ü".into(), 1, false),
        ("step".into(), 0, true),
        // How much is too much is the policy's to say, where the record is known.
        ("step".into(), at_most + 1, true),
    ] {
        let shown = Json::from(name.as_str()).to_text();
        let json = with("k", &format!(r#""fence":"1","name":{shown},"data":"{}""#, data(bytes)));
        let (asked, said) = alike!(server, "/v1/checkpoint", json, records.checkpoint(point(&name, bytes)));
        assert_eq!(!asked.is_empty(), taken, "{name:?} {bytes}: {said:?}");
        assert_eq!(matches!(said, Said::Answer(_)), taken, "{name:?} {bytes}: {said:?}");
    }
    for (text, taken) in
        [(long(STATEMENT_BYTES_MAX), true), (long(STATEMENT_BYTES_MAX + 1), false), ("ü".repeat(600), false)]
    {
        let suspend = v1::SuspendRequest { record: id("k"), fence: Some(1), reason: Some(text.clone()) };
        let json = with("k", &format!(r#""fence":"1","reason":"{text}""#));
        let (asked, _) = alike!(server, "/v1/suspend", json, records.suspend(suspend));
        assert_eq!(!asked.is_empty(), taken, "{} bytes", text.len());
        let release = v1::ReleaseRequest { record: id("k"), fence: Some(1), evidence: Some(text.clone()) };
        let json = with("k", &format!(r#""fence":"1","evidence":"{text}""#));
        let (asked, _) = alike!(server, "/v1/release", json, records.release(release));
        assert_eq!(!asked.is_empty(), taken, "{} bytes", text.len());
        let forget = v1::ForgetRequest { record: id("k"), reason: Some(text.clone()) };
        let json = with("k", &format!(r#""reason":"{text}""#));
        let (asked, _) = alike!(server, "/v1/forget", json, records.forget(forget));
        assert_eq!(!asked.is_empty(), taken, "{} bytes", text.len());
    }
    for (actor, taken) in [("a".repeat(ACTOR_BYTES_MAX), true), ("a".repeat(ACTOR_BYTES_MAX + 1), false)] {
        let message = v1::InvestigateRequest { record: id("k"), actor: Some(actor.clone()), ..Default::default() };
        let json = with("k", &format!(r#""actor":"{actor}""#));
        let (asked, _) = alike!(server, "/v1/investigate", json, records.investigate(message));
        assert_eq!(!asked.is_empty(), taken, "{} bytes", actor.len());
    }
}

#[tokio::test]
async fn times_before_all_time_and_after_it() {
    let server = Server::start().await;
    for (text, seconds, taken) in [
        ("1970-01-01T00:00:00Z", 0, true),
        ("1969-12-31T23:59:59.999Z", -1, false),
        ("9999-12-31T23:59:59Z", 253_402_300_799, true),
    ] {
        let json = with("new", &format!(r#""request":{{}},"first_sent_at":"{text}""#));
        let first_sent_at = Some(Timestamp { seconds, nanos: if seconds < 0 { 999_000_000 } else { 0 } });
        let message = v1::ClaimRequest { first_sent_at, ..claim("new") };
        let (asked, _) = alike!(server, "/v1/claim", json, records.claim(message));
        assert_eq!(!asked.is_empty(), taken, "{text}");
    }
    // What the other spelling alone can say: beyond the year 9999, fractions that are none, a moment of any date.
    for (seconds, nanos) in [(253_402_300_800, 0), (i64::MAX, 0), (i64::MIN, 0), (1, -1), (1, 1_000_000_000)] {
        let first_sent_at = Some(Timestamp { seconds, nanos });
        let said = by_grpc(server.records.clone().claim(v1::ClaimRequest { first_sent_at, ..claim("new") }).await);
        assert!(
            matches!(&said, Said::Refused { code, .. } if code == "invalid_argument"),
            "{seconds} {nanos}: {said:?}"
        );
    }
    for text in ["10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00", "now"]
    {
        let json = with("new", &format!(r#""request":{{}},"first_sent_at":"{text}""#));
        let said = by_http(&server, "/v1/claim", &json).await;
        assert!(matches!(&said, Said::Refused { code, .. } if code == "invalid_argument"), "{text}: {said:?}");
    }
    assert!(server.calls.asked().is_empty());
}
