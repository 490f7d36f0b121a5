//! How a command gets there and back.

use std::{sync::Mutex, time::Duration};

use futures_util::future::join_all;
use tokio::{
    net::TcpListener,
    time::{Instant, timeout},
};

use super::fake::{Call, Reply, name, refused, refused_call, serve, serve_on, usual};
use crate::{
    client::{Client, Error},
    id::ClusterId,
    limits,
    proto::v1::{self, item::Command, item_answer::Answer},
    refusal::{Code, Effect},
};

fn record(key: impl Into<String>) -> Option<v1::RecordId> {
    Some(v1::RecordId { operation: "charge.create".to_owned(), key: key.into(), ..v1::RecordId::default() })
}

fn get(key: impl Into<String>) -> v1::GetRequest {
    v1::GetRequest { record: record(key), with_outcome: None }
}

#[tokio::test]
async fn one_session_carries_many_tasks_and_every_answer_finds_its_own() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let all = join_all((0..1000).map(|i| client.get(get(format!("k-{i}"))))).await;
    for (i, answer) in all.into_iter().enumerate() {
        assert_eq!(answer.unwrap().record.unwrap().key, format!("k-{i}"));
    }
    let frames = server.frames();
    assert_eq!(frames.iter().sum::<usize>(), 1000);
    assert!(frames.len() < 100, "what waits goes together: {} frames", frames.len());
    assert!(frames.iter().all(|items| *items <= limits::CLIENT_FRAME_ITEMS_MAX));
}

#[tokio::test]
async fn items_go_out_in_the_order_in_which_they_were_called() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    // Fewer than Tokio lets one task do before it must yield: beyond that it polls in an order of its own.
    join_all((0..100).map(|i| client.get(get(format!("k-{i}"))))).await;
    let keys: Vec<String> = server
        .seen()
        .into_iter()
        .map(|call| if let Call::Item(Command::Get(get)) = call { get.record.unwrap().key } else { panic!("{call:?}") })
        .collect();
    let called: Vec<String> = (0..100).map(|i| format!("k-{i}")).collect();
    assert_eq!(keys, called);
}

#[tokio::test]
async fn large_items_get_frames_of_their_own() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let complete = |i: u64| {
        let outcome = v1::Outcome { status: Some(200), body: Some(vec![7; 3 << 20].into()), ..v1::Outcome::default() };
        client.complete(v1::CompleteRequest { record: record("k"), fence: Some(i), outcome: Some(outcome) })
    };
    for answer in join_all((0..6).map(complete)).await {
        answer.unwrap();
    }
    assert_eq!(server.frames(), [1; 6], "two would be over the largest message");
}

#[tokio::test]
async fn a_command_that_no_frame_can_hold_is_refused_and_breaks_nothing() {
    let server = serve(|call, _| usual(call)).await;
    let client = server.client().await;
    let outcome = v1::Outcome { status: Some(200), body: Some(vec![7; 5 << 20].into()), ..v1::Outcome::default() };
    let request = v1::CompleteRequest { record: record("k"), fence: Some(7), outcome: Some(outcome) };
    let error = client.complete(request).await.unwrap_err();
    assert_eq!((error.code(), error.effect()), (Some(Code::RequestTooLarge), Effect::None));
    client.get(get("k")).await.unwrap();
    assert_eq!(server.names(), ["get"]);
}

#[tokio::test]
async fn items_in_flight_at_a_broken_stream_are_repeated_on_the_next() {
    let server = serve(|call, before| match call {
        Call::Item(Command::Get(_)) if before == 20 => Reply::Lose,
        call => usual(call),
    })
    .await;
    let client = server.client().await;
    for answer in join_all((0..100).map(|i| client.get(get(format!("k-{i}"))))).await {
        answer.unwrap();
    }
    assert!(server.names().len() > 100);
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let first = serve_on(listener, |call, _| usual(call)).await;
    let client = first.client().await;
    client.get(get("before")).await.unwrap();
    drop(first);
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(get("after")).await }
    });
    let rebound = async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                // The runtime of the first is still ending.
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let listener = timeout(Duration::from_secs(10), rebound).await.expect("the port is free again");
    // An attempt that comes to nothing, before there is a server again.
    drop(timeout(Duration::from_secs(10), listener.accept()).await.expect("it is tried meanwhile").unwrap());
    let second = serve_on(listener, |call, _| usual(call)).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(second.names(), ["get"]);
}

