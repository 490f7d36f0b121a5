//! A million records whose windows all end within one minute, and what callers notice of it.
//!
//! The records are completed first, each with an evidence window that ends at a second of that minute. A few callers then
//! claim and complete before the minute, in it, and until everything due is gone; their latencies stand side by side.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    Asked,
    callers::{Run, call, drive, heading, print, unique},
    measure::percentile_ms,
    node::{Dev, tell},
};

/// Callers that complete what will be due.
const FILLERS: usize = 256;
/// Callers that are measured.
const PROBES: usize = 16;
const MINUTE: Duration = Duration::from_secs(60);
/// Records a second that are completed at least, to judge when the minute may begin.
const FILLED_PER_S: u64 = 1500;
const USUAL: Duration = Duration::from_secs(20);
/// Longer than this after the minute nothing due is left.
const GONE_WITHIN: Duration = Duration::from_secs(120);

pub async fn due(asked: &Asked, dir: &Path, records: u64) {
    let dev = Dev::start(dir, asked);
    let clients = dev.clients(asked.sessions).await;
    heading();
    let minute_at = Instant::now() + Duration::from_secs(records / FILLED_PER_S) + USUAL + USUAL;
    let run = Run { due_at: Some((minute_at, MINUTE)), ..Run::of(records) };
    let (seen, figures) = drive(&dev, &clients, FILLERS, Arc::new(run), None).await;
    print(FILLERS, &seen, &figures, &dev.pid());
    unique(&seen);
    let left_s = minute_at.saturating_duration_since(Instant::now());
    assert!(left_s > USUAL, "completing {records} records took too long: they are due already");
    tokio::time::sleep(left_s - USUAL).await;
    let before = stored(&dev).await;
    let usual = probe(&dev, minute_at.saturating_duration_since(Instant::now()), "before the minute").await;
    let during = probe(&dev, MINUTE, "in the minute").await;
    let from = Instant::now();
    let mut after = stored(&dev).await;
    while after > before / 10 && from.elapsed() < GONE_WITHIN {
        tokio::time::sleep(Duration::from_secs(1)).await;
        after = stored(&dev).await;
    }
    println!("records: {before} before, {after} after; the last left {:.0?} behind the minute", from.elapsed());
    println!("p99 in the minute is {:.2} times the usual", during / usual);
    tell(&dev, "at the end");
    dev.stop();
}

/// Drives the probes for so long; the p99 of their writes, ms.
async fn probe(dev: &Dev, time: Duration, when: &str) -> f64 {
    let run = Arc::new(Run::of(u64::MAX));
    let client = dev.clients(1).await.remove(0);
    let callers: Vec<_> = (0..PROBES).map(|_| tokio::spawn(call(client.clone(), run.clone()))).collect();
    tokio::time::sleep(time).await;
    run.ends.store(true, Ordering::Relaxed);
    let mut latencies = Vec::new();
    for caller in callers {
        latencies.extend(caller.await.expect("a caller that found what it expected").latencies);
    }
    latencies.sort_unstable();
    let at = |share: f64| percentile_ms(&latencies, share);
    let rate = latencies.len() as f64 / 2.0 / time.as_secs_f64();
    println!("{when}: {rate:.0} cycles/s of {PROBES} callers, a write {:.2} ms p50, {:.2} p99", at(0.5), at(0.99));
    at(0.99)
}

/// Records that the store holds.
async fn stored(dev: &Dev) -> u64 {
    let metrics = dev.metrics().await;
    let line = metrics.lines().find_map(|line| line.strip_prefix("semel_records ")).expect("the node counts records");
    line.parse().expect("a number")
}
