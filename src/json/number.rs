//! A JSON number as it was written.

use std::fmt;

/// The longest text held without an allocation of its own: with it, a number takes no more room than a string's header,
/// so an array of a million zeros is one allocation.
const SHORT_MAX: usize = 22;

/// A number by its exact source text, which always fits RFC 8259's grammar. Equality is of the text: `1` and `1.0`
/// differ here; [`crate::fingerprint::canonical`] is where they meet.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Number(Text);

/// The length decides between the two, so that equal texts have equal representations.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Text {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<str>),
}

impl Number {
    /// The number that this text is, if all of it is one JSON number.
    pub fn parse(text: &str) -> Option<Number> {
        match super::parse::number_end(text.as_bytes(), 0) {
            Ok(end) if end == text.len() => Some(Number::of_valid(text)),
            _ => None,
        }
    }

    /// Keeps a text that the grammar was checked for.
    pub(super) fn of_valid(text: &str) -> Number {
        let mut bytes = [0; SHORT_MAX];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(start), Ok(length)) => {
                start.copy_from_slice(text.as_bytes());
                Number(Text::Short { length, bytes })
            }
            _ => Number(Text::Long(text.into())),
        }
    }

    /// The source text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Short { length, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*length)]).expect("only ASCII passes the number grammar")
            }
            Text::Long(text) => text,
        }
    }
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Number({})", self.as_str())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! from_integer {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Number {
            fn from(value: $integer) -> Number {
                Number::of_valid(&value.to_string())
            }
        }
    )*};
}

from_integer!(u32, i32, u64, i64);
