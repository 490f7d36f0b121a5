//! Routes: what of a request is looked at, by method and path.

use std::{fmt, time::Duration};

use http::{HeaderName, Method};

use crate::{fingerprint::Ignore, limits};

/// The field that carries a key where a route names no other.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyRule {
    /// Without one it is refused.
    Required,
    /// Without one it passes unprotected.
    #[default]
    Optional,
    /// A key is not looked at.
    Ignore,
}

/// How requests of one method and path are taken.
#[derive(Clone, Debug)]
pub struct Route {
    /// What it matches; none: everything that no other route matches.
    pub pattern: Option<Pattern>,
    /// The operation of its records; none: method and path as received.
    pub operation: Option<String>,
    /// Whether a key is needed.
    pub key: KeyRule,
    /// The fields that may carry the key.
    pub key_headers: Vec<HeaderName>,
    /// Fields that tell a retry from another intent, in this order.
    pub fingerprint_headers: Vec<HeaderName>,
    /// Parts of a JSON body that don't.
    pub fingerprint_without: Ignore,
    /// Statuses of the upstream that mean that nothing happened.
    pub release: Vec<u16>,
    /// How long a record is owned before it is renewed; none: the policy's.
    pub lease: Option<Duration>,
    /// How long an answer is replayed; none: the policy's.
    pub replay: Option<Duration>,
    /// How long the key can't run again; none: the policy's.
    pub evidence: Option<Duration>,
    /// How long the upstream may take.
    pub upstream_timeout: Duration,
    /// Fields of the upstream's answer that are replayed beyond those that always are.
    pub record_headers: Vec<HeaderName>,
    /// Largest body of a request with a key, bytes.
    pub body_bytes_max: usize,
    /// The longest that a caller may wait for another one.
    pub wait_max: Duration,
    /// The status that says that a key's time is over.
    pub expired_status: u16,
}

impl Default for Route {
    fn default() -> Self {
        Self {
            pattern: None,
            operation: None,
            key: KeyRule::Optional,
            key_headers: vec![IDEMPOTENCY_KEY],
            fingerprint_headers: Vec::new(),
            fingerprint_without: Ignore::default(),
            release: Vec::new(),
            lease: None,
            replay: None,
            evidence: None,
            upstream_timeout: Duration::from_secs(limits::DOOR_UPSTREAM_TIMEOUT_S_DEFAULT),
            record_headers: Vec::new(),
            body_bytes_max: limits::DOOR_BODY_BYTES_MAX_DEFAULT,
            wait_max: Duration::from_millis(limits::DOOR_WAIT_MS_MAX_DEFAULT.into()),
            expired_status: 410,
        }
    }
}

impl Route {
    /// Whether keys are looked at in requests of this method: in POST and PATCH, and where the route names the method.
    pub fn applies_to(&self, method: &Method) -> bool {
        self.key != KeyRule::Ignore && (self.pattern.is_some() || *method == Method::POST || *method == Method::PATCH)
    }
}

/// All routes of a door.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    routes: Vec<Route>,
    otherwise: Route,
}

impl Routes {
    /// These, the first that matches first; and what holds for everything else.
    pub fn new(routes: Vec<Route>, otherwise: Route) -> Self {
        Self { routes, otherwise }
    }

    /// The route of a request.
    pub fn find(&self, method: &Method, path: &str) -> &Route {
        let matches = |route: &&Route| route.pattern.as_ref().is_some_and(|pattern| pattern.matches(method, path));
        self.routes.iter().find(matches).unwrap_or(&self.otherwise)
    }
}

/// A method and a path, some of whose segments may be anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    method: Method,
    segments: Vec<Segment>,
    /// Whether anything may follow.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Is(String),
    /// Anything but nothing.
    Any,
}

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}; a route matches METHOD and path, like \"POST /orders/{{id}}\", and \"/{{*rest}}\" at the end is any rest"
)]
pub struct PatternError(&'static str);

impl Pattern {
    /// Reads `METHOD /path/{anything}/{*rest}`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let (method, path) = text.split_once(' ').ok_or(PatternError("there is no path after the method"))?;
        let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        if !is_method || method.len() > limits::DOOR_METHOD_BYTES_MAX || method == "CONNECT" {
            return Err(PatternError("it does not begin with a method"));
        }
        let method = method.parse().map_err(|_| PatternError("it does not begin with a method"))?;
        let path = path.strip_prefix('/').ok_or(PatternError("the path does not begin with /"))?;
        if path.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'?' || byte == b'#') {
            return Err(PatternError("the path has a character that no path has"));
        }
        let (mut segments, mut open) = (Vec::new(), false);
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            let name = part.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            match name {
                Some(name) if name.starts_with('*') => {
                    if parts.peek().is_some() {
                        return Err(PatternError("{*…} can only be the end"));
                    }
                    open = true;
                }
                Some(name) if !name.is_empty() && !name.contains(['{', '}']) => segments.push(Segment::Any),
                None if !part.contains(['{', '}']) => segments.push(Segment::Is(part.to_owned())),
                _ => return Err(PatternError("a {…} must be a whole segment and have a name")),
            }
        }
        Ok(Self { method, segments, open })
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// Whether it matches. The path as received: nothing is decoded, and `/a/` is another path than `/a`.
    pub fn matches(&self, method: &Method, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/').filter(|_| *method == self.method) else { return false };
        let mut parts = path.split('/');
        let begins = self.segments.iter().all(|segment| match (segment, parts.next()) {
            (Segment::Is(wanted), Some(part)) => wanted == part,
            (Segment::Any, Some(part)) => !part.is_empty(),
            (_, None) => false,
        });
        begins && parts.next().is_some() == self.open
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.method)?;
        for segment in &self.segments {
            match segment {
                Segment::Is(part) => write!(f, "/{part}")?,
                Segment::Any => write!(f, "/{{}}")?,
            }
        }
        if self.open { write!(f, "/{{*}}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
