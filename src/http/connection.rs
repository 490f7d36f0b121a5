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

use super::frames::{CALM, Counted, Frames};
use crate::net::Proven;

/// What a connection of HTTP/2 begins with.
const HTTP2_BEGINS: &[u8] = b"PRI";

/// Shared by a connection's socket, its requests and whoever watches it.
pub(super) struct Doing {
    state: Mutex<State>,
    began: Instant,
    /// Whether a good credential was shown on it.
    pub(super) proven: Arc<Proven>,
}

/// How long what may last on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    /// A head, from its first byte to its last.
    pub head: Duration,
    /// Nothing.
    pub idle: Duration,
    /// All of it without a good credential, where one must be shown.
    pub unproven: Option<Duration>,
}

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
    /// The frames that came, while nobody has shown a good credential.
    counted: Option<Counted>,
    /// Why the connection must end, in a word of the metrics.
    too_much: Option<&'static str>,
}

impl Doing {
    /// Of a connection that begins now. Its frames are counted until a good credential is shown, where one must be.
    pub(super) fn new(is_counted: bool) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            head_since: None,
            answering: 0,
            moved: now,
            beginning: Vec::with_capacity(HTTP2_BEGINS.len()),
            is_http2: false,
            counted: is_counted.then(|| Counted::new(now)),
            too_much: None,
        };
        Arc::new(Self { state: Mutex::new(state), began: now, proven: Arc::default() })
    }

    /// Takes note of bytes that came. False where the connection must end for them.
    fn received(&self, bytes: &[u8]) -> bool {
        let mut state = self.state.lock();
        state.moved = Instant::now();
        let missing = HTTP2_BEGINS.len() - state.beginning.len();
        if missing > 0 {
            state.beginning.extend_from_slice(&bytes[..bytes.len().min(missing)]);
            if state.beginning == HTTP2_BEGINS {
                (state.is_http2, state.head_since) = (true, None);
            } else if state.beginning.len() == HTTP2_BEGINS.len() {
                state.counted = None;
            }
        }
        // Some clients end a body with a line break too many: that is no head.
        let is_of_head = state.answering == 0 && !state.is_http2 && bytes.iter().any(|byte| !b"\r\n".contains(byte));
        if is_of_head && state.head_since.is_none() {
            state.head_since = Some(state.moved);
        }
        if state.counted.is_some() {
            state.count(bytes, self.proven.is_proven());
        }
        state.too_much.is_none()
    }

    fn sent(&self) {
        self.state.lock().moved = Instant::now();
    }

    /// A head is whole: the request is being answered until what this returns is dropped.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        let mut state = self.state.lock();
        state.head_since = None;
        state.answering += 1;
        drop(state);
        Answering(Arc::clone(self))
    }

    /// Returns once something lasted too long, or too much came: what, in a word of the metrics.
    pub(super) async fn overstays(&self, spans: Spans) -> &'static str {
        loop {
            let now = Instant::now();
            let (mut until, mut why) = {
                let state = self.state.lock();
                match state.head_since {
                    Some(since) => (since + spans.head, "head_timeout"),
                    None if state.answering > 0 => (now + spans.head, ""),
                    None => (state.moved + spans.idle, "idle_timeout"),
                }
            };
            if let Some(span) = spans.unproven
                && !self.proven.is_proven()
                && self.began + span < until
            {
                (until, why) = (self.began + span, "unauthenticated_timeout");
            }
            if until <= now {
                return why;
            }
            // A head that begins meanwhile must not wait for the end of the idle time.
            sleep_until(until.min(now + spans.head)).await;
        }
    }

    /// What came too often, if anything did.
    pub(super) fn too_much(&self) -> Option<&'static str> {
        self.state.lock().too_much
    }
}

impl State {
    /// Counts frames, until they need not be counted any more.
    fn count(&mut self, bytes: &[u8], is_proven: bool) {
        if is_proven {
            self.counted = None;
        }
        if let Some(counted) = &mut self.counted {
            self.too_much = self.too_much.or(counted.received(bytes, self.moved));
        }
    }
}

/// A request that is being answered.
pub(super) struct Answering(Arc<Doing>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
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
    socket: S,
    doing: Arc<Doing>,
    /// What was sent, as far as it matters where a frame of ours could stand: until a good credential is shown.
    sent: Option<Frames>,
}

impl<S> Watched<S> {
    pub(super) fn new(socket: S, doing: &Arc<Doing>) -> Self {
        let is_counted = doing.state.lock().counted.is_some();
        Self { socket, doing: Arc::clone(doing), sent: is_counted.then(Frames::sent) }
    }

    /// Takes note of what went out: so many of these bytes.
    fn note(&mut self, slices: &[io::IoSlice<'_>], written: &io::Result<usize>) {
        self.doing.sent();
        if self.sent.is_some() && self.doing.proven.is_proven() {
            self.sent = None;
        }
        let (Some(sent), Ok(written)) = (&mut self.sent, written) else { return };
        let mut left = *written;
        for slice in slices {
            let part = left.min(slice.len());
            sent.pass(&slice[..part], |_| {});
            left -= part;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() && !self.doing.received(bytes) {
            // Said where it can be: a frame that is half sent would swallow it, and a full socket needs no courtesy.
            if self.sent.as_ref().is_some_and(Frames::is_between) {
                let _ = Pin::new(&mut self.socket).poll_write(context, &CALM);
                let _ = Pin::new(&mut self.socket).poll_flush(context);
            }
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write(context, bytes));
        self.note(&[io::IoSlice::new(bytes)], &written);
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.socket).poll_write_vectored(context, slices));
        self.note(slices, &written);
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
