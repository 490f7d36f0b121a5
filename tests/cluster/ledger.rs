//! What callers were told and what they did, kept outside the cluster; and whether all of it still holds.
//!
//! Effects happen here: a worker that was granted a key performs its effect by noting it. Two notes for one key without
//! a statement between them that none happened is the failure that the product exists to prevent (R1).

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    caller::{Caller, Reply, record},
    cluster::PATIENCE,
};

/// How long a call may take: longer than any but a waiting one is allowed to.
const CALL: Duration = Duration::from_secs(12);
/// Between two tries of one call, over all nodes.
const AGAIN: Duration = Duration::from_millis(30);

/// What is known of one key.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Grants that were acknowledged: fence by attempt id.
    grants: HashMap<String, u64>,
    /// Effects performed since the last statement that none happened.
    effects: u32,
    /// The body that a completion was sent with, and whether it was acknowledged.
    completed: Option<(String, bool)>,
    /// A release was sent: what follows depends on whether it arrived.
    released: bool,
}

/// Everything that was acknowledged.
#[derive(Default)]
pub struct Ledger {
    keys: Mutex<BTreeMap<String, Known>>,
    fence: AtomicU64,
    index: AtomicU64,
    answers: AtomicU64,
    /// New grants: when they were asked for, and when they were acknowledged.
    news: Mutex<Vec<(Instant, Instant)>>,
}

