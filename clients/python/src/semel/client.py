"""The client: claims, runs and reports around a handler.

Everything here may be used by many threads at once. After a fork the child opens connections of its own.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import ssl
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, Sequence, Tuple, TypeVar, Union, cast

from ._lease import Renewals
from ._retry import Budget
from ._transport import Cluster, Nodes, Transport
from .claim import Claim, Once, found
from .errors import NONE, ConfigurationError, SemelError
from .fingerprint import Fingerprint
from .outcome import Outcome
from .records import MISSING, Records, record_id

__all__ = ["Client", "Done"]

ENDPOINT = "http://127.0.0.1:7171"
#: Claims that may be given back in the background at once; further ones are left to the lapse of their leases.
GIVEN_BACK_MAX = 64

log = logging.getLogger("semel")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Done:
    """What came of `Client.run`."""

    outcome: Outcome
    #: Whether this is the outcome of an earlier run: the handler was not called.
    replayed: bool


class Client:
    """A client of a cluster.

    `endpoints`: one or several nodes, any one is enough; default the environment's SEMEL_ENDPOINT (comma-separated), else
    the node of `semel dev`. `token`: default SEMEL_TOKEN. `ca`: a file with the authorities whose certificates are taken
    from `https://` nodes, no others are; `certificate`: files of the certificate to present and of its key. `deadline_s`:
    how long a call may take in all, retries included; `attempt_s`: one try of it; `report_s`: an owner's report, longer
    than anything else because an effect has happened whose outcome is known to nobody else.
    """

    def __init__(
        self,
        endpoints: Union[str, Sequence[str], None] = None,
        *,
        token: Optional[str] = None,
        tenant: Optional[str] = None,
        principal: Optional[str] = None,
        ca: Optional[str] = None,
        certificate: Optional[Tuple[str, str]] = None,
        ssl_context: Optional[ssl.SSLContext] = None,
        insecure_plaintext: bool = False,
        cluster_id: Optional[str] = None,
        deadline_s: float = 15.0,
        attempt_s: float = 5.0,
        report_s: float = 60.0,
        watch_idle_s: float = 60.0,
    ) -> None:
        if endpoints is None:
            endpoints = os.environ.get("SEMEL_ENDPOINT") or ENDPOINT
        if isinstance(endpoints, str):
            endpoints = endpoints.split(",")
        if token is None:
            token = os.environ.get("SEMEL_TOKEN") or None
        tls = ssl_context or _tls(ca, certificate)
        # Whoever has a secret, or an authority to trust, is not led to a node without one.
        plaintext_anywhere = insecure_plaintext or (token is None and tls is None)
        self.tenant = tenant
        self.principal = principal
        self.deadline_s = deadline_s
        self.attempt_s = attempt_s
        self.report_s = report_s
        self.watch_idle_s = watch_idle_s
        self.budget = Budget()
        self.renewals = Renewals()
        self._cluster = Cluster(cluster_id)
        self.transport = Transport(Nodes(list(endpoints), plaintext_anywhere, tls), self._cluster, token, tls)
        self.records = Records(self)
        self._closed = False
        self._lock = threading.Lock()
        self._giving_back: Dict[threading.Thread, None] = {}

    def __repr__(self) -> str:
        return f"<semel.Client {self.transport.nodes.current().endpoint}>"

    # What calls are made with.

    def named(self, record: Mapping[str, Any]) -> Dict[str, Any]:
        """A record's name, filled in with the client's tenant and principal."""
        own = {name: value for name, value in record.items() if value is not None}
        if self.tenant is not None:
            own.setdefault("tenant", self.tenant)
        if self.principal is not None:
            own.setdefault("principal", self.principal)
        return own

    def give_up(self) -> float:
        """When a call that starts now is given up, on the monotonic clock."""
        return time.monotonic() + self.deadline_s

    @property
    def cluster_id(self) -> Optional[str]:
        """The cluster whose answers are taken, once one has answered."""
        return self._cluster.known

    def trust_cluster(self, cluster_id: str) -> None:
        """Takes answers from this cluster from now on. After `ClusterChanged`, once somebody has made sure that the new
        cluster is the restore that it claims to be: everything after its backup is in doubt."""
        self._cluster.known = cluster_id

    # Owning.

    def claim(
        self,
        operation: str,
        key: str,
        *,
        request: Any = MISSING,
        fingerprint: Union[Fingerprint, Iterable[Fingerprint], None] = None,
        ignore: Iterable[str] = (),
        principal: Optional[str] = None,
        tenant: Optional[str] = None,
        lease_s: Optional[float] = None,
        wait_s: float = 0.0,
        begun: bool = False,
        on_lapse: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
        first_sent_at: Optional[str] = None,
        replay_s: Optional[int] = None,
        evidence_s: Optional[int] = None,
    ) -> Once:
        """Claims a record, to be driven by hand: the guard is staged, and `begin` comes before the first effect. Its lease
        is renewed in the background until it is reported or closed.

        `request` (a JSON value; `ignore` names parts of it that don't count) or `fingerprint` tells a retry from another
        request under the key. `wait_s`: how long to wait for another attempt that is at it. `on_lapse="retake"`: for
        effects that are safe to repeat. Where the record is completed the guard holds its outcome and owns nothing.

        Raises `Conflict`, `InProgress`, `Indeterminate` or `Expired` where the key isn't free.
        """
        if (request is MISSING) == (fingerprint is None):
            raise ConfigurationError("request or fingerprint: exactly one of them tells a retry from another request")
        if fingerprint is None:
            # Computed here, and not sent: the service need not see the request.
            fingerprints = [Fingerprint.json(request, ignore)]
        elif ignore:
            raise ConfigurationError("ignore: it names parts of `request`; leave them out of the fingerprint instead")
        else:
            fingerprints = [fingerprint] if isinstance(fingerprint, Fingerprint) else list(fingerprint)
        record = self.named(record_id(operation, key, principal, tenant))
        attempt_id = str(uuid.uuid4())
        sent_at = time.monotonic()
        try:
            answer = self.records.claim(
                record,
                fingerprints=fingerprints,
                attempt_id=attempt_id,
                lease_ms=None if lease_s is None else int(lease_s * 1000),
                wait_ms=int(wait_s * 1000),
                staged=not begun,
                on_lapse=on_lapse,
                labels=labels,
                first_sent_at=first_sent_at,
                replay_s=replay_s,
                evidence_s=evidence_s,
            )
        except BaseException as error:
            if not (isinstance(error, SemelError) and error.effect == NONE):
                # It may have been granted without anybody knowing, and nothing was started on it.
                self._give_back(record, fingerprints, attempt_id, begun)
            raise
        if answer.get("answer") == "new":
            return Once(Claim(self, record, answer, sent_at))
        return found(answer)

    @contextmanager
    def once(self, operation: str, key: str, **options: Any) -> Iterator[Once]:
        """Runs the block's effect once: `with client.once("charge.create", key, request=order) as once:`.

        Options are those of `claim`. Where the record is completed, `once.claim` is None and `once.outcome` is there already.
        Else the block owns it: it is begun, the lease is renewed while the block runs, and the block ends with
        `once.claim.complete(…)`. A block that raises `NoEffect` releases the key; one that raises anything else, or that
        ends without an outcome, leaves the record indeterminate, because nobody knows what happened.
        """
        once = self.claim(operation, key, **options)
        if once.claim is None:
            yield once
            return
        once.claim.start()
        with once.claim:
            yield once

    def run(
        self, operation: str, key: str, handler: Callable[[Claim], Union[Outcome, Any]], **options: Any
    ) -> Done:
        """Calls the handler if, and only if, the key is this attempt's. What it returns, an `Outcome` or a JSON value, is
        recorded before this returns. Options are those of `claim`.

        Raises `NoEffect` as the handler did; `Unrecorded` with the outcome, if it happened and could not be recorded; what
        the handler raised, and then the record is indeterminate. Anything else means that the handler did not run.
        """
        _check_plain(handler)
        with self.once(operation, key, **options) as once:
            if once.claim is not None:
                answer = handler(once.claim)
                once.claim.complete(answer if isinstance(answer, Outcome) else Outcome.json(200, answer))
            return Done(once.outcome, once.replayed)

    def idempotent(
        self,
        operation: str,
        *,
        key: Callable[..., str],
        request: Optional[Callable[..., Any]] = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """A decorator: the function's effect happens once for each key.

        `key` and `request` are called with the function's arguments and give its key and what tells a retry from another
        request; without `request` that is all arguments together, which must be JSON. A function with a keyword parameter
        `claim` gets the `Claim`. It returns a JSON value or an `Outcome`; a JSON value comes back as its JSON reads,
        in the first run as in every replay, so that all callers see the same.
        """

        def decorate(function: F) -> F:
            _check_plain(function)
            code = getattr(function, "__code__", None)
            takes_claim = code is not None and "claim" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                wanted = request(*args, **kwargs) if request else {"args": list(args), "kwargs": kwargs}
                returned_outcome = False

                def handler(claim: Claim) -> Outcome:
                    nonlocal returned_outcome
                    answer = function(*args, **kwargs, claim=claim) if takes_claim else function(*args, **kwargs)
                    returned_outcome = isinstance(answer, Outcome)
                    return answer if isinstance(answer, Outcome) else Outcome.json(200, answer, {_VALUE: "1"})

                done = self.run(operation, key(*args, **kwargs), handler, request=wanted, **options)
                is_value = not returned_outcome and done.outcome.headers.get(_VALUE) == "1"
                return done.outcome.value() if is_value else done.outcome

            return cast(F, run)

        return decorate

    # Ending.

    def check_open(self) -> None:
        """Raises where nothing new may be claimed."""
        if self._closed:
            raise ConfigurationError("the client is closed")

    def close(self) -> None:
        """Claims nothing more, and waits for what is given back in the background. What is owned can still be reported."""
        self._closed = True
        for thread in list(self._giving_back):
            thread.join(self.deadline_s)
        self.transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_back(
        self,
        record: Mapping[str, Any],
        fingerprints: Sequence[Fingerprint],
        attempt_id: str,
        begun: bool,
    ) -> None:
        """The claim is repeated with its attempt id: if it had been granted this is the same grant, and nothing was started
        on it, because its caller never got it."""

        def give_back() -> None:
            try:
                answer = self.records.claim(
                    record, fingerprints=fingerprints, attempt_id=attempt_id, lease_ms=100, staged=not begun
                )
                if answer.get("answer") == "new":
                    evidence = "its caller was gone before the claim was answered: nothing was started"
                    self.records.release(record, answer["fence"], evidence)
            except SemelError as error:
                log.debug("a claim whose answer was lost is left to the lapse of its lease: %s", error)
            finally:
                with self._lock:
                    self._giving_back.pop(threading.current_thread(), None)

        thread = threading.Thread(target=give_back, name="semel-give-back", daemon=True)
        with self._lock:
            if self._closed or len(self._giving_back) >= GIVEN_BACK_MAX:
                return
            self._giving_back[thread] = None
        thread.start()


#: Marks an outcome that is a decorated function's JSON value, and no outcome of its own.
_VALUE = "semel-python-value"


def _check_plain(function: Callable[..., Any]) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigurationError("handler: a coroutine or a generator has done nothing when it returns; call a plain function")


def _tls(ca: Optional[str], certificate: Optional[Tuple[str, str]]) -> Optional[ssl.SSLContext]:
    if ca is None:
        if certificate is not None:
            raise ConfigurationError("ca: a certificate is presented to https:// nodes alone; name their `ca`")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate[0], certificate[1])
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"ca: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context
