//! Bodies that stop arriving.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

/// Why a body broke off.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Nothing of a body came for too long.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the body stopped arriving")]
pub struct Idle;

/// A body that fails where nothing of it comes for too long.
pub struct Unidle<B> {
    body: B,
    broken: Arc<AtomicBool>,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
}

impl<B> Unidle<B> {
    /// This body, which fails after so long without a piece.
    pub fn new(body: B, idle: Duration) -> Self {
        Self { body, broken: Arc::default(), idle, timer: Box::pin(sleep(idle)) }
    }

    /// Becomes true once the body has failed: it is not what its framing says, or stopped arriving.
    pub fn broken(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.broken)
    }
}

impl<B> HttpBody for Unidle<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let next = Instant::now() + self.idle;
            self.timer.as_mut().reset(next);
            if let Some(Err(_)) = &frame {
                self.broken.store(true, Ordering::Release);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.timer.as_mut().poll(context));
        self.broken.store(true, Ordering::Release);
        Poll::Ready(Some(Err(Idle.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
