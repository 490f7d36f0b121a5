//! Whole-state validation: what must hold of a state at rest, whoever wrote it. For tests, for the simulation and for
//! snapshots that were read back.

use std::collections::BTreeMap;

use super::{
    audit,
    change::{Indexed, indexed},
    codec::{self, CodecError},
    command::{RecordRef, Sealed},
    keys::{META_ENDED, META_GLOBALS, StoreKey},
    record::{Head, Row, Stored},
    sealing::{KeyRow, KeyTable, RingState},
    state::{AuditRow, ChainHead, Counters, Deadline, Globals, SinceList, TenantState},
};
use crate::id::{KeyedHash, LineageId, Position, Tenant, Time, hex};

/// A state that breaks an invariant.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A key or value can't be read.
    #[error("{key}: {source}")]
    Unreadable {
        /// The key, in hex.
        key: String,
        /// Why.
        source: CodecError,
    },
    /// An invariant is broken.
    #[error("{invariant}: {what}")]
    Broken {
        /// Its number.
        invariant: &'static str,
        /// What was found.
        what: String,
    },
}

fn broken(invariant: &'static str, what: String) -> CheckError {
    CheckError::Broken { invariant, what }
}

/// Rows of a chain by sequence: their stored bytes, and what these say.
type Chain = BTreeMap<u64, (Vec<u8>, AuditRow)>;

#[derive(Default)]
struct Whole {
    globals: Globals,
    tenants: BTreeMap<Tenant, TenantState>,
    heads: BTreeMap<RecordRef, Head>,
    bodies: BTreeMap<RecordRef, Sealed>,
    rows: BTreeMap<RecordRef, BTreeMap<u8, Row>>,
    counters: BTreeMap<(Tenant, Option<KeyedHash>), Counters>,
    deadlines: BTreeMap<(Time, RecordRef), Deadline>,
    since: BTreeMap<(SinceList, Time, RecordRef), Position>,
    audit: BTreeMap<Option<Tenant>, Chain>,
    policies: BTreeMap<Tenant, u32>,
    keys: KeyTable,
}

/// Checks a whole state, given as the keys and values of a store: R8 (counters equal a recount), R12 (deadlines), the
/// since index, bodies and rows, the audit chains, and that fences lie within what was granted (R11).
///
/// # Errors
/// The first [`CheckError`] found.
pub fn check<K: AsRef<[u8]>, V: AsRef<[u8]>>(entries: impl IntoIterator<Item = (K, V)>) -> Result<(), CheckError> {
    let mut whole = Whole::default();
    for (key, value) in entries {
        whole.read(key.as_ref(), value.as_ref()).map_err(|source| {
            let key = hex(key.as_ref());
            CheckError::Unreadable { key, source }
        })?;
    }
    whole.indexes()?;
    whole.parts()?;
    whole.closings()?;
    whole.chains()
}

/// Whether a key and its value can be read, alone.
///
/// # Errors
/// Why not.
pub fn readable(key: &[u8], value: &[u8]) -> Result<(), CodecError> {
    Whole::default().read(key, value)
}

impl Whole {
    fn read(&mut self, key: &[u8], value: &[u8]) -> Result<(), CodecError> {
        match StoreKey::decode(key)? {
            StoreKey::Head(record) => drop(self.heads.insert(record, codec::decode(value)?)),
            StoreKey::Body(record) => drop(self.bodies.insert(record, codec::decode(value)?)),
            StoreKey::Deadline(at, record) => drop(self.deadlines.insert((at, record), codec::decode(value)?)),
            StoreKey::Since(list, at, record) => drop(self.since.insert((list, at, record), codec::decode(value)?)),
            StoreKey::Counters(tenant, level) => drop(self.counters.insert((tenant, level), codec::decode(value)?)),
            StoreKey::Row(record, slot) => {
                self.rows.entry(record).or_default().insert(slot, codec::decode(value)?);
            }
            StoreKey::Audit(chain, sequence) => {
                let row = (value.to_vec(), codec::decode(value)?);
                self.audit.entry(chain).or_default().insert(sequence, row);
            }
            StoreKey::Policy(tenant, operation) => {
                codec::decode::<super::policy::PolicyLevel>(value)?;
                *self.policies.entry(tenant).or_default() += u32::from(operation.is_some());
            }
            StoreKey::Tenant(tenant) => drop(self.tenants.insert(tenant, codec::decode(value)?)),
            StoreKey::Meta(name) if name == META_GLOBALS => self.globals = codec::decode(value)?,
            StoreKey::Meta(name) if name == META_ENDED => drop(codec::decode::<super::state::Ended>(value)?),
            StoreKey::Token(_) => drop(codec::decode::<super::command::Token>(value)?),
            key @ (StoreKey::Meta(_) | StoreKey::Ring(_) | StoreKey::DataKeys(_) | StoreKey::Closing(_)) => {
                if let Some(row) = KeyRow::read(&key, value)? {
                    self.keys.put(row);
                }
            }
        }
        Ok(())
    }

