//! Whoever does the work: a server behind the proxy, or a service in the same process.

use bytes::Bytes;
use http::{Request, Response};

use super::body::Body;

/// Where requests with a key go.
pub trait Upstream: Send + 'static {
    /// A way that stands.
    type Way: Way;

    /// Makes sure that there is a way. Nothing of the request goes out.
    ///
    /// # Errors
    /// Why there is none, for whoever looks into it.
    fn open(&mut self) -> impl Future<Output = Result<Self::Way, String>> + Send;
}

/// A way on which one request can be sent, once.
pub trait Way: Send + 'static {
    /// Sends it, and returns with the head of the answer.
    ///
    /// # Errors
    /// Whether anything can have come of it.
    fn send(self, request: Request<Bytes>) -> impl Future<Output = Result<Response<Body>, Failure>> + Send;
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not one byte was handed to the connection.
    NeverSent(String),
    /// It was, and what became of it isn't known.
    Lost(String),
}

/// Why there is no connection to a server that answers, and not in HTTP/2.
pub(super) const NO_HTTP_2: &str = "the service speaks no HTTP/2, in which this request goes to it";

/// What a caller is told where nothing was sent for this reason: of what went wrong on this side no more than helps.
pub(super) fn unopened(why: &str) -> &'static str {
    if why == NO_HTTP_2 { NO_HTTP_2 } else { "no connection to the service came about" }
}
