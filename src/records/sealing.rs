//! Keys in the replicated state: wrapped ones alone, and what is needed to know the key that wraps them. Nothing here can
//! open anything; with no sealing there are none of these values.

use std::{collections::BTreeMap, sync::Arc};

use bincode::{
    Decode, Encode,
    de::{BorrowDecode, BorrowDecoder, Decoder},
    enc::Encoder,
    error::{DecodeError, EncodeError},
};
use bytes::Bytes;

use super::{
    answer::Answer,
    apply,
    closing::{self, Closing},
    codec::{self, Blob, CodecError, tagged_words},
    command::{Init, TenantOpened, Wrapped},
    keys::{META_ENABLED, META_SEALING, StoreKey},
    state::{Event, State, TenantState},
};
use crate::{
    id::{Position, Tenant, Time},
    refusal::{Code, Refusal},
};

/// A key-encryption key as it is known without being known: its id, and the first 8 bytes of a keyed hash under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct OuterKey {
    /// Its id, never used again.
    pub id: u32,
    /// HMAC of `semel-kek-check-v1` under it, cut to 8 bytes.
    pub check: [u8; 8],
}

/// The meta value `sealing`: there only in a sealed cluster.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Sealing {
    /// The key that wraps root keys from now on.
    pub current: u32,
    /// Every key that something may still be wrapped with, by id.
    pub keys: Vec<OuterKey>,
}

tagged_words! {
    /// Whether a place of the key ring can still be opened.
    RingState {
        /// Its root key is there.
        Open = 1 "open",
        /// Its keys were destroyed.
        Shredded = 2 "shredded",
    }
}

/// A place of the key ring: a tenant's, or the cluster's own.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RingEntry {
    /// Whether it can still be opened.
    pub state: RingState,
    /// Since when.
    pub at: Time,
    /// The root key, wrapped by a key-encryption key.
    pub root: Option<Wrapped>,
}

/// A data key, wrapped by the root key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataKey {
    /// Its id, from 1.
    pub id: u32,
    /// The key.
    pub key: Wrapped,
}

/// The data keys of a tenant, or of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct DataKeys {
    /// The one that seals from now on.
    pub current: u32,
    /// All that something may be sealed with, by id.
    pub keys: Vec<DataKey>,
}

/// Where a cluster that was formed without keys was sealed. What is older may stand in older copies in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Enabled {
    /// The position.
    pub position: Position,
    /// The cluster time.
    pub at: Time,
}

/// Init of a cluster that is sealed from its first command on.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SealedInit {
    /// As without sealing; its downstream secret is wrapped by the cluster's own root key, and its token's scope sealed.
    pub init: Init,
    /// The key that wraps the root key.
    pub outer: OuterKey,
    /// The cluster's own root key.
    pub root: Wrapped,
    /// The cluster's own data key 1.
    pub data_key: Wrapped,
}

/// The first use of a tenant in a sealed cluster.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SealedTenantOpened {
    /// As without sealing; the index key is wrapped by the root key.
    pub opened: TenantOpened,
    /// The tenant's root key.
    pub root: Wrapped,
    /// Its data key 1.
    pub data_key: Wrapped,
}

/// A value of the key table that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRow {
    /// The meta value `sealing`.
    Sealing(Sealing),
    /// A place of the key ring: a tenant's, or the cluster's own.
    Ring(Option<Tenant>, RingEntry),
    /// Data keys; none where they are destroyed.
    Data(Option<Tenant>, Option<DataKeys>),
    /// A tenant that is closed.
    Closing(Tenant, Closing),
    /// The meta value `sealing-enabled`.
    Enabled(Enabled),
}

impl KeyRow {
    /// As it stands in the store; no value where it is removed.
    pub fn stored(&self) -> (StoreKey, Option<Bytes>) {
        match self {
            KeyRow::Sealing(sealing) => (StoreKey::Meta(META_SEALING.into()), Some(codec::encode(sealing))),
            KeyRow::Ring(of, entry) => (StoreKey::Ring(of.clone()), Some(codec::encode(entry))),
            KeyRow::Data(of, keys) => (StoreKey::DataKeys(of.clone()), keys.as_ref().map(codec::encode)),
            KeyRow::Closing(of, closing) => (StoreKey::Closing(of.clone()), Some(codec::encode(closing))),
            KeyRow::Enabled(enabled) => (StoreKey::Meta(META_ENABLED.into()), Some(codec::encode(enabled))),
        }
    }

    /// What stands in the store, where the key is one of these.
    ///
    /// # Errors
    /// [`CodecError`] for a value that can't be read.
    pub fn read(key: &StoreKey, value: &[u8]) -> Result<Option<Self>, CodecError> {
        Ok(match key {
            StoreKey::Meta(name) if name == META_SEALING => Some(KeyRow::Sealing(codec::decode(value)?)),
            StoreKey::Meta(name) if name == META_ENABLED => Some(KeyRow::Enabled(codec::decode(value)?)),
            StoreKey::Ring(of) => Some(KeyRow::Ring(of.clone(), codec::decode(value)?)),
            StoreKey::DataKeys(of) => Some(KeyRow::Data(of.clone(), Some(codec::decode(value)?))),
            StoreKey::Closing(of) => Some(KeyRow::Closing(of.clone(), codec::decode(value)?)),
            _ => None,
        })
    }
}

