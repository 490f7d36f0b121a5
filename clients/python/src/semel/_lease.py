"""An owner's own count of its lease, and what renews it.

The owner trusts no clock but its own monotonic one, and counts from before it sent the request that was granted: so its
count always ends before the cluster's. It starts no effect after 95 % of it.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from typing import Callable, List, Optional, Tuple

LEASE_PART_MAX = 0.95
RENEWALS_PER_LEASE = 3


class Lease:
    """A lease as its owner counts it, in seconds of the monotonic clock."""

    def __init__(self, counted_from: float, granted_ms: int) -> None:
        self.counted_from = counted_from
        self.granted_s = granted_ms / 1000

    @property
    def ends_at(self) -> float:
        return self.counted_from + self.granted_s

    @property
    def last_start_at(self) -> float:
        return self.counted_from + self.granted_s * LEASE_PART_MAX

    @property
    def renew_at(self) -> float:
        return self.counted_from + self.granted_s / RENEWALS_PER_LEASE

    @property
    def granted_ms(self) -> int:
        return round(self.granted_s * 1000)

    def extended(self, other: Lease) -> Lease:
        """The later of the two: a renewal that was overtaken takes nothing away."""
        return other if other.ends_at > self.ends_at else self


class Renewals:
    """One thread for all claims of a client that waits for the first renewal that is due. What is due gets a thread of its
    own, so that one slow answer keeps no other lease from being renewed; a claim that ends before costs none."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._due: List[Tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._thread: Optional[threading.Thread] = None

    def at(self, when: float, renew: Callable[[], None]) -> None:
        """Calls `renew`, in a thread of its own, at this time."""
        if os.getpid() != self._pid:
            # Threads don't survive a fork, and the parent's claims are the parent's to renew.
            self._reset()
        with self._changed:
            self._count += 1
            heapq.heappush(self._due, (when, self._count, renew))
            if self._thread is None:
                self._thread = threading.Thread(target=self._wait, name="semel-renewals", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _wait(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, renew = heapq.heappop(self._due)
            threading.Thread(target=renew, name="semel-renewal", daemon=True).start()
