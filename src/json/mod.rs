//! Strict JSON (RFC 8259): a parser, a compact writer and a typed reader of request bodies.
//!
//! Two readings of one text are two intents, so whatever leaves room for interpretation is refused: a member named twice
//! (after unescaping), a lone surrogate, invalid UTF-8, a byte order mark, a second document. Numbers keep their
//! source text, because a number that went through a double is another number.
//!
//! Work and memory are bounded by the length of the text: nesting stops at [`crate::limits::JSON_DEPTH_MAX`], names are
//! compared by sorting, an exponent is never expanded. Errors say where and what, never the content: a body may hold
//! card numbers, and an error goes to logs.
//!
//! ```
//! use semel::json::Json;
//!
//! let json = Json::parse(br#" {"amount": 1.50, "currency": "eur"} "#)?;
//! assert_eq!(json.to_text(), r#"{"amount":1.50,"currency":"eur"}"#);
//! assert!(Json::parse(br#"{"a":1,"a":2}"#).is_err());
//! # Ok::<(), semel::json::Error>(())
//! ```

mod error;
mod fields;
mod number;
mod parse;
mod write;

#[cfg(test)]
mod tests;

pub use error::{Error, Kind, Location, Step};
pub use fields::{FieldError, Fields};
pub use number::Number;
pub(crate) use write::write_string;

use crate::limits;

/// One JSON value. Members of an object stand in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as its exact source text.
    Number(Number),
    /// A string, unescaped.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object. Parsed ones never hold a name twice; whoever builds one by hand keeps to that.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Parses exactly one JSON document, nested at most [`limits::JSON_DEPTH_MAX`] arrays and objects deep.
    pub fn parse(text: &[u8]) -> Result<Json, Error> {
        parse::parse(text, limits::JSON_DEPTH_MAX)
    }

    /// Parses a request body that wraps a caller's value, which may itself be [`limits::JSON_DEPTH_MAX`] deep:
    /// [`limits::JSON_ENVELOPE_DEPTH`] more levels are allowed. So the caller's value is judged alike whether it came
    /// inside an HTTP body or on its own; [`crate::fingerprint::canonical`] checks its depth.
    pub fn parse_envelope(text: &[u8]) -> Result<Json, Error> {
        parse::parse(text, limits::JSON_DEPTH_MAX + limits::JSON_ENVELOPE_DEPTH)
    }

    /// The value as compact JSON text: no white space, members in the order held, numbers as written, strings with the
    /// fewest escapes. Parsing it gives an equal value. Recursion is as deep as the value.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        write::write_value(&mut out, self);
        out
    }

    /// An object of these members, in this order. The names must differ.
    pub fn object<N: Into<String>>(members: impl IntoIterator<Item = (N, Json)>) -> Json {
        Json::Object(members.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// A 64-bit number as the decimal string by which JSON carries it: a JSON number loses digits in many readers.
    pub fn u64_text(value: u64) -> Json {
        Json::String(value.to_string())
    }

    /// What kind of value this is, for messages: "null", "a boolean", "a number", "a string", "an array", "an object".
    pub fn kind_name(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "an array",
            Json::Object(_) => "an object",
        }
    }

    /// The value of the member `name`, if this is an object that has it.
    pub fn member(&self, name: &str) -> Option<&Json> {
        match self {
            Json::Object(members) => members.iter().find(|(own, _)| own == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The string, if this is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(string) => Some(string),
            _ => None,
        }
    }
}

impl std::fmt::Display for Json {
    /// Writes [`Json::to_text`].
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl std::str::FromStr for Json {
    type Err = Error;

    fn from_str(text: &str) -> Result<Json, Error> {
        Json::parse(text.as_bytes())
    }
}

impl From<bool> for Json {
    fn from(value: bool) -> Json {
        Json::Bool(value)
    }
}

impl From<&str> for Json {
    fn from(value: &str) -> Json {
        Json::String(value.to_owned())
    }
}

impl From<String> for Json {
    fn from(value: String) -> Json {
        Json::String(value)
    }
}

impl From<u32> for Json {
    fn from(value: u32) -> Json {
        Json::Number(value.into())
    }
}

impl From<i32> for Json {
    fn from(value: i32) -> Json {
        Json::Number(value.into())
    }
}

impl From<Vec<Json>> for Json {
    fn from(items: Vec<Json>) -> Json {
        Json::Array(items)
    }
}

/// `None` becomes `null`.
impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Json {
        value.map_or(Json::Null, Into::into)
    }
}
