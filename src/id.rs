//! Names of records and nodes, parsed once at the edge: what holds a value of these types is well formed.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::limits;

/// Why a text is not a valid part of an identity. Never quotes the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Empty where something is required.
    #[error("{part} must not be empty; give 1 to {bytes_max} bytes")]
    Empty {
        /// The part of the identity.
        part: &'static str,
        /// Its longest length.
        bytes_max: usize,
    },
    /// Too long.
    #[error("{part} is {bytes} bytes long; at most {bytes_max} are allowed")]
    TooLong {
        /// The part of the identity.
        part: &'static str,
        /// The length found.
        bytes: usize,
        /// Its longest length.
        bytes_max: usize,
    },
    /// A character outside the part's alphabet.
    #[error("{part} has a character at byte {at} that is not allowed; use {alphabet}")]
    Character {
        /// The part of the identity.
        part: &'static str,
        /// Offset of the first such byte.
        at: usize,
        /// The alphabet, in words.
        alphabet: &'static str,
    },
}

fn check(
    part: &'static str,
    text: &str,
    bytes_min: usize,
    bytes_max: usize,
    alphabet: &'static str,
    allowed: fn(u8) -> bool,
) -> Result<(), IdError> {
    if text.len() < bytes_min {
        return Err(IdError::Empty { part, bytes_max });
    }
    if text.len() > bytes_max {
        return Err(IdError::TooLong { part, bytes: text.len(), bytes_max });
    }
    match text.bytes().position(|b| !allowed(b)) {
        Some(at) => Err(IdError::Character { part, at, alphabet }),
        None => Ok(()),
    }
}

fn printable(b: u8) -> bool {
    (0x20..=0x7e).contains(&b)
}

fn tenant_byte(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
}

macro_rules! text_id {
    ($(#[$doc:meta])* $Name:ident, $part:literal, $min:expr, $max:expr, $alphabet:literal, $allowed:expr) => {
        $(#[$doc])*
        ///
        /// Ordered as in the keys of the store, where the length stands before the text: the shorter first.
        #[derive(Clone)]
        pub struct $Name(Arc<str>);

        impl $Name {
            /// Parses and checks the text.
            ///
            /// # Errors
            /// [`IdError`] names the part and the rule that it breaks.
            pub fn parse(text: &str) -> Result<Self, IdError> {
                check($part, text, $min, $max, $alphabet, $allowed)?;
                Ok(Self(Arc::from(text)))
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        // One name is compared with itself far more often than with another: most of the time it is the same text.
        impl PartialEq for $Name {
            fn eq(&self, other: &Self) -> bool {
                Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
            }
        }

        impl Eq for $Name {}

        impl Ord for $Name {
            fn cmp(&self, other: &Self) -> Ordering {
                if Arc::ptr_eq(&self.0, &other.0) {
                    return Ordering::Equal;
                }
                self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
            }
        }

        impl PartialOrd for $Name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Hash for $Name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
    };
}

text_id!(
    /// The owner of a name space of records, from the credential: 1..=64 bytes of `[a-z0-9._-]`.
    Tenant,
    "tenant",
    1,
    limits::TENANT_BYTES_MAX,
    "lower-case letters, digits, '.', '_' and '-'",
    tenant_byte
);
text_id!(
    /// The caller's end user or account, may be empty: 0..=128 bytes of printable ASCII.
    Principal,
    "principal",
    0,
    limits::PRINCIPAL_BYTES_MAX,
    "printable ASCII (0x20 to 0x7E)",
    printable
);
text_id!(
    /// The endpoint and class of an operation, e.g. `POST /v1/charges`: 1..=128 bytes of printable ASCII.
    Operation,
    "operation",
    1,
    limits::OPERATION_BYTES_MAX,
    "printable ASCII (0x20 to 0x7E)",
    printable
);
text_id!(
    /// The caller's idempotency key: 1..=255 bytes of printable ASCII.
    Key,
    "key",
    1,
    limits::KEY_BYTES_MAX,
    "printable ASCII (0x20 to 0x7E)",
    printable
);

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenant({})", self.0)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({})", self.0)
    }
}

// Keys and principals are the callers' secrets: logs and panics show their length alone.
impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Principal({} bytes)", self.0.len())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// What binds a caller's intent: (tenant, principal, operation, key).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// Whose name space.
    pub tenant: Tenant,
    /// Which end user, may be empty.
    pub principal: Principal,
    /// Which operation.
    pub operation: Operation,
    /// Which intent.
    pub key: Key,
}

