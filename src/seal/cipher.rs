//! XChaCha20-Poly1305 under a fresh random nonce each time, and what a field or a wrapped key is bound to. See FORMAT.md.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305, XNonce, aead::inout::InOutBuf};

use super::{Field, SealError, key::Key};
use crate::{
    entropy,
    id::{self, Fence, KeyedHash, LineageId, Tenant},
    records::{
        codec::Blob,
        command::{Sealed, Wrapped},
    },
};

const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// The fence of a field that carries none.
const NO_FENCE: u64 = u64::MAX;

/// What a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A record, by its keyed hash.
    Record(KeyedHash),
    /// A token, by its id.
    Token([u8; 10]),
    /// A row of an audit chain. Its sequence is not known before it is applied, and stands here as 0: the chain's hashes
    /// bind a row to its place.
    Audit,
}

/// Seals and opens the fields of one tenant, or of the cluster. Its keys are replaced while others hold it.
pub struct Cipher {
    lineage_id: LineageId,
    tenant: Option<Tenant>,
    keys: ArcSwap<DataKeys>,
    unreadable: Arc<AtomicU64>,
}

/// The data keys of a cipher.
struct DataKeys {
    /// The one that seals; 0 for the null cipher.
    current: u32,
    keys: BTreeMap<u32, XChaCha20Poly1305>,
    /// Whether fields that were never sealed are still taken: until all of them are resealed.
    takes_clear: bool,
}

impl DataKeys {
    fn of(current: u32, keys: impl IntoIterator<Item = (u32, Key)>, takes_clear: bool) -> Self {
        Self { current, keys: keys.into_iter().map(|(id, key)| (id, aead(&key))).collect(), takes_clear }
    }
}

impl Cipher {
    /// The null cipher: seals nothing, and opens what was never sealed.
    pub fn null() -> Self {
        let (lineage_id, unreadable) = (LineageId::default(), Arc::default());
        Self { lineage_id, tenant: None, keys: ArcSwap::from_pointee(DataKeys::of(0, [], true)), unreadable }
    }

    /// A cipher under these data keys. What doesn't open is counted in `unreadable`.
    pub fn new(
        lineage_id: LineageId,
        tenant: Option<Tenant>,
        current: u32,
        keys: impl IntoIterator<Item = (u32, Key)>,
        unreadable: Arc<AtomicU64>,
    ) -> Self {
        Self { lineage_id, tenant, keys: ArcSwap::from_pointee(DataKeys::of(current, keys, false)), unreadable }
    }

    /// From now on these are its keys, for everybody who holds it.
    pub(super) fn replace(&self, current: u32, keys: impl IntoIterator<Item = (u32, Key)>, takes_clear: bool) {
        self.keys.store(Arc::new(DataKeys::of(current, keys, takes_clear)));
    }

    /// From now on it opens nothing and seals nothing that opens: its keys are destroyed.
    pub(super) fn destroy(&self) {
        self.replace(u32::MAX, [], false);
    }

    /// Whether these are its keys, by their ids.
    pub(super) fn is_of(&self, current: u32, ids: impl Iterator<Item = u32>) -> bool {
        let keys = self.keys.load();
        let own = keys.takes_clear.then_some(0).into_iter().chain(keys.keys.keys().copied());
        keys.current == current && own.eq(ids)
    }

    /// The data key that seals; 0 for none.
    pub fn current(&self) -> u32 {
        self.keys.load().current
    }

    /// Seals a field that carries no fence.
    pub fn seal(&self, field: Field, subject: Subject, plaintext: impl Into<Bytes>) -> Sealed {
        self.seal_bound(field, subject, NO_FENCE, plaintext.into())
    }

    /// Seals an outcome's part or a checkpoint: bound to the fence of its owner, 0 where there is none.
    pub fn seal_fenced(&self, field: Field, subject: Subject, fence: Fence, plaintext: impl Into<Bytes>) -> Sealed {
        self.seal_bound(field, subject, fence.0, plaintext.into())
    }

