//! How nodes die: at any moment, just after an answer, or at what they were waited for; and how they come back.

use std::cmp::Reverse;

use rand::Rng;
use semel::disk::fault::Crash;
use turmoil::Sim;

use super::{
    disk::Trap,
    faults::{Faults, Undo},
    host::name,
    members, trace,
};
use crate::fault::FaultKind;

/// How long a crash waits for an answer, ms.
const LURKS_MS: u64 = 3_000;

impl Faults {
    /// A crash that waits until a client has just been answered: what is lost then was promised.
    pub(super) fn lurks(&mut self, now: u64, kind: FaultKind) -> bool {
        let can_wait = matches!(kind, FaultKind::Crash | FaultKind::TornCrash | FaultKind::PowerLoss);
        let lurks = can_wait && self.rng.random();
        if lurks {
            self.lurking.push((now + LURKS_MS, kind));
        }
        lurks
    }

    /// What has waited for an answer happens, if there was one, or it has waited for too long.
    pub(super) fn strike(&mut self, sim: &mut Sim<'_>, now: u64, answered: u64) {
        let is_answered = std::mem::replace(&mut self.answered, answered) != answered;
        let (due, waits): (Vec<_>, Vec<_>) =
            self.lurking.drain(..).partition(|(until, _)| is_answered || *until <= now);
        self.lurking = waits;
        for (_, kind) in due {
            let seed: u64 = self.rng.random();
            let how = if kind == FaultKind::Crash { Crash::LoseUnsynced } else { Crash::Tear(seed) };
            let leader = members::leader(&self.slots).map(|leader| leader.node_id);
            let is_done = match kind {
                FaultKind::PowerLoss => self.happens(sim, now, kind),
                // The one who has answered, rather than any.
                _ => match leader.filter(|leader| self.members.has(*leader) && !self.down.contains(leader)) {
                    Some(leader) if seed.is_multiple_of(2) => {
                        self.crash(sim, now, leader, how);
                        true
                    }
                    _ => self.crash_any(sim, now, how),
                },
            };
            if is_done {
                trace::note(0, kind.word(), now, &[]);
                trace::tell(|| format!("fault {kind}, at an answer"));
                self.fired.hit(kind);
            }
        }
    }

    /// Cuts the leader off from the other nodes, until it dies.
    pub(super) fn depose(&mut self, sim: &mut Sim<'_>, now: u64) -> bool {
        let Some(leader) = members::leader(&self.slots).map(|leader| leader.node_id) else { return false };
        if !self.members.has(leader) || self.down.contains(&leader) {
            return false;
        }
        let dies = now + self.rng.random_range(100..=3_000);
        let until = dies + self.rng.random_range(0..=1_000);
        for other in self.slots.clone() {
            if other.id != leader {
                self.cut(sim, until, &name(leader), &name(other.id));
            }
        }
        self.undo.push(Reverse((dies, Undo::Die(leader))));
        true
    }

    /// Takes away what has ended itself, or died in a trap.
    pub(super) fn take_away(&mut self, sim: &mut Sim<'_>, now: u64) {
        for slot in self.slots.clone() {
            let died_of = slot.disk.borrow().died_of();
            if let Some(trap) = died_of {
                self.fired.hit(trap.kind());
                let seed = self.rng.random();
                self.crash(sim, now, slot.id, Crash::Tear(seed));
            } else if slot.ended.borrow().is_some() {
                self.crash(sim, now, slot.id, Crash::KeepUnsynced);
            }
        }
    }

    pub(super) fn crash_any(&mut self, sim: &mut Sim<'_>, now: u64, how: Crash) -> bool {
        let node = self.node();
        if self.down.contains(&node) {
            return false;
        }
        self.crash(sim, now, node, how);
        true
    }

    /// The process of this node is gone, and comes back after a while.
    pub(super) fn crash(&mut self, sim: &mut Sim<'_>, now: u64, node: u64, how: Crash) {
        let slot = self.slot(node);
        sim.crash(name(node));
        slot.node.take();
        slot.ended.take();
        let reborn = slot.disk.borrow().reborn(how);
        slot.disk.replace(reborn);
        if self.rng.random_ratio(1, 3) {
            slot.engines.delete();
        }
        self.down.push(node);
        self.later(now, 20..=4_000, Undo::Start(node));
    }

    pub(super) fn start(&mut self, sim: &mut Sim<'_>, node: u64) {
        sim.bounce(name(node));
    }

    pub(super) fn trap(&mut self, trap: Trap) -> bool {
        let after = self.rng.random_range(0..40);
        // The one that just went down dies again as it comes back.
        let node = match trap {
            Trap::Recovery => self.down.last().copied(),
            _ => Some(self.node()),
        };
        let Some(node) = node else { return false };
        let slot = self.slot(node);
        slot.disk.borrow().arm(trap, if trap == Trap::Purge { after % 3 } else { after });
        true
    }
}
