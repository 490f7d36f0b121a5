//! From the claim to the owner's report.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::fake::{Call, Reply, Running, granted, owned, refused, serve, usual};
use crate::{
    client::{Client, Done, Error, Found, Operation, Outcome, Verdict},
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::{Code, Effect},
};

fn charge(client: &Client) -> Operation {
    client.operation("charge.create").key("k-1").request_json(r#"{"amount":100}"#)
}

/// Waits until the server has seen a command of this name.
async fn seen(server: &Running, name: &str) {
    let until = async {
        while !server.names().contains(&name) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(5), until).await.unwrap_or_else(|_| panic!("no {name} in {:?}", server.names()));
}

#[tokio::test]
async fn a_run_claims_staged_begins_and_completes() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let done = charge(&client)
        .label("amount", "1 EUR")
        .run(async |claim| {
            assert_eq!((claim.fence(), claim.attempt(), claim.downstream_key()), (7, 1, "sml_downstream"));
            claim.checkpoint("reserved", "r-1").await.unwrap();
            Verdict::completed(201, "done")
        })
        .await
        .unwrap();
    assert_eq!(done, Done::Ran(Outcome::new(201).body("done")));
    assert_eq!(server.names(), ["claim", "begin", "checkpoint", "complete"]);
    let Call::Item(Command::Claim(claim)) = &server.seen()[0] else { panic!("a claim comes first") };
    assert!(claim.staged() && claim.attempt_id.is_some() && claim.ttl_ms() > 0, "{claim:?}");
    assert_eq!(claim.labels["amount"], "1 EUR");
}

#[tokio::test]
async fn a_lost_claim_reply_is_repeated_with_the_same_attempt_id_and_another_run_has_another() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Claim(_)) if before == 0 => Reply::Lose,
        call => usual(call),
    })
    .await;
    let client = server.client().await;
    for _ in 0..2 {
        charge(&client).run(async |_| Verdict::completed(201, "")).await.unwrap();
    }
    let attempts: Vec<_> = server
        .seen()
        .into_iter()
        .filter_map(|call| if let Call::Item(Command::Claim(claim)) = call { claim.attempt_id } else { None })
        .collect();
    assert_eq!(attempts.len(), 3);
    assert_eq!(attempts[0], attempts[1], "the repeat is the same claim");
    assert_ne!(attempts[1], attempts[2], "another run is another attempt");
}

#[tokio::test]
async fn a_lost_complete_reply_is_repeated_and_the_handler_is_not() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Complete(_)) if before < 2 => Reply::Lose,
        call => usual(call),
    })
    .await;
    let runs = AtomicUsize::new(0);
    let done = charge(&server.client().await)
        .run(async |_| {
            runs.fetch_add(1, Ordering::SeqCst);
            Verdict::completed(201, "once")
        })
        .await
        .unwrap();
    assert_eq!(done, Done::Ran(Outcome::new(201).body("once")));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let completes: Vec<_> = server.seen().into_iter().filter(|call| super::fake::name(call) == "complete").collect();
    assert_eq!(completes.len(), 3);
    assert!(completes.iter().all(|call| *call == completes[0]), "the same outcome under the same fence");
}

#[tokio::test]
async fn a_result_that_is_unknown_is_asked_for_again() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Claim(_)) if before == 0 => Reply::Item(refused(Code::ResultUnknown)),
        Call::Item(Command::Begin(_)) if before == 0 => Reply::Item(refused(Code::ResultUnknown)),
        call => usual(call),
    })
    .await;
    charge(&server.client().await).run(async |_| Verdict::completed(201, "")).await.unwrap();
    assert_eq!(server.names(), ["claim", "claim", "begin", "begin", "complete"]);
    let seen = server.seen();
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[2], seen[3]);
}

#[tokio::test]
async fn nothing_starts_when_the_result_of_begin_is_never_learnt() {
    let server = serve(|call, _| match call {
        Call::Item(Command::Begin(_)) => Reply::Silence,
        call => usual(call),
    })
    .await;
    let error = charge(&server.hasty().await).run(async |_| panic!("must not start")).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    let names = server.names();
    assert!(names.iter().filter(|name| **name == "begin").count() > 1, "begin is repeated: {names:?}");
    assert_eq!(names.last(), Some(&"release"), "the owner knows that nothing started");
}

#[tokio::test]
async fn nothing_starts_after_95_percent_of_the_lease() {
    let server = serve(|call, _| match call {
        Call::Item(Command::Claim(claim)) => Reply::Item(Answer::Claim(granted(claim, 7, 400))),
        // By the cluster's clock the lease may well be running still: its own count decides for the owner.
        Call::Item(Command::Begin(_)) => Reply::Late(385, Answer::Begin(owned(400))),
        Call::Item(Command::Renew(_)) => Reply::Silence,
        call => usual(call),
    })
    .await;
    let error = charge(&server.client().await).run(async |_| panic!("must not start")).await.unwrap_err();
    assert!(matches!(error, Error::LeaseSpent), "{error:?}");
    assert_eq!(server.names().last(), Some(&"release"));
}

