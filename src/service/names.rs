//! From names to what is proposed: keyed hashes and digests under a tenant's index key, downstream keys, sealed fields.
//! Nothing is hashed under a key whose entry isn't applied.

use std::sync::Arc;

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::request::{self, Headers, Labels};
use crate::{
    fingerprint::Fingerprint,
    id::{self, Fence, KeyedHash, Operation, RecordId, Tenant, Time},
    records::{
        codec::{self, Blob},
        command::{Fingerprints, KeyedDigest, ProposedOutcome, ProposedPoint, RecordRef, Sealed},
    },
    refusal::{Code, Refusal},
    seal::{Cipher, Field, Subject},
    traces,
};

type KeyedMac = Hmac<Sha256>;

/// A tenant's keys: the index key, ready to hash with, and what seals its fields.
pub(super) struct Names {
    /// The one copy that all records of the tenant are named with: it is compared by its address.
    tenant: Tenant,
    mac: KeyedMac,
    /// Under the cluster's secret behind downstream keys.
    downstream: KeyedMac,
    cipher: Arc<Cipher>,
}

fn mac(secret: &[u8]) -> KeyedMac {
    KeyedMac::new_from_slice(secret).expect("HMAC takes keys of any length")
}

fn finish(mac: KeyedMac) -> KeyedDigest {
    mac.finalize().into_bytes().into()
}

fn subject(record: &RecordRef) -> Subject {
    Subject::Record(record.record)
}

impl Names {
    pub fn of(tenant: Tenant, index_key: &[u8], downstream_secret: &[u8], cipher: Arc<Cipher>) -> Self {
        let index_key = if planted!(TenantLeftOut) { b"of all tenants" } else { index_key };
        Self { tenant, mac: mac(index_key), downstream: mac(downstream_secret), cipher }
    }

    /// What seals what stands in no record.
    pub fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    fn digest(&self, label: &[u8], content: &[u8]) -> KeyedDigest {
        let mut mac = self.mac.clone();
        mac.update(label);
        mac.update(content);
        finish(mac)
    }

    fn hash(&self, label: &[u8], content: &[u8]) -> KeyedHash {
        let digest = self.digest(label, content);
        KeyedHash(digest[..16].try_into().expect("16 of 32 bytes"))
    }

    /// Keyed hash of an operation.
    pub fn operation(&self, operation: &Operation) -> KeyedHash {
        let mut joined = Vec::with_capacity(operation.as_str().len() + 4);
        id::join(&mut joined, operation.as_str().as_bytes());
        self.hash(b"op", &joined)
    }

    /// Where a record stands, and its joined identity.
    pub fn record(&self, of: &RecordId) -> (RecordRef, Bytes) {
        let joined = of.joined();
        let record = self.hash(b"id", &joined);
        traces::record(&record.0);
        let operation = self.operation(&of.operation);
        if planted!(TenantLeftOut) {
            let tenant = Tenant::parse("acme").expect("it is a tenant's name");
            let record = self.hash(b"id", of.key.as_str().as_bytes());
            return (RecordRef { tenant, operation, record }, joined.into());
        }
        (RecordRef { tenant: self.tenant.clone(), operation, record }, joined.into())
    }

    /// Fingerprints, keyed to compare and sealed to show.
    pub fn fingerprints(&self, record: &RecordRef, plain: &[Fingerprint]) -> Fingerprints {
        let keyed = plain.iter().map(|fingerprint| {
            let mut content = fingerprint.scheme().to_be_bytes().to_vec();
            content.extend_from_slice(fingerprint.digest());
            (fingerprint.scheme(), self.digest(b"fp", &content))
        });
        let shown: Vec<(u32, [u8; 32])> = plain.iter().map(|one| (one.scheme(), *one.digest())).collect();
        let sealed = self.seal(Field::Fingerprints, record, codec::encode(&shown));
        Fingerprints { keyed: keyed.collect(), sealed }
    }

