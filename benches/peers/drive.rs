//! The generator: the same callers for whatever is measured.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    measure::{Keys, body, processor_s},
    processes::{Taken, taken},
};

/// Of so many keys one is read back.
const SAMPLED: u64 = 500;

/// A caller of a server: what one cycle asks of it. Whatever is not answered as it must be ends the benchmark.
pub trait Caller: Send + 'static {
    /// Claims a key that was never claimed; a grant's fence, which no other grant has.
    fn claim(&mut self, key: &str) -> impl Future<Output = u64> + Send;
    /// Completes what was granted.
    fn complete(&mut self, key: &str, fence: u64, outcome: Bytes) -> impl Future<Output = ()> + Send;
    /// The outcome of a completed key, found by claiming it again or, where that tells none, by reading.
    fn outcome(&mut self, key: &str) -> impl Future<Output = Bytes> + Send;
}

/// What callers saw while it counted.
#[derive(Default)]
pub struct Seen {
    pub cycles: u64,
    /// Of each write, µs.
    pub latencies: Vec<u32>,
    pub seconds: f64,
    pub servers: Taken,
    /// Processor time of the generator.
    pub callers_s: f64,
}

#[derive(Default)]
struct Run {
    counts: AtomicBool,
    ends: AtomicBool,
}

#[derive(Default)]
struct Own {
    cycles: u64,
    fences: Vec<u64>,
    latencies: Vec<u32>,
}

async fn call<C: Caller>(mut caller: C, run: Arc<Run>) -> Own {
    let (mut own, mut keys, mut sampled) = (Own::default(), Keys::random(), Vec::new());
    while !run.ends.load(Ordering::Relaxed) {
        let key = keys.next();
        let outcome = body(&key);
        let counts = run.counts.load(Ordering::Relaxed);
        let began = Instant::now();
        let fence = caller.claim(&key).await;
        let claimed = Instant::now();
        caller.complete(&key, fence, outcome).await;
        let completed = Instant::now();
        own.fences.push(fence);
        if counts {
            own.cycles += 1;
            own.latencies.extend([claimed - began, completed - claimed].map(|time| time.as_micros() as u32));
        }
        if u64::from_str_radix(&key[..8], 16).unwrap_or_default() % SAMPLED == 0 {
            sampled.push(key);
        }
    }
    for key in sampled {
        assert_eq!(caller.outcome(&key).await, body(&key), "the outcome of {key}, byte by byte");
    }
    own
}

/// Has all callers run at once for so long, after a warm-up. `servers` are measured meanwhile.
pub async fn drive<C: Caller>(callers: Vec<C>, servers: &[u32], warm_up: Duration, time: Duration) -> Seen {
    let run = Arc::new(Run::default());
    let tasks: Vec<_> = callers.into_iter().map(|caller| tokio::spawn(call(caller, run.clone()))).collect();
    tokio::time::sleep(warm_up).await;
    let own_s = || {
        let (own, system) = processor_s("self");
        own + system
    };
    let (before, own_before, began) = (taken(servers), own_s(), Instant::now());
    run.counts.store(true, Ordering::Relaxed);
    tokio::time::sleep(time).await;
    run.counts.store(false, Ordering::Relaxed);
    let (seconds, after, own_after) = (began.elapsed().as_secs_f64(), taken(servers), own_s());
    run.ends.store(true, Ordering::Relaxed);
    let mut seen = Seen {
        seconds,
        servers: Taken {
            processor_s: after.processor_s - before.processor_s,
            written_bytes: after.written_bytes - before.written_bytes,
        },
        callers_s: own_after - own_before,
        ..Seen::default()
    };
    let mut fences = Vec::new();
    for task in tasks {
        let own = task.await.expect("a caller that found what it expected");
        seen.cycles += own.cycles;
        seen.latencies.extend(own.latencies);
        fences.extend(own.fences);
    }
    let granted = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), granted, "no fence is given twice");
    seen
}