    fn seal_bound(&self, field: Field, subject: Subject, fence: u64, plaintext: Bytes) -> Sealed {
        let keys = self.keys.load();
        let current = keys.current;
        let bound = |current| self.bound(field, subject, fence, current);
        let bytes = match keys.keys.get(&current) {
            Some(key) => encrypted(key, &entropy::bytes(), &bound(current), &plaintext),
            None if current == 0 => return Sealed::plain(plaintext),
            // Its keys were destroyed: under one that is nobody's, and refused where it is applied.
            None => encrypted(&aead(&Key::draw()), &entropy::bytes(), &bound(current), &plaintext),
        };
        Sealed { key_id: current, bytes: Blob(bytes.into()) }
    }

    /// Opens a field that carries no fence.
    ///
    /// # Errors
    /// [`SealError`]: its key is not at hand, or it is not what was sealed there (S1).
    pub fn open(&self, field: Field, subject: Subject, sealed: &Sealed) -> Result<Bytes, SealError> {
        self.open_bound(field, subject, NO_FENCE, sealed)
    }

    /// Opens an outcome's part or a checkpoint.
    ///
    /// # Errors
    /// As [`Cipher::open`].
    pub fn open_fenced(
        &self,
        field: Field,
        subject: Subject,
        fence: Fence,
        sealed: &Sealed,
    ) -> Result<Bytes, SealError> {
        self.open_bound(field, subject, fence.0, sealed)
    }

    fn open_bound(&self, field: Field, subject: Subject, fence: u64, sealed: &Sealed) -> Result<Bytes, SealError> {
        let keys = self.keys.load();
        if sealed.key_id == 0 && keys.takes_clear {
            return Ok(sealed.bytes.0.clone());
        }
        let opened = match keys.keys.get(&sealed.key_id) {
            Some(key) => {
                let bound = self.bound(field, subject, fence, sealed.key_id);
                decrypted(key, &bound, &sealed.bytes.0).ok_or(SealError::NotAuthentic)
            }
            // In clear, where everything is sealed: nobody can say who wrote it.
            None if sealed.key_id == 0 => Err(SealError::NotAuthentic),
            None => Err(SealError::KeyMissing { key_id: sealed.key_id }),
        };
        if let Err(error) = &opened {
            // S4. Which record it is, its hash tells; nothing of the content is known here.
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            tracing::error!(?field, ?subject, %error, "a stored field does not open");
        }
        opened.map(Bytes::from)
    }

    fn bound(&self, field: Field, subject: Subject, fence: u64, key_id: u32) -> Vec<u8> {
        field_bound(self.lineage_id, self.tenant.as_ref(), field.tag(), key_id, subject, fence)
    }
}

/// What a field is bound to.
pub(super) fn field_bound(
    lineage_id: LineageId,
    tenant: Option<&Tenant>,
    (field, schema): (u8, u16),
    key_id: u32,
    subject: Subject,
    fence: u64,
) -> Vec<u8> {
    let mut bound = Vec::with_capacity(128);
    bound.extend_from_slice(b"semel-seal");
    bound.push(1);
    bound.extend_from_slice(&lineage_id.0);
    join_tenant(&mut bound, tenant);
    bound.push(field);
    bound.extend_from_slice(&schema.to_be_bytes());
    bound.extend_from_slice(&key_id.to_be_bytes());
    match subject {
        Subject::Record(hash) => id::join(&mut bound, &hash.0),
        Subject::Token(token) => id::join(&mut bound, &token),
        Subject::Audit => id::join(&mut bound, &0_u64.to_be_bytes()),
    }
    bound.extend_from_slice(&fence.to_be_bytes());
    bound
}

fn join_tenant(bound: &mut Vec<u8>, tenant: Option<&Tenant>) {
    match tenant {
        Some(tenant) => id::join(bound, tenant.as_str().as_bytes()),
        None => id::join_absent(bound),
    }
}