#[tokio::test]
async fn a_node_that_is_down_is_left_for_the_next() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = serve(|call, _| usual(call)).await;
    let endpoints = format!("http://{nobody},{}", server.endpoint());
    Client::connect(endpoints).await.unwrap().get(get("k")).await.unwrap();
    let lazy = Client::builder().endpoint(format!("http://{nobody}")).endpoint(server.endpoint());
    lazy.connect_lazy().unwrap().get(get("k")).await.unwrap();
    let error = Client::connect(format!("http://{nobody}")).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn what_was_never_sent_has_no_effect() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let builder = Client::builder().endpoint(format!("http://{nobody}")).deadline(Duration::from_secs(1));
    let client = builder.connect_lazy().unwrap();
    for error in [
        client.get(get("k")).await.unwrap_err(),
        client.forget(v1::ForgetRequest { record: record("k"), reason: None }).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!((error.effect(), error.retryable()), (Effect::None, true));
    }
}

#[tokio::test]
async fn what_was_sent_and_not_answered_may_have_an_effect() {
    let server = serve(|_, _| Reply::Silence).await;
    let client = server.hasty().await;
    let request = v1::BeginRequest { record: record("k"), fence: Some(7), lease_ms: None };
    let error = client.begin(request).await.unwrap_err();
    assert_eq!((error.effect(), error.retryable()), (Effect::Unknown, true), "{error:?}");
    assert!(server.names().len() > 1, "it is repeated as long as the deadline allows");
}

#[tokio::test]
async fn an_earlier_attempt_that_may_have_been_applied_is_not_forgotten() {
    let server = serve(|_, before| match before {
        0 => Reply::Lose,
        _ => Reply::Item(refused(Code::Unavailable)),
    })
    .await;
    let request = v1::BeginRequest { record: record("k"), fence: Some(7), lease_ms: None };
    let error = server.hasty().await.begin(request).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "the last attempt had none, the first may have: {error:?}");
}

/// The first try may have released the record, and then the fence is nobody's any more.
#[tokio::test]
async fn a_refusal_speaks_for_the_last_try_alone() {
    let server = serve(|_, before| match before {
        0 => Reply::Lose,
        _ => Reply::Item(refused(Code::StaleFence)),
    })
    .await;
    let request = v1::BeginRequest { record: record("k"), fence: Some(7), lease_ms: None };
    let error = server.client().await.begin(request).await.unwrap_err();
    assert!(matches!(error, Error::RefusedAtLast { .. }), "{error:?}");
    assert_eq!((error.code(), error.effect(), error.retryable()), (Some(Code::StaleFence), Effect::Unknown, false));
}

#[tokio::test]
async fn refusals_that_no_retry_helps_are_not_repeated() {
    let server = serve(|_, _| Reply::Item(refused(Code::StaleFence))).await;
    let request = v1::BeginRequest { record: record("k"), fence: Some(7), lease_ms: None };
    let error = server.client().await.begin(request).await.unwrap_err();
    assert_eq!((error.code(), error.effect(), error.retryable()), (Some(Code::StaleFence), Effect::None, false));
    assert_eq!(server.names().len(), 1);
}

#[tokio::test]
async fn a_retry_waits_for_as_long_as_the_server_asks() {
    let server = serve(|call, before| match call {
        Call::Item(_) if before == 0 => {
            let Answer::Refused(refused) = refused(Code::RateLimited) else { unreachable!("it is a refusal") };
            Reply::Item(Answer::Refused(v1::Refused { retry_after_ms: Some(300), ..refused }))
        }
        Call::Investigate(_) if before == 0 => Reply::Status(refused_call(Code::Unavailable, Some(300))),
        Call::Investigate(_) => Reply::Record(Box::default()),
        call => usual(call),
    })
    .await;
    let client = server.client().await;
    let started = Instant::now();
    client.get(get("k")).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));
    let started = Instant::now();
    client.investigate(v1::InvestigateRequest { record: record("k"), ..Default::default() }).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(server.names(), ["get", "get", "investigate", "investigate"]);
}

#[tokio::test]
async fn a_server_in_trouble_gets_a_bounded_number_of_retries() {
    let server = serve(|_, _| Reply::Item(refused(Code::Unavailable))).await;
    let client = server.hasty().await;
    for answer in join_all((0..1000).map(|i| client.get(get(format!("k-{i}"))))).await {
        assert_eq!(answer.unwrap_err().code(), Some(Code::Unavailable));
    }
    let retries = server.names().len() - 1000;
    assert_eq!(retries as u32, limits::CLIENT_RETRIES_MAX - limits::CLIENT_RETRIES_RESERVED);
    // An owner's report still has its reserve.
    let request = v1::SuspendRequest { record: record("k"), fence: Some(7), reason: None };
    client.suspend(request).await.unwrap_err();
    assert!(server.names().iter().filter(|name| **name == "suspend").count() > 1);
}

