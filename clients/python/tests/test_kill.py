"""Nodes die under load: no effect happens twice, nothing acknowledged is lost, and what is said to be unknown can be asked
back."""

from __future__ import annotations

import collections
import random
import threading
import unittest
from typing import Callable, Counter, Dict, List

import semel
from semel import Client, Outcome, record_id

from .node import Cluster, Node, until

THREADS = 6
#: Runs that come to their end before and after each kill.
RUNS = 12


class Load:
    """Threads that run operations, and what they were told."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.effects: Counter[str] = collections.Counter()
        self.recorded: Dict[str, bytes] = {}
        self.said: Counter[str] = collections.Counter()
        self.wrong: List[str] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(THREADS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def goes_on(self) -> None:
        before = self.said["done"]
        until(f"it goes on: {self.said}", lambda: self.said["done"] >= before + RUNS)

    def _work(self, number: int) -> None:
        draw = random.Random(number)
        mine = 0
        while not self._done.is_set():
            mine += 1
            # Often a key of its own, often one that others are at.
            key = f"k-{draw.randrange(8)}-{mine // 4}" if draw.random() < 0.5 else f"own-{number}-{mine}"
            body = f"{key} by {number} in {mine}".encode()

            def effect(claim: semel.Claim) -> Outcome:
                with self._lock:
                    self.effects[key] += 1
                return Outcome(201, body)

            try:
                outcome = self.client.run("kill", key, effect, request=key).outcome
            except semel.SemelError as error:
                with self._lock:
                    self.said[error.code] += 1
                continue
            with self._lock:
                self.said["done"] += 1
                if self.recorded.setdefault(key, outcome.body or b"") != outcome.body:
                    self.wrong.append(f"{key}: two outcomes")


class Killed(unittest.TestCase):
    def judge(self, load: Load) -> None:
        self.assertEqual(load.wrong, [])
        self.assertEqual([key for key, times in load.effects.items() if times > 1], [], "an effect happened twice")
        self.assertEqual(set(load.recorded) - set(load.effects), set())
        # Asked back: whatever was said to be done is what the node says, and nobody's effect is unknown to it.
        states: Counter[str] = collections.Counter()
        for key in set(load.effects) | set(load.recorded):
            found = load.client.records.get(record_id("kill", key), with_outcome=True)
            states[found["state"]] += 1
            if key in load.recorded:
                self.assertEqual(Outcome.of_wire(found["outcome"]).body, load.recorded[key], key)
            else:
                self.assertIn(found["state"], ("in_progress", "indeterminate", "completed"), key)
        print(f"\n  told: {dict(load.said)}; asked back: {dict(states)}", flush=True)

    def under_load(self, client: Client, kill: Callable[[], None]) -> None:
        self.addCleanup(client.close)
        with Load(client) as load:
            load.goes_on()
            kill()
            load.goes_on()
        self.judge(load)

    def test_the_only_node(self) -> None:
        node = Node()
        self.addCleanup(node.stop)

        def kill() -> None:
            node.kill()
            node.start()

        self.under_load(Client(node.endpoint, attempt_s=3.0, deadline_s=10.0, report_s=15.0), kill)

    def test_a_leader(self) -> None:
        cluster = Cluster()
        self.addCleanup(cluster.stop)
        endpoints = cluster.endpoints
        client = Client(endpoints, attempt_s=3.0, deadline_s=10.0, report_s=15.0)
        leader = until("one leads", cluster.leader)
        client.run("warm", "up", lambda claim: 1, request=1)
        self.assertEqual(client.transport.nodes.current().endpoint, endpoints[leader - 1], "it went to the leader")

        def kill() -> None:
            cluster.kill(leader)

        self.under_load(client, kill)
        other = until("another one leads", lambda: cluster.leader() not in (0, leader) and cluster.leader())
        client.run("warm", "up again", lambda claim: 1, request=1)
        self.assertEqual(client.transport.nodes.current().endpoint, endpoints[other - 1])


if __name__ == "__main__":
    unittest.main()
