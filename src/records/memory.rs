//! The replicated state in plain ordered maps: for tests, for the model checker, and as the shortest statement of what
//! a [`State`] must do.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    codec::{self, CodecError},
    command::{RecordRef, Sealed, Token},
    keys::{META_ENDED, META_GLOBALS, StoreKey},
    policy::PolicyLevel,
    record::{Head, Row},
    sealing::{KeyRow, KeyTable},
    state::{AuditRow, Counters, Deadline, Ended, Event, Globals, SinceList, State, TenantState},
};
use crate::id::{KeyedHash, Position, Tenant, Time};

type Level = (Tenant, Option<KeyedHash>);

/// A state in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryState {
    globals: Globals,
    ended: Option<Ended>,
    tenants: BTreeMap<Tenant, Arc<TenantState>>,
    policies: BTreeMap<Level, Arc<PolicyLevel>>,
    heads: BTreeMap<RecordRef, Arc<Head>>,
    bodies: BTreeMap<RecordRef, Sealed>,
    rows: BTreeMap<(RecordRef, u8), Arc<Row>>,
    counters: BTreeMap<Level, Counters>,
    deadlines: BTreeMap<(Time, RecordRef), Deadline>,
    since: BTreeMap<(SinceList, Time, RecordRef), Position>,
    audit: BTreeMap<(Option<Tenant>, u64), Bytes>,
    tokens: BTreeMap<[u8; 10], Token>,
    keys: KeyTable,
    /// Events of everything applied, with their positions.
    pub events: Vec<(Position, Event)>,
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

impl MemoryState {
    /// Every key and value as they would stand in the store, in key order: the logical dump (R10).
    pub fn dump(&self) -> BTreeMap<Vec<u8>, Bytes> {
        let mut dump = BTreeMap::new();
        dump.insert(StoreKey::Meta(META_GLOBALS.into()).encode(), codec::encode(&self.globals));
        let mut add = |key: StoreKey, value: Bytes| dump.insert(key.encode(), value);
        if let Some(ended) = &self.ended {
            add(StoreKey::Meta(META_ENDED.into()), codec::encode(ended));
        }
        for (tenant, state) in &self.tenants {
            add(StoreKey::Tenant(tenant.clone()), codec::encode(&**state));
        }
        for ((tenant, operation), level) in &self.policies {
            add(StoreKey::Policy(tenant.clone(), *operation), codec::encode(&**level));
        }
        for (record, head) in &self.heads {
            add(StoreKey::Head(record.clone()), codec::encode(&**head));
        }
        for (record, body) in &self.bodies {
            add(StoreKey::Body(record.clone()), codec::encode(body));
        }
        for ((record, slot), row) in &self.rows {
            add(StoreKey::Row(record.clone(), *slot), codec::encode(&**row));
        }
        for ((tenant, operation), counters) in &self.counters {
            add(StoreKey::Counters(tenant.clone(), *operation), codec::encode(counters));
        }
        for ((at, record), deadline) in &self.deadlines {
            add(StoreKey::Deadline(*at, record.clone()), codec::encode(deadline));
        }
        for ((list, at, record), swept) in &self.since {
            add(StoreKey::Since(*list, *at, record.clone()), codec::encode(swept));
        }
        for ((chain, sequence), row) in &self.audit {
            add(StoreKey::Audit(chain.clone(), *sequence), row.clone());
        }
        for (id, token) in &self.tokens {
            add(StoreKey::Token(*id), codec::encode(token));
        }
        for (key, value) in self.keys.rows().map(|row| row.stored()) {
            add(key, value.expect("what a key table holds is stored"));
        }
        dump
    }

    /// The state that has this dump.
    ///
    /// # Errors
    /// [`CodecError`] for a key or value that can't be read.
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(dump: impl IntoIterator<Item = (K, V)>) -> Result<Self, CodecError> {
        let mut state = Self::default();
        for (key, value) in dump {
            state.read(StoreKey::decode(key.as_ref())?, value.as_ref())?;
        }
        Ok(state)
    }

