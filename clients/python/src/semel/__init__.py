"""Semel from Python: one caller intent, one durable outcome.

    import semel

    client = semel.Client("http://127.0.0.1:7171")
    with client.once("charge.create", key, request=order) as once:
        if once.claim:
            charge = provider.charge(order, idempotency_key=once.claim.downstream_key)
            once.claim.complete(semel.Outcome.json(201, charge))
    print(once.outcome.status, once.outcome.body)
"""

from .claim import Claim, Once
from .client import Client, Done
from .errors import (
    ClusterChanged,
    ConfigurationError,
    Conflict,
    Expired,
    InProgress,
    Indeterminate,
    LeaseSpent,
    Lost,
    NoEffect,
    NotOwned,
    NotStored,
    OwnershipLost,
    ProtocolError,
    Refused,
    RefusedAtLast,
    SemelError,
    TimedOut,
    Unreachable,
    Unrecorded,
)
from .fingerprint import Fingerprint, FingerprintError, Part
from .outcome import Outcome
from .records import Records, record_id

__version__ = "0.1.0"

__all__ = [
    "Claim",
    "Client",
    "ClusterChanged",
    "ConfigurationError",
    "Conflict",
    "Done",
    "Expired",
    "Fingerprint",
    "FingerprintError",
    "InProgress",
    "Indeterminate",
    "LeaseSpent",
    "Lost",
    "NoEffect",
    "NotOwned",
    "NotStored",
    "Once",
    "Outcome",
    "OwnershipLost",
    "Part",
    "ProtocolError",
    "Records",
    "Refused",
    "RefusedAtLast",
    "SemelError",
    "TimedOut",
    "Unreachable",
    "Unrecorded",
    "record_id",
]
