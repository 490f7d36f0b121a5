//! What a proxy shows of itself.

use super::{Answer, Asked, Setting, Upstream, until};

/// The value of a metric, with its labels.
async fn value(setting: &Setting, name: &str) -> Option<u64> {
    let reply = Asked::new("GET", "/metrics").send(setting.serving.metrics_listen().unwrap()).await;
    assert_eq!(reply.status, 200);
    let text = String::from_utf8(reply.body).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn requests_are_counted_by_how_they_were_answered() {
    let large = vec![b'x'; 2000];
    let answers = vec![
        Answer::of(201, "", "order 1"),
        Answer::of(200, "", "plain"),
        Answer::of(500, "", "sorry"),
        Answer::of(429, "", "later"),
        Answer::of(200, "", &large),
    ];
    let setting = Setting::with("[proxy]\noutcome_bytes_max = 1000\n", Upstream::these(answers).await).await;
    let requests = async |answer: &str| {
        value(&setting, &format!("semel_door_requests_total{{answer=\"{answer}\"}}")).await.unwrap_or_default()
    };
    setting.order("k").await;
    setting.order("k").await;
    setting.ask(Asked::new("GET", "/")).await;
    setting.order("failed").await;
    setting.becomes("failed", semel::proto::v1::State::Indeterminate).await;
    setting.order("failed").await;
    setting.order("busy").await;
    setting.order("large").await;
    setting.order("a,b").await;
    for (answer, count) in
        [("first", 4), ("replayed", 1), ("passed", 1), ("outcome_indeterminate", 1), ("key_invalid", 1), ("x", 0)]
    {
        assert_eq!(requests(answer).await, count, "{answer}");
    }
    until("nothing is at work", async || value(&setting, "semel_door_requests_at_work").await == Some(0)).await;
    for (record, count) in [("completed", 2), ("released", 1), ("indeterminate", 1)] {
        let name = format!("semel_door_records_total{{record=\"{record}\"}}");
        assert_eq!(value(&setting, &name).await, Some(count), "{record}");
    }
    assert_eq!(value(&setting, "semel_door_answers_not_stored_total").await, Some(1));
    for gauge in ["semel_door_answers_late", "semel_door_held_bytes", "semel_door_tunnels"] {
        assert_eq!(value(&setting, gauge).await, Some(0), "{gauge}");
    }
    let count = value(&setting, "semel_door_request_seconds_count{answer=\"replayed\"}").await;
    assert_eq!(count, Some(1));
    let elsewhere = Asked::new("GET", "/orders").send(setting.serving.metrics_listen().unwrap()).await;
    assert_eq!(elsewhere.status, 404);
    // The door's own port has no such page of its own.
    assert_eq!(setting.upstream.calls(), 5);
}
