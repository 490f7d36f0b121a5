//! The configuration of a proxy: one TOML file, checked whole before anything starts.

use std::{
    fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use http::HeaderName;
use serde::Deserialize;
use toml::Spanned;

use super::{
    connect::Protocol,
    replay,
    route::{KeyRule, Pattern, Route, Routes},
    who::{Source, Sources},
};
use crate::{
    fingerprint::Ignore,
    id::{Operation, Principal, Tenant},
    limits,
    tls::{Asked, TlsFiles},
};

/// Everything that a proxy can be told in its file.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose requests are.
    pub who: Sources,
    /// Who is asked whether a request may pass.
    pub auth_url: Option<String>,
    /// What requests go to the service in; those of gRPC, in HTTP/2 always.
    pub upstream: Protocol,
    /// Largest answer whose body is recorded, bytes.
    pub outcome_bytes_max: usize,
    /// What stands before a problem's name in its `type`.
    pub problem_base: Option<String>,
    /// The certificates of the door's own port; none: it isn't encrypted.
    pub tls: Option<TlsFiles>,
    /// How long what runs may go on after a signal to end.
    pub drain_timeout: Duration,
    /// The routes.
    pub routes: Routes,
}

impl Default for Config {
    fn default() -> Self {
        Table::default().check().expect("the defaults keep their own rules")
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Larger than any configuration.
    #[error("{}: larger than {} bytes", path.display(), limits::DOOR_CONFIG_BYTES_MAX)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("{place}: {reason}")]
    Shape {
        /// File and line.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A value that breaks its rule.
    #[error("{place}: `{key}` {reason}")]
    Value {
        /// File and line.
        place: String,
        /// The key.
        key: &'static str,
        /// What it must be.
        reason: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], with file, line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(unreadable)?.len() > limits::DOOR_CONFIG_BYTES_MAX {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        Self::parse(path, &fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Reads this text of a file of that name.
    ///
    /// # Errors
    /// [`ConfigError`], with file, line and key.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let place = |offset: usize| {
            let line = text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1;
            format!("{}, line {line}", path.display())
        };
        let file: File = toml::from_str(text).map_err(|error| ConfigError::Shape {
            place: place(error.span().map_or(0, |span| span.start)),
            reason: error.message().replace('\n', " "),
        })?;
        file.proxy.check().map_err(|Wrong { at, key, reason }| ConfigError::Value { place: place(at), key, reason })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    proxy: Table,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    tenant: Option<Spanned<Named>>,
    principal: Option<Spanned<Named>>,
    auth_url: Option<Spanned<String>>,
    upstream_http2: bool,
    outcome_bytes_max: Option<Spanned<u64>>,
    body_bytes_max: Option<Spanned<u64>>,
    wait_ms_max: Option<Spanned<u64>>,
    problem_base: Option<Spanned<String>>,
    drain_timeout_s: Option<Spanned<u64>>,
    tls: Option<Spanned<TlsTable>>,
    route: Vec<Spanned<RouteTable>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Named {
    fixed: Option<String>,
    header: Option<String>,
    jwt_claim: Option<String>,
    client_certificate: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsTable {
    cert: PathBuf,
    key: PathBuf,
    ca: Option<PathBuf>,
    crl: Option<PathBuf>,
    client_certificate: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteTable {
    r#match: Spanned<String>,
    operation: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    key_headers: Option<Spanned<Vec<String>>>,
    fingerprint_headers: Option<Spanned<Vec<String>>>,
    fingerprint_without: Option<Spanned<Vec<String>>>,
    release: Option<Spanned<Vec<u16>>>,
    lease_s: Option<Spanned<u64>>,
    replay_s: Option<Spanned<u64>>,
    evidence_s: Option<Spanned<u64>>,
    upstream_timeout_s: Option<Spanned<u64>>,
    record_headers: Option<Spanned<Vec<String>>>,
    body_bytes_max: Option<Spanned<u64>>,
    wait_ms_max: Option<Spanned<u64>>,
    expired_status: Option<Spanned<u16>>,
}

/// What breaks its rule, and where.
#[derive(Debug)]
struct Wrong {
    at: usize,
    key: &'static str,
    reason: String,
}

fn wrong<T>(value: &Spanned<T>, key: &'static str, reason: impl ToString) -> Wrong {
    Wrong { at: value.span().start, key, reason: reason.to_string() }
}

fn within(key: &'static str, value: Option<&Spanned<u64>>, range: RangeInclusive<u64>) -> Result<Option<u64>, Wrong> {
    let Some(value) = value else { return Ok(None) };
    if range.contains(value.get_ref()) {
        return Ok(Some(*value.get_ref()));
    }
    Err(wrong(value, key, format!("must be from {} to {}", range.start(), range.end())))
}

fn seconds(key: &'static str, value: Option<&Spanned<u64>>, most: u64) -> Result<Option<Duration>, Wrong> {
    Ok(within(key, value, 1..=most)?.map(Duration::from_secs))
}

/// Numbers that fit every machine's usize: the limits are far below.
fn size(key: &'static str, value: Option<&Spanned<u64>>, most: u64) -> Result<Option<usize>, Wrong> {
    Ok(within(key, value, 1..=most)?.and_then(|value| usize::try_from(value).ok()))
}

impl Table {
    fn check(self) -> Result<Config, Wrong> {
        let otherwise = Route::default();
        let body = size("body_bytes_max", self.body_bytes_max.as_ref(), limits::DOOR_BODY_BYTES_LIMIT)?;
        let wait = within("wait_ms_max", self.wait_ms_max.as_ref(), 0..=limits::WAIT_MS_LIMIT.into())?;
        let otherwise = Route {
            body_bytes_max: body.unwrap_or(otherwise.body_bytes_max),
            wait_max: wait.map_or(otherwise.wait_max, Duration::from_millis),
            ..otherwise
        };
        let outcome = size("outcome_bytes_max", self.outcome_bytes_max.as_ref(), limits::OUTCOME_BYTES_MAX.into())?;
        let drain = seconds("drain_timeout_s", self.drain_timeout_s.as_ref(), limits::DOOR_TIME_S_LIMIT)?;
        let is_authorized = self.auth_url.is_some();
        let tenant = self.tenant.as_ref().map(|named| source("tenant", named, is_authorized)).transpose()?;
        if let (Some(named), Some(Source::Fixed(name))) = (&self.tenant, &tenant)
            && let Err(error) = Tenant::parse(name)
        {
            return Err(wrong(named, "tenant", error));
        }
        let principal = self.principal.as_ref().map(|named| source("principal", named, is_authorized)).transpose()?;
        if let (Some(named), Some(Source::Fixed(name))) = (&self.principal, &principal)
            && let Err(error) = Principal::parse(name)
        {
            return Err(wrong(named, "principal", error));
        }
        let tls = self.tls.as_ref().map(|tls| tls.get_ref().check()).transpose()?;
        let shows_certificates = tls.as_ref().is_some_and(|files: &TlsFiles| files.ca.is_some());
        for (key, named, found) in
            [("tenant", &self.tenant, tenant.as_ref()), ("principal", &self.principal, principal.as_ref())]
        {
            if let (Some(named), Some(Source::ClientCertificate)) = (named, found)
                && !shows_certificates
            {
                return Err(wrong(
                    named,
                    key,
                    "is read from a certificate, and nobody is asked for one: name [proxy.tls] `ca`",
                ));
            }
        }
        if let Some(route) = self.route.get(limits::DOOR_ROUTES_MAX) {
            return Err(wrong(route, "route", format!("is there more than {} times", limits::DOOR_ROUTES_MAX)));
        }
        let mut routes: Vec<Route> = Vec::new();
        for table in &self.route {
            let route = table.get_ref().check(&otherwise)?;
            if routes.iter().any(|before| before.pattern == route.pattern) {
                return Err(wrong(&table.get_ref().r#match, "match", "is that of a route before, which matches first"));
            }
            routes.push(route);
        }
        Ok(Config {
            who: Sources { tenant: tenant.unwrap_or(Sources::default().tenant), principal },
            auth_url: self.auth_url.map(Spanned::into_inner),
            upstream: if self.upstream_http2 { Protocol::Http2 } else { Protocol::Http1 },
            outcome_bytes_max: outcome.unwrap_or(limits::DOOR_OUTCOME_BYTES_MAX_DEFAULT),
            problem_base: self.problem_base.map(Spanned::into_inner),
            tls,
            drain_timeout: drain.unwrap_or(Duration::from_secs(limits::DOOR_DRAIN_S_DEFAULT)),
            routes: Routes::new(routes, otherwise),
        })
    }
}

fn source(key: &'static str, named: &Spanned<Named>, is_authorized: bool) -> Result<Source, Wrong> {
    let Named { fixed, header, jwt_claim, client_certificate } = named.get_ref();
    match (fixed, header, jwt_claim, client_certificate) {
        (Some(name), None, None, None) => Ok(Source::Fixed(name.clone())),
        (None, Some(name), None, None) => Ok(Source::Header(field(named, key, name)?)),
        (None, None, Some(_), None) if !is_authorized => {
            let reason = "is read from a token whose signature nobody checks: name an `auth_url` that does";
            Err(wrong(named, key, reason))
        }
        (None, None, Some(claim), None) => Ok(Source::JwtClaim(claim.clone())),
        (None, None, None, Some(true)) => Ok(Source::ClientCertificate),
        _ => Err(wrong(named, key, "names one of `fixed`, `header`, `jwt_claim` and `client_certificate = true`")),
    }
}

fn field<T>(at: &Spanned<T>, key: &'static str, name: &str) -> Result<HeaderName, Wrong> {
    name.parse().map_err(|_| wrong(at, key, format!("has {name:?}, which is no name of a field")))
}

fn fields(key: &'static str, names: Option<&Spanned<Vec<String>>>) -> Result<Option<Vec<HeaderName>>, Wrong> {
    let Some(list) = names else { return Ok(None) };
    if list.get_ref().len() > limits::DOOR_NAMES_MAX {
        return Err(wrong(list, key, format!("has more than {} names", limits::DOOR_NAMES_MAX)));
    }
    let mut found: Vec<HeaderName> = Vec::new();
    for name in list.get_ref() {
        let name = field(list, key, name)?;
        if !found.contains(&name) {
            found.push(name);
        }
    }
    Ok(Some(found))
}

impl TlsTable {
    fn check(&self) -> Result<TlsFiles, Wrong> {
        let asked = match &self.client_certificate {
            None => Asked::Optional,
            Some(asked) => match asked.get_ref().as_str() {
                "optional" => Asked::Optional,
                "required" if self.ca.is_some() => Asked::Required,
                "required" => {
                    return Err(wrong(asked, "client_certificate", "is \"required\" without a `ca` to judge it by"));
                }
                _ => return Err(wrong(asked, "client_certificate", "is \"optional\" or \"required\"")),
            },
        };
        let Self { cert, key, ca, crl, .. } = self;
        Ok(TlsFiles { cert: cert.clone(), key: key.clone(), ca: ca.clone(), crl: crl.clone(), asked })
    }
}

impl RouteTable {
    fn check(&self, otherwise: &Route) -> Result<Route, Wrong> {
        let pattern = Pattern::parse(self.r#match.get_ref()).map_err(|error| wrong(&self.r#match, "match", error))?;
        if let Some(operation) = &self.operation {
            Operation::parse(operation.get_ref()).map_err(|error| wrong(operation, "operation", error))?;
        }
        let key = match &self.key {
            None => KeyRule::Optional,
            Some(key) => match key.get_ref().as_str() {
                "required" => KeyRule::Required,
                "optional" => KeyRule::Optional,
                "ignore" => KeyRule::Ignore,
                _ => return Err(wrong(key, "key", "is \"required\", \"optional\" or \"ignore\"")),
            },
        };
        let key_headers = fields("key_headers", self.key_headers.as_ref())?;
        if let (Some(list), Some([])) = (&self.key_headers, key_headers.as_deref()) {
            return Err(wrong(list, "key_headers", "names no field; say key = \"ignore\" where keys don't matter"));
        }
        let record_headers = fields("record_headers", self.record_headers.as_ref())?.unwrap_or_default();
        if let (Some(list), Some(name)) =
            (&self.record_headers, record_headers.iter().find(|name| !replay::is_recordable(name)))
        {
            return Err(wrong(list, "record_headers", format!("has {name}, which is never recorded, or always")));
        }
        let without = self.fingerprint_without.as_ref();
        let ignore = without.map(|list| Ignore::new(list.get_ref()).map_err(|e| wrong(list, "fingerprint_without", e)));
        let window = u64::from(limits::WINDOW_S_LIMIT);
        let replay = seconds("replay_s", self.replay_s.as_ref(), window)?;
        let evidence = seconds("evidence_s", self.evidence_s.as_ref(), window)?;
        if let (Some(at), Some(replay), Some(evidence)) = (&self.evidence_s, replay, evidence)
            && evidence < replay
        {
            return Err(wrong(at, "evidence_s", "must not be shorter than `replay_s`"));
        }
        let times = limits::DOOR_TIME_S_LIMIT;
        let body = size("body_bytes_max", self.body_bytes_max.as_ref(), limits::DOOR_BODY_BYTES_LIMIT)?;
        let wait = within("wait_ms_max", self.wait_ms_max.as_ref(), 0..=limits::WAIT_MS_LIMIT.into())?;
        let timeout = seconds("upstream_timeout_s", self.upstream_timeout_s.as_ref(), times)?;
        Ok(Route {
            pattern: Some(pattern),
            operation: self.operation.as_ref().map(|operation| operation.get_ref().clone()),
            key,
            key_headers: key_headers.unwrap_or_else(|| otherwise.key_headers.clone()),
            fingerprint_headers: fields("fingerprint_headers", self.fingerprint_headers.as_ref())?.unwrap_or_default(),
            fingerprint_without: ignore.transpose()?.unwrap_or_default(),
            release: self.release()?,
            lease: seconds("lease_s", self.lease_s.as_ref(), times)?,
            replay,
            evidence,
            upstream_timeout: timeout.unwrap_or(otherwise.upstream_timeout),
            record_headers,
            body_bytes_max: body.unwrap_or(otherwise.body_bytes_max),
            wait_max: wait.map_or(otherwise.wait_max, Duration::from_millis),
            expired_status: self.expired_status()?.unwrap_or(otherwise.expired_status),
        })
    }

    fn release(&self) -> Result<Vec<u16>, Wrong> {
        let Some(list) = &self.release else { return Ok(Vec::new()) };
        if list.get_ref().iter().any(|status| !(400..=599).contains(status)) {
            return Err(wrong(list, "release", "has a status that is no failure: those are 400 to 599"));
        }
        Ok(list.get_ref().clone())
    }

    fn expired_status(&self) -> Result<Option<u16>, Wrong> {
        let Some(status) = &self.expired_status else { return Ok(None) };
        if !(400..=499).contains(status.get_ref()) {
            return Err(wrong(status, "expired_status", "must be from 400 to 499"));
        }
        Ok(Some(*status.get_ref()))
    }
}

#[cfg(test)]
mod tests;
