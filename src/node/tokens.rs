//! The tokens of the log as this node knows them, and dropping those that ended long ago.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use super::touch::Touch;
use crate::{
    auth::{
        LogTokens,
        token::{ID_BYTES, TokenKey},
    },
    id::{Tenant, Time},
    limits,
    raft::Consensus,
    records::{
        closing::is_closed,
        command::{Command, Token, TokensDropped},
        state::State,
    },
    seal::Cipher,
    service::token::token_key,
};

/// The tokens of this node's state.
pub(super) struct StateTokens {
    consensus: Consensus,
    touch: Arc<Touch>,
}

impl StateTokens {
    pub fn new(consensus: Consensus, touch: Arc<Touch>) -> Self {
        Self { consensus, touch }
    }

    /// Drops tokens that ended long ago, now and then, for as long as it is polled: whoever leads does.
    pub async fn keep_tidy(self: Arc<Self>) {
        let mut ticks = interval(Duration::from_secs(limits::TOKENS_LOOKED_S));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.consensus.leads() {
                continue;
            }
            let ended_before = Time(self.now().0.saturating_sub(limits::TOKEN_KEPT_MS));
            let ids: Vec<_> = {
                let records = self.consensus.records();
                let state = records.read();
                let ended = state.tokens().filter(|token| token.ends().is_some_and(|ends| ends < ended_before));
                ended.take(limits::TOKENS_DROPPED_MAX).map(|token| token.id).collect()
            };
            if !ids.is_empty() {
                let dropped = Command::TokensDropped(TokensDropped { ids, ended_before });
                // What is not dropped now is dropped an hour later.
                let _ = self.consensus.propose(Arc::new(dropped)).await;
            }
        }
    }
}

impl LogTokens for StateTokens {
    fn key(&self) -> Option<TokenKey> {
        token_key(self.consensus.keys(), &*self.consensus.records().read())
    }

    fn cipher(&self, tenant: Option<&Tenant>) -> Option<Arc<Cipher>> {
        self.consensus.keys().cipher(&*self.consensus.records().read(), tenant).ok()
    }

    fn token(&self, id: &[u8; ID_BYTES]) -> Option<Arc<Token>> {
        self.consensus.records().read().token(id)
    }

    fn is_closed(&self, tenant: &Tenant) -> bool {
        is_closed(&*self.consensus.records().read(), tenant)
    }

    fn now(&self) -> Time {
        self.consensus.now()
    }

    fn is_cut_off(&self) -> bool {
        self.touch.is_lost()
    }
}
