//! Parts of a request that don't count: a client's time stamp, a trace id.

use super::Error;
use crate::limits;

/// A checked list of at most [`limits::FINGERPRINT_IGNORE_MAX`] JSON pointers (RFC 6901), such as `/client_ts` or
/// `/lines/0/note`.
///
/// All are looked up in the request as it is, then everything found is removed at once: their order doesn't matter, and
/// the indexes of an array are those before anything was removed. What isn't there is fine. `-` names the item after an
/// array's last, so it never finds one; nor does an index with a leading zero. The empty pointer is refused: it would
/// make all requests alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ignore {
    pointers: Vec<Vec<String>>,
}

impl Ignore {
    /// Checks the pointers.
    pub fn new<P: AsRef<str>>(pointers: impl IntoIterator<Item = P>) -> Result<Ignore, Error> {
        let mut checked = Vec::new();
        for (index, pointer) in pointers.into_iter().enumerate() {
            if index == limits::FINGERPRINT_IGNORE_MAX {
                return Err(Error::TooManyPointers);
            }
            checked.push(tokens(pointer.as_ref(), index)?);
        }
        Ok(Ignore { pointers: checked })
    }

    /// Whether nothing is ignored.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// The pointers as they apply to the whole request.
    pub(super) fn select(&self) -> Selected<'_> {
        Selected { rests: self.pointers.iter().map(Vec::as_slice).collect() }
    }
}

/// What is left of the pointers that lead to a value or into it; never empty rests.
pub(super) struct Selected<'a> {
    rests: Vec<&'a [String]>,
}

impl<'a> Selected<'a> {
    /// What applies to the member `name`; `None` if the member itself is ignored.
    pub(super) fn member(&self, name: &str) -> Option<Selected<'a>> {
        self.step(|token| token == name)
    }

    /// What applies to the item at `index`; `None` if the item itself is ignored.
    pub(super) fn item(&self, index: usize) -> Option<Selected<'a>> {
        self.step(|token| array_index(token) == Some(index))
    }

    fn step(&self, matches: impl Fn(&str) -> bool) -> Option<Selected<'a>> {
        let mut rests = Vec::new();
        for rest in &self.rests {
            let (first, rest) = rest.split_first().expect("a pointer that ends here was answered one step before");
            if matches(first) {
                if rest.is_empty() {
                    return None;
                }
                rests.push(rest);
            }
        }
        Some(Selected { rests })
    }
}

/// The unescaped tokens of a pointer.
fn tokens(pointer: &str, index: usize) -> Result<Vec<String>, Error> {
    if pointer.is_empty() {
        return Err(Error::WholeRequest { index });
    }
    let path = pointer.strip_prefix('/').ok_or(Error::InvalidPointer { index })?;
    path.split('/').map(|token| unescape(token).ok_or(Error::InvalidPointer { index })).collect()
}

fn unescape(token: &str) -> Option<String> {
    let mut pieces = token.split('~');
    let mut unescaped = pieces.next()?.to_owned();
    for piece in pieces {
        match piece.as_bytes().first() {
            Some(b'0') => unescaped.push('~'),
            Some(b'1') => unescaped.push('/'),
            _ => return None,
        }
        unescaped.push_str(&piece[1..]);
    }
    Some(unescaped)
}

/// A token as RFC 6901 lets it name an item: `0|[1-9][0-9]*`.
fn array_index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = token.len() > 1 && token.starts_with('0');
    if digits && !leading_zero { token.parse().ok() } else { None }
}

/// Appends one token to a pointer.
pub(super) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    for character in token.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}
