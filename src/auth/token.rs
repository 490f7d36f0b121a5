//! Tokens of the log: their text, and how one is known again. The secret is kept nowhere; what is kept is a keyed hash.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::entropy;

/// Bytes of an id.
pub const ID_BYTES: usize = 10;
/// Bytes of a secret.
const SECRET_BYTES: usize = 32;
const PREFIX: &str = "semel_";
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Letters of an id.
const ID_LETTERS: usize = 16;
/// Letters of a secret; the last four bits are 0.
const SECRET_LETTERS: usize = 52;

/// `semel_<id>.<secret>`: what its holder shows.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText {
    /// Its id, which may be known.
    pub id: [u8; ID_BYTES],
    secret: [u8; SECRET_BYTES],
}

impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenText({})", id_text(&self.id))
    }
}

impl TokenText {
    /// A new one.
    pub fn draw() -> Self {
        Self { id: entropy::bytes(), secret: entropy::bytes() }
    }

    /// Reads the one spelling of a token.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX.as_bytes())?.split_at_checked(ID_LETTERS)?;
        let secret = secret.strip_prefix(b".").filter(|secret| secret.len() == SECRET_LETTERS)?;
        Some(Self { id: read(id)?, secret: read(secret)? })
    }

    /// One that nobody has: what is looked for where no token was shown, so that this takes no less time.
    pub(super) fn nobodys() -> Self {
        Self { id: [0; ID_BYTES], secret: [0; SECRET_BYTES] }
    }

    /// What is kept of it, under the cluster's key of tokens.
    pub fn hash(&self, key: &TokenKey) -> [u8; 32] {
        mac(&key.0, &[b"tk", &self.id, &self.secret])
    }

    /// The text, for its holder alone.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}.{}", id_text(&self.id), letters(&self.secret))
    }
}

/// The key under which tokens are hashed: drawn from what init has drawn, the same on every node and in every restore.
pub struct TokenKey([u8; 32]);

impl TokenKey {
    /// The key of a cluster with this secret.
    pub fn of(downstream_secret: &[u8]) -> Self {
        Self(mac(downstream_secret, &[b"semel-token-key-v1"]))
    }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

/// An id as text.
pub fn id_text(id: &[u8; ID_BYTES]) -> String {
    letters(id)
}

/// The id of this text.
pub fn parse_id(text: &str) -> Option<[u8; ID_BYTES]> {
    read(text.as_bytes())
}

/// RFC 4648, lower case, without padding.
fn letters(bytes: &[u8]) -> String {
    let (mut text, mut bits, mut held) = (String::with_capacity(bytes.len().div_ceil(5) * 8), 0u32, 0u32);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(char::from(ALPHABET[(bits >> held) as usize & 31]));
        }
    }
    if held > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - held)) as usize & 31]));
    }
    text
}

/// Exactly `N` bytes of these letters; bits that are left over must be 0, so that there is one spelling.
fn read<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    if text.len() != (N * 8).div_ceil(5) {
        return None;
    }
    let (mut bytes, mut at, mut bits, mut held) = ([0; N], 0, 0u32, 0u32);
    for letter in text {
        let value = match letter {
            b'a'..=b'z' => letter - b'a',
            b'2'..=b'7' => letter - b'2' + 26,
            _ => return None,
        };
        bits = (bits << 5 | u32::from(value)) & 0xfff;
        held += 5;
        if held >= 8 {
            held -= 8;
            bytes[at] = u8::try_from(bits >> held & 0xff).expect("eight bits");
            at += 1;
        }
    }
    (bits & ((1 << held) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_spelling() {
        let token = TokenText { id: *b"0123456789", secret: *b"an example of thirty-two bytes!!" };
        let text = token.reveal();
        assert_eq!(text, "semel_gaytemzugu3doobz.mfxcazlymfwxa3dfebxwmidunbuxe5dzfv2ho3zamj4xizlteeqq");
        assert_eq!(TokenText::parse(text.as_bytes()), Some(token.clone()));
        assert_eq!(parse_id("gaytemzugu3doobz"), Some(token.id));
        for other in [
            text.to_uppercase(),
            text.replace('.', "-"),
            text.replace("semel_", "semel-"),
            format!("{text}q"),
            text[..text.len() - 1].to_owned(),
            // The last letter has four bits that must be 0.
            format!("{}r", &text[..text.len() - 1]),
            text.replacen('g', "1", 1),
            format!(" {text}"),
        ] {
            assert_eq!(TokenText::parse(other.as_bytes()), None, "{other}");
        }
        let drawn = TokenText::draw();
        assert_eq!(TokenText::parse(drawn.reveal().as_bytes()), Some(drawn.clone()));
        assert!(!format!("{drawn:?}").contains(&letters(&drawn.secret)), "the secret is shown nowhere");
    }

    #[test]
    fn the_hash_is_of_the_key_the_id_and_the_secret() {
        let key = TokenKey::of(&[7; 32]);
        let token = TokenText { id: [1; 10], secret: [2; 32] };
        let hash = token.hash(&key);
        assert_ne!(hash, TokenText { id: [3; 10], ..token.clone() }.hash(&key));
        assert_ne!(hash, TokenText { secret: [3; 32], ..token.clone() }.hash(&key));
        assert_ne!(hash, token.hash(&TokenKey::of(&[8; 32])));
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex.len(), 64);
    }
}