impl Ledger {
    /// How many answers were acknowledged so far.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::SeqCst)
    }

    /// How long it took from `since` to the first new grant that was asked for after it; none yet if there was none.
    pub fn recovered_after(&self, since: Instant) -> Option<Duration> {
        let news = self.news.lock().unwrap();
        news.iter().find(|(sent, _)| *sent > since).map(|(_, acknowledged)| acknowledged.duration_since(since))
    }

    /// Waits until a new grant was acknowledged after `since`, and answers how long that took.
    pub async fn wait_for_recovery(&self, since: Instant) -> Duration {
        loop {
            if let Some(took) = self.recovered_after(since) {
                return took;
            }
            assert!(since.elapsed() < PATIENCE, "no new grant since {:?}", since.elapsed());
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn with<T>(&self, key: &str, change: impl FnOnce(&mut Known) -> T) -> T {
        change(self.keys.lock().unwrap().entry(key.to_owned()).or_default())
    }

    fn known(&self, key: &str) -> Known {
        self.with(key, |known| known.clone())
    }
}

/// Workers that claim, perform and complete until they are told to stop.
pub struct Load {
    pub ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    workers: JoinSet<()>,
}

impl Load {
    /// `count` workers, each of which uses all of `nodes`.
    pub fn start(caller: &Caller, nodes: &[SocketAddr], count: u64) -> Self {
        let ledger = Arc::new(Ledger::default());
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = JoinSet::new();
        for number in 0..count {
            let worker = Worker {
                number,
                caller: caller.clone(),
                nodes: nodes.to_vec(),
                ledger: Arc::clone(&ledger),
                stop: Arc::clone(&stop),
            };
            workers.spawn(worker.run());
        }
        Self { ledger, stop, workers }
    }

    /// Waits for this many more answers.
    pub async fn wait_for_answers(&self, more: u64) {
        let (wanted, since) = (self.ledger.answers() + more, Instant::now());
        while self.ledger.answers() < wanted {
            assert!(since.elapsed() < PATIENCE, "the load stands still");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the load and answers what is known.
    pub async fn end(mut self) -> Arc<Ledger> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.workers.join_next().await {
            ended.expect("a worker found something wrong");
        }
        self.ledger
    }
}

struct Worker {
    number: u64,
    caller: Caller,
    nodes: Vec<SocketAddr>,
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    async fn run(self) {
        let mut round = 0_u64;
        while !self.stop.load(Ordering::SeqCst) {
            round += 1;
            // Of eight rounds one goes to a key that several workers want, one tries another request.
            let key = match round % 8 {
                3 => format!("shared-{}", round / 8),
                _ => format!("own-{}-{round}", self.number),
            };
            self.intent(&key, round).await;
            if round % 8 == 5 {
                self.other_request(&format!("own-{}-{}", self.number, round - 1)).await;
            }
        }
    }

    /// Sends one call to one node after the other until one answers or refuses for good. Nothing after the load's end.
    async fn settle(&self, path: &str, body: &Value) -> Option<Reply> {
        let mut at = usize::try_from(self.number).unwrap();
        while !self.stop.load(Ordering::SeqCst) {
            let floor = self.ledger.index.load(Ordering::SeqCst);
            let reply = self.caller.post(self.nodes[at % self.nodes.len()], path, body, CALL).await;
            match reply {
                Ok(reply) if reply.status == 503 || reply.status == 504 => {
                    let effect = if reply.status == 503 { "none" } else { "unknown" };
                    assert_eq!(reply.json["effect"], effect, "{path}: {reply:?}");
                }
                Ok(reply) => {
                    self.acknowledged(&reply, floor);
                    return Some(reply);
                }
                Err(_) => {}
            }
            at += 1;
            sleep(AGAIN).await;
        }
        None
    }

    fn acknowledged(&self, reply: &Reply, floor: u64) {
        self.ledger.answers.fetch_add(1, Ordering::SeqCst);
        if reply.status == 200 {
            let index = reply.number("index");
            assert!(index >= floor, "an answer at {index} after one at {floor}: {reply:?}");
            self.ledger.index.fetch_max(index, Ordering::SeqCst);
        }
    }

    async fn intent(&self, key: &str, round: u64) {
        let attempt_id = uuid(self.number, round);
        let floor = self.ledger.fence.load(Ordering::SeqCst);
        let before = self.ledger.known(key);
        let claim =
            json!({"record": record(key), "request": {"key": key}, "attempt_id": attempt_id, "lease_ms": 60_000});
        let sent = Instant::now();
        let Some(reply) = self.settle("/v1/claim", &claim).await else { return };
        match reply.word() {
            "new" => {
                let fence = reply.number("fence");
                assert!(fence > floor, "{key}: fence {fence} after fence {floor} was acknowledged");
                self.ledger.fence.fetch_max(fence, Ordering::SeqCst);
                self.ledger.news.lock().unwrap().push((sent, Instant::now()));
                let effects = self.ledger.with(key, |known| {
                    known.grants.insert(attempt_id, fence);
                    known.effects += 1;
                    known.effects
                });
                assert_eq!(effects, 1, "{key}: a second effect, under fence {fence}");
                self.report(key, fence, round).await;
            }
            "completed" => {
                let body = text(&reply.json["outcome"]["body"]);
                let (sent, _) =
                    self.ledger.known(key).completed.unwrap_or_else(|| panic!("{key}: nobody completed it"));
                assert_eq!(body, sent, "{key}: another outcome");
            }
            "in_progress" => assert!(
                !before.completed.is_some_and(|(_, acknowledged)| acknowledged),
                "{key}: in progress after it was completed: {reply:?}"
            ),
            other => panic!("{key}: {other}: {reply:?}"),
        }
    }

    /// Reports what happened: mostly an outcome; now and then that nothing did, and then the record is free again.
    async fn report(&self, key: &str, fence: u64, round: u64) {
        if round % 16 == 9 {
            self.ledger.with(key, |known| {
                known.released = true;
                known.effects = 0;
            });
            let release = json!({"record": record(key), "fence": fence.to_string(), "evidence": "nothing was sent"});
            if let Some(reply) = self.settle("/v1/release", &release).await {
                // A repeat of a release that took place finds nothing of its own any more.
                assert!(reply.status == 200 || reply.word() == "stale_fence", "{key}: {reply:?}");
            }
            return;
        }
        let body = format!("{key} under {fence}");
        self.ledger.with(key, |known| known.completed = Some((body.clone(), false)));
        let outcome = json!({"status": 201, "content_type": "text/plain", "body": STANDARD.encode(&body)});
        let complete = json!({"record": record(key), "fence": fence.to_string(), "outcome": outcome});
        if let Some(reply) = self.settle("/v1/complete", &complete).await {
            assert_eq!(reply.status, 200, "{key}: {reply:?}");
            self.ledger.with(key, |known| known.completed = Some((body, true)));
        }
    }

    /// The key of an earlier intent with another request: never accepted (R7).
    async fn other_request(&self, key: &str) {
        let known = self.ledger.known(key);
        if known.grants.is_empty() || known.released {
            return;
        }
        let claim = json!({"record": record(key), "request": {"key": key, "more": true}, "lease_ms": 60_000});
        if let Some(reply) = self.settle("/v1/claim", &claim).await {
            assert_eq!(reply.word(), "conflict", "{key}: {reply:?}");
        }
    }
}

/// Asks the cluster about everything that was acknowledged.
pub async fn verify(ledger: &Ledger, caller: &Caller, nodes: &[SocketAddr]) {
    let keys = ledger.keys.lock().unwrap().clone();
    for (number, (key, known)) in keys.iter().enumerate() {
        let node = nodes[number % nodes.len()];
        let claim = json!({"record": record(key), "request": {"key": key}});
        let reply = settled(caller, node, "/v1/claim", &claim).await;
        match (&known.completed, known.released) {
            (Some((body, true)), _) => {
                assert_eq!(reply.word(), "completed", "{key} was completed: {reply:?}");
                assert_eq!(text(&reply.json["outcome"]["body"]), *body, "{key}: another outcome");
            }
            // Not known whether it arrived: the record is as its owner left it, or as the report made it.
            (Some((body, false)), _) => match reply.word() {
                "completed" => assert_eq!(text(&reply.json["outcome"]["body"]), *body, "{key}: another outcome"),
                word => assert!(word == "in_progress" || word == "indeterminate", "{key}: {reply:?}"),
            },
            (None, true) => {
                assert!(["new", "in_progress", "indeterminate"].contains(&reply.word()), "{key}: {reply:?}")
            }
            (None, false) if known.grants.is_empty() => {}
            (None, false) => {
                assert!(["in_progress", "indeterminate"].contains(&reply.word()), "{key} was granted: {reply:?}");
            }
        }
    }
}

async fn settled(caller: &Caller, node: SocketAddr, path: &str, body: &Value) -> Reply {
    let since = Instant::now();
    loop {
        match caller.post(node, path, body, CALL).await {
            Ok(reply) if reply.status != 503 && reply.status != 504 => return reply,
            other => assert!(since.elapsed() < PATIENCE, "{path}: {other:?}"),
        }
        sleep(AGAIN).await;
    }
}

fn text(base64: &Value) -> String {
    String::from_utf8(STANDARD.decode(base64.as_str().unwrap_or_default()).unwrap()).unwrap()
}

fn uuid(worker: u64, round: u64) -> String {
    format!("00000000-0000-4000-8000-{:06x}{:06x}", worker + 1, round)
}
