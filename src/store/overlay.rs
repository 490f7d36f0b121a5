//! The replicated state over an engine: an overlay in memory that takes all writes, and the engine behind it. Reads look
//! in the active layer, in the one that is being flushed, then in the engine.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Display,
    iter::Peekable,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::{
    engine::{Engine, EngineError, KeyRange},
    layer::{Changes, ENTRY_BYTES, Layer, SincePlace, put_slot},
};
use crate::{
    fatal,
    id::{KeyedHash, Position, Tenant, Time},
    limits,
    records::{
        codec::{self, CodecError},
        command::{RecordRef, Sealed, Token},
        keys::{self, META_ENABLED, META_ENDED, META_GLOBALS, META_SEALING, StoreKey},
        policy::PolicyLevel,
        record::{Head, Row},
        sealing::{KeyRow, KeyTable},
        state::{AuditRow, Counters, Deadline, Ended, Event, Globals, SinceList, State, TenantState},
    },
};

/// A part of the deadline index, in its order: none where an entry was removed.
type Source<'a> = Box<dyn Iterator<Item = ((Time, RecordRef), Option<Deadline>)> + 'a>;

/// The state in memory and the engine behind it.
pub struct Overlay {
    pub(super) engine: Arc<dyn Engine>,
    pub(super) active: Layer,
    pub(super) flushing: Option<Arc<Layer>>,
    globals: Globals,
    ended: Option<Ended>,
    // Small and read by every command: held whole, bounded by tenants_max, policies_per_tenant_max and the
    // number of tokens.
    tenants: BTreeMap<Tenant, Arc<TenantState>>,
    policies: BTreeMap<(Tenant, Option<KeyedHash>), Arc<PolicyLevel>>,
    tokens: BTreeMap<[u8; 10], Arc<Token>>,
    keys: KeyTable,
    /// No entry of the deadline index stands before this time: where a look for what is due begins.
    due_from: AtomicU64,
    /// No entry of the engine's part of the deadline index stands before this time.
    engine_due_from: AtomicU64,
    /// The first record there could be in an ordered index.
    lowest: RecordRef,
    /// Records whose heads were looked for and stand nowhere: a claim is looked at before it is proposed, and need not
    /// be looked for in the engine again when it is applied. Only a flush brings heads into the engine, only of records
    /// that stand in a layer, and whoever enters a layer leaves this set.
    absent: Mutex<HashSet<RecordRef, RandomState>>,
    /// Up to where the heads of a closed tenant were removed: nothing comes before it any more.
    emptied_to: Option<RecordRef>,
    pub(super) touched: Vec<RecordRef>,
    pub(super) events: Vec<(Position, Event)>,
    /// Whether anybody wants to hear which records were touched.
    pub(super) is_heard: bool,
}

/// Ends the process. Where a test has put itself in the way of that, this task ends.
fn end(what: &str, why: impl Display) -> ! {
    fatal::end(format!("{what}: {why}"));
    panic!("{what}: {why}")
}

fn read<T>(result: Result<T, EngineError>) -> T {
    // Apply has no answer for a read that fails, and a guess would differ between replicas.
    result.unwrap_or_else(|error| end("the store can't be read", error))
}

fn decoded<T: bincode::Decode<()>>(bytes: &[u8]) -> T {
    codec::decode(bytes).unwrap_or_else(|error| end("a value of the store can't be read", error))
}

fn decoded_key(bytes: &[u8]) -> StoreKey {
    StoreKey::decode(bytes).unwrap_or_else(|error: CodecError| end("a key of the store can't be read", error))
}

/// The keys of a sealed cluster; with no sealing there are none.
fn key_table(engine: &dyn Engine) -> Result<KeyTable, super::StoreError> {
    let mut table = KeyTable::default();
    for name in [META_SEALING, META_ENABLED] {
        let key = StoreKey::Meta(name.into());
        if let Some(row) = engine.get(&key.encode())?.map(|value| KeyRow::read(&key, &value)).transpose()?.flatten() {
            table.put(row);
        }
    }
    for row in engine.scan(&KeyRange::new(vec![keys::KEY_RING], vec![keys::CLOSINGS + 1]))? {
        let (key, value) = row?;
        if let Some(row) = KeyRow::read(&StoreKey::decode(&key)?, &value)? {
            table.put(row);
        }
    }
    Ok(table)
}

