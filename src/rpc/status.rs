//! A refusal as gRPC tells it: the status of the table, an ErrorInfo with the code, and a RetryInfo where it helps.

use std::{collections::HashMap, time::Duration};

use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

use crate::{limits, refusal::Refusal};

/// The domain of every ErrorInfo.
pub const DOMAIN: &str = "semel";

/// The status of this refusal.
pub fn status(refusal: Refusal) -> Status {
    with_code(refusal.code.grpc(), refusal)
}

/// The status of this refusal under another gRPC code, where the protocol itself prescribes one.
pub(crate) fn with_code(code: tonic::Code, refusal: Refusal) -> Status {
    let mut metadata = HashMap::from([
        ("effect".to_owned(), refusal.code.effect().as_str().to_owned()),
        ("retryable".to_owned(), refusal.code.retryable().to_string()),
    ]);
    metadata.extend(refusal.index.map(|index| ("index".to_owned(), index.to_string())));
    metadata.extend(refusal.attempt_id.map(|id| ("attempt_id".to_owned(), id.hyphenated())));
    if let Some(leader) = &refusal.leader {
        metadata.insert("leader_id".to_owned(), leader.id.to_string());
        metadata.insert("leader_endpoint".to_owned(), leader.endpoint.clone());
    }
    let mut details = ErrorDetails::with_error_info(refusal.code.as_str(), DOMAIN, metadata);
    if let Some(ms) = retry_after_ms(&refusal) {
        details.set_retry_info(Some(Duration::from_millis(ms)));
    }
    Status::with_error_details(code, refusal.detail, details)
}

/// When a refused request may be tried again, ms: none where that can't help.
pub(crate) fn retry_after_ms(refusal: &Refusal) -> Option<u64> {
    let default = u64::from(limits::RETRY_AFTER_MS_MIN);
    refusal.code.retryable().then(|| refusal.retry_after_ms.unwrap_or(default))
}
