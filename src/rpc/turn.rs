//! Large JSON documents take turns: a few bytes of text can take many times as many in memory while they are parsed.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    limits::{PARSED_AT_ONCE_BYTES_MAX, PARSED_FREELY_BYTES_MAX},
    proto::v1::{self, item::Command},
};

/// Bytes of large documents that may be parsed now, over both doors.
static ROOM: Semaphore = Semaphore::const_new(PARSED_AT_ONCE_BYTES_MAX);

/// Returns when it is the turn of a document of so many bytes, which lasts until what is returned is dropped: to be held
/// while the document is parsed, and no longer. Nobody waits here for anything but others' parsing.
pub(crate) async fn of(bytes: usize) -> Option<SemaphorePermit<'static>> {
    if bytes <= PARSED_FREELY_BYTES_MAX {
        return None;
    }
    let room = u32::try_from(bytes.min(PARSED_AT_ONCE_BYTES_MAX)).expect("the bound fits");
    // It is never closed.
    ROOM.acquire_many(room).await.ok()
}

/// Bytes of JSON in a claim.
pub(super) fn claim_bytes(claim: &v1::ClaimRequest) -> usize {
    claim.request.as_ref().map_or(0, |request| request.len())
}

/// Bytes of JSON in an item.
pub(super) fn item_bytes(item: &v1::Item) -> usize {
    match &item.command {
        Some(Command::Claim(claim)) => claim_bytes(claim),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn large_documents_wait_for_room_and_small_ones_do_not() {
        let first = of(PARSED_AT_ONCE_BYTES_MAX - 100_000).now_or_never().expect("there is room").expect("a turn");
        assert!(of(PARSED_FREELY_BYTES_MAX).now_or_never().expect("small ones need none").is_none());
        let second = of(100_000).now_or_never().expect("there is just enough");
        assert!(of(PARSED_FREELY_BYTES_MAX + 1).now_or_never().is_none(), "it is full");
        drop(second);
        assert!(of(PARSED_FREELY_BYTES_MAX + 1).now_or_never().is_some());
        drop(first);
        assert!(of(usize::MAX).now_or_never().is_some(), "the largest one has all of it");
    }
}
