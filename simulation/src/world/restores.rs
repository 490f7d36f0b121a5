//! The whole cluster is lost, and formed anew from a backup that was taken while it lived: what came after the backup is
//! gone. Meanwhile the other faults go on, but for changes of the membership and other disks.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

use rand::{
    Rng,
    rngs::SmallRng,
    seq::{IndexedRandom, IteratorRandom},
};
use semel::{
    backup::manifest::time_text,
    clock::Clock as _,
    disk::fault::{Crash, FaultDisk},
    id::Time,
};
use turmoil::Sim;

use super::{
    disk::SimDisk,
    faults::{Asked, Faults},
    host::{ADMIN_PORT, Slot},
    interpose,
    net::SimNet,
    operator::{self, Backup},
    plain::Acknowledged,
    trace,
};
use crate::{fault::FaultKind, log::Log, options::Options};

/// What asks for a backup.
pub const BACK_UP: &str = "POST /v1/admin/backup";
/// What asks for a restore; its body is the line in front.
pub const RESTORE: &str = "POST /v1/admin/restore";
/// What ends a restore's doubt.
pub const END_DOUBT: &str = "POST /v1/admin/end_doubt";

/// How long an operator waits before asking again, ms.
const AGAIN_MS: u64 = 2_000;
/// How long after the backup all is lost, ms.
const LOSES_MS: (u64, u64) = (200, 6_000);
/// A backup that was not had within this time is given up, ms.
const TAKING_MS: u64 = 15_000;
/// How long a doubt lasts that somebody ends, ms.
const DOUBT_MS: (u64, u64) = (500, 8_000);
/// An operator restores on a machine whose clock is right to so many ms.
const CLOCK_MS: u64 = 400;
/// The old cluster was surely dead so long after it died, ms.
const GAP_MS: u64 = 1_000;

/// What the operator's host, the clients of scripts and the faults have in common.
#[derive(Default)]
pub struct Shelf {
    /// The backup that was taken last.
    pub backup: RefCell<Option<Backup>>,
    /// What was acknowledged before it was begun: it holds that.
    pub held: RefCell<BTreeMap<String, String>>,
    /// What was acknowledged by now.
    pub acknowledged: Acknowledged,
    /// How often all was lost.
    pub losses: Cell<u64>,
    /// The operations have their ways: what is restored has them, too.
    pub is_prepared: Cell<bool>,
    /// A node has said that it is done.
    pub is_restored: Cell<bool>,
    /// A node has said that the doubt is over.
    pub is_sure: Cell<bool>,
    /// All was lost, and is not restored.
    pub is_waiting: Cell<bool>,
}