    fn read(&mut self, key: StoreKey, value: &[u8]) -> Result<(), CodecError> {
        if let Some(row) = KeyRow::read(&key, value)? {
            self.keys.put(row);
            return Ok(());
        }
        match key {
            StoreKey::Head(record) => drop(self.heads.insert(record, Arc::new(codec::decode(value)?))),
            StoreKey::Body(record) => drop(self.bodies.insert(record, codec::decode(value)?)),
            StoreKey::Deadline(at, record) => drop(self.deadlines.insert((at, record), codec::decode(value)?)),
            StoreKey::Since(list, at, record) => drop(self.since.insert((list, at, record), codec::decode(value)?)),
            StoreKey::Counters(tenant, level) => drop(self.counters.insert((tenant, level), codec::decode(value)?)),
            StoreKey::Row(record, slot) => drop(self.rows.insert((record, slot), Arc::new(codec::decode(value)?))),
            StoreKey::Audit(chain, sequence) => {
                codec::decode::<AuditRow>(value)?;
                self.audit.insert((chain, sequence), Bytes::copy_from_slice(value));
            }
            StoreKey::Policy(tenant, level) => {
                self.policies.insert((tenant, level), Arc::new(codec::decode(value)?));
            }
            StoreKey::Tenant(tenant) => drop(self.tenants.insert(tenant, Arc::new(codec::decode(value)?))),
            StoreKey::Meta(name) if name == META_GLOBALS => self.globals = codec::decode(value)?,
            StoreKey::Meta(name) if name == META_ENDED => self.ended = Some(codec::decode(value)?),
            StoreKey::Meta(_) | StoreKey::Ring(_) | StoreKey::DataKeys(_) | StoreKey::Closing(_) => {
                return Err(CodecError::Key);
            }
            StoreKey::Token(id) => drop(self.tokens.insert(id, codec::decode(value)?)),
        }
        Ok(())
    }

    /// Records of a list of the since index, oldest first, over all tenants.
    pub fn since_list(&self, list: SinceList) -> Vec<RecordRef> {
        let entries = self.since.keys().filter(|(of, _, _)| *of == list);
        entries.map(|(_, _, record)| record.clone()).collect()
    }
}