impl Overlay {
    /// The state as an engine holds it.
    ///
    /// # Errors
    /// When the engine can't be read or holds something else.
    pub(super) fn open(engine: Arc<dyn Engine>) -> Result<Self, super::StoreError> {
        let globals = match engine.get(&StoreKey::Meta(META_GLOBALS.into()).encode())? {
            Some(bytes) => codec::decode(&bytes)?,
            None => Globals::default(),
        };
        let total = if planted!(QuotaCountedTwice) { globals.total } else { Default::default() };
        let globals = Globals { total: globals.total.changed(total, Default::default()), ..globals };
        let ended = engine.get(&StoreKey::Meta(META_ENDED.into()).encode())?;
        let ended = ended.map(|bytes| codec::decode(&bytes)).transpose()?;
        let (mut tenants, mut policies, mut tokens) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for row in engine.scan(&KeyRange::prefix(vec![keys::TENANTS]))? {
            let (key, value) = row?;
            if let StoreKey::Tenant(tenant) = StoreKey::decode(&key)? {
                tenants.insert(tenant, Arc::new(codec::decode(&value)?));
            }
        }
        for row in engine.scan(&KeyRange::prefix(vec![keys::POLICIES]))? {
            let (key, value) = row?;
            if let StoreKey::Policy(tenant, operation) = StoreKey::decode(&key)? {
                policies.insert((tenant, operation), Arc::new(codec::decode(&value)?));
            }
        }
        for row in engine.scan(&KeyRange::prefix(vec![keys::TOKENS]))? {
            let (key, value) = row?;
            if let StoreKey::Token(id) = StoreKey::decode(&key)? {
                tokens.insert(id, Arc::new(codec::decode(&value)?));
            }
        }
        let keys = key_table(&*engine)?;
        Ok(Self {
            engine,
            active: Layer::default(),
            flushing: None,
            globals,
            ended,
            tenants,
            policies,
            tokens,
            keys,
            due_from: AtomicU64::new(0),
            engine_due_from: AtomicU64::new(0),
            lowest: RecordRef {
                tenant: Tenant::parse("-").expect("a hyphen is the first name of a tenant there is"),
                operation: KeyedHash([0; 16]),
                record: KeyedHash([0; 16]),
            },
            absent: Mutex::default(),
            emptied_to: None,
            touched: Vec::new(),
            events: Vec::new(),
            is_heard: false,
        })
    }

    /// Everything that a flush writes: the layer's changes, and the small state as of the same moment.
    pub(super) fn start_flush(&mut self) -> (Arc<Layer>, Changes) {
        // The next layer becomes about as large: its map need not grow step by step.
        let next = Layer {
            heads: HashMap::with_capacity_and_hasher(self.active.heads.len(), RandomState::default()),
            ..Layer::default()
        };
        let layer = Arc::new(std::mem::replace(&mut self.active, next));
        self.flushing = Some(Arc::clone(&layer));
        let mut small = vec![(StoreKey::Meta(META_GLOBALS.into()).encode(), Some(codec::encode(&self.globals)))];
        if layer.ended {
            let value = self.ended.as_ref().map(codec::encode);
            small.push((StoreKey::Meta(META_ENDED.into()).encode(), value));
        }
        for tenant in layer.tenants.keys() {
            let state = self.tenants.get(tenant).map(|state| codec::encode(&**state));
            small.push((StoreKey::Tenant(tenant.clone()).encode(), state));
        }
        (layer, small)
    }