#[tokio::test]
async fn another_cluster_is_not_believed_until_it_is_trusted() {
    let server = serve(|call, _| match call {
        Call::Investigate(_) => Reply::Record(Box::default()),
        call => usual(call),
    })
    .await;
    let (old, new) = ("0".repeat(32), "1".repeat(32));
    server.set_cluster_id(&old);
    let client = server.client().await;
    client.get(get("k")).await.unwrap();
    assert_eq!(client.cluster_id(), ClusterId::parse(&old));
    server.set_cluster_id(&new);
    let request = v1::InvestigateRequest { record: record("k"), ..Default::default() };
    let error = client.investigate(request.clone()).await.unwrap_err();
    assert!(matches!(error, Error::ClusterChanged { found, .. } if Some(found) == ClusterId::parse(&new)), "{error:?}");
    assert_eq!((error.effect(), error.retryable()), (Effect::Unknown, false));
    client.trust_cluster(ClusterId::parse(&new).unwrap());
    client.investigate(request).await.unwrap();

    let stranger = Client::builder().endpoint(server.endpoint()).cluster_id(ClusterId::parse(&old).unwrap());
    let error = stranger.connect().await.unwrap().get(get("k")).await.unwrap_err();
    assert!(matches!(error, Error::ClusterChanged { .. }), "sessions are judged as well: {error:?}");
}

#[tokio::test]
async fn a_leader_that_is_named_is_gone_to() {
    let leader = serve(|call, _| usual(call)).await;
    let endpoint = leader.endpoint();
    let follower = serve(move |_, _| {
        let Answer::Refused(refused) = refused(Code::Unavailable) else { unreachable!("it is a refusal") };
        let leader = Some(v1::Leader { id: 2, endpoint: endpoint.clone() });
        Reply::Item(Answer::Refused(v1::Refused { leader, ..refused }))
    })
    .await;
    let client = follower.client().await;
    for _ in 0..3 {
        client.get(get("k")).await.unwrap();
    }
    assert_eq!((follower.names().len(), leader.names().len()), (1, 3));
}

#[tokio::test]
async fn a_session_is_opened_at_the_leader_and_moves_with_it() {
    let (first, second) = (serve(|call, _| usual(call)).await, serve(|call, _| usual(call)).await);
    first.follow(Some(second.endpoint()));
    let client = first.client().await;
    client.get(get("k")).await.unwrap();
    assert_eq!((first.names().len(), second.names().len()), (0, 1), "nothing is sent before the leader is found");
    // It moves while commands come in: nobody is told, and none is spent of what retries there may be.
    second.follow(Some(first.endpoint()));
    first.lead();
    let all = join_all((0..2000).map(|i| client.get(get(format!("k-{i}"))))).await;
    assert!(all.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(first.names().len(), 2000);
}

#[tokio::test]
async fn while_no_leader_is_known_any_node_will_do() {
    let server = serve(|call, _| usual(call)).await;
    server.follow(None);
    let client = server.client().await;
    client.get(get("k")).await.unwrap();
    assert_eq!((server.names().len(), server.sessions()), (1, 1));
}

#[tokio::test]
async fn a_leader_out_of_reach_is_reached_through_the_others() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = serve(|call, _| usual(call)).await;
    server.follow(Some(format!("http://{nobody}")));
    let client = server.client().await;
    for _ in 0..3 {
        client.get(get("k")).await.unwrap();
    }
    assert_eq!((server.names().len(), server.sessions()), (3, 1));
}

#[tokio::test]
async fn a_node_that_is_cut_off_is_left_for_the_next() {
    let cut_off = serve(|_, _| Reply::Item(refused(Code::Unavailable))).await;
    let server = serve(|call, _| match call {
        Call::Investigate(_) => Reply::Record(Box::default()),
        call => usual(call),
    })
    .await;
    let client = Client::connect(format!("{},{}", cut_off.endpoint(), server.endpoint())).await.unwrap();
    client.get(get("k")).await.unwrap();
    assert_eq!(server.names(), ["get"]);
}

