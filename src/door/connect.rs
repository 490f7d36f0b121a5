//! The upstream behind the proxy: connections of HTTP/1.1, kept while they are warm, looked at before they are used.
//!
//! Connections are driven one by one and by hand, because the one thing that must be known of a request with a key is
//! whether a byte of it was handed to a connection. No client here sends anything twice by itself.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, Uri};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    body::{self, Body, BoxError},
    forward,
    upstream::{Failure, Upstream, Way},
};
use crate::{
    limits,
    net::{Net, Stream},
    tls::Trust,
};

/// A server that requests are sent to.
pub struct Server {
    address: String,
    host: String,
    path: String,
    trust: Option<Trust>,
    net: Arc<dyn Net>,
    idle: Mutex<Vec<Idle>>,
}

struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
}

/// Why a URL names no server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(&'static str);

impl UrlError {
    /// For a server that requests are passed to as they are.
    pub(super) const HAS_PATH: Self = Self("it has a path; requests keep their own: write http://HOST:PORT");
}

impl Server {
    /// The server of this URL: `http://HOST:PORT`, or `https://…` with authorities to trust.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn new(url: &str, trust: Option<Trust>, net: Arc<dyn Net>) -> Result<Self, UrlError> {
        let uri: Uri = url.parse().map_err(|_| UrlError("it is no URL; http://HOST:PORT is one"))?;
        let authority = uri.authority().ok_or(UrlError("it has no host; write http://HOST:PORT"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(UrlError("it has a user or a query; write http://HOST:PORT"));
        }
        let (port, trust) = match (uri.scheme_str(), trust) {
            (Some("http"), _) => (80, None),
            (Some("https"), Some(trust)) => (443, Some(trust.speaking(&[b"http/1.1"]))),
            (Some("https"), None) => {
                return Err(UrlError("https:// needs the authorities to trust: --upstream-ca FILE"));
            }
            _ => return Err(UrlError("it begins with neither http:// nor https://")),
        };
        let host = authority.host().to_owned();
        let address = format!("{host}:{}", authority.port_u16().unwrap_or(port));
        Ok(Self { address, host, path: uri.path().to_owned(), trust, net, idle: Mutex::default() })
    }

    /// The path of its URL.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// `HOST:PORT`.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// A connection that stands: a warm one, or a new one.
    async fn connection(self: &Arc<Self>) -> Result<Connection, String> {
        match self.warm() {
            Some(sender) => Ok(Connection { server: Arc::clone(self), sender }),
            None => self.connect().await,
        }
    }

    /// The warm connection that was used last, if it is still good.
    fn warm(&self) -> Option<SendRequest<Body>> {
        let mut idle = self.idle.lock();
        while let Some(Idle { sender, since }) = idle.pop() {
            if since.elapsed() < Duration::from_millis(limits::DOOR_IDLE_MS) && sender.is_ready() && !sender.is_closed()
            {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: SendRequest<Body>) {
        let mut idle = self.idle.lock();
        idle.retain(|one| one.since.elapsed() < Duration::from_millis(limits::DOOR_IDLE_MS));
        if idle.len() < limits::DOOR_IDLE_MAX && !sender.is_closed() {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    /// A new connection.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<Connection, String> {
        let connecting = async {
            let stream = self.net.connect(&self.address).await?;
            Ok(match &self.trust {
                None => stream,
                Some(trust) => Box::new(trust.connect(&self.host, stream).await?) as Stream,
            })
        };
        let stream = match timeout(Duration::from_millis(limits::DOOR_CONNECT_MS), connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(told(&error)),
            Err(_) => return Err("the connection was not open in time".to_owned()),
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // Ends with its connection, which ends with its sender.
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
        Ok(Connection { server: Arc::clone(self), sender })
    }

    /// Passes a request without a key on. One that no byte was sent of is sent on another connection.
    pub(super) async fn pass(self: &Arc<Self>, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let connection = self.connection().await.map_err(Failure::NeverSent)?;
        match connection.try_send(request).await {
            Ok(response) => Ok(response),
            Err((_, Some(request))) => {
                let connection = self.connect().await.map_err(Failure::NeverSent)?;
                connection.try_send(*request).await.map_err(|(failure, _)| failure)
            }
            Err((failure, None)) => Err(failure),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

/// The innermost cause: "connection refused" says more than what is around it.
fn told(error: &std::io::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// A connection that stands.
pub struct Connection {
    server: Arc<Server>,
    sender: SendRequest<Body>,
}

impl Connection {
    /// Sends a request; gives it back where not one byte of it was handed over.
    pub(super) async fn try_send(
        mut self,
        request: Request<Body>,
    ) -> Result<Response<Body>, (Failure, Option<Box<Request<Body>>>)> {
        match self.sender.try_send_request(request).await {
            Ok(response) => {
                let Connection { server, sender } = self;
                Ok(response
                    .map(|incoming| body::boxed(Pooled { incoming, home: Some((server, sender)), whole: false })))
            }
            Err(mut error) => {
                let unsent = error.take_message();
                let why = cause(error.error());
                // What comes back was still waiting for the connection: it had not begun to write it.
                let failure = if unsent.is_some() { Failure::NeverSent(why) } else { Failure::Lost(why) };
                Err((failure, unsent.map(Box::new)))
            }
        }
    }
}

fn cause(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

impl Way for Connection {
    async fn send(self, request: Request<Bytes>) -> Result<Response<Body>, Failure> {
        // The store was asked since this connection was taken: it may have ended meanwhile.
        if self.sender.is_closed() {
            return Err(Failure::NeverSent("the connection was closed".to_owned()));
        }
        self.try_send(request.map(body::full)).await.map(forward::back).map_err(|(failure, _)| failure)
    }
}

/// A server as the door knows it.
pub(super) struct ServerUpstream(pub(super) Arc<Server>);

impl Upstream for ServerUpstream {
    type Way = Connection;

    async fn open(&mut self) -> Result<Connection, String> {
        self.0.connection().await
    }
}

/// An answer's body, whose connection is kept once it was read to its end.
struct Pooled {
    incoming: Incoming,
    home: Option<(Arc<Server>, SendRequest<Body>)>,
    whole: bool,
}

impl HttpBody for Pooled {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(context);
        self.whole |= matches!(polled, Poll::Ready(None));
        polled.map(|frame| frame.map(|frame| frame.map_err(|error| cause(&error).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let is_whole = self.whole || self.incoming.is_end_stream();
        if let Some((server, sender)) = self.home.take().filter(|_| is_whole) {
            server.keep(sender);
        }
    }
}
