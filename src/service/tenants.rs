//! The tenants of the state with their keys, opened once and remembered: bounded, and wiped when forgotten.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use super::names::Names;
use crate::{
    id::Tenant,
    limits,
    records::{command::Command, state::State},
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
        let names = {
            let state = self.records.read();
            let Some(opened) = state.tenant(tenant) else { return Ok(None) };
            if opened.closed {
                return Err(crate::auth::caller::forbidden());
            }
            let formed = state.globals().formed.clone();
            let formed = formed.ok_or_else(|| Refusal::new(Code::Unavailable, "the cluster is not formed yet"))?;
            let index = self.keys.index_key(&*state, tenant, &opened.index_key)?;
            let secret = self.keys.downstream(&*state, &formed.downstream_secret)?;
            let index_bytes = index.as_ref().map_or(&opened.index_key.bytes.0[..], |key| &key.reveal()[..]);
            let secret_bytes = secret.as_ref().map_or(&formed.downstream_secret.bytes.0[..], |key| &key.reveal()[..]);
            let cipher = self.keys.cipher(&*state, Some(tenant))?;
            Arc::new(Names::of(tenant.clone(), index_bytes, secret_bytes, cipher))
        };
        let mut known = self.names.write();
        if known.len() >= limits::NAMES_KEPT_MAX {
            known.clear();
        }
        known.insert(tenant.clone(), Arc::clone(&names));
        Ok(Some(names))
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
