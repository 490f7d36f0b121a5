//! `semel bench`: how many intents a second a service settles, as the client library sees it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;

use super::{
    args::{Connection, duration_ms, fresh_uuid},
    call::secret,
    failure::Failure,
    proxy::file,
};
use crate::{
    client::{Client, Error},
    limits,
    proto::v1::{self, Answer},
};

/// Have a service settle intents as fast as it can, and say how fast that is.
#[derive(Debug, Args)]
#[command(after_help = "\
Each of so many callers claims a random key and completes it, again and again, over one session. The records leave by
themselves a minute later. Every grant is checked; the first call that fails ends it.

Examples:
  semel bench
  semel bench --endpoint http://10.0.0.1:7171 --callers 256 --duration 30s --tenant acme --token @bench.token --json")]
pub(super) struct Bench {
    /// Callers at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::BENCH_CALLERS_MAX)))]
    callers: u32,
    /// For how long.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration_ms)]
    duration: u32,
    /// Bytes of each outcome.
    #[arg(long, value_name = "N", default_value_t = 300)]
    bytes: u16,
    /// Whose records. Default: the token's tenant, or `default`.
    #[arg(long)]
    tenant: Option<String>,
    /// The operation that is claimed.
    #[arg(long, default_value = "bench")]
    operation: String,
    #[command(flatten)]
    connection: Connection,
}

/// The windows of what it leaves, s.
const KEPT_S: u32 = 60;
/// Of a random fingerprint, bytes.
const DIGEST_BYTES: usize = 32;

/// What a caller saw.
#[derive(Default)]
struct Seen {
    /// Of each call, µs.
    latencies: Vec<u32>,
}

impl Bench {
    pub(super) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
        runtime.block_on(self.drive())
    }

    async fn drive(self) -> Result<(), Failure> {
        let client = self.client()?;
        // The first call finds the node and opens the tenant; what it takes is not the rate.
        cycle(&client, &self).await.map_err(said)?;
        let ends = Arc::new(AtomicBool::new(false));
        let bench = Arc::new(self);
        let began = Instant::now();
        let callers: Vec<_> = (0..bench.callers)
            .map(|_| {
                let (client, bench, ends) = (client.clone(), Arc::clone(&bench), Arc::clone(&ends));
                tokio::spawn(async move {
                    let mut seen = Seen::default();
                    while !ends.load(Ordering::Relaxed) {
                        seen.latencies.extend(cycle(&client, &bench).await?);
                    }
                    Ok::<Seen, Error>(seen)
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(u64::from(bench.duration))).await;
        ends.store(true, Ordering::Relaxed);
        let mut latencies = Vec::new();
        for caller in callers {
            let seen = caller.await.context("a caller")?;
            latencies.extend(seen.map_err(said)?.latencies);
        }
        let rate = latencies.len() as f64 / 2.0 / began.elapsed().as_secs_f64();
        latencies.sort_unstable();
        bench.report(rate, &latencies);
        Ok(())
    }

    fn client(&self) -> Result<Client, Failure> {
        let connection = &self.connection;
        let mut builder = Client::builder().endpoints(connection.endpoint.split(',').map(str::trim));
        if let Some(token) = &connection.token {
            builder = builder.token(secret(token)?);
        }
        if let Some(tenant) = &self.tenant {
            builder = builder.tenant(tenant);
        }
        if let Some(ca) = &connection.ca {
            builder = builder.ca(file(ca.as_ref())?);
        }
        if let (Some(cert), Some(key)) = (&connection.cert, &connection.cert_key) {
            builder = builder.certificate(file(cert.as_ref())?, file(key.as_ref())?);
        }
        if connection.insecure_plaintext_clients {
            builder = builder.insecure_plaintext();
        }
        builder.connect_lazy().map_err(|error| Failure::Usage(error.to_string()))
    }

    fn report(&self, rate: f64, latencies: &[u32]) {
        let at = |share: f64| {
            let place = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
            f64::from(latencies.get(place).copied().unwrap_or_default()) / 1000.0
        };
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        if self.connection.json {
            println!(
                "{{\"callers\":{},\"cycles\":{},\"cycles_per_s\":{rate:.1},\"p50_ms\":{p50},\"p99_ms\":{p99},\"p999_ms\":{p999}}}",
                self.callers,
                latencies.len() / 2
            );
        } else {
            println!("{rate:.0} claims and completions a second of {} callers", self.callers);
            println!("each call: {p50:.2} ms in the middle, {p99:.2} at 99 %, {p999:.2} at 99.9 %");
        }
    }
}

/// One intent from its claim to its outcome; what the two calls took, µs.
async fn cycle(client: &Client, bench: &Bench) -> Result<[u32; 2], Error> {
    let (operation, key) = (bench.operation.clone(), fresh_uuid().hyphenated());
    let record = v1::RecordId { operation, key, ..v1::RecordId::default() };
    let digest = Bytes::from_static(&[7; DIGEST_BYTES]);
    let claim = v1::ClaimRequest {
        record: Some(record.clone()),
        fingerprints: vec![v1::Fingerprint { scheme: 1, digest }],
        staged: Some(false),
        replay_s: Some(KEPT_S),
        evidence_s: Some(KEPT_S),
        ..v1::ClaimRequest::default()
    };
    let began = Instant::now();
    let granted = client.claim(claim).await?;
    let claimed = began.elapsed();
    let fence = match (granted.answer(), granted.fence) {
        (Answer::New, Some(fence)) => fence,
        _ => return Err(Error::Protocol { missing: "a grant for a fresh key" }),
    };
    let body = Bytes::from(vec![b'x'; usize::from(bench.bytes)]);
    let outcome = v1::Outcome { status: Some(201), body: Some(body), ..v1::Outcome::default() };
    let complete = v1::CompleteRequest { record: Some(record), fence: Some(fence), outcome: Some(outcome) };
    let began = Instant::now();
    client.complete(complete).await?;
    let us = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    Ok([us(claimed), us(began.elapsed())])
}

fn said(error: Error) -> Failure {
    match error {
        Error::Unreachable { .. } => Failure::Unreachable(error.to_string()),
        error => Failure::Failed(anyhow::Error::from(error)),
    }
}
