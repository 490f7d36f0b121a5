//! Which keys the members have, and what is left on their disks of keys that were destroyed: what each tells of itself.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use super::{
    Consensus,
    running::{REACHABLE_MIN, Running},
};
use crate::{
    id::{NodeId, Position},
    limits,
    records::{sealing::OuterKey, state::State},
};

/// What a member keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// The member.
    pub node_id: NodeId,
    /// Whether it has told so lately; what it told before may no longer be so.
    pub is_reachable: bool,
    /// The key-encryption keys that it has.
    pub keys: Vec<OuterKey>,
    /// How far it has applied.
    pub position: Position,
    /// Up to which position nothing is left on its disk of keys that were destroyed.
    pub erased: Position,
}

impl Consensus {
    /// What every voter and learner keeps, by their ids; of this node alone while it takes part in no cluster.
    pub fn keeping(&self) -> Vec<Keeping> {
        match self.shared.running.load_full() {
            Some(running) => running.keeping(),
            None => Vec::new(),
        }
    }
}

impl Running {
    /// What every member keeps, as each has told.
    pub(super) fn keeping(&self) -> Vec<Keeping> {
        let roster = &self.forward.peers.roster;
        let within = Duration::from_millis(limits::HELLO_FRESH_MS).max(REACHABLE_MIN);
        let of = |node_id: NodeId| {
            if node_id == self.identity.node_id {
                let position = self.records.read().globals().position;
                let (keys, erased) = (self.keys.held(), roster.erased());
                return Keeping { node_id, is_reachable: true, keys, position, erased };
            }
            match roster.heard(node_id).map(|heard| heard.hello) {
                Some(hello) => Keeping {
                    node_id,
                    is_reachable: roster.is_reachable(node_id, within),
                    keys: hello.keys,
                    position: hello.position,
                    erased: hello.erased,
                },
                None => Keeping {
                    node_id,
                    is_reachable: false,
                    keys: Vec::new(),
                    position: Position::default(),
                    erased: Position::default(),
                },
            }
        };
        let metrics = self.raft.server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.nodes().map(|(node, _)| of(*node)).collect()
    }
}
