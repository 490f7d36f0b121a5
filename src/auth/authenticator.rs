//! From the head of a request to a caller.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use http::{Extensions, HeaderMap, header::AUTHORIZATION};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use super::{
    caller::{self, Caller, Credential, Scope},
    certificate::CertifiedCaller,
    failures::Failures,
    jwks::KeySetError,
    jwt::{self, JwtCallers, Rules},
    refused::{Lately, Reason, Refusals, Why},
    token::{ID_BYTES, TokenKey, TokenText},
    token_file::{TokenFile, TokenFileError},
};
use crate::{
    id::{Tenant, Time},
    limits,
    net::{Proven, Shown},
    records::command::Token,
    refusal::Refusal,
    seal::Cipher,
    work,
};

/// What an unknown token is compared with.
const NOBODYS_HASH: [u8; 32] = [0; 32];

/// Judges credentials. Shared by every listener of a node.
pub struct Authenticator {
    mode: Mode,
    /// Tokens of the log, once there is one.
    log: OnceLock<Arc<dyn LogTokens>>,
    /// Who may show a certificate instead.
    certified: Vec<CertifiedCaller>,
    /// Who may show a token of somebody else's.
    jwt: Option<JwtCallers>,
    failures: Failures,
    /// Whom it has turned away, for the audit.
    refused: Lately,
    /// How many that were since the last look, for the metrics.
    uncounted: AtomicU64,
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authenticator({:?})", self.mode)
    }
}

/// The tokens of the log, as they stand on this node.
pub trait LogTokens: Send + Sync + 'static {
    /// The key under which they are hashed; none while there is no cluster.
    fn key(&self) -> Option<TokenKey>;
    /// The token of this id.
    fn token(&self, id: &[u8; ID_BYTES]) -> Option<Arc<Token>>;
    /// What opens the scopes of a tenant's tokens, or of the cluster's; none where its keys are not at hand.
    fn cipher(&self, tenant: Option<&Tenant>) -> Option<Arc<Cipher>>;
    /// Cluster time, as well as this node knows it.
    fn now(&self) -> Time;
    /// Whether a tenant is closed for good.
    fn is_closed(&self, tenant: &Tenant) -> bool;
    /// Whether this node has been cut off from the others for so long that it may not have heard of a revocation.
    fn is_cut_off(&self) -> bool;
}

#[derive(Debug)]
enum Mode {
    Open,
    Tokens(Tokens),
    Closed,
}

#[derive(Debug)]
struct Tokens {
    path: PathBuf,
    seen: Mutex<Seen>,
    current: ArcSwap<TokenFile>,
    /// Readings of the file that came to nothing.
    failures: AtomicU64,
}

/// What the file looked like when it was last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl Seen {
    pub fn of(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(path)?;
        Ok(Self { modified: found.modified().ok(), bytes: found.len(), inode: found.ino() })
    }
}

impl Authenticator {
    fn of(mode: Mode) -> Self {
        Self {
            mode,
            log: OnceLock::new(),
            certified: Vec::new(),
            jwt: None,
            failures: Failures::new(limits::AUTHENTICATION_FAILURES_DEFAULT),
            refused: Lately::default(),
            uncounted: AtomicU64::new(0),
        }
    }

    /// The same, with so many failures a second and address.
    pub fn with_failures(self, per_s: u32) -> Self {
        Self { failures: Failures::new(per_s), ..self }
    }

    /// The same, to which these may show a certificate instead of a token.
    pub fn with_certified(self, certified: Vec<CertifiedCaller>) -> Self {
        Self { certified, ..self }
    }

    /// The same, which also takes JSON Web Tokens by these rules, if there are any.
    ///
    /// # Errors
    /// [`KeySetError`] when the file of keys can't be read, or says something that it may not.
    pub fn with_jwt(self, rules: Option<Rules>) -> Result<Self, KeySetError> {
        Ok(Self { jwt: rules.map(JwtCallers::new).transpose()?, ..self })
    }

