//! Connections of HTTP/2 to an upstream, which requests share up to what its end allows.
//!
//! A request is handed to a connection only where it has a place: what waits inside of the protocol for a free stream would
//! count as sent, and wasn't. Whether the other end speaks HTTP/2 at all, and how many streams it allows, its first frame says:
//! a connection stands once that has come, so that an end that speaks something else never sees a request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    sync::MutexGuard,
    time::{Instant, timeout},
};

use super::{body::Body, upstream::NO_HTTP_2};
use crate::{limits, net::Stream};

/// The connections to one upstream.
#[derive(Default)]
pub(super) struct Shared {
    connections: Mutex<Vec<Arc<Multiplexed>>>,
    turn: tokio::sync::Mutex<()>,
}

/// One of them.
struct Multiplexed {
    sender: http2::SendRequest<Body>,
    /// Streams that the other end allows, as last heard.
    allowed: Arc<AtomicUsize>,
    used: AtomicUsize,
    /// Whether a request on it has ended otherwise than with its whole answer: then there are no further ones. An end that is
    /// gone shows by nothing else for a while.
    is_tired: AtomicBool,
    /// When its last place was left.
    left: Mutex<Instant>,
}

/// Where one request has its stream.
pub(super) struct Place {
    connection: Arc<Multiplexed>,
    is_sent: bool,
}

impl Shared {
    /// A place on a connection that stands, if there is one.
    pub fn place(&self) -> Option<Place> {
        let mut connections = self.connections.lock();
        // What still runs on those that go keeps them as long as it needs them.
        connections.retain(|one| one.is_good());
        connections.iter().find_map(Multiplexed::place)
    }

    /// The turn to connect. Nobody waits longer for those before than for an end that doesn't answer.
    pub async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        timeout(Duration::from_millis(limits::DOOR_CONNECT_MS), self.turn.lock()).await.ok()
    }

    /// Begins HTTP/2 on this stream, and returns with the first place once the other end has, too.
    pub async fn begin(&self, stream: Stream) -> Result<Place, String> {
        let (sender, mut connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(limits::HTTP2_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(limits::DOOR_HTTP2_CONNECTION_WINDOW_BYTES)
            .initial_max_send_streams(0)
            .max_header_list_size(limits::DOOR_ANSWER_HEAD_BYTES_MAX)
            .keep_alive_interval(Duration::from_secs(limits::HTTP2_PING_S))
            .keep_alive_timeout(Duration::from_secs(limits::HTTP2_PING_TIMEOUT_S))
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // Nothing wakes whoever waits for the other end's settings, so it is looked for them.
        let look = Duration::from_millis(limits::DOOR_SETTINGS_LOOK_MS);
        while connection.current_max_send_streams() == 0 {
            if let Ok(ended) = timeout(look, &mut connection).await {
                tracing::debug!(error = ended.err().map(tracing::field::display), "the upstream speaks no HTTP/2");
                return Err(NO_HTTP_2.to_owned());
            }
        }
        let allowed = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
        let heard = Arc::clone(&allowed);
        // Ends with its connection, which ends with its senders and their requests.
        tokio::spawn(async move {
            let polled = std::future::poll_fn(|context| {
                let polled = std::pin::Pin::new(&mut connection).poll(context);
                heard.store(connection.current_max_send_streams(), Ordering::Release);
                polled
            });
            if let Err(error) = polled.await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
        let (used, is_tired, left) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Instant::now()));
        let connection = Arc::new(Multiplexed { sender, allowed, used, is_tired, left });
        let mut connections = self.connections.lock();
        let place = connection.place().ok_or("the service allows no streams")?;
        connections.push(connection);
        Ok(place)
    }
}

impl Multiplexed {
    fn is_good(&self) -> bool {
        let is_idle = self.used.load(Ordering::Acquire) == 0
            && self.left.lock().elapsed() >= Duration::from_millis(limits::DOOR_IDLE_MS);
        !is_idle && !self.is_tired.load(Ordering::Acquire) && !self.sender.is_closed()
    }

    fn place(self: &Arc<Self>) -> Option<Place> {
        let most = self.allowed.load(Ordering::Acquire).min(limits::DOOR_STREAMS_MAX);
        let more = |used: usize| (used < most).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place { connection: Arc::clone(self), is_sent: false })
    }
}

impl Place {
    pub fn is_closed(&self) -> bool {
        self.connection.sender.is_closed()
    }

    pub async fn try_send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        self.is_sent = true;
        self.connection.sender.clone().try_send_request(request).await
    }

    /// Leaves it behind a whole answer.
    pub fn leave(mut self) {
        self.is_sent = false;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_sent {
            self.connection.is_tired.store(true, Ordering::Release);
        }
        *self.connection.left.lock() = Instant::now();
        self.connection.used.fetch_sub(1, Ordering::AcqRel);
    }
}