#[tokio::test]
async fn a_lease_is_counted_from_before_the_first_send_of_its_claim() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Claim(_)) if before == 0 => Reply::Silence,
        Call::Item(Command::Claim(claim)) => Reply::Item(Answer::Claim(granted(claim, 7, 60_000))),
        call => usual(call),
    })
    .await;
    let sent_at = Instant::now();
    let Found::New(claim) = charge(&server.hasty().await).claim().await.unwrap() else { panic!("it is new") };
    assert!(sent_at.elapsed() >= Duration::from_millis(250), "the first attempt was waited for");
    assert!(claim.time_left() <= Duration::from_secs(57) - sent_at.elapsed() + Duration::from_millis(20));
}

#[tokio::test]
async fn the_lease_is_renewed_while_the_handler_runs() {
    let server = serve(|call, _| match call {
        Call::Item(Command::Claim(claim)) => Reply::Item(Answer::Claim(granted(claim, 7, 300))),
        Call::Item(Command::Begin(_)) => Reply::Item(Answer::Begin(owned(300))),
        Call::Item(Command::Renew(_)) => Reply::Item(Answer::Renew(owned(300))),
        call => usual(call),
    })
    .await;
    charge(&server.client().await)
        .run(async |claim| {
            while server.names().iter().filter(|name| **name == "renew").count() < 3 {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(claim.is_live(), "three renewals later");
            Verdict::completed(201, "")
        })
        .await
        .unwrap();
    let renewals = server.names().len();
    // That nothing is sent has no condition to wait for: longer than a lease.
    sleep(Duration::from_millis(400)).await;
    assert_eq!(server.names().len(), renewals, "a reported claim is not renewed");
}

#[tokio::test]
async fn an_owner_that_was_overtaken_learns_it_and_still_reports() {
    let server = serve(|call, _| match call {
        Call::Item(Command::Claim(claim)) => Reply::Item(Answer::Claim(granted(claim, 7, 300))),
        Call::Item(Command::Begin(_)) => Reply::Item(Answer::Begin(owned(300))),
        Call::Item(Command::Renew(_) | Command::Complete(_)) => Reply::Item(refused(Code::StaleFence)),
        call => usual(call),
    })
    .await;
    let error = charge(&server.client().await)
        .run(async |claim| {
            timeout(Duration::from_secs(5), claim.lost()).await.expect("the renewal is refused");
            assert!(!claim.is_live());
            assert!(matches!(claim.check(), Err(Error::LeaseSpent)));
            Verdict::completed(201, "it happened")
        })
        .await
        .unwrap_err();
    assert_eq!((error.code(), error.effect()), (Some(Code::StaleFence), Effect::Unknown));
    let Error::Unrecorded { outcome, .. } = error else { panic!("the outcome must not get lost: {error:?}") };
    assert_eq!(*outcome, Outcome::new(201).body("it happened"));
}

#[tokio::test]
async fn a_dropped_guard_is_released_when_staged_and_suspended_when_begun() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let Found::New(staged) = charge(&client).claim().await.unwrap() else { panic!("it is new") };
    drop(staged);
    client.close().await;
    assert_eq!(server.names(), ["claim", "release"]);
    let client = server.client().await;
    let Found::New(begun) = charge(&client).claim().await.unwrap() else { panic!("it is new") };
    begun.begin().await.unwrap();
    drop(begun);
    client.close().await;
    assert_eq!(server.names()[2..], ["claim", "begin", "suspend"]);
    let Call::Item(Command::Suspend(suspend)) = &server.seen()[4] else { panic!("a suspend comes last") };
    assert_eq!(suspend.fence, Some(7));
    assert!(suspend.reason().contains("dropped"), "{suspend:?}");
    assert!(matches!(charge(&client).claim().await, Err(Error::Closed)));
}

#[tokio::test]
async fn closing_waits_for_reports_that_need_a_retry() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Suspend(_)) if before < 2 => Reply::Lose,
        call => usual(call),
    })
    .await;
    let client = server.client().await;
    let Found::New(claim) = charge(&client).begun().claim().await.unwrap() else { panic!("it is new") };
    drop(claim);
    client.close().await;
    assert_eq!(server.names(), ["claim", "suspend", "suspend", "suspend"]);
}

#[tokio::test]
async fn a_panic_in_the_handler_suspends_the_record() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let operation = charge(&client);
    let task = tokio::spawn(async move { operation.run(async |_| panic!("by the test")).await });
    assert!(task.await.unwrap_err().is_panic(), "the panic is the caller's to see");
    client.close().await;
    let Some(Call::Item(Command::Suspend(suspend))) = server.seen().pop() else { panic!("{:?}", server.names()) };
    assert!(suspend.reason().contains("panicked"), "{suspend:?}");
}

