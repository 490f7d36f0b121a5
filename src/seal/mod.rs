//! Sealing: what stands between a caller's secrets and the bytes that are proposed and stored.
//!
//! Fields have the sealed shape from the start: a key id in front of the bytes. Key 0 is the null cipher, under which the
//! bytes are the plaintext itself; it is the only key that this release knows.

use bytes::Bytes;

use crate::records::command::Sealed;

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
    /// Detail of an audit row.
    AuditDetail,
    /// What a token may do.
    TokenScope,
}

/// Why a field does not open.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It is sealed under a key that this node does not have.
    #[error("{field:?} is sealed under key {key_id}, which this node does not have")]
    KeyMissing {
        /// The field.
        field: Field,
        /// The key.
        key_id: u32,
    },
}

/// Seals a field under the current key.
pub fn seal(_field: Field, plaintext: impl Into<Bytes>) -> Sealed {
    Sealed::plain(plaintext)
}

/// Opens a field.
///
/// # Errors
/// [`SealError`] where its key is not at hand.
pub fn open(field: Field, sealed: &Sealed) -> Result<Bytes, SealError> {
    match sealed.key_id {
        0 => Ok(sealed.bytes.0.clone()),
        key_id => Err(SealError::KeyMissing { field, key_id }),
    }
}
