//! What is different where the request is one of gRPC: the status stands behind the body, and problems are statuses.

use http::{HeaderMap, Response, header};
use tonic_types::{ErrorDetails, StatusExt};

use super::{body::Body, problem::Problem, work::Verdict};

const GRPC_STATUS: &str = "grpc-status";
const GRPC: &[u8] = b"application/grpc";

/// Whether these are the fields of gRPC. What browsers speak instead (`application/grpc-web`) has its status inside the body,
/// and is like any other HTTP to whoever doesn't read that.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(|line| line.as_bytes());
    let rest = content_type.and_then(|kind| {
        let (kind, rest) = kind.split_at_checked(GRPC.len())?;
        kind.eq_ignore_ascii_case(GRPC).then_some(rest)
    });
    rest.is_some_and(|rest| rest.first().is_none_or(|byte| b"+; \t".contains(byte)))
}

/// What the status of an answer says, which stands behind the body, or before it where there is none. As with the HTTP
/// statuses that they are like: who may not, or may not yet, has done nothing; a service that failed doesn't know.
pub(super) fn verdict(headers: &HeaderMap, trailers: Option<&HeaderMap>) -> Verdict {
    let status = trailers.and_then(|trailers| trailers.get(GRPC_STATUS)).or_else(|| headers.get(GRPC_STATUS));
    match status.map_or(tonic::Code::Unknown, |status| tonic::Code::from_bytes(status.as_bytes())) {
        tonic::Code::PermissionDenied | tonic::Code::Unauthenticated | tonic::Code::ResourceExhausted => {
            Verdict::Released
        }
        tonic::Code::Cancelled
        | tonic::Code::Unknown
        | tonic::Code::DeadlineExceeded
        | tonic::Code::Internal
        | tonic::Code::Unavailable
        | tonic::Code::DataLoss => Verdict::Indeterminate,
        _ => Verdict::Completed,
    }
}

/// A problem as gRPC tells it; any other answer as it is.
pub(super) fn told(mut response: Response<Body>) -> Response<Body> {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let metadata = [("effect", problem.effect().as_str()), ("retryable", problem.retryable_word())];
    let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut details = ErrorDetails::new();
    details.set_error_info(problem.code().as_str(), "semel", std::collections::HashMap::from(metadata));
    if let Some(after) = problem.retries_after() {
        details.set_retry_info(Some(after));
    }
    tonic::Status::with_error_details(problem.code().grpc(), problem.detail.to_string(), details).into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        let of = |kind: &str| is_grpc(&[(header::CONTENT_TYPE, kind.parse().unwrap())].into_iter().collect());
        for kind in ["application/grpc", "application/grpc+proto", "Application/gRPC; a=b"] {
            assert!(of(kind), "{kind}");
        }
        for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grp", "application/json"] {
            assert!(!of(kind), "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn the_status_behind_the_body_counts() {
        let of = |code: i32| {
            let trailers = [("grpc-status".parse().unwrap(), code.to_string().parse().unwrap())].into_iter().collect();
            verdict(&HeaderMap::new(), Some(&trailers))
        };
        for code in [0, 3, 5, 6, 9, 10, 11, 12] {
            assert_eq!(of(code), Verdict::Completed, "{code}");
        }
        assert_eq!([7, 8, 16].map(of), [Verdict::Released; 3]);
        for code in [1, 2, 4, 13, 14, 15, 99] {
            assert_eq!(of(code), Verdict::Indeterminate, "{code}");
        }
        assert_eq!(verdict(&HeaderMap::new(), None), Verdict::Indeterminate, "an answer without a status");
    }
}
