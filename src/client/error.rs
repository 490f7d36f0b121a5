//! Why a call did not get its answer.

use std::error::Error as _;

use tonic_types::StatusExt;

use super::outcome::Outcome;
use crate::{
    id::{ClusterId, Position, Uuid},
    proto::v1,
    refusal::{Code, Effect, Leader, Refusal},
};

/// Why a call did not get its answer. [`effect`](Error::effect) says whether the command may still take place,
/// [`retryable`](Error::retryable) whether the same command may succeed later.
///
/// What a claim *found* (`completed`, `conflict`, …) is an answer and never an error.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service refused the command.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The service refused the command with a code that this version doesn't know.
    #[error("{code}: {detail}")]
    RefusedOtherwise {
        /// The code on the wire.
        code: String,
        /// What is wrong, for people.
        detail: String,
        /// Whether the command may still take place.
        effect: Effect,
        /// Whether the same command may succeed later.
        retryable: bool,
    },
    /// No connection came about: the command was never sent.
    #[error("{endpoint} can't be reached: {detail}")]
    Unreachable {
        /// The endpoint tried last.
        endpoint: String,
        /// Why.
        detail: String,
    },
    /// The last try of the command was refused for good, and an earlier one may have been applied.
    #[error("{refusal} (an earlier try may have been applied: {earlier})")]
    RefusedAtLast {
        /// The refusal.
        refusal: Box<Error>,
        /// What became of the earlier try.
        earlier: Box<Error>,
    },
    /// The command was sent, and the connection ended before its answer.
    #[error("the connection to {endpoint} ended before the answer: {detail}")]
    Lost {
        /// The endpoint.
        endpoint: String,
        /// Why.
        detail: String,
    },
    /// The command was sent, and no answer came in time.
    #[error("no answer within {waited_ms} ms")]
    TimedOut {
        /// How long the answer was waited for.
        waited_ms: u64,
    },
    /// The answers come from another cluster, or from a restore of this one. Nothing of them is believed until
    /// [`Client::trust_cluster`](super::Client::trust_cluster) is told so.
    #[error("the cluster is {found} now and was {known}: a restore, or a wrong address; see Client::trust_cluster")]
    ClusterChanged {
        /// The cluster that the client knows.
        known: ClusterId,
        /// The cluster that answered.
        found: ClusterId,
    },
    /// Too little of the lease is left, by the owner's own clock, to start an effect.
    #[error("too little of the lease is left to start an effect")]
    LeaseSpent,
    /// The handler said [`Verdict::no_effect`](super::Verdict::no_effect): the key may be claimed again.
    #[error("nothing happened: {reason}")]
    NoEffect {
        /// The handler's words.
        reason: String,
    },
    /// The effect happened, but its outcome could not be recorded. The record becomes indeterminate when its lease
    /// ends, if it isn't completed: nothing runs again by itself.
    #[error("the effect happened, but its outcome could not be recorded: {source}")]
    Unrecorded {
        /// What came of it.
        outcome: Box<Outcome>,
        /// Why it could not be recorded.
        source: Box<Error>,
    },
    /// [`Client::close`](super::Client::close) was called.
    #[error("the client is closed")]
    Closed,
    /// The client was built with something that can't work.
    #[error("{option}: {problem}")]
    Configuration {
        /// The option.
        option: &'static str,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// The answer is none to the command.
    #[error("the server's answer doesn't fit the command: {missing}")]
    Protocol {
        /// What was missing.
        missing: &'static str,
    },
}

impl Error {
    /// The row of the table of refusals, where the service refused.
    pub fn code(&self) -> Option<Code> {
        match self {
            Error::Refused(refusal) => Some(refusal.code),
            Error::Unrecorded { source, .. } => source.code(),
            Error::RefusedAtLast { refusal, .. } => refusal.code(),
            _ => None,
        }
    }

