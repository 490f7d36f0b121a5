//! How a sealed backup and a key ring become one state again: the ring's rows take their place among the backup's, and a
//! tenant that the ring can't open is closed before anything is served.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::ring::{Ring, RingError};
use crate::{
    id::{LineageId, Position, Tenant, Time},
    records::{
        closing::{Closing, no_key},
        codec,
        command::Token,
        keys::{META_SEALING, StoreKey},
        record::Moment,
        sealing::{KeyRow, KeyTable, OuterKey, RingEntry, RingState, Sealing},
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
    /// Tenants that are open and have no keys: the cluster was sealed later than they were opened, or never.
    pub bare: BTreeSet<Tenant>,
}

impl Keys {
    /// Takes note of a row of the backup.
    pub(super) fn see(&mut self, key: &StoreKey, value: &[u8]) -> Result<(), codec::CodecError> {
        if let Some(row) = KeyRow::read(key, value)? {
            self.table.put(row);
        } else if let StoreKey::Tenant(tenant) = key {
            let state: TenantState = codec::decode(value)?;
            match state.index_key.wrapping_id {
                _ if state.closed => false,
                0 => self.bare.insert(tenant.clone()),
                _ => self.tenants.insert(tenant.clone()),
            };
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
    #[error(
        "a root key of the ring is wrapped by sealing key {0}, which neither the backup nor this node knows; \
         a running node that has the key can restore it"
    )]
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
    /// Those of them that were open in the backup: their end is told of here first.
    closed_here: BTreeSet<Tenant>,
}

impl Joining {
    /// Judges a ring by what a backup holds. `held` are the key-encryption keys at hand: the ring may be of after another one
    /// than the backup knows has taken over. `now` is when tenants that the ring lacks are closed.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn of(
        keys: &Keys,
        lineage_id: LineageId,
        ring: Option<&Ring>,
        held: &[OuterKey],
        close_missing: bool,
        now: Time,
    ) -> Result<Self, KeyringError> {
        if ring.is_some_and(|ring| ring.lineage_id != lineage_id) {
            return Err(KeyringError::Lineage);
        }
        let Some(sealing) = &keys.table.sealing else { return Self::of_clear(keys, ring) };
        let ring = ring.ok_or(KeyringError::Needed)?;
        let mut entries = BTreeMap::new();
        for entry in &ring.entries {
            entries.insert(entry.tenant.clone(), entry.stored()?);
        }
        let own = entries.get(&None).and_then(|own| own.root.as_ref());
        let own = own.ok_or(KeyringError::NoCluster)?.wrapping_id;
        let sealing = wrapped_by(&entries, own, &[&sealing.keys, held])?;
        let missing: Vec<Tenant> =
            keys.tenants.iter().filter(|tenant| !entries.contains_key(&Some((*tenant).clone()))).cloned().collect();
        if !missing.is_empty() && !close_missing {
            return Err(KeyringError::Missing(Names(missing)));
        }
        for tenant in missing {
            entries.insert(Some(tenant), RingEntry { state: RingState::Shredded, at: now, root: None });
        }
        let mut joining = Self { table: keys.table.clone(), closed: BTreeSet::new(), closed_here: BTreeSet::new() };
        joining.table.put(KeyRow::Sealing(sealing));
        for (tenant, entry) in entries {
            let is_open = entry.state == RingState::Open && entry.root.is_some();
            match &tenant {
                // Opened after the backup: a root key without anything under it.
                Some(tenant) if is_open && !keys.tenants.contains(tenant) => continue,
                Some(tenant) if !is_open => {
                    joining.table.put(KeyRow::Data(Some(tenant.clone()), None));
                    joining.close(keys, tenant, entry.at);
                }
                _ => {}
            }
            joining.table.put(KeyRow::Ring(tenant, entry));
        }
        Ok(joining)
    }

    /// A backup of before the cluster was sealed: what the ring says was shredded later is closed all the same.
    fn of_clear(keys: &Keys, ring: Option<&Ring>) -> Result<Self, KeyringError> {
        let mut joining = Self::default();
        for entry in ring.into_iter().flat_map(|ring| &ring.entries) {
            let stored = entry.stored()?;
            if let Some(tenant) = entry.tenant.as_ref().filter(|_| stored.state == RingState::Shredded) {
                joining.close(keys, tenant, stored.at);
                joining.table.put(KeyRow::Ring(Some(tenant.clone()), stored));
            }
        }
        Ok(joining)
    }

    /// Closes a tenant. What the backup holds of one that was open is deleted by the cluster that comes of it.
    fn close(&mut self, keys: &Keys, tenant: &Tenant, at: Time) {
        self.closed.insert(tenant.clone());
        if keys.tenants.contains(tenant) || keys.bare.contains(tenant) {
            let closed = Moment { position: Position::default(), at };
            let older_copies_stay = keys.bare.contains(tenant);
            let (destroyed, emptied) = (Some(Position::default()), None);
            let closing = Closing { closed, request_id: None, older_copies_stay, destroyed, emptied };
            self.table.put(KeyRow::Closing(tenant.clone(), closing));
            self.closed_here.insert(tenant.clone());
        }
    }

    /// The rows of the backup with those of the ring in their places, and what is closed closed.
    pub fn rows<E: Send + 'static>(
        &self,
        rows: impl Iterator<Item = Result<(Bytes, Bytes), E>> + Send + 'static,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), E>> + Send + 'static {
        let ring = self.table.ring.iter().map(|(of, entry)| KeyRow::Ring(of.clone(), (**entry).clone()));
        let closings = self.table.closings.iter().filter(|(tenant, _)| self.closed_here.contains(*tenant));
        let closings = closings.map(|(tenant, closing)| KeyRow::Closing(tenant.clone(), (**closing).clone()));
        let mut added: BTreeMap<Bytes, Bytes> = ring
            .chain(closings)
            .map(|row| {
                let (key, value) = row.stored();
                (key.encode().into(), value.expect("a place of the ring is stored"))
            })
            .collect();
        let sealing_key = StoreKey::Meta(META_SEALING.into()).encode();
        let (closed, sealing) =
            (self.closed.clone(), self.table.sealing.as_ref().map(|sealing| codec::encode(&**sealing)));
        let mut rows = rows.filter_map(move |row| match row {
            // By which keys root keys are wrapped, the ring says.
            Ok((key, _)) if key[..] == sealing_key[..] => sealing.clone().map(|value| Ok((key, value))),
            Ok((key, value)) => still(&closed, key, value).map(Ok),
            Err(error) => Some(Err(error)),
        });
        let mut waiting = None;
        std::iter::from_fn(move || {
            let next: Option<Result<(Bytes, Bytes), E>> = waiting.take().or_else(|| rows.next());
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

/// The keys that these root keys are wrapped by, each with its check; the cluster's own says which one wraps from now on.
fn wrapped_by(
    entries: &BTreeMap<Option<Tenant>, RingEntry>,
    current: u32,
    known: &[&[OuterKey]],
) -> Result<Sealing, KeyringError> {
    let ids: BTreeSet<u32> = entries.values().filter_map(|entry| Some(entry.root.as_ref()?.wrapping_id)).collect();
    let of = |id: u32| known.iter().flat_map(|keys| keys.iter()).find(|key| key.id == id).copied();
    let keys: Result<Vec<OuterKey>, _> = ids.into_iter().map(|id| of(id).ok_or(KeyringError::Unknown(id))).collect();
    Ok(Sealing { current, keys: keys? })
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
            Ok(state) => Some((key, codec::encode(&TenantState { closed: true, index_key: no_key(), ..state }))),
            // Every row was read before.
            Err(_) => Some((key, value)),
        },
        _ => Some((key, value)),
    }
}