impl Shelf {
    /// Does what an operator is asked for, and keeps what comes of backups and restores.
    pub async fn carry_out(&self, net: &SimNet, Asked { node, request, body }: Asked) {
        let address = format!("n{node}:{ADMIN_PORT}");
        let losses = self.losses.get();
        match request {
            BACK_UP => {
                let held = self.acknowledged.borrow().clone();
                let taken = operator::take_backup(net, &address).await;
                trace::tell(|| format!("{request} of n{node}: {:?}", taken.as_ref().map(|backup| backup.position)));
                if let Some(backup) = taken.ok().filter(|_| self.losses.get() == losses) {
                    self.held.replace(held);
                    self.backup.replace(Some(backup));
                }
            }
            RESTORE => {
                let bytes = self.backup.borrow().as_ref().map(|backup| backup.bytes.clone()).unwrap_or_default();
                let answer = operator::restore(net, &address, &body, &bytes).await;
                trace::tell(|| format!("{request} of n{node}: {answer:?}"));
                let is_done = answer.is_ok_and(|answer| answer.is_ok()) && self.losses.get() == losses;
                self.is_restored.set(self.is_restored.get() || is_done);
            }
            _ => {
                let answer = operator::ask(net, &address, request, &body).await;
                trace::tell(|| format!("{request} {body}: {answer:?}"));
                let is_sure = request == END_DOUBT && answer.is_ok_and(|answer| answer.is_ok());
                self.is_sure.set(self.is_sure.get() || is_sure && self.losses.get() == losses);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Phase {
    Quiet,
    /// A backup was asked for, for so long.
    Taking {
        until: u64,
    },
    /// There is one; all is lost then.
    Taken {
        loses: u64,
    },
    /// All is lost: this node is asked to restore, with this line in front.
    Restoring {
        node: Option<u64>,
        head: Option<String>,
        gap_end: Option<u64>,
    },
    /// It is restored, and the doubt is ended then, if at all.
    Doubting {
        ends: u64,
    },
}

/// The loss of all, and what follows.
pub struct Restores {
    shelf: Rc<Shelf>,
    log: Log,
    phase: Phase,
    rng: SmallRng,
}

impl Restores {
    /// Nothing is lost yet.
    pub fn new(options: &Options, shelf: Rc<Shelf>, log: Log) -> Self {
        Self { shelf, log, phase: Phase::Quiet, rng: options.rng("restores") }
    }

    /// Whether there is a cluster that can be changed.
    pub fn is_quiet(&self) -> bool {
        !matches!(self.phase, Phase::Restoring { .. })
    }

    /// No faults any more: what is lost by now is still restored.
    pub fn end(&mut self) {
        if matches!(self.phase, Phase::Taking { .. } | Phase::Taken { .. }) {
            self.phase = Phase::Quiet;
        }
    }
}

impl Faults {
    /// A backup is taken, after which all will be lost.
    pub(super) fn begin_restore(&mut self, now: u64) {
        let restores = &mut self.restores;
        let is_idle = matches!(restores.phase, Phase::Quiet | Phase::Doubting { .. });
        if is_idle && restores.shelf.is_prepared.get() {
            restores.shelf.backup.take();
            restores.phase = Phase::Taking { until: now + TAKING_MS };
        }
    }

    /// What is next of it.
    pub(super) fn look_restores(&mut self, sim: &mut Sim<'_>, now: u64) {
        let shelf = Rc::clone(&self.restores.shelf);
        match self.restores.phase.clone() {
            Phase::Taking { .. } if shelf.backup.borrow().is_some() => {
                let loses = now + self.restores.rng.random_range(LOSES_MS.0..=LOSES_MS.1);
                self.restores.phase = Phase::Taken { loses };
            }
            Phase::Taking { until } if until <= now => self.restores.phase = Phase::Quiet,
            Phase::Taking { .. } if now.is_multiple_of(AGAIN_MS) => {
                if let Some(node) = self.members.ids().choose(&mut self.restores.rng) {
                    self.asked.push(Asked::of(node, BACK_UP, "{}".to_owned()));
                }
            }
            Phase::Taken { loses } if loses <= now && self.members.is_settled() && self.wounds.is_open() => {
                self.lose_all(sim, now);
            }
            Phase::Restoring { .. } if shelf.is_restored.get() => {
                shelf.is_waiting.set(false);
                trace::tell(|| "the cluster is restored".to_owned());
                // Half of the time nobody ever says that the doubt is over.
                let after = self.restores.rng.random_range(DOUBT_MS.0..=DOUBT_MS.1);
                let ends = if self.restores.rng.random() { now + after } else { u64::MAX };
                self.restores.phase = Phase::Doubting { ends };
            }
            Phase::Restoring { node, head, gap_end } if now.is_multiple_of(AGAIN_MS) => {
                self.ask_restore(node, head, gap_end);
            }
            Phase::Doubting { ends } if ends <= now && !shelf.is_sure.get() && now.is_multiple_of(AGAIN_MS) => {
                if let Some(node) = self.members.ids().choose(&mut self.restores.rng) {
                    self.asked.push(Asked::of(node, END_DOUBT, "{}".to_owned()));
                }
            }
            _ => {}
        }
    }

    /// All nodes die, and nothing is left of their disks.
    fn lose_all(&mut self, sim: &mut Sim<'_>, now: u64) {
        let shelf = Rc::clone(&self.restores.shelf);
        let Some(position) = shelf.backup.borrow().as_ref().map(|backup| backup.position) else { return };
        let members: Vec<u64> = self.members.ids().collect();
        for id in members {
            if !self.down.contains(&id) {
                self.crash(sim, now, id, Crash::LoseUnsynced);
            }
            let slot = self.slot(id);
            slot.engines.delete();
            slot.disk.replace(SimDisk::new(id, FaultDisk::new()));
            slot.is_wounded.set(false);
            slot.is_old.set(false);
        }
        self.wounds.forget();
        self.restores.log.restoring(position);
        *shelf.acknowledged.borrow_mut() = shelf.held.borrow().clone();
        shelf.losses.set(shelf.losses.get() + 1);
        shelf.is_restored.set(false);
        shelf.is_sure.set(false);
        shelf.is_waiting.set(true);
        trace::note(0, FaultKind::Restore.word(), now, &[]);
        trace::tell(|| format!("all is lost; there is a backup of position {position}"));
        self.fired.hit(FaultKind::Restore);
        // Now and then somebody knows when the old cluster was surely dead.
        let dead = interpose::date_ms(now).max(self.restores.log.time()) + GAP_MS;
        let gap_end = Some(dead).filter(|_| self.restores.rng.random_ratio(1, 4));
        self.restores.phase = Phase::Restoring { node: None, head: None, gap_end };
    }

    /// Asks the node that was asked before, or now and then another one.
    fn ask_restore(&mut self, before: Option<u64>, head: Option<String>, gap_end: Option<u64>) {
        let rng = &mut self.restores.rng;
        let is_right =
            |slot: &Rc<Slot>| slot.clock.wall().0.abs_diff(interpose::date_ms(interpose::now() / 1_000_000)) < CLOCK_MS;
        let members: Vec<u64> = self.members.ids().collect();
        let can = self.slots.iter().filter(|slot| members.contains(&slot.id) && is_right(slot)).map(|slot| slot.id);
        let can: Vec<u64> = can.collect();
        let any = can.choose(rng).copied();
        let Some(node) = before.filter(|node| can.contains(node) && rng.random_ratio(3, 4)).or(any) else { return };
        let head = head.or_else(|| self.head(&members, gap_end));
        let Some(head) = head else { return };
        self.asked.push(Asked::of(node, RESTORE, head.clone()));
        self.restores.phase = Phase::Restoring { node: Some(node), head: Some(head), gap_end };
    }

    /// The line in front of the backup's bytes.
    fn head(&self, members: &[u64], gap_end: Option<u64>) -> Option<String> {
        let shelf = &self.restores.shelf;
        let backup = shelf.backup.borrow();
        let backup = backup.as_ref()?;
        let nodes: Vec<String> = members
            .iter()
            .map(|id| {
                let slot = self.slot(*id);
                let (peer, client) = (slot.peer_address(), slot.client_address());
                format!("\"{id}\":{{\"peer\":\"{peer}\",\"client\":\"{client}\"}}")
            })
            .collect();
        let gap = gap_end.map(|end| format!(",\"gap_end\":\"{}\"", time_text(Time(end)))).unwrap_or_default();
        let (bytes, sha256) = (backup.bytes.len(), &backup.sha256);
        Some(format!("{{\"nodes\":{{{}}},\"bytes\":\"{bytes}\",\"sha256\":\"{sha256}\"{gap}}}\n", nodes.join(",")))
    }
}
