#!/usr/bin/env python3
"""The console in a real browser: Chromium, driven by chromedriver over the WebDriver protocol (W3C), with nothing but the
standard library. A node of its own; the records' keys, labels and reasons are markup that must stay text.

    python3 tests/browser/console.py [SEMEL] [SCREENSHOTS]

Where Chromium or chromedriver is missing it says so and does nothing.
"""

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

NASTY = '<img src=x onerror="document.title=1">'
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def ask(url, body=None, method=None, seconds=30, token=None, trust=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    if token:
        request.add_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=seconds, context=trust) as answer:
        return json.loads(answer.read() or b"null")


def until(what, found, seconds=30):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise SystemExit(f"no {what} within {seconds} s")


class Browser:
    """A page that is looked at."""

    def __init__(self, driver):
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"]
        options = {"args": arguments, "binary": shutil.which("chromium")}
        # The authority of a node's own certificates is nobody's that a browser knows.
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "acceptInsecureCerts": True}}
        self.base = f"{driver}/session/{ask(f'{driver}/session', {'capabilities': wanted})['value']['sessionId']}"

    def do(self, path, body=None, method="POST"):
        return ask(f"{self.base}{path}", body if method == "GET" else body or {}, method)["value"]

    def go(self, url):
        self.do("/url", {"url": url})

    def script(self, text, *arguments):
        return self.do("/execute/sync", {"script": text, "args": list(arguments)})

    def find(self, css):
        return self.do("/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.do(f"/element/{self.find(css)}/click")

    def type(self, css, text):
        self.do(f"/element/{self.find(css)}/value", {"text": text})

    def text(self, css="main"):
        return self.do(f"/element/{self.find(css)}/text", method="GET")

    def shot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.do("/screenshot", method="GET")))

    def end(self):
        ask(self.base, method="DELETE")


def indeterminate(node, key):
    record = {"operation": "charge", "key": key}
    claim = ask(f"{node}/v1/claim", {"record": record, "request": {"n": 1}, "labels": {"who": NASTY}})
    ask(f"{node}/v1/suspend", {"record": record, "fence": claim["fence"], "reason": NASTY})


def check(node, console, browser, shots):
    for key in ("order-1", NASTY):
        indeterminate(node, key)
    blocked = ask(f"{node}/v1/claim", {"record": {"operation": "charge", "key": "order-1"}, "request": {"n": 1}})
    assert blocked["answer"] == "indeterminate", blocked

    browser.go(f"{console}/console")
    text = browser.text()
    assert NASTY in text and "order-1" in text, text
    assert browser.script("return document.images.length") == 0, "a key became markup"
    assert "Queue" in browser.script("return document.querySelector('[aria-current]').textContent")
    browser.shot(f"{shots}/queue.png")

    # By keyboard alone: to the first row, open it.
    browser.type("body", "j")
    assert browser.script("return document.activeElement.textContent") == "order-1"
    browser.script("document.activeElement.click()")
    until("record", lambda: "provider say" in browser.text())
    browser.shot(f"{shots}/record.png")
    browser.click("input[value=completed]")
    browser.type("[name=body]", '{"charge":"ch_1"}')
    browser.click("form.card:last-of-type button")
    assert "provider say" in browser.text(), "it was sent without evidence"
    browser.type("#evidence", "the provider lists ch_1")
    browser.click("form.card:last-of-type button")
    until("verdict", lambda: browser.text(".state") == "completed")
    browser.shot(f"{shots}/settled.png")

    replay = ask(f"{node}/v1/claim", {"record": {"operation": "charge", "key": "order-1"}, "request": {"n": 1}})
    assert base64.b64decode(replay["outcome"]["body"]) == b'{"charge":"ch_1"}', replay
    other = {"record": {"operation": "charge", "key": "order-1"}, "request": {"n": 2}}
    assert ask(f"{node}/v1/claim", other)["answer"] == "conflict"

    for page in ("events", "live", "nodes", "tenants"):
        browser.go(f"{console}/console/{page}")
        assert browser.script("return document.querySelector('[role=alert]')") is None, browser.text()
        browser.shot(f"{shots}/{page}.png")
    browser.go(f"{console}/console/events")
    assert "resolved" in browser.text() and "the provider lists ch_1" in browser.text() and "order-1" in browser.text()

    # On a phone nothing is wider than the screen.
    browser.do("/window/rect", {"width": 500, "height": 900})
    for page in ("queue", "events", "live", "nodes", "tenants"):
        browser.go(f"{console}/console/{page}")
        wide, screen = browser.script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide <= screen, (page, wide, screen)
    browser.shot(f"{shots}/phone.png")

    # Neither in a frame, nor by another page's form.
    other = f"<iframe src='{console}/console/queue'></iframe><form method=post action='{console}/console/resolve'><button>x</button></form>"
    browser.go("data:text/html," + other.replace("#", "%23"))
    framed = "try { return document.querySelector('iframe').contentDocument !== null } catch (e) { return false }"
    assert browser.script(framed) is False, "it was framed"
    browser.click("button")
    until("refusal", lambda: "forbidden" in browser.script("return document.body.textContent"))


