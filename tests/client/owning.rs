//! Owning a record.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use semel::{
    client::{Done, Error, Found, Outcome, Verdict},
    proto::v1::{self, RecordId, State},
    refusal::{Code, Effect},
};
use tokio::sync::watch;

use super::{Single, charge, new, read, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_replayed_byte_for_byte_also_after_a_restart() {
    let single = Single::start().await;
    let client = single.client().await;
    let body: Vec<u8> = (0..64 << 10).map(|i: u32| ((i * 31) >> 3) as u8).collect();
    let outcome = Outcome::new(201).content_type("image/png").header("location", "/charges/1").body(&body);
    let reported = outcome.clone();
    let done = charge(&client, "k").run(async |_| Verdict::from(reported.clone())).await.unwrap();
    assert_eq!(done, Done::Ran(outcome.clone()));
    let single = single.restarted().await;
    for client in [client, single.client().await] {
        let Done::Replayed(mut replay) = charge(&client, "k").run(async |_| panic!("done")).await.unwrap() else {
            panic!("it should be replayed")
        };
        assert!(replay.completed_at.take().is_some());
        assert_eq!(replay, outcome);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_at_once_one_runs_and_the_others_wait_for_its_outcome() {
    let single = Single::start().await;
    let client = single.client().await;
    let (runs, go) = (Arc::new(AtomicUsize::new(0)), watch::channel(false).0);
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (operation, runs) = (charge(&client, "k").wait(Duration::from_secs(60)), runs.clone());
            let mut go = go.subscribe();
            tokio::spawn(async move {
                operation
                    .run(async |_| {
                        go.wait_for(|go| *go).await.unwrap();
                        Verdict::completed(201, format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1))
                    })
                    .await
            })
        })
        .collect();
    until("the others wait", async || single.metric("semel_waiters").await == Some(63)).await;
    go.send_replace(true);
    let mut ran = 0;
    for task in tasks {
        match task.await.unwrap().unwrap() {
            Done::Ran(outcome) => {
                ran += 1;
                assert_eq!(outcome.body.as_deref(), Some(&b"run 1"[..]));
            }
            Done::Replayed(outcome) => assert_eq!(outcome.body.as_deref(), Some(&b"run 1"[..])),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((ran, runs.load(Ordering::SeqCst)), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_claim_is_free_when_staged_and_indeterminate_when_begun() {
    let single = Single::start().await;
    let client = single.client().await;
    drop(new(charge(&client, "staged").claim().await.unwrap()));
    let begun = new(charge(&client, "begun").claim().await.unwrap());
    begun.checkpoint("reserved", "r-1").await.unwrap();
    drop(begun);
    client.close().await;
    let client = single.client().await;
    assert!(matches!(charge(&client, "staged").claim().await.unwrap(), Found::New(_)));
    let record = read(&client, "begun").await;
    assert_eq!(record.state(), State::Indeterminate);
    assert_eq!(record.checkpoint.unwrap().name, "reserved");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_runs_for_many_leases_keeps_its_record() {
    let single = Single::start().await;
    let client = single.client().await;
    let operation = charge(&client, "k").lease(Duration::from_millis(600));
    let done = operation
        .run(async |claim| {
            let deadline_ms = async || {
                let deadline = read(&client, "k").await.lease_deadline.unwrap();
                deadline.seconds * 1000 + i64::from(deadline.nanos) / 1_000_000
            };
            let granted_ms = deadline_ms().await;
            let later = async || deadline_ms().await > granted_ms + 3 * 600;
            until("three leases were granted after the first", later).await;
            assert!(claim.is_live());
            Verdict::completed(201, "")
        })
        .await
        .unwrap();
    assert!(matches!(done, Done::Ran(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_overtaken_changes_nothing() {
    let single = Single::start().await;
    let client = single.client().await;
    let id = || Some(RecordId { operation: "charge.create".into(), key: "k".into(), ..RecordId::default() });
    // By hand, so that nothing renews it: an owner that has stopped.
    let staged = v1::ClaimRequest {
        record: id(),
        request: Some(r#"{"amount":100}"#.into()),
        lease_ms: Some(100),
        staged: Some(true),
        ..v1::ClaimRequest::default()
    };
    let fence = client.claim(staged).await.unwrap().fence;
    let claim = new(charge(&client, "k").wait(Duration::from_secs(10)).claim().await.unwrap());
    assert!(Some(claim.fence()) > fence);
    assert_eq!(claim.attempt(), 2);
    let begin = v1::BeginRequest { record: id(), fence, lease_ms: None };
    let error = client.begin(begin).await.unwrap_err();
    assert_eq!((error.code(), error.effect()), (Some(Code::StaleFence), Effect::None));
    let release = v1::ReleaseRequest { record: id(), fence, evidence: Some("it is mine".to_owned()) };
    assert_eq!(client.release(release).await.unwrap_err().code(), Some(Code::StaleFence));
    claim.complete(Outcome::new(200).body("the second's")).await.unwrap();
    let Found::Completed(outcome) = charge(&client, "k").claim().await.unwrap() else { panic!("it is completed") };
    assert_eq!(outcome.body.as_deref(), Some(&b"the second's"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn verdicts_end_as_they_say() {
    let single = Single::start().await;
    let client = single.client().await;
    let error = charge(&client, "k").run(async |_| Verdict::no_effect("never sent")).await.unwrap_err();
    assert!(matches!(error, Error::NoEffect { .. }), "{error:?}");
    let done = charge(&client, "k").run(async |_| Verdict::unknown("timed out")).await.unwrap();
    assert!(matches!(done, Done::Indeterminate(_)), "no_effect has made it free again: {done:?}");
    let other = client.operation("charge.create").key("k").request_json(r#"{"amount":101}"#);
    assert!(
        matches!(other.claim().await.unwrap(), Found::Conflict(conflict) if conflict.state == State::Indeterminate)
    );
    let Found::Indeterminate(unknown) = charge(&client, "k").claim().await.unwrap() else { panic!("it is kept") };
    assert_eq!(unknown.reason, "timed out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_loses_no_run() {
    let single = Single::start().await;
    let client = single.client().await;
    // A third reports before the node stops, a third while it does, a third once it is back.
    let (running, stage) = (Arc::new(AtomicUsize::new(0)), watch::channel(0_usize).0);
    let tasks: Vec<_> = (0..201)
        .map(|i| {
            let (operation, running) = (charge(&client, &format!("k-{i}")), running.clone());
            let mut stage = stage.subscribe();
            tokio::spawn(async move {
                operation
                    .run(async |_| {
                        running.fetch_add(1, Ordering::SeqCst);
                        stage.wait_for(|stage| *stage >= i % 3).await.unwrap();
                        Verdict::completed(201, "")
                    })
                    .await
            })
        })
        .collect();
    until("all handlers run", async || running.load(Ordering::SeqCst) == 201).await;
    stage.send_replace(1);
    let _single = single.restarted().await;
    stage.send_replace(2);
    for task in tasks {
        assert!(matches!(task.await.unwrap(), Ok(Done::Ran(_))));
    }
}