    /// The engine holds the flushed layer now. Whoever takes it drops it where nobody waits: it takes milliseconds.
    pub(super) fn end_flush(&mut self) -> Option<Arc<Layer>> {
        let layer = self.flushing.take()?;
        let first = layer.deadlines.iter().find(|(_, slot)| slot.value.is_some()).map(|((at, _), _)| at.0);
        self.engine_due_from.fetch_min(first.unwrap_or(u64::MAX), Ordering::Relaxed);
        Some(layer)
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.active).chain(self.flushing.as_deref())
    }

    fn stored<T: bincode::Decode<()>>(&self, key: &StoreKey) -> Option<T> {
        read(self.engine.get(&key.encode())).map(|bytes| decoded(&bytes))
    }

    /// The first time at which something is due, if anything ever is.
    pub fn next_due(&self) -> Option<Time> {
        self.first_due(Time(u64::MAX), 1).into_iter().next().map(|(at, ..)| at)
    }

    /// The entries of the deadline index up to `now`, oldest first, at most `max`.
    fn first_due(&self, now: Time, max: usize) -> Vec<(Time, RecordRef, Deadline)> {
        let from = self.due_from.load(Ordering::Relaxed);
        let mut sources: Vec<Peekable<Source<'_>>> = Vec::new();
        for layer in self.layers() {
            let mut entries = layer.deadlines.range((Time(from), self.lowest.clone())..).peekable();
            if entries.peek().is_some_and(|((at, _), _)| *at <= now) {
                let entries: Source<'_> = Box::new(entries.map(|(key, slot)| (key.clone(), slot.value)));
                sources.push(entries.peekable());
            }
        }
        let engine_from = self.engine_due_from.load(Ordering::Relaxed).max(from);
        if engine_from <= now.0 {
            let mut entries = self.engine_deadlines(engine_from).peekable();
            let first = entries.peek().map_or(u64::MAX, |((at, _), _)| at.0);
            self.engine_due_from.store(first, Ordering::Relaxed);
            if first <= now.0 {
                sources.push(entries);
            }
        }
        let mut due = Vec::new();
        while due.len() < max {
            let heads = sources.iter_mut().filter_map(|source| source.peek().map(|(key, _)| key));
            let Some(first) = heads.min().filter(|(at, _)| *at <= now).cloned() else { break };
            // The newest layer comes first and decides; the others' entries at this place are older.
            let mut newest = None;
            for source in &mut sources {
                if source.peek().is_some_and(|(key, _)| *key == first) {
                    let entry = source.next().map(|(_, value)| value);
                    newest = newest.or(entry);
                }
            }
            if let Some(deadline) = newest.flatten() {
                due.push((first.0, first.1, deadline));
            }
        }
        due
    }

    fn engine_deadlines(&self, from: u64) -> Source<'_> {
        let mut start = vec![keys::DEADLINES];
        start.extend_from_slice(&from.to_be_bytes());
        let scan = read(self.engine.scan(&KeyRange::new(start, vec![keys::DEADLINES + 1])));
        Box::new(scan.map(|row| {
            let (key, value) = read(row);
            match decoded_key(&key) {
                StoreKey::Deadline(at, record) => ((at, record), Some(decoded(&value))),
                _ => end("the store can't be read", "another key stands in the deadline index"),
            }
        }))
    }

    /// Up to `max` heads of a tenant (of one operation of it) behind `after`, in the order of their keys.
    pub fn heads(
        &self,
        tenant: &Tenant,
        operation: Option<KeyedHash>,
        after: Option<&RecordRef>,
        max: usize,
    ) -> Vec<(RecordRef, Arc<Head>)> {
        let wanted = |record: &RecordRef| {
            record.tenant == *tenant
                && operation.is_none_or(|operation| record.operation == operation)
                && after.is_none_or(|after| record > after)
        };
        let mut newer: BTreeMap<RecordRef, Option<Arc<Head>>> = BTreeMap::new();
        let layers: Vec<&Layer> = self.layers().collect();
        for layer in layers.iter().rev() {
            let changed = layer.heads.iter().filter(|(record, _)| wanted(record));
            newer.extend(changed.map(|(record, head)| (record.clone(), head.clone())));
        }
        let mut range = KeyRange::prefix(keys::tenant_prefix(keys::HEADS, tenant, operation));
        if let Some(after) = after {
            range = range.after(&StoreKey::Head(after.clone()).encode());
        }
        let mut found = Vec::new();
        let mut newer = newer.into_iter().peekable();
        for row in read(self.engine.scan(&range)) {
            let (key, value) = read(row);
            let StoreKey::Head(record) = decoded_key(&key) else { break };
            while let Some((earlier, head)) = newer.next_if(|(earlier, _)| *earlier < record) {
                found.extend(head.map(|head| (earlier, head)));
            }
            match newer.next_if(|(same, _)| *same == record) {
                Some((_, head)) => found.extend(head.map(|head| (record, head))),
                None => found.push((record, Arc::new(decoded(&value)))),
            }
            if found.len() >= max {
                break;
            }
        }
        if found.len() < max {
            found.extend(newer.filter_map(|(record, head)| Some((record, head?))));
        }
        found.truncate(max);
        found
    }

    /// Up to `max` records of a list of the since index behind `after`, oldest first, each with the position of the sweep
    /// that wrote down its lapse.
    pub fn since(
        &self,
        tenant: &Tenant,
        list: SinceList,
        after: Option<(Time, &RecordRef)>,
        max: usize,
    ) -> Vec<(Time, RecordRef, Position)> {
        let prefix = keys::since_prefix(tenant, list);
        let mut range = KeyRange::prefix(prefix);
        let first = match after {
            Some((at, record)) => {
                range = range.after(&StoreKey::Since(list, at, record.clone()).encode());
                Bound::Excluded(SincePlace::new(list, at, record))
            }
            None => Bound::Included(SincePlace {
                tenant: tenant.clone(),
                list,
                at: Time(0),
                operation: KeyedHash([0; 16]),
                record: KeyedHash([0; 16]),
            }),
        };
        let mut newer: BTreeMap<SincePlace, Option<Position>> = BTreeMap::new();
        let layers: Vec<&Layer> = self.layers().collect();
        // Removed entries hide the engine's: as many more of the engine's are looked at.
        for layer in layers.iter().rev() {
            let entries = layer.since.range((first.clone(), Bound::Unbounded));
            let listed = entries.take_while(|(place, _)| place.tenant == *tenant && place.list == list);
            newer.extend(listed.map(|(place, slot)| (place.clone(), slot.value)));
        }
        let mut found = Vec::new();
        let mut newer = newer.into_iter().peekable();
        for row in read(self.engine.scan(&range)) {
            let (key, value) = read(row);
            let StoreKey::Since(_, at, record) = decoded_key(&key) else { break };
            let place = SincePlace::new(list, at, &record);
            while let Some((earlier, swept)) = newer.next_if(|(earlier, _)| *earlier < place) {
                found.extend(swept.map(|swept| (earlier.at, earlier.of(), swept)));
            }
            match newer.next_if(|(same, _)| *same == place) {
                Some((_, swept)) => found.extend(swept.map(|swept| (at, record, swept))),
                None => found.push((at, record, decoded(&value))),
            }
            if found.len() >= max {
                break;
            }
        }
        if found.len() < max {
            found.extend(newer.filter_map(|(place, swept)| Some((place.at, place.of(), swept?))));
        }
        found.truncate(max);
        found
    }

    /// All rows of a record's history, by slot.
    pub fn rows(&self, record: &RecordRef, head: &Head) -> Vec<Arc<Row>> {
        (0..head.rows).filter_map(|slot| self.row(record, slot)).collect()
    }

    /// All tokens, in the order of their ids.
    pub fn tokens(&self) -> impl Iterator<Item = &Arc<Token>> {
        self.tokens.values()
    }

    /// The tenants that are open, in order.
    pub fn tenants(&self) -> impl Iterator<Item = (&Tenant, &Arc<TenantState>)> {
        self.tenants.iter()
    }

    fn touch(&mut self, record: &RecordRef) {
        if self.is_heard {
            self.touched.push(record.clone());
        }
    }
}

