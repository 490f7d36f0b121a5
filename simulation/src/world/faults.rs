//! Faults: when each happens, to whom, and what ends it.

use std::{cmp::Reverse, collections::BinaryHeap, rc::Rc, sync::Arc, time::Duration};

use rand::{
    Rng,
    rngs::SmallRng,
    seq::{IndexedRandom, IteratorRandom, SliceRandom},
};
use semel::disk::{
    Call,
    fault::{Crash, Failure},
};
use turmoil::Sim;

use super::{
    disk::{SimDisk, Trap},
    host::{Slot, name},
    members::{Duty, Members},
    net::Links,
    restores::{Restores, Shelf},
    trace,
    wounds::Wounds,
};
use crate::{
    fault::{FaultKind, Fired, Unit},
    log::Log,
    options::Options,
    workload::PAUSE_MS_MAX,
};

/// What ends by itself after a while.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Undo {
    /// Hosts hear each other again.
    Repair(String, String),
    /// A flapping link changes again: so many times, every so many ms.
    Flap(u64, u64, u32, u64),
    /// A link is as quick as it was.
    Latency(u64, u64),
    /// A log no longer waits.
    Disk(u64),
    /// A node's clocks are right again.
    Clock(u64),
    /// A node goes on.
    Resume(u64),
    /// Clients go on.
    ResumeClients(String),
    /// A host's tasks get enough time.
    Feed(u64),
    /// A node starts again.
    Start(u64),
    /// A node that was deposed dies.
    Die(u64),
}

/// How often it is looked what a wound has come to, ms.
const LOOK_MS: u64 = 500;

/// What an operator asks of a node.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The node.
    pub node: u64,
    /// Method and path.
    pub request: &'static str,
    /// The body.
    pub body: String,
}

impl Asked {
    /// Asks this of this node.
    pub fn of(node: u64, request: &'static str, body: String) -> Self {
        Self { node, request, body }
    }
}

/// When the next of a kind comes.
struct Due {
    kind: FaultKind,
    mean_ms: f64,
    at: u64,
}

/// The faults of a run.
pub struct Faults {
    pub(super) slots: Vec<Rc<Slot>>,
    links: Arc<Links>,
    pub(super) fired: Fired,
    pub(super) rng: SmallRng,
    due: Vec<Due>,
    pub(super) undo: BinaryHeap<Reverse<(u64, Undo)>>,
    latency_max: Duration,
    /// Clients' hosts, which partitions also cut off.
    others: Vec<String>,
    /// Nodes that are down, to be started again.
    pub(super) down: Vec<u64>,
    /// Crashes that wait for an answer, and until when at most.
    pub(super) lurking: Vec<(u64, FaultKind)>,
    /// How many calls of clients were answered.
    pub(super) answered: u64,
    /// What the operator is to do.
    pub asked: Vec<Asked>,
    /// Who is a member.
    pub members: Members,
    pub(super) wounds: Wounds,
    pub(super) restores: Restores,
}

impl Faults {
    /// The faults of these options, none of them before `set_bad`.
    pub fn new(
        options: &Options,
        slots: &[Rc<Slot>],
        others: Vec<String>,
        links: Arc<Links>,
        (fired, shelf, log): (Fired, Rc<Shelf>, Log),
    ) -> Self {
        Self {
            slots: slots.to_vec(),
            links,
            fired,
            rng: options.rng("faults"),
            due: Vec::new(),
            undo: BinaryHeap::new(),
            latency_max: Duration::from_millis(options.latency_max_ms.max(1)),
            others,
            down: Vec::new(),
            lurking: Vec::new(),
            answered: 0,
            asked: Vec::new(),
            members: Members::new(u64::from(options.nodes), slots.len() as u64 - u64::from(options.nodes)),
            wounds: Wounds::default(),
            restores: Restores::new(options, shelf, log),
        }
    }

