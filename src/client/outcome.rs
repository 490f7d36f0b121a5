//! Outcomes and verdicts: what a handler reports, and what a later caller is given.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use bytes::Bytes;

use crate::{json::Json, limits, proto::v1};

/// What came of an operation, in the caller's own protocol: replayed byte for byte to whoever comes again.
///
/// ```
/// use semel::client::Outcome;
///
/// let outcome = Outcome::new(201)
///     .content_type("application/json")
///     .header("location", "/v1/charges/ch_1")
///     .body(r#"{"id":"ch_1"}"#);
/// assert_eq!(outcome.status, 201);
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The status in the caller's protocol, e.g. an HTTP status.
    pub status: i32,
    /// At most 64, together at most 16 KiB. Names are kept in lower case; `content-type` has its own field.
    pub headers: BTreeMap<String, String>,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The bytes of the result. `None` only in a replay of an outcome that was too large to be kept.
    pub body: Option<Bytes>,
    /// From then on a replay is `stale`.
    pub valid_until: Option<SystemTime>,
    /// In a replay: `valid_until` has passed. Never so in what a handler reports.
    pub stale: bool,
    /// In a replay: when it was reported, in cluster time.
    pub completed_at: Option<SystemTime>,
}

impl Outcome {
    /// An outcome with an empty body.
    pub fn new(status: i32) -> Self {
        Self {
            status,
            headers: BTreeMap::new(),
            content_type: None,
            body: Some(Bytes::new()),
            valid_until: None,
            stale: false,
            completed_at: None,
        }
    }

    /// The same with this body.
    pub fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = Some(body.into().0);
        self
    }

    /// The same with this media type of the body.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// The same with this header more.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// The same, `stale` from this time on.
    pub fn valid_until(mut self, valid_until: SystemTime) -> Self {
        self.valid_until = Some(valid_until);
        self
    }

    /// Whether the service kept the body. Where it did not, the operation is done all the same and never runs again.
    pub fn is_stored(&self) -> bool {
        self.body.is_some()
    }

    pub(super) fn into_message(self) -> v1::Outcome {
        v1::Outcome {
            status: Some(self.status),
            headers: self.headers,
            content_type: self.content_type,
            body: self.body,
            valid_until: self.valid_until.map(Into::into),
            not_stored: false,
        }
    }

    pub(super) fn of_message(m: v1::Outcome) -> Self {
        let body = if m.not_stored { None } else { Some(m.body.unwrap_or_default()) };
        Self {
            status: m.status.unwrap_or_default(),
            headers: m.headers,
            content_type: m.content_type,
            body,
            valid_until: m.valid_until.and_then(system_time),
            stale: false,
            completed_at: None,
        }
    }
}

// A result is the caller's secret: logs and panics show its length alone.
impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.as_ref().map(Bytes::len))
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}

/// The bytes of an outcome's body, from whatever holds them.
#[derive(Clone, Default)]
pub struct Body(pub Bytes);

macro_rules! body_from {
    ($($From:ty: $value:ident => $bytes:expr;)*) => {
        $(impl From<$From> for Body {
            fn from($value: $From) -> Self {
                Body($bytes)
            }
        })*
    };
}

body_from! {
    Bytes: bytes => bytes;
    &Bytes: bytes => bytes.clone();
    Vec<u8>: bytes => bytes.into();
    &Vec<u8>: bytes => Bytes::copy_from_slice(bytes);
    &[u8]: bytes => Bytes::copy_from_slice(bytes);
    String: text => text.into();
    &String: text => Bytes::copy_from_slice(text.as_bytes());
    &str: text => Bytes::copy_from_slice(text.as_bytes());
    Json: value => value.to_text().into();
    &Json: value => value.to_text().into();
}

impl<const N: usize> From<&[u8; N]> for Body {
    fn from(bytes: &[u8; N]) -> Self {
        Body(Bytes::copy_from_slice(bytes))
    }
}

/// What the handler of [`Operation::run`](super::Operation::run) knows of its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The effect happened, with this outcome. An outcome may well be a failure of the caller's protocol: a card that
    /// was declined is declined for good.
    Completed(Outcome),
    /// No effect happened and none can happen any more, and this is how that is known. The key may be claimed again.
    ///
    /// A time-out is no such knowledge. Neither is a provider's "duplicate" or "conflict": it says that something
    /// happened *before*.
    NoEffect(String),
    /// The effect may have happened. The record becomes indeterminate, and nothing runs again until somebody has
    /// found out: see [`Reconciler`](super::Reconciler).
    Unknown(String),
}

impl Verdict {
    /// The effect happened, with this status and body.
    pub fn completed(status: i32, body: impl Into<Body>) -> Self {
        Verdict::Completed(Outcome::new(status).body(body))
    }

    /// No effect happened and none can happen any more; the error says how that is known.
    pub fn no_effect(evidence: impl fmt::Display) -> Self {
        Verdict::NoEffect(evidence.to_string())
    }

    /// The effect may have happened; the error says why that isn't known.
    pub fn unknown(reason: impl fmt::Display) -> Self {
        Verdict::Unknown(reason.to_string())
    }
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        Verdict::Completed(outcome)
    }
}

/// A text cut to what the service takes as a reason or evidence. Such texts come from errors, of any length: a report
/// must not be refused for that. One that says nothing stays so: evidence is never made up.
pub(super) fn statement(text: &str) -> String {
    let text = text.trim();
    let end = (0..=text.len().min(limits::STATEMENT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.expect("0 is a boundary")].to_owned()
}

/// The time of a message, where this system can tell it.
pub(super) fn system_time(time: prost_types::Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_cut_at_a_character() {
        assert_eq!(statement("  "), "");
        assert_eq!(statement("timed out"), "timed out");
        let long = statement(&"é".repeat(1000));
        assert_eq!(long.len(), limits::STATEMENT_BYTES_MAX);
        let odd = statement(&format!("x{}", "é".repeat(1000)));
        assert_eq!(odd.len(), limits::STATEMENT_BYTES_MAX - 1);
    }

    #[test]
    fn outcomes_survive_the_wire() {
        let outcome = Outcome::new(201).body(b"\x00\xff").content_type("image/png").header("etag", "\"1\"");
        assert_eq!(Outcome::of_message(outcome.clone().into_message()), outcome);
        let kept_without_body = v1::Outcome { status: Some(200), not_stored: true, ..v1::Outcome::default() };
        assert!(!Outcome::of_message(kept_without_body).is_stored());
        assert_eq!(Outcome::of_message(Outcome::new(204).into_message()).body, Some(Bytes::new()));
    }

    #[test]
    fn debug_shows_no_content() {
        let shown = format!("{:?}", Outcome::new(200).body("4242 4242").header("x", "secret"));
        assert!(!shown.contains("4242") && !shown.contains("secret"), "{shown}");
    }
}
