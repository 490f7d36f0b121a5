//! Reading a request's body: never more than the limit, never waiting for ever, and never taking in what was refused.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::time::timeout;

use crate::{limits, refusal::Refusal, rpc::too_large};

/// The whole body, which may pause for so long; or why not, and what is left of it.
pub(super) async fn read(mut body: Incoming, idle: Duration) -> Result<Bytes, (Refusal, Incoming)> {
    let announced = body.size_hint().lower();
    if announced > limits::REQUEST_BYTES_MAX as u64 {
        return Err((too_large(), body));
    }
    let mut whole = BytesMut::new();
    loop {
        let frame = match timeout(idle, body.frame()).await {
            Err(_) => return Err((stopped(), body)),
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(Err(_))) => return Err((Refusal::invalid("the body broke off"), body)),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > limits::REQUEST_BYTES_MAX {
            return Err((too_large(), body));
        }
        if whole.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        whole.extend_from_slice(&data);
    }
}

/// What a body that stopped arriving is refused with, at both doors.
pub(super) fn stopped() -> Refusal {
    Refusal::invalid("the body stopped arriving; send it without a pause")
}

/// Lets a client that is still sending finish, within bounds, without keeping anything: a connection that is closed
/// over unread bytes is reset, and the refusal that was just sent is lost with it.
pub(super) fn linger(mut body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    // Ends after `LINGER_MS` at the latest, or with its connection.
    tokio::spawn(async move {
        let mut left = limits::LINGER_BYTES_MAX;
        let drain = async {
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    break;
                }
            }
        };
        // Past its time or not: what was drained is gone either way.
        let _ = timeout(Duration::from_millis(limits::LINGER_MS), drain).await;
    });
}
