//! Who was turned away for want of a good credential stands in the cluster's audit chain: once a minute at most, in groups.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::{auth::Authenticator, id::NodeId, limits, raft::Consensus, records::command::Deed};

/// What tells the audit.
#[derive(Clone)]
pub(super) struct RefusalsTold {
    pub auth: Arc<Authenticator>,
    pub consensus: Consensus,
    pub node_id: NodeId,
}

impl RefusalsTold {
    /// Tells now and then, for as long as it is polled.
    pub async fn run(self) {
        let mut ticks = interval(Duration::from_secs(limits::REFUSED_TOLD_S));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tell().await;
        }
    }

    /// Tells of those since the last time. What no leader takes is told the next time.
    pub async fn tell(&self) {
        let refused = self.auth.refused_lately();
        if refused.is_empty() {
            return;
        }
        let actor = format!("node:{}", self.node_id);
        if let Err(refusal) = self.consensus.note(Deed::AuthenticationRefused, &actor, &refused.json()).await {
            tracing::warn!(%refusal, "refused credentials could not be audited; the next row tells of them");
            self.auth.remember_refused(refused);
        }
    }
}
