//! Keys of the store: one key space, a prefix byte per kind of value. See FORMAT.md.

use super::{codec::CodecError, command::RecordRef, state::SinceList};
use crate::id::{KeyedHash, Tenant, Time};

/// Prefix of heads.
pub const HEADS: u8 = 1;
/// Prefix of bodies.
pub const BODIES: u8 = 2;
/// Prefix of the deadline index.
pub const DEADLINES: u8 = 3;
/// Prefix of the since index.
pub const SINCE: u8 = 4;
/// Prefix of counters.
pub const COUNTERS: u8 = 5;
/// Prefix of history rows.
pub const ROWS: u8 = 6;
/// Prefix of audit rows.
pub const AUDIT: u8 = 7;
/// Prefix of policies.
pub const POLICIES: u8 = 8;
/// Prefix of tenants.
pub const TENANTS: u8 = 9;
/// Prefix of meta values.
pub const META: u8 = 10;
/// Prefix of tokens.
pub const TOKENS: u8 = 11;
/// Prefix of the key ring, left out of backups.
pub const KEY_RING: u8 = 12;
/// Prefix of data keys.
pub const DATA_KEYS: u8 = 13;
/// Prefix of tenants that are closed.
pub const CLOSINGS: u8 = 14;

/// The meta value that holds [`Globals`](super::state::Globals).
pub const META_GLOBALS: &str = "globals";

/// The meta value that holds [`Ended`](super::state::Ended): there only once writes have ended.
pub const META_ENDED: &str = "ended";

/// The meta value that holds [`Sealing`](super::sealing::Sealing): there only in a sealed cluster.
pub const META_SEALING: &str = "sealing";

/// The meta value that holds [`Enabled`](super::sealing::Enabled): there only where a cluster was sealed later than it was formed.
pub const META_ENABLED: &str = "sealing-enabled";

/// A key of the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreKey {
    /// A record's head.
    Head(RecordRef),
    /// A body that is too large for its head.
    Body(RecordRef),
    /// An entry of the deadline index, ordered by time over all tenants.
    Deadline(Time, RecordRef),
    /// An entry of the since index, ordered by time within a tenant's list.
    Since(SinceList, Time, RecordRef),
    /// Counters of a tenant or of one of its operations.
    Counters(Tenant, Option<KeyedHash>),
    /// A row of a record's history.
    Row(RecordRef, u8),
    /// A row of an audit chain.
    Audit(Option<Tenant>, u64),
    /// A policy of a tenant or of one of its operations.
    Policy(Tenant, Option<KeyedHash>),
    /// A tenant.
    Tenant(Tenant),
    /// A meta value by name.
    Meta(String),
    /// A token by id.
    Token([u8; 10]),
    /// A place of the key ring: a tenant's, or the cluster's own.
    Ring(Option<Tenant>),
    /// Data keys of a tenant, or the cluster's own.
    DataKeys(Option<Tenant>),
    /// A tenant that is closed.
    Closing(Tenant),
}

fn tenant(bytes: &mut Vec<u8>, tenant: &Tenant) {
    bytes.push(u8::try_from(tenant.as_str().len()).expect("a tenant has at most 64 bytes"));
    bytes.extend_from_slice(tenant.as_str().as_bytes());
}

fn optional_tenant(bytes: &mut Vec<u8>, of: Option<&Tenant>) {
    match of {
        Some(of) => tenant(bytes, of),
        None => bytes.push(0),
    }
}

fn record(bytes: &mut Vec<u8>, record: &RecordRef) {
    tenant(bytes, &record.tenant);
    bytes.extend_from_slice(&record.operation.0);
    bytes.extend_from_slice(&record.record.0);
}

/// The first key of a list of the since index, from a time on.
pub fn since_prefix(of: &Tenant, list: SinceList) -> Vec<u8> {
    let mut bytes = vec![SINCE];
    tenant(&mut bytes, of);
    bytes.push(list.tag());
    bytes
}

/// What all keys of a tenant under a prefix begin with; with an operation, what its records' begin with.
pub fn tenant_prefix(prefix: u8, of: &Tenant, operation: Option<KeyedHash>) -> Vec<u8> {
    let mut bytes = vec![prefix];
    tenant(&mut bytes, of);
    if let Some(operation) = operation {
        bytes.extend_from_slice(&operation.0);
    }
    bytes
}