#[tokio::test]
async fn a_wait_that_was_broken_off_goes_on_for_what_is_left() {
    let server = serve(|call, before| match call {
        Call::Claim(_) if before == 0 => Reply::Status(refused_call(Code::Unavailable, Some(400))),
        Call::Claim(claim) => Reply::Claim(0, super::fake::granted(claim, 7, 1000)),
        _ => {
            let mut answer = v1::ClaimAnswer::default();
            answer.set_answer(v1::Answer::InProgress);
            Reply::Item(Answer::Claim(answer))
        }
    })
    .await;
    let client = server.client().await;
    client.claim(v1::ClaimRequest { record: record("k"), wait_ms: Some(5000), ..Default::default() }).await.unwrap();
    let waits: Vec<u32> = server
        .seen()
        .iter()
        .filter_map(|call| if let Call::Claim(claim) = call { claim.wait_ms } else { None })
        .collect();
    assert!(waits[0] > 4600 && waits[1] <= 4600 && waits[1] > 0, "{waits:?}");
}

#[tokio::test]
async fn deadlines_go_along() {
    let server = serve(|call, _| match call {
        Call::Claim(claim) => Reply::Claim(0, super::fake::granted(claim, 7, 1000)),
        Call::Investigate(_) => Reply::Record(Box::default()),
        Call::Item(Command::Claim(_)) => {
            let mut answer = v1::ClaimAnswer::default();
            answer.set_answer(v1::Answer::InProgress);
            Reply::Item(Answer::Claim(answer))
        }
        call => usual(call),
    })
    .await;
    let client = server.hasty().await;
    client.investigate(v1::InvestigateRequest { record: record("k"), ..Default::default() }).await.unwrap();
    client.claim(v1::ClaimRequest { record: record("k"), wait_ms: Some(2000), ..Default::default() }).await.unwrap();
    let micros = |timeout: &String| timeout.trim_end_matches('u').parse::<u64>().expect("in microseconds");
    let timeouts: Vec<u64> = server.timeouts().iter().map(micros).collect();
    assert!((1..=250_000).contains(&timeouts[0]), "an attempt's: {timeouts:?}");
    assert!((250_001..=2_250_000).contains(&timeouts[1]), "with the wait: {timeouts:?}");
    let Some(Call::Item(Command::Claim(claim))) = server.seen().into_iter().find(|call| name(call) == "claim") else {
        panic!("{:?}", server.names())
    };
    assert_eq!(claim.ttl_ms(), 250, "a claim that nobody waits for any more need not be applied");
}

#[tokio::test]
async fn a_listing_goes_on_from_its_last_page() {
    let page =
        |cursor: Option<&str>, index| v1::ListAnswer { cursor: cursor.map(str::to_owned), index, records: vec![] };
    let server = serve(move |_, before| match before {
        0 => Reply::Pages(vec![page(Some("a"), 1), page(Some("b"), 2)], true),
        1 => Reply::Pages(vec![page(Some("c"), 3)], false),
        _ => Reply::Pages(vec![page(None, 4)], false),
    })
    .await;
    let client = server.client().await;
    let mut listing = client.list(v1::ListRequest::default());
    let mut pages = Vec::new();
    while let Some(page) = listing.next_page().await.unwrap() {
        pages.push(page.index);
    }
    assert_eq!(pages, [1, 2, 3, 4]);
    let cursors: Vec<_> = server
        .seen()
        .into_iter()
        .map(|call| if let Call::List(list) = call { list.cursor } else { panic!("{call:?}") })
        .collect();
    assert_eq!(cursors, [None, Some("b".to_owned()), Some("c".to_owned())]);
}

#[tokio::test]
async fn a_watch_goes_on_after_the_last_position_that_came_whole() {
    let change = |index, more| v1::WatchAnswer { index, more, ..v1::WatchAnswer::default() };
    let server = serve(move |_, before| match before {
        0 => Reply::Changes(vec![change(5, false), change(6, true)]),
        _ => Reply::Changes(vec![change(6, true), change(6, false)]),
    })
    .await;
    let mut watch = server.client().await.watch(v1::WatchRequest::default());
    for index in [5, 6, 6, 6] {
        assert_eq!(watch.changed().await.unwrap().index, index);
    }
    let from: Vec<_> = server
        .seen()
        .into_iter()
        .map(|call| if let Call::Watch(watch) = call { watch.from_index } else { panic!("{call:?}") })
        .collect();
    assert_eq!(from, [None, Some(5)]);
}

#[tokio::test]
async fn a_stream_whose_answers_are_overdue_is_left() {
    let silent = Mutex::new(true);
    let server = serve(move |call, _| {
        let first = std::mem::take(&mut *silent.lock().unwrap());
        if first { Reply::Silence } else { usual(call) }
    })
    .await;
    let client = server.hasty().await;
    client.get(get("k")).await.unwrap();
    assert_eq!(server.names(), ["get", "get"]);
}
