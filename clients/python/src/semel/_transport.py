"""How a command gets to a node and back: connections that are kept, which node is talked to, whose answers are believed."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import select
import socket
import ssl
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from .errors import ClusterChanged, ConfigurationError, Lost, ProtocolError, Refused, SemelError, TimedOut, Unreachable
from .errors import refused as refusal_of

CONNECT_S = 3.0
ENDPOINTS_MAX = 32
#: Connections that are kept for one node while nobody uses them.
IDLE_CONNECTIONS_MAX = 32
#: A connection that was idle for longer is not used again: the node ends it after a few minutes by itself.
IDLE_S_MAX = 60.0
ANSWER_BYTES_MAX = 32 << 20
#: How long the client is content with any node after the leader could not be reached from where it is.
LEADER_UNREACHABLE_S = 300.0
CLUSTER_ID = "semel-cluster-id"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: an address literal, or `localhost`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Node:
    """A node, by its address for clients."""

    def __init__(self, scheme: str, host: str, port: int, told: bool) -> None:
        self.scheme = scheme
        self.host = host
        self.port = port
        #: Whether another node told its address.
        self.told = told
        shown = f"[{host}]" if ":" in host else host
        self.endpoint = f"{scheme}://{shown}:{port}"
        self.idle: List[Tuple[http.client.HTTPConnection, float]] = []


class Nodes:
    """The nodes that a client knows, and the one that it talks to now."""

    def __init__(self, endpoints: List[str], plaintext_anywhere: bool, tls: Optional[ssl.SSLContext]) -> None:
        self._plaintext_anywhere = plaintext_anywhere
        self._tls = tls
        self._lock = threading.Lock()
        self._nodes = [self._parse(endpoint, told=False) for endpoint in endpoints]
        self._current = 0
        self._leader_unreachable_until = 0.0
        if not 0 < len(self._nodes) <= ENDPOINTS_MAX:
            raise ConfigurationError(f"endpoint: name 1 to {ENDPOINTS_MAX}, like http://127.0.0.1:7171")

    def _parse(self, endpoint: str, told: bool) -> Node:
        text = endpoint.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, None
        if parts is None or not host or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigurationError(f"endpoint: {text!r} is no address; like http://127.0.0.1:7171")
        if parts.scheme == "http":
            if not self._plaintext_anywhere and not is_loopback(host):
                raise ConfigurationError(
                    f"endpoint: a token is not sent to {host} in plaintext; use https://, or insecure_plaintext=True"
                )
        elif parts.scheme == "https":
            if self._tls is None:
                raise ConfigurationError(f"endpoint: {text!r} is encrypted: name its authority with `ca`")
        else:
            raise ConfigurationError(f"endpoint: {text!r}: begin it with http:// or https://")
        return Node(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), told)

    def current(self) -> Node:
        with self._lock:
            return self._nodes[self._current]

    def failed(self, node: Node) -> None:
        """This node failed: the next one is talked to, unless somebody else has moved on already."""
        with self._lock:
            if self._nodes[self._current] is node:
                self._current = (self._current + 1) % len(self._nodes)

    def unreachable(self, node: Node) -> None:
        """No connection to this node came about. Where it is a leader that another node named, its address may be none
        that is reachable from here: then the others are let forward."""
        self.failed(node)
        if node.told:
            with self._lock:
                self._leader_unreachable_until = time.monotonic() + LEADER_UNREACHABLE_S

    def asks_for_leader(self) -> bool:
        """Whether a node that doesn't lead is to name the leader instead of forwarding."""
        with self._lock:
            return time.monotonic() >= self._leader_unreachable_until

    def follow(self, endpoint: str) -> None:
        """A node said that this one leads. An address that the client would not have been built with is not followed."""
        try:
            leader = self._parse(endpoint, told=True)
        except ConfigurationError:
            with self._lock:
                self._leader_unreachable_until = time.monotonic() + LEADER_UNREACHABLE_S
            return
        with self._lock:
            for at, node in enumerate(self._nodes):
                if node.endpoint == leader.endpoint:
                    self._current = at
                    return
            if len(self._nodes) < ENDPOINTS_MAX:
                self._nodes.append(leader)
                self._current = len(self._nodes) - 1

    def drop_idle(self) -> None:
        with self._lock:
            for node in self._nodes:
                idle, node.idle = node.idle, []
                for connection, _ in idle:
                    connection.close()


class Cluster:
    """Which cluster answers. A restore draws a new id; whoever didn't notice would take an old state for the truth."""

    def __init__(self, known: Optional[str]) -> None:
        self.known = known
        self._lock = threading.Lock()

    def check(self, found: Optional[str]) -> None:
        """Judges an answer. One that names none comes from something in between, which has no state to be wrong about."""
        if found is None:
            return
        with self._lock:
            if self.known is None:
                self.known = found
            if self.known != found:
                raise ClusterChanged(self.known, found)


