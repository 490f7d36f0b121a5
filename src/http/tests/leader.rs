//! `semel-no-forward`: the leader's own answer, or its name.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};
use tonic_types::StatusExt;

use super::Server;
use crate::{
    json::Json,
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::Leader,
};

const CLAIM: &str = r#"{"record":{"operation":"o","key":"new"},"request":1}"#;
const NO_FORWARD: (&str, &str) = ("semel-no-forward", "1");

fn second() -> Option<Leader> {
    Some(Leader { id: 2, endpoint: "http://127.0.0.1:7181".to_owned() })
}

fn marked<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("semel-no-forward", "1".parse().unwrap());
    request
}

fn get() -> v1::GetRequest {
    let record = v1::RecordId { operation: "o".into(), key: "k".into(), ..v1::RecordId::default() };
    v1::GetRequest { record: Some(record), with_outcome: None }
}

fn named(status: &Status) -> (Option<String>, Option<String>) {
    let info = status.get_details_error_info().expect("our own details");
    assert_eq!((info.reason.as_str(), info.metadata["effect"].as_str()), ("unavailable", "none"));
    let text = |name: &str| info.metadata.get(name).cloned();
    (text("leader_id"), text("leader_endpoint"))
}

#[tokio::test]
async fn a_follower_that_may_not_forward_names_the_leader_at_both_doors() {
    let server = Server::start().await;
    server.calls.set_leader(Some(second()));
    for (path, body) in [("/v1/claim", CLAIM), ("/v1/batch", r#"{"items":[]}"#), ("/v1/policy/get", "{}")] {
        let reply = server.send("POST", path, &[NO_FORWARD], body).await;
        assert_eq!(reply.code(), "unavailable", "{path}");
        let leader = reply.json().member("leader").unwrap().to_text();
        assert_eq!(leader, r#"{"id":2,"endpoint":"http://127.0.0.1:7181"}"#);
    }
    let status = server.records.clone().get(marked(get())).await.unwrap_err();
    assert_eq!(named(&status), (Some("2".to_owned()), second().map(|leader| leader.endpoint)));
    assert!(server.calls.asked().is_empty(), "nothing was asked of the service");
    // Nobody forbids it: forwarded.
    for fields in [&[][..], &[("semel-no-forward", "0")]] {
        assert_eq!(server.send("POST", "/v1/claim", fields, CLAIM).await.status, 200);
    }
}

#[tokio::test]
async fn without_a_known_leader_it_is_null() {
    let server = Server::start().await;
    server.calls.set_leader(Some(None));
    let reply = server.send("POST", "/v1/claim", &[NO_FORWARD], CLAIM).await;
    assert_eq!((reply.code().as_str(), reply.json().member("leader")), ("unavailable", Some(&Json::Null)));
    let status = server.records.clone().get(marked(get())).await.unwrap_err();
    assert_eq!(named(&status), (None, None));
}

#[tokio::test]
async fn on_the_leader_it_has_no_effect() {
    let server = Server::start().await;
    assert_eq!(server.send("POST", "/v1/claim", &[NO_FORWARD], CLAIM).await.status, 200);
    server.records.clone().get(marked(get())).await.unwrap();
}

#[tokio::test]
async fn a_session_is_told_when_its_leader_leads_no_more() {
    let server = Server::start().await;
    let (send, frames) = mpsc::channel(8);
    let opened = server.records.clone().session(marked(ReceiverStream::new(frames))).await;
    let mut answers = opened.unwrap().into_inner();
    let frame = |id| {
        let item = v1::Item { command: Some(Command::Get(get())) };
        v1::SessionRequest { items: vec![v1::SessionItem { id, item: Some(item) }] }
    };
    send.send(frame(1)).await.unwrap();
    let first = answers.message().await.unwrap().unwrap().items.remove(0);
    assert!(matches!(first.answer.unwrap().answer, Some(Answer::Get(_))));
    server.calls.set_leader(Some(second()));
    send.send(frame(2)).await.unwrap();
    let second = answers.message().await.unwrap().unwrap().items.remove(0);
    let Some(Answer::Refused(refused)) = second.answer.unwrap().answer else { panic!("it should be refused") };
    assert_eq!((refused.code.as_str(), refused.leader.unwrap().id), ("unavailable", 2));
    let status = server.records.clone().session(marked(tokio_stream::empty())).await.unwrap_err();
    assert_eq!(named(&status).0.as_deref(), Some("2"));
}
