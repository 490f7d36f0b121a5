"""The client against a real node."""

from __future__ import annotations

import base64
import json
import os
import random
import tempfile
import threading
import time
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List

import semel
from semel import Client, Fingerprint, Outcome, record_id

from .node import Node, WithNode, until


def draw() -> str:
    return str(uuid.uuid4())


class Runs(WithNode):
    def setUp(self) -> None:
        self.client = Client(self.node.endpoint)
        self.addCleanup(self.client.close)
        self.key = draw()
        self.ran = 0

    def charge(self, claim: semel.Claim) -> Outcome:
        self.ran += 1
        return Outcome(201, b'{"id":\t"ch_1"}\n', "application/json", {"Location": "/ch/1"})

    def reason(self) -> str:
        return str(self.client.records.get(record_id("charge", self.key))["reason"])

    def kinds(self) -> List[str]:
        return [event["kind"] for event in self.client.records.history(record_id("charge", self.key))]

    def test_a_replay_is_the_first_outcome_byte_for_byte(self) -> None:
        first = self.client.run("charge", self.key, self.charge, request={"amount": 100, "at": 1}, ignore=["/at"])
        again = self.client.run("charge", self.key, self.charge, request={"at": 2.0, "amount": 1e2}, ignore=["/at"])
        self.assertEqual((first.replayed, again.replayed, self.ran), (False, True, 1))
        self.assertEqual(again.outcome.body, b'{"id":\t"ch_1"}\n')
        self.assertEqual((again.outcome.status, again.outcome.content_type), (201, "application/json"))
        self.assertEqual(again.outcome.headers, {"location": "/ch/1"})
        self.assertEqual(again.outcome.value(), {"id": "ch_1"})
        self.assertEqual(self.kinds(), ["claimed", "begun", "completed"])

    def test_all_bytes_come_back(self) -> None:
        for body in [b"", b"null", b'""', bytes(range(256)) * 256]:
            key = draw()
            self.client.run("bytes", key, lambda claim: Outcome(200, body), request=None)
            self.assertEqual(self.client.run("bytes", key, self.charge, request=None).outcome.body, body)

    def test_another_request_is_a_conflict(self) -> None:
        self.client.run("charge", self.key, self.charge, request={"amount": 100})
        with self.assertRaises(semel.Conflict) as caught:
            self.client.run("charge", self.key, self.charge, request={"amount": 999})
        error = caught.exception
        self.assertEqual((error.code, error.retryable, error.effect, error.state), ("conflict", False, "none", "completed"))
        self.assertIsInstance(error, semel.SemelError)
        self.assertEqual(self.ran, 1)

    def test_a_handler_that_raises_leaves_it_open(self) -> None:
        def handler(claim: semel.Claim) -> Any:
            raise ConnectionResetError("by the provider")

        with self.assertRaises(ConnectionResetError):
            self.client.run("charge", self.key, handler, request=1)
        for _ in range(2):
            with self.assertRaises(semel.Indeterminate) as caught:
                self.client.run("charge", self.key, self.charge, request=1)
        error = caught.exception
        self.assertEqual((error.code, error.retryable, error.effect), ("indeterminate", True, "unknown"))
        self.assertEqual(error.retry_after_ms, 60_000)
        self.assertEqual((self.ran, self.reason()), (0, "ConnectionResetError: by the provider"))

    def test_a_base_exception_leaves_it_open_too(self) -> None:
        def handler(claim: semel.Claim) -> Any:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.client.run("charge", self.key, handler, request=1)
        self.assertEqual(self.client.records.get(record_id("charge", self.key))["state"], "indeterminate")

    def test_a_block_without_an_outcome_leaves_it_open(self) -> None:
        with self.assertRaises(semel.Indeterminate), self.client.once("charge", self.key, request=1):
            pass
        self.assertEqual(self.reason(), "the block ended without an outcome")

    def test_no_effect_frees_the_key(self) -> None:
        def declined(claim: semel.Claim) -> Any:
            raise semel.NoEffect("the provider said 401 before it read the body")

        with self.assertRaises(semel.NoEffect):
            self.client.run("charge", self.key, declined, request=1)
        self.assertFalse(self.client.run("charge", self.key, self.charge, request=1).replayed)
        self.assertIn("released", self.kinds())
        # Without evidence nobody can rely on it.
        self.key = draw()

        def silent(claim: semel.Claim) -> Any:
            raise semel.NoEffect("  ")

        with self.assertRaises(semel.NoEffect):
            self.client.run("charge", self.key, silent, request=1)
        self.assertEqual(self.client.records.get(record_id("charge", self.key))["state"], "indeterminate")

    def test_one_at_a_time_and_waiting(self) -> None:
        started, go_on = threading.Event(), threading.Event()

        def slow(claim: semel.Claim) -> Outcome:
            started.set()
            go_on.wait(30)
            return Outcome(200, b"slow")

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(self.client.run, "charge", self.key, slow, request=1)
            self.assertTrue(started.wait(30))
            with self.assertRaises(semel.InProgress) as caught:
                self.client.run("charge", self.key, self.charge, request=1)
            self.assertEqual((caught.exception.code, caught.exception.retryable), ("in_progress", True))
            self.assertGreaterEqual(caught.exception.retry_after_ms or 0, 1000)
            second = pool.submit(self.client.run, "charge", self.key, self.charge, request=1, wait_s=30)
            until("it waits", lambda: "semel_waiters 1" in self.node.metrics())
            go_on.set()
            self.assertFalse(first.result(30).replayed)
            self.assertEqual((second.result(30).replayed, second.result().outcome.body), (True, b"slow"))

    def test_the_lease_is_renewed_while_the_handler_runs(self) -> None:
        def slow(claim: semel.Claim) -> Outcome:
            time.sleep(1.5)
            claim.check()
            self.assertFalse(claim.lost.is_set())
            return Outcome(200, b"late")

        done = self.client.run("charge", self.key, slow, request=1, lease_s=0.6)
        self.assertEqual(done.outcome.body, b"late")

    def test_a_lease_that_lapsed_is_no_permission(self) -> None:
        once = self.client.claim("charge", self.key, request=1, lease_s=0.2)
        assert once.claim is not None
        once.claim.renew_until(0)
        once.claim.begin()
        until("it lapses", lambda: not once.claim.is_live if once.claim else None)
        self.assertRaises(semel.LeaseSpent, once.claim.check)
        time.sleep(0.1)
        with self.assertRaises(semel.Indeterminate) as caught:
            self.client.run("charge", self.key, self.charge, request=1)
        self.assertEqual(caught.exception.reason, "lease_lapsed")
        with self.assertRaises(semel.OwnershipLost) as lost:
            once.claim.renew()
        self.assertEqual((lost.exception.code, lost.exception.effect), ("lease_lapsed", "none"))
        self.assertTrue(once.claim.lost.is_set())
        # The owner's own late report is taken all the same.
        once.claim.complete(200, "it was done")
        self.assertEqual(self.client.run("charge", self.key, self.charge, request=1).outcome.body, b"it was done")

    def test_a_staged_claim_that_is_closed_bothers_nobody(self) -> None:
        once = self.client.claim("charge", self.key, request=1)
        assert once.claim is not None
        once.claim.close()
        once = self.client.claim("charge", self.key, request=1)
        assert once.claim is not None
        with self.assertRaises(OSError), once.claim:
            raise OSError
        self.assertFalse(self.client.run("charge", self.key, self.charge, request=1).replayed)

    def test_a_takeover_gets_the_checkpoint_and_the_old_owner_nothing(self) -> None:
        once = self.client.claim("charge", self.key, request=1, lease_s=0.2, on_lapse="retake")
        old = once.claim
        assert old is not None
        old.renew_until(0)
        old.checkpoint("reserved", b"\x00r-1")
        again = until("it lapses", lambda: self.try_claim())
        self.assertEqual((again.attempt, again.last_checkpoint), (2, ("reserved", b"\x00r-1")))
        self.assertEqual(again.downstream_key, old.downstream_key)
        self.assertGreater(int(again.fence), int(old.fence))
        with self.assertRaises(semel.Unrecorded) as caught:
            old.complete(200, "old")
        self.assertEqual((caught.exception.code, caught.exception.effect), ("stale_fence", "unknown"))
        again.start()
        again.complete(200, "new")

    def try_claim(self) -> Any:
        try:
            return self.client.claim("charge", self.key, request=1, on_lapse="retake").claim
        except semel.InProgress:
            return None

    def test_the_decorator_gives_all_callers_the_same(self) -> None:
        calls: List[Any] = []

        @self.client.idempotent("order", key=lambda order_id, items: order_id)
        def place(order_id: str, items: Any, *, claim: semel.Claim) -> Any:
            calls.append(claim.downstream_key)
            return {"order": order_id, "items": (1, 2)}

        first, again = place(self.key, [3]), place(self.key, [3])
        self.assertEqual(first, again)
        self.assertEqual((first, len(calls)), ({"order": self.key, "items": [1, 2]}, 1))
        with self.assertRaises(semel.Conflict):
            place(self.key, [4])

        @self.client.idempotent("order.raw", key=lambda key: key, request=lambda key: None)
        def raw(key: str) -> Outcome:
            return Outcome(418, b"tea")

        self.assertEqual((raw(self.key).status, raw(self.key).body), (418, b"tea"))

    def test_fingerprints_are_the_service_s(self) -> None:
        randomly = random.Random(11)

        def value(depth: int) -> Any:
            kind = randomly.randrange(8 if depth else 6)
            if kind == 0:
                return randomly.choice([None, True, False])
            if kind == 1:
                return randomly.randrange(-(10 ** randomly.randrange(1, 40)), 10**20)
            if kind == 2:
                return randomly.uniform(-1, 1) * 10 ** randomly.randrange(-30, 30)
            if kind == 3:
                return randomly.randrange(10**6) / 100
            if kind in (4, 5):
                chars = "aé\u0301\ud7ff\ue000\U0001f600\"\\/\b\n\x01 ~"
                return "".join(randomly.choice(chars) for _ in range(randomly.randrange(6)))
            if kind == 6:
                return [value(depth - 1) for _ in range(randomly.randrange(4))]
            names = [randomly.choice("abé\ue000\ud7ff\U0001f600") + str(number) for number in range(4)]
            return {name: value(depth - 1) for name in names}

        items = []
        wanted = []
        for number in range(200):
            request = value(4)
            wanted.append((request, Fingerprint.json(request).hex))
            items.append({"claim": {"record": record_id("prints", f"{self.key}-{number}"), "request": request}})
        self.client.records.batch(items)
        gets = [{"get": {"record": record_id("prints", f"{self.key}-{number}")}} for number in range(200)]
        for (request, digest), answer in zip(wanted, self.client.records.batch(gets)):
            self.assertEqual(answer["get"]["fingerprints"], [{"scheme": 1, "digest": digest}], json.dumps(request))

    def test_reconciling(self) -> None:
        record = record_id("charge", self.key, principal="u1")
        with self.assertRaises(semel.Indeterminate):
            with self.client.once("charge", self.key, principal="u1", request=1, labels={"amount": "1 EUR"}) as once:
                assert once.claim is not None
                once.claim.checkpoint("sent", b"ch_1")
        listed = [one["record"]["key"] for one in self.client.records.list(state="indeterminate", page_size=2)]
        self.assertIn(self.key, listed)
        found = self.client.records.investigate(record, actor="test", lease_ms=1000)
        self.assertEqual(base64.b64decode(found["checkpoint"]["data"]), b"ch_1")
        self.assertEqual(found["labels"], {"amount": "1 EUR"})
        with self.assertRaises(semel.Refused) as caught:
            self.client.records.resolve(record, version="1", verdict="no_effect", evidence="none", actor="test")
        self.assertEqual(caught.exception.code, "version_changed")
        self.client.records.resolve(
            record,
            version=found["version"],
            verdict="completed",
            outcome=Outcome.json(201, {"id": "ch_1"}),
            evidence="GET /charges shows it",
            actor="test",
        )
        done = self.client.run("charge", self.key, self.charge, request=1, principal="u1")
        self.assertEqual((done.replayed, done.outcome.value()), (True, {"id": "ch_1"}))
        self.client.records.forget(record, "asked to")
        with self.assertRaises(semel.Expired) as expired:
            self.client.run("charge", self.key, self.charge, request=1, principal="u1")
        self.assertEqual((expired.exception.reason, expired.exception.retryable), ("forgotten", False))

    def test_watching(self) -> None:
        watch = self.client.records.watch(operation="watched")
        self.addCleanup(watch.close)  # type: ignore[attr-defined]
        self.assertEqual(next(watch)[0], "reset")
        record = record_id("watched", self.key)
        grant = self.client.records.claim(record, request=1)
        self.client.records.suspend(record, grant["fence"], "who knows")
        event, found = next(watch)
        self.assertEqual((event, found["record"]["key"]), ("indeterminate", self.key))
        self.client.records.complete(record, grant["fence"], Outcome(200))
        event, found = next(watch)
        self.assertEqual((event, found["state"]), ("gone", "completed"))

    def test_policies_and_outcomes_that_are_not_kept(self) -> None:
        self.client.records.set_policy({"outcome_bytes_max": 10, "oversize": "digest_only"}, operation="small")
        policy = self.client.records.get_policy(operation="small")["policy"]
        self.assertEqual((policy["outcome_bytes_max"], policy["oversize"]), (10, "digest_only"))
        self.client.run("small", self.key, lambda claim: Outcome(200, b"x" * 11), request=1)
        with self.assertRaises(semel.NotStored):
            self.client.run("small", self.key, self.charge, request=1)
        self.client.records.set_policy({"oversize": "reject"}, operation="small")
        with self.assertRaises(semel.Unrecorded) as caught:
            self.client.run("small", draw(), lambda claim: Outcome(200, b"x" * 11), request=1)
        self.assertEqual((caught.exception.code, caught.exception.outcome.body), ("outcome_too_large", b"x" * 11))

    def test_what_is_wrong_is_said(self) -> None:
        with self.assertRaises(semel.Refused) as caught:
            self.client.records.get(record_id("charge", self.key))
        self.assertEqual((caught.exception.code, caught.exception.retryable), ("not_found", False))
        with self.assertRaises(semel.Refused) as caught:
            self.client.claim("charge", "", request=1)
        self.assertEqual((caught.exception.code, caught.exception.effect), ("invalid_argument", "none"))
        self.assertRaises(semel.ConfigurationError, self.client.claim, "charge", self.key)
        self.assertRaises(semel.FingerprintError, self.client.claim, "charge", self.key, request=float("nan"))

    def test_what_has_done_nothing_when_it_returns_is_no_handler(self) -> None:
        async def later(claim: semel.Claim) -> None:
            self.ran += 1

        self.assertRaises(semel.ConfigurationError, self.client.run, "charge", self.key, later, request=1)
        self.assertRaises(semel.ConfigurationError, self.client.idempotent("charge", key=str), later)
        self.assertFalse(self.client.run("charge", self.key, self.charge, request=1).replayed)

    def test_many_threads_one_effect(self) -> None:
        with ThreadPoolExecutor(16) as pool:
            runs = [pool.submit(self.client.run, "charge", self.key, self.charge, request=1, wait_s=30) for _ in range(16)]
            done = [run.result() for run in runs]
        self.assertEqual((self.ran, sum(not one.replayed for one in done)), (1, 1))
        self.assertEqual(len({one.outcome.body for one in done}), 1)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_after_a_fork_the_child_has_connections_of_its_own(self) -> None:
        self.client.run("charge", self.key, self.charge, request=1)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                done = self.client.run("charge", self.key + "c", lambda claim: time.sleep(0.5), request=1, lease_s=0.3)
                os.write(write, str(done.outcome.value()).encode())
            finally:
                os._exit(0)
        done = self.client.run("charge", self.key, self.charge, request=1)
        self.assertTrue(done.replayed)
        os.waitpid(child, 0)
        os.close(write)
        self.assertEqual(os.read(read, 100), b"None")
        os.close(read)