impl State for Overlay {
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
        self.active.ended = true;
        self.active.bytes += ENTRY_BYTES;
        self.ended = ended;
    }

    fn tenant(&self, tenant: &Tenant) -> Option<Arc<TenantState>> {
        self.tenants.get(tenant).cloned()
    }

    fn put_tenant(&mut self, tenant: &Tenant, state: TenantState) {
        self.active.tenants.insert(tenant.clone(), ());
        self.active.bytes += ENTRY_BYTES;
        self.tenants.insert(tenant.clone(), Arc::new(state));
    }

    fn policy(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Option<Arc<PolicyLevel>> {
        // Most operations and many tenants have none: asked before a key is made.
        if self.policies.is_empty() {
            return None;
        }
        self.policies.get(&(tenant.clone(), operation)).cloned()
    }

    fn put_policy(&mut self, tenant: &Tenant, operation: Option<KeyedHash>, level: Option<PolicyLevel>) {
        let place = (tenant.clone(), operation);
        self.active.policies.insert(place.clone(), level.as_ref().map(codec::encode));
        self.active.bytes += 2 * ENTRY_BYTES;
        match level {
            Some(level) => self.policies.insert(place, Arc::new(level)),
            None => self.policies.remove(&place),
        };
    }

    fn head(&self, record: &RecordRef) -> Option<Arc<Head>> {
        match self.layers().find_map(|layer| layer.heads.get(record)) {
            Some(head) => head.clone(),
            None if self.absent.lock().contains(record) => None,
            None => {
                let head = self.stored(&StoreKey::Head(record.clone())).map(Arc::new);
                if head.is_none() {
                    let mut absent = self.absent.lock();
                    if absent.len() >= limits::OVERLAY_ABSENT_MAX {
                        absent.clear();
                    }
                    absent.insert(record.clone());
                }
                head
            }
        }
    }

    fn put_head(&mut self, record: &RecordRef, head: Option<Arc<Head>>) {
        self.absent.get_mut().remove(record);
        self.active.bytes += ENTRY_BYTES + head.as_ref().map_or(0, |head| head.bytes() as usize);
        self.active.heads.insert(record.clone(), head);
        self.touch(record);
    }

    fn records_of(&mut self, tenant: &Tenant, max: usize) -> Vec<(RecordRef, Arc<Head>)> {
        // A tenant that is closed gets no new head: what was removed need not be stepped over again.
        let after = self.emptied_to.take().filter(|record| record.tenant == *tenant);
        let found = self.heads(tenant, None, after.as_ref(), max);
        self.emptied_to = found.last().map(|(record, _)| record.clone()).or(after);
        found
    }

    fn policies_of(&self, tenant: &Tenant, max: usize) -> Vec<Option<KeyedHash>> {
        let own = self.policies.range((tenant.clone(), None)..).take_while(|((of, _), _)| of == tenant);
        own.take(max).map(|((_, operation), _)| *operation).collect()
    }

    fn body(&self, record: &RecordRef) -> Option<Sealed> {
        match self.layers().find_map(|layer| layer.bodies.get(record)) {
            Some(body) => body.clone(),
            None => self.stored(&StoreKey::Body(record.clone())),
        }
    }

    fn put_body(&mut self, record: &RecordRef, body: Option<Sealed>) {
        self.active.bytes += ENTRY_BYTES + body.as_ref().map_or(0, Sealed::len);
        self.active.bodies.insert(record.clone(), body);
    }

    fn row(&self, record: &RecordRef, slot: u8) -> Option<Arc<Row>> {
        let place = (record.clone(), slot);
        match self.layers().find_map(|layer| layer.rows.get(&place)) {
            Some(row) => row.clone(),
            None => self.stored(&StoreKey::Row(place.0, slot)).map(Arc::new),
        }
    }

    fn put_row(&mut self, record: &RecordRef, slot: u8, row: Option<Row>) {
        self.active.bytes += ENTRY_BYTES + row.as_ref().map_or(0, |row| row.bytes() as usize);
        self.active.rows.insert((record.clone(), slot), row.map(Arc::new));
    }

    fn counters(&self, tenant: &Tenant, operation: Option<KeyedHash>) -> Counters {
        let place = (tenant.clone(), operation);
        match self.layers().find_map(|layer| layer.counters.get(&place)) {
            Some(counters) => *counters,
            None => self.stored(&StoreKey::Counters(place.0, operation)).unwrap_or_default(),
        }
    }

    fn count(&mut self, tenant: &Tenant, operation: Option<KeyedHash>, more: Counters, less: Counters) {
        let place = (tenant.clone(), operation);
        if let Some(counters) = self.active.counters.get_mut(&place) {
            *counters = counters.changed(more, less);
            return;
        }
        let counters = self.counters(tenant, operation).changed(more, less);
        self.active.counters.insert(place, counters);
        self.active.bytes += ENTRY_BYTES;
    }

    fn has_deadline(&self, at: Time, record: &RecordRef) -> bool {
        let place = (at, record.clone());
        match self.layers().find_map(|layer| layer.deadlines.get(&place)) {
            Some(slot) => slot.value.is_some(),
            None => read(self.engine.get(&StoreKey::Deadline(at, place.1).encode())).is_some(),
        }
    }

    fn put_deadline(&mut self, at: Time, record: &RecordRef, deadline: Option<Deadline>, is_new: bool) {
        if deadline.is_some() {
            self.due_from.fetch_min(at.0, Ordering::Relaxed);
        }
        self.active.bytes += ENTRY_BYTES;
        put_slot(&mut self.active.deadlines, (at, record.clone()), deadline, is_new);
    }

    fn due(&self, now: Time, max: usize) -> Vec<(Time, RecordRef, Deadline)> {
        let due = self.first_due(now, max);
        if due.len() < max {
            // The sweep removes all of them: what is due later stands at `now` or behind it.
            self.due_from.fetch_max(now.0, Ordering::Relaxed);
        }
        due
    }

    fn put_since(&mut self, list: SinceList, at: Time, record: &RecordRef, swept: Option<Position>) {
        self.active.bytes += ENTRY_BYTES;
        put_slot(&mut self.active.since, SincePlace::new(list, at, record), swept, swept.is_some());
    }

    fn audit_row(&self, chain: Option<&Tenant>, sequence: u64) -> Option<Arc<AuditRow>> {
        let place = (chain.cloned(), sequence);
        let bytes = match self.layers().find_map(|layer| layer.audit.get(&place)) {
            Some(bytes) => bytes.clone(),
            None => read(self.engine.get(&StoreKey::Audit(place.0, sequence).encode())),
        };
        bytes.map(|bytes| Arc::new(decoded(&bytes)))
    }

    fn put_audit_row(&mut self, chain: Option<&Tenant>, sequence: u64, row: Option<Bytes>) {
        self.active.bytes += ENTRY_BYTES + row.as_ref().map_or(0, Bytes::len);
        self.active.audit.insert((chain.cloned(), sequence), row);
    }

    fn token(&self, id: &[u8; 10]) -> Option<Arc<Token>> {
        self.tokens.get(id).cloned()
    }

    fn count_tokens(&self, tenant: Option<&Tenant>) -> (usize, usize) {
        let own = self.tokens.values().filter(|token| token.tenant.as_ref() == tenant).count();
        (own, self.tokens.len())
    }

    fn put_token(&mut self, token: Token) {
        self.active.bytes += 2 * ENTRY_BYTES;
        let token = Arc::new(token);
        self.active.tokens.insert(token.id, Some(Arc::clone(&token)));
        self.tokens.insert(token.id, token);
    }

    fn remove_token(&mut self, id: &[u8; 10]) {
        self.active.bytes += ENTRY_BYTES;
        self.active.tokens.insert(*id, None);
        self.tokens.remove(id);
    }

    fn key_table(&self) -> &KeyTable {
        &self.keys
    }

    fn put_key(&mut self, row: KeyRow) {
        let (key, value) = row.stored();
        self.active.bytes += 2 * ENTRY_BYTES;
        self.active.keys.insert(key.encode(), value);
        self.keys.put(row);
    }

    fn note(&mut self, event: Event) {
        if self.is_heard {
            self.events.push((self.globals.position, event));
        }
    }
}
