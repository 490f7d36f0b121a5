//! How a sealed backup and a key ring become one state again: the ring's rows take their place among the backup's, and a
//! tenant that the ring can't open is closed before anything is served.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::ring::{Ring, RingError};
use crate::{
    id::{LineageId, Tenant, Time},
    records::{
        codec,
        command::{Token, Wrapped},
        keys::StoreKey,
        sealing::{KeyRow, KeyTable, RingEntry, RingState},
        state::TenantState,
    },
};

/// What a backup holds of keys: all but the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Which keys there are, and the data keys, wrapped. Its ring is empty.
    pub table: KeyTable,
    /// Tenants whose fields are sealed, and which are open.
    pub tenants: BTreeSet<Tenant>,
}

impl Keys {
    /// Takes note of a row of the backup.
    pub(super) fn see(&mut self, key: &StoreKey, value: &[u8]) -> Result<(), codec::CodecError> {
        if let Some(row) = KeyRow::read(key, value)? {
            self.table.put(row);
        } else if let StoreKey::Tenant(tenant) = key {
            let state: TenantState = codec::decode(value)?;
            if state.index_key.wrapping_id != 0 && !state.closed {
                self.tenants.insert(tenant.clone());
            }
        }
        Ok(())
    }
}

/// Why a backup and a key ring do not fit.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// The backup is sealed, and there is no ring.
    #[error("the backup is sealed: --keyring names the key ring that was exported with it, or later")]
    Needed,
    /// The ring is another cluster's.
    #[error("the key ring is of another cluster's lineage")]
    Lineage,
    /// The ring does not hold the cluster's own root key.
    #[error("the key ring does not hold the cluster's own root key")]
    NoCluster,
    /// Tenants of the backup are not in the ring.
    #[error("the key ring has no key of {0}; --close-missing closes what it can't open, for good")]
    Missing(Names),
    /// A root key is wrapped by a key that the backup does not know.
    #[error("a root key of the ring is wrapped by sealing key {0}, which the backup does not know")]
    Unknown(u32),
    /// A root key of the ring has no such shape.
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// Tenants by name, the first few of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Names(Vec<Tenant>);

const NAMES_SHOWN: usize = 10;

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown: Vec<&str> = self.0.iter().take(NAMES_SHOWN).map(Tenant::as_str).collect();
        f.write_str(if self.0.len() == 1 { "tenant " } else { "tenants " })?;
        f.write_str(&shown.join(", "))?;
        if self.0.len() > NAMES_SHOWN { write!(f, " and {} more", self.0.len() - NAMES_SHOWN) } else { Ok(()) }
    }
}

/// The rows that a ring adds to a backup, and what it closes.
#[derive(Clone, Debug, Default)]
pub struct Joining {
    /// The keys of the whole state.
    pub table: KeyTable,
    closed: BTreeSet<Tenant>,
}

impl Joining {
    /// Judges a ring by what a backup holds. `now` is when tenants that it lacks are closed.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn of(
        keys: &Keys,
        lineage_id: LineageId,
        ring: Option<&Ring>,
        close_missing: bool,
        now: Time,
    ) -> Result<Self, KeyringError> {
        if ring.is_some_and(|ring| ring.lineage_id != lineage_id) {
            return Err(KeyringError::Lineage);
        }
        let Some(sealing) = &keys.table.sealing else { return Ok(Self::default()) };
        let ring = ring.ok_or(KeyringError::Needed)?;
        let mut entries = BTreeMap::new();
        for entry in &ring.entries {
            entries.insert(entry.tenant.clone(), entry.stored()?);
        }
        if entries.get(&None).is_none_or(|own| own.root.is_none()) {
            return Err(KeyringError::NoCluster);
        }
        let outer = |root: &Wrapped| root.wrapping_id;
        let unknown = entries.values().filter_map(|entry| entry.root.as_ref()).map(outer);
        if let Some(id) = unknown.into_iter().find(|id| !sealing.keys.iter().any(|key| key.id == *id)) {
            return Err(KeyringError::Unknown(id));
        }
        let missing: Vec<Tenant> =
            keys.tenants.iter().filter(|tenant| !entries.contains_key(&Some((*tenant).clone()))).cloned().collect();
        if !missing.is_empty() && !close_missing {
            return Err(KeyringError::Missing(Names(missing)));
        }
        for tenant in missing {
            entries.insert(Some(tenant), RingEntry { state: RingState::Shredded, at: now, root: None });
        }
        let mut joining = Self { table: keys.table.clone(), closed: BTreeSet::new() };
        for (tenant, entry) in entries {
            let is_open = entry.state == RingState::Open && entry.root.is_some();
            match &tenant {
                // Opened after the backup: a root key without anything under it.
                Some(tenant) if is_open && !keys.tenants.contains(tenant) => continue,
                Some(tenant) if !is_open => {
                    joining.closed.insert(tenant.clone());
                    joining.table.put(KeyRow::Data(Some(tenant.clone()), None));
                }
                _ => {}
            }
            joining.table.put(KeyRow::Ring(tenant, entry));
        }
        Ok(joining)
    }

    /// The rows of the backup with those of the ring in their places, and what is closed closed.
    pub fn rows<E: Send + 'static>(
        &self,
        rows: impl Iterator<Item = Result<(Bytes, Bytes), E>> + Send + 'static,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), E>> + Send + 'static {
        let ring = self.table.ring.iter().map(|(of, entry)| KeyRow::Ring(of.clone(), (**entry).clone()));
        let mut added: BTreeMap<Bytes, Bytes> = ring
            .map(|row| {
                let (key, value) = row.stored();
                (key.encode().into(), value.expect("a place of the ring is stored"))
            })
            .collect();
        let closed = self.closed.clone();
        let mut rows = rows.filter_map(move |row| match row {
            Ok((key, value)) => still(&closed, key, value).map(Ok),
            Err(error) => Some(Err(error)),
        });
        let mut waiting = None;
        std::iter::from_fn(move || {
            let next = waiting.take().or_else(|| rows.next());
            let is_first = match (&next, added.first_key_value()) {
                (Some(Ok((key, _))), Some((own, _))) => own < key,
                (None, Some(_)) => true,
                _ => false,
            };
            if is_first {
                waiting = next;
                return added.pop_first().map(Ok);
            }
            next
        })
    }
}

/// A row as it is restored; none where it goes.
fn still(closed: &BTreeSet<Tenant>, key: Bytes, value: Bytes) -> Option<(Bytes, Bytes)> {
    if closed.is_empty() {
        return Some((key, value));
    }
    match StoreKey::decode(&key) {
        Ok(StoreKey::DataKeys(Some(tenant))) if closed.contains(&tenant) => None,
        // Nobody is let in by what can't be opened.
        Ok(StoreKey::Token(_)) => {
            let token = codec::decode::<Token>(&value).ok();
            let is_closed = token.and_then(|token| token.tenant).is_some_and(|tenant| closed.contains(&tenant));
            (!is_closed).then_some((key, value))
        }
        Ok(StoreKey::Tenant(tenant)) if closed.contains(&tenant) => match codec::decode::<TenantState>(&value) {
            Ok(state) => Some((key, codec::encode(&TenantState { closed: true, ..state }))),
            // Every row was read before.
            Err(_) => Some((key, value)),
        },
        _ => Some((key, value)),
    }
}
