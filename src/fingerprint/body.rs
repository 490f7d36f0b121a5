//! The four forms of scheme 1, as bytes go into the hash.

use sha2::{Digest as _, Sha256};

use super::{Error, Fingerprint, Ignore, SCHEME, canonical, canonical_without};
use crate::json::Json;

const DOMAIN: &[u8] = b"semel-fp";
/// Scheme 1, as the hash has it.
const SCHEME_BYTE: u8 = 0x01;
/// The length of what is absent, which no present value can have.
const ABSENT: u32 = u32::MAX;

/// What kind of content a digest is of. It is hashed too: JSON and the same bytes raw are two intents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// The canonical text of a JSON value.
    Json,
    /// Bytes as they are.
    Raw,
    /// The parts of a multipart body.
    Multipart,
    /// A whole HTTP request: method, path, query, chosen headers, and a body of one of the other forms.
    Http,
}

impl Form {
    /// The letter that is hashed.
    pub fn letter(self) -> u8 {
        match self {
            Form::Json => b'j',
            Form::Raw => b'r',
            Form::Multipart => b'm',
            Form::Http => b'h',
        }
    }
}

/// A digest and the form it is of: a fingerprint by itself, or what an [`HttpRequest`] carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body {
    form: Form,
    digest: [u8; 32],
}

impl Body {
    /// A digest that was computed elsewhere.
    pub fn new(form: Form, digest: [u8; 32]) -> Body {
        Body { form, digest }
    }

    /// A JSON value.
    pub fn json(value: &Json) -> Result<Body, Error> {
        Ok(Body::of_canonical(&canonical(value)?))
    }

    /// A JSON value without the parts that `ignore` names.
    pub fn json_without(value: &Json, ignore: &Ignore) -> Result<Body, Error> {
        Ok(Body::of_canonical(&canonical_without(value, ignore)?))
    }

    /// Bytes as they are.
    pub fn raw(bytes: &[u8]) -> Body {
        let mut hash = start(Form::Raw);
        hash.update(bytes);
        Body { form: Form::Raw, digest: hash.finalize().into() }
    }

    /// Parts, in order.
    pub fn multipart(parts: &[Part<'_>]) -> Body {
        let mut hash = start(Form::Multipart);
        for part in parts {
            add(&mut hash, part.name);
            add(&mut hash, part.filename);
            add(&mut hash, part.content_type);
            hash.update(part.content_digest);
        }
        Body { form: Form::Multipart, digest: hash.finalize().into() }
    }

    /// The form.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The digest.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    fn of_canonical(text: &str) -> Body {
        let mut hash = start(Form::Json);
        hash.update(text);
        Body { form: Form::Json, digest: hash.finalize().into() }
    }
}

impl From<Body> for Fingerprint {
    fn from(body: Body) -> Fingerprint {
        Fingerprint::new(SCHEME, body.digest)
    }
}

/// One part of a multipart body: what its headers say, byte for byte, and what its content hashes to.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    name: Option<&'a [u8]>,
    filename: Option<&'a [u8]>,
    content_type: Option<&'a [u8]>,
    content_digest: [u8; 32],
}

impl<'a> Part<'a> {
    /// A part of this content, without name, filename and content type.
    pub fn new(content: &[u8]) -> Part<'a> {
        Part::of_digest(Sha256::digest(content).into())
    }

    /// A part whose content has this SHA-256: for content that was hashed while it streamed by.
    pub fn of_digest(content_digest: [u8; 32]) -> Part<'a> {
        Part { name: None, filename: None, content_type: None, content_digest }
    }

    /// With the `name` of its Content-Disposition.
    pub fn name(self, name: &'a (impl AsRef<[u8]> + ?Sized)) -> Part<'a> {
        Part { name: Some(name.as_ref()), ..self }
    }

    /// With the `filename` of its Content-Disposition.
    pub fn filename(self, filename: &'a (impl AsRef<[u8]> + ?Sized)) -> Part<'a> {
        Part { filename: Some(filename.as_ref()), ..self }
    }

    /// With its Content-Type.
    pub fn content_type(self, content_type: &'a (impl AsRef<[u8]> + ?Sized)) -> Part<'a> {
        Part { content_type: Some(content_type.as_ref()), ..self }
    }
}

/// What of an HTTP request counts besides its body. Path and query as received: nothing is decoded or normalized.
#[derive(Debug, Clone)]
pub struct HttpRequest<'a> {
    method: &'a [u8],
    path: &'a [u8],
    query: Option<&'a [u8]>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl<'a> HttpRequest<'a> {
    /// A request without query and chosen headers.
    pub fn new(method: &'a (impl AsRef<[u8]> + ?Sized), path: &'a (impl AsRef<[u8]> + ?Sized)) -> HttpRequest<'a> {
        HttpRequest { method: method.as_ref(), path: path.as_ref(), query: None, headers: Vec::new() }
    }

    /// With what follows the `?`. A path with a bare `?` has an empty query, which isn't no query.
    pub fn query(self, query: &'a (impl AsRef<[u8]> + ?Sized)) -> HttpRequest<'a> {
        HttpRequest { query: Some(query.as_ref()), ..self }
    }

    /// With one more chosen header and all its lines in order; with no lines it counts as absent, which is hashed too.
    /// The order in which headers are chosen counts: keep it fixed, as a list of the configuration does.
    pub fn header<L: AsRef<[u8]>>(mut self, name: &str, lines: impl IntoIterator<Item = L>) -> HttpRequest<'a> {
        let mut value: Option<Vec<u8>> = None;
        for line in lines {
            match &mut value {
                None => value = Some(line.as_ref().to_vec()),
                Some(joined) => {
                    joined.extend_from_slice(b", ");
                    joined.extend_from_slice(line.as_ref());
                }
            }
        }
        self.headers.push((name.to_ascii_lowercase(), value));
        self
    }

    pub(super) fn body(&self, body: &Body) -> Body {
        let mut hash = start(Form::Http);
        add(&mut hash, Some(self.method));
        add(&mut hash, Some(self.path));
        add(&mut hash, self.query);
        hash.update(length(self.headers.len()));
        for (name, value) in &self.headers {
            add(&mut hash, Some(name.as_bytes()));
            add(&mut hash, value.as_deref());
        }
        hash.update([body.form.letter()]);
        hash.update(body.digest);
        Body { form: Form::Http, digest: hash.finalize().into() }
    }
}

fn start(form: Form) -> Sha256 {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    hash.update([SCHEME_BYTE, form.letter()]);
    hash
}

/// Adds a value that may be absent, so that neighbours never run into each other.
fn add(hash: &mut Sha256, value: Option<&[u8]>) {
    match value {
        None => hash.update(ABSENT.to_be_bytes()),
        Some(bytes) => {
            hash.update(length(bytes.len()));
            hash.update(bytes);
        }
    }
}

fn length(bytes: usize) -> [u8; 4] {
    let length = u32::try_from(bytes).ok().filter(|length| *length != ABSENT);
    length.expect("no request holds a name, path, query or header of 4 GiB").to_be_bytes()
}