class Credentials(unittest.TestCase):
    def test_tls_and_tokens(self) -> None:
        node = Node("--tls", "--auth")
        self.addCleanup(node.stop)
        data = os.path.join(node.directory, "data")
        ca = os.path.join(data, "certs", "clients-ca.pem")
        with open(os.path.join(data, "admin.token"), encoding="utf-8") as file:
            admin = file.read().strip()
        with Client(node.endpoint, ca=ca) as nobody, self.assertRaises(semel.Refused) as caught:
            nobody.run("charge", "k", lambda claim: 1, request=1)
        self.assertEqual((caught.exception.code, caught.exception.effect), ("unauthenticated", "none"))
        with Client(node.endpoint, ca=ca, token=admin) as operator:
            wanted = {"tenant": "acme", "permissions": ["claim"], "operations": ["*"]}
            token = operator.records.call("/v1/token/create", wanted)["token"]
        os.environ["SEMEL_TOKEN"], os.environ["SEMEL_ENDPOINT"] = token, node.endpoint
        self.addCleanup(os.environ.pop, "SEMEL_TOKEN")
        self.addCleanup(os.environ.pop, "SEMEL_ENDPOINT")
        with Client(ca=ca) as client:
            self.assertEqual(client.run("charge", "k", lambda claim: 1, request=1).outcome.value(), 1)
            self.assertTrue(client.run("charge", "k", lambda claim: 1, request=1).replayed)
            with self.assertRaises(semel.Refused) as caught:
                client.claim("charge", "k", request=1, tenant="other")
            self.assertEqual(caught.exception.code, "forbidden")
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as other:
            with open(os.path.join(data, "certs", "peers-ca.pem"), encoding="utf-8") as file:
                other.write(file.read())
            other.flush()
            with Client(ca=other.name, deadline_s=0.5) as stranger, self.assertRaises(semel.Unreachable) as unreached:
                stranger.claim("charge", "k", request=1)
        self.assertEqual(unreached.exception.effect, "none")

    def test_secrets_stay_on_the_machine(self) -> None:
        self.assertRaises(semel.ConfigurationError, Client, "http://192.0.2.7:7171", token="semel_secret")
        Client("http://192.0.2.7:7171", token="semel_secret", insecure_plaintext=True)
        Client("http://192.0.2.7:7171")
        self.assertNotIn("secret", repr(Client(token="semel_secret")))
        for endpoint in ["https://127.0.0.1:1", "ftp://127.0.0.1:1", "http://", "", "http://a/b", "http://u@h:1"]:
            self.assertRaises(semel.ConfigurationError, Client, endpoint)
        self.assertRaises(semel.ConfigurationError, Client, token="a b")


if __name__ == "__main__":
    unittest.main()
