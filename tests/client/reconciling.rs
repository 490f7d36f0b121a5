//! Settling what nobody knows.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use semel::{
    client::{Done, Finding, Found, Outcome, Reconciler, Verdict},
    proto::v1::{self, State},
};

use super::{Single, charge, new, read, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_that_timed_out_is_found_and_replayed() {
    let single = Single::start().await;
    let client = single.client().await;
    charge(&client, "k").label("amount", "1 EUR").run(async |_| Verdict::unknown("timed out")).await.unwrap();
    let downstream_key = read(&client, "k").await.downstream_key;
    let mut reconciler = Reconciler::new(&client, "test@here").operation("charge.create");
    let pass = reconciler
        .pass(&async |unresolved| {
            assert_eq!((&*unresolved.key, &*unresolved.reason), ("k", "timed out"));
            assert_eq!(unresolved.downstream_key, downstream_key);
            assert_eq!(unresolved.labels["amount"], "1 EUR");
            Finding::completed(Outcome::new(201).body("found"), "the provider shows it")
        })
        .await
        .unwrap();
    assert_eq!(pass.completed, 1);
    let Done::Replayed(outcome) = charge(&client, "k").run(async |_| panic!("done")).await.unwrap() else {
        panic!("it should be replayed")
    };
    assert_eq!(outcome.body.as_deref(), Some(&b"found"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_only_paused_is_waited_for_and_the_provider_asked_again() {
    let single = Single::start().await;
    let client = single.client().await;
    let policy = v1::Policy { effect_ms_max: Some(1500), ..v1::Policy::default() };
    let request = v1::SetPolicyRequest { policy: Some(policy), ..v1::SetPolicyRequest::default() };
    client.set_policy(request).await.unwrap();
    let id = v1::RecordId { operation: "charge.create".into(), key: "k".into(), ..Default::default() };
    let claim = v1::ClaimRequest {
        record: Some(id),
        request: Some(r#"{"amount":100}"#.into()),
        lease_ms: Some(100),
        ..Default::default()
    };
    assert_eq!(client.claim(claim).await.unwrap().answer(), v1::Answer::New);
    until("it lapses", async || read(&client, "k").await.state() == State::Indeterminate).await;

    let asked = Arc::new(AtomicUsize::new(0));
    let (counted, reconciling) = (asked.clone(), client.clone());
    let task = tokio::spawn(async move {
        let reconciler = Reconciler::new(&reconciling, "test").every(Duration::from_millis(200));
        reconciler
            .run(async |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                Finding::no_effect("the provider shows nothing")
            })
            .await
    });
    let free = async {
        loop {
            match charge(&client, "k").claim().await.unwrap() {
                Found::New(claim) => break claim,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let claim = tokio::time::timeout(Duration::from_secs(15), free).await.expect("it is settled in the end");
    assert_eq!(asked.load(Ordering::SeqCst), 2, "before the wait and after it");
    assert_eq!(claim.attempt(), 1, "the key has begun a new life");
    task.abort();
    drop(claim);
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_reconciler_leaves_what_the_first_looks_into() {
    let single = Single::start().await;
    let client = single.client().await;
    charge(&client, "k").run(async |_| Verdict::unknown("timed out")).await.unwrap();
    let mut first = Reconciler::new(&client, "first");
    let pass = first
        .pass(&async |_| {
            let mut second = Reconciler::new(&client, "second");
            let pass = second.pass(&async |_| panic!("the first one asks")).await.unwrap();
            assert_eq!(pass.others, 1);
            Finding::no_effect("the provider shows nothing")
        })
        .await
        .unwrap();
    assert_eq!(pass.no_effect, 1);
    drop(new(charge(&client, "k").claim().await.unwrap()));
    client.close().await;
}