    /// Whether the command may still take place. For [`Unrecorded`](Error::Unrecorded): whether the effect of the
    /// operation may have, which it has.
    pub fn effect(&self) -> Effect {
        match self {
            Error::Refused(refusal) => refusal.code.effect(),
            Error::RefusedOtherwise { effect, .. } => *effect,
            Error::Unreachable { .. }
            | Error::LeaseSpent
            | Error::NoEffect { .. }
            | Error::Closed
            | Error::Configuration { .. } => Effect::None,
            Error::Lost { .. }
            | Error::TimedOut { .. }
            | Error::ClusterChanged { .. }
            | Error::RefusedAtLast { .. }
            | Error::Unrecorded { .. }
            | Error::Protocol { .. } => Effect::Unknown,
        }
    }

    /// Whether the same command, with the same attempt id or fence, may succeed later.
    pub fn retryable(&self) -> bool {
        match self {
            Error::Refused(refusal) => refusal.code.retryable(),
            Error::RefusedOtherwise { retryable, .. } => *retryable,
            Error::Unreachable { .. } | Error::Lost { .. } | Error::TimedOut { .. } | Error::NoEffect { .. } => true,
            Error::RefusedAtLast { refusal, .. } => refusal.retryable(),
            Error::ClusterChanged { .. }
            | Error::LeaseSpent
            | Error::Unrecorded { .. }
            | Error::Closed
            | Error::Configuration { .. }
            | Error::Protocol { .. } => false,
        }
    }

    /// When the service says that a retry can help, ms from the answer.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Error::Refused(refusal) => refusal.retry_after_ms,
            Error::RefusedAtLast { refusal, .. } => refusal.retry_after_ms(),
            _ => None,
        }
    }

    /// Who leads, where a node named it instead of forwarding: the command was not proposed.
    pub(super) fn leader(&self) -> Option<&Leader> {
        match self {
            Error::Refused(refusal) => refusal.leader.as_deref(),
            _ => None,
        }
    }

    /// Whether another node may do better: this one can't be reached, is cut off, or is in no cluster.
    pub(super) fn blames_node(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Lost { .. }) || self.code() == Some(Code::Unavailable)
    }

    /// Whether the client repeats the command by itself. `owner_may_act` is left to the caller: by the time that it
    /// may be repeated, the evidence that it carries is old, and has to be gathered again.
    pub(super) fn repeats_by_itself(&self) -> bool {
        self.retryable() && self.code() != Some(Code::OwnerMayAct)
    }

    /// Whether the refusal means that the owner is none any more.
    pub(super) fn ends_ownership(&self) -> bool {
        matches!(self.code(), Some(Code::StaleFence | Code::LeaseLapsed | Code::WrongState | Code::OutcomeImmutable))
    }

    /// This refusal, where the outcome of an earlier try of the same command stayed open: it speaks for the last try alone.
    pub(super) fn after(self, earlier: Option<Error>) -> Self {
        match earlier {
            Some(earlier) if self.effect() == Effect::None => {
                Error::RefusedAtLast { refusal: Box::new(self), earlier: Box::new(earlier) }
            }
            _ => self,
        }
    }

    pub(super) fn of_refused(refused: v1::Refused) -> Self {
        let effect = if refused.effect == i32::from(v1::Effect::None) { Effect::None } else { Effect::Unknown };
        match Code::parse(&refused.code) {
            Some(code) => Error::Refused(Refusal {
                code,
                detail: refused.detail.into(),
                retry_after_ms: refused.retry_after_ms.map(u64::from),
                index: refused.index.map(Position),
                attempt_id: refused.attempt_id.as_deref().and_then(Uuid::parse_hyphenated),
                leader: refused.leader.map(|leader| Box::new(Leader { id: leader.id, endpoint: leader.endpoint })),
            }),
            None => Error::RefusedOtherwise {
                code: refused.code,
                detail: refused.detail,
                effect,
                retryable: refused.retryable,
            },
        }
    }

    /// What a status says. One without our own details comes from the transport or something in between: then only
    /// a failed connect, or a status that is given before any work, means that nothing was done.
    pub(super) fn of_status(status: &tonic::Status, endpoint: &str) -> Self {
        if let Some(info) = status.get_details_error_info().filter(|info| info.domain == ERROR_DOMAIN) {
            return Error::of_refused(refused_of_info(info, status));
        }
        if never_sent(status) {
            return Error::Unreachable { endpoint: endpoint.to_owned(), detail: cause_of(status) };
        }
        let code = match status.code() {
            tonic::Code::InvalidArgument => Code::InvalidArgument,
            tonic::Code::Unauthenticated => Code::Unauthenticated,
            tonic::Code::PermissionDenied => Code::Forbidden,
            tonic::Code::Unimplemented => Code::MethodNotAllowed,
            _ => return Error::Lost { endpoint: endpoint.to_owned(), detail: cause_of(status) },
        };
        Error::Refused(Refusal::new(code, status.message().to_owned()))
    }
}

