//! Messages of any bytes: refused, or a request within its bounds.

use std::collections::BTreeMap;

use prost::Message;

use super::*;
use crate::{fuzz::Target, refusal::Code, rpc::codec::decode};

fn record_id() -> Option<v1::RecordId> {
    Some(v1::RecordId { tenant: Some("acme".into()), principal: None, operation: "o".into(), key: "k".into() })
}

fn claim() -> v1::ClaimRequest {
    v1::ClaimRequest {
        record: record_id(),
        request: Some(br#"{"a":[1,"x"]}"#.as_slice().into()),
        ignore: vec!["/a/0".into()],
        attempt_id: Some("00112233-4455-6677-8899-aabbccddeeff".into()),
        lease_ms: Some(1000),
        staged: Some(true),
        on_lapse: Some(1),
        labels: BTreeMap::from([("l".into(), "v".into())]),
        first_sent_at: Some(prost_types::Timestamp { seconds: 1_769_851_800, nanos: 5_000_000 }),
        ..Default::default()
    }
}

fn complete() -> v1::CompleteRequest {
    let outcome = v1::Outcome {
        status: Some(200),
        headers: BTreeMap::from([("etag".into(), "x".into())]),
        content_type: Some("text/plain".into()),
        body: Some(b"body".as_slice().into()),
        valid_until: None,
        not_stored: false,
    };
    v1::CompleteRequest { record: record_id(), fence: Some(7), outcome: Some(outcome) }
}

fn items() -> Vec<v1::Item> {
    let commands = [v1::item::Command::Claim(claim()), v1::item::Command::Complete(complete())];
    commands.map(|command| v1::Item { command: Some(command) }).to_vec()
}

fn policy() -> v1::SetPolicyRequest {
    let policy = v1::Policy { replay_s: Some(60), on_lapse: Some(2), ..Default::default() };
    let (tenant, operation) = (Some("acme".into()), Some("o".into()));
    v1::SetPolicyRequest { tenant, operation, policy: Some(policy), remove: vec!["evidence_s".into()] }
}

/// Whether the bytes are a message, and a request that may be asked.
fn is_asked<M: Message + Default, R: TryFrom<M, Error = Refusal>>(bytes: &[u8]) -> bool {
    decode::<M>(&mut &*bytes).and_then(R::try_from).is_ok()
}

/// Every unary call's message, over gRPC.
#[test]
fn fuzz_grpc_messages() {
    let fenced = v1::BeginRequest { record: record_id(), fence: Some(7), lease_ms: Some(5) };
    let token = v1::CreateTokenRequest {
        operations: vec!["POST *".into()],
        permissions: vec!["claim".into()],
        ttl_s: Some(60),
        note: Some("n".into()),
        ..Default::default()
    };
    let good = vec![
        claim().encode_to_vec(),
        complete().encode_to_vec(),
        fenced.encode_to_vec(),
        policy().encode_to_vec(),
        token.encode_to_vec(),
        v1::BatchRequest { items: items() }.encode_to_vec(),
    ];
    let words = &["acme", "POST *", "/a", "claim", "evidence_s", "{\"a\":1}"];
    Target { name: "grpc-messages", good, words, cases: 4000 }.run(
        |_| {},
        |bytes| {
            let all = [
                is_asked::<v1::ClaimRequest, ClaimRequest>(bytes),
                is_asked::<v1::BeginRequest, OwnerRequest>(bytes),
                is_asked::<v1::RenewRequest, OwnerRequest>(bytes),
                is_asked::<v1::CheckpointRequest, OwnerRequest>(bytes),
                is_asked::<v1::CompleteRequest, OwnerRequest>(bytes),
                is_asked::<v1::ReleaseRequest, OwnerRequest>(bytes),
                is_asked::<v1::SuspendRequest, OwnerRequest>(bytes),
                is_asked::<v1::GetRequest, GetRequest>(bytes),
                is_asked::<v1::BatchRequest, BatchRequest>(bytes),
                is_asked::<v1::ListRequest, ListRequest>(bytes),
                is_asked::<v1::InvestigateRequest, InvestigateRequest>(bytes),
                is_asked::<v1::ResolveRequest, ResolveRequest>(bytes),
                is_asked::<v1::ForgetRequest, ForgetRequest>(bytes),
                is_asked::<v1::HistoryRequest, HistoryRequest>(bytes),
                is_asked::<v1::WatchRequest, WatchRequest>(bytes),
                is_asked::<v1::GetPolicyRequest, GetPolicyRequest>(bytes),
                is_asked::<v1::SetPolicyRequest, SetPolicyRequest>(bytes),
                is_asked::<v1::CreateTokenRequest, CreateTokenRequest>(bytes),
                is_asked::<v1::ListTokensRequest, ListTokensRequest>(bytes),
                is_asked::<v1::RevokeTokenRequest, RevokeTokenRequest>(bytes),
            ];
            all.contains(&true)
        },
    );
}

/// A frame of a session: each of its commands is one, or refused by itself.
#[test]
fn fuzz_session_frames() {
    let items = items().into_iter().zip(1..).map(|(item, id)| v1::SessionItem { id, item: Some(item) });
    let good = vec![v1::SessionRequest { items: items.collect() }.encode_to_vec()];
    Target { name: "session-frames", good, words: &["acme", "{\"a\":1}"], cases: 3000 }.run(
        |_| {},
        |bytes| {
            let Ok(frame) = decode::<v1::SessionRequest>(&mut &*bytes) else { return false };
            let commands = frame.items.into_iter().map(|item| Command::try_from(item.item.unwrap_or_default()));
            commands.filter(Result::is_ok).count() > 0
        },
    );
}

/// What a panic, a log line or an assertion could show of a request: nothing that its caller has said.
#[test]
fn what_a_caller_says_is_shown_by_no_request() {
    let planted = |message: v1::ClaimRequest| {
        let record = v1::RecordId {
            tenant: Some("acme".into()),
            principal: Some("planted-principal".into()),
            operation: "o".into(),
            key: "planted-key".into(),
        };
        let labels = BTreeMap::from([("planted-label".into(), "planted-label".into())]);
        v1::ClaimRequest { record: Some(record), labels, ..message }
    };
    let outcome = v1::Outcome {
        headers: BTreeMap::from([("planted-header".into(), "planted-header".into())]),
        content_type: Some("planted/type".into()),
        body: Some(b"planted-body".as_slice().into()),
        ..complete().outcome.expect("it has one")
    };
    let record = planted(claim()).record;
    let statement = |text: &str| Some(text.to_owned());
    let resolve = v1::ResolveRequest {
        record: record.clone(),
        version: Some(7),
        verdict: v1::Verdict::Completed.into(),
        outcome: Some(outcome.clone()),
        evidence: "planted-evidence".into(),
        actor: statement("planted-actor"),
        ..Default::default()
    };
    let checkpoint = v1::CheckpointRequest {
        record: record.clone(),
        fence: Some(7),
        name: "planted-name".into(),
        data: Some(b"planted-data".as_slice().into()),
    };
    let suspend = v1::SuspendRequest { record: record.clone(), fence: Some(7), reason: statement("planted-reason") };
    let token = v1::CreateTokenRequest {
        operations: vec!["POST *".into()],
        permissions: vec!["claim".into()],
        note: statement("planted-note"),
        token: Some(crate::auth::TokenText::draw().reveal()),
        ..Default::default()
    };
    let nothing = v1::CreateTokenRequest { operations: Vec::new(), ..token.clone() };
    let refused = CreateTokenRequest::try_from(nothing).expect_err("whoever names nothing gives nothing");
    assert!(refused.code == Code::InvalidArgument && refused.detail.contains("[\"*\"]"), "{refused}");
    let cluster = v1::CreateTokenRequest { permissions: vec!["cluster".into()], ..Default::default() };
    assert!(CreateTokenRequest::try_from(cluster).is_ok());
    let secret = token.token.clone().expect("it has one");
    let shown = [
        format!("{:?}", ClaimRequest::try_from(planted(claim())).expect("a claim")),
        format!("{:?}", OwnerRequest::try_from(v1::CompleteRequest { record, fence: Some(7), outcome: Some(outcome) })),
        format!("{:?}", OwnerRequest::try_from(checkpoint)),
        format!("{:?}", OwnerRequest::try_from(suspend)),
        format!("{:?}", ResolveRequest::try_from(resolve)),
        format!("{:?}", CreateTokenRequest::try_from(token)),
    ];
    for shown in shown {
        // The numbers of bytes, as a derived view would show them.
        let as_bytes = format!("{:?}", b"planted").trim_matches(['[', ']']).to_owned();
        assert!(!shown.starts_with("Err"), "{shown}");
        assert!(!shown.contains("planted") && !shown.contains(&as_bytes) && !shown.contains(&secret[23..]), "{shown}");
    }
}
