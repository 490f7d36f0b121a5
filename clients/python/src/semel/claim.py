"""An owned record, from its grant to its owner's report."""

from __future__ import annotations

import base64
import logging
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple, Type, Union

from ._lease import Lease
from .errors import (
    Conflict,
    Expired,
    InProgress,
    Indeterminate,
    LeaseSpent,
    NoEffect,
    NotStored,
    ProtocolError,
    SemelError,
    Unrecorded,
    ends_ownership,
)
from .outcome import Outcome

if TYPE_CHECKING:
    from .client import Client

__all__ = ["Claim", "Once"]

log = logging.getLogger("semel")

LEASE_S_MIN = 0.1


class Once:
    """An operation that is to happen once: owned by this attempt (`claim`), or done before (`outcome`)."""

    def __init__(self, claim: Optional[Claim] = None, outcome: Optional[Outcome] = None) -> None:
        #: The record, if this attempt is to do it; None where it was done before.
        self.claim = claim
        self._outcome = outcome

    @property
    def replayed(self) -> bool:
        """Whether it was done before this attempt."""
        return self.claim is None

    @property
    def outcome(self) -> Outcome:
        """What came of it: known from the start where it was done before, else once it is completed."""
        outcome = self._outcome if self.claim is None else self.claim.outcome
        if outcome is None:
            raise ValueError("the outcome is not known yet: it comes with complete")
        return outcome


def found(answer: Mapping[str, Any]) -> Once:
    """What a claim that is not `new` found: its outcome, or why there is none."""
    kind_of = answer.get("answer")
    if kind_of == "completed":
        if answer.get("not_stored") or not isinstance(answer.get("outcome"), dict):
            raise NotStored(answer)
        outcome = Outcome.of_wire(answer["outcome"], answer.get("stale") is True, answer.get("completed_at"))
        return Once(outcome=outcome)
    kinds = {"conflict": Conflict, "in_progress": InProgress, "indeterminate": Indeterminate, "expired": Expired}
    kind = kinds.get(str(kind_of))
    raise kind(answer) if kind else ProtocolError(f"a claim was answered {kind_of!r}")


