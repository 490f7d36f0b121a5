"""Runs the ```console blocks of a page and compares what they print with what the page says.

A line that begins with `$ ` is a command of a shell that lives as long as the page; `> ` continues it. What follows is what
it prints. What differs from run to run is compared by what it is: a time with a time, a random id with an id; positions
(fences, versions) may be others than on the page, but the same one is the same one throughout, also in later commands. A line `…` stands for any number of lines.

A command `semel dev …` or `semel proxy …` goes on in the background; its page line ends in ` &` or not. A proxy's upstream on
port 3000 is a service that counts the orders it is sent. Everything else of a page has the
node, or the three, that its first comment asks for: `<!-- console: dev -->`, `<!-- console: dev --nodes 3 -->`, `none`, or
`shared`: a node that several pages share, each as a tenant of its own, for those that use `semel` alone.

    python3 tests/docs/console.py --write docs/states.md     # puts in what is printed now, and the fence for FENCE
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from tests.node import BINARY, Node, scratch  # noqa: E402

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.S | re.M)
#: The ports of the page: nodes 1 to 3, clients, peers and operators of each.
PORTS = [7171 + 10 * node + role for node in range(3) for role in range(3)]
#: The proxy's, counted from the first.
PROXY = 5
LONG_S = 90.0

#: What differs from run to run, and is compared by its kind alone.
KINDS = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "<time>"),
    (re.compile(r"(?i)(date: )\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"), r"\1<date>"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"\bsml_[a-z2-7]{40}"), "<downstream key>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<id>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    (re.compile(r'("(?:position|bytes)":")\d+"'), r'\1<number>"'),
    (re.compile(r'(token id +|"token_id":"|token:)[a-z2-7]{16}\b'), r"\1<token id>"),
    (re.compile(r"\bpid \d+"), "pid <pid>"),
    (re.compile(r"BaseHTTP/\S+ Python/\S+"), "<server>"),
    (re.compile(r'("retry_after_ms":|retry-after: )\d+', re.I), r"\1<wait>"),
    # What an answer reflects: a tick more or less is nothing that the page speaks of.
    (re.compile(r'(\bindex"?:? *"?)\d+'), r"\1<index>"),
    (re.compile(r"(retry after ms\s+)\d+(\.\d+)? (ms|s)\b"), r"\1<wait>"),
    (re.compile(r"\bfor \d+ (ms|s)\b|\b\d+(\.\d+)? (ms|s) (left|ago)\b"), "<duration>"),
]
POSITION = re.compile(
    r'(\\?"(?:fence|version)\\?":\\?")(\d+)(\\?")|(\b(?:fence|version)[ =]+)(\d+)\b|(--(?:fence|version) )(\d+)\b'
)


class Mismatch(AssertionError):
    """The page says something else."""


def blocks(text: str) -> Iterator[List[Tuple[str, List[str]]]]:
    """For each block its commands, each with the lines that it prints."""
    for match in BLOCK.finditer(text):
        commands: List[Tuple[str, List[str]]] = []
        for line in match.group(1).splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif line.startswith("> ") and commands and not commands[-1][1]:
                commands[-1] = (commands[-1][0] + "\n" + line[2:], [])
            else:
                assert commands, f"a block begins with what nothing prints: {line}"
                commands[-1][1].append(line)
        yield commands


class Page:
    """A page that is run."""

    def __init__(self, path: Path, shared: Optional[Node] = None) -> None:
        self.text = path.read_text("utf-8")
        self.directory = Path(scratch("semel-docs-"))
        setting = re.search(r"<!-- console: (.*?) -->", self.text)
        assert setting, f"{path} doesn't say what its blocks run against: <!-- console: dev -->"
        self.setting = setting.group(1)
        if self.setting == "shared":
            assert "curl" not in self.text, f"{path} would meet other pages' records"
            self.shared = shared or Node()
            self.is_own = shared is None
            self.ports = {7171: port_of(self.shared.endpoint), 7173: port_of(self.shared.admin)}
        else:
            base = free_ports()
            self.ports = {port: base + port - PORTS[0] for port in PORTS}
            # Between those of node 1 and node 2: the proxy's.
            self.ports[8080] = base + PROXY
        self.positions: Dict[str, str] = {}
        self.background: List[subprocess.Popen[bytes]] = []
        self.service: Optional[ThreadingHTTPServer] = None
        bin_directory = self.directory / ".bin"
        bin_directory.mkdir()
        (bin_directory / "semel").symlink_to(BINARY)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")},
            "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
            "SEMEL_ENDPOINT": f"http://127.0.0.1:{self.ports[7171]}",
            "SEMEL_ADMIN_ENDPOINT": f"http://127.0.0.1:{self.ports[7173]}",
            "USER": "you",
        }
        if self.setting == "shared":
            environment["SEMEL_TENANT"] = path.stem
        self.environment = environment
        self.shell = subprocess.Popen(
            ["bash", "--norc"],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        if self.setting.startswith("dev"):
            self.start(f"semel {self.setting}")

    def close(self) -> None:
        assert self.shell.stdin and self.shell.stdout
        self.shell.stdin.close()
        self.shell.stdout.close()
        self.shell.kill()
        self.shell.wait()
        for process in self.background:
            process.send_signal(signal.SIGTERM)
        for process in self.background:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in re.findall(r'"pid":(\d+)', self.nodes()):
            # One that outlived its parent, if there is such a one.
            command = Path(f"/proc/{pid}/cmdline")
            if command.exists() and b"semel" in command.read_bytes():
                os.kill(int(pid), signal.SIGKILL)
        if self.setting == "shared" and self.is_own:
            self.shared.stop()
        if self.service is not None:
            self.service.shutdown()
            self.service.server_close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def nodes(self) -> str:
        path = self.directory / "semel-dev" / "nodes.json"
        return path.read_text("utf-8") if path.exists() else ""

    def start(self, command: str) -> str:
        """A `semel dev` in the background; what it says until it is ready."""
        words = command.partition(" #")[0].replace(" &", "").split()[1:]
        directory = self.directory
        if words[0] == "proxy":
            words += ["--listen", f"127.0.0.1:{self.ports[8080]}"]
            # Beside the node's own, which the page's reader has elsewhere.
            directory = self.directory / ".proxy"
            directory.mkdir()
        elif "--node" not in words:
            words += ["--listen", f"127.0.0.1:{self.ports[7171]}"]
            if "--nodes" not in words:
                words += ["--peer-listen", f"127.0.0.1:{self.ports[7172]}"]
                words += ["--admin-listen", f"127.0.0.1:{self.ports[7173]}"]
        log = self.directory / f".log-{len(self.background)}"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [str(BINARY), *words], cwd=directory, env=self.environment, stdout=file, stderr=subprocess.STDOUT
            )
        self.background.append(process)
        end = time.monotonic() + LONG_S
        ready = r"is ready(?s:.*)is ready(?s:.*)is ready" if "--nodes" in words else r"operators|is ready|Ctrl-C"
        while not re.search(ready, log.read_text("utf-8")):
            if process.poll() is not None or time.monotonic() > end:
                raise Mismatch(f"{command} did not start: {log.read_text('utf-8')}")
            time.sleep(0.05)
        return log.read_text("utf-8")

    def serve(self) -> None:
        """The service behind a proxy."""

        class Orders(BaseHTTPRequestHandler):
            count = 0

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                Orders.count += 1
                body = f'{{"order":{Orders.count}}}\n'.encode()
                self.send_response(201)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.service = ThreadingHTTPServer(("127.0.0.1", 0), Orders)
        self.service.daemon_threads = True
        self.ports[3000] = self.service.server_address[1]
        threading.Thread(target=self.service.serve_forever, args=(0.05,), daemon=True).start()

    def run(self, command: str) -> List[str]:
        """What a command prints."""
        if command.startswith("semel proxy"):
            self.serve()
        if command.startswith(("semel dev", "semel proxy")):
            return self.shown(self.start(self.actual(command)))
        assert self.shell.stdin and self.shell.stdout
        end = f"--- {os.urandom(8).hex()}"
        self.shell.stdin.write(f"{self.actual(command)}\necho; echo {end}\n")
        self.shell.stdin.flush()
        lines = []
        for line in self.shell.stdout:
            if line.rstrip("\n") == end:
                break
            lines.append(line)
        # The empty line that stands before the end is ours, where the output ended with its own line.
        text = "".join(lines)
        return self.shown(text[:-1] if text.endswith("\n") else text)

    def actual(self, command: str) -> str:
        """A command with this run's ports and positions."""
        command = re.sub(r"\b(\d{4})\b", lambda found: self.port(found.group()), command)

        def position(found: "re.Match[str]") -> str:
            groups = [group for group in found.groups() if group is not None]
            return groups[0] + self.positions.get(groups[1], groups[1]) + "".join(groups[2:])

        return POSITION.sub(position, command)

    def port(self, text: str) -> str:
        return str(self.ports.get(int(text), text))

    def shown(self, text: str) -> List[str]:
        """What was printed, as the page would have it: with its ports."""
        for port, own in self.ports.items():
            text = re.sub(rf"\b{own}\b", str(port), text)
        text = text.replace(str(self.directory), "~")
        # Whoever follows the page doesn't say where to listen.
        return text.rstrip("\n").split("\n") if text.strip() else []

    def compare(self, command: str, expected: List[str], printed: List[str]) -> None:
        def fail() -> None:
            own, other = "\n  ".join(expected), "\n  ".join(printed)
            raise Mismatch(f"$ {command}\nthe page says\n  {own}\nand it prints\n  {other}")

        rest = list(printed)
        wild = False
        for line in expected:
            if line == "…":
                wild = True
                continue
            while wild and rest and not self.alike(line, rest[0], bind=False):
                rest.pop(0)
            wild = False
            if not rest or not self.alike(line, rest.pop(0), bind=True):
                fail()
        if rest and not wild:
            fail()

    def alike(self, expected: str, printed: str, bind: bool) -> bool:
        own, other = plain(expected), plain(printed)
        own_positions = [number for groups in POSITION.findall(own) for number in groups if number.isdigit()]
        positions = [number for groups in POSITION.findall(other) for number in groups if number.isdigit()]
        if len(own_positions) != len(positions):
            return False
        own_shape, shape = POSITION.sub("<position>", own), POSITION.sub("<position>", other)
        if own_shape != shape and not self.alike_tables(own_shape, shape, bind):
            return False
        return self.bound(zip(own_positions, positions), bind)

    def bound(self, pairs: "Iterator[Tuple[str, str]]", bind: bool) -> bool:
        known = dict(self.positions)
        for own, other in pairs:
            if known.setdefault(own, other) != other:
                return False
        if bind:
            self.positions = known
        return True

    def alike_tables(self, own: str, other: str, bind: bool) -> bool:
        """Lines of a table: word by word, numbers as positions are."""
        words, others = own.split(), other.split()
        if len(words) != len(others) or not own.startswith(other[:1]):
            return False
        numbers = []
        for word, found in zip(words, others):
            if word.isdigit() and found.isdigit():
                numbers.append((word, found))
            elif word != found:
                return False
        return self.bound(iter(numbers), bind)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def plain(line: str) -> str:
    for pattern, kind in KINDS:
        line = pattern.sub(kind, line)
    return re.sub(r"\s+", " ", line).strip()


