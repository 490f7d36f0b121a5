//! The run itself: nodes and clients on a simulated network, disk and clocks.

mod clock;
mod crashes;
mod disk;
mod faults;
mod host;
mod interpose;
mod members;
mod net;
mod operator;
mod plain;
mod restores;
mod trace;
mod watched;
mod wounds;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng, seq::IndexedRandom};
use semel::{
    client::Client,
    raft::RoleWord,
    records::{check::check, keys::StoreKey},
    store::records::{META_MARK, Records},
};
use turmoil::Sim;

use self::{
    clock::SimClock,
    faults::{Asked, Faults},
    host::{ADMIN_PORT, Shape, Slot},
    net::{Links, SimNet},
    plain::Plain,
    restores::Shelf,
    watched::Watched,
};
use crate::{
    checks,
    fault::{FaultKind, Fired},
    history::{History, Watch},
    invariants::Evidence,
    ledger::Ledger,
    log::Log,
    options::Options,
    report::Report,
    workload::{self, Setting},
};

/// Longest time that forming the cluster may take, ms.
const FORM_MS: u64 = 30_000;
/// Within this time after the heal service is back, ms.
const LIVENESS_MS: u64 = 30_000;
/// How many nodes may still join.
const SPARE_NODES: u64 = 2;
/// On how many hosts the clients with the library run.
const CALLER_HOSTS: u16 = 2;
/// The host of the operator and of the clients without a library.
const OUTSIDE: &str = "outside";
/// How many clients without a library there are.
const PLAIN_CLIENTS: u64 = 2;
/// How long clients go on after the heal, ms.
const HEALED_MS: u64 = 3_000;
/// How often the replicas are compared, ms.
const COMPARE_MS: u64 = 2_000;
/// In steps of how many ms time may go on: messages arrive between two of them, timers whenever they are due.
const TICKS_MS: [u64; 4] = [1, 2, 2, 5];

/// What a task panicked with first.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// How far the run is; clients look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The cluster is being formed.
    Forming,
    /// Faults happen.
    Faults,
    /// No faults any more: all that is asked must be answered.
    Healed,
    /// Clients finish what they are at.
    Ending,
    /// It is over.
    Over,
}

/// Runs these options from beginning to end: the phase with faults, the heal, the liveness phase, the durability scan,
/// and the checks. The trace, where one is wanted, goes to standard error.
pub fn run(options: &Options, trace: bool) -> Report {
    if trace {
        // What the nodes log, as `SEMEL_LOG` asks for it.
        let filter = tracing_subscriber::EnvFilter::try_from_env("SEMEL_LOG").unwrap_or_else(|_| "semel=warn".into());
        tracing_subscriber::fmt()
            .without_time()
            .with_ansi(false)
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
    }
    std::panic::set_hook(Box::new(|panic| {
        let mut first = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| panic.to_string());
    }));
    // The hash keys of maps are a thread's own, and each map made moves them on: what came before, a trace that is wanted
    // or the command line, must not reach into the run.
    let run = std::thread::scope(|scope| scope.spawn(|| run_alone(options, trace)).join());
    run.unwrap_or_else(|_| {
        let panic = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
        Report::failed("panic", panic.unwrap_or_default())
    })
}

fn run_alone(options: &Options, trace: bool) -> Report {
    interpose::begin(options.seed);
    trace::begin(trace);
    let fired = Fired::default();
    let run = Run::new(options, fired.clone());
    let (operations, history) = (Rc::clone(&run.plain.operations), run.callers.setting.history.clone());
    let (simulated_ms, ended) = run.finish();
    let (hash, steps) = trace::end();
    let mut report = match ended.map(|evidence| checks::check(&evidence)) {
        Err((what, detail)) => Report::failed(what, detail),
        Ok(Err(failure)) => Report { failure: Some(failure), ..Report::default() },
        Ok(Ok(certified)) => Report { certified, ..Report::default() },
    };
    (report.hash, report.steps, report.simulated_ms, report.fired) = (hash, steps, simulated_ms, fired.counts());
    report.operations = operations.get() + history.len() as u64;
    report
}

