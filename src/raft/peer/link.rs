//! One connection to a member: opened when it is needed, kept alive while idle, opened anew when it broke.

use std::{
    error::Error as _,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{sync::Mutex, time::Instant};
use tonic::{Status, body::Body};

use super::generated::peer_client::PeerClient;
use crate::{id::NodeId, limits, net::Net};

/// Why a member could not be asked, or gave no answer.
#[derive(Debug, thiserror::Error)]
pub(in crate::raft) enum LinkError {
    /// There is no connection: nothing was sent.
    #[error("{address} can't be reached: {source}")]
    Unconnected {
        /// Where to.
        address: String,
        /// Why.
        source: Arc<io::Error>,
    },
    /// The connection had ended before anything was sent.
    #[error("the connection to {address} was closed before anything was sent")]
    Unsent {
        /// Where to.
        address: String,
    },
    /// It was sent, and there is no answer: perhaps it was heard.
    #[error("{address} has not answered: {reason}")]
    Broken {
        /// Where to.
        address: String,
        /// What is known.
        reason: String,
    },
    /// The member refuses.
    #[error("{address} refuses: {reason}")]
    Refused {
        /// Where to.
        address: String,
        /// What it said.
        reason: String,
    },
}

impl LinkError {
    /// Whether the member can't have heard of it.
    pub fn is_unsent(&self) -> bool {
        matches!(self, LinkError::Unconnected { .. } | LinkError::Unsent { .. })
    }

    /// What a status tells. Only a connection that was closed before the request was dispatched has sent nothing.
    pub fn of(address: &str, status: &Status) -> Self {
        let address = address.to_owned();
        let mut cause = status.source();
        while let Some(error) = cause {
            if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
                return LinkError::Unsent { address };
            }
            cause = error.source();
        }
        match status.code() {
            tonic::Code::FailedPrecondition | tonic::Code::InvalidArgument | tonic::Code::Unimplemented => {
                LinkError::Refused { address, reason: status.message().to_owned() }
            }
            code => LinkError::Broken { address, reason: format!("{code:?}: {}", status.message()) },
        }
    }
}

/// An open connection, as the generated client uses it.
#[derive(Clone)]
pub(in crate::raft) struct Connection(http2::SendRequest<Body>);

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, Result<Response<Incoming>, hyper::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

#[derive(Default)]
struct State {
    connection: Option<http2::SendRequest<Body>>,
    /// Until when nothing is tried, why, and how long the pause was.
    failed: Option<(Instant, Arc<io::Error>, Duration)>,
}

/// One connection to one address. Whoever needs it at the same time waits for the same attempt.
pub(in crate::raft) struct Link {
    net: Arc<dyn Net>,
    /// Who is meant to answer there.
    node: NodeId,
    address: String,
    origin: Uri,
    state: Mutex<State>,
}

impl Link {
    pub fn new(net: Arc<dyn Net>, node: NodeId, address: &str) -> Self {
        // An address that is none is found out when it is connected to; the origin only names the request's target.
        let origin = format!("http://{address}").parse().unwrap_or_else(|_| Uri::from_static("http://peer"));
        Self { net, node, address: address.to_owned(), origin, state: Mutex::default() }
    }

    /// A client on the open connection; a new one where it is closed. Fails at once while the pause after a failed attempt
    /// lasts.
    pub async fn client(&self) -> Result<PeerClient<Connection>, LinkError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(self.client_on(connection.clone()));
        }
        state.connection = None;
        let unconnected = |source| LinkError::Unconnected { address: self.address.clone(), source };
        if let Some((until, error, _)) = &state.failed
            && Instant::now() < *until
        {
            return Err(unconnected(Arc::clone(error)));
        }
        let at_most = Duration::from_millis(limits::PEER_CONNECT_MS);
        let connected = tokio::time::timeout(at_most, self.connect()).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(connection) => {
                *state = State { connection: Some(connection.clone()), failed: None };
                Ok(self.client_on(connection))
            }
            Err(error) => {
                let (least, most) = (limits::PEER_PAUSE_MS, limits::PEER_PAUSE_MS_MAX);
                let before = state.failed.as_ref().map(|(_, _, pause)| *pause * 2);
                let pause = before.unwrap_or(Duration::from_millis(least)).min(Duration::from_millis(most));
                let error = Arc::new(error);
                state.failed = Some((Instant::now() + pause, Arc::clone(&error), pause));
                Err(unconnected(error))
            }
        }
    }

    fn client_on(&self, connection: http2::SendRequest<Body>) -> PeerClient<Connection> {
        PeerClient::with_origin(Connection(connection), self.origin.clone())
            .max_decoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::PEER_MESSAGE_BYTES_MAX)
    }

    async fn connect(&self) -> io::Result<http2::SendRequest<Body>> {
        let stream = self.net.connect_to(self.node, &self.address).await?;
        let (connection, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_millis(limits::PEER_PING_MS))
            .keep_alive_timeout(Duration::from_millis(limits::PEER_PING_TIMEOUT_MS))
            .keep_alive_while_idle(true)
            .initial_stream_window_size(limits::PEER_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::PEER_CONNECTION_WINDOW_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let address = self.address.clone();
        // It ends with the connection, or when the last client on it is gone.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%address, %error, "a connection to a member has ended");
            }
        });
        Ok(connection)
    }
}