#: Where pages look for ports next: each somewhere else, those of other processes too.
BASES = iter(range(20_000 + os.getpid() * 37 % 20_000, 60_000, 41))


def free_ports() -> int:
    """The first of nine ports, as far apart as the page's, that are free."""
    for base in BASES:
        try:
            for beyond in [*(port - PORTS[0] for port in PORTS), PROXY]:
                with socket.socket() as one:
                    one.bind(("127.0.0.1", base + beyond))
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


def check(path: Path, shared: Optional[Node] = None) -> int:
    """Runs a page; how many commands it has."""
    page = Page(path, shared)
    count = 0
    try:
        for commands in blocks(page.text):
            for command, expected in commands:
                page.compare(command, expected, page.run(command))
                count += 1
    finally:
        page.close()
    return count


def write(path: Path) -> None:
    """Puts in what is printed now, and the last fence that was printed for FENCE."""
    page = Page(path)
    fence = ""
    try:
        written = []
        for commands in blocks(page.text):
            lines = []
            for command, expected in commands:
                command = command.replace("FENCE", fence)
                lines.append("$ " + command.replace("\n", "\n> "))
                printed = page.run(command)
                found = re.findall(r'\bfence"?[: ]+"?(\d+)', "\n".join(printed))
                fence = found[-1] if found else fence
                lines += expected if "…" in expected else printed
            written.append("```console\n" + "\n".join(lines) + "\n```")
    finally:
        page.close()
    replaced = iter(written)
    path.write_text(BLOCK.sub(lambda _: next(replaced), page.text), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("pages", nargs="+", type=Path)
    arguments = parser.parse_args()
    for one in arguments.pages:
        if arguments.write:
            write(one)
        else:
            print(f"{one}: {check(one)} commands")
