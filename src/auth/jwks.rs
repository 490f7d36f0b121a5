//! The public keys of whoever issues JSON Web Tokens: a JSON Web Key Set (RFC 7517), of the three kinds that are taken.

use std::{io, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};

use crate::{json::Json, limits};

/// Bytes of a number of P-256.
const P256_BYTES: usize = 32;
/// Bytes of a public key of Ed25519.
const ED25519_BYTES: usize = 32;
/// Members that only a private or a shared key has.
const SECRET: [&str; 2] = ["d", "k"];

/// Why a file of keys can't be used. Says which key by its place.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// It can't be read.
    #[error("the file of keys can't be read: {0}")]
    Read(#[from] io::Error),
    /// No set of keys.
    #[error("the file of keys is none: {0}")]
    Shape(String),
    /// Too many.
    #[error("the file of keys has more than {}", limits::JWKS_KEYS_MAX)]
    TooMany,
    /// What nobody but the issuer may have.
    #[error("key {0} of the file of keys is no public key: whoever reads it could make tokens")]
    Secret(usize),
    /// A key that says what it is, and isn't.
    #[error("key {0} of the file of keys: {1}")]
    Key(usize, &'static str),
    /// Two keys of one id: which one would a token mean?
    #[error("key {0} of the file of keys has the `kid` of an earlier one")]
    Twice(usize),
}

/// A public key.
#[derive(PartialEq, Eq)]
pub(super) struct Key {
    id: String,
    public: Public,
}

#[derive(PartialEq, Eq)]
enum Public {
    EdDsa(Vec<u8>),
    Es256(Vec<u8>),
    Rs256 { modulus: Vec<u8>, exponent: Vec<u8> },
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({} {:?})", self.algorithm(), self.id)
    }
}

impl Key {
    /// What tokens call it.
    pub fn algorithm(&self) -> &'static str {
        match self.public {
            Public::EdDsa(_) => "EdDSA",
            Public::Es256(_) => "ES256",
            Public::Rs256 { .. } => "RS256",
        }
    }

    /// Whether this is its signature of these bytes.
    pub fn has_signed(&self, bytes: &[u8], signed: &[u8]) -> bool {
        match &self.public {
            Public::EdDsa(key) => UnparsedPublicKey::new(&signature::ED25519, key).verify(bytes, signed).is_ok(),
            Public::Es256(key) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, key).verify(bytes, signed).is_ok()
            }
            Public::Rs256 { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&signature::RSA_PKCS1_2048_8192_SHA256, bytes, signed).is_ok()
            }
        }
    }
}

/// The keys of one reading of the file.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<Arc<Key>>);

impl KeySet {
    /// Reads this text. Keys of other kinds, for other uses, or without an id are left out: sets of whoever issues tokens
    /// have such.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        let json = Json::parse(text).map_err(|error| KeySetError::Shape(error.to_string()))?;
        let Some(Json::Array(all)) = json.member("keys") else {
            return Err(KeySetError::Shape("it has no list `keys`".to_owned()));
        };
        if all.len() > limits::JWKS_KEYS_MAX {
            return Err(KeySetError::TooMany);
        }
        let mut keys: Vec<Arc<Key>> = Vec::new();
        for (at, json) in (1..).zip(all) {
            if SECRET.iter().any(|name| json.member(name).is_some()) {
                return Err(KeySetError::Secret(at));
            }
            let Some(key) = parse(json).map_err(|why| KeySetError::Key(at, why))? else { continue };
            if keys.iter().any(|other| other.id == key.id) {
                return Err(KeySetError::Twice(at));
            }
            keys.push(Arc::new(key));
        }
        Ok(Self(keys))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The key of this id.
    pub fn find(&self, id: &str) -> Option<Arc<Key>> {
        self.0.iter().find(|key| key.id == id).cloned()
    }

    /// Whether this very key is among them.
    pub fn has(&self, key: &Key) -> bool {
        self.0.iter().any(|own| **own == *key)
    }
}

/// None where it is for something else.
fn parse(json: &Json) -> Result<Option<Key>, &'static str> {
    let text = |name: &str| json.member(name).and_then(Json::as_str);
    let Some(id) = text("kid").filter(|id| !id.is_empty()) else { return Ok(None) };
    let is_for_signatures = json.member("use").is_none_or(|of| of.as_str() == Some("sig"));
    let verifies = match json.member("key_ops") {
        Some(Json::Array(all)) => all.iter().any(|one| one.as_str() == Some("verify")),
        Some(_) => false,
        None => true,
    };
    if !is_for_signatures || !verifies {
        return Ok(None);
    }
    let public = match (text("kty"), text("crv")) {
        (Some("OKP"), Some("Ed25519")) => Public::EdDsa(number(json, "x", ED25519_BYTES)?),
        (Some("EC"), Some("P-256")) => {
            // The form that both numbers have as one point.
            let mut point = vec![4];
            point.extend(number(json, "x", P256_BYTES)?);
            point.extend(number(json, "y", P256_BYTES)?);
            Public::Es256(point)
        }
        (Some("RSA"), _) => {
            let modulus = unsigned(json, "n")?;
            if !limits::JWKS_RSA_BYTES.contains(&modulus.len()) {
                return Err("its `n` has fewer than 2048 or more than 8192 bits");
            }
            Public::Rs256 { modulus, exponent: unsigned(json, "e")? }
        }
        _ => return Ok(None),
    };
    let key = Key { id: id.to_owned(), public };
    // Of RSA there are other algorithms, and a key that is for one of them is for that alone.
    let is_for_ours = json.member("alg").is_none_or(|alg| alg.as_str() == Some(key.algorithm()));
    Ok(is_for_ours.then_some(key))
}

fn decoded(json: &Json, name: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(json.member(name)?.as_str()?).ok()
}

/// A number of exactly so many bytes.
fn number(json: &Json, name: &str, bytes: usize) -> Result<Vec<u8>, &'static str> {
    decoded(json, name).filter(|number| number.len() == bytes).ok_or("a number of it is missing, or of another length")
}

/// A number without zeros before it.
fn unsigned(json: &Json, name: &str) -> Result<Vec<u8>, &'static str> {
    let number = decoded(json, name).ok_or("a number of it is missing, or none")?;
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    Ok(number[zeros..].to_vec())
}