def check_signed_in(node, console, browser, shots, directory):
    """Over TLS, and for whoever shows a token alone."""
    trust = ssl.create_default_context(cafile=f"{directory}/secure/certs/clients-ca.pem")
    with open(f"{directory}/secure/admin.token", encoding="ascii") as file:
        admin = file.read().strip()

    def token(*permissions):
        made = {"tenant": "acme", "permissions": permissions, "operations": ["*"]}
        return ask(f"{node}/v1/token/create", made, token=admin, trust=trust)

    claims, clerk = token("claim")["token"], token("reconcile", "claim")
    record = {"operation": "charge", "key": "order-1"}
    claim = ask(f"{node}/v1/claim", {"record": record, "request": {"n": 1}}, token=claims, trust=trust)
    ask(f"{node}/v1/suspend", {"record": record, "fence": claim["fence"], "reason": "lost"}, token=claims, trust=trust)

    browser.go(f"{console}/console")
    assert "Sign in" in browser.text() and "order-1" not in browser.text(), browser.text()
    browser.type("#token", "nobody-has-this-one")
    browser.click("form.card button")
    until("refusal", lambda: "unauthenticated" in browser.text())
    browser.type("#token", clerk["token"])
    browser.click("form.card button")
    until("queue", lambda: "order-1" in browser.text())
    browser.shot(f"{shots}/signed-in.png")
    [cookie] = browser.do("/cookie", method="GET")
    kept = (cookie["name"], cookie["secure"], cookie["httpOnly"], cookie["sameSite"], cookie["path"])
    assert kept == ("__Host-semel", True, True, "Strict", "/"), cookie
    assert browser.script("return document.cookie") == "", "a script can read the cookie"

    # What it may not see it is not shown.
    browser.go(f"{console}/console/nodes")
    assert "forbidden" in browser.text(), browser.text()
    browser.go(f"{console}/console/queue")
    browser.click("main a")
    until("record", lambda: "provider say" in browser.text())
    browser.click("input[value=no_effect]")
    browser.type("#evidence", "the provider has no such charge")
    browser.click("form.card:last-of-type button")
    until("verdict", lambda: "owner_may_act" in browser.text() or "provider say" not in browser.text())

    # Signing out ends it, and so does the end of the token.
    browser.click("form[action='/console/sign-out'] button")
    until("sign-in", lambda: "Sign in" in browser.text())
    browser.go(f"{console}/console/queue")
    assert "Sign in" in browser.text()
    browser.type("#token", clerk["token"])
    browser.click("form.card button")
    until("queue", lambda: "Sign in" not in browser.text())
    ended = {"token_id": clerk["token_id"], "reason": "left the company"}
    ask(f"{node}/v1/token/revoke", ended, token=admin, trust=trust)
    browser.go(f"{console}/console/queue")
    until("sign-in", lambda: "Sign in" in browser.text())


def main():
    semel = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/debug/semel")
    driver = shutil.which("chromedriver")
    if not driver or not shutil.which("chromium"):
        print("chromium or chromedriver is not installed: the console was not looked at in a browser")
        return
    with tempfile.TemporaryDirectory() as directory:
        shots = sys.argv[2] if len(sys.argv) > 2 else os.path.join(directory, "shots")
        os.makedirs(shots, exist_ok=True)
        ports = [x for name in ("listen", "peer-listen", "admin-listen") for x in (f"--{name}", "127.0.0.1:0")]
        running = []

        def start(name, *command):
            with open(f"{directory}/{name}", "w") as said:
                running.append(subprocess.Popen(command, stdout=said, stderr=said))

        def node(name, *more):
            start(f"{name}.log", semel, "dev", "--data-dir", f"{directory}/{name}", *ports, *more)

        try:
            read = lambda name: open(f"{directory}/{name}").read()
            addresses = lambda name: re.findall(r"(?:clients|operators) +(https?://[0-9.:]+)", read(f"{name}.log"))
            start("driver", driver, "--port=0")
            node("open")
            node("secure", "--auth", "--tls")
            port = until("chromedriver", lambda: re.search(r"started successfully on port (\d+)", read("driver")))
            for name in ("open", "secure"):
                until("node", lambda: addresses(name)[1:])
                until("leader", lambda: is_ready(addresses(name)[1]))
            # Each has a browser of its own: nothing of one is left for the other.
            for name in ("open", "secure"):
                browser = Browser(f"http://127.0.0.1:{port[1]}")
                try:
                    if name == "open":
                        check(*addresses(name)[:2], browser, shots)
                    else:
                        check_signed_in(*addresses(name)[:2], browser, shots, directory)
                finally:
                    browser.end()
        finally:
            for process in running:
                process.terminate()
                process.wait(30)
    print("the console holds in a browser")


def is_ready(admin):
    try:
        # Whether it is ready is no secret: whose certificate that is doesn't matter yet.
        context = ssl._create_unverified_context()
        return urllib.request.urlopen(f"{admin}/readyz", timeout=5, context=context).status == 200
    except urllib.error.URLError:
        return False


if __name__ == "__main__":
    main()
