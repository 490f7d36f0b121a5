//! Bodies of any bytes: refused, or a request within its bounds.

use super::*;
use crate::{fuzz::Target, service::request::*};

const GOOD: [&str; 6] = [
    r#"{"record":{"tenant":"t","principal":"p","operation":"o","key":"k"},"request":{"a":[1,"\u00e9"]},"lease_ms":1,"labels":{"a":"b"}}"#,
    r#"{"record":{"operation":"o","key":"k"},"fence":"7","outcome":{"status":200,"headers":{"etag":"x"},"body":"AAEC"}}"#,
    r#"{"items":[{"claim":{"record":{"operation":"o","key":"k"},"request":1}},{"get":{"record":{"operation":"o","key":"k"}}}]}"#,
    r#"{"tenant":"t","operation":"o","policy":{"replay_s":60,"evidence_s":null,"records_max":"5"}}"#,
    r#"{"record":{"operation":"o","key":"k"},"version":"7","verdict":"no_effect","evidence":"seen","request_id":"00112233-4455-6677-8899-aabbccddeeff"}"#,
    r#"{"operations":["*"],"permissions":["claim"],"ttl_s":60,"note":"n"}"#,
];
const WORDS: &[&str] = &[
    "\"record\":",
    "\"operation\":",
    "\"key\":",
    "\"fence\":",
    "\"request\":",
    "\"outcome\":",
    "\"items\":",
    "\"claim\":",
    "\"policy\":",
    "\"body\":",
    "null",
    "\"42\"",
    "\"2026-01-31T09:30:00Z\"",
    "\"hold\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\"",
];

fn is_asked<M: Message, R: TryFrom<M, Error = Refusal>>(body: &[u8]) -> bool {
    message::<M>(body).and_then(R::try_from).is_ok()
}

#[test]
fn fuzz_http_json() {
    let good = GOOD.map(|text| text.as_bytes().to_vec()).to_vec();
    Target { name: "http-json", good, words: WORDS, cases: 3000 }.run(
        |_| {},
        |body| {
            let all = [
                is_asked::<v1::ClaimRequest, ClaimRequest>(body),
                is_asked::<v1::BeginRequest, OwnerRequest>(body),
                is_asked::<v1::CheckpointRequest, OwnerRequest>(body),
                is_asked::<v1::CompleteRequest, OwnerRequest>(body),
                is_asked::<v1::ReleaseRequest, OwnerRequest>(body),
                is_asked::<v1::GetRequest, GetRequest>(body),
                is_asked::<v1::ListRequest, ListRequest>(body),
                is_asked::<v1::InvestigateRequest, InvestigateRequest>(body),
                is_asked::<v1::ResolveRequest, ResolveRequest>(body),
                is_asked::<v1::HistoryRequest, HistoryRequest>(body),
                is_asked::<v1::SetPolicyRequest, SetPolicyRequest>(body),
                is_asked::<v1::CreateTokenRequest, CreateTokenRequest>(body),
                is_asked::<v1::RevokeTokenRequest, RevokeTokenRequest>(body),
                audit(body).is_ok(),
                batch(body).and_then(crate::rpc::request::batch).is_ok(),
            ];
            all.contains(&true)
        },
    );
}
