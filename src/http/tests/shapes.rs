//! What clients parse: every shape, member by member.

use super::Server;

const ATTEMPT: &str = r#""attempt_id":"00112233-4455-6677-8899-aabbccddeeff""#;
const POINT: &str = r#"{"name":"step","data":"AP8="}"#;

fn record(key: &str) -> String {
    format!(r#"{{"record":{{"operation":"o","key":"{key}"}}"#)
}

async fn claimed(server: &Server, key: &str) -> String {
    let reply = server.post("/v1/claim", format!(r#"{},"request":1}}"#, record(key))).await;
    assert_eq!((reply.status.as_u16(), reply.field("content-type")), (200, "application/json"));
    String::from_utf8(reply.body.to_vec()).unwrap()
}

async fn asked(server: &Server, path: &str, rest: &str) -> String {
    let reply = server.post(path, format!("{}{rest}}}", record("k"))).await;
    assert_eq!(reply.status, 200, "{path}: {:?}", reply.body);
    String::from_utf8(reply.body.to_vec()).unwrap()
}

fn outcome(body: &str, not_stored: bool) -> String {
    format!(
        r#"{{"status":-1,"headers":{{"etag":"\"v1\""}},"content_type":"text/plain","body":{body},"valid_until":"2026-01-31T09:30:00.123Z","not_stored":{not_stored}}}"#
    )
}

#[tokio::test]
async fn the_answers_to_a_claim_have_the_fields_of_their_kind_and_no_other() {
    let server = Server::start().await;
    let grant = |checkpoint: &str| {
        format!(
            r#"{{"answer":"new","fence":"18446744073709551615","attempt":2,"phase":"staged","version":"41","repeated":false,"lease_ms":30000,"lease_deadline":"9999-12-31T23:59:59.999Z","downstream_key":"sml_abc","checkpoint":{checkpoint},{ATTEMPT},"index":"97"}}"#
        )
    };
    assert_eq!(claimed(&server, "new").await, grant("null"));
    assert_eq!(claimed(&server, "taken_over").await, grant(POINT));
    let replay = |stale, not_stored, body| {
        format!(
            r#"{{"answer":"completed","replayed":true,"stale":{stale},"not_stored":{not_stored},"outcome":{},"completed_at":"1970-01-01T00:00:00.006Z",{ATTEMPT},"index":"97"}}"#,
            outcome(body, not_stored)
        )
    };
    assert_eq!(claimed(&server, "completed").await, replay(false, false, r#""AP8gYm9keQ==""#));
    assert_eq!(claimed(&server, "not_stored").await, replay(true, true, "null"));
    for (key, fields) in [
        ("in_progress", r#""answer":"in_progress","retry_after_ms":2700,"since":"1970-01-01T00:00:00.005Z""#),
        ("conflict", r#""answer":"conflict","state":"completed","since":"1970-01-01T00:00:00.007Z""#),
        (
            "indeterminate",
            r#""answer":"indeterminate","since":"1970-01-01T00:00:00.008Z","reason":"the provider\n\"timed out\"","retry_after_ms":60000"#,
        ),
        (
            "expired",
            r#""answer":"expired","reason":"replay_over","completed_at":"1970-01-01T00:00:00.009Z","evidence_until":"1970-01-01T00:00:00.010Z""#,
        ),
        ("too_old", r#""answer":"expired","reason":"too_old","completed_at":null,"evidence_until":null"#),
    ] {
        assert_eq!(claimed(&server, key).await, format!(r#"{{{fields},{ATTEMPT},"index":"97"}}"#));
    }
}

#[tokio::test]
async fn the_answers_to_an_owner_and_a_reconciler() {
    let server = Server::start().await;
    let running = r#"{"state":"in_progress","phase":"begun","lease_ms":30000,"lease_deadline":"1970-01-01T00:00:00.011Z","version":"42","index":"43"}"#;
    assert_eq!(asked(&server, "/v1/begin", r#","fence":"1""#).await, running);
    let ended = |state: &str, version: &str| {
        format!(
            r#"{{"state":"{state}","phase":null,"lease_ms":null,"lease_deadline":null,"version":{version},"index":"43"}}"#
        )
    };
    assert_eq!(asked(&server, "/v1/release", r#","fence":"1""#).await, ended("absent", "null"));
    assert_eq!(asked(&server, "/v1/suspend", r#","fence":"1""#).await, ended("indeterminate", r#""42""#));
    let completed = asked(&server, "/v1/complete", r#","fence":"1","outcome":{"status":1}"#).await;
    assert_eq!(completed, ended("completed", r#""42""#));
    assert_eq!(asked(&server, "/v1/forget", "").await, ended("expired", r#""42""#));
}

const LEAN: &str = r#"{"record":{"tenant":"acme","principal":null,"operation":"POST /v1/charges","key":"k \"1\""},"state":"indeterminate","version":"8","fence":"7","attempt":1,"phase":null,"attempt_id":"00112233-4455-6677-8899-aabbccddeeff","fingerprints":[{"scheme":1,"digest":"abababababababababababababababababababababababababababababababab"},{"scheme":2,"digest":"0000000000000000000000000000000000000000000000000000000000000000"}],"lease_deadline":null,"since":"1970-01-01T00:00:00.013Z","reason":null,"checkpoint":null,"labels":{"amount":"100 €"},"outcome":null,"completed_at":null,"replay_until":null,"evidence_until":null,"downstream_key":"sml_abc","investigation":null,"check_again_at":null,"on_lapse":null,"index":"99"}"#;

#[tokio::test]
async fn a_record_has_all_its_fields_null_where_there_is_none() {
    let server = Server::start().await;
    assert_eq!(asked(&server, "/v1/get", "").await, LEAN);
    let whole = LEAN
        .replace(r#""principal":null"#, r#""principal":"user-7""#)
        .replace(r#""phase":null"#, r#""phase":"begun""#)
        .replace(r#""lease_deadline":null"#, r#""lease_deadline":"1970-01-01T00:00:00.012Z""#)
        .replace(r#""reason":null"#, r#""reason":"lease_lapsed""#)
        .replace(r#""checkpoint":null"#, &format!(r#""checkpoint":{POINT}"#))
        .replace(r#""outcome":null"#, &format!(r#""outcome":{}"#, outcome(r#""""#, false)))
        .replace(r#""completed_at":null"#, r#""completed_at":"1970-01-01T00:00:00.014Z""#)
        .replace(r#""replay_until":null"#, r#""replay_until":"1970-01-01T00:00:00.015Z""#)
        .replace(r#""evidence_until":null"#, r#""evidence_until":"1970-01-01T00:00:00.016Z""#)
        .replace(
            r#""investigation":null"#,
            r#""investigation":{"actor":"ops@example","deadline":"1970-01-01T00:00:00.017Z"}"#,
        )
        .replace(r#""check_again_at":null"#, r#""check_again_at":"1970-01-01T00:00:00.018Z""#)
        .replace(r#""on_lapse":null"#, r#""on_lapse":"retake""#);
    assert_eq!(asked(&server, "/v1/get", r#","with_outcome":true"#).await, whole);
    let list = server.post("/v1/list", "{}").await;
    let list = String::from_utf8(list.body.to_vec()).unwrap();
    assert_eq!(list, format!(r#"{{"records":[{whole},{LEAN}],"cursor":"second","index":"101"}}"#));
    let last = server.post("/v1/list", r#"{"cursor":"second"}"#).await;
    assert_eq!(last.body, r#"{"records":[],"cursor":null,"index":"101"}"#);
}

#[tokio::test]
async fn histories_batches_and_policies() {
    let server = Server::start().await;
    let history = asked(&server, "/v1/history", "").await;
    let claimed =
        r#"{"at":"1970-01-01T00:00:00.019Z","index":"20","kind":"claimed","actor":"open","fence":"20","detail":"x"}"#;
    let expired =
        r#"{"at":"1970-01-01T00:00:00.019Z","index":"20","kind":"expired","actor":null,"fence":null,"detail":null}"#;
    assert!(history.starts_with(&format!(r#"{{"events":[{claimed},"#)), "{history}");
    assert!(history.ends_with(&format!(r#",{expired}],"cursor":null,"index":"102"}}"#)), "{history}");
    for kind in crate::service::answer::HISTORY_KINDS {
        assert!(history.contains(&format!(r#""kind":"{kind}""#)), "{kind}");
    }
    let batch = format!(r#"{{"items":[{{"get":{0}}}}},{{"get":{1}}}}}]}}"#, record("k"), record("quota_exceeded"),);
    let batch = server.post("/v1/batch", batch).await;
    let refused = format!(
        r#"{{"refused":{{"code":"quota_exceeded","detail":"as the script says","retryable":true,"effect":"none","retry_after_ms":1001,{ATTEMPT},"index":"18446744073709551615","leader":null}}}}"#
    );
    let batch = String::from_utf8(batch.body.to_vec()).unwrap();
    assert_eq!(batch, format!(r#"{{"items":[{{"get":{LEAN}}},{refused}],"index":"100"}}"#));
    let policy = server.post("/v1/policy/get", r#"{"tenant":"acme"}"#).await;
    let policy = String::from_utf8(policy.body.to_vec()).unwrap();
    let effective = r#"{"policy":{"lease_ms_default":30000,"lease_ms_max":86400000,"wait_ms_max":60000,"on_lapse":"hold","replay_s":86400,"evidence_s":2592000,"outcome_bytes_max":1048576,"oversize":"digest_only","expired_claims":"reject","records_max":null,"bytes_max":null,"indeterminate_max":"1000000","claims_per_s":null,"key_bytes_min":1,"#;
    assert!(policy.starts_with(effective), "{policy}");
    let overrides = r#""overrides":{"lease_ms_default":null,"lease_ms_max":null,"wait_ms_max":null,"on_lapse":null,"replay_s":null,"evidence_s":null,"outcome_bytes_max":null,"oversize":"digest_only","#;
    assert!(policy.contains(overrides) && policy.ends_with(r#""low_entropy_keys":null},"index":"103"}"#), "{policy}");
}

#[tokio::test]
async fn a_problem_has_the_members_of_rfc_9457_and_ours() {
    let server = Server::start().await;
    let reply = server.post("/v1/claim", format!(r#"{},"request":1}}"#, record("owner_may_act"))).await;
    let body = String::from_utf8(reply.body.to_vec()).unwrap();
    let wanted = format!(
        r#"{{"type":"https://docs.rs/semel/latest/semel/problems/#owner-may-act","title":"The owner may still act","status":409,"detail":"as the script says","code":"owner_may_act","retryable":true,"effect":"none","retry_after_ms":1001,{ATTEMPT},"index":"18446744073709551615","leader":null}}"#
    );
    assert_eq!((body, reply.field("retry-after"), reply.field("cache-control")), (wanted, "2", "no-store"));
    let reply = server.post("/v1/claim", "").await;
    let members = r#""code":"invalid_argument","retryable":false,"effect":"none","retry_after_ms":null,"attempt_id":null,"index":null,"leader":null}"#;
    assert!(String::from_utf8(reply.body.to_vec()).unwrap().ends_with(members));
}