/// The `domain` of our own error details.
const ERROR_DOMAIN: &str = "semel";

fn refused_of_info(mut info: tonic_types::ErrorInfo, status: &tonic::Status) -> v1::Refused {
    let known = Code::parse(&info.reason);
    let effect = match known.map(Code::effect) {
        Some(Effect::None) => v1::Effect::None,
        Some(Effect::Unknown) => v1::Effect::Unknown,
        None if info.metadata.get("effect").is_some_and(|effect| effect == "none") => v1::Effect::None,
        None => v1::Effect::Unknown,
    };
    let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
    v1::Refused {
        code: info.reason,
        detail: status.message().to_owned(),
        retryable: known.map_or(delay.is_some(), Code::retryable),
        effect: effect.into(),
        retry_after_ms: delay.map(|delay| u32::try_from(delay.as_millis()).unwrap_or(u32::MAX)),
        attempt_id: info.metadata.remove("attempt_id"),
        index: info.metadata.get("index").and_then(|index| crate::id::parse_decimal(index)),
        leader: leader_of(&mut info.metadata),
    }
}

fn leader_of(metadata: &mut std::collections::HashMap<String, String>) -> Option<v1::Leader> {
    let id = metadata.get("leader_id").and_then(|id| crate::id::parse_decimal(id)).unwrap_or_default();
    metadata.remove("leader_endpoint").map(|endpoint| v1::Leader { id, endpoint })
}

fn never_sent(status: &tonic::Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The innermost cause: "connection refused" says more than "transport error".
fn cause_of(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    if text.is_empty() { status.code().description().to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_our_details_leaves_the_effect_unknown() {
        for code in [tonic::Code::Unavailable, tonic::Code::Internal, tonic::Code::Cancelled, tonic::Code::Unknown] {
            let error = Error::of_status(&tonic::Status::new(code, "from a proxy in between"), "http://n1");
            assert_eq!(error.effect(), Effect::Unknown, "{code:?}");
            assert!(error.retryable(), "{code:?}: every command here may be repeated");
        }
        let error = Error::of_status(&tonic::Status::invalid_argument("not a message"), "http://n1");
        assert_eq!((error.effect(), error.retryable()), (Effect::None, false));
    }

    #[test]
    fn a_code_of_a_later_version_keeps_its_effect() {
        let refused = v1::Refused {
            code: "too_new".to_owned(),
            effect: v1::Effect::Unspecified.into(),
            retryable: true,
            ..v1::Refused::default()
        };
        let error = Error::of_refused(refused.clone());
        assert_eq!((error.effect(), error.retryable(), error.code()), (Effect::Unknown, true, None));
        let none = v1::Refused { effect: v1::Effect::None.into(), ..refused };
        assert_eq!(Error::of_refused(none).effect(), Effect::None);
    }

    #[test]
    fn old_evidence_is_never_sent_again_by_itself() {
        let error = Error::Refused(Refusal::new(Code::OwnerMayAct, "the owner may still act").retry_after_ms(2000));
        assert!(error.retryable() && !error.repeats_by_itself());
    }
}