/// What does not hold, and how it shows.
type Broken = (&'static str, String);

struct Run<'a> {
    options: &'a Options,
    sim: Sim<'a>,
    slots: Vec<Rc<Slot>>,
    faults: Faults,
    phase: Rc<Cell<Phase>>,
    /// What the operator's host is to ask: a node, and a request with its body.
    asked: Rc<RefCell<Vec<Asked>>>,
    plain: Clients,
    callers: Callers,
    log: Log,
    watched: Watched,
    shelf: Rc<Shelf>,
}

/// The clients with the library.
#[derive(Clone)]
struct Callers {
    setting: Rc<Setting>,
    /// How many of their hosts are not done.
    running: Rc<Cell<u16>>,
    shelf: Rc<Shelf>,
}

fn setting(options: &Options, fired: &Fired, watch: Watch, links: &Arc<Links>, phase: &Rc<Cell<Phase>>) -> Setting {
    let (is_faulty, goes_on) = (Rc::clone(phase), Rc::clone(phase));
    let endpoints: Vec<String> =
        (1..=u64::from(options.nodes)).map(|id| format!("http://{}:{}", host::name(id), host::CLIENT_PORT)).collect();
    let (links, nodes) = (Arc::clone(links), usize::from(options.nodes));
    Setting {
        options: options.clone(),
        fired: fired.clone(),
        history: History::default(),
        ledger: Ledger::new(watch.clone()),
        watch,
        connect: Box::new(move |number| {
            let net = SimNet { host: 1_000 + u64::from(number), links: Arc::clone(&links) };
            // Each begins with another node, and stays there until it fails: followers are asked as much as leaders.
            let mut endpoints = endpoints.clone();
            endpoints.rotate_left(usize::from(number) % nodes);
            Client::builder()
                .endpoints(endpoints)
                .insecure_plaintext()
                .clock(Arc::new(SimClock::default()))
                .net(Arc::new(net))
        }),
        shared: RefCell::default(),
        is_faulty: Box::new(move || is_faulty.get() == Phase::Faults),
        goes_on: Box::new(move || matches!(goes_on.get(), Phase::Faults | Phase::Healed)),
    }
}

