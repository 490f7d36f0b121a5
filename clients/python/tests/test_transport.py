"""How a command gets there and back: against a server that does what a test says."""

from __future__ import annotations

import json
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Optional, Tuple

import semel
from semel import Client, Outcome, record_id
from semel._retry import RETRIES_MAX, RETRIES_RESERVED, Backoff, Budget
from semel._transport import _is_quiet

from .node import port, until

RECORD = record_id("charge", "k")
LOSE = "lose"
SILENCE = "silence"
HALF = "half"

Reply = Any
Script = Callable[[int, str, Dict[str, Any]], Reply]


def problem(code: str, status: int, retryable: bool, effect: str = "none", **more: Any) -> Tuple[int, Dict[str, Any]]:
    return status, {"code": code, "detail": code, "retryable": retryable, "effect": effect, **more}


UNAVAILABLE = problem("unavailable", 503, True)
STALE = problem("stale_fence", 409, False)
UNKNOWN = problem("result_unknown", 504, True, "unknown")


def granted(body: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    grant = {"answer": "new", "fence": "7", "attempt": 1, "phase": "staged", "lease_ms": 30_000, "downstream_key": "sml_x"}
    return {**grant, "checkpoint": None, "attempt_id": body.get("attempt_id"), **more}


class Fake:
    """A server; `script` is given how many requests there were before, the path and the body."""

    def __init__(self, script: Script) -> None:
        self.seen: List[Tuple[str, Dict[str, Any], Dict[str, str]]] = []
        self.connections = 0
        self.cluster_id: Optional[str] = None
        self.ends_silently = False
        fake = self
        lock = threading.Lock()
        self.silent = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                fake.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with lock:
                    before = len(fake.seen)
                    fake.seen.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
                reply = script(before, self.path, body)
                self.close_connection = fake.ends_silently or reply in (LOSE, SILENCE, HALF)
                if reply == SILENCE:
                    fake.silent.wait(30)
                if reply in (LOSE, SILENCE):
                    return
                if reply == HALF:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
                    return
                status, answer = reply if isinstance(reply, tuple) else (200, reply)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                if fake.cluster_id:
                    self.send_header("semel-cluster-id", fake.cluster_id)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 64
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    @property
    def paths(self) -> List[str]:
        return [path.rpartition("/")[2] for path, _, _ in self.seen]

    def stop(self) -> None:
        self.silent.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Transport(unittest.TestCase):
    def serve(self, script: Script) -> Fake:
        fake = Fake(script)
        self.addCleanup(fake.stop)
        return fake

    def client(self, *fakes: Any, **options: Any) -> Client:
        endpoints = [fake if isinstance(fake, str) else fake.endpoint for fake in fakes]
        client = Client(endpoints, **options)
        self.addCleanup(client.close)
        return client

    def test_one_connection_carries_many_calls(self) -> None:
        server = self.serve(lambda before, path, body: {"n": before})
        client = self.client(server)
        for number in range(20):
            self.assertEqual(client.records.get(RECORD), {"n": number})
        self.assertEqual(server.connections, 1)

    def test_a_connection_that_the_server_ended_costs_nothing(self) -> None:
        server = self.serve(lambda before, path, body: STALE if before else {})
        server.ends_silently = True
        client = self.client(server)
        client.records.get(RECORD)
        connection, _ = client.transport.nodes.current().idle[0]
        until("it was ended", lambda: not _is_quiet(connection))
        with self.assertRaises(semel.OwnershipLost):
            # Sent over it, this try would be the second, and what became of the first not known.
            client.records.begin(RECORD, "7")
        self.assertEqual((server.connections, len(server.seen)), (2, 2))

    def test_what_was_never_sent_has_no_effect(self) -> None:
        client = self.client(f"http://127.0.0.1:{port()}", deadline_s=0.5)
        with self.assertRaises(semel.Unreachable) as caught:
            client.records.begin(RECORD, "7")
        error = caught.exception
        self.assertEqual((error.code, error.retryable, error.effect), ("unreachable", True, "none"))

    def test_what_was_sent_and_not_answered_may_have_an_effect(self) -> None:
        for reply in [SILENCE, LOSE, HALF]:
            server = self.serve(lambda before, path, body, reply=reply: reply)  # type: ignore[misc]
            client = self.client(server, deadline_s=2.0, attempt_s=0.4)
            with self.assertRaises((semel.Lost, semel.TimedOut)) as caught:
                client.records.begin(RECORD, "7")
            self.assertEqual((caught.exception.effect, caught.exception.retryable), ("unknown", True))
            self.assertGreater(len(server.seen), 1, "it is repeated as long as the deadline allows")

    def test_a_refusal_speaks_for_the_last_try_alone(self) -> None:
        """The first try may have released the record, and then the fence is nobody's any more."""
        for first in [LOSE, UNKNOWN]:
            server = self.serve(lambda before, path, body, first=first: STALE if before else first)  # type: ignore[misc]
            with self.assertRaises(semel.RefusedAtLast) as caught:
                self.client(server).records.release(RECORD, "7", "nothing was sent")
            error = caught.exception
            self.assertEqual((error.code, error.effect, error.retryable), ("stale_fence", "unknown", False))
            self.assertEqual(server.paths, ["release", "release"])

    def test_an_earlier_try_that_may_have_been_applied_is_not_forgotten(self) -> None:
        server = self.serve(lambda before, path, body: UNAVAILABLE if before else LOSE)
        with self.assertRaises((semel.Lost, semel.TimedOut)) as caught:
            self.client(server, deadline_s=1.5).records.begin(RECORD, "7")
        self.assertEqual(caught.exception.effect, "unknown")

    def test_refusals_that_no_retry_helps_are_not_repeated(self) -> None:
        for reply in [STALE, problem("owner_may_act", 409, True, retry_after_ms=1000), problem("internal", 500, False, "unknown")]:
            server = self.serve(lambda before, path, body, reply=reply: reply)  # type: ignore[misc]
            with self.assertRaises(semel.Refused) as caught:
                self.client(server).records.begin(RECORD, "7")
            self.assertEqual((caught.exception.code, len(server.seen)), (reply[1]["code"], 1))

    def test_every_try_of_a_claim_has_one_attempt_id(self) -> None:
        server = self.serve(lambda before, path, body: UNKNOWN if before < 3 else granted(body))
        self.client(server).records.claim(RECORD, request=1)
        attempts = {body["attempt_id"] for _, body, _ in server.seen}
        self.assertEqual((len(server.seen), len(attempts)), (4, 1))

    def test_a_claim_whose_answer_is_lost_is_given_back(self) -> None:
        lost = threading.Event()

        def script(before: int, path: str, body: Dict[str, Any]) -> Reply:
            if path == "/v1/release":
                return {"state": "absent"}
            return granted(body) if lost.is_set() else LOSE

        server = self.serve(script)
        client = self.client(server, deadline_s=1.0)
        with self.assertRaises((semel.Lost, semel.TimedOut)):
            client.claim("charge", "k", request=1)
        client.deadline_s = 10.0
        lost.set()
        until("it is given back", lambda: "release" in server.paths)
        self.assertEqual(len({body["attempt_id"] for path, body, _ in server.seen if path == "/v1/claim"}), 1)

    def test_an_outcome_that_could_not_be_recorded_is_not_lost(self) -> None:
        def script(before: int, path: str, body: Dict[str, Any]) -> Reply:
            if path == "/v1/complete":
                return UNKNOWN
            return granted(body) if path == "/v1/claim" else {"phase": "begun", "lease_ms": 30_000}

        server = self.serve(script)
        client = self.client(server, report_s=1.0)
        with self.assertRaises(semel.Unrecorded) as caught:
            client.run("charge", "k", lambda claim: Outcome(201, b"ch_1"), request=1)
        error = caught.exception
        self.assertEqual((error.outcome.body, error.effect), (b"ch_1", "unknown"))
        self.assertIn(error.code, ("result_unknown", "timed_out"))
        self.assertNotIn("suspend", server.paths, "no other report in its place: it may have been taken")

    def test_a_handler_that_was_never_begun_never_runs(self) -> None:
        def script(before: int, path: str, body: Dict[str, Any]) -> Reply:
            if path == "/v1/begin":
                return UNKNOWN
            return granted(body) if path == "/v1/claim" else {"state": "absent"}

        server = self.serve(script)
        ran: List[int] = []
        with self.assertRaises(semel.SemelError) as caught:
            self.client(server, deadline_s=1.0).run("charge", "k", lambda claim: ran.append(1), request=1)
        self.assertIn(caught.exception.code, ("result_unknown", "timed_out"))
        self.assertEqual((ran, server.paths[-1]), ([], "release"))

    def test_no_handler_starts_on_a_spent_lease(self) -> None:
        def script(before: int, path: str, body: Dict[str, Any]) -> Reply:
            if path == "/v1/claim":
                time.sleep(0.25)
                return granted(body, lease_ms=200)
            return {"phase": "begun"} if path == "/v1/begin" else {"state": "absent"}

        server = self.serve(script)
        ran: List[int] = []
        with self.assertRaises(semel.LeaseSpent):
            self.client(server).run("charge", "k", lambda claim: ran.append(1), request=1)
        self.assertEqual(ran, [])
        self.assertIn("release", server.paths)

    def test_a_retry_waits_for_as_long_as_the_server_asks(self) -> None:
        server = self.serve(
            lambda before, path, body: {} if before else problem("rate_limited", 429, True, retry_after_ms=300)
        )
        started = time.monotonic()
        self.client(server).records.get(RECORD)
        self.assertGreaterEqual(time.monotonic() - started, 0.3)

    def test_a_server_in_trouble_gets_a_bounded_number_of_retries(self) -> None:
        budget = Budget()
        ordinary = next(n for n in range(10**6) if not budget.withdraw(owner=False))
        owners = next(n for n in range(10**6) if not budget.withdraw(owner=True))
        self.assertEqual((ordinary, owners), (RETRIES_MAX - RETRIES_RESERVED, RETRIES_RESERVED))
        for _ in range(5):
            self.assertFalse(budget.withdraw(owner=True))
            budget.deposit()
        self.assertTrue(budget.withdraw(owner=True))
        backoff = Backoff()
        self.assertTrue(all(5 < backoff.pause_s(5000) <= 7.001 for _ in range(100)))
        server = self.serve(lambda before, path, body: UNAVAILABLE)
        client = self.client(server, deadline_s=5.0)
        client.budget._parts = 5 * (RETRIES_RESERVED + 3)
        with self.assertRaises(semel.Refused):
            client.records.get(RECORD)
        self.assertEqual(len(server.seen), 4)

    def test_a_node_that_is_down_is_left_for_the_next(self) -> None:
        server = self.serve(lambda before, path, body: {})
        client = self.client(f"http://127.0.0.1:{port()}", server)
        client.records.get(RECORD)
        cut_off = self.serve(lambda before, path, body: UNAVAILABLE)
        client = self.client(cut_off, server)
        client.records.get(RECORD)
        self.assertEqual((len(cut_off.seen), len(server.seen)), (1, 2))

    def test_a_leader_that_is_named_is_gone_to(self) -> None:
        leader = self.serve(lambda before, path, body: {})
        told = {"leader": {"id": 2, "endpoint": leader.endpoint}}
        follower = self.serve(lambda before, path, body: problem("unavailable", 503, True, **told))
        client = self.client(follower)
        for _ in range(3):
            client.records.get(RECORD)
        self.assertEqual((len(follower.seen), len(leader.seen)), (1, 3))
        self.assertEqual(follower.seen[0][2]["semel-no-forward"], "1")

    def test_a_leader_out_of_reach_is_reached_through_the_others(self) -> None:
        for named in [f"http://127.0.0.1:{port()}", "http://192.0.2.7:7171", "nonsense://"]:

            def script(before: int, path: str, body: Dict[str, Any], named: str = named) -> Reply:
                forwards = "semel-no-forward" not in server.seen[before][2]
                return {} if forwards else problem("unavailable", 503, True, leader={"id": 2, "endpoint": named})

            server = self.serve(script)
            client = self.client(server, token="t")
            for _ in range(3):
                client.records.get(RECORD)
            self.assertEqual(len(server.seen), 4, named)

    def test_another_cluster_is_not_believed_until_it_is_trusted(self) -> None:
        server = self.serve(lambda before, path, body: {})
        server.cluster_id = "0" * 32
        client = self.client(server)
        client.records.get(RECORD)
        self.assertEqual(client.cluster_id, "0" * 32)
        server.cluster_id = "1" * 32
        with self.assertRaises(semel.ClusterChanged) as caught:
            client.records.get(RECORD)
        self.assertEqual((caught.exception.effect, caught.exception.retryable), ("unknown", False))
        client.trust_cluster("1" * 32)
        client.records.get(RECORD)
        with self.assertRaises(semel.ClusterChanged):
            self.client(server, cluster_id="2" * 32).records.get(RECORD)

    def test_what_stands_in_between_says_nothing_of_a_record(self) -> None:
        for status, kind, effect, tries in [
            (404, semel.ProtocolError, "unknown", 1),
            (200, semel.ProtocolError, "unknown", 1),
            (502, (semel.Lost, semel.TimedOut), "unknown", 2),
            (403, semel.Refused, "none", 1),
        ]:
            server = self.serve(lambda before, path, body, status=status: (status, b"<html>"))  # type: ignore[misc]
            with self.assertRaises(kind) as caught:
                self.client(server, deadline_s=1.0).records.get(RECORD)
            self.assertEqual(caught.exception.effect, effect)
            self.assertGreaterEqual(len(server.seen), tries)

    def test_a_wait_that_was_broken_off_goes_on_for_what_is_left(self) -> None:
        def script(before: int, path: str, body: Dict[str, Any]) -> Reply:
            if before == 0:
                return {"answer": "in_progress", "retry_after_ms": 1000}
            return problem("unavailable", 503, True, retry_after_ms=400) if before == 1 else granted(body)

        server = self.serve(script)
        self.client(server).records.claim(RECORD, request=1, wait_ms=5000)
        waits = [body.get("wait_ms", 0) for _, body, _ in server.seen]
        self.assertTrue(waits[0] == 0 and 4500 < waits[1] <= 5000 and waits[2] <= waits[1] - 400, waits)

    def test_a_closed_client_claims_nothing_and_reports_still(self) -> None:
        server = self.serve(lambda before, path, body: granted(body) if path == "/v1/claim" else {"lease_ms": 1})
        client = self.client(server)
        once = client.claim("charge", "k", request=1)
        client.close()
        self.assertRaises(semel.ConfigurationError, client.claim, "charge", "k", request=1)
        assert once.claim is not None
        once.claim.complete(200, "done")
        self.assertEqual(once.outcome.body, b"done")


if __name__ == "__main__":
    unittest.main()
