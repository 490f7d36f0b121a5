//! The key of a request: one field line, a string of RFC 9651 or bare.
//!
//! A value that begins with `"` is an sf-string with nothing after it; anything else is bare and taken as it stands,
//! without `,` and `;`, which a list or parameters would need. `"k"` and `k` are one key. What is present and empty is
//! invalid, never missing: a client that means to be protected must not run unprotected.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::limits;

/// A caller's key: 1 to 255 bytes of printable ASCII, decoded.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// A key may be as good as a credential for what it answers: logs show its length alone.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// Why a key is none. Says the rule, never the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// More than one field line, over all names of the route together.
    #[error("the key is given more than once; send one field line with one key")]
    Several,
    /// Present and empty.
    #[error("the key is empty; send 1 to {} characters", limits::KEY_BYTES_MAX)]
    Empty,
    /// Longer than it may be.
    #[error("the key is longer than {} characters", limits::KEY_BYTES_MAX)]
    TooLong,
    /// A byte that no key has.
    #[error("the key has a character outside printable ASCII")]
    NotPrintable,
    /// A list or parameters, perhaps: refused before it is guessed which.
    #[error("a key without quotes can't have a comma or a semicolon; send \"…\"")]
    Separator,
    /// Begins with a quote and is no string of RFC 9651.
    #[error(
        "the key begins with a quote and is no string: it must end with a quote, escape only \\\" and \\\\, and have nothing after it"
    )]
    NotAString,
}

/// The one key among these fields, under any of these names; and its field value as it was sent.
///
/// # Errors
/// [`KeyError`] where there is a field and no good key. Nothing is joined before it is counted.
pub fn find(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<(Key, HeaderValue)>, KeyError> {
    let mut lines = names.iter().flat_map(|name| headers.get_all(name));
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(KeyError::Several);
    }
    parse(line.as_bytes()).map(|key| Some((key, line.clone())))
}

/// The key of this field value.
///
/// # Errors
/// [`KeyError`] where it is none.
pub fn parse(value: &[u8]) -> Result<Key, KeyError> {
    let value = trim(value);
    match value {
        [] => Err(KeyError::Empty),
        [b'"', quoted @ ..] => string(quoted),
        bare => {
            if bare.len() > limits::KEY_BYTES_MAX {
                return Err(KeyError::TooLong);
            }
            bare.iter().try_for_each(|byte| match byte {
                b',' | b';' => Err(KeyError::Separator),
                0x20..=0x7e => Ok(()),
                _ => Err(KeyError::NotPrintable),
            })?;
            Ok(Key(ascii(bare.to_vec())))
        }
    }
}

/// What follows the opening quote.
fn string(quoted: &[u8]) -> Result<Key, KeyError> {
    let mut key = Vec::new();
    let mut bytes = quoted.iter();
    loop {
        match bytes.next() {
            Some(b'"') => break,
            Some(b'\\') => match bytes.next() {
                Some(escaped @ (b'"' | b'\\')) => key.push(*escaped),
                _ => return Err(KeyError::NotAString),
            },
            Some(byte @ 0x20..=0x7e) => key.push(*byte),
            Some(_) => return Err(KeyError::NotPrintable),
            None => return Err(KeyError::NotAString),
        }
    }
    if bytes.next().is_some() {
        return Err(KeyError::NotAString);
    }
    match key.len() {
        0 => Err(KeyError::Empty),
        1..=limits::KEY_BYTES_MAX => Ok(Key(ascii(key))),
        _ => Err(KeyError::TooLong),
    }
}

fn ascii(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("each byte was seen to be ASCII")
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests;
