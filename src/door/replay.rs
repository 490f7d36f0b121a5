//! From an upstream's answer to an outcome, and back to an answer.
//!
//! What is recorded of a head is a list of allowed fields and what the route adds. Never recorded: cookies, which are one
//! caller's; credentials' challenges; counters of rates; the date; whatever is of one connection.

use std::{collections::BTreeMap, time::SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    body::{self, Body},
    grpc,
};
use crate::{client::Outcome, limits};

/// Says that an answer was given before.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Says when.
pub const COMPLETED_AT: HeaderName = HeaderName::from_static("semel-completed-at");
/// What begins so is the door's own: clients can't send it, and of outcomes it is what no caller is shown.
pub const OWN_PREFIX: &str = "semel-";

const ALWAYS: [&str; 20] = [
    "accept-patch",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "deprecation",
    "etag",
    "expires",
    "grpc-encoding",
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    "last-modified",
    "link",
    "location",
    "sunset",
    "warning",
];
/// These speak to one web origin, and are replayed to the same alone.
const OF_ORIGIN: [&str; 4] =
    ["access-control-allow-credentials", "access-control-allow-origin", "access-control-expose-headers", "vary"];
const NEVER: [&str; 19] = [
    "age",
    "connection",
    "content-length",
    "content-type",
    "date",
    "idempotent-replayed",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-connection",
    "set-cookie",
    "set-cookie2",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
    "authentication-info",
];
/// The origin that the first caller's request came from.
const ORIGIN: &str = "semel-origin";
/// Beside an empty body: the answer had one that isn't kept.
const NOT_STORED: &str = "semel-not-stored";
/// What begins so came behind the body.
const TRAILER_PREFIX: &str = "semel-trailer-";

/// Whether a field can be recorded, if a route says so.
pub fn is_recordable(name: &HeaderName) -> bool {
    !NEVER.contains(&name.as_str()) && !name.as_str().starts_with(OWN_PREFIX)
}

/// What of an answer is recorded.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    /// Fields beyond those that always are.
    pub more: Vec<HeaderName>,
    /// Where the request came from.
    pub origin: Option<HeaderValue>,
}

impl Recording {
    /// The outcome of an answer with this body; without one, its replay says that it isn't kept.
    pub fn outcome(&self, head: &response::Parts, body: Option<Bytes>, trailers: Option<&HeaderMap>) -> Outcome {
        let status = i32::from(head.status.as_u16());
        let whole = body.and_then(|body| Some(self.fields(head, trailers)?.body(body)));
        whole.unwrap_or_else(|| Outcome::new(status).header(NOT_STORED, "true"))
    }

    /// Status and fields; none where they are more than an outcome holds, or no text.
    fn fields(&self, head: &response::Parts, trailers: Option<&HeaderMap>) -> Option<Outcome> {
        let mut fields = BTreeMap::new();
        let always = ALWAYS.iter().chain(&OF_ORIGIN).map(|name| HeaderName::from_static(name));
        for name in always.chain(self.more.iter().filter(|name| is_recordable(name)).cloned()) {
            if let Some(value) = joined(&head.headers, &name)? {
                fields.insert(name.as_str().to_owned(), value);
            }
        }
        // Of gRPC the status stands behind the body; of everything else a replay ends with its body.
        let trailers = trailers.filter(|_| grpc::is_grpc(&head.headers));
        for name in trailers.into_iter().flat_map(HeaderMap::keys) {
            let value = joined(trailers?, name)?;
            fields.insert(format!("{TRAILER_PREFIX}{name}"), value.unwrap_or_default());
        }
        if let Some(origin) = &self.origin {
            fields.insert(ORIGIN.to_owned(), text(origin)?);
        }
        let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        if fields.len() > limits::OUTCOME_HEADERS_MAX || bytes > limits::OUTCOME_HEADER_BYTES_MAX {
            return None;
        }
        let mut outcome = Outcome::new(i32::from(head.status.as_u16()));
        outcome.headers = fields;
        if let Some(content_type) = joined(&head.headers, &header::CONTENT_TYPE)? {
            if content_type.len() > limits::CONTENT_TYPE_BYTES_MAX {
                return None;
            }
            outcome.content_type = Some(content_type);
        }
        Some(outcome)
    }
}

/// All lines of a field as one, none where there are none. Not even that where one is no text.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Option<String>> {
    let lines: Option<Vec<String>> = headers.get_all(name).iter().map(text).collect();
    let lines = lines?;
    Some((!lines.is_empty()).then(|| lines.join(", ")))
}

fn text(value: &HeaderValue) -> Option<String> {
    let text = std::str::from_utf8(value.as_bytes()).ok()?.replace('\t', " ");
    (!text.chars().any(char::is_control)).then_some(text)
}

/// The fields of an outcome whose body isn't kept.
pub(super) fn not_stored() -> BTreeMap<String, String> {
    BTreeMap::from([(NOT_STORED.to_owned(), "true".to_owned())])
}

/// Whether the body of this outcome was kept.
pub(super) fn is_stored(outcome: &Outcome) -> bool {
    outcome.is_stored() && !outcome.headers.contains_key(NOT_STORED)
}

/// The answer once more, for a request of this origin. None where the outcome is of no HTTP.
pub(super) fn replay(outcome: &Outcome, origin: Option<&HeaderValue>) -> Option<Response<Body>> {
    let status = u16::try_from(outcome.status).ok().and_then(|status| StatusCode::from_u16(status).ok())?;
    if status.is_informational() {
        return None;
    }
    let body = outcome.body.clone()?;
    let same_origin = outcome.headers.get(ORIGIN).map(String::as_bytes) == origin.map(HeaderValue::as_bytes);
    let (mut headers, mut trailers) = (HeaderMap::new(), HeaderMap::new());
    for (name, value) in &outcome.headers {
        let (into, name) = match name.strip_prefix(TRAILER_PREFIX) {
            Some(name) => (&mut trailers, name),
            None if name.starts_with(OWN_PREFIX) || (!same_origin && OF_ORIGIN.contains(&name.as_str())) => continue,
            None => (&mut headers, name.as_str()),
        };
        into.insert(name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?);
    }
    if let Some(content_type) = &outcome.content_type {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(content_type).ok()?);
    }
    headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    if let Some(at) = outcome.completed_at.and_then(rfc3339) {
        headers.insert(COMPLETED_AT, at);
    }
    let no_length = status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
    let body = if no_length { body::empty() } else { whole(body, (!trailers.is_empty()).then_some(trailers)) };
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    Some(response)
}

/// A body that is known whole, and what comes behind it.
pub(super) fn whole(body: Bytes, trailers: Option<HeaderMap>) -> Body {
    let Some(trailers) = trailers else { return body::full(body) };
    let frames = [Frame::data(body), Frame::trailers(trailers)].map(Ok::<_, body::BoxError>);
    body::boxed(StreamBody::new(tokio_stream::iter(frames)))
}

/// RFC 3339 with three digits of the second, in UTC.
fn rfc3339(at: SystemTime) -> Option<HeaderValue> {
    let at = OffsetDateTime::from(at);
    // The format leaves out a fraction that is 0, and trailing zeros.
    let seconds = at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()?;
    HeaderValue::from_str(&format!("{}.{:03}Z", seconds.strip_suffix('Z')?, at.millisecond())).ok()
}

#[cfg(test)]
mod tests;
