//! A typed reader of one object: fields are taken by name, and what nobody asked for is refused at the end.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Json, Number};
use crate::limits;

/// A field that is absent, of another type, or unknown. The message says where and what is required. The content is never
/// in it, but for the name of an unknown field, shortened and only where it looks like a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldError {
    /// A required field is absent or null.
    #[error("{path}: {expected} is required")]
    Missing {
        /// The field.
        path: String,
        /// What it takes.
        expected: Cow<'static, str>,
    },
    /// A field holds something else.
    #[error("{path}: {expected} is required, not {found}")]
    Unfit {
        /// The field.
        path: String,
        /// What it takes.
        expected: Cow<'static, str>,
        /// What it holds, by kind.
        found: &'static str,
    },
    /// A field that this object doesn't have.
    #[error("{path}: unknown field; {advice}")]
    Unknown {
        /// The field.
        path: String,
        /// What to do about it.
        advice: String,
    },
    /// More members than any object of the API has fields.
    #[error("{path}: more than {max} members; send only the documented fields", max = limits::JSON_FIELDS_MAX)]
    TooMany {
        /// The object.
        path: String,
    },
}

/// The fields of one object that weren't taken yet. A field that is `null` counts as absent everywhere.
///
/// ```
/// use semel::json::{Fields, Json};
///
/// let body = Json::parse(br#"{"record":{"key":"k-1"},"lease_ms":30000}"#)?;
/// let mut fields = Fields::new(body)?;
/// let mut record = fields.object("record")?;
/// assert_eq!(record.string("key")?, "k-1");
/// record.finish()?;
/// assert_eq!(fields.opt_u32("lease_ms")?, Some(30_000));
/// fields.finish()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Fields {
    /// Where the object is, such as `items[2].record`; empty for the whole body.
    path: String,
    members: Vec<(String, Json)>,
    /// A bit for each member that was taken; there are at most 64.
    taken: u64,
    /// Every name asked for: what an unknown name may have been meant to be.
    known: Vec<&'static str>,
}

impl Fields {
    /// The fields of a whole body.
    pub fn new(body: Json) -> Result<Fields, FieldError> {
        Fields::at(String::new(), body)
    }

    /// The fields of an object that is at `path` of the body: for items of an array, say.
    pub fn at(path: String, value: Json) -> Result<Fields, FieldError> {
        let shown = if path.is_empty() { "the body" } else { &path };
        match value {
            Json::Object(members) if members.len() > limits::JSON_FIELDS_MAX => {
                Err(FieldError::TooMany { path: shown.to_owned() })
            }
            Json::Object(members) => Ok(Fields { path, members, taken: 0, known: Vec::with_capacity(16) }),
            Json::Null => Err(FieldError::Missing { path: shown.to_owned(), expected: OBJECT.into() }),
            other => {
                let found = other.kind_name();
                Err(FieldError::Unfit { path: shown.to_owned(), expected: OBJECT.into(), found })
            }
        }
    }

    /// Any value at all, `None` where the field is absent; unlike elsewhere, `null` is a value here.
    pub fn opt_value(&mut self, name: &'static str) -> Option<Json> {
        self.known.push(name);
        let index = self.members.iter().position(|(own, _)| own == name)?;
        let bit = 1 << index;
        if self.taken & bit != 0 {
            return None;
        }
        self.taken |= bit;
        Some(std::mem::replace(&mut self.members[index].1, Json::Null))
    }

    /// A string of at least one character.
    pub fn string(&mut self, name: &'static str) -> Result<String, FieldError> {
        self.opt_string(name)?.ok_or_else(|| self.missing(name, STRING))
    }

    /// A string of at least one character, or absent.
    pub fn opt_string(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        match self.opt_string_or_empty(name)? {
            Some(empty) if empty.is_empty() => Err(self.unfit(name, STRING, "an empty one")),
            string => Ok(string),
        }
    }