    /// From now on faults happen.
    pub fn begin(&mut self, options: &Options, now: u64) {
        self.links.set_bad(true);
        for (kind, rate) in &options.faults {
            if kind.unit() == Unit::PerMinute {
                let mean_ms = 60_000.0 / f64::from(*rate);
                let at = now + after(&mut self.rng, mean_ms);
                self.due.push(Due { kind: *kind, mean_ms, at });
            }
        }
    }

    /// Ends all faults: what is cut is whole, what is down starts.
    pub fn end(&mut self, sim: &mut Sim<'_>) {
        self.due.clear();
        self.lurking.clear();
        self.restores.end();
        self.links.set_bad(false);
        let hosts: Vec<String> = self.hosts();
        for (at, one) in hosts.iter().enumerate() {
            for other in &hosts[at + 1..] {
                sim.release(one.as_str(), other.as_str());
                sim.repair(one.as_str(), other.as_str());
                sim.set_link_max_message_latency(one.as_str(), other.as_str(), self.latency_max);
            }
        }
        self.undo.clear();
        for slot in self.slots.clone() {
            slot.clock.heal();
            slot.log_delay.set(Duration::ZERO);
            slot.engines.set_dying(None);
            slot.disk.borrow().disarm();
            slot.disk.borrow().inner().heal();
        }
        for node in std::mem::take(&mut self.down) {
            if self.members.has(node) {
                self.start(sim, node);
            }
        }
    }

