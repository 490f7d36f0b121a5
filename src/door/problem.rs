//! What the door itself answers: a problem of the one table, as HTTP tells it (RFC 9457).

use std::{borrow::Cow, time::Duration};

use http::{HeaderValue, Response, StatusCode, header};

use super::body::{self, Body};
use crate::{
    json::Json,
    limits, problems,
    refusal::{Code, Effect},
};

/// How problems are named.
#[derive(Clone, Debug)]
pub struct Naming {
    /// What stands before a problem's name in its `type`.
    pub base: String,
    /// Where the same pages are served, if anywhere that callers reach; the name is put behind it.
    pub help: Option<String>,
}

impl Default for Naming {
    fn default() -> Self {
        Self { base: problems::BASE.to_owned(), help: None }
    }
}

/// An answer of the door's own. What the table says of its code holds where nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub(super) code: Code,
    pub(super) status: u16,
    pub(super) detail: Cow<'static, str>,
    effect: Effect,
    retry_after_ms: Option<u64>,
}

impl Problem {
    /// A problem as the table has it.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            status: code.http(),
            detail: detail.into(),
            effect: code.effect(),
            retry_after_ms: code.retryable().then_some(u64::from(limits::RETRY_AFTER_MS_MIN)),
        }
    }

    /// With another status.
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// With another effect.
    pub fn with_effect(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }

    /// Where a retry can help: when.
    pub fn retry_after(self, after: Duration) -> Self {
        Self { retry_after_ms: Some(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)), ..self }
    }

    /// No retry can help.
    pub fn without_retry(self) -> Self {
        Self { retry_after_ms: None, ..self }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    pub(super) fn effect(&self) -> Effect {
        self.effect
    }

    /// When a retry can help, if one can.
    pub(super) fn retries_after(&self) -> Option<Duration> {
        self.retry_after_ms.map(Duration::from_millis)
    }

    pub(super) fn retryable_word(&self) -> &'static str {
        if self.retry_after_ms.is_some() { "true" } else { "false" }
    }

    /// The answer that tells it. The problem itself stands among its extensions, for whoever tells it in another way.
    pub fn response(&self, naming: &Naming) -> Response<Body> {
        let name = problems::name(self.code);
        let json = Json::object([
            ("type", format!("{}{name}", naming.base).as_str().into()),
            ("title", self.code.title().into()),
            ("status", u32::from(self.status).into()),
            ("detail", self.detail.as_ref().into()),
            ("code", self.code.as_str().into()),
            ("retryable", self.retry_after_ms.is_some().into()),
            ("effect", self.effect.as_str().into()),
        ]);
        let mut response = Response::new(body::full(json.to_text()));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(ms) = self.retry_after_ms {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
        }
        let link = naming.help.as_ref().map(|help| format!("<{help}{name}>; rel=\"help\""));
        if let Some(link) = link.and_then(|link| HeaderValue::from_str(&link).ok()) {
            headers.insert(header::LINK, link);
        }
        response.extensions_mut().insert(self.clone());
        response
    }
}
