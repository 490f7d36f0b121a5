//! The membership follows its members to the addresses at which they are known to be.

use std::{collections::BTreeMap, sync::Weak, time::Duration};

use openraft::ChangeMembers;

use super::{Addresses, Shared, running::Running, types::Member};
use crate::{id::NodeId, limits};

/// Has the membership say where members are known to be, whenever this node leads.
pub(super) async fn follow_addresses(shared: Weak<Shared>) {
    loop {
        {
            let Some(shared) = shared.upgrade().filter(|shared| !shared.options.known.is_empty()) else { return };
            if let Some(running) = shared.running.load_full()
                && running.leadership.role().leading.is_some()
                && let Ok(_alone) = running.changing.try_lock()
            {
                let moved = running.moved(&shared.options.known);
                // Another try follows: a leader that can't say so now may not be one any more.
                if !moved.is_empty() && running.change_members(ChangeMembers::SetNodes(moved)).await.is_ok() {
                    tracing::info!("the membership follows its members to their new addresses");
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(limits::HELLO_MS)).await;
    }
}

impl Running {
    /// The members that are known to be elsewhere than the membership says, as they should stand in it.
    fn moved(&self, known: &BTreeMap<NodeId, Addresses>) -> BTreeMap<NodeId, Member> {
        let members = self.members().into_iter();
        let moved = members.filter_map(|(node, member)| {
            let Addresses { peer, client } = known.get(&node)?;
            let is_there = member.peer_addr == *peer && member.client_addr == *client;
            (!is_there).then(|| (node, Member { peer_addr: peer.clone(), client_addr: client.clone(), ..member }))
        });
        moved.collect()
    }
}
