"""A persistence layer for the idempotency utility of AWS Lambda Powertools.

    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
    from semel.powertools import SemelPersistenceLayer

    @idempotent(persistence_store=SemelPersistenceLayer(), config=IdempotencyConfig(event_key_jmespath="order_id"))
    def handler(event, context): ...

The handler runs at most once for each key until somebody has said that a run came to nothing. That is where it differs
from the layer for DynamoDB: a run that died, or that raised, isn't run again by itself.
"""

from __future__ import annotations

import hashlib
import threading
import time
from datetime import datetime
from typing import Any, Dict, Optional, Tuple, Type

from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import STATUS_CONSTANTS, DataRecord

from .claim import Claim
from .client import Client
from .errors import Conflict, Expired, InProgress, Indeterminate, NoEffect, NotStored, Refused
from .fingerprint import Fingerprint
from .outcome import Outcome
from .records import record_id

__all__ = ["SemelPersistenceLayer"]

#: The longest that a Lambda function runs, s.
RUN_S_MAX = 900.0
#: What a name of an operation may take, bytes.
OPERATION_BYTES_MAX = 128


class SemelPersistenceLayer(BasePersistenceLayer):  # type: ignore[misc, unused-ignore]
    """Keeps what Powertools' idempotency utility has to remember in Semel.

    `client`: default one of the environment (SEMEL_ENDPOINT, SEMEL_TOKEN). `no_effect`: exceptions of the handler that mean
    that nothing happened and nothing can happen any more; they release the key, as does `semel.NoEffect`. After any other
    the key is indeterminate. `evidence_s`: how long after `expires_after_seconds` a key still doesn't run again; default
    the policy's. As much as `expires_after_seconds` itself: the key runs again as soon as its outcome isn't replayed.
    """

    def __init__(
        self,
        client: Optional[Client] = None,
        *,
        no_effect: Tuple[Type[Exception], ...] = (),
        evidence_s: Optional[int] = None,
        principal: Optional[str] = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.client = client or Client()
        self.no_effect: Tuple[Type[Exception], ...] = (NoEffect, *no_effect)
        self.evidence_s = evidence_s
        self.principal = principal
        self._lock = threading.Lock()
        self._owned: Dict[str, Claim] = {}
        self._raised = threading.local()

    def delete_record(self, data: Any, exception: Exception) -> None:
        """The handler raised: kept for what it says about its effect."""
        self._raised.exception = exception
        try:
            super().delete_record(data, exception)
        finally:
            self._raised.exception = None

    def _put_record(self, data_record: DataRecord) -> None:
        operation, key = _identity(data_record.idempotency_key)
        run_s = None
        if data_record.in_progress_expiry_timestamp is not None:
            run_s = max(1.0, data_record.in_progress_expiry_timestamp / 1000 - time.time())
        try:
            once = self.client.claim(
                operation,
                key,
                principal=self.principal,
                fingerprint=Fingerprint.raw((data_record.payload_hash or "").encode("utf-8")),
                # As long as the function may run: then it is over for certain, whatever became of it.
                lease_s=run_s,
                on_lapse="hold",
                replay_s=self.expires_after_seconds,
                evidence_s=self.evidence_s,
            )
        except Conflict as conflict:
            raise IdempotencyValidationError("Payload does not match stored record for this event key") from conflict
        except InProgress as other:
            raise IdempotencyItemAlreadyExistsError(
                old_data_record=DataRecord(data_record.idempotency_key, status=STATUS_CONSTANTS["INPROGRESS"])
            ) from other
        if once.claim is None:
            found = self._completed(data_record.idempotency_key, once.outcome, data_record.payload_hash)
            self._save_to_cache(found)
            raise IdempotencyItemAlreadyExistsError(old_data_record=found)
        # Whatever ends the handler without a word (SystemExit, a killed thread) must not be renewed for ever.
        once.claim.renew_until(time.monotonic() + (RUN_S_MAX if run_s is None else run_s))
        once.claim.start()
        with self._lock:
            self._owned[data_record.idempotency_key] = once.claim

    def _update_record(self, data_record: DataRecord) -> None:
        claim = self._take(data_record.idempotency_key)
        body = (data_record.response_data or "").encode("utf-8")
        claim.complete(Outcome(200, body, "application/json"))

    def _delete_record(self, data_record: DataRecord) -> None:
        claim = self._take(data_record.idempotency_key)
        exception: Optional[Exception] = getattr(self._raised, "exception", None)
        said = f"{type(exception).__name__}: {exception}" if exception else "deleted"
        if isinstance(exception, self.no_effect):
            claim.release(said)
        else:
            claim.suspend(said)

    def _get_record(self, idempotency_key: str) -> DataRecord:
        operation, key = _identity(idempotency_key)
        try:
            record = self.client.records.get(record_id(operation, key, self.principal), with_outcome=True)
        except Refused as refused:
            if refused.code == "not_found":
                raise IdempotencyItemNotFoundError from refused
            raise
        state = record.get("state")
        if state == "in_progress":
            return DataRecord(idempotency_key, status=STATUS_CONSTANTS["INPROGRESS"])
        if state == "indeterminate":
            raise Indeterminate(record)
        if state == "expired":
            raise Expired({"reason": "replay_over", **record})
        outcome = Outcome.of_wire(record["outcome"], completed_at=record.get("completed_at"))
        # The payload's own hash isn't kept, but its fingerprint is.
        wanted = [one["digest"] for one in record.get("fingerprints") or []]
        return self._completed(idempotency_key, outcome, _Hash.of(wanted))

    def _completed(self, idempotency_key: str, outcome: Outcome, payload_hash: Optional[str]) -> DataRecord:
        if outcome.body is None:
            raise NotStored({"answer": "completed"})
        expires = None
        if outcome.completed_at is not None:
            completed = datetime.fromisoformat(outcome.completed_at.replace("Z", "+00:00")).timestamp()
            expires = int(completed) + self.expires_after_seconds
            # The service says what is expired: this is for whoever shows it, and a clock of ours that is ahead says nothing.
            expires = expires if expires > time.time() else None
        return DataRecord(
            idempotency_key,
            status=STATUS_CONSTANTS["COMPLETED"],
            expiry_timestamp=expires,
            response_data=outcome.body.decode("utf-8"),
            payload_hash="" if payload_hash is None else payload_hash,
        )

    def _take(self, idempotency_key: str) -> Claim:
        with self._lock:
            claim = self._owned.pop(idempotency_key, None)
        if claim is None:
            raise RuntimeError("the key is not owned by this process")
        return claim


class _Hash(str):
    """A payload hash of which the fingerprint alone is known: equal to whatever has that fingerprint."""

    digests: Tuple[str, ...] = ()

    @classmethod
    def of(cls, digests: Any) -> _Hash:
        own = cls()
        own.digests = tuple(digests)
        return own

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and Fingerprint.raw(other.encode("utf-8")).hex in self.digests

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.digests)


def _identity(idempotency_key: str) -> Tuple[str, str]:
    """`FUNCTION#HASH` as operation and key: so that a function's records can be listed, and quotas set for it."""
    operation, _, key = idempotency_key.rpartition("#")
    plain = "".join(c if " " <= c <= "~" else "?" for c in operation) or "lambda"
    if plain != operation or len(plain) > OPERATION_BYTES_MAX:
        digest = hashlib.sha256(operation.encode("utf-8")).hexdigest()[:32]
        plain = f"{plain[: OPERATION_BYTES_MAX - 33]}~{digest}"
    return plain, key