    /// R8 and R12: what the heads demand is what the indexes and counters hold, and nothing more.
    fn indexes(&self) -> Result<(), CheckError> {
        let mut counters: BTreeMap<(Tenant, Option<KeyedHash>), Counters> = BTreeMap::new();
        let (mut deadlines, mut since) = (BTreeMap::new(), BTreeMap::new());
        let mut total = Counters::default();
        for (record, head) in &self.heads {
            let demanded = self.demanded(record, head);
            if let Some((at, deadline)) = demanded.deadline {
                deadlines.insert((at, record.clone()), deadline);
            }
            if let Some((list, at)) = demanded.since {
                since.insert((list, at, record.clone()), ());
            }
            for level in [None, Some(record.operation)] {
                let counted = counters.entry((record.tenant.clone(), level)).or_default();
                *counted = counted.changed(demanded.counts, Counters::default());
            }
            total = total.changed(demanded.counts, Counters::default());
        }
        let audit_s = self.globals.formed.as_ref().map_or(0, |formed| formed.limits.audit_s);
        let chains = self.tenants.iter().filter(|(_, state)| state.audit.has_rows());
        deadlines.extend(chains.map(|(tenant, state)| audit::demanded(tenant, state.audit.oldest, audit_s)));
        if deadlines != self.deadlines {
            return Err(broken("R12", difference(&deadlines, &self.deadlines)));
        }
        let stored = self.since.keys().cloned().map(|key| (key, ())).collect();
        if since != stored {
            return Err(broken("since index", difference(&since, &stored)));
        }
        if counters != self.counters {
            return Err(broken("R8", difference(&counters, &self.counters)));
        }
        if total != self.globals.total {
            return Err(broken("R8", format!("total {:?}, recounted {total:?}", self.globals.total)));
        }
        Ok(())
    }

    fn demanded(&self, record: &RecordRef, head: &Head) -> Indexed {
        let swept = match &head.stored {
            Stored::InProgress(grant) => {
                self.globals.time >= grant.deadline && !self.deadlines.contains_key(&(grant.deadline, record.clone()))
            }
            _ => false,
        };
        indexed(head, swept)
    }

    /// Bodies, rows, tenants and fences agree with the heads.
    fn parts(&self) -> Result<(), CheckError> {
        for (record, head) in &self.heads {
            if !self.tenants.contains_key(&record.tenant) {
                return Err(broken("tenants", format!("{record:?} belongs to no tenant")));
            }
            if head.has_body() != self.bodies.contains_key(record) {
                return Err(broken("bodies", format!("{record:?}: the head and the body's key disagree")));
            }
            let rows = self.rows.get(record);
            let slots: Vec<u8> = rows.map_or(Vec::new(), |rows| rows.keys().copied().collect());
            if slots != (0..head.rows).collect::<Vec<_>>() {
                return Err(broken("rows", format!("{record:?}: slots {slots:?} of {}", head.rows)));
            }
            let bytes: u32 = rows.map_or(0, |rows| rows.values().map(Row::bytes).sum());
            if bytes != head.row_bytes {
                return Err(broken("R8", format!("{record:?}: rows of {bytes} bytes, {} counted", head.row_bytes)));
            }
            let newest = head.grant().map_or(head.version, |grant| grant.granted.position.max(head.version));
            if newest > self.globals.position {
                return Err(broken("R11", format!("{record:?}: position {newest} of {}", self.globals.position)));
            }
        }
        let stray = self.rows.keys().chain(self.bodies.keys()).find(|record| !self.heads.contains_key(*record));
        match stray {
            Some(record) => Err(broken("rows and bodies", format!("{record:?} has no head"))),
            None => Ok(()),
        }
    }

