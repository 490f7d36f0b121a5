//! The reconciler's loop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::{sleep, timeout};

use super::fake::{Call, Reply, Running, refused_call, serve, state, usual};
use crate::{
    client::{Error, Finding, Outcome, Reconciler},
    proto::v1::{self, Verdict, item::Command, item_answer::Answer},
    refusal::Code,
};

fn indeterminate(version: u64) -> v1::Record {
    v1::Record {
        record: Some(v1::RecordId {
            operation: "charge.create".to_owned(),
            key: "k-1".to_owned(),
            ..v1::RecordId::default()
        }),
        state: v1::State::Indeterminate.into(),
        version,
        downstream_key: "sml_downstream".to_owned(),
        reason: Some("timed out".to_owned()),
        ..v1::Record::default()
    }
}

fn listed(record: v1::Record) -> Reply {
    Reply::Pages(vec![v1::ListAnswer { records: vec![record], ..v1::ListAnswer::default() }], false)
}

/// A server with one indeterminate record of version 8, which is 9 once it is taken up.
fn one_record(call: &Call) -> Reply {
    match call {
        Call::List(_) => listed(indeterminate(8)),
        Call::Investigate(_) => Reply::Record(Box::new(indeterminate(9))),
        Call::Resolve(_) => Reply::Owner(state(v1::State::Completed)),
        Call::Watch(_) => Reply::Silence,
        call => usual(call),
    }
}

fn resolves(server: &Running) -> Vec<v1::ResolveRequest> {
    let resolve = |call| if let Call::Resolve(resolve) = call { Some(resolve) } else { None };
    server.seen().into_iter().filter_map(resolve).collect()
}

#[tokio::test]
async fn a_record_is_taken_up_asked_about_and_settled_as_it_was() {
    let server = serve(|call, _| one_record(call)).await;
    let mut reconciler = Reconciler::new(&server.client().await, "test@here").operation("charge.create");
    let pass = reconciler
        .pass(&async |unresolved| {
            assert_eq!((&*unresolved.downstream_key, &*unresolved.reason), ("sml_downstream", "timed out"));
            Finding::completed(Outcome::new(201).body("found"), "the provider shows it")
        })
        .await
        .unwrap();
    assert_eq!(pass.completed, 1);
    assert_eq!(server.names(), ["list", "investigate", "resolve"]);
    let Call::List(list) = &server.seen()[0] else { panic!("the list comes first") };
    assert_eq!((list.state(), list.operation()), (v1::State::Indeterminate, "charge.create"));
    let Call::Investigate(investigate) = &server.seen()[1] else { panic!("then it is taken up") };
    assert_eq!((investigate.version, investigate.actor()), (Some(8), "test@here"));
    let resolve = resolves(&server).remove(0);
    assert_eq!((resolve.verdict(), resolve.version), (Verdict::Completed, Some(9)));
    assert_eq!(resolve.outcome.unwrap().body.unwrap(), "found");
    assert_eq!(resolve.evidence, "the provider shows it");
    assert!(resolve.request_id.is_some());
}

#[tokio::test]
async fn a_lost_verdict_is_repeated_with_the_same_request_id() {
    let server = serve(|call, before| match call {
        Call::Resolve(_) if before == 0 => Reply::Status(tonic::Status::unavailable("lost on the way back")),
        call => one_record(call),
    })
    .await;
    let mut reconciler = Reconciler::new(&server.client().await, "test");
    assert_eq!(reconciler.pass(&async |_| Finding::no_effect("no such charge")).await.unwrap().no_effect, 1);
    let resolves = resolves(&server);
    assert_eq!(resolves.len(), 2);
    assert_eq!(resolves[0], resolves[1]);
}

#[tokio::test]
async fn a_record_that_changed_is_read_and_asked_about_again() {
    let server = serve(|call, before| match call {
        Call::Resolve(_) if before == 0 => Reply::Status(refused_call(Code::VersionChanged, None)),
        Call::Item(Command::Get(_)) => Reply::Item(Answer::Get(indeterminate(12))),
        Call::Investigate(_) if before == 1 => Reply::Record(Box::new(indeterminate(13))),
        call => one_record(call),
    })
    .await;
    let asked = AtomicUsize::new(0);
    let mut reconciler = Reconciler::new(&server.client().await, "test");
    let ask = async |_| {
        asked.fetch_add(1, Ordering::SeqCst);
        Finding::no_effect("no such charge")
    };
    assert_eq!(reconciler.pass(&ask).await.unwrap().no_effect, 1);
    assert_eq!(asked.load(Ordering::SeqCst), 2, "what was found is about the record as it was");
    assert_eq!(server.names(), ["list", "investigate", "resolve", "get", "investigate", "resolve"]);
    let versions: Vec<_> = resolves(&server).into_iter().map(|resolve| resolve.version).collect();
    assert_eq!(versions, [Some(9), Some(13)]);
}

