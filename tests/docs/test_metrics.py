"""The page of metrics, the alerts and the dashboard agree with the code, with a live node, and with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, Set, Tuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from tests.node import BINARY, WithNode, scratch  # noqa: E402

PAGE = (ROOT / "docs" / "metrics.md").read_text("utf-8")
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "semel.json"
DOOR = "semel_door_"
PROMTOOL = shutil.which("promtool")


def page() -> Dict[str, Tuple[str, str, str, str]]:
    rows = re.findall(r"^\| `(semel_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| (.+) \|$", PAGE, re.M)
    found = {name: (kind, labels.strip(), unit.strip(), meaning) for name, kind, labels, unit, meaning in rows}
    assert len(found) == len(rows), "a metric stands on the page twice"
    return found


def code() -> Dict[str, Tuple[str, str]]:
    bodies = []
    for name in ("metrics.rs", "door/metrics.rs"):
        text = (ROOT / "src" / name).read_text("utf-8")
        start = text.index("\nmetrics! {")
        bodies.append(text[start : text.index("\n}\n", start)])
    body = "".join(bodies)
    kinds = [("Histogram", "histogram"), ("Seconds", "histogram"), ("Counter", "counter"), ("", "gauge")]
    found = {}
    for of, name, meaning in re.findall(r'\w+: ([^=]+) = [^\n]*,\n\s*"(semel_\w+)", "([^"]*)"', body):
        found[name] = (next(kind for word, kind in kinds if word in of), meaning)
    return found


def used(expression: str) -> Set[str]:
    """The metrics that an expression names, without the endings of histograms."""
    names = set(re.findall(r"\bsemel_[a-z_]+", expression))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


class Metrics(WithNode):
    def test_the_page_has_what_the_code_has(self) -> None:
        own = {name: (kind, meaning) for name, (kind, _, _, meaning) in page().items()}
        self.assertGreater(len(own), 50)
        self.assertEqual(own, code())

    def test_a_live_node_shows_what_the_page_says(self) -> None:
        self.compare(self.node.metrics(), {name: row for name, row in page().items() if not name.startswith(DOOR)})

    def test_a_live_proxy_shows_what_the_page_says(self) -> None:
        directory = scratch("semel-door-")
        command = [str(BINARY), "proxy", "--dev", "--data-dir", directory, "--upstream", "http://127.0.0.1:1"]
        listen = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
        process = subprocess.Popen(command + listen, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout
            said = [next(process.stdout), next(process.stdout)]
            found = re.search(r"(http://\S+) before", said[0])
            assert found
            with self.assertRaises(urllib.error.HTTPError):
                urllib.request.urlopen(found.group(1) + "/orders", timeout=30)
            with urllib.request.urlopen(said[1].split()[1], timeout=30) as answer:
                text = answer.read().decode("utf-8")
            self.assertIn('semel_door_requests_total{answer="upstream_unreachable"} 1', text)
            self.compare(text, {name: row for name, row in page().items() if name.startswith(DOOR)})
        finally:
            process.terminate()
            process.communicate(timeout=60)
            shutil.rmtree(directory, ignore_errors=True)

    def compare(self, text: str, own: Dict[str, Tuple[str, str, str, str]]) -> None:
        kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M))
        helps = dict(re.findall(r"^# HELP (\w+) (.*)\.$", text, re.M))
        for name, kind in kinds.items():
            self.assertIn(name, own)
            self.assertEqual((own[name][0], own[name][3]), (kind, helps[name]), name)
        # What has a label shows once there is something to show; all the rest is there from the start.
        for name, (_, labels, _, _) in own.items():
            self.assertTrue(name in kinds or labels != "–", name)
        for name, labels in re.findall(r"^(semel_\w+)\{([^}]*)\}", text, re.M):
            name = re.sub(r"_(bucket|sum|count)$", "", name) if name not in own else name
            found = [label for label in re.findall(r"(\w+)=", labels) if label != "le"]
            shown = own[name][1]
            self.assertEqual(", ".join(found), "" if shown == "–" else shown, name)

    def test_units_are_in_the_names(self) -> None:
        for name, (_, _, unit, _) in page().items():
            self.assertEqual("seconds" in name, unit == "seconds", name)
            self.assertEqual("bytes" in name, unit == "bytes", name)


class Alerts(unittest.TestCase):
    def setUp(self) -> None:
        self.text = ALERTS.read_text("utf-8")
        self.names = re.findall(r"^      - alert: (\w+)$", self.text, re.M)

    def test_each_has_its_heading_its_runbook_and_its_test(self) -> None:
        headings = re.findall(r"^### (Semel\w+)$", PAGE, re.M)
        self.assertEqual(sorted(headings), sorted(self.names))
        tests = "".join(path.read_text("utf-8") for path in ALERTS.parent.glob("*_test.yml"))
        for name in self.names:
            self.assertIn(f"docs/metrics.md#{name.lower()}: ", self.text)
            self.assertRegex(tests, rf"\b{name}\b")
        self.assertEqual(self.text.count("runbook:"), len(self.names))
        self.assertEqual(self.text.count("severity:"), len(self.names))

    def test_they_name_what_there_is(self) -> None:
        rules = re.sub(r"#.*", "", self.text)
        self.assertLessEqual(used(rules) - {"semel"}, set(page()))

    @unittest.skipIf(PROMTOOL is None, "promtool is not installed")
    def test_promtool(self) -> None:
        for arguments in [
            ["check", "rules", "alerts.yml"],
            ["test", "rules", "alerts_test.yml", "alerts_days_test.yml"],
        ]:
            done = subprocess.run(
                [str(PROMTOOL), *arguments], cwd=ALERTS.parent, capture_output=True, text=True, timeout=120
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Dashboard(WithNode):
    def setUp(self) -> None:
        self.board = json.loads(DASHBOARD.read_text("utf-8"))
        self.panels = [panel for panel in self.board["panels"] if panel["type"] != "row"]

    def expressions(self) -> Set[str]:
        queries = {target["expr"] for panel in self.panels for target in panel["targets"]}
        return queries | {one["expr"] for one in self.board["annotations"]["list"]}

    def test_it_names_what_there_is(self) -> None:
        self.assertEqual(self.board["title"], "Semel")
        for expression in self.expressions():
            self.assertTrue(used(expression) <= set(page()) and "$job" in expression, expression)
        ids = [panel["id"] for panel in self.board["panels"]]
        self.assertEqual(len(set(ids)), len(ids))
        seen: Set[Tuple[int, int]] = set()
        for panel in self.board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & seen or at["x"] + at["w"] > 24, panel["title"])
            seen |= cells

    @unittest.skipIf(PROMTOOL is None, "promtool is not installed")
    def test_promtool(self) -> None:
        plain = [e.replace("$job", "semel").replace("$__rate_interval", "5m") for e in sorted(self.expressions())]
        rules = [{"record": f"dashboard:{at}", "expr": expression} for at, expression in enumerate(plain)]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            # JSON is YAML.
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            done = subprocess.run([str(PROMTOOL), "check", "rules", file.name], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = subprocess.run(
            [str(PROMTOOL), "check", "metrics"], input=self.node.metrics(), capture_output=True, text=True
        )
        # It says by its status whether the format is right; what it would like to be named otherwise is a matter of taste.
        self.assertNotEqual(done.returncode, 1, done.stdout + done.stderr)


if PROMTOOL is None:
    print("promtool is not installed: alerts and dashboard were not checked by it", file=sys.stderr)

if __name__ == "__main__":
    unittest.main()