#[tokio::test]
async fn a_run_that_is_cancelled_suspends_after_the_handler_started_and_gives_back_before() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Begin(_)) if before == 1 => Reply::Silence,
        call => usual(call),
    })
    .await;
    let client = server.client().await;
    let started = Arc::new(tokio::sync::Notify::new());
    let (operation, signal) = (charge(&client), started.clone());
    let task = tokio::spawn(async move {
        operation
            .run(async |_| {
                signal.notify_one();
                std::future::pending().await
            })
            .await
    });
    started.notified().await;
    task.abort();
    seen(&server, "suspend").await;
    let operation = charge(&client);
    let task = tokio::spawn(async move { operation.run(async |_| panic!("must not start")).await });
    while server.names().iter().filter(|name| **name == "begin").count() < 2 {
        sleep(Duration::from_millis(5)).await;
    }
    task.abort();
    seen(&server, "release").await;
}

#[tokio::test]
async fn a_claim_that_is_cancelled_before_its_answer_is_given_back() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Claim(_)) if before == 0 => Reply::Silence,
        call => usual(call),
    })
    .await;
    let client = server.client().await;
    let operation = charge(&client).begun();
    let task = tokio::spawn(async move { operation.claim().await });
    seen(&server, "claim").await;
    task.abort();
    seen(&server, "release").await;
    let seen = server.seen();
    let (Call::Item(Command::Claim(first)), Call::Item(Command::Claim(second))) = (&seen[0], &seen[1]) else {
        panic!("it is claimed again: {:?}", server.names())
    };
    assert_eq!(first.attempt_id, second.attempt_id, "the same attempt, which nothing was started on");
}

#[tokio::test]
async fn verdicts_become_reports() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let error = charge(&client).run(async |_| Verdict::no_effect("connection refused")).await.unwrap_err();
    assert_eq!((error.effect(), error.retryable()), (Effect::None, true));
    assert!(matches!(error, Error::NoEffect { reason } if reason == "connection refused"));
    let done = charge(&client).run(async |_| Verdict::unknown("timed out")).await.unwrap();
    assert!(matches!(done, Done::Indeterminate(unknown) if unknown.reason == "timed out"));
    let done = charge(&client).run(async |_| Verdict::no_effect(" ")).await.unwrap();
    assert!(matches!(done, Done::Indeterminate(_)), "without evidence it is not known");
    let reports: Vec<_> = server.names().into_iter().filter(|name| !["claim", "begin"].contains(name)).collect();
    assert_eq!(reports, ["release", "suspend", "suspend"]);
}

#[tokio::test]
async fn the_handler_runs_for_a_new_claim_alone() {
    use v1::Answer as Found;
    let all = [Found::Completed, Found::Conflict, Found::InProgress, Found::Indeterminate, Found::Expired];
    let server = serve(move |_, before| {
        let outcome = v1::Outcome { status: Some(201), body: Some("kept".into()), ..v1::Outcome::default() };
        let mut answer = v1::ClaimAnswer {
            outcome: Some(outcome),
            retry_after_ms: Some(2700),
            stale: Some(true),
            reason: Some("lease_lapsed".to_owned()),
            ..v1::ClaimAnswer::default()
        };
        answer.set_answer(all[before]);
        Reply::Item(Answer::Claim(answer))
    })
    .await;
    let client = server.client().await;
    let mut found = Vec::new();
    for _ in all {
        found.push(charge(&client).run(async |_| panic!("must not start")).await.unwrap());
    }
    let Done::Replayed(outcome) = &found[0] else { panic!("{found:?}") };
    assert_eq!((outcome.status, outcome.body.as_deref(), outcome.stale), (201, Some(&b"kept"[..]), true));
    assert!(matches!(found[1], Done::Conflict(_)));
    assert!(matches!(&found[2], Done::InProgress(other) if other.retry_after == Duration::from_millis(2700)));
    assert!(matches!(&found[3], Done::Indeterminate(unknown) if unknown.reason == "lease_lapsed"));
    assert!(matches!(found[4], Done::Expired(_)));
}

#[tokio::test]
async fn a_claim_that_waits_does_so_beside_the_session_and_then_renews_with_begin() {
    let server = serve(|call, _| match call {
        Call::Item(Command::Claim(_)) => {
            let mut answer = v1::ClaimAnswer { retry_after_ms: Some(1000), ..v1::ClaimAnswer::default() };
            answer.set_answer(v1::Answer::InProgress);
            Reply::Item(Answer::Claim(answer))
        }
        Call::Claim(claim) => Reply::Claim(400, granted(claim, 9, 1000)),
        call => usual(call),
    })
    .await;
    let operation = charge(&server.client().await).wait(Duration::from_secs(10));
    operation.run(async |claim| Verdict::completed(claim.fence() as i32, "")).await.unwrap();
    let seen = server.seen();
    let (Call::Item(Command::Claim(first)), Call::Claim(waiting)) = (&seen[0], &seen[1]) else {
        panic!("{:?}", server.names())
    };
    assert_eq!(first.attempt_id, waiting.attempt_id);
    assert_eq!(first.wait_ms, None, "what waits in a session would keep a place in it");
    assert!((9_000..=10_000).contains(&waiting.wait_ms()), "{}", waiting.wait_ms());
    let begin =
        seen.iter().find_map(|call| if let Call::Item(Command::Begin(begin)) = call { Some(begin) } else { None });
    assert_eq!(begin.unwrap().lease_ms, Some(1000), "a third of the lease is over by the owner's own count");
}
