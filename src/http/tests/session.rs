//! Sessions: pipelined, ordered by record, never blocked by who waits.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Server, scripted::Asked};
use crate::{proto::v1, service::request::OwnerKind};
use v1::{item::Command, item_answer::Answer};

fn id(key: &str) -> Option<v1::RecordId> {
    Some(v1::RecordId { tenant: None, principal: None, operation: "o".into(), key: key.into() })
}

fn item(id: u64, command: Command) -> v1::SessionItem {
    v1::SessionItem { id, item: Some(v1::Item { command: Some(command) }) }
}

fn claim(key: &str, wait_ms: u32) -> Command {
    let wait_ms = Some(wait_ms);
    Command::Claim(v1::ClaimRequest { record: id(key), request: Some("1".into()), wait_ms, ..Default::default() })
}

fn begin(key: &str) -> Command {
    Command::Begin(v1::BeginRequest { record: id(key), fence: Some(1), lease_ms: None })
}

fn renew(key: &str) -> Command {
    Command::Renew(v1::RenewRequest { record: id(key), fence: Some(1), lease_ms: None })
}

fn complete(key: &str) -> Command {
    let outcome = Some(v1::Outcome { status: Some(200), ..Default::default() });
    Command::Complete(v1::CompleteRequest { record: id(key), fence: Some(1), outcome })
}

async fn open(server: &Server) -> (mpsc::Sender<v1::SessionRequest>, Streaming<v1::SessionAnswer>) {
    let (send, frames) = mpsc::channel(8);
    let answers = server.records.clone().session(ReceiverStream::new(frames)).await.unwrap().into_inner();
    (send, answers)
}

async fn all(mut answers: Streaming<v1::SessionAnswer>) -> BTreeMap<u64, Answer> {
    let mut seen = BTreeMap::new();
    while let Some(frame) = answers.message().await.unwrap() {
        for item in frame.items {
            assert!(seen.insert(item.id, item.answer.unwrap().answer.unwrap()).is_none(), "answered twice");
        }
    }
    seen
}

#[tokio::test]
async fn every_item_is_answered_once_and_as_what_it_was() {
    let server = Server::start().await;
    let (send, answers) = open(&server).await;
    let items = vec![
        item(7, claim("completed", 0)),
        item(1, begin("k")),
        item(u64::MAX, claim("not_found", 0)),
        item(3, claim("", 0)),
        v1::SessionItem { id: 4, item: None },
        item(5, Command::Get(v1::GetRequest { record: id("g"), with_outcome: None })),
    ];
    send.send(v1::SessionRequest { items }).await.unwrap();
    send.send(v1::SessionRequest { items: vec![item(8, complete("k"))] }).await.unwrap();
    drop(send);
    let seen = all(answers).await;
    assert_eq!(seen.len(), 7);
    assert!(matches!(&seen[&7], Answer::Claim(own) if own.answer() == v1::Answer::Completed));
    assert!(matches!(&seen[&1], Answer::Begin(_)) && matches!(&seen[&8], Answer::Complete(_)));
    assert!(matches!(&seen[&5], Answer::Get(_)));
    let code = |id: u64| match &seen[&id] {
        Answer::Refused(refused) => refused.code.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (code(u64::MAX).as_str(), code(3).as_str(), code(4).as_str()),
        ("not_found", "invalid_argument", "invalid_argument")
    );
}

#[tokio::test]
async fn items_of_one_record_run_in_order_and_others_do_not_wait_for_them() {
    let server = Server::start().await;
    let (send, mut answers) = open(&server).await;
    let items =
        vec![item(1, begin("slow")), item(2, renew("slow")), item(3, complete("slow")), item(4, begin("other"))];
    send.send(v1::SessionRequest { items }).await.unwrap();
    drop(send);
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(
        first.items.iter().map(|item| item.id).collect::<Vec<_>>(),
        [4],
        "the other record's answer comes first"
    );
    server.calls.released.notify_one();
    let mut order = Vec::new();
    while let Some(frame) = answers.message().await.unwrap() {
        order.extend(frame.items.into_iter().map(|item| item.id));
    }
    assert_eq!(order, [1, 2, 3]);
    let kinds: Vec<OwnerKind> = server
        .calls
        .asked()
        .into_iter()
        .filter_map(|asked| match asked {
            Asked::Owner(owner) if owner.record.key.as_str() == "slow" => Some(owner.action.kind()),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [OwnerKind::Begin, OwnerKind::Renew, OwnerKind::Complete]);
}

#[tokio::test]
async fn a_waiting_claim_does_not_hold_up_the_completion_that_it_waits_for() {
    let server = Server::start().await;
    let (send, answers) = open(&server).await;
    send.send(v1::SessionRequest { items: vec![item(1, claim("waits", 60_000))] }).await.unwrap();
    while server.calls.asked.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    send.send(v1::SessionRequest { items: vec![item(2, complete("waits"))] }).await.unwrap();
    drop(send);
    let seen = all(answers).await;
    assert!(matches!(&seen[&1], Answer::Claim(own) if own.answer() == v1::Answer::Completed), "{seen:?}");
    let asked = server.calls.asked();
    let waits: Vec<u32> = asked
        .iter()
        .filter_map(|asked| match asked {
            Asked::Claim(claim) => Some(claim.wait_ms),
            _ => None,
        })
        .collect();
    assert_eq!(waits, [0, 60_000], "decided in its turn first, then waiting without it");
}

#[tokio::test]
async fn ten_thousand_items_pass_with_bounds_on_what_is_unanswered() {
    let server = Server::start().await;
    let (send, answers) = open(&server).await;
    let sender = tokio::spawn(async move {
        for frame in 0..100_u64 {
            let items = (0..100).map(|n| item(frame * 100 + n, begin(&format!("k-{}", n % 7)))).collect();
            send.send(v1::SessionRequest { items }).await.unwrap();
        }
    });
    let seen = all(answers).await;
    sender.await.unwrap();
    assert_eq!(seen.len(), 10_000);
}
