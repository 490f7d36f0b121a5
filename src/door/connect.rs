//! The upstream behind the proxy: connections of HTTP/1.1 or HTTP/2, kept while they are warm, looked at before they are
//! used.
//!
//! Connections are driven one by one and by hand, because the one thing that must be known of a request with a key is
//! whether a byte of it was handed to a connection. No client here sends anything twice by itself. One of HTTP/1.1 carries one
//! request at a time; one of HTTP/2 is shared (`shared`).

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
    client::conn::{TrySendError, http1},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    body::{self, Body, BoxError},
    forward, grpc,
    shared::{Place, Shared},
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
    /// What requests are sent with that don't want one of the two.
    protocol: Protocol,
    /// Of HTTP/1.1.
    idle: Mutex<Vec<Idle>>,
    /// Of HTTP/2.
    shared: Shared,
}

/// What is spoken on a connection to an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2: negotiated under TLS, known before without it.
    Http2,
}

impl Protocol {
    /// As TLS negotiates it.
    fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Http1 => b"http/1.1",
            Protocol::Http2 => b"h2",
        }
    }
}

struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
}

/// One end of a connection, or a request's place on one that it shares.
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(Place),
}

impl Sender {
    fn protocol(&self) -> Protocol {
        match self {
            Sender::Http1(_) => Protocol::Http1,
            Sender::Http2(_) => Protocol::Http2,
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(place) => place.is_closed(),
        }
    }

    async fn try_send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match self {
            Sender::Http1(sender) => sender.try_send_request(request).await,
            Sender::Http2(place) => place.try_send(request).await,
        }
    }
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
            (Some("https"), Some(trust)) => (443, Some(trust)),
            (Some("https"), None) => {
                return Err(UrlError("https:// needs the authorities to trust: --upstream-ca FILE"));
            }
            _ => return Err(UrlError("it begins with neither http:// nor https://")),
        };
        let host = authority.host().to_owned();
        let address = format!("{host}:{}", authority.port_u16().unwrap_or(port));
        let (path, protocol) = (uri.path().to_owned(), Protocol::default());
        Ok(Self { address, host, path, trust, net, protocol, idle: Mutex::default(), shared: Shared::default() })
    }

    /// The same, to which requests go in this protocol unless they are of gRPC, which has HTTP/2 alone.
    pub fn speaking(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// What a request with these fields goes in.
    fn protocol_for(&self, headers: &http::HeaderMap) -> Protocol {
        if grpc::is_grpc(headers) { Protocol::Http2 } else { self.protocol }
    }

    fn scheme(&self) -> &'static str {
        if self.trust.is_some() { "https" } else { "http" }
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
    async fn connection(self: &Arc<Self>, protocol: Protocol) -> Result<Connection, String> {
        let warm = match protocol {
            Protocol::Http1 => self.warm().map(Sender::Http1),
            Protocol::Http2 => {
                // Of many who come at once, one connects.
                let _turn = match self.shared.place() {
                    None => self.shared.turn().await,
                    Some(place) => return Ok(self.with(Sender::Http2(place))),
                };
                match self.shared.place() {
                    Some(place) => Some(Sender::Http2(place)),
                    None => return self.connect(protocol).await,
                }
            }
        };
        match warm {
            Some(sender) => Ok(self.with(sender)),
            None => self.connect(protocol).await,
        }
    }

    fn with(self: &Arc<Self>, sender: Sender) -> Connection {
        Connection { server: Arc::clone(self), sender }
    }

    /// The warm connection that was used last, if it is still good.
    fn warm(&self) -> Option<http1::SendRequest<Body>> {
        let mut idle = self.idle.lock();
        while let Some(Idle { sender, since }) = idle.pop() {
            if since.elapsed() < Duration::from_millis(limits::DOOR_IDLE_MS) && sender.is_ready() && !sender.is_closed()
            {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: http1::SendRequest<Body>) {
        let mut idle = self.idle.lock();
        idle.retain(|one| one.since.elapsed() < Duration::from_millis(limits::DOOR_IDLE_MS));
        if idle.len() < limits::DOOR_IDLE_MAX && !sender.is_closed() {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }

    /// A new connection.
    pub(super) async fn connect(self: &Arc<Self>, protocol: Protocol) -> Result<Connection, String> {
        let connecting = async {
            let stream = self.net.connect(&self.address).await.map_err(|error| told(&error))?;
            let stream = match &self.trust {
                None => stream,
                Some(trust) => {
                    let trust = trust.speaking(&[protocol.alpn()]);
                    let stream = trust.connect(&self.host, stream).await.map_err(|error| told(&error))?;
                    Box::new(stream) as Stream
                }
            };
            Ok(match protocol {
                Protocol::Http1 => Sender::Http1(over_http_1(stream).await.map_err(|error| error.to_string())?),
                Protocol::Http2 => Sender::Http2(self.shared.begin(stream).await?),
            })
        };
        match timeout(Duration::from_millis(limits::DOOR_CONNECT_MS), connecting).await {
            Ok(sender) => sender.map(|sender| self.with(sender)),
            Err(_) => Err("the connection was not open in time".to_owned()),
        }
    }

    /// Passes a request without a key on. One that no byte was sent of is sent on another connection.
    pub(super) async fn pass(self: &Arc<Self>, request: Request<Body>) -> Result<Response<Body>, Failure> {
        let protocol = self.protocol_for(request.headers());
        self.pass_in(protocol, request).await
    }

    /// The same in this protocol, whatever the request is of.
    pub(super) async fn pass_in(
        self: &Arc<Self>,
        protocol: Protocol,
        request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let connection = self.connection(protocol).await.map_err(Failure::NeverSent)?;
        match connection.try_send(request).await {
            Ok(response) => Ok(response),
            Err((_, Some(request))) => {
                let connection = self.connect(protocol).await.map_err(Failure::NeverSent)?;
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

async fn over_http_1(stream: Stream) -> hyper::Result<http1::SendRequest<Body>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with its connection, which ends with its sender.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to the upstream ended");
        }
    });
    Ok(sender)
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
    sender: Sender,
}

impl Connection {
    /// Sends a request; gives it back where not one byte of it was handed over.
    pub(super) async fn try_send(
        mut self,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, (Failure, Option<Box<Request<Body>>>)> {
        forward::shape(&mut request, self.sender.protocol(), self.server.scheme(), self.server.address());
        match self.sender.try_send(request).await {
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

/// A server as the door knows it: where one request goes.
pub(super) struct ServerUpstream {
    server: Arc<Server>,
    protocol: Protocol,
}

impl ServerUpstream {
    /// For a request with these fields.
    pub(super) fn new(server: Arc<Server>, headers: &http::HeaderMap) -> Self {
        let protocol = server.protocol_for(headers);
        Self { server, protocol }
    }
}

impl Upstream for ServerUpstream {
    type Way = Connection;

    async fn open(&mut self) -> Result<Connection, String> {
        self.server.connection(self.protocol).await
    }
}

/// An answer's body, whose connection is kept once it was read to its end.
struct Pooled {
    incoming: Incoming,
    home: Option<(Arc<Server>, Sender)>,
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
        match self.home.take().filter(|_| is_whole) {
            Some((server, Sender::Http1(sender))) => server.keep(sender),
            Some((_, Sender::Http2(place))) => place.leave(),
            None => {}
        }
    }
}