    /// From now on tokens of the log count too. Only the first call does.
    pub fn heed(&self, log: Arc<dyn LogTokens>) {
        let _ = self.log.set(log);
    }

    /// Everybody may do everything: `semel dev`.
    pub fn open() -> Self {
        Self::of(Mode::Open)
    }

    /// Whoever shows a token of the log: there is no token file.
    pub fn closed() -> Self {
        Self::of(Mode::Closed)
    }

    /// Whoever shows a token of this file.
    ///
    /// # Errors
    /// [`TokenFileError`] when the file can't be read, or says something that it may not.
    pub fn token_file(path: &Path) -> Result<Self, TokenFileError> {
        let seen = Seen::of(path)?;
        let tokens = TokenFile::read(path, 1)?;
        if tokens.is_empty() {
            tracing::warn!("the token file has no token: every call will be unauthenticated");
        }
        let tokens = Tokens {
            path: path.to_owned(),
            seen: Mutex::new(seen),
            current: ArcSwap::from_pointee(tokens),
            failures: AtomicU64::new(0),
        };
        Ok(Self::of(Mode::Tokens(tokens)))
    }

    /// Whether no credential is needed.
    pub fn is_open(&self) -> bool {
        matches!(self.mode, Mode::Open)
    }

    /// The caller of a request: its head, and what is known of its connection (the other end's address, the certificate
    /// that was shown, and whether a good credential ever was).
    ///
    /// # Errors
    /// `unauthenticated`, with one text whatever the reason; `rate_limited` where too much of that came from the address. A
    /// good credential always passes; `forbidden` where its tenant is closed.
    pub fn admit(&self, head: &HeaderMap, known: &Extensions) -> Result<Caller, Refusal> {
        let shown = known.get::<Arc<Shown>>().map(|shown| &**shown);
        let caller = self.judge(head, shown).map_err(|why| {
            self.refused.add(why);
            self.uncounted.fetch_add(1, Ordering::Relaxed);
            self.failures.told(known.get::<SocketAddr>(), caller::unauthenticated())
        })?;
        if let Some(proven) = known.get::<Arc<Proven>>() {
            proven.prove();
        }
        self.with_tenant(caller)
    }

    /// The caller of a request with this head, on a connection that has shown this certificate. An Authorization field
    /// decides alone; there is no fall-back. Metadata of gRPC is the same head.
    ///
    /// # Errors
    /// Why, for the audit alone.
    fn judge(&self, head: &HeaderMap, shown: Option<&Shown>) -> Result<Caller, Why> {
        match &self.mode {
            Mode::Open => Ok(Caller::open()),
            Mode::Closed | Mode::Tokens(_) if !head.contains_key(AUTHORIZATION) => {
                let certified = shown.and_then(|shown| CertifiedCaller::find(&self.certified, shown));
                certified.ok_or((Reason::Missing, None))
            }
            Mode::Closed | Mode::Tokens(_) => {
                let token = bearer(head).ok_or((Reason::Malformed, None))?;
                // Both are looked for, whatever the first look finds: the time tells nothing.
                let of_log = self.of_log(token);
                let of_file = match &self.mode {
                    Mode::Tokens(tokens) => tokens.current.load().find(token).cloned(),
                    Mode::Open | Mode::Closed => None,
                };
                of_log.or_else(|why| match of_file {
                    Some(caller) => Ok(caller),
                    None => self.of_jwt(token).unwrap_or(Err(why)),
                })
            }
        }
    }

    /// The caller of a JSON Web Token, where it is one. Its time is the cluster's: where there is no cluster, there is none.
    fn of_jwt(&self, token: &[u8]) -> Option<Result<Caller, Why>> {
        let (jwt, log) = (self.jwt.as_ref()?, self.log.get()?);
        if !jwt::is_like(token) {
            return None;
        }
        match jwt.caller(token, log.now()) {
            Ok(caller) => Some(Ok(caller)),
            Err(error) => {
                tracing::debug!(%error, "a JSON Web Token was not taken");
                Some(Err((error.reason(), None)))
            }
        }
    }

