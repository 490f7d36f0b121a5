//! The file of root keys: what a backup leaves out, and without which its sealed fields stay shut.
//!
//! A ring of a cluster that is not sealed has no keys.

use sha2::{Digest, Sha256};

use crate::{
    id::{LineageId, Position, Tenant, Time},
    limits,
    records::{
        codec::Blob,
        command::Wrapped,
        sealing::{KeyTable, RingEntry as StoredEntry, RingState},
    },
};

const MAGIC: [u8; 8] = *b"semelrng";
const VERSION: u8 = 1;
/// The length that says that there is nothing.
const ABSENT: u32 = u32::MAX;

/// A tenant's place in the ring, or the cluster's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingEntry {
    /// The tenant; none for the cluster.
    pub tenant: Option<Tenant>,
    /// Whether it can still be opened.
    pub state: RingState,
    /// Since when, ms since 1970.
    pub at_ms: i64,
    /// Its root key: u32 wrapping id, nonce, ciphertext and tag.
    pub wrapped_root: Option<Vec<u8>>,
}

/// A key ring as it is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Whose it is.
    pub lineage_id: LineageId,
    /// As of which position.
    pub position: Position,
    /// Its tenants, in order.
    pub entries: Vec<RingEntry>,
}

/// Why bytes are no key ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// It is larger than any.
    #[error("a key ring is smaller than this")]
    TooLarge,
    /// It begins otherwise.
    #[error("not a key ring")]
    Magic,
    /// A newer release wrote it.
    #[error("a newer release wrote it: version {0}")]
    Version(u8),
    /// It ends too early, or goes on behind its end.
    #[error("its length does not fit what it says")]
    Length,
    /// A field holds something that it never does.
    #[error("it holds what a key ring never does")]
    Value,
    /// The checksum is another.
    #[error("the checksum does not fit")]
    Checksum,
}

impl RingEntry {
    /// As it stands in the state.
    ///
    /// # Errors
    /// [`RingError::Value`] where its root key has no such shape.
    pub fn stored(&self) -> Result<StoredEntry, RingError> {
        let root = self.wrapped_root.as_ref().map(|bytes| {
            let (id, rest) = bytes.split_first_chunk::<4>().ok_or(RingError::Value)?;
            Ok(Wrapped { wrapping_id: u32::from_be_bytes(*id), bytes: Blob(rest.to_vec().into()) })
        });
        let at = Time(u64::try_from(self.at_ms).map_err(|_| RingError::Value)?);
        Ok(StoredEntry { state: self.state, at, root: root.transpose()? })
    }
}

impl Ring {
    /// The ring of a state.
    pub fn of(lineage_id: LineageId, position: Position, table: &KeyTable) -> Self {
        let entry = |(tenant, entry): (&Option<Tenant>, &std::sync::Arc<StoredEntry>)| RingEntry {
            tenant: tenant.clone(),
            state: entry.state,
            at_ms: i64::try_from(entry.at.0).unwrap_or(i64::MAX),
            wrapped_root: entry.root.as_ref().map(|root| [&root.wrapping_id.to_be_bytes()[..], &root.bytes.0].concat()),
        };
        Self { lineage_id, position, entries: table.ring.iter().map(entry).collect() }
    }

    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.lineage_id.0);
        bytes.extend_from_slice(&self.position.0.to_be_bytes());
        bytes.extend_from_slice(&length(self.entries.len()));
        for entry in &self.entries {
            part(&mut bytes, entry.tenant.as_ref().map(|tenant| tenant.as_str().as_bytes()));
            bytes.push(if entry.state == RingState::Open { 1 } else { 2 });
            bytes.extend_from_slice(&entry.at_ms.to_be_bytes());
            part(&mut bytes, entry.wrapped_root.as_deref());
        }
        let digest = Sha256::digest(&bytes);
        bytes.extend_from_slice(&digest);
        bytes
    }

    /// The ring of these bytes.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, RingError> {
        if bytes.len() as u64 > limits::KEY_RING_BYTES_MAX {
            return Err(RingError::TooLarge);
        }
        let mut left = Left(bytes);
        if left.array::<8>()? != MAGIC {
            return Err(RingError::Magic);
        }
        let version = left.array::<1>()?[0];
        if version != VERSION {
            return Err(RingError::Version(version));
        }
        let (content, digest) = bytes.split_last_chunk::<32>().ok_or(RingError::Length)?;
        if Sha256::digest(content)[..] != digest[..] {
            return Err(RingError::Checksum);
        }
        let mut left = Left(content.get(9..).ok_or(RingError::Length)?);
        let lineage_id = LineageId(left.array()?);
        let position = Position(u64::from_be_bytes(left.array()?));
        let count = u32::from_be_bytes(left.array()?);
        let mut entries = Vec::new();
        for _ in 0..count {
            entries.push(left.entry()?);
        }
        if !left.0.is_empty() {
            return Err(RingError::Length);
        }
        Ok(Self { lineage_id, position, entries })
    }
}

fn part(bytes: &mut Vec<u8>, part: Option<&[u8]>) {
    match part {
        Some(part) => {
            bytes.extend_from_slice(&length(part.len()));
            bytes.extend_from_slice(part);
        }
        None => bytes.extend_from_slice(&ABSENT.to_be_bytes()),
    }
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a ring is bounded far below 4 GiB").to_be_bytes()
}

/// What is left to be read.
struct Left<'a>(&'a [u8]);

impl Left<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RingError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(RingError::Length)?;
        self.0 = rest;
        Ok(*array)
    }

    fn part(&mut self) -> Result<Option<Vec<u8>>, RingError> {
        let length = u32::from_be_bytes(self.array()?);
        if length == ABSENT {
            return Ok(None);
        }
        let (part, rest) = self.0.split_at_checked(length as usize).ok_or(RingError::Length)?;
        self.0 = rest;
        Ok(Some(part.to_vec()))
    }

    fn entry(&mut self) -> Result<RingEntry, RingError> {
        let tenant = self.part()?.map(|bytes| {
            let text = String::from_utf8(bytes).map_err(|_| RingError::Value)?;
            Tenant::parse(&text).map_err(|_| RingError::Value)
        });
        let tenant = tenant.transpose()?;
        let state = match self.array::<1>()?[0] {
            1 => RingState::Open,
            2 => RingState::Shredded,
            _ => return Err(RingError::Value),
        };
        let at_ms = i64::from_be_bytes(self.array()?);
        Ok(RingEntry { tenant, state, at_ms, wrapped_root: self.part()? })
    }
}
