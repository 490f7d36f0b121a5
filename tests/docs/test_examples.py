"""Examples run as what stands at their heads says, and do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from tests.node import BINARY, WithNode  # noqa: E402


class Orders(WithNode):
    def test_an_order_is_made_once(self) -> None:
        text = (ROOT / "examples" / "orders.rs").read_text("utf-8")
        cargo, curl = (re.search(rf"^//! ({word} .*?)  +", text, re.M) for word in ("cargo", "curl"))
        assert cargo and curl
        # What the tests before have built is started; where they have not, it is built as the example says.
        built = BINARY.parent / "examples" / "orders"
        command = [str(built)] if built.exists() else cargo.group(1).split() + ["--quiet", "--locked"]
        environment = {**os.environ, "SEMEL_ENDPOINT": self.node.endpoint, "LISTEN": "127.0.0.1:0"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            listening = re.search(r"http://(\S+)", next(process.stdout))
            assert listening
            order = curl.group(1).replace("127.0.0.1:3000", listening.group(1))
            first, again = (subprocess.run(order, shell=True, capture_output=True, text=True).stdout for _ in range(2))
            for answer in (first, again):
                self.assertTrue(answer.startswith("HTTP/1.1 201"), answer)
                self.assertTrue(answer.endswith("\norder 1: two pizzas\n"), answer)
                self.assertIn("location: /orders/1\n", answer.replace("\r", ""))
            self.assertNotIn("idempotent-replayed", first)
            self.assertIn("idempotent-replayed: true", again)
            without = order.replace("-H 'Idempotency-Key: order-7'", "")
            refused = subprocess.run(without, shell=True, capture_output=True, text=True).stdout
            self.assertIn("400 Bad Request", refused)
            self.assertIn("key_missing", refused)
        finally:
            process.send_signal(2)
            said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(len(re.findall("^order ", said, re.M)), 1, said)


if __name__ == "__main__":
    unittest.main()
