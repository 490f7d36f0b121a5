"""A node that takes JSON Web Tokens of an identity provider, as docs/access.md says: in a process of its own, with keys and
signatures that openssl makes."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients" / "python"))
sys.path.insert(0, str(ROOT / "clients" / "python" / "src"))

from tests.node import BINARY, port, scratch  # noqa: E402

OPENSSL = shutil.which("openssl")


def letters(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def openssl(*arguments: str, given: bytes = b"") -> bytes:
    assert OPENSSL
    return subprocess.run([OPENSSL, *arguments], input=given, capture_output=True, check=True).stdout


def until(what: str, holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends, f"never came true: {what}"
        time.sleep(0.05)


@unittest.skipIf(OPENSSL is None, "openssl is not installed")
class Tokens(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = Path(scratch("semel-jwt-"))
        self.addCleanup(shutil.rmtree, self.directory, True)
        self.key = str(self.directory / "key.pem")
        openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", self.key)
        modulus = openssl("rsa", "-in", self.key, "-noout", "-modulus").decode().strip().partition("=")[2]
        self.jwk = {"kty": "RSA", "kid": "one", "use": "sig", "n": letters(bytes.fromhex(modulus)), "e": "AQAB"}
        self.write_keys(self.jwk)
        table = re.search(r"^```toml\n(\[auth\.jwt\]\n.*?)^```$", (ROOT / "docs/access.md").read_text("utf-8"), re.M | re.S)
        assert table
        ports = [port() for _ in range(3)]
        names = zip(("listen", "peer_listen", "admin_listen"), ports)
        config = "".join(f'{name} = "127.0.0.1:{number}"\n' for name, number in names)
        config += f'data_dir = "{self.directory}/data"\n' + table.group(1).replace("/etc/semel", str(self.directory))
        (self.directory / "semel.toml").write_text(config, "utf-8")
        self.endpoint = f"http://127.0.0.1:{ports[0]}"
        self.node = subprocess.Popen([str(BINARY), "serve", "--config", str(self.directory / "semel.toml")])
        self.addCleanup(self.node.wait)
        self.addCleanup(self.node.terminate)
        init = ["cluster", "init", "--admin-endpoint", f"http://127.0.0.1:{ports[2]}"]
        init += ["--node", f"1=127.0.0.1:{ports[1]},127.0.0.1:{ports[0]}"]
        until("the cluster is formed", lambda: self.semel(*init).returncode == 0)

    def write_keys(self, *keys: Any) -> None:
        (self.directory / "new").write_text(json.dumps({"keys": keys}), "utf-8")
        (self.directory / "new").rename(self.directory / "jwks.json")

    def semel(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
        return subprocess.run([str(BINARY), *arguments], capture_output=True, text=True, env=environment, timeout=60)

    def token(self, **changed: Any) -> str:
        now = int(time.time())
        claims = {"iss": "https://issuer.example", "aud": ["semel"], "sub": "billing", "iat": now, "exp": now + 60}
        claims |= {"semel_tenant": "acme", "semel_permissions": ["claim"], "semel_operations": ["charge*"], **changed}
        header = {"alg": "RS256", "kid": "one", "typ": "JWT"}
        signed = ".".join(letters(json.dumps(part).encode()) for part in (header, claims))
        return signed + "." + letters(openssl("dgst", "-sha256", "-sign", self.key, given=signed.encode()))

    def claimed(self, token: str, operation: str = "charge") -> str:
        told = self.semel("claim", operation, "order-7", "--endpoint", self.endpoint, "--token", token)
        return "ok" if told.returncode == 0 else told.stderr.split(":")[1].strip()

    def test_a_token_does_what_its_claims_say_until_its_key_leaves(self) -> None:
        until("a leader", lambda: self.claimed(self.token()) == "ok")
        self.assertEqual(self.claimed(self.token(), "refund"), "forbidden")
        now = int(time.time())
        for changed in (
            {"exp": now - 40},
            {"iat": now - 7200, "exp": now + 7200},
            {"aud": "other"},
            {"iss": "https://issuer.evil"},
            {"semel_permissions": ["claim", "cluster"]},
            {"semel_operations": None},
        ):
            self.assertEqual(self.claimed(self.token(**changed)), "unauthenticated", changed)
        good = self.token()
        self.assertEqual(self.claimed(good[:-8] + "AAAAAAAA"), "unauthenticated")
        self.write_keys({**self.jwk, "kid": "two"})
        self.node.send_signal(signal.SIGHUP)
        until("the key has left", lambda: self.claimed(good) == "unauthenticated")


if __name__ == "__main__":
    unittest.main()
