//! Who has signed in, on this node alone: a cookie that stands for a caller, in memory, by its hash.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::body::Body;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderValue, Response, header};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use super::page::Page;
use crate::{
    auth::{Caller, Scope},
    entropy, limits,
    refusal::{Code, Refusal},
};

/// A session as a request has shown it.
#[derive(Clone)]
pub(super) struct Session {
    pub caller: Arc<Caller>,
    /// What the forms of its pages carry.
    pub csrf: Arc<str>,
    /// Its cookie, where it has just begun.
    pub fresh: Option<Arc<str>>,
}

struct Kept {
    caller: Arc<Caller>,
    csrf: Arc<str>,
    began: Instant,
    used: Instant,
}

/// All sessions of this node.
pub(super) struct Sessions {
    kept: Mutex<HashMap<[u8; 32], Kept>>,
    is_encrypted: bool,
}

impl Sessions {
    pub fn new(is_encrypted: bool) -> Self {
        Self { kept: Mutex::default(), is_encrypted }
    }

    fn name(&self) -> &'static str {
        if self.is_encrypted { "__Host-semel" } else { "semel" }
    }

    /// A session of this caller's.
    pub fn begin(&self, caller: Caller) -> Result<Session, Refusal> {
        let secret = entropy::bytes::<32>();
        let mut mac = Hmac::<Sha256>::new_from_slice(&secret).expect("HMAC takes keys of any length");
        mac.update(b"csrf");
        let csrf: Arc<str> = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()).into();
        let (caller, now) = (Arc::new(caller), Instant::now());
        let mut kept = self.kept.lock();
        if kept.len() >= limits::CONSOLE_SESSIONS_MAX {
            kept.retain(|_, session| is_good(session, now));
        }
        if kept.len() >= limits::CONSOLE_SESSIONS_MAX {
            // Who comes to an open node without a cookie is signed in each time: whoever was not seen for the longest makes
            // room, and is signed in again when it comes.
            let is_open = |session: &Kept| *session.caller.scope() == Scope::Open;
            let oldest = kept.iter().filter(|(_, session)| is_open(session)).min_by_key(|(_, session)| session.used);
            if let Some(oldest) = oldest.map(|(hash, _)| *hash) {
                kept.remove(&oldest);
            }
        }
        if kept.len() >= limits::CONSOLE_SESSIONS_MAX {
            let detail = "too many people are signed in at this node; sign in at another one, or later";
            return Err(Refusal::new(Code::RateLimited, detail));
        }
        let session = Kept { caller: Arc::clone(&caller), csrf: Arc::clone(&csrf), began: now, used: now };
        kept.insert(Sha256::digest(secret).into(), session);
        let cookie = self.cookie(&URL_SAFE_NO_PAD.encode(secret), limits::CONSOLE_SESSION_S_MAX);
        Ok(Session { caller, csrf, fresh: Some(cookie.into()) })
    }

    fn cookie(&self, value: &str, max_age_s: u64) -> String {
        let secure = if self.is_encrypted { "; Secure" } else { "" };
        format!("{}={value}; HttpOnly{secure}; SameSite=Strict; Path=/; Max-Age={max_age_s}", self.name())
    }

    /// The hash of the one cookie that a request shows.
    fn shown(&self, head: &HeaderMap) -> Option<[u8; 32]> {
        let mut found = None;
        for field in head.get_all(header::COOKIE) {
            for pair in field.to_str().ok()?.split(';') {
                if let Some(value) = pair.trim().strip_prefix(self.name()).and_then(|rest| rest.strip_prefix('=')) {
                    // Two of one name: somebody else has set one of them.
                    if found.replace(value).is_some() {
                        return None;
                    }
                }
            }
        }
        let secret = URL_SAFE_NO_PAD.decode(found?).ok()?;
        Some(Sha256::digest(secret).into())
    }

    /// The session that a request shows, if it is still good.
    pub fn find(&self, head: &HeaderMap) -> Option<Session> {
        self.find_at(head, Instant::now())
    }

    fn find_at(&self, head: &HeaderMap, now: Instant) -> Option<Session> {
        let shown = self.shown(head)?;
        let mut kept = self.kept.lock();
        let session = kept.get_mut(&shown)?;
        if !is_good(session, now) {
            kept.remove(&shown);
            return None;
        }
        session.used = now;
        Some(Session { caller: Arc::clone(&session.caller), csrf: Arc::clone(&session.csrf), fresh: None })
    }

    /// Ends the session that a request shows.
    pub fn end(&self, head: &HeaderMap, response: &mut Response<Body>) {
        if let Some(shown) = self.shown(head) {
            self.kept.lock().remove(&shown);
        }
        set_cookie(response, &self.cookie("", 0));
    }
}

fn is_good(session: &Kept, now: Instant) -> bool {
    now.duration_since(session.used) < Duration::from_secs(limits::CONSOLE_IDLE_S)
        && now.duration_since(session.began) < Duration::from_secs(limits::CONSOLE_SESSION_S_MAX)
}

