//! What a request is to the store: the operation it belongs to, and the fingerprint that tells a retry from another
//! intent.

use http::{HeaderMap, Method, Uri, header};
use sha2::{Digest as _, Sha256};

use super::{multipart, route::Route};
use crate::{
    fingerprint::{Body, Fingerprint, HttpRequest, Ignore},
    id::hex,
    json::Json,
    limits,
};

/// The operation of requests of this method and path, where their route names none: `METHOD /path`, as received. A path that
/// is too long, or has bytes that no operation has, is cut and told by its digest. So another path is another record.
pub fn operation(method: &Method, path: &str) -> String {
    let whole = format!("{method} {path}");
    if whole.len() <= limits::OPERATION_BYTES_MAX && whole.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
        return whole;
    }
    let shown: String = path
        .bytes()
        .take(limits::DOOR_OPERATION_PATH_BYTES)
        .map(|byte| if (0x20..=0x7e).contains(&byte) { char::from(byte) } else { '?' })
        .collect();
    let digest = hex(&Sha256::digest(path)[..16]);
    format!("{method} {shown}~{digest}")
}

/// The fingerprint of a request of this route.
pub fn fingerprint(route: &Route, method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Fingerprint {
    let mut request = HttpRequest::new(method.as_str(), uri.path());
    if let Some(query) = uri.query() {
        request = request.query(query);
    }
    for name in &route.fingerprint_headers {
        request = request.header(name.as_str(), headers.get_all(name));
    }
    Fingerprint::http(&request, &body_form(headers, &route.fingerprint_without, body))
}

/// Whether a body is read as JSON for its fingerprint, which takes many times its size in memory.
pub fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| {
        !is_encoded(headers)
            && (kind == "application/json" || kind.rsplit_once('+').is_some_and(|(_, form)| form == "json"))
    })
}

fn body_form(headers: &HeaderMap, without: &Ignore, body: &[u8]) -> Body {
    if is_json(headers) {
        let form = Json::parse(body).ok().and_then(|json| Body::json_without(&json, without).ok());
        return form.unwrap_or_else(|| Body::raw(body));
    }
    let is_multipart = media_type(headers).is_some_and(|kind| kind.starts_with("multipart/")) && !is_encoded(headers);
    let content_type = headers.get(header::CONTENT_TYPE).filter(|_| is_multipart);
    match content_type.and_then(|content_type| multipart::parts(content_type.as_bytes(), body)) {
        Some(parts) => Body::multipart(&parts.iter().map(multipart::Part::hashed).collect::<Vec<_>>()),
        None => Body::raw(body),
    }
}

/// The media type without its parameters, in lower case; none where there isn't exactly one.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let mut lines = headers.get_all(header::CONTENT_TYPE).iter();
    let line = lines.next().filter(|_| lines.next().is_none())?.to_str().ok()?;
    Some(line.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn is_encoded(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_ENCODING)
}

#[cfg(test)]
mod tests;
