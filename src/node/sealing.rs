//! What a node does that lacks a key its cluster is sealed with.

use std::time::Duration;

use crate::{limits, raft::Consensus, records::state::State};

/// Whether this node was given keys, and its cluster is one that seals nothing.
fn has_keys_for_nothing(consensus: &Consensus) -> bool {
    let records = consensus.records();
    let state = records.read();
    state.globals().formed.is_some() && state.key_table().sealing.is_none() && consensus.keys().has_keys()
}

/// Hands over whenever this node leads without the keys that it takes, for as long as it is polled. What is replicated is
/// applied all the same: that takes no key.
pub(super) async fn give_way_while_locked(consensus: Consensus) {
    let (mut was_locked, mut was_told) = (false, false);
    loop {
        tokio::time::sleep(Duration::from_millis(limits::LOCKED_LOOKED_MS)).await;
        if !was_told && has_keys_for_nothing(&consensus) {
            tracing::warn!("the cluster was formed without sealing keys: nothing is sealed until `semel keys enable`");
            was_told = true;
        }
        let is_locked = consensus.unlocked().is_err();
        if is_locked && !was_locked {
            tracing::error!("this node lacks a sealing key of its cluster: it replicates, and takes nothing on");
        }
        was_locked = is_locked;
        if is_locked && consensus.leads() {
            consensus.resign().await;
        }
    }
}
