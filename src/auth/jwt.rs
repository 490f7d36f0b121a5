//! Callers that show a JSON Web Token of somebody else's (RFC 7519): signed by a key of the set that the configuration
//! names, for this cluster, for a while. What it may do stands in its claims; what is not there is not allowed.
//!
//! The algorithm is the key's, never the token's to choose: a key that was published for one is of use for no other, and a
//! token without a signature, or with one of a shared secret, has no key here.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;

use super::{
    authenticator::Seen,
    caller::{Caller, Credential},
    grant::{Grant, GrantError},
    jwks::{Key, KeySet, KeySetError},
    refused::Reason,
};
use crate::{id::Time, json::Json, limits};

/// Whose tokens are taken, and what is read from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The keys (RFC 7517).
    pub jwks_file: PathBuf,
    /// Who must have issued a token (`iss`).
    pub issuer: String,
    /// For whom (`aud`).
    pub audience: String,
    /// The claim that names the tenant.
    pub tenant_claim: String,
    /// The claim with the permissions.
    pub permissions_claim: String,
    /// The claim with the patterns of operations.
    pub operations_claim: String,
    /// How long after its issue (`iat`) a token is taken at most.
    pub age_max: Duration,
}

/// Why a token is none. For the log of whoever looks for it: the caller is told nothing of it.
#[derive(Debug, thiserror::Error)]
pub(super) enum JwtError {
    /// Not three parts of base64url, or not JSON where that must be.
    #[error("it is no JSON Web Token")]
    Shape,
    /// A header that asks for what isn't done here.
    #[error("its header says {0}")]
    Header(&'static str),
    /// A key that there is not.
    #[error("no key of the set has its `kid`")]
    UnknownKey,
    /// Another algorithm than the key's.
    #[error("its `alg` is not that of its key")]
    Algorithm,
    /// A signature that is none.
    #[error("its signature is not of its key")]
    Signature,
    /// A claim that is missing, or no such value.
    #[error("its claim `{0}` is missing, or not what it must be")]
    Claim(&'static str),
    /// A claim of ours that is missing, or no such value.
    #[error("its claim `{0}` is missing, or not what it must be")]
    OwnClaim(String),
    /// Not yet, or no more.
    #[error("it is not good at this time: {0}")]
    Time(&'static str),
    /// What it would allow is outside the rules.
    #[error("what it allows: {0}")]
    Grant(#[from] GrantError),
}

impl JwtError {
    /// Why, as the audit tells it.
    pub fn reason(&self) -> Reason {
        match self {
            JwtError::Shape | JwtError::Header(_) => Reason::Malformed,
            JwtError::UnknownKey | JwtError::Algorithm | JwtError::Signature => Reason::JwtSignature,
            JwtError::Claim(_) | JwtError::OwnClaim(_) | JwtError::Grant(_) => Reason::JwtClaims,
            JwtError::Time(_) => Reason::JwtTime,
        }
    }
}

/// A token of somebody else's that was good when it was shown: when it ends, and by which key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proof {
    key: Arc<Key>,
    ends: Time,
}

/// Whose tokens are taken: the rules, and the keys as they were last read.
#[derive(Debug)]
pub(super) struct JwtCallers {
    rules: Rules,
    seen: Mutex<Seen>,
    keys: ArcSwap<KeySet>,
    failures: AtomicU64,
}

impl JwtCallers {
    /// With these rules.
    pub fn new(rules: Rules) -> Result<Self, KeySetError> {
        let seen = Seen::of(&rules.jwks_file)?;
        let keys = read(&rules.jwks_file)?;
        if keys.is_empty() {
            tracing::warn!("the file of keys (`auth.jwt.jwks_file`) has none that can be used: no JWT will be good");
        }
        Ok(Self { rules, seen: Mutex::new(seen), keys: ArcSwap::from_pointee(keys), failures: AtomicU64::new(0) })
    }

    /// The caller who shows this token at this time.
    pub fn caller(&self, token: &[u8], now: Time) -> Result<Caller, JwtError> {
        let token = std::str::from_utf8(token).map_err(|_| JwtError::Shape)?;
        let (signed, signature) = token.rsplit_once('.').ok_or(JwtError::Shape)?;
        let (header, payload) = signed.split_once('.').ok_or(JwtError::Shape)?;
        let decoded = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| JwtError::Shape);
        let parsed = |text: &str| {
            let json = Json::parse(&decoded(text)?).map_err(|_| JwtError::Shape)?;
            if matches!(json, Json::Object(_)) { Ok(json) } else { Err(JwtError::Shape) }
        };
        let header = parsed(header)?;
        let key = self.key(&header)?;
        if !key.has_signed(signed.as_bytes(), &decoded(signature)?) {
            return Err(JwtError::Signature);
        }
        // Nothing of it is read before it is known whose words these are.
        self.judged(&parsed(payload)?, key, now)
    }

    /// The key that the header names, which must be for what the header says.
    fn key(&self, header: &Json) -> Result<Arc<Key>, JwtError> {
        if header.member("crit").is_some() || header.member("b64").is_some() {
            return Err(JwtError::Header("that it can't be read without more"));
        }
        let is_jwt = |kind: &str| {
            let kind = kind.to_ascii_lowercase();
            matches!(kind.strip_prefix("application/").unwrap_or(&kind), "jwt" | "at+jwt")
        };
        if header.member("typ").is_some_and(|kind| !kind.as_str().is_some_and(is_jwt)) {
            return Err(JwtError::Header("that it is something else"));
        }
        let text = |name: &str| header.member(name).and_then(Json::as_str);
        let key = text("kid").and_then(|kid| self.keys.load().find(kid)).ok_or(JwtError::UnknownKey)?;
        if text("alg") == Some(key.algorithm()) { Ok(key) } else { Err(JwtError::Algorithm) }
    }

    fn judged(&self, claims: &Json, key: Arc<Key>, now: Time) -> Result<Caller, JwtError> {
        let rules = &self.rules;
        if claims.member("iss").and_then(Json::as_str) != Some(&rules.issuer) {
            return Err(JwtError::Claim("iss"));
        }
        let is_for_us = match claims.member("aud") {
            Some(Json::Array(all)) => all.iter().any(|one| one.as_str() == Some(&rules.audience)),
            Some(one) => one.as_str() == Some(&rules.audience),
            None => false,
        };
        if !is_for_us {
            return Err(JwtError::Claim("aud"));
        }
        let ends = self.ends(claims, now)?;
        let subject = claims.member("sub").and_then(Json::as_str);
        let subject = subject.filter(|subject| !subject.is_empty() && !subject.chars().any(char::is_control));
        let subject = subject.ok_or(JwtError::Claim("sub"))?;
        let tenant = claims.member(&rules.tenant_claim).and_then(Json::as_str);
        let tenant = tenant.ok_or_else(|| JwtError::OwnClaim(rules.tenant_claim.clone()))?;
        let (operations, permissions) =
            (words(claims, &rules.operations_claim)?, words(claims, &rules.permissions_claim)?);
        // With a tenant `cluster` is refused by the rule of all grants.
        let Grant { scope, operations, permissions } = Grant::parse(Some(tenant), &operations, &permissions)?;
        let credential = Some(Credential::Jwt(Proof { key, ends }));
        Ok(Caller { scope, actor: actor(subject).into(), operations, permissions, credential })
    }

    /// When the token ends, if it is good now.
    fn ends(&self, claims: &Json, now: Time) -> Result<Time, JwtError> {
        let leeway = limits::JWT_LEEWAY_MS;
        let required = |name: &'static str| moment(claims.member(name)).ok_or(JwtError::Claim(name));
        let (expires, issued) = (required("exp")?, required("iat")?);
        let begins = match claims.member("nbf") {
            None => issued,
            Some(_) => required("nbf")?.max(issued),
        };
        if begins > now.0.saturating_add(leeway) {
            return Err(JwtError::Time("it begins later"));
        }
        let age_max = u64::try_from(self.rules.age_max.as_millis()).unwrap_or(u64::MAX);
        let ends = expires.min(issued.saturating_add(age_max)).saturating_add(leeway);
        if ends <= now.0 {
            return Err(JwtError::Time("it has ended, or is too old"));
        }
        Ok(Time(ends))
    }

    /// Whether what was good still is: its time, and its key.
    pub fn holds(&self, proof: &Proof, now: Time) -> bool {
        now < proof.ends && self.keys.load().has(&proof.key)
    }

    /// Reads the file again, where that is wanted. True where other keys are in force.
    pub fn reload_if(&self, is_wanted: impl FnOnce(&Seen, &Seen) -> bool) -> Result<bool, KeySetError> {
        let found = Seen::of(&self.rules.jwks_file)?;
        let mut seen = self.seen.lock();
        if !is_wanted(&seen, &found) {
            return Ok(false);
        }
        *seen = found;
        self.keys.store(Arc::new(read(&self.rules.jwks_file)?));
        Ok(true)
    }

    /// Counts a reading that came to nothing.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

fn read(path: &Path) -> Result<KeySet, KeySetError> {
    let (mut text, most) = (Vec::new(), limits::JWKS_BYTES_MAX);
    fs::File::open(path)?.take(most + 1).read_to_end(&mut text)?;
    if text.len() as u64 > most {
        return Err(KeySetError::Read(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "it is larger than any set of keys",
        )));
    }
    KeySet::parse(&text)
}

/// `jwt:SUB`, as long as an actor may be.
fn actor(subject: &str) -> String {
    let mut actor = format!("jwt:{subject}");
    actor.truncate(actor.floor_char_boundary(limits::ACTOR_BYTES_MAX));
    actor
}

/// A moment of a token: seconds since 1970, perhaps with a fraction. In ms.
fn moment(claim: Option<&Json>) -> Option<u64> {
    let Some(Json::Number(seconds)) = claim else { return None };
    if let Ok(whole) = seconds.as_str().parse::<u64>() {
        return whole.checked_mul(1000);
    }
    let ms = seconds.as_str().parse::<f64>().ok()? * 1000.0;
    // Beyond it a double counts no single ms, and no token lasts so long.
    (0.0..=limits::JWT_MOMENT_MS_MAX).contains(&ms).then_some(ms as u64)
}

/// A list of words.
fn words(claims: &Json, name: &str) -> Result<Vec<String>, JwtError> {
    let wrong = || JwtError::OwnClaim(name.to_owned());
    let Some(Json::Array(words)) = claims.member(name) else { return Err(wrong()) };
    words.iter().map(|word| word.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

/// Whether this has the form of one: neither tokens of the log nor most of a file have two dots.
pub(super) fn is_like(token: &[u8]) -> bool {
    token.iter().filter(|byte| **byte == b'.').count() == 2
}

#[cfg(test)]
pub(crate) mod issuer;
#[cfg(test)]
mod tests;
