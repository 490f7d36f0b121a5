//! Key material: 32 random bytes that are shown nowhere and wiped when dropped.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::entropy;

/// A key. It has no text and is never encoded; whoever needs its bytes asks for them by name.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// A new one.
    pub fn draw() -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        entropy::fill(&mut *bytes);
        Self(bytes)
    }

    /// The key of these bytes; none where they are not 32.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let mut key = Zeroizing::new([0; 32]);
        if bytes.len() != key.len() {
            return None;
        }
        key.copy_from_slice(bytes);
        Some(Self(key))
    }

    /// The bytes.
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    /// What tells it from other keys, and says nothing else of it.
    pub fn check(&self) -> [u8; 8] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0[..]).expect("HMAC takes keys of any length");
        mac.update(b"semel-kek-check-v1");
        let digest = mac.finalize().into_bytes();
        digest[..8].try_into().expect("8 of 32 bytes")
    }

    /// Whether it is the other, in the same time either way.
    pub fn is(&self, other: &Self) -> bool {
        self.0[..].ct_eq(&other.0[..]).into()
    }
}