impl State for MemoryState {
    fn globals(&self) -> &Globals {
        &self.globals
    }
    fn globals_mut(&mut self) -> &mut Globals {
        &mut self.globals
    }
    fn ended(&self) -> Option<Ended> {
        self.ended
    }
    fn put_ended(&mut self, ended: Option<Ended>) {
        self.ended = ended;
    }
    fn tenant(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        self.tenants.get(tenant).cloned()
    }
    fn put_tenant(&mut self, tenant: &Tenant, state: TenantState) {
        self.tenants.insert(tenant.clone(), Arc::new(state));
    }
    fn policy(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Option<Arc<PolicyLevel>> {
        // Most tenants have none: asked before a key is made.
        if self.policies.is_empty() {
            return None;
        }
        self.policies.get(&(tenant.clone(), operation)).cloned()
    }
    fn put_policy(&mut self, tenant: &Tenant, operation: Option<KeyedHash>, level: Option<PolicyLevel>) {
        put(&mut self.policies, (tenant.clone(), operation), level.map(Arc::new));
    }
    fn head(&self, record: &RecordRef) -> Option<Arc<Head>> {
        self.heads.get(record).cloned()
    }
    fn put_head(&mut self, record: &RecordRef, head: Option<Arc<Head>>) {
        put(&mut self.heads, record.clone(), head);
    }
    fn records_of(&mut self, tenant: &Tenant, max: usize) -> Vec<(RecordRef, Arc<Head>)> {
        let own = self.heads.iter().filter(|(record, _)| record.tenant == *tenant).take(max);
        own.map(|(record, head)| (record.clone(), Arc::clone(head))).collect()
    }
    fn policies_of(&self, tenant: &Tenant, max: usize) -> Vec<Option<KeyedHash>> {
        let own = self.policies.keys().filter(|(of, _)| of == tenant).take(max);
        own.map(|(_, operation)| *operation).collect()
    }
    fn body(&self, record: &RecordRef) -> Option<Sealed> {
        self.bodies.get(record).cloned()
    }
    fn put_body(&mut self, record: &RecordRef, body: Option<Sealed>) {
        put(&mut self.bodies, record.clone(), body);
    }
    fn row(&self, record: &RecordRef, slot: u8) -> Option<Arc<Row>> {
        self.rows.get(&(record.clone(), slot)).cloned()
    }
    fn put_row(&mut self, record: &RecordRef, slot: u8, row: Option<Row>) {
        put(&mut self.rows, (record.clone(), slot), row.map(Arc::new));
    }
    fn counters(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Counters {
        self.counters.get(&(tenant.clone(), operation)).copied().unwrap_or_default()
    }
    fn count(&mut self, tenant: &Tenant, operation: Option<KeyedHash>, more: Counters, less: Counters) {
        match self.counters.entry((tenant.clone(), operation)) {
            Entry::Vacant(place) => drop(place.insert(Counters::default().changed(more, less))),
            Entry::Occupied(mut place) => {
                let counters = place.get().changed(more, less);
                if counters == Counters::default() {
                    place.remove();
                } else {
                    place.insert(counters);
                }
            }
        }
    }
    fn has_deadline(&self, at: Time, record: &RecordRef) -> bool {
        self.deadlines.contains_key(&(at, record.clone()))
    }
    fn put_deadline(&mut self, at: Time, record: &RecordRef, deadline: Option<Deadline>, is_new: bool) {
        debug_assert!(!is_new || !self.has_deadline(at, record));
        put(&mut self.deadlines, (at, record.clone()), deadline);
    }
    fn due(&self, now: Time, max: usize) -> Vec<(Time, RecordRef, Deadline)> {
        let due = self.deadlines.iter().take_while(|((at, _), _)| *at <= now).take(max);
        due.map(|((at, record), deadline)| (*at, record.clone(), *deadline)).collect()
    }
    fn put_since(&mut self, list: SinceList, at: Time, record: &RecordRef, swept: Option<Position>) {
        put(&mut self.since, (list, at, record.clone()), swept);
    }
    fn audit_row(&self, chain: Option<&Tenant>, sequence: u64) -> Option<Arc<AuditRow>> {
        let bytes = self.audit.get(&(chain.cloned(), sequence))?;
        Some(Arc::new(codec::decode(bytes).expect("audit rows are encoded by this process")))
    }
    fn put_audit_row(&mut self, chain: Option<&Tenant>, sequence: u64, row: Option<Bytes>) {
        put(&mut self.audit, (chain.cloned(), sequence), row);
    }
    fn token(&self, id: &[u8; 10]) -> Option<Arc<Token>> {
        self.tokens.get(id).map(|token| Arc::new(token.clone()))
    }
    fn count_tokens(&self, tenant: Option<&Tenant>) -> (usize, usize) {
        let own = self.tokens.values().filter(|token| token.tenant.as_ref() == tenant).count();
        (own, self.tokens.len())
    }
    fn put_token(&mut self, token: Token) {
        self.tokens.insert(token.id, token);
    }
    fn remove_token(&mut self, id: &[u8; 10]) {
        self.tokens.remove(id);
    }
    fn key_table(&self) -> &KeyTable {
        &self.keys
    }
    fn put_key(&mut self, row: KeyRow) {
        self.keys.put(row);
    }
    fn note(&mut self, event: Event) {
        self.events.push((self.globals.position, event));
    }
}