#[tokio::test]
async fn a_record_that_its_owner_completed_meanwhile_is_left_alone() {
    let server = serve(|call, _| match call {
        Call::Investigate(_) => Reply::Status(refused_call(Code::VersionChanged, None)),
        Call::Item(Command::Get(_)) => {
            let mut record = indeterminate(12);
            record.set_state(v1::State::Completed);
            Reply::Item(Answer::Get(record))
        }
        call => one_record(call),
    })
    .await;
    let mut reconciler = Reconciler::new(&server.client().await, "test");
    let pass = reconciler.pass(&async |_| panic!("nothing is to be asked")).await.unwrap();
    assert_eq!((pass.others, server.names()), (1, vec!["list", "investigate", "get"]));
}

#[tokio::test]
async fn while_the_owner_may_act_no_effect_is_put_aside_and_asked_about_again() {
    let settled = AtomicBool::new(false);
    let server = serve(move |call, before| match call {
        Call::Resolve(_) if before == 0 => Reply::Status(refused_call(Code::OwnerMayAct, Some(400))),
        Call::Resolve(_) => {
            settled.store(true, Ordering::SeqCst);
            one_record(call)
        }
        Call::List(_) if settled.load(Ordering::SeqCst) => Reply::Pages(vec![v1::ListAnswer::default()], false),
        call => one_record(call),
    })
    .await;
    let client = server.client().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let task = tokio::spawn(async move {
        let reconciler = Reconciler::new(&client, "test").every(Duration::from_millis(150));
        reconciler
            .run(async |_| match counted.fetch_add(1, Ordering::SeqCst) {
                0 => Finding::no_effect("no such charge yet"),
                // The owner was only paused: it has charged meanwhile.
                _ => Finding::completed(Outcome::new(201), "it came late"),
            })
            .await
    });
    let settled = async {
        while resolves(&server).len() < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), settled).await.unwrap_or_else(|_| panic!("{:?}", server.names()));
    task.abort();
    let verdicts: Vec<_> = resolves(&server).iter().map(v1::ResolveRequest::verdict).collect();
    assert_eq!(verdicts, [Verdict::NoEffect, Verdict::Completed]);
    assert_eq!(asked.load(Ordering::SeqCst), 2, "once before the wait and once after it, not in between");
}

#[tokio::test]
async fn a_duplicate_at_the_provider_stays_indeterminate() {
    let server = serve(|call, _| one_record(call)).await;
    let mut reconciler = Reconciler::new(&server.client().await, "test");
    let pass = reconciler.pass(&async |_| Finding::duplicate("409 payout exists")).await.unwrap();
    assert_eq!((pass.unknown, pass.no_effect), (1, 0));
    let resolve = resolves(&server).remove(0);
    assert_eq!(resolve.verdict(), Verdict::Unknown);
    assert!(resolve.evidence.contains("409 payout exists"));
    let again = SystemTime::try_from(resolve.check_again_at.unwrap()).unwrap();
    assert!(again > SystemTime::now());
}

#[tokio::test]
async fn evidence_is_never_made_up() {
    let server = serve(|call, _| match call {
        Call::Resolve(resolve) if resolve.evidence.is_empty() => {
            Reply::Status(refused_call(Code::InvalidArgument, None))
        }
        call => one_record(call),
    })
    .await;
    let mut reconciler = Reconciler::new(&server.client().await, "test");
    let pass = reconciler.pass(&async |_| Finding::no_effect("  ")).await.unwrap();
    assert_eq!((pass.failed, pass.no_effect), (1, 0));
}

#[tokio::test]
async fn a_record_that_is_to_be_looked_at_later_is_left_until_then() {
    let server = serve(|call, _| match call {
        Call::List(_) => {
            let later = SystemTime::now() + Duration::from_secs(60);
            listed(v1::Record { check_again_at: Some(later.into()), ..indeterminate(8) })
        }
        call => one_record(call),
    })
    .await;
    let mut reconciler = Reconciler::new(&server.client().await, "test");
    let pass = reconciler.pass(&async |_| panic!("nothing is to be asked")).await.unwrap();
    assert_eq!((pass.unknown, server.names()), (0, vec!["list"]));
}

#[tokio::test]
async fn a_change_is_looked_at_without_waiting_for_the_next_round() {
    let server = serve(|call, before| match call {
        Call::List(_) if before == 0 => Reply::Pages(vec![v1::ListAnswer::default()], false),
        Call::Watch(_) if before == 0 => {
            let change = v1::WatchAnswer { index: 9, indeterminate: vec![indeterminate(9)], ..Default::default() };
            Reply::Changes(vec![change])
        }
        call => one_record(call),
    })
    .await;
    let client = server.client().await;
    let task = tokio::spawn(async move {
        let reconciler = Reconciler::new(&client, "test").every(Duration::from_secs(600));
        reconciler.run(async |_| Finding::no_effect("no such charge")).await
    });
    let settled = async {
        while resolves(&server).is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), settled).await.unwrap_or_else(|_| panic!("{:?}", server.names()));
    task.abort();
}

#[tokio::test]
async fn a_credential_that_is_not_taken_ends_the_loop() {
    let server = serve(|_, _| Reply::Status(refused_call(Code::Forbidden, None))).await;
    let reconciler = Reconciler::new(&server.client().await, "test");
    let ended = timeout(Duration::from_secs(5), reconciler.run(async |_| panic!("nothing is to be asked"))).await;
    let error: Error = ended.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::Forbidden));
}