    /// Refuses whoever is of a tenant that is closed.
    fn with_tenant(&self, caller: Caller) -> Result<Caller, Refusal> {
        let is_closed = match (&caller.scope, self.log.get()) {
            (Scope::Tenant(tenant), Some(log)) => log.is_closed(tenant),
            _ => false,
        };
        if is_closed { Err(caller::forbidden()) } else { Ok(caller) }
    }

    /// The caller of a token of the log. An unknown id, a wrong secret and an ended token take the same way: one keyed hash,
    /// one comparison.
    fn of_log(&self, text: &[u8]) -> Result<Caller, Why> {
        let unknown = (Reason::Unknown, None);
        let log = self.log.get().ok_or(unknown)?;
        let key = log.key().ok_or(unknown)?;
        let shown = TokenText::parse(text);
        let is_token = shown.is_some();
        let shown = shown.unwrap_or_else(TokenText::nobodys);
        let token = log.token(&shown.id);
        let kept = token.as_ref().map_or(NOBODYS_HASH, |token| token.hash);
        let is_right = bool::from(shown.hash(&key).ct_eq(&kept));
        let id = is_token.then_some(shown.id);
        let Some(token) = token.filter(|_| is_token) else { return Err((Reason::Unknown, id)) };
        if !is_right {
            return Err((Reason::WrongSecret, id));
        }
        if !token.is_good(log.now()) {
            let reason = if token.revoked_at.is_some() { Reason::Revoked } else { Reason::Expired };
            return Err((reason, id));
        }
        if token.tenant.as_ref().is_some_and(|tenant| log.is_closed(tenant)) {
            // What it may do can't be read any more, and is no matter.
            return Ok(Caller::of_closed(&token));
        }
        let cipher = log.cipher(token.tenant.as_ref()).ok_or((Reason::Unreadable, id))?;
        Caller::of_token(&token, &cipher).ok_or((Reason::Unreadable, id))
    }

    /// How many it has turned away since the last call of this.
    pub fn take_count_of_refused(&self) -> u64 {
        self.uncounted.swap(0, Ordering::Relaxed)
    }

    /// Whom it has turned away since the last look.
    pub fn refused_lately(&self) -> Refusals {
        self.refused.take()
    }

    /// Remembers these again: they could not be told.
    pub fn remember_refused(&self, refused: Refusals) {
        self.refused.put_back(refused);
    }

    /// Whether this node may have missed that a token was revoked: what only listens on it must not go on for ever.
    pub fn is_cut_off(&self) -> bool {
        self.log.get().is_some_and(|log| log.is_cut_off())
    }

    /// The caller again, as its token stands now: for what comes later on an open stream. Free until the file changes.
    ///
    /// # Errors
    /// `unauthenticated` once the token is gone; `forbidden` once its tenant is closed.
    pub fn judge_again(&self, caller: &Caller) -> Result<Caller, Refusal> {
        self.with_tenant(self.judged_again(caller)?)
    }

    fn judged_again(&self, caller: &Caller) -> Result<Caller, Refusal> {
        match (&self.mode, &caller.credential) {
            (Mode::Open, None) => Ok(caller.clone()),
            // Its connection ends with it.
            (Mode::Tokens(_) | Mode::Closed, Some(Credential::Certificate)) => Ok(caller.clone()),
            (Mode::Tokens(_) | Mode::Closed, Some(Credential::Jwt(proof))) => {
                let (jwt, log) = self.jwt.as_ref().zip(self.log.get()).ok_or_else(caller::unauthenticated)?;
                if jwt.holds(proof, log.now()) { Ok(caller.clone()) } else { Err(caller::unauthenticated()) }
            }
            (Mode::Tokens(tokens), Some(Credential::File { digest, reading })) => {
                let current = tokens.current.load();
                if *reading == current.reading() {
                    return Ok(caller.clone());
                }
                current.find_digest(digest).cloned().ok_or_else(caller::unauthenticated)
            }
            (Mode::Tokens(_) | Mode::Closed, Some(Credential::Log(id))) => {
                let log = self.log.get().ok_or_else(caller::unauthenticated)?;
                let is_good = log.token(id).is_some_and(|token| token.is_good(log.now()));
                if is_good { Ok(caller.clone()) } else { Err(caller::unauthenticated()) }
            }
            _ => Err(caller::unauthenticated()),
        }
    }

