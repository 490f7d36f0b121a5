//! What is watched of the nodes from outside while they run: none of them comes back with less than it has acknowledged, and
//! cluster time does not run ahead of all good clocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use semel::{clock::Clock as _, id::DiskId, raft::RoleWord};

use super::{host::Slot, interpose};
use crate::log::Log;

/// How often it is noted what the members have acknowledged, ms.
const NOTE_MS: u64 = 50;
/// How often clocks are looked at, ms.
const CLOCKS_MS: u64 = 10;
/// A clock is ahead from so many ms on.
const AHEAD_MS: u64 = 500;
/// For so long a clock that was ahead may be counted on: others remember what it showed, ms.
const REMEMBERED_MS: u64 = 6_000;
/// Cluster time may be ahead by so much where no quorum's clocks were: a leader's clock may run fast, and be found out, ms.
const LEEWAY_MS: u64 = 3_000;

/// What was seen of all nodes so far.
#[derive(Default)]
pub struct Watched {
    /// What each disk has acknowledged of what is decided: the last entry.
    held: BTreeMap<(u64, DiskId), u64>,
    /// The last life of each node that was looked at.
    lives: BTreeMap<u64, u64>,
    /// When the clock of each was ahead last, ms.
    ahead: BTreeMap<u64, u64>,
    /// A quorum's clocks were ahead at one time, and cluster time rightly followed.
    is_excused: bool,
}

impl Watched {
    /// Looks at all nodes at this simulated time, ms; what is wrong.
    pub fn look(&mut self, slots: &[Rc<Slot>], founders: usize, log: &Log, now: u64) -> Option<(&'static str, String)> {
        if now.is_multiple_of(NOTE_MS) {
            self.note(slots);
        }
        if now.is_multiple_of(CLOCKS_MS)
            && let Some(problem) = self.clocks(slots, founders, log, now)
        {
            return Some(("time", problem));
        }
        slots.iter().find_map(|slot| self.comes_back(slot)).map(|problem| ("kept", problem))
    }

    /// What leaders say that members have acknowledged, as far as it is decided: nothing can undo that.
    fn note(&mut self, slots: &[Rc<Slot>]) {
        let statuses = slots.iter().filter_map(|slot| slot.status());
        for leader in statuses.filter(|status| status.role == RoleWord::Leader) {
            for member in leader.members {
                let Some(held) = member.matched.min(leader.committed) else { continue };
                let known = self.held.entry((member.node_id, member.member.disk_id)).or_default();
                *known = held.max(*known);
            }
        }
    }

    /// A node that has just started under a disk still has what that disk has acknowledged.
    fn comes_back(&mut self, slot: &Slot) -> Option<String> {
        if self.lives.get(&slot.id) == Some(&slot.lives.get()) {
            return None;
        }
        let status = slot.status()?;
        self.lives.insert(slot.id, slot.lives.get());
        let held = *self.held.get(&(slot.id, status.disk_id?))?;
        let found = status.last_log.unwrap_or(0);
        let detail = format!("n{} comes back with a log that ends at {found}, and has acknowledged {held}", slot.id);
        (found < held && !slot.is_old.get()).then_some(detail)
    }

    fn clocks(&mut self, slots: &[Rc<Slot>], founders: usize, log: &Log, now: u64) -> Option<String> {
        let date = interpose::date_ms(now);
        for slot in slots.iter().filter(|slot| slot.clock.wall().0 > date + AHEAD_MS) {
            self.ahead.insert(slot.id, now);
        }
        let ahead: BTreeSet<u64> =
            self.ahead.iter().filter(|(_, at)| *at + REMEMBERED_MS > now).map(|(id, _)| *id).collect();
        self.is_excused |= ahead.len() > founders / 2;
        let by = log.time().saturating_sub(date);
        (by > LEEWAY_MS && !self.is_excused)
            .then(|| format!("cluster time is {by} ms ahead, and only the clocks of {ahead:?} were of late"))
    }
}