impl RecordId {
    /// The four parts, each behind its length (u32 big-endian), so that no two identities share their bytes.
    pub fn joined(&self) -> Vec<u8> {
        let parts = [self.tenant.as_str(), self.principal.as_str(), self.operation.as_str(), self.key.as_str()];
        let mut bytes = Vec::with_capacity(parts.iter().map(|p| p.len() + 4).sum());
        for part in parts {
            join(&mut bytes, part.as_bytes());
        }
        bytes
    }

    /// The reverse of [`joined`](Self::joined); `None` if the bytes are not exactly four valid parts.
    pub fn from_joined(mut bytes: &[u8]) -> Option<Self> {
        let mut part = || -> Option<&str> {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            let length = u32::from_be_bytes(*length) as usize;
            let text = rest.get(..length)?;
            bytes = &rest[length..];
            std::str::from_utf8(text).ok()
        };
        let (tenant, principal, operation, key) = (part()?, part()?, part()?, part()?);
        let id = Self {
            tenant: Tenant::parse(tenant).ok()?,
            principal: Principal::parse(principal).ok()?,
            operation: Operation::parse(operation).ok()?,
            key: Key::parse(key).ok()?,
        };
        bytes.is_empty().then_some(id)
    }
}

/// Appends a part behind its length (u32 big-endian), as everywhere that parts are joined.
pub fn join(bytes: &mut Vec<u8>, part: &[u8]) {
    let length = u32::try_from(part.len()).expect("joined parts are bounded by limits far below 4 GiB");
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(part);
}

/// Appends an absent part: the length 0xFFFFFFFF.
pub fn join_absent(bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&u32::MAX.to_be_bytes());
}

/// A u64 that grows by one for every sweep and every command of the replicated state; 0 before init.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// A fencing token: the position of the grant, so fences strictly increase over the cluster's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(pub u64);

impl Fence {
    /// Parses `0|[1-9][0-9]*` up to u64; a sign, a leading zero or anything else is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        parse_decimal(text).map(Self)
    }
}

/// Parses `0|[1-9][0-9]*` up to u64, the one spelling of a u64 in JSON and on the command line.
pub fn parse_decimal(text: &str) -> Option<u64> {
    let canonical = text == "0" || (!text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit()));
    if canonical { text.parse().ok() } else { None }
}