impl StoreKey {
    /// The bytes of the key; keys of one prefix order as the bytes do.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        match self {
            StoreKey::Head(of) => {
                bytes.push(HEADS);
                record(&mut bytes, of);
            }
            StoreKey::Body(of) => {
                bytes.push(BODIES);
                record(&mut bytes, of);
            }
            StoreKey::Deadline(at, of) => {
                bytes.push(DEADLINES);
                bytes.extend_from_slice(&at.0.to_be_bytes());
                record(&mut bytes, of);
            }
            StoreKey::Since(list, at, of) => {
                bytes.push(SINCE);
                tenant(&mut bytes, &of.tenant);
                bytes.push(list.tag());
                bytes.extend_from_slice(&at.0.to_be_bytes());
                bytes.extend_from_slice(&of.operation.0);
                bytes.extend_from_slice(&of.record.0);
            }
            StoreKey::Counters(of, operation) | StoreKey::Policy(of, operation) => {
                bytes.push(if matches!(self, StoreKey::Counters(..)) { COUNTERS } else { POLICIES });
                tenant(&mut bytes, of);
                bytes.extend_from_slice(operation.as_ref().map_or(&[][..], |operation| &operation.0));
            }
            StoreKey::Row(of, slot) => {
                bytes.push(ROWS);
                record(&mut bytes, of);
                bytes.push(*slot);
            }
            StoreKey::Audit(of, sequence) => {
                bytes.push(AUDIT);
                optional_tenant(&mut bytes, of.as_ref());
                bytes.extend_from_slice(&sequence.to_be_bytes());
            }
            StoreKey::Tenant(of) | StoreKey::Closing(of) => {
                bytes.push(if matches!(self, StoreKey::Tenant(_)) { TENANTS } else { CLOSINGS });
                tenant(&mut bytes, of);
            }
            StoreKey::Meta(name) => {
                bytes.push(META);
                bytes.extend_from_slice(name.as_bytes());
            }
            StoreKey::Token(id) => {
                bytes.push(TOKENS);
                bytes.extend_from_slice(id);
            }
            StoreKey::Ring(of) | StoreKey::DataKeys(of) => {
                bytes.push(if matches!(self, StoreKey::Ring(_)) { KEY_RING } else { DATA_KEYS });
                optional_tenant(&mut bytes, of.as_ref());
            }
        }
        bytes
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// [`CodecError::Key`] where they have no known shape.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut left = Left(bytes);
        let key = match left.byte()? {
            HEADS => StoreKey::Head(left.record()?),
            BODIES => StoreKey::Body(left.record()?),
            DEADLINES => StoreKey::Deadline(left.time()?, left.record()?),
            SINCE => {
                let tenant = left.tenant()?;
                let list = match left.byte()? {
                    1 => SinceList::InProgress,
                    2 => SinceList::Indeterminate,
                    _ => return Err(CodecError::Key),
                };
                let at = left.time()?;
                StoreKey::Since(list, at, RecordRef { tenant, operation: left.hash()?, record: left.hash()? })
            }
            COUNTERS => StoreKey::Counters(left.tenant()?, left.optional_hash()?),
            POLICIES => StoreKey::Policy(left.tenant()?, left.optional_hash()?),
            ROWS => StoreKey::Row(left.record()?, left.byte()?),
            AUDIT => {
                let tenant = left.optional_tenant()?;
                StoreKey::Audit(tenant, u64::from_be_bytes(left.array()?))
            }
            TENANTS => StoreKey::Tenant(left.tenant()?),
            META => {
                let name = std::str::from_utf8(std::mem::take(&mut left.0)).map_err(|_| CodecError::Key)?;
                StoreKey::Meta(name.to_owned())
            }
            TOKENS => StoreKey::Token(left.array()?),
            KEY_RING => StoreKey::Ring(left.optional_tenant()?),
            DATA_KEYS => StoreKey::DataKeys(left.optional_tenant()?),
            CLOSINGS => StoreKey::Closing(left.tenant()?),
            _ => return Err(CodecError::Key),
        };
        if left.0.is_empty() { Ok(key) } else { Err(CodecError::Key) }
    }
}

/// What is left of a key that is being decoded.
struct Left<'a>(&'a [u8]);

impl Left<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(CodecError::Key)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    fn time(&mut self) -> Result<Time, CodecError> {
        Ok(Time(u64::from_be_bytes(self.array()?)))
    }

    fn hash(&mut self) -> Result<KeyedHash, CodecError> {
        Ok(KeyedHash(self.array()?))
    }

    fn optional_hash(&mut self) -> Result<Option<KeyedHash>, CodecError> {
        if self.0.is_empty() { Ok(None) } else { self.hash().map(Some) }
    }

    fn tenant(&mut self) -> Result<Tenant, CodecError> {
        let length = usize::from(self.byte()?);
        let (text, rest) = self.0.split_at_checked(length).ok_or(CodecError::Key)?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| CodecError::Key)?;
        Tenant::parse(text).map_err(|_| CodecError::Key)
    }

    fn optional_tenant(&mut self) -> Result<Option<Tenant>, CodecError> {
        if self.0.first() != Some(&0) {
            return self.tenant().map(Some);
        }
        self.byte().map(|_| None)
    }

    fn record(&mut self) -> Result<RecordRef, CodecError> {
        Ok(RecordRef { tenant: self.tenant()?, operation: self.hash()?, record: self.hash()? })
    }
}