    /// Keyed digest of an actor's name, to tell one reconciler from another.
    pub fn actor(&self, actor: &str) -> KeyedDigest {
        let mut content = Vec::new();
        id::join(&mut content, actor.as_bytes());
        self.digest(b"ac", &content)
    }

    /// What binds a cursor to this tenant and to a question.
    pub fn mark(&self, cursor: &[u8], question: &[u8]) -> KeyedDigest {
        let mut content = Vec::with_capacity(cursor.len() + question.len() + 8);
        id::join(&mut content, cursor);
        id::join(&mut content, question);
        self.digest(b"cu", &content)
    }

    /// A recovery point as it is proposed.
    pub fn point(&self, record: &RecordRef, fence: Fence, point: &request::Checkpoint) -> ProposedPoint {
        let (name, data) = (point.name.as_str(), &point.data.0);
        let mut content = Vec::with_capacity(name.len() + data.len() + 8);
        id::join(&mut content, name.as_bytes());
        id::join(&mut content, data);
        let shown = codec::encode(&(name.to_owned(), Blob(data.clone())));
        ProposedPoint {
            sealed: self.cipher.seal_fenced(Field::Checkpoint, subject(record), fence, shown),
            digest: self.digest(b"cp", &content),
            data_bytes: u32::try_from(data.len()).unwrap_or(u32::MAX),
        }
    }

    /// An outcome as it is proposed.
    pub fn outcome(&self, record: &RecordRef, fence: Fence, outcome: &request::Outcome) -> ProposedOutcome {
        let headers = outcome.headers.as_map();
        let mut content = outcome.status.to_be_bytes().to_vec();
        match &outcome.content_type {
            Some(content_type) => id::join(&mut content, content_type.as_bytes()),
            None => id::join_absent(&mut content),
        }
        let count = u32::try_from(headers.len()).expect("headers are bounded by limits");
        content.extend_from_slice(&count.to_be_bytes());
        for (name, value) in headers {
            id::join(&mut content, name.as_bytes());
            id::join(&mut content, value.as_bytes());
        }
        let valid_until = outcome.valid_until.map_or(-1, |time| i64::try_from(time.0).unwrap_or(i64::MAX));
        content.extend_from_slice(&valid_until.to_be_bytes());
        id::join(&mut content, &outcome.body.0);
        let meta = OutcomeMeta {
            status: outcome.status,
            content_type: outcome.content_type.clone(),
            headers: headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            valid_until: outcome.valid_until,
        };
        let of = subject(record);
        ProposedOutcome {
            meta: self.cipher.seal_fenced(Field::OutcomeMeta, of, fence, codec::encode(&meta)),
            body: self.cipher.seal_fenced(Field::OutcomeBody, of, fence, outcome.body.0.clone()),
            digest: self.digest(b"oc", &content),
            body_bytes: u32::try_from(outcome.body.0.len()).unwrap_or(u32::MAX),
        }
    }

    /// The provider's idempotency key: the same for every attempt and every life of an identity.
    pub fn downstream_key(&self, of: &RecordId) -> String {
        let mut mac = self.downstream.clone();
        mac.update(&of.joined());
        let digest = finish(mac);
        format!("sml_{}", base32(&digest[..25]))
    }

    /// A field of a record, sealed.
    pub fn seal(&self, field: Field, record: &RecordRef, plaintext: impl Into<Bytes>) -> Sealed {
        self.cipher.seal(field, subject(record), plaintext)
    }

    /// A text of a record, sealed.
    pub fn text(&self, field: Field, record: &RecordRef, text: &str) -> Sealed {
        self.seal(field, record, text.as_bytes().to_vec())
    }

    /// Labels, sealed; none where there are none.
    pub fn labels(&self, record: &RecordRef, labels: &Labels) -> Option<Sealed> {
        let shown: Vec<(String, String)> =
            labels.as_map().iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        (!shown.is_empty()).then(|| self.seal(Field::Labels, record, codec::encode(&shown)))
    }

