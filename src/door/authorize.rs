//! Whoever says whether a request may pass: asked afresh for each, replays too, with the request's own fields.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Method, Request, Response, header, request};
use tokio::time::timeout;

use super::{
    body::{self, Body},
    connect::{Protocol, Server},
    upstream::Failure,
};
use crate::limits;

const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// A server that is asked.
#[derive(Debug)]
pub struct Authorizer {
    server: Arc<Server>,
}

impl Authorizer {
    /// This server, at the path of its URL.
    pub fn new(server: Server) -> Self {
        Self { server: Arc::new(server) }
    }

    /// None where the request may pass; else the answer that it gets.
    ///
    /// # Errors
    /// Why nobody could be asked.
    pub(super) async fn ask(&self, onward: &request::Parts) -> Result<Option<Response<Body>>, String> {
        let mut request = Request::new(body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = self.server.path().parse().map_err(|_| "its path is none".to_owned())?;
        let headers = request.headers_mut();
        headers.clone_from(&onward.headers);
        for name in [header::CONTENT_LENGTH, header::CONTENT_ENCODING, header::EXPECT, header::HOST] {
            headers.remove(name);
        }
        let own = |text: &str| HeaderValue::from_str(text).map_err(|_| "the request can't be told".to_owned());
        headers.insert(header::HOST, own(self.server.address())?);
        headers.insert(FORWARDED_METHOD, own(onward.method.as_str())?);
        headers.insert(FORWARDED_URI, own(&onward.uri.to_string())?);
        let asked =
            timeout(Duration::from_millis(limits::DOOR_CONNECT_MS), self.server.pass_in(Protocol::Http1, request));
        match asked.await {
            Ok(Ok(response)) => Ok((!response.status().is_success()).then_some(response)),
            Ok(Err(Failure::NeverSent(why) | Failure::Lost(why))) => Err(why),
            Err(_) => Err("no answer came in time".to_owned()),
        }
    }
}
