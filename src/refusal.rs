//! The one table of refusals: code → gRPC status, HTTP status, whether a retry can help, whether an effect may follow.

use std::{borrow::Cow, fmt};

use crate::id::{NodeId, Position, Uuid};

/// Whether the refused command may still take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It did not and will not.
    None,
    /// It may have, or may yet.
    Unknown,
}

impl Effect {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Effect::None => "none",
            Effect::Unknown => "unknown",
        }
    }
}

macro_rules! table {
    ($($(#[$doc:meta])* $Code:ident $text:literal $grpc:ident $http:literal $retryable:literal $effect:ident $title:literal;)*) => {
        /// Why a request was refused. The table has no default arm: a new code must fill every column.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $Code,)* }

        impl Code {
            /// Every code, in the table's order.
            pub const ALL: &'static [Code] = &[$(Code::$Code,)*];

            /// The code on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$Code => $text,)* }
            }

            /// The code of this name.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Code::$Code),)* _ => None }
            }

            /// The gRPC status.
            pub fn grpc(self) -> tonic::Code {
                match self { $(Code::$Code => tonic::Code::$grpc,)* }
            }

            /// The HTTP status.
            pub fn http(self) -> u16 {
                match self { $(Code::$Code => $http,)* }
            }

            /// Whether the same request can succeed later.
            pub fn retryable(self) -> bool {
                match self { $(Code::$Code => $retryable,)* }
            }

            /// Whether the command may still take place.
            pub fn effect(self) -> Effect {
                match self { $(Code::$Code => Effect::$effect,)* }
            }

            /// A short title for people, the same for every occurrence.
            pub fn title(self) -> &'static str {
                match self { $(Code::$Code => $title,)* }
            }
        }
    };
}

table! {
    /// Malformed, too long, an unknown field.
    InvalidArgument "invalid_argument" InvalidArgument 400 false None "The request is malformed";
    /// No good credential.
    Unauthenticated "unauthenticated" Unauthenticated 401 false None "A valid credential is required";
    /// Another tenant, operation or permission.
    Forbidden "forbidden" PermissionDenied 403 false None "The credential does not allow this";
    /// Nothing is recorded under this identity, or no such route.
    NotFound "not_found" NotFound 404 false None "Nothing was found";
    /// The method is not one of this route's.
    MethodNotAllowed "method_not_allowed" Unimplemented 405 false None "The route has no such method";
    /// The fence is not the current one.
    StaleFence "stale_fence" FailedPrecondition 409 false None "The fence is not the current one";
    /// The lease ran out before the command.
    LeaseLapsed "lease_lapsed" FailedPrecondition 409 false None "The lease has lapsed";
    /// A completed outcome never changes.
    OutcomeImmutable "outcome_immutable" FailedPrecondition 409 false None "The recorded outcome is another one";
    /// The record's state does not allow the command.
    WrongState "wrong_state" FailedPrecondition 409 false None "The state does not allow this";
    /// The record changed since the version that was named.
    VersionChanged "version_changed" FailedPrecondition 409 false None "The record has changed";
    /// `no_effect` before the lease deadline + `effect_ms_max`: the owner may only be paused.
    OwnerMayAct "owner_may_act" FailedPrecondition 409 true None "The owner may still act";
    /// The outcome is larger than the policy allows.
    OutcomeTooLarge "outcome_too_large" InvalidArgument 413 false None "The outcome is too large";
    /// The request is larger than the limit.
    RequestTooLarge "request_too_large" InvalidArgument 413 false None "The request is too large";
    /// A quota of the tenant or operation is used up.
    QuotaExceeded "quota_exceeded" ResourceExhausted 429 true None "A quota is used up";
    /// Too many requests.
    RateLimited "rate_limited" ResourceExhausted 429 true None "Too many requests";
    /// No leader; not proposed.
    Unavailable "unavailable" Unavailable 503 true None "The service can't take this now";
    /// Proposed, and the result was not learnt.
    ResultUnknown "result_unknown" DeadlineExceeded 504 true Unknown "The result is not known";
    /// A fault of the service.
    Internal "internal" Internal 500 false Unknown "The service failed";

    // The Idempotency-Key door's own.

    /// The route wants a key, and there is none.
    KeyMissing "key_missing" InvalidArgument 400 false None "Idempotency-Key is missing";
    /// There is a key field, and it holds no key.
    KeyInvalid "key_invalid" InvalidArgument 400 false None "Idempotency-Key is not valid";
    /// The key belongs to another request.
    KeyReused "key_reused" FailedPrecondition 422 false None "Idempotency-Key is already used";
    /// Another request with the key is at it.
    InProgress "in_progress" Aborted 409 true Unknown "A request is outstanding for this Idempotency-Key";
    /// Nobody knows whether the first request with the key had its effect.
    OutcomeIndeterminate "outcome_indeterminate" Aborted 409 true Unknown "The outcome is not known";
    /// It was done too long ago for a replay.
    KeyExpired "key_expired" FailedPrecondition 410 false Unknown "Idempotency-Key has expired";
    /// It was done, and its answer's body was not kept.
    OutcomeNotStored "outcome_not_stored" FailedPrecondition 409 false Unknown "The outcome was not stored";
    /// The store that remembers keys can't be reached.
    StoreUnavailable "store_unavailable" Unavailable 503 true None "Keys can't be looked up now";
    /// The body of a request with a key is larger than the route takes.
    BodyTooLarge "body_too_large" InvalidArgument 413 false None "The request's body is too large";
    /// No connection to the upstream came about.
    UpstreamUnreachable "upstream_unreachable" Unavailable 502 true None "The upstream can't be reached";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request that was refused, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Refusal {
    /// The row of the table.
    pub code: Code,
    /// What is wrong and what to do, for people. Names fields, never quotes their values.
    pub detail: Cow<'static, str>,
    /// When a retry can help, ms.
    pub retry_after_ms: Option<u64>,
    /// The position at which it was decided, where it came from the log.
    pub index: Option<Position>,
    /// The claim's attempt id, so that a retry after `result_unknown` can name it.
    pub attempt_id: Option<Uuid>,
    /// Who leads, where this node would have to forward and was told not to.
    pub leader: Option<Box<Leader>>,
}

/// The node that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its number.
    pub id: NodeId,
    /// Its address for clients: `http://HOST:PORT`.
    pub endpoint: String,
}

impl Refusal {
    /// A refusal without a time to retry after.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into(), retry_after_ms: None, index: None, attempt_id: None, leader: None }
    }

    /// `invalid_argument` with this detail.
    pub fn invalid(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidArgument, detail)
    }

    /// The same with a time to retry after, ms.
    pub fn retry_after_ms(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_name() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
        assert_eq!(Code::parse("no_such_code"), None);
    }

    #[test]
    fn only_unlearnt_results_and_those_of_others_leave_an_effect_unknown() {
        for code in Code::ALL {
            let unlearnt = matches!(code, Code::ResultUnknown | Code::Internal);
            // What is said of a key's first request, whose effect is not this one's to deny.
            let of_another = matches!(
                code,
                Code::InProgress | Code::OutcomeIndeterminate | Code::KeyExpired | Code::OutcomeNotStored
            );
            let unknown = unlearnt || of_another;
            assert_eq!(code.effect() == Effect::Unknown, unknown, "{code}");
        }
    }
}
