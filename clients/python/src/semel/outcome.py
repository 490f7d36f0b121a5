"""Outcomes: what a handler reports, and what a later caller is given, byte for byte."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """What came of an operation, in the caller's own protocol."""

    #: The status in the caller's protocol, e.g. an HTTP status.
    status: int
    #: The bytes of the result. None only in a replay of an outcome that was too large to be kept.
    body: Optional[bytes] = field(default=b"", repr=False)
    content_type: Optional[str] = None
    #: At most 64, together at most 16 KiB. Names are kept in lower case; the content type has its own field.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: RFC 3339. From then on a replay is `stale`.
    valid_until: Optional[str] = None
    #: In a replay: `valid_until` has passed.
    stale: bool = False
    #: In a replay: when it was reported, in cluster time, RFC 3339.
    completed_at: Optional[str] = None

    @classmethod
    def json(cls, status: int, value: Any, headers: Optional[Mapping[str, str]] = None) -> Outcome:
        """With this JSON value as its body."""
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        return cls(status, body, "application/json", dict(headers or {}))

    @property
    def is_stored(self) -> bool:
        """Whether the service kept the body. Where it did not, the operation is done all the same and never runs again."""
        return self.body is not None

    def value(self) -> Any:
        """The JSON value that the body holds."""
        if self.body is None:
            raise ValueError("the body was not kept")
        return json.loads(self.body)

    def to_wire(self) -> Dict[str, Any]:
        """As the API has it."""
        return {
            "status": self.status,
            "headers": dict(self.headers),
            "content_type": self.content_type,
            "body": base64.b64encode(self.body or b"").decode("ascii"),
            "valid_until": self.valid_until,
        }

    @classmethod
    def of_wire(
        cls, wire: Mapping[str, Any], stale: bool = False, completed_at: Optional[str] = None
    ) -> Outcome:
        """From the API."""
        text = wire.get("body")
        body = None if wire.get("not_stored") else base64.b64decode(text or "", validate=True)
        return cls(
            status=int(wire.get("status") or 0),
            body=body,
            content_type=wire.get("content_type"),
            headers=dict(wire.get("headers") or {}),
            valid_until=wire.get("valid_until"),
            stale=stale,
            completed_at=completed_at,
        )
