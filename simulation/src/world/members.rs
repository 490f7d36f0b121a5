//! Changes of the membership under faults: a new node is added, promoted, and an old one removed, each asked for until the
//! cluster has done it.

use std::{collections::BTreeSet, rc::Rc};

use rand::{Rng, rngs::SmallRng, seq::IteratorRandom};
use semel::raft::{MemberStanding, RoleWord, Status};

use super::{faults::Asked, host::Slot};

/// How long an operator waits before asking again, ms.
const AGAIN_MS: u64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// This node becomes a member, and then a voter.
    Add(u64),
    /// This one becomes none.
    Remove(u64),
}

/// Who is a member, and how that is being changed.
pub struct Members {
    members: BTreeSet<u64>,
    spare: Vec<u64>,
    change: Option<Change>,
}

/// What the host of a node is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It starts for the first time.
    Start(u64),
    /// It was removed, and is over for good.
    End(u64),
}

impl Members {
    /// The founders, and nodes that have not started.
    pub fn new(founders: u64, spare: u64) -> Self {
        let spare = (founders + 1..=founders + spare).rev().collect();
        Self { members: (1..=founders).collect(), spare, change: None }
    }

    /// Who should run.
    pub fn ids(&self) -> impl Iterator<Item = u64> {
        self.members.iter().copied()
    }

    /// Whether this one should run.
    pub fn has(&self, node: u64) -> bool {
        self.members.contains(&node)
    }

    /// Whether nothing is being changed.
    pub fn is_settled(&self) -> bool {
        self.change.is_none()
    }

    /// Begins a change, if there is a node to change with.
    pub fn begin(&mut self) -> Option<Duty> {
        if !self.is_settled() {
            return None;
        }
        let node = self.spare.pop()?;
        self.members.insert(node);
        self.change = Some(Change::Add(node));
        Some(Duty::Start(node))
    }

    /// Looks how far the change is: what to ask for next, and what a host is to do.
    pub fn look(&mut self, slots: &[Rc<Slot>], now: u64, rng: &mut SmallRng) -> (Option<Asked>, Option<Duty>) {
        let Some(change) = self.change else { return (None, None) };
        let Some(leader) = leader(slots) else { return (None, None) };
        let ask = |request, body| now.is_multiple_of(AGAIN_MS).then(|| Asked::of(leader.node_id, request, body));
        match change {
            Change::Add(node) => match standing(&leader, node) {
                None => {
                    let slot = &slots[node as usize - 1];
                    let body = format!(
                        "{{\"id\":{node},\"peer\":\"{}\",\"client\":\"{}\"}}",
                        slot.peer_address(),
                        slot.client_address()
                    );
                    (ask("POST /v1/admin/add", body), None)
                }
                Some(MemberStanding::Learner) => (ask("POST /v1/admin/promote", format!("{{\"id\":{node}}}")), None),
                Some(MemberStanding::Voter) => {
                    let old = self.members.iter().copied().filter(|id| *id != node).choose(rng);
                    self.change = old.filter(|_| rng.random_ratio(3, 4)).map(Change::Remove);
                    (None, None)
                }
            },
            Change::Remove(node) if standing(&leader, node).is_some() => {
                (ask("POST /v1/admin/remove", format!("{{\"id\":{node}}}")), None)
            }
            Change::Remove(node) => {
                self.members.remove(&node);
                self.change = None;
                (None, Some(Duty::End(node)))
            }
        }
    }
}

/// How the leader stands, as it sees itself: of several, the one of the newest term.
pub fn leader(slots: &[Rc<Slot>]) -> Option<Status> {
    let all = slots.iter().filter_map(|slot| slot.status());
    all.filter(|status| status.role == RoleWord::Leader).max_by_key(|status| status.term)
}

fn standing(leader: &Status, node: u64) -> Option<MemberStanding> {
    leader.members.iter().find(|member| member.node_id == node).map(|member| member.standing)
}
