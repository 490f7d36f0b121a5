//! Every metric tells something: one that nobody sets fails here.

use std::time::Duration;

use tokio::time::timeout;
use tokio_stream::StreamExt;

use super::node::Running;
use crate::{metrics::NAMES, proto::v1};

/// What one node at rest on loopback, with nothing wrong, rightly shows as nothing.
const NOTHING: &[(&str, &str)] = &[
    ("semel_refused_connections_total", "no limit was met"),
    ("semel_waiters", "nobody waits for long"),
    ("semel_unreadable_fields_total", "every field opens"),
    ("semel_authentication_failures_total", "development mode asks for no credential"),
    ("semel_token_file_reload_failures_total", "there is no token file"),
    ("semel_tls_reload_failures_total", "certificates that can't be used"),
    ("semel_queued_commands", "the proposer keeps up"),
    ("semel_queued_bytes", "the proposer keeps up"),
    ("semel_purged_index", "the log is short"),
    ("semel_clock_offset_seconds", "the one clock there is agrees with itself"),
    ("semel_forwarded_commands_total", "nobody else leads"),
    ("semel_member_reachable", "there is no other member"),
    ("semel_member_lag_entries", "there is no other member"),
    ("semel_member_clock_offset_seconds", "there is no other member"),
    ("semel_tenant_records", "no tenant is told by name"),
    ("semel_tenant_record_bytes", "no tenant is told by name"),
    ("semel_tenant_in_progress", "no tenant is told by name"),
    ("semel_tenant_indeterminate", "no tenant is told by name"),
    ("semel_in_progress", "everything is completed or in doubt"),
    ("semel_disk_is_full", "there is room"),
    ("semel_overlay_bytes", "a flush may just have been"),
    ("semel_scrubbed_bytes_total", "a scrub comes once in hours"),
    ("semel_scrub_passes_total", "a scrub comes once in hours"),
    ("semel_snapshots_total", "the log is short"),
    ("semel_snapshot_failures_total", "the log is short"),
    ("semel_snapshot_seconds", "the log is short"),
    ("semel_snapshot_bytes", "the log is short"),
    ("semel_snapshot_position", "the log is short"),
    ("semel_oldest_indeterminate_age_seconds", "it is younger than a second"),
];

/// The sum over all series of a name; of a histogram, its count.
fn shown(text: &str, name: &str) -> Option<f64> {
    let of = |line: &&str| {
        let rest = line.strip_prefix(name)?;
        let rest = rest.strip_prefix("_count").unwrap_or(rest);
        let value = match rest.chars().next() {
            Some('{') => rest.rsplit('}').next()?,
            Some(' ') => rest,
            _ => return None,
        };
        value.trim().parse::<f64>().ok()
    };
    let values: Vec<f64> = text.lines().filter_map(|line| of(&line)).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_is_set_by_somebody() {
    let running = Running::start().await;
    let claim = r#"{"record":{"operation":"op","key":"k"},"request":1,"staged":false}"#;
    let (_, new) = running.post("/v1/claim", claim).await;
    let fence = new.member("fence").and_then(crate::json::Json::as_str).unwrap().to_owned();
    let doubt = format!(r#"{{"record":{{"operation":"op","key":"k"}},"fence":"{fence}"}}"#);
    assert_eq!(running.post("/v1/suspend", &doubt).await.0, 200);
    // A session and a watch stay open until the metrics are read.
    let item = v1::Item {
        command: Some(v1::item::Command::Get(v1::GetRequest {
            record: Some(v1::RecordId { operation: "op".into(), key: "k".into(), ..Default::default() }),
            with_outcome: None,
        })),
    };
    let frame = v1::SessionRequest { items: vec![v1::SessionItem { id: 1, item: Some(item) }] };
    let frames = tokio_stream::iter([frame]).chain(tokio_stream::pending());
    let mut records = running.records.clone();
    let mut session = records.session(frames).await.unwrap().into_inner();
    assert_eq!(session.message().await.unwrap().unwrap().items.len(), 1);
    let watched = v1::WatchRequest::default();
    let mut watch = records.watch_indeterminate(watched).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();

    let mut silent = Vec::new();
    let told = async {
        loop {
            let (_, text) = running.operators("/metrics").await;
            let is_silent = |name: &&str| shown(&text, name).is_none_or(|value| value == 0.0);
            silent = NAMES.iter().map(|(name, _)| *name).filter(is_silent).collect::<Vec<_>>();
            silent.retain(|name| NOTHING.iter().all(|(expected, _)| expected != name));
            // A flush comes within a second.
            if silent.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let told = timeout(Duration::from_secs(20), told).await;
    assert!(told.is_ok(), "nobody sets {silent:?}");
    drop((session, watch));
    running.node.stop().await;
}
