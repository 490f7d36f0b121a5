//! Whoever issues tokens in tests.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::json::Json;

/// An issuer with one key.
pub(crate) struct Issuer {
    id: &'static str,
    key: Ed25519KeyPair,
}

impl Issuer {
    /// The issuer of this seed, whose key has this id.
    pub fn new(id: &'static str, seed: u8) -> Self {
        Self { id, key: Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap() }
    }

    /// Its key in a set.
    pub fn jwk(&self) -> Json {
        let x = URL_SAFE_NO_PAD.encode(self.key.public_key());
        let members = [("kty", "OKP"), ("crv", "Ed25519"), ("kid", self.id), ("x", x.as_str())];
        Json::object(members.map(|(name, value)| (name, value.into())))
    }

    /// A set of these issuers' keys.
    pub fn set(issuers: &[&Self]) -> String {
        Json::object([("keys", Json::Array(issuers.iter().map(|one| one.jwk()).collect()))]).to_text()
    }

    /// A token with this header and these claims.
    pub fn signed(&self, header: &str, claims: &str) -> String {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.key.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    /// A token with these claims.
    pub fn token(&self, claims: &str) -> String {
        self.signed(&format!(r#"{{"alg":"EdDSA","kid":"{}"}}"#, self.id), claims)
    }
}
