//! Fingerprints: what tells a retry from another intent under the same key.
//!
//! A fingerprint is a scheme number and the SHA-256 of the request in that scheme's normal form. Two requests that mean
//! the same have one fingerprint however they were written; a request that differs in any value has another. Scheme 1
//! is drawn byte by byte in FORMAT.md and pinned by published vectors: **it never changes**. A better normal form is a
//! new scheme; a claim may carry both, and one match is enough.
//!
//! ```
//! use semel::fingerprint::Fingerprint;
//!
//! let first = Fingerprint::json_text(br#"{"amount": 100, "currency": "eur"}"#)?;
//! let retry = Fingerprint::json_text(br#"{"currency":"\u0065ur","amount":1e2}"#)?;
//! let other = Fingerprint::json_text(br#"{"amount": 101, "currency": "eur"}"#)?;
//! assert_eq!(first, retry);
//! assert_ne!(first, other);
//! # Ok::<(), semel::fingerprint::Error>(())
//! ```
#![doc = include_str!("FORMAT.md")]

mod body;
mod canonical;
mod difference;
mod ignore;
mod number;

#[cfg(test)]
mod tests;

pub use body::{Body, Form, HttpRequest, Part};
pub use canonical::{canonical, canonical_without};
pub use difference::{Difference, DifferenceKind, Differences, differences};
pub use ignore::Ignore;

use std::fmt;

use crate::json::{self, Json};
use crate::limits;

/// The scheme that this module computes.
pub const SCHEME: u32 = 1;

/// Why a request has no fingerprint. No content of the request is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no JSON.
    #[error(transparent)]
    Json(#[from] json::Error),
    /// An integer's plain decimal form is too long.
    #[error("an integer of more than {} digits; send it as a string", limits::FINGERPRINT_INTEGER_DIGITS_MAX)]
    IntegerTooLong,
    /// A number with a fraction rounds to infinity.
    #[error("a number with a fraction that is beyond a double; send it as a string")]
    BeyondDouble,
    /// An object built by hand has two members of one name.
    #[error("a member name that the object already has; send each member once")]
    DuplicateMember,
    /// More arrays and objects within each other than the limit.
    #[error("arrays and objects are nested more than {} deep", limits::JSON_DEPTH_MAX)]
    TooDeep,
    /// Too many ignored pointers.
    #[error("more than {} ignored pointers", limits::FINGERPRINT_IGNORE_MAX)]
    TooManyPointers,
    /// The whole request can't be left out: every request would match every other.
    #[error("ignored pointer {index}: the empty pointer is the whole request; name a part of it, like /client_ts")]
    WholeRequest {
        /// Its place in the list, counted from 0.
        index: usize,
    },
    /// Not a JSON pointer of RFC 6901.
    #[error("ignored pointer {index}: it must start with / and use ~ only as ~0 (for ~) and ~1 (for /)")]
    InvalidPointer {
        /// Its place in the list, counted from 0.
        index: usize,
    },
    /// Not a digest in hexadecimal.
    #[error("a digest is 64 lower-case hexadecimal digits")]
    InvalidDigest,
}

/// A scheme and the digest of one request under it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    scheme: u32,
    digest: [u8; 32],
}

impl Fingerprint {
    /// A fingerprint that was computed elsewhere, perhaps under a scheme unknown here.
    pub fn new(scheme: u32, digest: [u8; 32]) -> Fingerprint {
        Fingerprint { scheme, digest }
    }

    /// A fingerprint whose digest comes as 64 lower-case hexadecimal digits.
    pub fn from_hex(scheme: u32, digest: &str) -> Result<Fingerprint, Error> {
        let digits: &[u8; 64] = digest.as_bytes().try_into().map_err(|_| Error::InvalidDigest)?;
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0]).zip(hex_digit(pair[1])).map(|(h, l)| h << 4 | l).ok_or(Error::InvalidDigest)?;
        }
        Ok(Fingerprint { scheme, digest: bytes })
    }

    /// The fingerprint of a JSON value: equal for all texts of equal [`canonical`] form.
    pub fn json(request: &Json) -> Result<Fingerprint, Error> {
        Ok(Body::json(request)?.into())
    }

    /// [`Fingerprint::json`] without the parts that `ignore` names. The list itself isn't hashed.
    pub fn json_without(request: &Json, ignore: &Ignore) -> Result<Fingerprint, Error> {
        Ok(Body::json_without(request, ignore)?.into())
    }

    /// [`Fingerprint::json`] of JSON text.
    pub fn json_text(request: impl AsRef<[u8]>) -> Result<Fingerprint, Error> {
        Fingerprint::json(&Json::parse(request.as_ref())?)
    }

    /// The fingerprint of bytes as they are. JSON text hashed as bytes has another one than as JSON.
    pub fn raw(request: &[u8]) -> Fingerprint {
        Body::raw(request).into()
    }

    /// The fingerprint of a multipart request: its parts in order, whatever the boundary.
    ///
    /// # Panics
    /// Where a name, filename or content type has 4 GiB, which no request can hold.
    pub fn multipart(parts: &[Part<'_>]) -> Fingerprint {
        Body::multipart(parts).into()
    }

    /// The fingerprint of a whole HTTP request with this body.
    ///
    /// # Panics
    /// Where the path, the query or a header has 4 GiB, which no request can hold.
    pub fn http(request: &HttpRequest<'_>, body: &Body) -> Fingerprint {
        request.body(body).into()
    }

    /// The scheme.
    pub fn scheme(&self) -> u32 {
        self.scheme
    }

    /// The digest.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// The digest as 64 lower-case hexadecimal digits.
    pub fn hex(&self) -> String {
        crate::id::hex(&self.digest)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({}:{})", self.scheme, self.hex())
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}
