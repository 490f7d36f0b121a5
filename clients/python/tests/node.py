"""The real binary, for tests: SEMEL_BIN, else what `cargo build` leaves."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional

ROOT = Path(__file__).resolve().parents[3]
BINARY = Path(os.environ.get("SEMEL_BIN") or ROOT / "target" / "debug" / "semel")
LONG_S = 60.0


def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found


def scratch(prefix: str) -> str:
    """A directory of a test's own. In memory where there is room: what a killed process has written is there either way, and
    a busy disk makes tests slow."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    return tempfile.mkdtemp(prefix=prefix, dir=str(memory) if roomy else None)


class Node:
    """`semel dev` in a process of its own. Its port is fixed, so that it comes back where it was."""

    def __init__(self, *arguments: str) -> None:
        self.directory = scratch("semel-py-")
        self.arguments = list(arguments)
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.admin = ""
        self._port = 0
        self.start()

    @property
    def endpoint(self) -> str:
        scheme = "https" if "--tls" in self.arguments else "http"
        return f"{scheme}://127.0.0.1:{self._port}"

    def start(self) -> None:
        for _ in range(20):
            self._port = self._port or port()
            log = open(os.path.join(self.directory, "log"), "wb+")
            self.process = subprocess.Popen(
                [str(BINARY), "dev", "--listen", f"127.0.0.1:{self._port}", "--peer-listen", "127.0.0.1:0"]
                + ["--admin-listen", "127.0.0.1:0", "--data-dir", os.path.join(self.directory, "data")]
                + self.arguments,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            log.close()
            until = time.monotonic() + LONG_S
            while self.process.poll() is None:
                found = re.search(r"operators +(https?://\S+)", self.said())
                if found:
                    self.admin = found.group(1)
                    return
                if time.monotonic() > until:
                    raise AssertionError(f"the node is not ready: {self.said()}")
                time.sleep(0.02)
            if "in use" not in self.said():
                raise AssertionError(f"the node ended: {self.said()}")
            if not os.path.exists(os.path.join(self.directory, "data", "wal")):
                # Somebody else took the port in between.
                self._port = 0
            time.sleep(0.2)
        raise AssertionError("no port for a node")

    def said(self) -> str:
        return Path(self.directory, "log").read_text("utf-8", "replace")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=10) as answer:
            text: str = answer.read().decode("utf-8")
            return text

    def kill(self) -> None:
        """As if the plug was pulled."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Cluster:
    """`semel dev --nodes 3`: three processes."""

    def __init__(self) -> None:
        self.directory = scratch("semel-py-")
        log = os.path.join(self.directory, "log")
        for base in range(21_000 + os.getpid() * 53 % 20_000, 60_000, 31):
            with open(log, "wb") as file:
                self.parent = subprocess.Popen(
                    [str(BINARY), "dev", "--nodes", "3", "--listen", f"127.0.0.1:{base}"]
                    + ["--data-dir", os.path.join(self.directory, "data")],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            end = time.monotonic() + LONG_S
            while self.parent.poll() is None and time.monotonic() < end:
                if Path(log).read_text("utf-8").count("is ready") >= 3:
                    return
                time.sleep(0.05)
            self.stop()
            os.makedirs(self.directory)
        raise AssertionError("no ports for three nodes")

    def nodes(self) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = json.loads(Path(self.directory, "data", "nodes.json").read_text("utf-8"))
        return found

    @property
    def endpoints(self) -> List[str]:
        return [f"http://{node['listen']}" for node in self.nodes()]

    def leader(self) -> int:
        """The number of the node that leads, as the others have it; 0 while there is none."""
        for node in self.nodes():
            try:
                with urllib.request.urlopen(f"http://{node['admin_listen']}/v1/status", timeout=5) as answer:
                    status = json.load(answer)
            except OSError:
                continue
            if status["leader_id"] and status["role"] == "leader":
                return int(status["leader_id"])
        return 0

    def kill(self, number: int) -> None:
        """As if the plug was pulled on a node."""
        os.kill(next(node["pid"] for node in self.nodes() if node["id"] == number), signal.SIGKILL)

    def stop(self) -> None:
        self.parent.terminate()
        try:
            self.parent.wait(30)
        except subprocess.TimeoutExpired:
            self.parent.kill()
            self.parent.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class WithNode(unittest.TestCase):
    """Tests that share one node, all of them: starting one takes longer than most tests."""

    node: Node
    _shared: Optional[Node] = None

    @classmethod
    def setUpClass(cls) -> None:
        if WithNode._shared is None:
            WithNode._shared = Node()
            atexit.register(WithNode._shared.stop)
        cls.node = WithNode._shared


def until(what: str, is_so: Any, at_most_s: float = LONG_S) -> Any:
    """Waits for a condition."""
    end = time.monotonic() + at_most_s
    while True:
        found = is_so()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {at_most_s} s: {what}")
        time.sleep(0.02)
