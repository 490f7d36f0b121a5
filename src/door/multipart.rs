//! The parts of a multipart body (RFC 7578), for its fingerprint: whatever the boundary is, the same parts are the same.
//!
//! Whatever isn't plain is no multipart body here, and is then hashed as it came: a retry of such a body is a retry only
//! with the same boundary, which errs on the side where nothing is mistaken for a retry.

use sha2::{Digest as _, Sha256};

use crate::{fingerprint, limits};

/// One part: what its headers say, byte for byte, and the digest of its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    name: Option<Vec<u8>>,
    filename: Option<Vec<u8>>,
    content_type: Option<Vec<u8>>,
    digest: [u8; 32],
}

impl Part {
    /// As the fingerprint takes it.
    pub fn hashed(&self) -> fingerprint::Part<'_> {
        let mut part = fingerprint::Part::of_digest(self.digest);
        if let Some(name) = &self.name {
            part = part.name(name);
        }
        if let Some(filename) = &self.filename {
            part = part.filename(filename);
        }
        if let Some(content_type) = &self.content_type {
            part = part.content_type(content_type);
        }
        part
    }
}

/// The parts of a body with this Content-Type, in order; none where it isn't plainly multipart.
pub fn parts(content_type: &[u8], body: &[u8]) -> Option<Vec<Part>> {
    let boundary = boundary(content_type)?;
    let mut rest = after_first_delimiter(body, &boundary)?;
    let mut parts = Vec::new();
    loop {
        let (end, after) = next_delimiter(rest, &boundary)?;
        if parts.len() == limits::DOOR_PARTS_MAX {
            return None;
        }
        parts.push(part(&rest[..end])?);
        match after {
            After::Part(next) => rest = next,
            After::End(epilogue) => return epilogue.is_empty().then_some(parts),
        }
    }
}

fn boundary(content_type: &[u8]) -> Option<Vec<u8>> {
    let at = content_type.iter().position(|byte| *byte == b';')?;
    let params = params(&content_type[at..])?;
    let mut found = params.into_iter().filter(|(name, _)| name == "boundary").map(|(_, value)| value);
    let boundary = found.next().filter(|boundary| (1..=limits::DOOR_BOUNDARY_BYTES_MAX).contains(&boundary.len()))?;
    found.next().is_none().then_some(boundary)
}

/// What follows the first delimiter, which must be the first thing there is.
fn after_first_delimiter<'a>(body: &'a [u8], boundary: &[u8]) -> Option<&'a [u8]> {
    let rest = body.strip_prefix(b"--")?.strip_prefix(boundary)?;
    padding(rest).strip_prefix(b"\r\n")
}

enum After<'a> {
    Part(&'a [u8]),
    End(&'a [u8]),
}

/// Where the next delimiter begins, and what follows it.
fn next_delimiter<'a>(bytes: &'a [u8], boundary: &[u8]) -> Option<(usize, After<'a>)> {
    let mut from = 0;
    loop {
        let at = from + bytes[from..].iter().position(|byte| *byte == b'\r')?;
        from = at + 1;
        let Some(rest) = bytes[at..].strip_prefix(b"\r\n--").and_then(|rest| rest.strip_prefix(boundary)) else {
            continue;
        };
        if let Some(rest) = rest.strip_prefix(b"--") {
            let rest = padding(rest);
            return Some((at, After::End(rest.strip_prefix(b"\r\n").unwrap_or(rest))));
        }
        // A longer line that only begins like a delimiter is content.
        if let Some(rest) = padding(rest).strip_prefix(b"\r\n") {
            return Some((at, After::Part(rest)));
        }
    }
}

fn padding(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    bytes
}

fn part(bytes: &[u8]) -> Option<Part> {
    let mut part = Part::default();
    let mut rest = bytes;
    let mut disposed = false;
    loop {
        if let Some(content) = rest.strip_prefix(b"\r\n") {
            part.digest = Sha256::digest(content).into();
            return Some(part);
        }
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &rest[..end];
        rest = &rest[end + 2..];
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (line[..colon].to_ascii_lowercase(), trim(&line[colon + 1..]));
        match name.as_slice() {
            b"content-disposition" if !disposed => {
                disposed = true;
                let kind = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
                for (name, param) in params(&value[kind..])? {
                    let place = match name.as_str() {
                        "name" => &mut part.name,
                        "filename" => &mut part.filename,
                        // Another parameter would be left out of the fingerprint.
                        _ => return None,
                    };
                    if place.replace(param).is_some() {
                        return None;
                    }
                }
            }
            b"content-type" if part.content_type.is_none() => part.content_type = Some(value.to_vec()),
            // Says nothing that the content doesn't.
            b"content-length" => {}
            _ => return None,
        }
    }
}

/// The parameters that follow: `; name=value; name="value"`, names in lower case, values without their quotes.
fn params(mut bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    loop {
        bytes = trim(bytes);
        if bytes.is_empty() {
            return Some(found);
        }
        bytes = trim(bytes.strip_prefix(b";")?);
        if bytes.is_empty() {
            return Some(found);
        }
        let equals = bytes.iter().position(|byte| *byte == b'=')?;
        let name = String::from_utf8(trim(&bytes[..equals]).to_ascii_lowercase()).ok()?;
        bytes = padding(&bytes[equals + 1..]);
        let value = match bytes.strip_prefix(b"\"") {
            Some(quoted) => {
                let (value, rest) = unquoted(quoted)?;
                bytes = rest;
                value
            }
            None => {
                let end = bytes.iter().position(|byte| *byte == b';').unwrap_or(bytes.len());
                let value = trim(&bytes[..end]).to_vec();
                bytes = &bytes[end..];
                value
            }
        };
        found.push((name, value));
    }
}

fn unquoted(quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::new();
    let mut at = 0;
    loop {
        match quoted.get(at)? {
            b'"' => return Some((value, &quoted[at + 1..])),
            // Browsers send a backslash of a filename as it is: only what must be escaped is taken as escaped.
            b'\\' if matches!(quoted.get(at + 1), Some(b'"' | b'\\')) => {
                value.push(quoted[at + 1]);
                at += 2;
            }
            byte => {
                value.push(*byte);
                at += 1;
            }
        }
    }
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests;