/// Cluster time, or a time of the wire: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// This time and `ms` more; saturates at the end of time.
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// This time and `s` seconds more; saturates at the end of time.
    pub fn plus_s(self, s: u32) -> Self {
        self.plus_ms(u64::from(s) * 1000)
    }

    /// Milliseconds from `earlier` to this time, 0 where it is not earlier.
    pub fn since_ms(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// In RFC 3339, with milliseconds; what lies beyond its years is written as their end.
    pub fn text(self) -> String {
        let ms = self.0.min(limits::TIME_S_MAX * 1000 + 999);
        let (days, of_day) = (ms / 86_400_000, ms % 86_400_000);
        // Days are counted from March of the year 0 on, so that a leap day is the last of its year.
        let days = days + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = 400 * era + year_of_era + u64::from(month <= 2);
        let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", of_day % 1000)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a node, chosen by the operator and never used again: at least 1.
pub type NodeId = u64;

macro_rules! drawn_id {
    ($(#[$doc:meta])* $Name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $Name(pub [u8; 16]);

        // As the bytes are ordered, in one comparison.
        impl Ord for $Name {
            fn cmp(&self, other: &Self) -> Ordering {
                u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
            }
        }

        impl PartialOrd for $Name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $Name {
            /// Parses 32 hex digits.
            pub fn parse(text: &str) -> Option<Self> {
                parse_hex(text.as_bytes()).map(Self)
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut text = [0; 32];
                for (digits, byte) in text.chunks_mut(2).zip(self.0) {
                    digits.copy_from_slice(&hex_digits(byte));
                }
                f.write_str(std::str::from_utf8(&text).expect("hexadecimal digits are ASCII"))
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($Name), "({})"), self)
            }
        }
    };
}

drawn_id!(
    /// 16 random bytes made at init and kept by every restore: the cluster's descent.
    LineageId
);
drawn_id!(
    /// 16 random bytes made at init and drawn anew by every restore: the incarnation.
    ClusterId
);
drawn_id!(
    /// 16 random bytes of one data directory.
    DiskId
);
drawn_id!(
    /// The first 16 bytes of an HMAC-SHA-256 under the tenant's index key: of a record's identity or of an operation.
    KeyedHash
);
drawn_id!(
    /// A UUID by value: an attempt of a claim or a request of a verdict.
    Uuid
);

impl Uuid {
    /// Parses the 36-character form with hyphens, either case; compares by value.
    pub fn parse_hyphenated(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 || [8, 13, 18, 23].iter().any(|&i| bytes[i] != b'-') {
            return None;
        }
        let mut digits = [0; 32];
        let hex = bytes.iter().filter(|byte| **byte != b'-');
        // A hyphen in another place leaves a digit too few.
        if hex.clone().count() != digits.len() {
            return None;
        }
        digits.iter_mut().zip(hex).for_each(|(digit, byte)| *digit = *byte);
        parse_hex(&digits).map(Self)
    }

    /// The 36-character form, lower case.
    pub fn hyphenated(&self) -> String {
        let mut text = String::with_capacity(36);
        for (n, byte) in self.0.iter().enumerate() {
            if matches!(n, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.extend(hex_digits(*byte).map(char::from));
        }
        text
    }
}

/// Two lower-case digits: ids are shown in every answer, and formatting them one byte at a time would show in a profile.
fn hex_digits(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

fn parse_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let value = |digit: u8| (digit as char).to_digit(16);
        *byte = u8::try_from(value(pair[0])? * 16 + value(pair[1])?).expect("two hex digits fit a byte");
    }
    Some(bytes)
}

/// Bytes as lower-case hexadecimal digits, two each.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tenant: &str, key: &str) -> RecordId {
        RecordId {
            tenant: Tenant::parse(tenant).unwrap(),
            principal: Principal::parse("").unwrap(),
            operation: Operation::parse("POST /v1/charges").unwrap(),
            key: Key::parse(key).unwrap(),
        }
    }

    #[test]
    fn joined_parts_never_meet() {
        assert_ne!(id("a.b", "c").joined(), id("a", "b.c").joined());
        let whole = id("acme", "k-1");
        assert_eq!(RecordId::from_joined(&whole.joined()), Some(whole.clone()));
        for cut in 0..whole.joined().len() {
            assert_eq!(RecordId::from_joined(&whole.joined()[..cut]), None);
        }
    }

    #[test]
    fn parts_hold_their_rules() {
        assert!(Tenant::parse("A").unwrap_err().to_string().contains("lower-case"));
        assert!(Tenant::parse("").is_err() && Tenant::parse(&"a".repeat(65)).is_err());
        assert!(Tenant::parse(&"a".repeat(64)).is_ok() && Principal::parse("").is_ok());
        assert!(Key::parse(&"k".repeat(255)).is_ok() && Key::parse(&"k".repeat(256)).is_err());
        assert!(Key::parse("é").is_err() && Key::parse("a\u{7f}").is_err() && Key::parse(" ~").is_ok());
    }

    #[test]
    fn decimals_have_one_spelling() {
        assert_eq!(Fence::parse("18446744073709551615"), Some(Fence(u64::MAX)));
        for bad in ["", "01", "+1", "-1", "1.0", "18446744073709551616", " 1", "1e3"] {
            assert_eq!(Fence::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn uuids_compare_by_value() {
        let lower = Uuid::parse_hyphenated("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(Uuid::parse_hyphenated("00112233-4455-6677-8899-AABBCCDDEEFF"), Some(lower));
        assert_eq!(lower.hyphenated(), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(Uuid::parse_hyphenated("001122334455-6677-8899-aabb-ccddeeff"), None);
    }
}