class Transport:
    """One try of one command."""

    def __init__(
        self, nodes: Nodes, cluster: Cluster, token: Optional[str], tls: Optional[ssl.SSLContext]
    ) -> None:
        self.nodes = nodes
        self.cluster = cluster
        self._tls = tls
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._headers: Dict[str, str] = {"content-type": "application/json", "accept": "application/json"}
        if token is not None:
            if not token or any(not 0x21 <= ord(c) <= 0x7E for c in token):
                raise ConfigurationError("token: it is empty, or has a character that no token has")
            self._headers["authorization"] = f"Bearer {token}"

    def post(self, path: str, body: Mapping[str, Any], until: float) -> Dict[str, Any]:
        """One try: the answer, or why there is none."""
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
        headers = dict(self._headers)
        if self.nodes.asks_for_leader():
            headers["semel-no-forward"] = "1"
        node = self.nodes.current()
        started = time.monotonic()
        connection = self._connection(node, until)
        try:
            self._limit(connection, until)
            connection.request("POST", path, text, headers)
            response = connection.getresponse()
            data = self._read(connection, response, until)
        except (socket.timeout, TimeoutError):
            connection.close()
            self.nodes.failed(node)
            raise TimedOut(time.monotonic() - started) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.nodes.failed(node)
            raise Lost(node.endpoint, str(error) or type(error).__name__) from error
        except BaseException:
            # Interrupted in between: whatever comes over it later is nobody's answer.
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._keep(node, connection)
        return self._judge(node, response, data)

    def stream(self, path: str, headers: Mapping[str, str], idle_s: float) -> Iterator[bytes]:
        """The lines of an answer that goes on, over a connection of its own."""
        node = self.nodes.current()
        connection = self._connect(node, time.monotonic() + CONNECT_S)
        try:
            assert connection.sock is not None
            connection.sock.settimeout(idle_s)
            try:
                connection.request("GET", path, headers={**self._headers, **headers, "accept": "text/event-stream"})
                response = connection.getresponse()
                if response.status != 200:
                    self._judge(node, response, response.read(ANSWER_BYTES_MAX))
                    raise ProtocolError(f"{node.endpoint} answered HTTP {response.status}")
                self.cluster.check(response.headers.get(CLUSTER_ID))
                while True:
                    line = response.readline(ANSWER_BYTES_MAX)
                    if not line:
                        return
                    yield line
            except (OSError, http.client.HTTPException) as error:
                self.nodes.failed(node)
                raise Lost(node.endpoint, str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def close(self) -> None:
        """Ends what is kept."""
        self.nodes.drop_idle()

    def _connection(self, node: Node, until: float) -> http.client.HTTPConnection:
        with self._lock:
            if os.getpid() != self._pid:
                # After a fork the parent's connections are the parent's alone: closing them here ends nothing there.
                self._pid = os.getpid()
                self.nodes.drop_idle()
            while node.idle:
                connection, since = node.idle.pop()
                if time.monotonic() - since < IDLE_S_MAX and _is_quiet(connection):
                    return connection
                connection.close()
        return self._connect(node, until)

    def _connect(self, node: Node, until: float) -> http.client.HTTPConnection:
        timeout = max(0.001, min(CONNECT_S, until - time.monotonic()))
        if node.scheme == "https":
            assert self._tls is not None
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                node.host, node.port, timeout=timeout, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(node.host, node.port, timeout=timeout)
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.nodes.unreachable(node)
            raise Unreachable(node.endpoint, str(error) or type(error).__name__) from error
        return connection

    def _keep(self, node: Node, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(node.idle) < IDLE_CONNECTIONS_MAX:
                node.idle.append((connection, time.monotonic()))
                return
        connection.close()

    @staticmethod
    def _limit(connection: http.client.HTTPConnection, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)

    def _read(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, until: float
    ) -> bytes:
        data = bytearray()
        while True:
            self._limit(connection, until)
            more = response.read(1 << 16)
            if not more:
                # It is silent about a body that broke off.
                if response.length:
                    raise http.client.IncompleteRead(bytes(data), response.length)
                return bytes(data)
            data += more
            if len(data) > ANSWER_BYTES_MAX:
                raise http.client.HTTPException("the answer is larger than any of Semel's")

    def _judge(self, node: Node, response: http.client.HTTPResponse, data: bytes) -> Dict[str, Any]:
        self.cluster.check(response.headers.get(CLUSTER_ID))
        try:
            answer = json.loads(data)
        except ValueError:
            answer = None
        if response.status == 200 and isinstance(answer, dict):
            return answer
        if isinstance(answer, dict) and isinstance(answer.get("code"), str) and "effect" in answer:
            error: SemelError = refusal_of(answer)
            leader = error.leader if isinstance(error, Refused) else None
            if leader is not None:
                self.nodes.follow(leader)
            elif error.code == "unavailable":
                self.nodes.failed(node)
            raise error
        # Something in between. Its 404 says nothing of a record, its 502 nothing of the command.
        if response.status in (401, 403):
            code = "unauthenticated" if response.status == 401 else "forbidden"
            raise Refused({"code": code, "detail": f"HTTP {response.status} of something in between", "effect": "none"})
        if response.status >= 500 or response.status in (408, 429):
            self.nodes.failed(node)
            raise Lost(node.endpoint, f"HTTP {response.status} of something in between")
        raise ProtocolError(f"{node.endpoint} answered HTTP {response.status}, which is no answer of Semel's")


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Whether a kept connection is there and has nothing to say: one that was ended by the other side is readable."""
    if connection.sock is None:
        return False
    try:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            return not poll.poll(0)
        return not select.select([connection.sock], [], [], 0)[0]
    except (OSError, ValueError):
        return False
