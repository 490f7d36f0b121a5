//! A provider that times out after it has charged: the worst moment, step by step.
//!
//! ```text
//! semel dev                              in one terminal
//! cargo run --example payment            in another
//! ```
//!
//! `SEMEL_ENDPOINT` names the node (default `http://127.0.0.1:7171`), `SEMEL_TOKEN` a token where it wants one. Ends
//! with status 1 if anything is not as it is told here.

use std::{
    collections::BTreeMap,
    env, fmt,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use semel::{
    Client,
    client::{Done, Error, Finding, Outcome, Reconciler, Verdict},
    fingerprint::Fingerprint,
    proto::v1,
};

const OPERATION: &str = "charge.create";
const REQUEST: &str = r#"{"amount": 4200, "currency": "EUR", "customer": "c-17"}"#;

/// A payment provider with a ledger, in this process. It knows the caller's key, and it is slow at the wrong moment.
#[derive(Default)]
struct Provider {
    ledger: Mutex<BTreeMap<String, String>>,
    charges: AtomicUsize,
}

#[derive(Debug)]
enum Failure {
    /// It refused before it did anything.
    Refused,
    /// No answer came in time: it may have charged, or not.
    TimedOut,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Refused => "the provider refused the request",
            Failure::TimedOut => "the provider did not answer in time",
        })
    }
}

impl Provider {
    async fn charge(&self, request: &str, key: &str) -> Result<String, Failure> {
        if key.is_empty() {
            return Err(Failure::Refused);
        }
        let number = self.charges.fetch_add(1, Ordering::SeqCst) + 1;
        let charge = format!(r#"{{"id":"ch_{number}","charged":{request}}}"#);
        self.ledger.lock().expect("nobody panics with the ledger open").insert(format!("{key}/{number}"), charge);
        // The money is gone; the answer never arrives.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(Failure::TimedOut)
    }

    /// What the provider shows under a key: `GET /charges?idempotency_key=…`.
    fn find(&self, key: &str) -> Vec<String> {
        let ledger = self.ledger.lock().expect("nobody panics with the ledger open");
        ledger.iter().filter(|(at, _)| at.starts_with(key)).map(|(_, charge)| charge.clone()).collect()
    }
}

/// One attempt of the caller: the same key and the same request each time.
async fn pay(semel: &Client, provider: &Provider, key: &str, handled: &AtomicUsize) -> Result<Done, Error> {
    semel
        .operation(OPERATION)
        .key(key)
        .fingerprint(Fingerprint::json_text(REQUEST).expect("the request is JSON"))
        .lease(Duration::from_secs(30))
        .label("amount", "42.00 EUR")
        .run(async |claim| {
            handled.fetch_add(1, Ordering::SeqCst);
            println!("   owned with fence {}, attempt {}", claim.fence(), claim.attempt());
            match provider.charge(REQUEST, claim.downstream_key()).await {
                Ok(charge) => Verdict::from(Outcome::new(201).content_type("application/json").body(charge)),
                Err(failure @ Failure::Refused) => Verdict::no_effect(failure),
                Err(failure @ Failure::TimedOut) => Verdict::unknown(failure),
            }
        })
        .await
}

/// Ends the run where something is not as it should be.
fn must(holds: bool, what: &str) -> Result<(), Box<dyn std::error::Error>> {
    if holds { Ok(()) } else { Err(format!("this should hold and doesn't: {what}").into()) }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = env::var("SEMEL_ENDPOINT").unwrap_or_else(|_| "http://127.0.0.1:7171".to_owned());
    let mut builder = Client::builder().endpoint(&endpoint);
    if let Ok(token) = env::var("SEMEL_TOKEN") {
        builder = builder.token(token);
    }
    let semel = builder.connect().await?;
    let key = format!("order-{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos());
    let (provider, handled) = (Provider::default(), AtomicUsize::new(0));

    println!("1. Charge 42.00 EUR for {key}. The provider charges, and then times out.");
    let done = pay(&semel, &provider, &key, &handled).await?;
    let Done::Indeterminate(unknown) = done else { return Err(format!("indeterminate, not {done:?}").into()) };
    println!("   nobody knows what happened: {}", unknown.reason);

    println!("2. The record is kept as it is.");
    let id = v1::RecordId { operation: OPERATION.to_owned(), key: key.clone(), ..v1::RecordId::default() };
    let record = semel.get(v1::GetRequest { record: Some(id), with_outcome: None }).await?;
    println!("   state {:?}, reason {:?}", record.state(), record.reason());
    must(record.state() == v1::State::Indeterminate, "the record is indeterminate")?;

    println!("3. The caller retries. Nothing is run again.");
    let done = pay(&semel, &provider, &key, &handled).await?;
    must(matches!(done, Done::Indeterminate(_)), "the retry is answered indeterminate")?;
    must(handled.load(Ordering::SeqCst) == 1, "the handler ran once")?;
    println!("   answered indeterminate; the handler ran {} time", handled.load(Ordering::SeqCst));

    println!("4. The reconciler asks the provider, by the downstream key.");
    let mut reconciler = Reconciler::new(&semel, "reconciler@example").operation(OPERATION);
    let pass = reconciler
        .pass(&async |unresolved| {
            if unresolved.key != key {
                return Finding::unknown("not this example's own charge", Duration::from_secs(3600));
            }
            match provider.find(&unresolved.downstream_key).as_slice() {
                [] => Finding::no_effect("the provider shows no charge under the downstream key"),
                [charge] => {
                    let outcome = Outcome::new(201).content_type("application/json").body(charge);
                    Finding::completed(outcome, "the provider shows one charge under the downstream key")
                }
                several => {
                    Finding::unknown(format!("{} charges under one key", several.len()), Duration::from_secs(60))
                }
            }
        })
        .await?;
    println!("   resolved: {} completed, {} without effect", pass.completed, pass.no_effect);
    must(pass.completed == 1, "the charge was found and the record completed")?;

    println!("5. The caller retries again, twice, and is given what the provider did.");
    let charges = provider.find(&record.downstream_key);
    for _ in 0..2 {
        let done = pay(&semel, &provider, &key, &handled).await?;
        let Done::Replayed(outcome) = done else { return Err(format!("replayed, not {done:?}").into()) };
        let body = outcome.body.as_deref().unwrap_or_default();
        println!("   {} {}", outcome.status, String::from_utf8_lossy(body));
        must(
            outcome.status == 201 && body == charges[0].as_bytes(),
            "the replay is the provider's answer, byte for byte",
        )?;
    }
    must(charges.len() == 1 && provider.charges.load(Ordering::SeqCst) == 1, "the ledger shows one charge")?;
    must(handled.load(Ordering::SeqCst) == 1, "the handler ran once")?;
    println!("One charge in the provider's ledger.");
    semel.close().await;
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payment: {error}");
            ExitCode::FAILURE
        }
    }
}
