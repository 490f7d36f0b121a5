//! What a node tells where nothing else happens: the applied time stands still there, and nothing may hang on it.

use std::time::Duration;

use tokio::time::timeout;

use super::node::Running;
use crate::{json::Json, proto::v1};

/// Longer than this nothing here may take.
const BOUND: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);

fn text<'a>(json: &'a Json, name: &str) -> &'a str {
    json.member(name).and_then(Json::as_str).unwrap_or_default()
}

fn record(key: &str) -> String {
    format!(r#""record":{{"tenant":"acme","operation":"op","key":"{key}"}}"#)
}

/// Claims again until the answer is as wanted.
async fn claimed_until(running: &Running, key: &str, wanted: impl Fn(&Json) -> bool) -> Json {
    let again = format!(r#"{{{},"request":1}}"#, record(key));
    let asked = async {
        loop {
            let (_, answer) = running.post("/v1/claim", &again).await;
            if wanted(&answer) {
                return answer;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    timeout(BOUND, asked).await.expect("time is read where nothing happens too")
}

async fn own(running: &Running, key: &str, more: &str) -> String {
    let (status, new) = running.post("/v1/claim", &format!(r#"{{{},"request":1{more}}}"#, record(key))).await;
    assert_eq!((status, text(&new, "answer")), (200, "new"), "{new}");
    text(&new, "fence").to_owned()
}

async fn owner(running: &Running, verb: &str, key: &str, fence: &str, more: &str) -> Json {
    let (status, done) =
        running.post(&format!("/v1/{verb}"), &format!(r#"{{{},"fence":"{fence}"{more}}}"#, record(key))).await;
    assert_eq!(status, 200, "{done}");
    done
}

const OUTCOME: &str = r#","outcome":{"status":200}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_record_runs_again_once_its_replay_window_is_over() {
    let running = Running::start().await;
    let policy = r#"{"tenant":"acme","policy":{"expired_claims":"run_as_new"}}"#;
    assert_eq!(running.post("/v1/policy/set", policy).await.0, 200);
    let fence = own(&running, "k", r#","replay_s":1"#).await;
    owner(&running, "complete", "k", &fence, OUTCOME).await;
    assert_eq!(running.post("/v1/forget", &format!("{{{}}}", record("k"))).await.0, 200);
    claimed_until(&running, "k", |answer| text(answer, "answer") == "new").await;
    running.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_investigation_is_over_at_its_deadline() {
    let running = Running::start().await;
    let fence = own(&running, "k", "").await;
    owner(&running, "suspend", "k", &fence, "").await;
    let investigate = format!(r#"{{{},"lease_ms":1000,"actor":"alice"}}"#, record("k"));
    let (status, taken) = running.post("/v1/investigate", &investigate).await;
    assert_eq!(status, 200, "{taken}");
    let investigated = |record: &Json| record.member("investigation").is_some_and(|one| *one != Json::Null);
    assert!(investigated(&taken), "{taken}");
    let read = async {
        while investigated(&running.post("/v1/get", &format!("{{{}}}", record("k"))).await.1) {
            tokio::time::sleep(PAUSE).await;
        }
    };
    timeout(BOUND, read).await.expect("it is shown no longer than it lasts");
    running.node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_hears_of_records_that_are_gone_altogether() {
    let running = Running::start().await;
    let fence = own(&running, "k", r#","replay_s":1,"evidence_s":1"#).await;
    let suspended = owner(&running, "suspend", "k", &fence, "").await;
    let from_index = text(&suspended, "index").parse().ok();
    owner(&running, "complete", "k", &fence, OUTCOME).await;
    let gone = async { while running.post("/v1/get", &format!("{{{}}}", record("k"))).await.0 != 404 {} };
    timeout(BOUND, gone).await.expect("its windows end");
    let watched = v1::WatchRequest { tenant: Some("acme".into()), from_index, ..v1::WatchRequest::default() };
    let mut watch = running.records.clone().watch_indeterminate(watched).await.unwrap().into_inner();
    let told = timeout(BOUND, watch.message()).await.expect("the change is kept").unwrap().unwrap();
    assert!(!told.reset && told.indeterminate.is_empty(), "{told:?}");
    let gone: Vec<_> = told.gone.iter().map(|one| (one.record.as_ref().unwrap().key.as_str(), one.state())).collect();
    assert_eq!(gone, [("k", v1::State::Completed)]);
    running.node.stop().await;
}
