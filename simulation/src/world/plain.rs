//! A client without a library, as curl in a script would be: it claims over HTTP, completes, asks again until it is
//! answered, and remembers what was acknowledged. After the heal it asks for all of it: the durability scan.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use rand::{Rng, rngs::SmallRng, seq::IteratorRandom};
use semel::json::{Fields, Json};

use super::{
    host::{CLIENT_PORT, Slot},
    net::SimNet,
    operator::{self, Answer},
    restores::Shelf,
};

/// Pause between two tries of one request.
const AGAIN: Duration = Duration::from_millis(150);
/// Longest pause between two operations, ms.
const PAUSE_MS: u64 = 200;
/// Most bytes of an outcome.
const OUTCOME_BYTES: usize = 6_000;
/// Most outcomes that are asked for again.
const SCANNED_MAX: usize = 50;
/// How often one request is tried while faults happen: then its client gives up, and nobody knows.
const TRIES: u32 = 40;

/// What was acknowledged: the outcome of each key, as it was sent.
pub type Acknowledged = Rc<RefCell<BTreeMap<String, String>>>;

/// One client.
pub struct Plain {
    /// Its way to the nodes.
    pub net: SimNet,
    /// The nodes, of which it asks those that are members.
    pub slots: Vec<Rc<Slot>>,
    /// Its number.
    pub number: u64,
    /// Who answered last.
    pub answering: Option<u64>,
    /// Its randomness.
    pub rng: SmallRng,
    /// What it and the others were acknowledged, and how often all of it was lost.
    pub shelf: Rc<Shelf>,
    /// What broke a promise, if anything did.
    pub broken: Rc<RefCell<Option<String>>>,
}

impl Plain {
    /// Claims and completes until `is_over`. Counts what was acknowledged.
    pub async fn work(&mut self, is_over: impl Fn() -> bool) -> u64 {
        let mut count = 0;
        while !is_over() {
            let key = format!("plain-{}-{count}", self.number);
            let losses = self.shelf.losses.get();
            // What was answered by a cluster that is lost by now may be lost with it.
            if let Some(outcome) = self.cycle(&key).await
                && self.shelf.losses.get() == losses
            {
                self.shelf.acknowledged.borrow_mut().insert(key, outcome);
            }
            count += 1;
            let pause = self.rng.random_range(0..=PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        count
    }

    /// Asks for outcomes that were acknowledged, as many as there is time for; returns how many these are. What all
    /// replicas hold at the end is compared with the log besides.
    pub async fn scan(&mut self) -> u64 {
        let acknowledged = self.shelf.acknowledged.borrow().clone();
        let chosen = acknowledged.iter().choose_multiple(&mut self.rng, SCANNED_MAX);
        for (key, outcome) in &chosen {
            let found = self.claim(key).await;
            let held = found
                .as_ref()
                .and_then(|answer| Fields::new(answer.clone()).ok())
                .and_then(|mut fields| fields.opt_object("outcome").ok()??.opt_string("body").ok()?);
            if held.as_ref() != Some(*outcome) {
                let found = found.map_or("no answer".to_owned(), |answer| answer.to_text());
                self.break_with(format!("the outcome of {key} was acknowledged, and is now: {found}"));
            }
        }
        chosen.len() as u64
    }

    /// The outcome that was acknowledged, in base64.
    async fn cycle(&mut self, key: &str) -> Option<String> {
        let losses = self.shelf.losses.get();
        let claimed = self.claim(key).await?;
        let fence = text(&claimed, "fence");
        let answer = text(&claimed, "answer");
        // Whoever was unreachable for longer than its lease finds that nobody knows.
        if answer.as_deref() == Some("indeterminate") || self.shelf.losses.get() != losses {
            return None;
        }
        if answer.as_deref() != Some("new") {
            self.break_with(format!("{key} is nobody else's, and its claim is answered {}", claimed.to_text()));
            return None;
        }
        let bytes = self.rng.random_range(1..OUTCOME_BYTES / 3) * 4;
        let outcome: String = (0..bytes).map(|_| char::from(self.rng.random_range(b'A'..=b'Z'))).collect();
        let body = format!(
            "{{\"record\":{},\"fence\":\"{}\",\"outcome\":{{\"status\":200,\"body\":\"{outcome}\"}}}}",
            record(key),
            fence?
        );
        let (completed, _) = self.asked("POST /v1/complete", &body).await?;
        completed.is_ok().then_some(outcome)
    }

    async fn claim(&mut self, key: &str) -> Option<Json> {
        let attempt: u128 = self.rng.random();
        let text = format!("{attempt:032x}");
        let attempt =
            format!("{}-{}-4{}-8{}-{}", &text[..8], &text[8..12], &text[13..16], &text[17..20], &text[20..32]);
        let body = format!(
            "{{\"record\":{},\"request\":{{\"key\":\"{key}\"}},\"attempt_id\":\"{attempt}\",\"lease_ms\":60000}}",
            record(key)
        );
        let (answer, is_first) = self.asked("POST /v1/claim", &body).await?;
        let answer = Json::parse(answer.body.as_bytes()).ok()?;
        let repeated = Fields::new(answer.clone()).ok().and_then(|mut fields| fields.opt_bool("repeated").ok()?);
        if is_first && repeated == Some(true) {
            self.break_with(format!("every try of {key} was refused as not done, and one was: {}", answer.to_text()));
        }
        Some(answer)
    }

    /// Asks one node after the other, until one answers; and whether every try before was refused as not done.
    async fn asked(&mut self, request: &str, body: &str) -> Option<(Answer, bool)> {
        let mut is_first = true;
        for _ in 0..TRIES {
            // Whoever answered last is asked again; now and then somebody else is.
            let members = self.slots.iter().filter(|slot| slot.is_member.get()).map(|slot| slot.id);
            let other = members.choose(&mut self.rng).expect("a cluster has members");
            let node = self.answering.filter(|_| self.rng.random_ratio(9, 10)).unwrap_or(other);
            match operator::ask(&self.net, &format!("n{node}:{CLIENT_PORT}"), request, body).await {
                // In the range of 4xx: too late for a fence, since it was unreachable for longer than its lease.
                Ok(answer) if answer.is_ok() || (answer.status / 100 == 4 && answer.status != 429) => {
                    self.answering = Some(node);
                    return Some((answer, is_first));
                }
                told => {
                    let json = told.ok().and_then(|answer| Json::parse(answer.body.as_bytes()).ok());
                    is_first &= json.and_then(|json| text(&json, "effect")).as_deref() == Some("none");
                    self.answering = None;
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
        None
    }

    fn break_with(&self, how: String) {
        self.broken.borrow_mut().get_or_insert(how);
    }
}

fn record(key: &str) -> String {
    format!("{{\"tenant\":\"plain\",\"principal\":\"script\",\"operation\":\"POST /v1/charges\",\"key\":\"{key}\"}}")
}

fn text(json: &Json, name: &'static str) -> Option<String> {
    Fields::new(json.clone()).ok()?.opt_string(name).ok()?
}
