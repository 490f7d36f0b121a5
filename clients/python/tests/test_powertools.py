"""The persistence layer against the real package and a real node."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import unittest
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

import semel
from semel import Client

from .node import WithNode, until

try:
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyAlreadyInProgressError,
        IdempotencyPersistenceLayerError,
        IdempotencyValidationError,
    )

    from semel.powertools import SemelPersistenceLayer, _identity
except ImportError as error:
    MISSING = str(error)
else:
    MISSING = ""


class Context:
    """What Lambda hands to a handler."""

    def __init__(self, left_ms: int = 30_000) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


@unittest.skipIf(MISSING, f"aws-lambda-powertools is not here: {MISSING}")
class Powertools(WithNode):
    def setUp(self) -> None:
        self.client = Client(self.node.endpoint)
        self.addCleanup(self.client.close)
        self.event = {"order": str(uuid.uuid4()), "amount": 100}
        self.ran = 0

    def layer(self, **options: Any) -> SemelPersistenceLayer:
        return SemelPersistenceLayer(self.client, **options)

    def handler(self, layer: Any, does: Any = None, **config: Any) -> Any:
        settings = IdempotencyConfig(event_key_jmespath="order", **config)

        @idempotent(persistence_store=layer, config=settings)
        def handler(event: Dict[str, Any], context: Any) -> Any:
            self.ran += 1
            return does(event) if does else {"statusCode": 201, "body": "é", "n": self.ran}

        return handler

    def state(self) -> str:
        found = [one for one in self.client.records.list() if one["record"]["key"] == self.key()]
        return str(found[0]["state"]) if found else "absent"

    def key(self) -> str:
        return hashlib.md5(json.dumps(self.event["order"]).encode()).hexdigest()

    def test_completed(self) -> None:
        handler = self.handler(self.layer())
        first, again = handler(self.event, Context()), handler(self.event, Context())
        self.assertEqual((first, again, self.ran), ({"statusCode": 201, "body": "é", "n": 1}, first, 1))
        # In another process of the same function, too.
        self.assertEqual(self.handler(self.layer())(self.event, Context()), first)
        self.assertEqual((self.ran, self.state()), (1, "completed"))

    def test_a_response_hook_sees_when_it_expires(self) -> None:
        seen: List[Any] = []

        def hook(response: Any, record: Any) -> Any:
            seen.append(record.get_expiration_datetime())
            return response

        handler = self.handler(self.layer(), response_hook=hook, expires_after_seconds=600)
        handler(self.event, Context()), handler(self.event, Context())
        self.assertIsNotNone(seen[0])

    def test_the_local_cache(self) -> None:
        handler = self.handler(self.layer(), use_local_cache=True)
        first = handler(self.event, Context())
        self.assertEqual(handler(self.event, Context()), first)
        self.assertEqual(self.ran, 1)

    def test_in_progress(self) -> None:
        started, go_on = threading.Event(), threading.Event()

        def does(event: Any) -> Any:
            started.set()
            go_on.wait(30)
            return {"n": 1}

        slow, other = self.handler(self.layer(), does), self.handler(self.layer())
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(slow, self.event, Context())
            self.assertTrue(started.wait(30))
            with self.assertRaises(IdempotencyAlreadyInProgressError):
                other(self.event, Context())
            go_on.set()
            self.assertEqual(running.result(30), {"n": 1})
        self.assertEqual((other(self.event, Context()), self.ran), ({"n": 1}, 1))

    def test_another_payload(self) -> None:
        handler = self.handler(self.layer(), payload_validation_jmespath="amount")
        handler(self.event, Context())
        handler(dict(self.event), Context())
        with self.assertRaises(IdempotencyValidationError):
            handler({**self.event, "amount": 101}, Context())
        self.assertEqual(self.ran, 1)

    def test_a_record_that_is_looked_up(self) -> None:
        layer = self.layer()
        handler = self.handler(layer, payload_validation_jmespath="amount")
        first = handler(self.event, Context())
        self.assertEqual(layer.get_record(self.event).response_json_as_dict(), first)
        with self.assertRaises(IdempotencyValidationError):
            layer.get_record({**self.event, "amount": 101})

    def test_expired_does_not_run_again(self) -> None:
        handler = self.handler(self.layer(), expires_after_seconds=1)
        handler(self.event, Context())
        until("it is replayed no more", lambda: self.state() == "expired")
        with self.assertRaises(IdempotencyPersistenceLayerError) as caught:
            handler(self.event, Context())
        self.assertIsInstance(caught.exception.__cause__, semel.Expired)
        self.assertEqual(self.ran, 1)

    def test_expired_runs_again_where_that_is_wanted(self) -> None:
        handler = self.handler(self.layer(evidence_s=1), expires_after_seconds=1)
        handler(self.event, Context())
        until("it is gone", lambda: self.state() == "absent")
        self.assertEqual(handler(self.event, Context())["n"], 2)

    def test_a_handler_that_raises_is_not_run_again(self) -> None:
        def does(event: Any) -> Any:
            raise TimeoutError("the provider did not answer")

        with self.assertRaises(TimeoutError):
            self.handler(self.layer(), does)(self.event, Context())
        with self.assertRaises(IdempotencyPersistenceLayerError) as caught:
            self.handler(self.layer())(self.event, Context())
        cause = caught.exception.__cause__
        assert isinstance(cause, semel.Indeterminate)
        self.assertEqual((cause.reason, self.ran), ("TimeoutError: the provider did not answer", 1))

    def test_what_is_said_to_have_no_effect_runs_again(self) -> None:
        def declined(event: Any) -> Any:
            raise ValueError("no such customer")

        def knows(event: Any) -> Any:
            raise semel.NoEffect("nothing was sent")

        with self.assertRaises(ValueError):
            self.handler(self.layer(no_effect=(ValueError,)), declined)(self.event, Context())
        with self.assertRaises(semel.NoEffect):
            self.handler(self.layer(), knows)(self.event, Context())
        self.handler(self.layer())(self.event, Context())
        self.assertEqual(self.ran, 3)

    def test_a_handler_that_dies_midway_stays_indeterminate(self) -> None:
        """The process is killed while the handler runs, as Lambda does it at the time-out."""
        script = f"""
            import os, signal
            from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
            from semel import Client
            from semel.powertools import SemelPersistenceLayer
            class Context:
                def get_remaining_time_in_millis(self): return 1000
            @idempotent(persistence_store=SemelPersistenceLayer(Client({self.node.endpoint!r})),
                        config=IdempotencyConfig(event_key_jmespath="order"), key_prefix="mortal")
            def handler(event, context):
                print("charged", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            handler({self.event!r}, Context())
        """
        path = os.pathsep.join(sys.path)
        died = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            timeout=60,
        )
        self.assertEqual((died.returncode, died.stdout), (-signal.SIGKILL, b"charged\n"), died.stderr)
        config = IdempotencyConfig(event_key_jmespath="order")

        @idempotent(persistence_store=self.layer(), config=config, key_prefix="mortal")
        def handler(event: Any, context: Any) -> Any:
            self.ran += 1

        until("its lease has lapsed", lambda: self.state() == "indeterminate")
        for _ in range(3):
            with self.assertRaises(IdempotencyPersistenceLayerError) as caught:
                handler(self.event, Context())
            cause = caught.exception.__cause__
            assert isinstance(cause, semel.Indeterminate)
            self.assertEqual(cause.reason, "lease_lapsed")
        self.assertEqual(self.ran, 0)

    def test_functions_and_nothing_returned(self) -> None:
        layer = self.layer()
        config = IdempotencyConfig()

        @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=config)
        def charge(*, order: Any) -> None:
            self.ran += 1

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertIsNone(charge(order=self.event))
            self.assertIsNone(charge(order=self.event))
        self.assertEqual(self.ran, 1)

    def test_the_store_is_down(self) -> None:
        layer = SemelPersistenceLayer(Client("http://127.0.0.1:1", deadline_s=0.2))
        with self.assertRaises(IdempotencyPersistenceLayerError):
            self.handler(layer)(self.event, Context())
        self.assertEqual(self.ran, 0, "fails closed")

    def test_names_fit(self) -> None:
        self.assertEqual(_identity("app.handler#abc"), ("app.handler", "abc"))
        long, key = _identity("f" * 300 + "#abc")
        self.assertEqual((len(long), key), (128, "abc"))
        self.assertNotEqual(_identity("é#a")[0], _identity("è#a")[0])


if MISSING:
    print(f"The persistence layer for AWS Lambda Powertools was not tested: {MISSING}", file=sys.stderr)

if __name__ == "__main__":
    unittest.main()
