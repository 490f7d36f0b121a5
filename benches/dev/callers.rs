//! Callers that claim and complete, check every answer, and tell what they saw.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use semel::{
    Client,
    fingerprint::Fingerprint,
    proto::v1::{self, Answer},
};

use super::{
    measure::{Keys, body, percentile_ms, processor_s},
    node::{Dev, resident_mib},
};

const WARM_UP: Duration = Duration::from_secs(1);
/// Of so many keys one is read back.
const SAMPLED: u64 = 500;
const OPERATION: &str = "charge.create";

/// What the callers share.
pub struct Run {
    /// From now on cycles count.
    pub counts: AtomicBool,
    pub ends: AtomicBool,
    /// Cycles that may still begin.
    pub left: AtomicU64,
    /// From when on, and within how long, the windows of what is completed end.
    pub due_at: Option<(Instant, Duration)>,
}

impl Run {
    /// So many cycles, which all count.
    pub fn of(cycles: u64) -> Self {
        Self { counts: AtomicBool::new(true), ends: AtomicBool::new(false), left: AtomicU64::new(cycles), due_at: None }
    }

    /// The evidence window of a record, s: they end evenly over the time.
    fn evidence_s(&self, key: &str) -> Option<u32> {
        let (at, within) = self.due_at?;
        let place = u64::from_str_radix(&key[..8], 16).unwrap_or_default() % within.as_secs();
        u32::try_from(at.saturating_duration_since(Instant::now()).as_secs() + place).ok()
    }
}

/// What one caller saw.
#[derive(Default)]
pub struct Seen {
    pub cycles: u64,
    pub fences: Vec<u64>,
    /// Of each write, µs.
    pub latencies: Vec<u32>,
    pub sampled: Vec<(String, Bytes)>,
}

pub fn record(key: &str) -> Option<v1::RecordId> {
    Some(v1::RecordId { operation: OPERATION.into(), key: key.to_owned(), ..v1::RecordId::default() })
}

pub fn claim_of(key: &str) -> v1::ClaimRequest {
    let fingerprint = Fingerprint::new(1, [7; 32]);
    v1::ClaimRequest {
        record: record(key),
        fingerprints: vec![v1::Fingerprint { scheme: 1, digest: Bytes::copy_from_slice(fingerprint.digest()) }],
        staged: Some(false),
        ..v1::ClaimRequest::default()
    }
}

/// Claims and completes until the run ends.
pub async fn call(client: Client, run: Arc<Run>) -> Seen {
    let mut seen = Seen::default();
    let mut keys = Keys::random();
    let taken = |left: u64| left.checked_sub(1);
    while !run.ends.load(Ordering::Relaxed)
        && run.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    {
        let key = keys.next();
        let counts = run.counts.load(Ordering::Relaxed);
        let began = Instant::now();
        let evidence_s = run.evidence_s(&key);
        let claim = v1::ClaimRequest { replay_s: evidence_s.map(|_| 1), evidence_s, ..claim_of(&key) };
        let granted = client.claim(claim).await.expect("the claim is answered");
        let claimed = began.elapsed();
        assert_eq!(granted.answer(), Answer::New, "a fresh key is new");
        assert!(granted.attempt == Some(1) && granted.repeated != Some(true), "it is granted once: {granted:?}");
        let fence = granted.fence.expect("a grant has a fence");
        let outcome = v1::Outcome { status: Some(201), body: Some(body(&key)), ..v1::Outcome::default() };
        let complete = v1::CompleteRequest { record: record(&key), fence: Some(fence), outcome: Some(outcome) };
        let began = Instant::now();
        let changed = client.complete(complete).await.expect("the completion is answered");
        let completed = began.elapsed();
        assert_eq!(changed.state(), v1::State::Completed);
        seen.fences.push(fence);
        if counts {
            seen.cycles += 1;
            seen.latencies.extend([claimed, completed].map(|time| time.as_micros() as u32));
        }
        if fence % SAMPLED == 0 {
            let body = body(&key);
            seen.sampled.push((key, body));
        }
    }
    seen
}

/// The same outcome to whoever reads and to whoever claims again.
pub async fn read_back(client: &Client, sampled: &[(String, Bytes)]) {
    for (key, body) in sampled {
        let get = v1::GetRequest { record: record(key), with_outcome: Some(true) };
        let read = client.get(get).await.expect("a completed record can be read");
        assert_eq!(read.outcome.and_then(|outcome| outcome.body).as_ref(), Some(body), "read byte by byte");
        let again = client.claim(claim_of(key)).await.expect("the claim is answered");
        assert_eq!(again.answer(), Answer::Completed);
        assert_eq!(again.outcome.and_then(|outcome| outcome.body).as_ref(), Some(body), "replayed byte by byte");
    }
}

pub fn unique(seen: &[Seen]) {
    let mut fences: Vec<u64> = seen.iter().flat_map(|one| one.fences.iter().copied()).collect();
    let granted = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), granted, "no fence is given twice");
}

pub struct Figures {
    time: Duration,
    node: (f64, f64),
    callers_s: f64,
}

/// So many callers at once, until the time is over or no cycle is left.
pub async fn drive(
    dev: &Dev,
    clients: &[Client],
    concurrent: usize,
    run: Arc<Run>,
    time: Option<Duration>,
) -> (Vec<Seen>, Figures) {
    let callers: Vec<_> =
        (0..concurrent).map(|n| tokio::spawn(call(clients[n % clients.len()].clone(), run.clone()))).collect();
    if time.is_some() {
        tokio::time::sleep(WARM_UP.min(time.unwrap_or_default())).await;
    }
    let before = (processor_s(&dev.pid()), processor_s("self"));
    let began = Instant::now();
    run.counts.store(true, Ordering::Relaxed);
    if let Some(time) = time {
        tokio::time::sleep(time).await;
        run.ends.store(true, Ordering::Relaxed);
    }
    let took = began.elapsed();
    let after = (processor_s(&dev.pid()), processor_s("self"));
    let mut seen = Vec::new();
    for caller in callers {
        seen.push(caller.await.expect("a caller that found what it expected"));
    }
    let time = if time.is_some() { took } else { began.elapsed() };
    let after = if run.ends.load(Ordering::Relaxed) { after } else { (processor_s(&dev.pid()), processor_s("self")) };
    let node = (after.0.0 - before.0.0, after.0.1 - before.0.1);
    let callers_s = after.1.0 + after.1.1 - before.1.0 - before.1.1;
    (seen, Figures { time, node, callers_s })
}

pub fn print(concurrent: usize, seen: &[Seen], figures: &Figures, pid: &str) {
    let cycles: u64 = seen.iter().map(|one| one.cycles).sum();
    let mut latencies: Vec<u32> = seen.iter().flat_map(|one| one.latencies.iter().copied()).collect();
    latencies.sort_unstable();
    let at = |share: f64| percentile_ms(&latencies, share);
    let per_1000 = |seconds: f64| seconds / (cycles as f64 / 1000.0);
    let (now, highest) = resident_mib(pid);
    println!(
        "{concurrent:>10} {:>11.0} {:>8.2} {:>8.2} {:>8.2} {:>12.4} {:>8.4} {:>9.4} {now:>10} {highest:>7}",
        cycles as f64 / figures.time.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        per_1000(figures.node.0 + figures.node.1),
        per_1000(figures.node.1),
        per_1000(figures.callers_s),
    );
}

pub fn heading() {
    println!("           ----------- each write, ms ----------- processor s per 1,000 cycles ----- resident MiB ---");
    println!("concurrent    cycles/s      p50      p99    p99.9         node of which  callers       node highest");
    println!("                                                                 system");
}
