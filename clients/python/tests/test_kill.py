"""The node dies under load, again and again: no effect happens twice, nothing acknowledged is lost, and what is said to be
unknown can be asked back."""

from __future__ import annotations

import collections
import random
import threading
import time
import unittest
from typing import Counter, Dict

import semel
from semel import Client, Outcome, record_id

from .node import Node

THREADS = 6
KILLS = 2
#: Runs that come to their end before each kill.
RUNS = 12


class Killed(unittest.TestCase):
    def test_under_load(self) -> None:
        node = Node()
        self.addCleanup(node.stop)
        client = Client(node.endpoint, attempt_s=3.0, deadline_s=10.0, report_s=15.0)
        effects: Counter[str] = collections.Counter()
        recorded: Dict[str, bytes] = {}
        said: Counter[str] = collections.Counter()
        wrong = []
        lock = threading.Lock()
        done = threading.Event()

        def work(number: int) -> None:
            draw = random.Random(number)
            mine = 0
            while not done.is_set():
                mine += 1
                # Often a key of its own, often one that others are at.
                key = f"k-{draw.randrange(8)}-{mine // 4}" if draw.random() < 0.5 else f"own-{number}-{mine}"
                body = f"{key} by {number} in {mine}".encode()

                def effect(claim: semel.Claim) -> Outcome:
                    with lock:
                        effects[key] += 1
                    return Outcome(201, body)

                try:
                    outcome = client.run("kill", key, effect, request=key).outcome
                except semel.SemelError as error:
                    with lock:
                        said[error.code] += 1
                    continue
                with lock:
                    said["done"] += 1
                    if recorded.setdefault(key, outcome.body or b"") != outcome.body:
                        wrong.append(f"{key}: two outcomes")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(KILLS):
                before = said["done"]
                end = time.monotonic() + 30
                while said["done"] < before + RUNS and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertGreaterEqual(said["done"], before + RUNS, f"it goes on: {said}")
                node.kill()
                node.start()
        finally:
            done.set()
            for thread in threads:
                thread.join(60)
        self.assertEqual(wrong, [])
        self.assertEqual([key for key, times in effects.items() if times > 1], [], "an effect happened twice")
        # Asked back: whatever was said to be done is what the node says, and nobody's effect is unknown to it.
        states: Counter[str] = collections.Counter()
        for key in set(effects) | set(recorded):
            found = client.records.get(record_id("kill", key), with_outcome=True)
            states[found["state"]] += 1
            if key in recorded:
                self.assertEqual(Outcome.of_wire(found["outcome"]).body, recorded[key], key)
            else:
                self.assertIn(found["state"], ("in_progress", "indeterminate", "completed"), key)
        self.assertEqual(set(recorded) - set(effects), set())
        print(f"\n  killed {KILLS} times: {dict(said)}; asked back: {dict(states)}", flush=True)


if __name__ == "__main__":
    unittest.main()
