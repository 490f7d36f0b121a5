"""When a command is repeated: a budget for the whole client, a pause with jitter for each command.

The numbers are those of the Rust client: calls that succeed fill the budget, retries empty it, so that a client whose
every call fails adds a fifth to its load at most.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Callable, Optional, TypeVar

from .errors import NONE, UNKNOWN, Refused, RefusedAtLast, SemelError

RETRIES_MAX = 1000
#: Kept back for owners' reports.
RETRIES_RESERVED = 250
CALLS_PER_RETRY = 5
BACKOFF_S = 0.02
BACKOFF_S_MAX = 2.0
REDIRECTS_MAX = 4
#: Time that a try must have left to be begun at all.
TRY_S_MIN = 0.02

T = TypeVar("T")


class Budget:
    """Retries that may be spent, in parts of a retry: a call that succeeds gives one part."""

    def __init__(self) -> None:
        self._parts = RETRIES_MAX * CALLS_PER_RETRY
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """A call succeeded."""
        with self._lock:
            self._parts = min(self._parts + 1, RETRIES_MAX * CALLS_PER_RETRY)

    def withdraw(self, owner: bool) -> bool:
        """Takes one retry, if there is one for this kind of call."""
        floor = 0 if owner else RETRIES_RESERVED * CALLS_PER_RETRY
        with self._lock:
            if self._parts - CALLS_PER_RETRY < floor:
                return False
            self._parts -= CALLS_PER_RETRY
            return True


class Backoff:
    """The pauses of one command's retries."""

    def __init__(self) -> None:
        self._tries = 0

    def pause_s(self, retry_after_ms: Optional[int]) -> float:
        """The next pause. What the server asks for is a floor under it."""
        bound = min(BACKOFF_S * (1 << min(self._tries, 16)), BACKOFF_S_MAX)
        self._tries += 1
        return (retry_after_ms or 0) / 1000 + 0.001 + random.uniform(0, bound)


def _repeats_by_itself(error: SemelError) -> bool:
    # By the time that a verdict may be repeated, the evidence that it carries is old and has to be gathered again.
    return error.retryable and error.code != "owner_may_act"


def repeat(budget: Budget, owner: bool, give_up: float, attempt: Callable[[], T]) -> T:
    """Repeats an attempt until it succeeds, can't, or may not any more. Every attempt must be one and the same command,
    with the same attempt id, fence or request id: only so is it safe to repeat what may have been applied."""
    backoff = Backoff()
    doubt: Optional[SemelError] = None
    redirects = 0
    while True:
        try:
            answer = attempt()
        except SemelError as failed:
            error = failed
        else:
            budget.deposit()
            return answer
        if not _repeats_by_itself(error):
            # It speaks for the last try alone.
            if doubt is not None and error.effect == NONE:
                raise RefusedAtLast(error, doubt) from error
            raise error
        leader = error.leader if isinstance(error, Refused) else None
        if leader is not None and redirects < REDIRECTS_MAX and time.monotonic() < give_up:
            # Nothing was proposed, and who leads is known now: no retry of a service in trouble.
            redirects += 1
            continue
        pause = backoff.pause_s(error.retry_after_ms)
        # An attempt that has no time left could only blur what the last one learnt.
        goes_on = time.monotonic() + pause + TRY_S_MIN < give_up and budget.withdraw(owner)
        if goes_on:
            time.sleep(pause)
            goes_on = time.monotonic() + TRY_S_MIN < give_up
        if not goes_on:
            # An attempt before this one may have been applied: "effect none" would speak for the last one alone.
            raise doubt if doubt is not None and error.effect == NONE else error
        if error.effect == UNKNOWN and doubt is None:
            doubt = error
