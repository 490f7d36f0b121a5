//! Sealing: what stands between a caller's secrets and the bytes that are proposed and stored.
//!
//! A chain of keys, all of them 32 random bytes: a key-encryption key from outside wraps the **root key** of a tenant
//! (or of the cluster), the root key wraps **data keys** and the **index key**, a data key seals fields. Wrapped keys are
//! replicated state; unwrapped ones are in memory alone. What a field is bound to, byte for byte, is drawn in FORMAT.md.
//!
//! - [`key`] is key material: shown nowhere, wiped when dropped.
//! - [`cipher`] seals and opens fields, wraps and unwraps keys.
//! - [`key_file`] reads key-encryption keys; [`noted`] remembers in the data directory which ones a cluster wants.
//! - [`keychain`] finds the keys of a tenant in the replicated state, opened, for the rest of the node.
//! - [`resealing`] seals fields anew, where another data key has taken the place of theirs.
//!
//! Without keys there is the null cipher, key id 0, under which the bytes are the plaintext itself.
//!
//! # Invariants
//!
//! - S1. A field opens with the key, the tenant, the place, the field and the fence it was sealed with, or not at all.
//! - S2. Nothing is sealed or hashed under a key whose entry isn't applied.
//! - S3. In a sealed cluster nothing is taken for a field that is in clear.
//! - S4. A field that doesn't open is counted and refused. It is never read as absent.

pub mod cipher;
pub mod key;
pub mod key_file;
pub mod keychain;
pub mod noted;
pub mod resealing;
#[cfg(test)]
mod tests;

pub use cipher::{Cipher, Subject};
pub use keychain::Keychain;

use crate::refusal::{Code, Refusal};

/// Which field is sealed: a part of what it is bound to, so that fields can't be swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The joined identity.
    Id,
    /// The plain fingerprint digests.
    Fingerprints,
    /// Status, headers, content type and valid-until of an outcome.
    OutcomeMeta,
    /// The body of an outcome.
    OutcomeBody,
    /// Name and data of a checkpoint.
    Checkpoint,
    /// Labels.
    Labels,
    /// A reason.
    Reason,
    /// Evidence.
    Evidence,
    /// An actor.
    Actor,
    /// Who did what stands in an audit row of no record.
    AuditActor,
    /// Detail of such a row.
    AuditDetail,
    /// What a token may do.
    TokenScope,
}

impl Field {
    /// Its number and the version of what is inside. The parts of an outcome are one field and two schemas.
    fn tag(self) -> (u8, u16) {
        match self {
            Field::Id => (1, 1),
            Field::Fingerprints => (2, 1),
            Field::OutcomeMeta => (3, 1),
            Field::OutcomeBody => (3, 2),
            Field::Checkpoint => (4, 1),
            Field::Labels => (5, 1),
            Field::Reason => (6, 1),
            Field::Evidence => (7, 1),
            Field::Actor => (8, 1),
            Field::AuditActor => (10, 1),
            Field::AuditDetail => (11, 1),
            Field::TokenScope => (12, 1),
        }
    }
}

impl From<SealError> for Refusal {
    fn from(error: SealError) -> Self {
        match error {
            SealError::KeyMissing { .. } | SealError::NotAuthentic => {
                Refusal::new(Code::Internal, "a stored field does not open on this node")
            }
            error => {
                tracing::error!(%error, "the keys of a tenant are not at hand");
                Refusal::new(Code::Unavailable, "the keys that this call needs are not at hand on this node")
            }
        }
    }
}

/// Why a field or a key does not open.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It is sealed under a key that this node does not have.
    #[error("it is sealed under data key {key_id}, which is not at hand")]
    KeyMissing {
        /// The key.
        key_id: u32,
    },
    /// It is not what was sealed there.
    #[error("it is not what was sealed there")]
    NotAuthentic,
    /// The key-encryption key is not at hand.
    #[error("sealing key {id} is not at hand")]
    OuterMissing {
        /// Its id.
        id: u32,
    },
    /// Another key-encryption key of the same id is at hand.
    #[error("sealing key {id} is not the key this cluster was sealed with")]
    OuterDiffers {
        /// Its id.
        id: u32,
    },
    /// A wrapped key is missing in the state.
    #[error("the state holds no {0} key for it")]
    Absent(&'static str),
    /// Which keys the cluster wants can't be kept in the data directory.
    #[error("which sealing keys the cluster wants can't be written down")]
    Note(#[from] noted::NotedError),
}