    /// A string, which may be empty, or absent. Where an empty string means absent, filter it out.
    pub fn opt_string_or_empty(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(string)) => Ok(Some(string)),
            Some(other) => Err(self.unfit(name, STRING, other.kind_name())),
        }
    }

    /// `true` or `false`.
    pub fn opt_bool(&mut self, name: &'static str) -> Result<Option<bool>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.unfit(name, "true or false", other.kind_name())),
        }
    }

    /// An integer, written as digits alone: no sign, fraction, exponent or quotes.
    pub fn u32(&mut self, name: &'static str) -> Result<u32, FieldError> {
        self.opt_u32(name)?.ok_or_else(|| self.missing(name, U32))
    }

    /// Like [`Fields::u32`], or absent.
    pub fn opt_u32(&mut self, name: &'static str) -> Result<Option<u32>, FieldError> {
        self.opt_integer(name, U32, |text| if text.starts_with('-') { None } else { text.parse().ok() })
    }

    /// An integer with a sign if it is negative: no fraction, exponent or quotes.
    pub fn i32(&mut self, name: &'static str) -> Result<i32, FieldError> {
        self.opt_i32(name)?.ok_or_else(|| self.missing(name, I32))
    }

    /// Like [`Fields::i32`], or absent.
    pub fn opt_i32(&mut self, name: &'static str) -> Result<Option<i32>, FieldError> {
        self.opt_integer(name, I32, |text| text.parse().ok())
    }

    /// A 64-bit number as a decimal string `0|[1-9][0-9]*`. A JSON number is refused: many writers round it.
    pub fn u64_text(&mut self, name: &'static str) -> Result<u64, FieldError> {
        self.opt_u64_text(name)?.ok_or_else(|| self.missing(name, U64))
    }

    /// Like [`Fields::u64_text`], or absent.
    pub fn opt_u64_text(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => match parse_u64(&text) {
                Some(value) => Ok(Some(value)),
                None => Err(self.unfit(name, U64, "that string")),
            },
            Some(other) => Err(self.unfit(name, U64, other.kind_name())),
        }
    }

    /// Bytes in standard base64 with padding; nothing else is taken for it. An empty string is no bytes.
    pub fn opt_bytes(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::String(text)) => match STANDARD.decode(text) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(_) => Err(self.unfit(name, BASE64, "that string")),
            },
            Some(other) => Err(self.unfit(name, BASE64, other.kind_name())),
        }
    }

    /// One of a closed list of words.
    pub fn opt_word<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Result<Option<T>, FieldError> {
        let found = match self.take(name) {
            None => return Ok(None),
            Some(Json::String(text)) => match words.iter().find(|(word, _)| *word == text) {
                Some((_, value)) => return Ok(Some(*value)),
                None => "that string",
            },
            Some(other) => other.kind_name(),
        };
        let words: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        Err(self.unfit(name, format!("one of {}", words.join(", ")), found))
    }

    /// The fields of an object within.
    pub fn object(&mut self, name: &'static str) -> Result<Fields, FieldError> {
        self.opt_object(name)?.ok_or_else(|| self.missing(name, OBJECT))
    }

    /// Like [`Fields::object`], or absent.
    pub fn opt_object(&mut self, name: &'static str) -> Result<Option<Fields>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => Fields::at(self.path_of(name), value).map(Some),
        }
    }

    /// The names and strings of an object whose names are the caller's own, in their order; empty strings pass.
    pub fn opt_strings(&mut self, name: &'static str) -> Result<Option<Vec<(String, String)>>, FieldError> {
        let members = match self.take(name) {
            None => return Ok(None),
            Some(Json::Object(members)) => members,
            Some(other) => return Err(self.unfit(name, STRINGS, other.kind_name())),
        };
        let strings = members.into_iter().map(|(own, value)| match value {
            Json::String(string) => Ok((own, string)),
            other => Err(self.unfit(name, STRINGS, other.kind_name())),
        });
        strings.collect::<Result<_, _>>().map(Some)
    }

    /// The items of an array.
    pub fn opt_array(&mut self, name: &'static str) -> Result<Option<Vec<Json>>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.unfit(name, "an array", other.kind_name())),
        }
    }

    /// The fields of each object of an array.
    pub fn opt_objects(&mut self, name: &'static str) -> Result<Option<Vec<Fields>>, FieldError> {
        let Some(items) = self.opt_array(name)? else { return Ok(None) };
        let path = self.path_of(name);
        let objects = items.into_iter().enumerate().map(|(index, item)| Fields::at(format!("{path}[{index}]"), item));
        objects.collect::<Result<_, _>>().map(Some)
    }

    /// Refuses the first member that nobody took.
    pub fn finish(self) -> Result<(), FieldError> {
        let unknown = (0..self.members.len()).find(|index| self.taken & (1 << index) == 0);
        match unknown {
            None => Ok(()),
            Some(index) => {
                let name = &self.members[index].0;
                let advice = match self.nearest(name) {
                    Some(known) => format!("did you mean {known}?"),
                    None => "remove it".to_owned(),
                };
                Err(FieldError::Unknown { path: self.path_of(&shown_name(name)), advice })
            }
        }
    }

    /// The members that nobody took, by name: for an object that holds one of several kinds. Counts as the finish.
    pub fn into_rest(self) -> Vec<(String, Json)> {
        let taken = self.taken;
        let rest = self.members.into_iter().enumerate().filter(|(index, _)| taken & (1 << index) == 0);
        rest.map(|(_, member)| member).collect()
    }

    /// The error that says that the field `name` takes `expected`, and had something unfit of the right type: for rules
    /// that are known only to whoever reads it.
    pub fn unfit(&self, name: &str, expected: impl Into<Cow<'static, str>>, found: &'static str) -> FieldError {
        FieldError::Unfit { path: self.path_of(name), expected: expected.into(), found }
    }

    /// The error that says that the field `name` must be given.
    pub fn missing(&self, name: &str, expected: impl Into<Cow<'static, str>>) -> FieldError {
        FieldError::Missing { path: self.path_of(name), expected: expected.into() }
    }

    /// Where the field `name` is, such as `record.key`.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn take(&mut self, name: &'static str) -> Option<Json> {
        self.opt_value(name).filter(|value| *value != Json::Null)
    }

    fn opt_integer<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Json::Number(number)) => match integer(&number).and_then(parse) {
                Some(value) => Ok(Some(value)),
                None => Err(self.unfit(name, expected, "that number")),
            },
            Some(other) => Err(self.unfit(name, expected, other.kind_name())),
        }
    }

    /// The known name that `unknown` was most likely meant to be.
    fn nearest(&self, unknown: &str) -> Option<&'static str> {
        if unknown.len() > limits::JSON_HINT_NAME_BYTES_MAX {
            return None;
        }
        let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
        let wanted = plain(unknown);
        let distances = self.known.iter().map(|&known| (distance(&wanted, &plain(known)), known));
        // Two slips of the finger, but never a wholly different short name.
        let near = distances.filter(|(far, known)| *far <= 2 && *far * 3 <= known.len());
        near.min_by_key(|(far, _)| *far).map(|(_, known)| known)
    }
}

const STRING: &str = "a string";
const STRINGS: &str = "an object of strings";
const OBJECT: &str = "an object";
const BASE64: &str = "a string of standard base64 with padding";
const U32: &str = "an integer from 0 to 4294967295, without sign, fraction, exponent or quotes,";
const I32: &str = "an integer from -2147483648 to 2147483647, without fraction, exponent or quotes,";
const U64: &str =
    "a decimal number in quotes, like \"42\", from 0 to 18446744073709551615, without sign or leading zero,";

/// The text of a number that has neither fraction nor exponent.
fn integer(number: &Number) -> Option<&str> {
    let text = number.as_str();
    text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()).then_some(text)
}

/// A decimal number `0|[1-9][0-9]*` of 64 bits.
fn parse_u64(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = text.len() > 1 && text.starts_with('0');
    if digits && !leading_zero { text.parse().ok() } else { None }
}

/// An unknown name as a message may show it: it came from outside, so it may be anything.
fn shown_name(name: &str) -> String {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if plain && !name.is_empty() && name.len() <= limits::JSON_HINT_NAME_BYTES_MAX {
        name.to_owned()
    } else {
        "(a name that isn't shown)".to_owned()
    }
}

/// Levenshtein's distance in bytes. Both are as short as a hint's names.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