    /// What is due at this simulated time, ms. So many calls of clients were answered so far.
    pub fn step(&mut self, sim: &mut Sim<'_>, now: u64, answered: u64) {
        self.take_away(sim, now);
        self.strike(sim, now, answered);
        if now.is_multiple_of(LOOK_MS) {
            self.look_restores(sim, now);
            self.asked.extend(self.wounds.look(&self.slots, now));
            let (asked, duty) = self.members.look(&self.slots, now, &mut self.rng);
            self.asked.extend(asked);
            if let Some(Duty::End(node)) = duty {
                trace::tell(|| format!("n{node} is over"));
                self.slot(node).is_member.set(false);
                self.crash(sim, now, node, Crash::KeepUnsynced);
            }
        }
        while self.undo.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, undo))) = self.undo.pop() else { break };
            self.undo(sim, now, undo);
        }
        for at in 0..self.due.len() {
            let (kind, mean_ms, due) = (self.due[at].kind, self.due[at].mean_ms, self.due[at].at);
            if due <= now {
                self.due[at].at = now + after(&mut self.rng, mean_ms);
                if self.lurks(now, kind) {
                    continue;
                }
                if self.happens(sim, now, kind) {
                    trace::note(0, kind.word(), now, &[]);
                    trace::tell(|| format!("fault {kind}"));
                    // A trap counts when it springs, a dark connection when it is used.
                    if kind != FaultKind::HalfOpen && !is_trap(kind) {
                        self.fired.hit(kind);
                    }
                }
            }
        }
    }

    /// Nodes that are down.
    pub fn down(&self) -> &[u64] {
        &self.down
    }

    /// Makes it happen, if it can now.
    pub(super) fn happens(&mut self, sim: &mut Sim<'_>, now: u64, kind: FaultKind) -> bool {
        match kind {
            FaultKind::Partition => self.partition(sim, now),
            FaultKind::OneWay => self.one_way(sim, now),
            FaultKind::Bridge => self.bridge(sim, now),
            FaultKind::Flapping => {
                let (a, b) = self.pair();
                let every = self.rng.random_range(50..=500);
                let times = self.flaps();
                self.undo(sim, now, Undo::Flap(a, b, times, every));
                true
            }
            FaultKind::DelaySpike => {
                let (a, b) = self.pair();
                let ms = self.rng.random_range(200..=2_000);
                sim.set_link_max_message_latency(name(a), name(b), Duration::from_millis(ms));
                self.later(now, 500..=5_000, Undo::Latency(a, b));
                true
            }
            FaultKind::HalfOpen => {
                let node = self.node();
                self.links.darken(node);
                true
            }
            FaultKind::Crash => self.crash_any(sim, now, Crash::LoseUnsynced),
            FaultKind::TornCrash => {
                let seed = self.rng.random();
                self.crash_any(sim, now, Crash::Tear(seed))
            }
            FaultKind::CrashInRecovery => self.crash_any(sim, now, Crash::LoseUnsynced) && self.trap(Trap::Recovery),
            FaultKind::CrashInSnapshotBuild => self.trap(Trap::Snapshot),
            FaultKind::CrashInPurge => self.trap(Trap::Purge),
            FaultKind::CrashInSync => self.trap(Trap::Sync),
            FaultKind::CrashInInstall => {
                let node = self.node();
                let after = self.rng.random_range(0..12);
                self.slot(node).engines.set_dying(Some(after));
                true
            }
            FaultKind::DeposedLeader => self.depose(sim, now),
            FaultKind::PowerLoss => {
                let seed: u64 = self.rng.random();
                let members: Vec<u64> = self.members.ids().collect();
                for id in members {
                    if !self.down.contains(&id) {
                        self.crash(sim, now, id, Crash::Tear(seed ^ id));
                    }
                }
                true
            }
            FaultKind::ReadError => self.fail_disk(Failure::Eio),
            FaultKind::DiskFull => self.fail_disk(Failure::Enospc),
            // Now and then all of them: they may be one storage in the end.
            FaultKind::SlowDisk if self.rng.random_ratio(1, 4) => {
                let members: Vec<u64> = self.members.ids().collect();
                members.into_iter().all(|node| self.delay_log(now, node, 20..=400, 1_000..=8_000))
            }
            FaultKind::SlowDisk => {
                let node = self.node();
                self.delay_log(now, node, 20..=400, 1_000..=8_000)
            }
            FaultKind::HungDisk => {
                let node = self.node();
                self.delay_log(now, node, 3_000..=12_000, 2_000..=4_000)
            }
            FaultKind::ClockJump | FaultKind::ClockDrift | FaultKind::ClockStrobe => self.clock(now, kind),
            FaultKind::NodePause => self.pause(sim, now),
            FaultKind::ClientPause => {
                // What its clients say is held, and what they would hear.
                let Some(host) =
                    self.others.iter().filter(|host| host.starts_with("callers")).choose(&mut self.rng).cloned()
                else {
                    return false;
                };
                for node in self.members.ids() {
                    sim.hold(host.as_str(), name(node));
                }
                self.later(now, 500..=PAUSE_MS_MAX, Undo::ResumeClients(host));
                true
            }
            FaultKind::StarvedScheduler => {
                let node = self.node();
                self.links.starve(node, true);
                self.later(now, 1_000..=6_000, Undo::Feed(node));
                true
            }
            FaultKind::LeaderTransfer => {
                let node = self.node();
                self.asked.push(Asked::of(node, "POST /v1/admin/transfer", format!("{{\"id\":{node}}}")));
                true
            }
            FaultKind::MembershipChange => match self.can_wound().then(|| self.members.begin()).flatten() {
                Some(Duty::Start(node)) => {
                    self.slot(node).is_member.set(true);
                    self.start(sim, node);
                    true
                }
                _ => false,
            },
            FaultKind::LostDisk | FaultKind::OldDisk => self.wound_disk(sim, now, kind),
            FaultKind::BitFlipLog | FaultKind::BitFlipSnapshot | FaultKind::BitFlipNote => {
                let node = self.node();
                let slot = self.slot(node);
                self.members.is_settled() && self.can_wound() && self.wounds.flip(&slot, kind, &mut self.rng)
            }
            FaultKind::Restore => {
                self.begin_restore(now);
                false
            }
            _ => false,
        }
    }

    /// Whether no node is wounded, and all of them are not being replaced.
    fn can_wound(&self) -> bool {
        self.wounds.is_open() && self.restores.is_quiet()
    }

    /// A node comes back with another disk than it had.
    fn wound_disk(&mut self, sim: &mut Sim<'_>, now: u64, kind: FaultKind) -> bool {
        // An old disk is the one of which there is a copy.
        let node = if kind == FaultKind::OldDisk { self.wounds.old_of(now) } else { Some(self.node()) };
        let Some(node) = node.filter(|node| self.members.has(*node)) else { return false };
        // One that has forgotten and one that is down are two of those that the model has fail: of three it has one.
        let failed = self.down.len() + 1;
        if kind == FaultKind::OldDisk && failed > self.members.ids().count() / 2 {
            return false;
        }
        let slot = self.slot(node);
        if !self.members.is_settled() || !self.can_wound() || self.down.contains(&node) {
            return false;
        }
        let Some(disk) = self.wounds.other_disk(&slot, kind) else { return false };
        self.crash(sim, now, node, Crash::LoseUnsynced);
        slot.engines.delete();
        slot.disk.replace(SimDisk::new(node, disk));
        true
    }

    fn undo(&mut self, sim: &mut Sim<'_>, now: u64, undo: Undo) {
        match undo {
            Undo::Repair(a, b) => sim.repair(a, b),
            Undo::Flap(a, b, times, every) => {
                match times % 2 {
                    0 => sim.partition(name(a), name(b)),
                    _ => sim.repair(name(a), name(b)),
                }
                if times > 0 {
                    self.undo.push(Reverse((now + every, Undo::Flap(a, b, times - 1, every))));
                } else {
                    sim.repair(name(a), name(b));
                }
            }
            Undo::Latency(a, b) => sim.set_link_max_message_latency(name(a), name(b), self.latency_max),
            Undo::Disk(node) => self.slot(node).log_delay.set(Duration::ZERO),
            Undo::Clock(node) => self.slot(node).clock.heal(),
            Undo::Resume(node) => {
                let slot = self.slot(node);
                slot.clock.freeze(false);
                slot.log_delay.set(Duration::ZERO);
                for other in self.hosts() {
                    if other != name(node) {
                        sim.release(name(node), other);
                    }
                }
            }
            Undo::ResumeClients(host) => {
                for slot in &self.slots {
                    sim.release(host.as_str(), name(slot.id));
                }
            }
            Undo::Feed(node) => self.links.starve(node, false),
            Undo::Die(node) => {
                if self.members.has(node) && !self.down.contains(&node) {
                    self.crash(sim, now, node, Crash::LoseUnsynced);
                }
            }
            Undo::Start(node) => {
                if self.down.contains(&node) {
                    self.down.retain(|down| *down != node);
                    if self.members.has(node) {
                        self.start(sim, node);
                    }
                }
            }
        }
    }

    fn fail_disk(&mut self, failure: Failure) -> bool {
        let node = self.node();
        let slot = self.slot(node);
        slot.is_wounded.set(true);
        let disk = slot.disk.borrow();
        disk.will_fail();
        match (failure, self.rng.random_range(0..4)) {
            (Failure::Enospc, _) => disk.inner().fail_on(Call::Write, "n", 0, failure),
            (_, 0) => disk.inner().fail_on(Call::Sync, "wal", 0, failure),
            (_, 1) => disk.inner().fail_on(Call::Write, "wal", 0, failure),
            (_, 2) => disk.inner().fail_on(Call::Sync, "snapshots", 0, failure),
            _ => disk.inner().fail_any(self.rng.random_range(0..20), failure),
        }
        true
    }

    fn delay_log(
        &mut self,
        now: u64,
        node: u64,
        by: std::ops::RangeInclusive<u64>,
        during: std::ops::RangeInclusive<u64>,
    ) -> bool {
        self.slot(node).log_delay.set(Duration::from_millis(self.rng.random_range(by)));
        self.later(now, during, Undo::Disk(node));
        true
    }

    fn clock(&mut self, now: u64, kind: FaultKind) -> bool {
        let node = self.node();
        let clock = Arc::clone(&self.slot(node).clock);
        let scale = *[50, 2_000, 60_000, 3_600_000, 86_400_000].choose(&mut self.rng).expect("not empty");
        let by = self.rng.random_range(-scale..=scale);
        match kind {
            FaultKind::ClockJump => clock.jump(by),
            FaultKind::ClockDrift => clock.drift(self.rng.random_range(-50_000..=50_000)),
            _ => clock.strobe(Some((self.rng.random_range(20..=500), by))),
        }
        self.later(now, 2_000..=20_000, Undo::Clock(node));
        true
    }

    /// A node that stands still: what it would say is held, what it would hear waits, and its clocks know of nothing.
    fn pause(&mut self, sim: &mut Sim<'_>, now: u64) -> bool {
        let node = self.node();
        if self.down.contains(&node) {
            return false;
        }
        let slot = self.slot(node);
        slot.clock.freeze(true);
        slot.log_delay.set(Duration::from_millis(500));
        for other in self.hosts() {
            if other != name(node) {
                sim.hold(name(node), other);
            }
        }
        self.later(now, 200..=6_000, Undo::Resume(node));
        true
    }

    fn partition(&mut self, sim: &mut Sim<'_>, now: u64) -> bool {
        let mut hosts = self.hosts();
        hosts.shuffle(&mut self.rng);
        let cut = self.rng.random_range(1..hosts.len());
        let until = now + self.rng.random_range(300..=8_000);
        for a in &hosts[..cut] {
            for b in &hosts[cut..] {
                self.cut(sim, until, a, b);
            }
        }
        true
    }

    fn one_way(&mut self, sim: &mut Sim<'_>, now: u64) -> bool {
        let node = name(self.node());
        let until = now + self.rng.random_range(300..=8_000);
        let hears = self.rng.random();
        for other in self.hosts().into_iter().filter(|other| *other != node) {
            match hears {
                true => sim.partition_oneway(node.as_str(), other.as_str()),
                false => sim.partition_oneway(other.as_str(), node.as_str()),
            }
            self.undo.push(Reverse((until, Undo::Repair(node.clone(), other))));
        }
        true
    }

    /// Two groups of nodes and one that both reach.
    fn bridge(&mut self, sim: &mut Sim<'_>, now: u64) -> bool {
        let mut nodes: Vec<String> = self.members.ids().map(name).collect();
        nodes.shuffle(&mut self.rng);
        let (middle, until) = (nodes.len() / 2, now + self.rng.random_range(500..=8_000));
        for a in &nodes[..middle] {
            for b in &nodes[middle + 1..] {
                self.cut(sim, until, a, b);
            }
        }
        true
    }

    pub(super) fn cut(&mut self, sim: &Sim<'_>, until: u64, a: &str, b: &str) {
        sim.partition(a, b);
        self.undo.push(Reverse((until, Undo::Repair(a.to_owned(), b.to_owned()))));
    }

    pub(super) fn later(&mut self, now: u64, after: std::ops::RangeInclusive<u64>, undo: Undo) {
        let at = now + self.rng.random_range(after);
        self.undo.push(Reverse((at, undo)));
    }

    fn flaps(&mut self) -> u32 {
        self.rng.random_range(2..=10)
    }

    pub(super) fn node(&mut self) -> u64 {
        self.members.ids().choose(&mut self.rng).expect("a cluster has members")
    }

    fn pair(&mut self) -> (u64, u64) {
        let a = self.node();
        let b = self.members.ids().filter(|id| *id != a).choose(&mut self.rng).expect("a cluster has several members");
        (a, b)
    }

    pub(super) fn slot(&self, node: u64) -> Rc<Slot> {
        Rc::clone(&self.slots[node as usize - 1])
    }

    fn hosts(&self) -> Vec<String> {
        self.slots.iter().map(|slot| name(slot.id)).chain(self.others.iter().cloned()).collect()
    }
}

/// Whether a node dies of it only when it comes to what it waits for.
fn is_trap(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::CrashInRecovery
            | FaultKind::CrashInSnapshotBuild
            | FaultKind::CrashInPurge
            | FaultKind::CrashInSync
            | FaultKind::CrashInInstall
    )
}

/// How long until the next, where so many ms pass between two on average.
fn after(rng: &mut SmallRng, mean_ms: f64) -> u64 {
    let uniform: f64 = rng.random_range(f64::MIN_POSITIVE..1.0);
    (-uniform.ln() * mean_ms).min(mean_ms * 10.0) as u64 + 1
}