fn set_cookie(response: &mut Response<Body>, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

impl Session {
    /// Whether a form came from a page of this session.
    pub fn is_own(&self, csrf: &str) -> bool {
        bool::from(csrf.as_bytes().ct_eq(self.csrf.as_bytes()))
    }

    /// Gives the browser the cookie of a session that has just begun.
    pub fn keep(&self, response: &mut Response<Body>) {
        if let Some(cookie) = &self.fresh {
            set_cookie(response, cookie);
        }
    }
}

/// The page that asks for a token.
pub(super) fn sign_in_page(refused: Option<&Refusal>) -> Page {
    let mut page = Page::outside();
    page.heading("Sign in");
    if let Some(refusal) = refused {
        page.refusal(refusal);
    }
    page.html()
        .raw("<form method=post action=/console/session class=card><label for=token>Token</label>")
        .raw("<input id=token name=token type=password autocomplete=off autofocus required maxlength=8192>")
        .raw("<p class=hint>One that may reconcile or administer, or one of the cluster. It is kept by this node for eight ")
        .raw("hours at most, and goes nowhere else.</p><button>Sign in</button></form>");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(cookies: &[&str]) -> HeaderMap {
        let mut head = HeaderMap::new();
        for cookie in cookies {
            head.append(header::COOKIE, cookie.parse().expect("a cookie"));
        }
        head
    }

    fn cookie_of(session: &Session) -> String {
        let mut response = Response::new(Body::empty());
        session.keep(&mut response);
        let cookie = response.headers()[header::SET_COOKIE].to_str().expect("ASCII").to_owned();
        cookie.split(';').next().expect("a pair").to_owned()
    }

    #[test]
    fn a_session_lasts_while_it_is_used_and_eight_hours_at_most() {
        let sessions = Sessions::new(true);
        let begun = sessions.begin(Caller::open()).expect("there is room");
        let cookie = cookie_of(&begun);
        assert!(cookie.starts_with("__Host-semel="));
        let step = Duration::from_secs(limits::CONSOLE_IDLE_S - 1);
        let (mut steps, mut now) = (0, Instant::now());
        while sessions.find_at(&head(&[&cookie]), now).is_some() {
            now += step;
            steps += 1;
        }
        assert_eq!(steps, limits::CONSOLE_SESSION_S_MAX.div_ceil(limits::CONSOLE_IDLE_S - 1));
        let other = cookie_of(&sessions.begin(Caller::open()).expect("there is room"));
        let later = Instant::now() + Duration::from_secs(limits::CONSOLE_IDLE_S);
        assert!(sessions.find_at(&head(&[&other]), later).is_none(), "it was idle");
    }

    #[test]
    fn two_cookies_of_one_name_are_none_and_an_ended_session_is_gone() {
        let sessions = Sessions::new(false);
        let begun = sessions.begin(Caller::open()).expect("there is room");
        let cookie = cookie_of(&begun);
        assert!(sessions.find(&head(&["theme=dark", &format!("{cookie}; other=1")])).is_some());
        assert!(sessions.find(&head(&[&cookie, "semel=AAAA"])).is_none());
        assert!(begun.is_own(&begun.csrf) && !begun.is_own("") && !begun.is_own("x"));
        sessions.end(&head(&[&cookie]), &mut Response::new(Body::empty()));
        assert!(sessions.find(&head(&[&cookie])).is_none());
    }

    /// Somebody who has shown a credential.
    fn named() -> Caller {
        let text = "[[token]]\ntoken = \"0123456789abcdef\"\ntenant = \"acme\"\npermissions = [\"reconcile\"]\n";
        crate::auth::TokenFile::parse(text, 1).expect("a file").find(b"0123456789abcdef").expect("its token").clone()
    }

    #[test]
    fn there_are_so_many_sessions_and_no_more() {
        let sessions = Sessions::new(false);
        for _ in 0..limits::CONSOLE_SESSIONS_MAX {
            assert!(sessions.begin(named()).is_ok());
        }
        for caller in [named(), Caller::open()] {
            assert_eq!(sessions.begin(caller).err().map(|refusal| refusal.code), Some(Code::RateLimited));
        }
    }

    #[test]
    fn looks_at_an_open_node_without_a_cookie_keep_nobody_out() {
        let sessions = Sessions::new(false);
        let used = cookie_of(&sessions.begin(Caller::open()).expect("there is room"));
        let idle = cookie_of(&sessions.begin(Caller::open()).expect("there is room"));
        for _ in 0..limits::CONSOLE_SESSIONS_MAX {
            assert!(sessions.find(&head(&[&used])).is_some());
            assert!(sessions.begin(Caller::open()).is_ok());
        }
        assert!(sessions.find(&head(&[&used])).is_some(), "whoever works there stays signed in");
        assert!(sessions.find(&head(&[&idle])).is_none(), "the least recently used made room");
        assert_eq!(sessions.kept.lock().len(), limits::CONSOLE_SESSIONS_MAX);
    }
}
