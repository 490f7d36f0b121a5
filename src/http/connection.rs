//! What one connection is doing: since when it sends a head, and since when nothing moves on it. An idle connection may
//! stay for long; a head that has begun must come to its end soon.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep_until},
};

/// What a connection of HTTP/2 begins with.
const HTTP2_BEGINS: &[u8] = b"PRI";

/// Shared by a connection's socket, its requests and whoever watches it.
pub(super) struct Doing(Mutex<State>);

struct State {
    /// When the first byte came of a head that is not whole yet. HTTP/1 alone: heads of HTTP/2 stand in frames.
    head_since: Option<Instant>,
    /// Requests that are being answered.
    answering: usize,
    /// When a byte last went either way.
    moved: Instant,
    /// The first bytes, until there are enough to tell the protocol.
    beginning: Vec<u8>,
    is_http2: bool,
}

impl Doing {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            head_since: None,
            answering: 0,
            moved: Instant::now(),
            beginning: Vec::with_capacity(HTTP2_BEGINS.len()),
            is_http2: false,
        })))
    }

    fn received(&self, bytes: &[u8]) {
        let mut state = self.0.lock();
        state.moved = Instant::now();
        let missing = HTTP2_BEGINS.len() - state.beginning.len();
        if missing > 0 {
            state.beginning.extend_from_slice(&bytes[..bytes.len().min(missing)]);
            if state.beginning == HTTP2_BEGINS {
                (state.is_http2, state.head_since) = (true, None);
            }
        }
        // Some clients end a body with a line break too many: that is no head.
        let is_of_head = state.answering == 0 && !state.is_http2 && bytes.iter().any(|byte| !b"\r\n".contains(byte));
        if is_of_head && state.head_since.is_none() {
            state.head_since = Some(state.moved);
        }
    }

    fn sent(&self) {
        self.0.lock().moved = Instant::now();
    }

    /// A head is whole: the request is being answered until what this returns is dropped.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        let mut state = self.0.lock();
        state.head_since = None;
        state.answering += 1;
        drop(state);
        Answering(Arc::clone(self))
    }

    /// Returns once a head took longer than `head`, or nothing happened for longer than `idle`: with which, in a word of
    /// the metrics.
    pub(super) async fn overstays(&self, head: Duration, idle: Duration) -> &'static str {
        loop {
            let now = Instant::now();
            let (until, why) = {
                let state = self.0.lock();
                match state.head_since {
                    Some(since) => (since + head, "head_timeout"),
                    None if state.answering > 0 => (now + head, ""),
                    None => (state.moved + idle, "idle_timeout"),
                }
            };
            if until <= now {
                return why;
            }
            // A head that begins meanwhile must not wait for the end of the idle time.
            sleep_until(until.min(now + head)).await;
        }
    }
}

/// A request that is being answered.
pub(super) struct Answering(Arc<Doing>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.answering -= 1;
        state.moved = Instant::now();
    }
}

/// The body of an answer: the request is answered when it has gone out.
pub(super) struct Answer {
    pub(super) body: Body,
    pub(super) _answering: Answering,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection's socket, watched.
pub(super) struct Watched<S> {
    pub(super) socket: S,
    pub(super) doing: Arc<Doing>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            self.doing.received(bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(context, bytes));
        self.doing.sent();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write_vectored(context, slices));
        self.doing.sent();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