/// A host with every other client and reconciler on it.
async fn run_callers(callers: Callers, host: u16, phase: Rc<Cell<Phase>>) -> turmoil::Result {
    while phase.get() == Phase::Forming {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let setting = &callers.setting;
    if host == 0 {
        workload::prepare(Rc::clone(setting)).await?;
        callers.shelf.is_prepared.set(true);
    }
    let mine = |number: &u16| number % CALLER_HOSTS == host;
    let clients: Vec<_> = (0..setting.options.clients)
        .filter(mine)
        .map(|number| tokio::task::spawn_local(workload::client(Rc::clone(setting), number)))
        .collect();
    let reconcilers: Vec<_> = (0..u16::from(setting.options.reconcilers))
        .filter(mine)
        .map(|number| tokio::task::spawn_local(workload::reconciler(Rc::clone(setting), number as u8)))
        .collect();
    for client in clients {
        client.await??;
    }
    callers.running.set(callers.running.get() - 1);
    for reconciler in reconcilers {
        reconciler.await??;
    }
    Ok(())
}

/// What the clients without a library have in common.
#[derive(Clone, Default)]
struct Clients {
    broken: Rc<RefCell<Option<String>>>,
    operations: Rc<Cell<u64>>,
    /// How many have asked for everything that was acknowledged.
    scanned: Rc<Cell<u64>>,
}

async fn run_plain(mut client: Plain, phase: Rc<Cell<Phase>>, all: Clients) -> turmoil::Result {
    while phase.get() == Phase::Forming {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let count = client.work(|| phase.get() != Phase::Faults).await;
    all.operations.set(all.operations.get() + count);
    // Only once all of them are done is all of it known.
    while phase.get() == Phase::Faults || client.shelf.is_waiting.get() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let scanned = client.scan().await;
    all.operations.set(all.operations.get() + scanned);
    all.scanned.set(all.scanned.get() + 1);
    Ok(())
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, fired: Fired) -> Self {
        let links = Links::new(options, fired.clone());
        let watch = Watch(Arc::new(|| interpose::now() / 1_000));
        let log = Log::new(watch.clone());
        let mut rng = options.rng("shape");
        let shape = Shape {
            segment_bytes: 1 << rng.random_range(20..=21),
            snapshot_log_bytes: 1 << rng.random_range(12..=17),
            scrub: Duration::from_secs(rng.random_range(5..=60)),
            write: Duration::from_millis(*[0, 0, 1, 2, 5, 10, 30].choose(&mut rng).expect("not empty")),
        };
        let founders = u64::from(options.nodes);
        let tick = *TICKS_MS.choose(&mut rng).expect("not empty");
        // A host costs time in every step, whether it is used or not.
        let spare = if options.rate(FaultKind::MembershipChange) > 0 { SPARE_NODES } else { 0 };
        let slots: Vec<Rc<Slot>> =
            (1..=founders + spare).map(|id| Slot::new(id, shape, Arc::clone(&links), log.clone())).collect();
        host::register(&slots);
        let mut sim = turmoil::Builder::new()
            .rng_seed(options.seed)
            .simulation_duration(Duration::from_secs(100_000))
            .tick_duration(Duration::from_millis(tick))
            .min_message_latency(Duration::from_millis(options.latency_min_ms))
            .max_message_latency(Duration::from_millis(options.latency_max_ms.max(1)))
            .tcp_capacity(1 << 14)
            .enable_random_order()
            .build();
        for slot in &slots {
            let slot = Rc::clone(slot);
            let id = slot.id;
            sim.host(host::name(id), move || Rc::clone(&slot).live());
            slots[id as usize - 1].is_member.set(id <= founders);
            if id > founders {
                sim.crash(host::name(id));
            }
        }
        let phase = Rc::new(Cell::new(Phase::Forming));
        let asked = Rc::new(RefCell::new(Vec::new()));
        let net = SimNet { host: 100, links: Arc::clone(&links) };
        let shelf = Rc::new(Shelf::default());
        let founding = slots[..founders as usize].to_vec();
        let operator = operate(net, founding, Rc::clone(&phase), Rc::clone(&asked), Rc::clone(&shelf));
        let plain = Clients::default();
        let mut others = vec![OUTSIDE.to_owned()];
        let mut scripts = Vec::new();
        for number in 0..PLAIN_CLIENTS {
            let client = Plain {
                net: SimNet { host: 200 + number, links: Arc::clone(&links) },
                slots: slots.clone(),
                number,
                answering: None,
                rng: options.rng(&format!("plain {number}")),
                shelf: Rc::clone(&shelf),
                broken: Rc::clone(&plain.broken),
            };
            scripts.push(run_plain(client, Rc::clone(&phase), plain.clone()));
        }
        sim.client(OUTSIDE, async move {
            let scripts: Vec<_> = scripts.into_iter().map(tokio::task::spawn_local).collect();
            operator.await?;
            for script in scripts {
                script.await??;
            }
            Ok(())
        });
        let callers = Callers {
            setting: Rc::new(setting(options, &fired, watch, &links, &phase)),
            running: Rc::new(Cell::new(CALLER_HOSTS)),
            shelf: Rc::clone(&shelf),
        };
        for host in 0..CALLER_HOSTS {
            let name = format!("callers{host}");
            sim.client(name.as_str(), run_callers(callers.clone(), host, Rc::clone(&phase)));
            others.push(name);
        }
        let faults = Faults::new(options, &slots, others, links, (fired, Rc::clone(&shelf), log.clone()));
        let watched = Watched::default();
        Self { options, sim, slots, faults, phase, asked, plain, callers, log, watched, shelf }
    }

    /// Simulated time in ms, and what the run leaves behind, or what does not hold already.
    fn finish(mut self) -> (u64, Result<Evidence, Broken>) {
        let ended = self.phases();
        (self.now(), ended.map(|()| self.evidence()))
    }

    fn evidence(&self) -> Evidence {
        // How far the log is applied is no part of what is replicated.
        let mark = StoreKey::Meta(META_MARK.into()).encode();
        let dump = |id: u64, records: &Records| {
            let (_, position, rows) = view(records);
            (id, position, rows.filter(|(key, _)| *key != mark[..]).collect())
        };
        let setting = &self.callers.setting;
        Evidence {
            operations: setting.history.all(),
            effects: setting.ledger.effects(),
            steps: self.log.steps(),
            restores: self.log.restores(),
            diverged: self.log.broken(),
            dumps: self.applied().iter().map(|(id, records)| dump(*id, records)).collect(),
        }
    }

    fn phases(&mut self) -> Result<(), Broken> {
        while self.phase.get() == Phase::Forming {
            self.step()?;
            if self.now() > FORM_MS {
                return Err(("liveness", "the cluster was not formed".to_owned()));
            }
        }
        self.faults.begin(self.options, self.now());
        let until = self.now() + self.options.duration_ms;
        while self.now() < until {
            self.step()?;
        }
        self.faults.end(&mut self.sim);
        self.phase.set(Phase::Healed);
        let until = self.now() + HEALED_MS;
        while self.now() < until {
            self.step()?;
        }
        self.phase.set(Phase::Ending);
        let until = self.now() + LIVENESS_MS;
        while self.plain.scanned.get() < PLAIN_CLIENTS || self.callers.running.get() > 0 || !self.agree() {
            self.step()?;
            if self.now() > until {
                let (scanned, running) = (self.plain.scanned.get(), self.callers.running.get());
                let waiting = format!("{scanned} plain clients are answered, {running} hosts of others are not");
                return Err(("liveness", format!("{}; {waiting}", self.standing())));
            }
        }
        self.phase.set(Phase::Over);
        self.check()
    }

    /// What every replica holds is whole in itself: the indexes, the counters and the chains fit the records.
    fn check(&self) -> Result<(), Broken> {
        for (id, records) in self.applied() {
            check(view(&records).2).map_err(|error| ("state", format!("n{id}: {error}")))?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Broken> {
        let now = self.now();
        for slot in &self.slots {
            if let Some(reason) = &*slot.ended.borrow()
                && !slot.disk.borrow().may_end()
                && !reason.starts_with(host::REMOVED)
            {
                return Err(("fatal", format!("n{} ended itself: {reason}", slot.id)));
            }
        }
        self.faults.step(&mut self.sim, now, self.callers.setting.history.answered());
        self.asked.borrow_mut().append(&mut self.faults.asked);
        interpose::set_now(self.sim.elapsed().as_nanos() as u64);
        self.sim.step().map_err(|error| ("host", error.to_string()))?;
        if let Some(panic) = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(("panic", panic));
        }
        if let Some(broken) = self.plain.broken.borrow_mut().take() {
            return Err(("durability", broken));
        }
        if let Some(broken) = self.log.broken() {
            return Err(("replicas", broken));
        }
        if let Some(broken) = self.watched.look(&self.slots, usize::from(self.options.nodes), &self.log, now) {
            return Err(broken);
        }
        if now.is_multiple_of(COMPARE_MS) {
            self.compare()?;
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        self.sim.elapsed().as_millis() as u64
    }

    fn applied(&self) -> Vec<(u64, Arc<Records>)> {
        let applied = |slot: &Rc<Slot>| Some((slot.id, slot.records()?));
        self.slots.iter().filter_map(applied).collect()
    }

    /// Replicas that stand at the same position hold the same.
    fn compare(&self) -> Result<(), Broken> {
        if let Some(slot) = self.slots.iter().find(|slot| slot.is_aside_for_nothing()) {
            let detail = "has put its directory aside, although its disk has kept all that was synced";
            return Err(("aside", format!("n{} {detail}", slot.id)));
        }
        let mut seen: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (id, records) in self.applied() {
            let (index, digest) = digest(&records);
            let (other, twin) = *seen.entry(index).or_insert((id, digest));
            if twin != digest {
                return Err(("replicas", format!("n{id} and n{other} differ at entry {index}")));
            }
        }
        Ok(())
    }

    /// All nodes run, and have applied the same.
    fn agree(&self) -> bool {
        let applied = self.applied();
        let positions: Vec<_> = applied.iter().map(|(_, records)| records.figures().position).collect();
        let votes = |slot: &Rc<Slot>| {
            slot.status().is_some_and(|status| matches!(status.role, RoleWord::Leader | RoleWord::Follower))
        };
        let members: Vec<u64> = self.faults.members.ids().collect();
        positions.len() == members.len()
            && self.faults.members.is_settled()
            && !self.shelf.is_waiting.get()
            && members.iter().all(|id| votes(&self.slots[*id as usize - 1]))
            && positions.windows(2).all(|pair| pair[0] == pair[1])
            && positions.first().is_some_and(|position| position.0 > 0)
            // A log that was slow a moment ago may not hold all of it yet: then no store does.
            && applied.iter().all(|(_, records)| view(records).1 == positions[0].0)
    }

    fn standing(&self) -> String {
        let one = |slot: &Rc<Slot>| match slot.status() {
            Some(status) => format!("n{} {} at {:?}", slot.id, status.role.as_str(), status.applied),
            None => format!("n{} down", slot.id),
        };
        let standing: Vec<String> = self.slots.iter().map(one).collect();
        format!("{}; down: {:?}", standing.join(", "), self.faults.down())
    }
}

/// All that a replica has applied and holds durably, with the last entry and the position that it is of.
fn view(records: &Records) -> (u64, u64, impl Iterator<Item = (Vec<u8>, Bytes)>) {
    let view = records.snapshot().expect("a state in memory can be read");
    let rows = view.rows.into_scan().expect("a state in memory can be read");
    let rows = rows.map(|row| row.expect("a state in memory can be read")).map(|(key, value)| (key.to_vec(), value));
    (view.mark.index, view.globals.position.0, rows)
}

/// A hash of all that a replica has applied, row by row, with the entry that it is of.
fn digest(records: &Records) -> (u64, u64) {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    let (index, _, rows) = view(records);
    for (key, value) in rows {
        hasher.write(&key);
        hasher.write(&value);
    }
    (index, hasher.finish())
}

/// The operator's host: forms the cluster, then does what it is asked.
async fn operate(
    net: SimNet,
    slots: Vec<Rc<Slot>>,
    phase: Rc<Cell<Phase>>,
    asked: Rc<RefCell<Vec<Asked>>>,
    shelf: Rc<Shelf>,
) -> turmoil::Result {
    let members: Vec<String> = slots
        .iter()
        .map(|slot| {
            format!("\"{}\":{{\"peer\":\"{}\",\"client\":\"{}\"}}", slot.id, slot.peer_address(), slot.client_address())
        })
        .collect();
    let body = format!("{{\"nodes\":{{{}}}}}", members.join(","));
    while phase.get() == Phase::Forming {
        let answer = operator::ask(&net, &format!("n1:{ADMIN_PORT}"), "POST /v1/admin/init", &body).await;
        trace::tell(|| format!("init: {answer:?}"));
        if answer.is_ok_and(|answer| answer.is_ok()) {
            phase.set(Phase::Faults);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    while phase.get() != Phase::Over {
        let next = asked.borrow_mut().pop();
        if let Some(asked) = next {
            shelf.carry_out(&net, asked).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
