//! The tenants of the state with their keys, opened once and remembered: bounded, and wiped when forgotten.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use super::names::Names;
use crate::{
    id::Tenant,
    limits,
    records::{closing::is_closed, command::Command, state::State},
    refusal::{Code, Refusal},
    seal::{Cipher, Keychain},
    store::records::Records,
};

/// Tenants and their keys.
pub(super) struct Tenants {
    records: Arc<Records>,
    keys: Arc<Keychain>,
    names: RwLock<HashMap<Tenant, Arc<Names>>>,
}

impl Tenants {
    pub fn new(records: Arc<Records>, keys: Arc<Keychain>) -> Self {
        Self { records, keys, names: RwLock::default() }
    }

    /// The keys of a tenant that is open; none where it never was.
    pub fn names_of(&self, tenant: &Tenant) -> Result<Option<Arc<Names>>, Refusal> {
        if let Some(known) = self.names.read().get(tenant) {
            return Ok(Some(Arc::clone(known)));
        }
        let state = self.records.read();
        let names = {
            if is_closed(&*state, tenant) {
                return Err(crate::auth::caller::forbidden());
            }
            let Some(opened) = state.tenant(tenant) else { return Ok(None) };
            let formed = state.globals().formed.clone();
            let formed = formed.ok_or_else(|| Refusal::new(Code::Unavailable, "the cluster is not formed yet"))?;
            let index = self.keys.index_key(&*state, tenant, &opened.index_key)?;
            let secret = self.keys.downstream(&*state, &formed.downstream_secret)?;
            let index_bytes = index.as_ref().map_or(&opened.index_key.bytes.0[..], |key| &key.reveal()[..]);
            let secret_bytes = secret.as_ref().map_or(&formed.downstream_secret.bytes.0[..], |key| &key.reveal()[..]);
            let cipher = self.keys.cipher(&*state, Some(tenant))?;
            Arc::new(Names::of(tenant.clone(), index_bytes, secret_bytes, cipher))
        };
        // Before the state can change: what is remembered here is forgotten by whoever hears of a change.
        let mut known = self.names.write();
        if known.len() >= limits::NAMES_KEPT_MAX {
            known.clear();
        }
        known.insert(tenant.clone(), Arc::clone(&names));
        drop((known, state));
        Ok(Some(names))
    }

    /// A tenant was closed: its keys are forgotten.
    pub fn forget(&self, tenant: &Tenant) {
        self.names.write().remove(tenant);
        self.keys.forget(tenant);
    }

    /// The keys of a tenant were replaced; none: the cluster's own, perhaps its first ones.
    pub fn rekeyed(&self, state: &impl State, tenant: Option<&Tenant>) {
        match tenant {
            Some(tenant) => drop(self.names.write().remove(tenant)),
            None => self.names.write().clear(),
        }
        // Whoever holds the cipher goes on with the keys of now; where they are not at hand, with none.
        let _ = self.keys.cipher(state, tenant);
    }

    /// The whole state was replaced: nothing that is remembered of it may be left.
    pub fn replaced(&self, state: &impl State) {
        self.names.write().clear();
        state.key_table().closings.keys().for_each(|tenant| self.keys.forget(tenant));
        state.key_table().data.keys().for_each(|of| drop(self.keys.cipher(state, of.as_ref())));
    }

    /// What opens a tenant at its first use, with fresh keys.
    pub fn opening(&self, tenant: &Tenant) -> Result<Command, Refusal> {
        Ok(self.keys.opening(&*self.records.read(), tenant)?)
    }

    /// The cipher of a tenant, or of the cluster.
    pub fn cipher(&self, tenant: Option<&Tenant>) -> Result<Arc<Cipher>, Refusal> {
        Ok(self.keys.cipher(&*self.records.read(), tenant)?)
    }

    /// The keys of this node.
    pub fn keys(&self) -> &Keychain {
        &self.keys
    }
}