    /// Reads the token file again if it changed. A file that can't be used leaves the tokens before in force.
    /// True when new tokens are in force.
    ///
    /// # Errors
    /// [`TokenFileError`], once for each change of the file.
    pub fn reload(&self) -> Result<bool, TokenFileError> {
        self.reload_if(|seen, found| seen != found)
    }

    fn reload_if(&self, is_wanted: impl FnOnce(&Seen, &Seen) -> bool) -> Result<bool, TokenFileError> {
        let Mode::Tokens(tokens) = &self.mode else { return Ok(false) };
        let found = Seen::of(&tokens.path)?;
        let mut seen = tokens.seen.lock();
        if !is_wanted(&seen, &found) {
            return Ok(false);
        }
        // Remembered before the reading: a change in between is then seen as one next time.
        *seen = found;
        let next = TokenFile::read(&tokens.path, tokens.current.load().reading() + 1)?;
        tokens.current.store(Arc::new(next));
        Ok(true)
    }

    /// How often the token file, or the file of keys, has changed to what could not be used, since the start.
    pub fn reload_failures(&self) -> u64 {
        let of_tokens = match &self.mode {
            Mode::Tokens(tokens) => tokens.failures.load(Ordering::Relaxed),
            Mode::Open | Mode::Closed => 0,
        };
        of_tokens + self.jwt.as_ref().map_or(0, JwtCallers::failures)
    }

    /// Re-reads the token file and the file of keys as they change, for as long as it is polled: a node runs this as a task of its own.
    pub async fn keep_fresh(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(Duration::from_secs(limits::TOKEN_FILE_RELOAD_S));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.reload_and_tell(|seen, found| seen != found).await;
        }
    }

    /// Reads both again, changed or not: somebody has asked for it.
    pub async fn read_again(self: &Arc<Self>) {
        self.reload_and_tell(|_, _| true).await;
    }

    async fn reload_and_tell(self: &Arc<Self>, is_wanted: fn(&Seen, &Seen) -> bool) {
        let this = self.clone();
        if self.jwt.is_some() {
            let keys = work::run(move || this.jwt.as_ref().map_or(Ok(false), |jwt| jwt.reload_if(is_wanted))).await;
            match (keys, &self.jwt) {
                (Ok(Ok(true)), _) => tracing::info!("the keys of JSON Web Tokens were read again"),
                (Ok(Err(error)), Some(jwt)) => {
                    jwt.failed();
                    tracing::error!(%error, "the keys of JSON Web Tokens can't be used; those read before stay in force");
                }
                _ => {}
            }
        }
        let this = self.clone();
        // A file system that hangs must not hold up a thread that serves requests.
        match work::run(move || this.reload_if(is_wanted)).await {
            Ok(Ok(true)) => tracing::info!("the token file was read again"),
            // A thread that is gone, because the node stops, has read nothing either.
            Ok(Ok(false)) | Err(_) => {}
            Ok(Err(error)) => {
                if let Mode::Tokens(tokens) = &self.mode {
                    tokens.failures.fetch_add(1, Ordering::Relaxed);
                }
                tracing::error!(%error, "the token file can't be used; the tokens read before stay in force")
            }
        }
    }
}

