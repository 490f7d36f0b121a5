"""Why a call did not get its answer, and what a claim found instead of a free key.

Everything is a `SemelError` and says three things: `code`, the refusal's word; `retryable`, whether the same command may
succeed later; `effect`, whether it may still take place: "none" (it did not and will not) or "unknown".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from .outcome import Outcome

__all__ = [
    "ClusterChanged",
    "ConfigurationError",
    "Conflict",
    "Expired",
    "InProgress",
    "Indeterminate",
    "LeaseSpent",
    "Lost",
    "NoEffect",
    "NotOwned",
    "NotStored",
    "OwnershipLost",
    "ProtocolError",
    "Refused",
    "RefusedAtLast",
    "SemelError",
    "TimedOut",
    "Unreachable",
    "Unrecorded",
]

NONE = "none"
UNKNOWN = "unknown"


class SemelError(Exception):
    """Why there is no answer."""

    #: The refusal's word, or this library's own.
    code: str = "error"
    #: Whether the same command, with the same attempt id or fence, may succeed later.
    retryable: bool = False
    #: Whether the command may still take place: "none" or "unknown".
    effect: str = UNKNOWN
    #: When a retry can help, ms; None where nobody said.
    retry_after_ms: Optional[int] = None


class ConfigurationError(SemelError, ValueError):
    """The client was set up with something that can't work."""

    code = "configuration"
    effect = NONE


class Refused(SemelError):
    """The service refused the command."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.code = str(problem.get("code"))
        self.detail = str(problem.get("detail") or "")
        self.retryable = problem.get("retryable") is True
        self.effect = NONE if problem.get("effect") == NONE else UNKNOWN
        retry_after_ms = problem.get("retry_after_ms")
        self.retry_after_ms = retry_after_ms if isinstance(retry_after_ms, int) else None
        #: The position at which it was decided, where it came from the log.
        self.index: Optional[str] = problem.get("index")
        #: The claim's attempt id.
        self.attempt_id: Optional[str] = problem.get("attempt_id")
        leader = problem.get("leader")
        #: Who leads, where a node named it instead of forwarding.
        self.leader: Optional[str] = leader.get("endpoint") if isinstance(leader, dict) else None
        super().__init__(f"{self.code}: {self.detail}")


class OwnershipLost(Refused):
    """`stale_fence`, `lease_lapsed`, `wrong_state` or `outcome_immutable`: the owner is none any more."""


class RefusedAtLast(SemelError):
    """The last try was refused for good, and an earlier one, whose result was not learnt, may have been applied."""

    effect = UNKNOWN

    def __init__(self, refusal: SemelError, earlier: SemelError) -> None:
        self.refusal = refusal
        self.earlier = earlier
        self.code = refusal.code
        self.retryable = refusal.retryable
        self.retry_after_ms = refusal.retry_after_ms
        super().__init__(f"{refusal} (an earlier try may have been applied: {earlier})")


class Unreachable(SemelError):
    """No connection came about: the command was never sent."""

    code = "unreachable"
    retryable = True
    effect = NONE

    def __init__(self, endpoint: str, detail: str) -> None:
        super().__init__(f"{endpoint} can't be reached: {detail}")


class Lost(SemelError):
    """The command was sent, and the connection ended before its answer, or something in between answered instead."""

    code = "lost"
    retryable = True

    def __init__(self, endpoint: str, detail: str) -> None:
        super().__init__(f"no answer of {endpoint}: {detail}")


class TimedOut(SemelError):
    """The command was sent, and no answer came in time."""

    code = "timed_out"
    retryable = True

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"no answer within {waited_s:.3f} s")


class ProtocolError(SemelError):
    """What answered is not Semel, or a later one."""

    code = "protocol"


class ClusterChanged(SemelError):
    """The answers come from another cluster, or from a restore of this one. Nothing of them is believed until
    `Client.trust_cluster` is told so."""

    code = "cluster_changed"

    def __init__(self, known: str, found: str) -> None:
        self.known = known
        self.found = found
        super().__init__(
            f"the cluster is {found} now and was {known}: a restore, or a wrong address; see Client.trust_cluster"
        )


class LeaseSpent(SemelError):
    """Too little of the lease is left, by the owner's own clock, to start an effect."""

    code = "lease_spent"
    effect = NONE

    def __init__(self) -> None:
        super().__init__("too little of the lease is left to start an effect")


class Unrecorded(SemelError):
    """The effect happened, but its outcome could not be recorded. The record becomes indeterminate when its lease ends, if
    it isn't completed: nothing runs again by itself."""

    def __init__(self, outcome: Outcome, source: SemelError) -> None:
        self.outcome = outcome
        self.source = source
        self.code = source.code
        super().__init__(f"the effect happened, but its outcome could not be recorded: {source}")


class NoEffect(SemelError):
    """To be raised by a handler that knows that no effect happened and that none can happen any more; the text says how
    that is known, and is kept. The key may be claimed again.

    A time-out is no such knowledge. Neither is a provider's "duplicate": it says that something happened *before*."""

    code = "no_effect"
    retryable = True
    effect = NONE

    def __init__(self, evidence: str) -> None:
        self.evidence = evidence
        super().__init__(evidence)


class NotOwned(SemelError):
    """A claim found the key taken: the handler did not run. These are answers of the service, and no failures."""

    def __init__(self, text: str, answer: Mapping[str, Any]) -> None:
        #: The answer as it came.
        self.answer = dict(answer)
        retry_after_ms = answer.get("retry_after_ms")
        self.retry_after_ms = retry_after_ms if isinstance(retry_after_ms, int) else None
        #: Since when, RFC 3339.
        self.since: Optional[str] = answer.get("since")
        super().__init__(text)


class Conflict(NotOwned):
    """The key belongs to another request."""

    code = "conflict"
    effect = NONE

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__("the key belongs to another request", answer)
        #: The state of that request's record.
        self.state = str(answer.get("state"))


class InProgress(NotOwned):
    """Another attempt is at it. Ask again later, with the same key."""

    code = "in_progress"
    retryable = True

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__("another attempt is at it", answer)


class Indeterminate(NotOwned):
    """Nobody knows whether the effect happened. It isn't tried again until somebody has found out."""

    code = "indeterminate"
    retryable = True

    def __init__(self, answer: Mapping[str, Any]) -> None:
        #: The owner's words, `lease_lapsed` or `restored`.
        self.reason = str(answer.get("reason"))
        super().__init__(f"nobody knows whether the effect happened: {self.reason}", answer)


class Expired(NotOwned):
    """It was done, too long ago for a replay; it does not run again."""

    code = "expired"

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.reason = str(answer.get("reason"))
        self.completed_at: Optional[str] = answer.get("completed_at")
        self.evidence_until: Optional[str] = answer.get("evidence_until")
        super().__init__(f"it was done too long ago for a replay: {self.reason}", answer)


class NotStored(NotOwned):
    """It was done, and the body of its outcome was not kept; it does not run again."""

    code = "not_stored"

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__("it was done, and its outcome was too large to be kept", answer)


_OWNERSHIP = frozenset(("stale_fence", "lease_lapsed", "wrong_state", "outcome_immutable"))


def refused(problem: Mapping[str, Any]) -> Refused:
    """The refusal that a problem, or a batch's `refused`, tells."""
    return OwnershipLost(problem) if problem.get("code") in _OWNERSHIP else Refused(problem)


def ends_ownership(error: SemelError) -> bool:
    """Whether the service said that the owner is none any more."""
    return error.code in _OWNERSHIP
