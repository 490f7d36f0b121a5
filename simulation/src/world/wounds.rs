//! Disks that lose or change what was durable. The model has a minority of such nodes: here one at a time, until it is
//! healed.

use std::{path::PathBuf, rc::Rc};

use rand::{Rng, rngs::SmallRng, seq::IndexedRandom};
use semel::{
    disk::fault::FaultDisk,
    raft::{MemberStanding, RoleWord, Status},
};

use super::{
    faults::Asked,
    host::{Slot, name},
    members,
};
use crate::fault::FaultKind;

/// How many bytes are looked at to find one that was written.
const LOOKS: usize = 200;
/// How long an operator waits before asking again, ms.
const AGAIN_MS: u64 = 2_000;
/// How old a disk's copy is at least, ms.
const OLD_MS: u64 = 2_000;

/// What is wrong with one node.
#[derive(Clone, Debug)]
enum Wound {
    /// It has another disk than its cluster knows.
    Disk { node: u64, is_lost: bool },
    /// A byte of this file is another one.
    Byte { node: u64, path: PathBuf, offset: usize, is: u8 },
}

/// The wound that there is, if any, and copies of disks as they were.
#[derive(Default)]
pub struct Wounds {
    wound: Option<Wound>,
    old: Option<(u64, u64, FaultDisk)>,
}

impl Wounds {
    /// Whether a node can be wounded: none is.
    pub fn is_open(&self) -> bool {
        self.wound.is_none()
    }

    /// No disk is left of which there was a copy.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// The node of whose disk there is a copy that is old enough.
    pub fn old_of(&self, now: u64) -> Option<u64> {
        self.old.as_ref().filter(|(_, at, _)| now > at + OLD_MS).map(|(node, ..)| *node)
    }

    /// What takes the place of this node's disk: an empty one, or one as it was a while ago.
    pub fn other_disk(&mut self, slot: &Slot, kind: FaultKind) -> Option<FaultDisk> {
        let disk = match kind {
            FaultKind::LostDisk => FaultDisk::new(),
            _ => self.old.take_if(|(node, ..)| *node == slot.id)?.2,
        };
        slot.is_wounded.set(true);
        slot.is_old.set(kind == FaultKind::OldDisk);
        self.wound = Some(Wound::Disk { node: slot.id, is_lost: kind == FaultKind::LostDisk });
        Some(disk)
    }

    /// Turns over a bit of a file of this kind; false where there is none.
    pub fn flip(&mut self, slot: &Slot, kind: FaultKind, rng: &mut SmallRng) -> bool {
        let disk = slot.disk.borrow();
        let is_wanted = |path: &PathBuf| {
            let dir = path.iter().nth(2).and_then(|part| part.to_str()).unwrap_or_default();
            match kind {
                FaultKind::BitFlipLog => dir == "wal",
                FaultKind::BitFlipSnapshot => dir == "snapshots",
                _ => dir != "wal" && dir != "snapshots" && dir != "lock" && !dir.starts_with("quarantine"),
            }
        };
        let paths: Vec<PathBuf> = disk.inner().paths().into_iter().filter(is_wanted).collect();
        let Some(path) = paths.choose(rng).cloned() else { return false };
        let Some(bytes) = disk.inner().contents(&path).filter(|bytes| !bytes.is_empty()) else { return false };
        // What was never written is read by nobody.
        let written = (0..LOOKS).map(|_| rng.random_range(0..bytes.len())).find(|at| bytes[*at] != 0);
        let Some(offset) = written else { return false };
        let bit = rng.random_range(0..8);
        disk.inner().flip_bit(&path, offset as u64, bit);
        disk.will_fail();
        slot.is_wounded.set(true);
        let is = bytes[offset] ^ 1 << bit;
        self.wound = Some(Wound::Byte { node: slot.id, path, offset, is });
        true
    }

    /// Looks whether the wounded node is healed, and says what an operator should do for it. Keeps a copy of a disk now and
    /// then.
    pub fn look(&mut self, slots: &[Rc<Slot>], now: u64) -> Option<Asked> {
        if self.old.as_ref().is_none_or(|(_, at, _)| now > at + 5 * OLD_MS)
            && let Some(slot) = slots.get((now / 500) as usize % slots.len())
            && slot.status().is_some_and(|status| votes(status.role))
        {
            self.old = Some((slot.id, now, slot.disk.borrow().inner().copy()));
        }
        let wound = self.wound.clone()?;
        match wound {
            Wound::Disk { node, is_lost } => {
                if is_healed(slots, node) {
                    self.wound = None;
                    slot(slots, node).is_old.set(false);
                    return None;
                }
                let waits = slot(slots, node).status().is_some_and(|status| !votes(status.role));
                let other = slots.iter().find(|slot| slot.id != node && slot.node.borrow().is_some())?;
                (is_lost && waits && now.is_multiple_of(AGAIN_MS)).then(|| {
                    let at = slot(slots, node);
                    let body = format!(
                        "{{\"id\":{node},\"node\":{{\"id\":{node},\"peer\":\"{}\",\"client\":\"{}\"}}}}",
                        at.peer_address(),
                        at.client_address()
                    );
                    Asked::of(other.id, "POST /v1/admin/replace", body)
                })
            }
            Wound::Byte { node, path, offset, is } => {
                let contents = slot(slots, node).disk.borrow().inner().contents(&path);
                let is_there = contents.is_some_and(|bytes| bytes.get(offset) == Some(&is));
                if !is_there && is_healed(slots, node) {
                    self.wound = None;
                }
                None
            }
        }
    }
}

fn slot(slots: &[Rc<Slot>], node: u64) -> &Slot {
    slots.iter().find(|slot| slot.id == node).unwrap_or_else(|| panic!("{} is a node", name(node)))
}

fn votes(role: RoleWord) -> bool {
    matches!(role, RoleWord::Leader | RoleWord::Follower | RoleWord::Candidate)
}

/// Whether its cluster knows this node by the disk it has, as a voter, and it has caught up.
fn is_healed(slots: &[Rc<Slot>], node: u64) -> bool {
    let Some(own) = slot(slots, node).status() else { return false };
    let Some(leader) = members::leader(slots) else { return false };
    // What only one has logged may yet be undone.
    let knows = |status: &Status| {
        status.members.iter().any(|member| {
            let is_it = member.node_id == node && Some(member.member.disk_id) == own.disk_id;
            is_it && member.standing == MemberStanding::Voter
        })
    };
    let know = slots.iter().filter_map(|slot| slot.status()).filter(knows).count();
    know > leader.members.len() / 2
        && votes(own.role)
        && own.applied.is_some()
        && own.applied >= leader.applied.map(|at| at.saturating_sub(5))
}