    /// What was sealed of a record, or `internal`: a field that doesn't open is a fault, and never read as absent.
    pub fn open(&self, field: Field, record: &RecordRef, sealed: &Sealed) -> Result<Bytes, Refusal> {
        Ok(self.cipher.open(field, subject(record), sealed)?)
    }

    /// The same of what was sealed under a fence.
    pub fn open_fenced(
        &self,
        field: Field,
        record: &RecordRef,
        fence: Fence,
        sealed: &Sealed,
    ) -> Result<Bytes, Refusal> {
        Ok(self.cipher.open_fenced(field, subject(record), fence, sealed)?)
    }

    /// A sealed value, opened and decoded.
    pub fn opened<T: bincode::Decode<()>>(
        &self,
        field: Field,
        record: &RecordRef,
        sealed: &Sealed,
    ) -> Result<T, Refusal> {
        decoded(field, &self.open(field, record, sealed)?)
    }

    /// A sealed text, opened.
    pub fn opened_text(&self, field: Field, record: &RecordRef, sealed: &Sealed) -> Result<String, Refusal> {
        Ok(String::from_utf8_lossy(&self.open(field, record, sealed)?).into_owned())
    }

    /// The identity behind a head's sealed id.
    pub fn opened_id(&self, record: &RecordRef, sealed: &Sealed) -> Result<RecordId, Refusal> {
        RecordId::from_joined(&self.open(Field::Id, record, sealed)?)
            .ok_or_else(|| Refusal::new(Code::Internal, "a stored identity can't be read"))
    }
}

/// What is sealed of an outcome beside its body.
#[derive(bincode::Encode, bincode::Decode)]
pub(super) struct OutcomeMeta {
    pub status: i32,
    pub content_type: Option<String>,
    pub headers: Vec<(String, String)>,
    pub valid_until: Option<Time>,
}

/// An opened value, decoded.
pub(super) fn decoded<T: bincode::Decode<()>>(field: Field, opened: &[u8]) -> Result<T, Refusal> {
    codec::decode(opened).map_err(|error| {
        tracing::error!(?field, %error, "a stored field can't be read");
        Refusal::new(Code::Internal, "a stored field can't be read")
    })
}

/// RFC 4648, lower case, without padding; the length is a multiple of five.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = String::with_capacity(bytes.len() * 8 / 5);
    for group in bytes.chunks(5) {
        let bits = group.iter().fold(0u64, |bits, byte| (bits << 8) | u64::from(*byte)) << (8 * (5 - group.len()));
        text.extend((0..8).map(|n| ALPHABET[(bits >> (35 - 5 * n)) as usize & 31] as char));
    }
    text
}

/// Headers as they were checked when they were recorded.
pub(super) fn opened_headers(stored: Vec<(String, String)>) -> Result<Headers, Refusal> {
    Headers::parse(stored.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_is_that_of_rfc_4648() {
        assert_eq!(base32(b"fooba"), "mzxw6ytb");
        assert_eq!(base32(&[0xff; 25]), "7".repeat(40));
    }

    #[test]
    fn a_downstream_key_has_its_shape_and_stays() {
        let tenant = Tenant::parse("acme").unwrap();
        let names = Names::of(tenant, &[3; 32], &[7; 32], Arc::new(Cipher::null()));
        let id = RecordId {
            tenant: Tenant::parse("acme").unwrap(),
            principal: id::Principal::parse("").unwrap(),
            operation: Operation::parse("POST /v1/charges").unwrap(),
            key: id::Key::parse("k-1").unwrap(),
        };
        let key = names.downstream_key(&id);
        assert_eq!(key, names.downstream_key(&id));
        assert!(
            key.starts_with("sml_")
                && key.len() == 44
                && key[4..].bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        );
    }
}
