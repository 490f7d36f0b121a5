//! A layer of the write-behind overlay: what changed since the last flush, in the types that apply works with. Nothing is
//! encoded before a flush, and then only the last value of each key.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::{
    id::{KeyedHash, Position, Tenant, Time},
    records::{
        codec,
        command::{RecordRef, Sealed, Token},
        keys::StoreKey,
        record::{Head, Row},
        state::{Counters, Deadline, SinceList},
    },
};

type Map<K, V> = HashMap<K, V, RandomState>;

/// An entry of an ordered index: its value, or none where it was removed; and whether the layers below hold none, so that
/// removing it again leaves nothing to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<V> {
    pub value: Option<V>,
    pub is_new: bool,
}

/// A place in the since index, ordered as its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SincePlace {
    pub tenant: Tenant,
    pub list: SinceList,
    pub at: Time,
    pub operation: KeyedHash,
    pub record: KeyedHash,
}

impl SincePlace {
    pub fn new(list: SinceList, at: Time, of: &RecordRef) -> Self {
        Self { tenant: of.tenant.clone(), list, at, operation: of.operation, record: of.record }
    }

    pub fn of(&self) -> RecordRef {
        RecordRef { tenant: self.tenant.clone(), operation: self.operation, record: self.record }
    }
}

/// Keys and their last values, none where removed.
pub(super) type Changes = Vec<(Vec<u8>, Option<Bytes>)>;

/// What changed since the last flush.
#[derive(Debug, Default)]
pub(super) struct Layer {
    pub heads: Map<RecordRef, Option<Arc<Head>>>,
    pub bodies: Map<RecordRef, Option<Sealed>>,
    pub rows: Map<(RecordRef, u8), Option<Arc<Row>>>,
    pub counters: Map<(Tenant, Option<KeyedHash>), Counters>,
    pub deadlines: BTreeMap<(Time, RecordRef), Slot<Deadline>>,
    pub since: BTreeMap<SincePlace, Slot<Position>>,
    pub audit: Map<(Option<Tenant>, u64), Option<Bytes>>,
    pub policies: Map<(Tenant, Option<KeyedHash>), Option<Bytes>>,
    pub tenants: Map<Tenant, ()>,
    pub tokens: BTreeMap<[u8; 10], Option<Arc<Token>>>,
    /// Of the key table, encoded.
    pub keys: BTreeMap<Vec<u8>, Option<Bytes>>,
    /// Whether the end of writes changed.
    pub ended: bool,
    /// What the layer holds, roughly, bytes.
    pub bytes: usize,
}

/// Memory of an entry beside its value, bytes: key, map and pointers, rounded up.
pub(super) const ENTRY_BYTES: usize = 160;

/// Room made for an encoded head at most, bytes: with a body inside it takes little more than this.
const HEAD_ROOM_MAX: usize = 2 << 10;

/// Puts an entry into an ordered index of a layer.
pub(super) fn put_slot<K: Ord, V>(index: &mut BTreeMap<K, Slot<V>>, key: K, value: Option<V>, is_new: bool) {
    use std::collections::btree_map::Entry;
    match index.entry(key) {
        Entry::Vacant(place) => {
            place.insert(Slot { is_new: is_new && value.is_some(), value });
        }
        Entry::Occupied(place) if value.is_none() && place.get().is_new => {
            place.remove();
        }
        Entry::Occupied(mut place) => place.get_mut().value = value,
    }
}

impl Layer {
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The last value of every key that changed, with those of `others`, in key order; none where it is removed.
    pub fn changes(&self, others: Changes) -> Changes {
        let mut changes: Changes = Vec::with_capacity(self.heads.len() + self.deadlines.len() + others.len() + 64);
        changes.extend(others);
        let mut add = |key: StoreKey, value: Option<Bytes>| changes.push((key.encode(), value));
        for (record, head) in &self.heads {
            // What a head counts for is more than it takes, but for a body of its own.
            let encoded = |head: &Arc<Head>| codec::encode_in(&**head, (head.bytes() as usize).min(HEAD_ROOM_MAX));
            add(StoreKey::Head(record.clone()), head.as_ref().map(encoded));
        }
        for (record, body) in &self.bodies {
            add(StoreKey::Body(record.clone()), body.as_ref().map(codec::encode));
        }
        for ((record, slot), row) in &self.rows {
            add(StoreKey::Row(record.clone(), *slot), row.as_ref().map(|row| codec::encode(&**row)));
        }
        for ((tenant, operation), counters) in &self.counters {
            let kept = (*counters != Counters::default()).then(|| codec::encode(counters));
            add(StoreKey::Counters(tenant.clone(), *operation), kept);
        }
        for ((at, record), slot) in &self.deadlines {
            add(StoreKey::Deadline(*at, record.clone()), slot.value.as_ref().map(codec::encode));
        }
        for (place, slot) in &self.since {
            add(StoreKey::Since(place.list, place.at, place.of()), slot.value.as_ref().map(codec::encode));
        }
        for ((chain, sequence), row) in &self.audit {
            add(StoreKey::Audit(chain.clone(), *sequence), row.clone());
        }
        for ((tenant, operation), level) in &self.policies {
            add(StoreKey::Policy(tenant.clone(), *operation), level.clone());
        }
        for (id, token) in &self.tokens {
            add(StoreKey::Token(*id), token.as_ref().map(|token| codec::encode(&**token)));
        }
        changes.extend(self.keys.iter().map(|(key, value)| (key.clone(), value.clone())));
        changes.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        changes
    }
}