/// Which key is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A root key, by the key-encryption key of the id with which it is stored.
    Root,
    /// An index key, by the root key.
    Index,
    /// A data key of this id, by the root key.
    Data(u32),
    /// The secret behind downstream keys, by the cluster's root key.
    Downstream,
}

impl Kind {
    fn tag(self) -> (u8, u32) {
        match self {
            Kind::Root => (1, 1),
            Kind::Index => (2, 1),
            Kind::Data(id) => (3, id),
            Kind::Downstream => (4, 1),
        }
    }
}

/// Whose key is wrapped.
#[derive(Clone, Copy, Debug)]
pub struct Holder<'a> {
    /// The lineage of the cluster.
    pub lineage_id: LineageId,
    /// The tenant; none for the cluster itself.
    pub tenant: Option<&'a Tenant>,
}

impl Holder<'_> {
    /// Wraps a key. `wrapping_id` is that of the outer key for a root key, else 1.
    pub fn wrap(self, kind: Kind, key: &Key, outer: &Key, wrapping_id: u32) -> Wrapped {
        let bound = wrap_bound(self, kind, wrapping_id);
        let bytes = encrypted(&aead(outer), &entropy::bytes(), &bound, key.reveal());
        Wrapped { wrapping_id, bytes: Blob(bytes.into()) }
    }

    /// Unwraps a key; one that is not wrapped is returned as it is.
    ///
    /// # Errors
    /// [`SealError::NotAuthentic`].
    pub fn unwrap(self, kind: Kind, wrapped: &Wrapped, outer: &Key) -> Result<Key, SealError> {
        if wrapped.wrapping_id == 0 {
            return Key::of(&wrapped.bytes.0).ok_or(SealError::NotAuthentic);
        }
        let bound = wrap_bound(self, kind, wrapped.wrapping_id);
        let bytes = decrypted(&aead(outer), &bound, &wrapped.bytes.0).map(zeroize::Zeroizing::new);
        bytes.and_then(|bytes| Key::of(&bytes)).ok_or(SealError::NotAuthentic)
    }
}

/// What a wrapped key is bound to.
pub(super) fn wrap_bound(of: Holder<'_>, kind: Kind, wrapping_id: u32) -> Vec<u8> {
    let (tag, own_id) = kind.tag();
    let mut bound = Vec::with_capacity(112);
    bound.extend_from_slice(b"semel-wrap");
    bound.push(1);
    bound.extend_from_slice(&of.lineage_id.0);
    join_tenant(&mut bound, of.tenant);
    bound.push(tag);
    bound.extend_from_slice(&own_id.to_be_bytes());
    bound.extend_from_slice(&wrapping_id.to_be_bytes());
    bound
}

pub(super) fn aead(key: &Key) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.reveal().into())
}

/// Nonce ‖ ciphertext ‖ tag.
pub(super) fn encrypted(key: &XChaCha20Poly1305, nonce: &[u8; NONCE_BYTES], bound: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(NONCE_BYTES + plaintext.len() + TAG_BYTES);
    bytes.extend_from_slice(nonce);
    bytes.extend_from_slice(plaintext);
    let content = InOutBuf::from(&mut bytes[NONCE_BYTES..]);
    let tag = key.encrypt_inout_detached(&XNonce::from(*nonce), bound, content);
    // Its own bound is 256 GiB; a request is bounded far below.
    bytes.extend_from_slice(&tag.expect("a field is far smaller than what the cipher takes"));
    bytes
}

fn decrypted(key: &XChaCha20Poly1305, bound: &[u8], bytes: &[u8]) -> Option<Vec<u8>> {
    let (nonce, rest) = bytes.split_first_chunk::<NONCE_BYTES>()?;
    let (content, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
    let mut content = content.to_vec();
    let buffer = InOutBuf::from(&mut content[..]);
    key.decrypt_inout_detached(&XNonce::from(*nonce), bound, buffer, &(*tag).into()).ok()?;
    Some(content)
}