/// All keys of the state: few, and read as a whole. The tenant that is none is the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTable {
    /// None where nothing is sealed.
    pub sealing: Option<Arc<Sealing>>,
    /// The key ring.
    pub ring: BTreeMap<Option<Tenant>, Arc<RingEntry>>,
    /// Data keys.
    pub data: BTreeMap<Option<Tenant>, Arc<DataKeys>>,
    /// Tenants that are closed.
    pub closings: BTreeMap<Tenant, Arc<Closing>>,
    /// Where the cluster was sealed, if it was formed without keys.
    pub enabled: Option<Enabled>,
}

impl KeyTable {
    /// Takes a value in.
    pub fn put(&mut self, row: KeyRow) {
        match row {
            KeyRow::Sealing(sealing) => self.sealing = Some(Arc::new(sealing)),
            KeyRow::Ring(of, entry) => drop(self.ring.insert(of, Arc::new(entry))),
            KeyRow::Data(of, Some(keys)) => drop(self.data.insert(of, Arc::new(keys))),
            KeyRow::Data(of, None) => drop(self.data.remove(&of)),
            KeyRow::Closing(of, closing) => drop(self.closings.insert(of, Arc::new(closing))),
            KeyRow::Enabled(enabled) => self.enabled = Some(enabled),
        }
    }

    /// All of it, as it stands in the store.
    pub fn rows(&self) -> impl Iterator<Item = KeyRow> {
        let sealing = self.sealing.iter().map(|sealing| KeyRow::Sealing((**sealing).clone()));
        let ring = self.ring.iter().map(|(of, entry)| KeyRow::Ring(of.clone(), (**entry).clone()));
        let data = self.data.iter().map(|(of, keys)| KeyRow::Data(of.clone(), Some((**keys).clone())));
        let closings = self.closings.iter().map(|(of, closing)| KeyRow::Closing(of.clone(), (**closing).clone()));
        let enabled = self.enabled.into_iter().map(KeyRow::Enabled);
        sealing.chain(ring).chain(data).chain(closings).chain(enabled)
    }
}

fn first(key: &Wrapped) -> DataKeys {
    DataKeys { current: 1, keys: vec![DataKey { id: 1, key: key.clone() }] }
}

fn put_root(state: &mut impl State, of: Option<&Tenant>, root: &Wrapped, now: Time) {
    let entry = RingEntry { state: RingState::Open, at: now, root: Some(root.clone()) };
    state.put_key(KeyRow::Ring(of.cloned(), entry));
}

fn put_keys(state: &mut impl State, of: Option<&Tenant>, root: &Wrapped, data_key: &Wrapped, now: Time) {
    put_root(state, of, root, now);
    state.put_key(KeyRow::Data(of.cloned(), Some(first(data_key))));
}

/// The first keys of whoever has fields in clear: as data key 0 these are resealed, and then refused, as any other older ones.
pub(super) fn adopt(state: &mut impl State, of: Option<&Tenant>, root: &Wrapped, data_key: &Wrapped, now: Time) {
    put_root(state, of, root, now);
    let clear = DataKey { id: 0, key: Wrapped { wrapping_id: 0, bytes: Blob::default() } };
    let own = DataKey { id: 1, key: data_key.clone() };
    state.put_key(KeyRow::Data(of.cloned(), Some(DataKeys { current: 1, keys: vec![clear, own] })));
}

/// Applies the init of a sealed cluster.
pub(super) fn form(state: &mut impl State, sealed: &SealedInit, at: Position, now: Time) -> Result<Answer, Refusal> {
    let answer = apply::form(state, &sealed.init, at, now)?;
    state.put_key(KeyRow::Sealing(Sealing { current: sealed.outer.id, keys: vec![sealed.outer] }));
    put_keys(state, None, &sealed.root, &sealed.data_key, now);
    Ok(answer)
}

/// Applies the first use of a tenant in a sealed cluster. Of two at once the first stands, with its keys.
pub(super) fn open(
    state: &mut impl State,
    sealed: &SealedTenantOpened,
    at: Position,
    now: Time,
) -> Result<Answer, Refusal> {
    let current = state.key_table().sealing.as_ref().map(|sealing| sealing.current);
    if closing::is_closed(state, &sealed.opened.tenant) {
        // Its name is never used again, also where a restore has brought nothing else of it along.
        return Err(apply::forbidden());
    }
    let is_known = state.tenant(&sealed.opened.tenant).is_some();
    if !is_known && current != Some(sealed.root.wrapping_id) {
        return Err(Refusal::new(Code::Unavailable, "the sealing key was replaced meanwhile; ask again"));
    }
    let tenant = &sealed.opened.tenant;
    let answer = apply::open(state, &sealed.opened, at, now)?;
    if !is_known {
        put_keys(state, Some(tenant), &sealed.root, &sealed.data_key, now);
    } else if let Some(opened) = state.tenant(tenant).filter(|opened| opened.index_key.wrapping_id == 0) {
        // Opened before the cluster was sealed: it keeps its index key, wrapped from now on.
        if current != Some(sealed.root.wrapping_id) {
            return Err(Refusal::new(Code::Unavailable, "the sealing key was replaced meanwhile; ask again"));
        }
        state.put_tenant(tenant, TenantState { index_key: sealed.opened.index_key.clone(), ..(*opened).clone() });
        adopt(state, Some(tenant), &sealed.root, &sealed.data_key, now);
        state.note(Event::Rekeyed(Some(tenant.clone())));
    }
    Ok(answer)
}

#[cfg(test)]
pub(super) mod tests;