/// The token of the one Authorization field.
fn bearer(head: &HeaderMap) -> Option<&[u8]> {
    let mut fields = head.get_all(AUTHORIZATION).iter();
    let field = fields.next()?.as_bytes();
    if fields.next().is_some() {
        return None;
    }
    let (scheme, token) = field.split_at_checked("Bearer ".len())?;
    (scheme.eq_ignore_ascii_case(b"Bearer ") && token.len() <= limits::JWT_BYTES_MAX).then_some(token)
}

#[cfg(test)]
mod tests {
    use std::fs;

    impl Authenticator {
        /// The caller of a request with this head, and what anybody else is told.
        fn authenticate(&self, head: &HeaderMap, shown: Option<&Shown>) -> Result<Caller, Refusal> {
            self.judge(head, shown).map_err(|_| caller::unauthenticated())
        }
    }

    use super::*;
    use crate::{auth::Method, refusal::Code};

    const ONE: &str = "0123456789abcdef";
    const TWO: &str = "fedcba9876543210";

    fn write(path: &Path, token: &str, permission: &str) {
        let text = format!("[[token]]\ntoken = \"{token}\"\ntenant = \"acme\"\npermissions = [\"{permission}\"]\n");
        fs::write(path, text).unwrap();
    }

    fn head(fields: &[&str]) -> HeaderMap {
        let mut head = HeaderMap::new();
        for field in fields {
            head.append(AUTHORIZATION, field.parse().unwrap());
        }
        head
    }

    #[test]
    fn one_good_authorization_field_or_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        write(&path, ONE, "claim");
        let auth = Authenticator::token_file(&path).unwrap();
        let good = format!("Bearer {ONE}");
        assert!(auth.authenticate(&head(&[&good]), None).unwrap().permit(Method::Claim).is_ok());
        assert!(auth.authenticate(&head(&[&good.replace("Bearer", "bearer")]), None).is_ok());
        let bad = [
            vec![],
            vec!["Bearer"],
            vec!["Bearer "],
            vec![ONE],
            vec!["Basic 0123456789abcdef"],
            vec!["Bearer  0123456789abcdef"],
            vec!["Bearer 0123456789abcdeX"],
            vec![&good, &good],
        ];
        for fields in bad {
            assert_eq!(auth.authenticate(&head(&fields), None).unwrap_err(), caller::unauthenticated(), "{fields:?}");
        }
    }

    #[test]
    fn without_a_token_file_nobody_gets_in() {
        let refused = Authenticator::closed().authenticate(&head(&["Bearer 0123456789abcdef"]), None).unwrap_err();
        assert_eq!(refused.code, Code::Unauthenticated);
        assert!(Authenticator::open().authenticate(&head(&[]), None).is_ok());
    }

    #[test]
    fn a_changed_file_ends_the_tokens_that_left_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.toml");
        write(&path, ONE, "claim");
        let auth = Authenticator::token_file(&path).unwrap();
        let caller = auth.authenticate(&head(&[&format!("Bearer {ONE}")]), None).unwrap();
        assert!(!auth.reload().unwrap() && auth.judge_again(&caller).is_ok());

        write(&path, ONE, "administer");
        assert!(auth.reload().unwrap());
        let narrowed = auth.judge_again(&caller).unwrap();
        assert!(narrowed.permit(Method::Claim).is_err() && narrowed.permit(Method::Forget).is_ok());

        fs::write(&path, "[[token]]\n").unwrap();
        assert!(auth.reload().is_err() && auth.judge_again(&caller).is_ok(), "a bad file changes nothing");
        assert!(!auth.reload().unwrap(), "and is reported once");
        assert!(auth.reload_if(|_, _| true).is_err(), "but whoever asks for it is told again");

        write(&path, TWO, "administer");
        assert!(auth.reload().unwrap());
        assert_eq!(auth.judge_again(&caller).unwrap_err(), caller::unauthenticated());
    }
}
