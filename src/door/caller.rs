//! Whoever came first, while the work goes on: has heard nothing yet, or has all of the answer but its last piece.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Response, response};
use hyper::body::Frame;
use tokio::{sync::oneshot, time::timeout};

use super::body::{self, Body, Pieces, Streamed};
use crate::{client::Error, limits};

/// Where the answer goes. Whoever waited there may be gone: nobody minds.
pub(super) type Told = oneshot::Sender<Response<Body>>;

pub(super) enum Caller {
    /// Has heard nothing yet.
    Waits {
        told: Told,
        answer: Box<Response<Body>>,
    },
    /// Has the head and all but this piece.
    Streams {
        stream: Stream,
        last: Bytes,
    },
    Told,
}

impl Caller {
    pub(super) fn waits(told: Told, answer: Response<Body>) -> Self {
        Caller::Waits { told, answer: Box::new(answer) }
    }

    /// Gives it the answer, or what is left of it.
    pub(super) async fn give(self) {
        match self {
            Caller::Waits { told, answer } => drop(told.send(*answer)),
            Caller::Streams { mut stream, last } => {
                stream.give(last).await;
                stream.end().await;
            }
            Caller::Told => {}
        }
    }

    /// Gives it this instead, or cuts it off where it has a part already.
    pub(super) fn refuse(&mut self, instead: Response<Body>) {
        if let Caller::Waits { told, .. } = std::mem::replace(self, Caller::Told) {
            drop(told.send(instead));
        }
    }
}

/// An answer on its way, piece by piece.
pub(super) struct Stream {
    /// None: whoever asked is gone.
    pieces: Option<Pieces>,
    /// What comes behind it.
    pub(super) trailers: Option<HeaderMap>,
    patience: Duration,
}

impl Stream {
    /// Gives the head, and begins. A caller that takes no piece for so long is gone.
    pub(super) fn begin(told: Told, head: response::Parts, patience: Duration) -> Self {
        let (pieces, streamed) = Streamed::new();
        drop(told.send(Response::from_parts(head, body::boxed(streamed))));
        Self { pieces: Some(pieces), trailers: None, patience }
    }

    /// One piece more.
    pub(super) async fn give(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pass(Frame::data(piece)).await;
        }
    }

    async fn pass(&mut self, frame: Frame<Bytes>) {
        let Some(pieces) = &self.pieces else { return };
        if !matches!(timeout(self.patience, pieces.send(Ok(frame))).await, Ok(Ok(()))) {
            self.pieces = None;
        }
    }

    /// That was all.
    async fn end(mut self) {
        if let Some(trailers) = self.trailers.take() {
            self.pass(Frame::trailers(trailers)).await;
        }
        if let Some(pieces) = &self.pieces {
            let _ = timeout(self.patience, Streamed::finish(pieces)).await;
        }
    }
}

/// Reports that a record is free or in doubt, and gives the caller its answer once that is known; or soon, because it is true
/// all the same: what isn't reported becomes indeterminate by itself.
pub(super) async fn settle(report: impl Future<Output = Result<(), Error>>, caller: Caller) {
    let mut report = pin!(report);
    let reported = match timeout(Duration::from_millis(limits::DOOR_SETTLE_MS), report.as_mut()).await {
        Ok(reported) => {
            caller.give().await;
            reported
        }
        Err(_) => {
            caller.give().await;
            report.await
        }
    };
    if let Err(error) = reported {
        tracing::warn!(%error, "a record could not be reported and is left to the lapse of its lease");
    }
}
