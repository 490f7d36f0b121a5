//! Bodies on their way through the door: held whole within limits, or passed on as they come.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

use super::problem::Problem;
pub use crate::unidle::{BoxError, Unidle};
use crate::{limits, refusal::Code};

/// A body of whatever kind.
// A type of its own and no alias: a trait object among the parameters of a service's bound keeps the compiler from seeing
// that its futures can be sent.
#[derive(Debug)]
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl Default for Body {
    fn default() -> Self {
        empty()
    }
}

/// No body.
pub fn empty() -> Body {
    boxed(Empty::new())
}

/// These bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    boxed(Full::new(bytes.into()))
}

/// Any body.
pub fn boxed<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Body(body.map_err(Into::into).boxed_unsync())
}

/// A body that was read to its end, and the room that it takes.
#[derive(Debug)]
pub struct Spooled {
    /// Its bytes.
    pub bytes: Bytes,
    /// Given back when the request has been answered.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Reads a body to its end. Trailers are left out: a key in a trailer is none, and the upstream is told the length.
pub(super) async fn spool<B>(body: &mut B, bytes_max: usize, room: &Arc<Semaphore>) -> Result<Spooled, Problem>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large(bytes_max));
    }
    let (mut whole, mut taken): (BytesMut, Option<OwnedSemaphorePermit>) = (BytesMut::new(), None);
    loop {
        let data = match timeout(Duration::from_millis(limits::BODY_IDLE_MS), body.frame()).await {
            Err(_) => {
                return Err(Problem::new(Code::InvalidArgument, "the body stopped arriving; send it without a pause")
                    .with_status(408));
            }
            Ok(None) => return Ok(Spooled { bytes: whole.freeze(), room: taken }),
            Ok(Some(Err(_))) => return Err(Problem::new(Code::InvalidArgument, "the body broke off")),
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => data,
                Err(_) => continue,
            },
        };
        let length = whole.len() + data.len();
        if length > bytes_max {
            return Err(too_large(bytes_max));
        }
        let wanted = length.div_ceil(1024) - taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        // Never waited for: two that hold half of the room each would wait for ever.
        let more = u32::try_from(wanted).ok().and_then(|wanted| Arc::clone(room).try_acquire_many_owned(wanted).ok());
        match (more, &mut taken) {
            (None, _) => {
                return Err(Problem::new(Code::Unavailable, "too many requests with a key are held at once"));
            }
            (Some(more), Some(taken)) => taken.merge(more),
            (Some(more), taken) => *taken = Some(more),
        }
        whole.extend_from_slice(&data);
    }
}

fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("a request with a key may have a body of {bytes_max} bytes at most");
    Problem::new(Code::BodyTooLarge, detail)
}

/// What a streamed answer is fed with.
pub(super) type Pieces = mpsc::Sender<Result<Frame<Bytes>, BoxError>>;

/// A body that is fed piece by piece. It breaks off, and its connection with it, where the feeder ends without saying that
/// it was all.
pub(super) struct Streamed {
    pieces: mpsc::Receiver<Result<Frame<Bytes>, BoxError>>,
    ended: bool,
}

/// The empty piece that says that a body was whole.
const WHOLE: Bytes = Bytes::new();

impl Streamed {
    pub(super) fn new() -> (Pieces, Self) {
        let (feed, pieces) = mpsc::channel(limits::DOOR_PIECES_MAX);
        (feed, Self { pieces, ended: false })
    }

    /// Says that the body was whole.
    pub(super) async fn finish(pieces: &Pieces) {
        // Whoever is gone needs no end.
        let _ = pieces.send(Ok(Frame::data(WHOLE))).await;
    }
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match ready!(self.pieces.poll_recv(context)) {
            Some(Ok(frame)) if frame.data_ref().is_some_and(Bytes::is_empty) => {
                self.ended = true;
                Poll::Ready(None)
            }
            Some(piece) => Poll::Ready(Some(piece)),
            None => {
                self.ended = true;
                Poll::Ready(Some(Err("the answer broke off".into())))
            }
        }
    }
}
