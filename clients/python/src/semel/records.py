"""Every call of the API, one method each: what it takes and answers are the JSON shapes of the API, as dictionaries.

Each is repeated by itself where that is safe, which it always is here: with its attempt id, its fence or its request id a
command that is sent twice is one command.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union
from urllib.parse import urlencode

from ._retry import Backoff, repeat
from .errors import Refused, SemelError
from .errors import refused as refusal_of
from .fingerprint import Fingerprint
from .outcome import Outcome

if TYPE_CHECKING:
    from .client import Client

__all__ = ["MISSING", "Answer", "Records", "record_id"]

Answer = Dict[str, Any]
#: A request that was not given: None is the request `null`.
MISSING: Any = object()

#: The most that the service keeps of a reason or of evidence, bytes.
STATEMENT_BYTES_MAX = 1024


def record_id(
    operation: str, key: str, principal: Optional[str] = None, tenant: Optional[str] = None
) -> Dict[str, Optional[str]]:
    """What names a record. A tenant and a principal that aren't given are the client's."""
    return {"tenant": tenant, "principal": principal, "operation": operation, "key": key}


def statement(text: str) -> str:
    """A text cut to what the service takes as a reason or evidence. Such texts come from errors, of any length: a report
    must not be refused for that."""
    cut = text.strip().encode("utf-8", "replace")[:STATEMENT_BYTES_MAX]
    return cut.decode("utf-8", "ignore")


def prints(fingerprints: Union[Fingerprint, Iterable[Fingerprint]]) -> List[Dict[str, Any]]:
    """Fingerprints as the API has them."""
    if isinstance(fingerprints, Fingerprint):
        fingerprints = [fingerprints]
    return [{"scheme": one.scheme, "digest": one.hex} for one in fingerprints]


def given(**fields: Any) -> Dict[str, Any]:
    """The fields that are there."""
    return {name: value for name, value in fields.items() if value is not None}


class Records:
    """The calls of a client's `records`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def call(
        self, path: str, body: Mapping[str, Any], *, owner: bool = False, give_up: Optional[float] = None
    ) -> Answer:
        """Any call of the API that is safe to repeat as it stands: `path` like `/v1/get`."""
        client = self._client
        until = client.give_up() if give_up is None else give_up

        def attempt() -> Answer:
            return client.transport.post(path, body, min(time.monotonic() + client.attempt_s, until))

        return repeat(client.budget, owner, until, attempt)

    def _owner(self, verb: str, record: Mapping[str, Any], fence: str, fields: Mapping[str, Any], **kw: Any) -> Answer:
        body = {"record": self._client.named(record), "fence": str(fence), **fields}
        return self.call(f"/v1/{verb}", body, owner=True, **kw)

    def claim(
        self,
        record: Mapping[str, Any],
        *,
        request: Any = MISSING,
        fingerprints: Union[Fingerprint, Iterable[Fingerprint], None] = None,
        ignore: Iterable[str] = (),
        attempt_id: Optional[str] = None,
        lease_ms: Optional[int] = None,
        wait_ms: int = 0,
        staged: Optional[bool] = None,
        on_lapse: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        first_sent_at: Optional[str] = None,
        replay_s: Optional[int] = None,
        evidence_s: Optional[int] = None,
        ttl_ms: Optional[int] = None,
    ) -> Answer:
        """May I? The answer's `answer` is `new`, `completed`, `in_progress`, `conflict`, `indeterminate` or `expired`.
        Without an attempt id one is made, so that every try is one and the same claim."""
        client = self._client
        client.check_open()
        body: Dict[str, Any] = given(
            record=client.named(record),
            fingerprints=None if fingerprints is None else prints(fingerprints),
            ignore=list(ignore) or None,
            attempt_id=attempt_id or str(uuid.uuid4()),
            lease_ms=lease_ms,
            staged=staged,
            on_lapse=on_lapse,
            labels=None if labels is None else dict(labels),
            first_sent_at=first_sent_at,
            replay_s=replay_s,
            evidence_s=evidence_s,
            # An attempt that nobody waits for any more need not be applied.
            ttl_ms=int(client.attempt_s * 1000) if ttl_ms is None else ttl_ms,
        )
        if request is not MISSING:
            body["request"] = request
        answer = self.call("/v1/claim", body)
        until = time.monotonic() + wait_ms / 1000
        while answer.get("answer") == "in_progress" and time.monotonic() < until:
            asked_at = time.monotonic()
            left = until - asked_at
            answer = self._claim_waiting(body, until)
            if answer.get("answer") == "in_progress" and time.monotonic() - asked_at < left / 2:
                # The server's policy waits for less than was asked: it says itself when to ask again.
                pause = max(1000, answer.get("retry_after_ms") or 0) / 1000
                time.sleep(max(0.0, min(pause, until - time.monotonic())))
        return answer

    def _claim_waiting(self, body: Mapping[str, Any], until: float) -> Answer:
        client = self._client
        give_up = client.give_up() + max(0.0, until - time.monotonic())

        def attempt() -> Answer:
            # A wait that was broken off goes on for what is left of it.
            now = time.monotonic()
            left = max(0.0, until - now)
            waiting = {**body, "wait_ms": int(left * 1000)}
            waiting.pop("ttl_ms", None)
            return client.transport.post("/v1/claim", waiting, min(now + client.attempt_s + left, give_up))

        return repeat(client.budget, False, give_up, attempt)

    def begin(self, record: Mapping[str, Any], fence: str, *, lease_ms: Optional[int] = None, **kw: Any) -> Answer:
        """An effect is about to start."""
        return self._owner("begin", record, fence, given(lease_ms=lease_ms), **kw)

    def renew(self, record: Mapping[str, Any], fence: str, *, lease_ms: Optional[int] = None, **kw: Any) -> Answer:
        """Extends the lease."""
        return self._owner("renew", record, fence, given(lease_ms=lease_ms), **kw)

    def checkpoint(self, record: Mapping[str, Any], fence: str, name: str, data: bytes, **kw: Any) -> Answer:
        """Keeps a recovery point for whoever takes over or investigates."""
        text = base64.b64encode(data).decode("ascii")
        return self._owner("checkpoint", record, fence, {"name": name, "data": text}, **kw)

    def complete(self, record: Mapping[str, Any], fence: str, outcome: Outcome, **kw: Any) -> Answer:
        """Reports the outcome. It is durable once this returns."""
        return self._owner("complete", record, fence, {"outcome": outcome.to_wire()}, **kw)

    def release(self, record: Mapping[str, Any], fence: str, evidence: Optional[str] = None, **kw: Any) -> Answer:
        """No effect happened and none can happen any more."""
        evidence = None if evidence is None else statement(evidence)
        return self._owner("release", record, fence, given(evidence=evidence), **kw)

    def suspend(self, record: Mapping[str, Any], fence: str, reason: str = "", **kw: Any) -> Answer:
        """The owner doesn't know what happened."""
        return self._owner("suspend", record, fence, {"reason": statement(reason)}, **kw)

    def get(self, record: Mapping[str, Any], *, with_outcome: bool = False) -> Answer:
        """Reads a record without claiming it; `not_found` is refused."""
        return self.call("/v1/get", {"record": self._client.named(record), "with_outcome": with_outcome})

    def batch(self, items: Iterable[Mapping[str, Mapping[str, Any]]]) -> List[Answer]:
        """Up to 256 of claim, begin, renew, checkpoint, complete, release, suspend and get, in order: an answer for each, a
        refusal as `{"refused": {…}}`. Claims without an attempt id get one."""
        named = []
        for item in items:
            own = {kind: {**body, "record": self._client.named(body["record"])} for kind, body in item.items()}
            if "claim" in own and not own["claim"].get("attempt_id"):
                own["claim"]["attempt_id"] = str(uuid.uuid4())
            named.append(own)
        answers = self.call("/v1/batch", {"items": named}, owner=True)["items"]
        return list(answers)

    def list(
        self,
        *,
        state: Optional[str] = None,
        operation: Optional[str] = None,
        principal: Optional[str] = None,
        tenant: Optional[str] = None,
        older_than_ms: Optional[int] = None,
        page_size: Optional[int] = None,
    ) -> Iterator[Answer]:
        """The records that fit, without outcomes, page by page."""
        body = given(
            state=state,
            operation=operation,
            principal=principal,
            tenant=tenant or self._client.tenant,
            older_than_ms=older_than_ms,
            page_size=page_size,
        )
        return self._pages("/v1/list", body, "records")

    def history(self, record: Mapping[str, Any]) -> Iterator[Answer]:
        """What happened to a record, oldest first."""
        return self._pages("/v1/history", {"record": self._client.named(record)}, "events")

    def _pages(self, path: str, body: Mapping[str, Any], items: str) -> Iterator[Answer]:
        cursor = None
        while True:
            page = self.call(path, body if cursor is None else {**body, "cursor": cursor})
            yield from page[items]
            # A page may be short, or empty: the cursor alone says whether there are more.
            cursor = page.get("cursor")
            if cursor is None:
                return

    def investigate(
        self,
        record: Mapping[str, Any],
        *,
        actor: str,
        lease_ms: Optional[int] = None,
        version: Optional[str] = None,
    ) -> Answer:
        """Takes up an indeterminate record: one reconciler at a time."""
        body = given(record=self._client.named(record), actor=actor, lease_ms=lease_ms, version=version)
        return self.call("/v1/investigate", body)

    def resolve(
        self,
        record: Mapping[str, Any],
        *,
        version: str,
        verdict: str,
        evidence: str,
        actor: Optional[str] = None,
        outcome: Optional[Outcome] = None,
        check_again_at: Optional[str] = None,
        request_id: Optional[str] = None,
    ) -> Answer:
        """Settles an indeterminate record: `completed` with its outcome, `no_effect`, or `unknown` until `check_again_at`.
        `owner_may_act` is left to the caller: by the time that it may be repeated, the evidence is old."""
        body = given(
            record=self._client.named(record),
            version=version,
            verdict=verdict,
            evidence=statement(evidence),
            actor=actor,
            outcome=None if outcome is None else outcome.to_wire(),
            check_again_at=check_again_at,
            request_id=request_id or str(uuid.uuid4()),
        )
        return self.call("/v1/resolve", body)

    def forget(self, record: Mapping[str, Any], reason: Optional[str] = None) -> Answer:
        """Erases a completed outcome's body early; the evidence that it was done stays."""
        return self.call("/v1/forget", given(record=self._client.named(record), reason=reason))

    def get_policy(self, *, tenant: Optional[str] = None, operation: Optional[str] = None) -> Answer:
        """The policy that holds."""
        return self.call("/v1/policy/get", given(tenant=tenant or self._client.tenant, operation=operation))

    def set_policy(
        self, policy: Mapping[str, Any], *, tenant: Optional[str] = None, operation: Optional[str] = None
    ) -> Answer:
        """Changes the fields that are given; None removes an override."""
        body = {**given(tenant=tenant or self._client.tenant, operation=operation), "policy": dict(policy)}
        return self.call("/v1/policy/set", body)

    def watch(
        self, *, operation: Optional[str] = None, tenant: Optional[str] = None, from_index: Optional[str] = None
    ) -> Iterator[Tuple[str, Answer]]:
        """The indeterminate records as they come and go: `("reset", …)` before a whole set, `("indeterminate", record)`,
        `("gone", …)`. Opened anew by itself where it breaks off, from the position where it stood. Never ends."""
        last_id = from_index
        backoff = Backoff()
        while True:
            query = given(tenant=tenant or self._client.tenant, operation=operation, from_index=last_id)
            path = "/v1/watch" + (f"?{urlencode(query)}" if query else "")
            try:
                for event, data, event_id in self._events(path):
                    backoff = Backoff()
                    if event == "refused":
                        raise refusal_of(data)
                    if event_id is not None:
                        last_id = event_id
                    yield event, data
            except SemelError as error:
                if not error.retryable:
                    raise
                if isinstance(error, Refused) and error.leader is not None:
                    continue
            time.sleep(backoff.pause_s(None))

    def _events(self, path: str) -> Iterator[Tuple[str, Answer, Optional[str]]]:
        event, data, event_id = "message", "", None
        for line in self._client.transport.stream(path, {}, self._client.watch_idle_s):
            text = line.decode("utf-8").rstrip("\r\n")
            name, _, value = text.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "event":
                event = value
            elif name == "data":
                data += value
            elif name == "id":
                event_id = value
            elif not text and data:
                yield event, json.loads(data), event_id
                event, data, event_id = "message", "", None