    /// Of a tenant that is closed nothing is left that should be gone.
    fn closings(&self) -> Result<(), CheckError> {
        for (tenant, closing) in &self.keys.closings {
            let wrong = |what: &str| Err(broken("closings", format!("{tenant:?}: {what}")));
            let of = Some(tenant.clone());
            if self.tenants.get(tenant).is_none_or(|state| !state.closed) {
                return wrong("it is not closed");
            }
            let shredded =
                self.keys.ring.get(&of).is_some_and(|entry| entry.state == RingState::Shredded && entry.root.is_none());
            let is_keyless = self.tenants.get(tenant).is_some_and(|state| state.index_key.bytes.0.is_empty());
            if closing.destroyed.is_some() && (!shredded || !is_keyless || self.keys.data.contains_key(&of)) {
                return wrong("a key of it is left");
            }
            let has_rows =
                self.heads.keys().any(|record| record.tenant == *tenant) || self.policies.contains_key(tenant);
            if closing.emptied.is_some() && (closing.destroyed.is_none() || has_rows) {
                return wrong("something of it is left");
            }
        }
        Ok(())
    }

    /// The audit chains are whole, and end where their heads say.
    fn chains(&self) -> Result<(), CheckError> {
        let lineage_id = self.globals.formed.as_ref().map_or(LineageId::default(), |formed| formed.lineage_id);
        let cluster = self.globals.audit.unwrap_or_else(|| audit::first(lineage_id, None));
        self.chain(None, lineage_id, cluster)?;
        for (tenant, state) in &self.tenants {
            self.chain(Some(tenant), lineage_id, state.audit)?;
            if self.policies.get(tenant).copied().unwrap_or(0) != state.policies {
                return Err(broken("R8", format!("{tenant:?}: policies are not as many as counted")));
            }
        }
        if u64::from(self.globals.tenants) != self.tenants.len() as u64 {
            return Err(broken("R8", "tenants are not as many as counted".into()));
        }
        Ok(())
    }

    fn chain(&self, of: Option<&Tenant>, lineage_id: LineageId, head: ChainHead) -> Result<(), CheckError> {
        use sha2::{Digest, Sha256};
        let empty = BTreeMap::new();
        let rows = self.audit.get(&of.cloned()).unwrap_or(&empty);
        let kept = rows.keys().copied().eq(head.first_kept..=head.sequence);
        if rows.values().next().is_some_and(|(_, row)| row.at != head.oldest) {
            return Err(broken("audit chain", format!("{of:?}: its oldest row is not of the time in {head:?}")));
        }
        let mut previous = (head.first_kept == 1).then(|| audit::first(lineage_id, of).hash);
        for (sequence, (bytes, row)) in rows {
            if previous.is_some_and(|previous| previous != row.previous) || row.tenant.as_ref() != of {
                return Err(broken("audit chain", format!("{of:?}: row {sequence} does not follow the one before")));
            }
            previous = Some(Sha256::digest(bytes).into());
        }
        if !kept || previous.is_some_and(|previous| previous != head.hash) {
            return Err(broken("audit chain", format!("{of:?}: does not end at its head {head:?}")));
        }
        Ok(())
    }
}

fn difference<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    demanded: &BTreeMap<K, V>,
    found: &BTreeMap<K, V>,
) -> String {
    let missing = demanded.iter().find(|(key, value)| found.get(key) != Some(value));
    let surplus = found.iter().find(|(key, _)| !demanded.contains_key(key));
    format!("demanded, not found: {missing:?}; found, not demanded: {surplus:?}")
}