class Claim:
    """A record that this attempt owns. Its lease is renewed in the background until it is reported.

    As a context manager it is never forgotten: a block that ends without a report, or by an exception, suspends the record
    when it is begun (something may have happened) and releases it when it is staged (nothing has started).
    """

    def __init__(self, client: Client, record: Dict[str, Any], grant: Mapping[str, Any], sent_at: float) -> None:
        self._client = client
        self.record = record
        #: What was reported to have come of it.
        self.outcome: Optional[Outcome] = None
        #: The fencing token, decimal: larger than that of every owner before. A sink that remembers the largest one that it
        #: has seen refuses the writes of an owner that was overtaken.
        self.fence = str(grant["fence"])
        #: 1 for the first attempt.
        self.attempt = int(grant["attempt"])
        #: The provider's own idempotency key: the same for every attempt, also in a later life of the key.
        self.downstream_key = str(grant["downstream_key"])
        checkpoint = grant.get("checkpoint")
        #: The last recovery point of an attempt before: its name and its data.
        self.last_checkpoint: Optional[Tuple[str, bytes]] = (
            (checkpoint["name"], base64.b64decode(checkpoint["data"])) if checkpoint else None
        )
        #: Whether it is begun; set before the command that begins is sent: in doubt an effect may have been permitted.
        self.begun = grant.get("phase") == "begun"
        #: Set once the service has said that this attempt owns the record no more: for a handler that can stop.
        self.lost = threading.Event()
        self._reported = False
        self._lease = Lease(sent_at, int(grant["lease_ms"]))
        # Commands of one owner go out one after the other, so that a retry never overtakes a later one.
        self._order = threading.Lock()
        self._renew_until: Optional[float] = None
        self._schedule()

    def __repr__(self) -> str:
        return f"<semel.Claim fence={self.fence} attempt={self.attempt}>"

    # Before and while effects happen.

    @property
    def is_live(self) -> bool:
        """Whether the record is owned, as far as is known here, with enough of the lease left to start an effect."""
        return not self.lost.is_set() and time.monotonic() < self._lease.last_start_at

    @property
    def time_left_s(self) -> float:
        """How much longer an effect may be started, if no renewal comes in between."""
        return max(0.0, self._lease.last_start_at - time.monotonic())

    def check(self) -> None:
        """To be asked right before each effect: raises `LeaseSpent` once the record is lost, or 95 % of the lease have passed
        by this process's own clock."""
        if not self.is_live:
            raise LeaseSpent

    def begin(self) -> None:
        """Says that an effect is about to start. Repeating it is fine. Where it raises, nothing may be started."""
        with self._order:
            self.begun = True
            lease, sent_at = self._lease, time.monotonic()
            # Where the claim has waited long, most of the lease has passed by our count: one command does both.
            lease_ms = lease.granted_ms if sent_at >= lease.renew_at else None
            answer = self._send("begin", lease_ms=lease_ms)
            if lease_ms is not None:
                self._extend(sent_at, answer)
        self.check()

    def start(self) -> None:
        """Begins, or gives the claim back: nothing was started, whatever became of the begin, so the owner can say so."""
        try:
            if not self.begun:
                self.begin()
            elif not self.is_live:
                # Begun at once, and waited long: by its own count little may be left.
                self.renew()
                self.check()
        except BaseException:
            self._end("release", "the handler was never started")
            raise

    def renew(self) -> None:
        """Extends the lease at once; it is renewed by itself as well."""
        sent_at = time.monotonic()
        self._extend(sent_at, self._send("renew"))

    def checkpoint(self, name: str, data: bytes) -> None:
        """Keeps a recovery point for whoever takes over or investigates. Begins as well."""
        with self._order:
            self.begun = True
            self._send("checkpoint", name=name, data=data)

    # The owner's last word. Where it isn't learnt, no other is sent in its place: the lapse of the lease decides.

    def complete(
        self,
        outcome: Union[Outcome, int],
        body: Union[bytes, str, None] = None,
        content_type: Optional[str] = None,
    ) -> Outcome:
        """Reports the outcome, or a status with a body. It is durable once this returns. It is tried also when the record
        seems lost: the service alone knows, and the owner's own late report is better than none. Raises `Unrecorded`."""
        if isinstance(outcome, int):
            data = body.encode("utf-8") if isinstance(body, str) else body or b""
            outcome = Outcome(outcome, data, content_type)
        try:
            self._report("complete", outcome=outcome)
        except SemelError as error:
            raise Unrecorded(outcome, error) from error
        self.outcome = outcome
        return outcome

    def release(self, evidence: str) -> None:
        """States that no effect happened and none can happen any more, and how that is known."""
        self._report("release", evidence=evidence)

    def suspend(self, reason: str) -> None:
        """States that the owner doesn't know what happened: the record becomes indeterminate."""
        self._report("suspend", reason=reason)

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        _: Optional[TracebackType],
    ) -> None:
        if self._reported:
            return
        if isinstance(error, NoEffect) and error.evidence.strip():
            # The caller relies on it: where it isn't learnt, that is what is raised.
            self.release(error.evidence)
        elif not self.begun:
            self._end("release", "the block ended before anything was started")
        elif error is None:
            self._end("suspend", "the block ended without an outcome")
            raise Indeterminate({"reason": "the block ended without an outcome", "retry_after_ms": 60_000})
        else:
            # Without evidence nobody can rely on it: what isn't known stays open.
            self._end("suspend", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Gives the record up without a word of its own: released when staged, suspended when begun."""
        if not self._reported:
            if self.begun:
                self._end("suspend", "the claim was closed without a report")
            else:
                self._end("release", "the claim was closed before anything was started")

    # In the background.

    def renew_until(self, when: float) -> None:
        """Renews no further than to this time of the monotonic clock: for whoever can't be sure to report."""
        self._renew_until = when

    def _schedule(self) -> None:
        self._client.renewals.at(max(self._lease.renew_at, time.monotonic() + LEASE_S_MIN / 3), self._keep)

    def _keep(self) -> None:
        now = time.monotonic()
        if self._reported or self.lost.is_set() or (self._renew_until is not None and now >= self._renew_until):
            return
        if now >= self._lease.renew_at:
            try:
                self.renew()
            except SemelError as error:
                if ends_ownership(error):
                    return
                log.debug("a lease was not renewed yet: %s", error)
        self._schedule()

    def _extend(self, sent_at: float, answer: Mapping[str, Any]) -> None:
        lease_ms = answer.get("lease_ms")
        if isinstance(lease_ms, int):
            self._lease = self._lease.extended(Lease(sent_at, lease_ms))

    def _send(self, verb: str, give_up: Optional[float] = None, **fields: Any) -> Mapping[str, Any]:
        """One command of the owner. A refusal that ends the ownership is remembered."""
        call = getattr(self._client.records, verb)
        try:
            answer: Mapping[str, Any] = call(self.record, self.fence, give_up=give_up, **fields)
            return answer
        except SemelError as error:
            if ends_ownership(error):
                self.lost.set()
            raise

    def _report(self, verb: str, **fields: Any) -> None:
        give_up = time.monotonic() + self._client.report_s
        try:
            with self._order:
                self._send(verb, give_up, **fields)
        finally:
            self._reported = True

    def _end(self, verb: str, text: str) -> None:
        """A report on the way out, which must not hide why."""
        try:
            self._report(verb, **{"evidence" if verb == "release" else "reason": text})
        except SemelError as error:
            log.warning("a claim could not be reported and is left to the lapse of its lease: %s", error)
