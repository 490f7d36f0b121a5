//! The clients: what they do is drawn from the seed, with the product's own client library, under every call's record in
//! the history and every effect's in the ledger.
//!
//! `draw` makes requests · `caller` sends and records · `drive` a record by hand, from claim to report · `guarded` the
//! library's own run of a handler · `disturb` what no good client does · `reconcile` finds out what happened · `death`
//! drops a client at one of its awaits.
//!
//! Effects are honest: a client performs one only under a grant that it began, with enough of its lease left by its own
//! clock, and states `no effect` only where that is so. What shows up twice in the ledger is the cluster's doing.

mod caller;
mod death;
mod disturb;
mod draw;
mod drive;
mod guarded;
mod reconcile;

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use rand::{Rng, rngs::SmallRng};
use semel::{
    Client,
    client::{Builder, Error},
    proto::v1,
};

use self::{caller::Caller, death::Mortal};
use crate::{
    fault::{FaultKind, Fired},
    history::{History, Name, Watch},
    ledger::Ledger,
    options::Options,
};

/// The owners' promise, ms: no client sends anything later than this after its lease.
pub const EFFECT_MS_MAX: u32 = 10_000;
/// A client that stands still must go on within this, ms, or it breaks that promise.
pub const PAUSE_MS_MAX: u64 = 8_000;
/// From one operation of a client to the next, at most, ms.
const THINK_MS_MAX: u64 = 200;
/// How many callers share a process where they do: of one host's, every other.
const PROCESSES: u16 = 4;
/// Old requests that a client remembers, to send them again.
const REMEMBERED_MAX: usize = 64;

/// What all clients of a run share.
pub struct Setting {
    /// What the seed drew.
    pub options: Options,
    /// What fired.
    pub fired: Fired,
    /// What was called.
    pub history: History,
    /// What happened outside.
    pub ledger: Ledger,
    /// The simulated time.
    pub watch: Watch,
    /// The client library over the simulated network, for this client: it knows all nodes.
    pub connect: Box<dyn Fn(u16) -> Builder>,
    /// Clients that several callers have together, as the tasks of one process do: by the process.
    pub shared: RefCell<BTreeMap<u16, Client>>,
    /// Whether faults happen: then clients die, send twice, and lie.
    pub is_faulty: Box<dyn Fn() -> bool>,
    /// Whether the run goes on.
    pub goes_on: Box<dyn Fn() -> bool>,
}

impl Setting {
    /// Whether several callers are one process, with one client.
    fn shares(&self) -> bool {
        self.options.rng("processes").random()
    }

    /// The client of this caller's process.
    fn client(&self, number: u16) -> Result<Client, Error> {
        if !self.shares() || number >= 1_000 {
            return (self.connect)(number).connect_lazy();
        }
        let mut shared = self.shared.borrow_mut();
        if let Some(client) = shared.get(&(number % PROCESSES)) {
            return Ok(client.clone());
        }
        let client = (self.connect)(number).connect_lazy()?;
        shared.insert(number % PROCESSES, client.clone());
        Ok(client)
    }

    /// Whether a fault of this kind is to happen now. It has fired then.
    fn fires(&self, kind: FaultKind, rng: &mut SmallRng) -> bool {
        // Drawn in any case: what comes after does not depend on the phase.
        let drawn = rng.random_range(0..1000) < self.options.rate(kind);
        let fires = drawn && (self.is_faulty)();
        if fires {
            self.fired.hit(kind);
        }
        fires
    }
}

/// The policies that give the operations their ways. To be called once, when the cluster is formed; tried until it works.
pub async fn prepare(setting: Rc<Setting>) -> Result<(), Error> {
    let caller = Caller::new(setting.clone(), u16::MAX)?;
    for tenant in draw::tenants(&setting.options) {
        for (operation, policy) in draw::policies() {
            let name = Name {
                tenant: (*tenant).to_owned(),
                operation: operation.unwrap_or_default().to_owned(),
                ..Name::default()
            };
            while (setting.goes_on)() && caller.set_policy(&name, policy).await.is_none() {
                pause(THINK_MS_MAX).await;
            }
        }
    }
    Ok(())
}

/// A client's life: it does its share of the operations, for as long as the run goes on.
///
/// # Errors
/// When the library can't be set up.
pub async fn client(setting: Rc<Setting>, number: u16) -> Result<(), Error> {
    let mut rng = setting.options.rng(&format!("client {number}"));
    let share = setting.options.operations.div_ceil(u32::from(setting.options.clients.max(1)));
    // Spread over the phase with faults, and going on after it, so that the healed cluster has something to do.
    let think = (setting.options.duration_ms / u64::from(share)).clamp(10, 5 * THINK_MS_MAX);
    let mut caller = Caller::new(setting.clone(), number)?;
    let mut done = 0;
    while done < share && (setting.goes_on)() {
        done += 1;
        let dies = setting.fires(FaultKind::ClientDeath, &mut rng);
        let polls = if dies { rng.random_range(1..40) } else { usize::MAX };
        match Mortal::new(caller.step(), polls).await {
            Some(()) => {}
            // Another process takes its place, which knows nothing of what went before.
            None => caller = caller.reborn()?,
        }
        pause(rng.random_range(0..2 * think)).await;
    }
    // What others still use is closed with the run.
    if !setting.shares() {
        caller.close().await;
    }
    Ok(())
}

/// A reconciler's life.
///
/// # Errors
/// When the library can't be set up.
pub async fn reconciler(setting: Rc<Setting>, number: u8) -> Result<(), Error> {
    reconcile::run(setting, number).await
}

impl Caller {
    /// One thing that a client does.
    async fn step(&mut self) {
        let setting = self.setting.clone();
        if setting.fires(FaultKind::Hostile, &mut self.rng) {
            return self.hostile().await;
        }
        if setting.fires(FaultKind::Oversized, &mut self.rng) {
            return self.oversized().await;
        }
        if setting.fires(FaultKind::LateRequest, &mut self.rng) && self.late().await {
            return;
        }
        if self.bursts() {
            return self.burst().await;
        }
        let name = self.name();
        match self.rng.random_range(0..100) {
            0..40 => self.drive(&name).await,
            40..55 => self.guarded(&name).await,
            55..75 => self.look(&name).await,
            75..83 => self.conflict(&name).await,
            83..90 => self.wait_for(&name).await,
            90..95 => self.forget_outcome(&name).await,
            95..98 => self.drive_as_begun(&name).await,
            _ => self.change_policy(&name).await,
        }
    }

    async fn look(&mut self, name: &Name) {
        if self.rng.random_ratio(1, 4) {
            self.history_of(name).await;
        } else {
            self.get(name).await;
        }
    }

    async fn forget_outcome(&mut self, name: &Name) {
        let request = v1::ForgetRequest { record: Some(name.to_id()), reason: Some("asked by its subject".to_owned()) };
        self.forget(name, request).await;
    }
}

/// Lets simulated time pass.
async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
