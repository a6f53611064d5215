"""A worker in Python: it takes orders from stet over HTTP, says that it is alive, and settles them.

    STET_URL=http://127.0.0.1:8090 STET_TOKEN=... python3 worker.py

Standard library only. Every request may be repeated: the name of a run is made up here, before it is asked for.
"""

import http.client
import json
import os
import secrets
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("STET_URL", "http://127.0.0.1:8090")
TOKEN = os.environ["STET_TOKEN"]
PATIENCE = 60  # seconds for which a request is repeated

stopping = threading.Event()


class Refused(Exception):
    """The server has understood and will not: status and problem document."""

    def __init__(self, status, problem):
        super().__init__(f"{status}: {problem.get('detail', '')}")
        self.status, self.problem = status, problem


def call(run, what, body, timeout=90):
    """Sends a request until it is answered; returns the answer, or None for "nothing to do"."""
    request = urllib.request.Request(
        f"{URL}/runs/{run}/{what}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        method="POST",
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                text = response.read()
                return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            text = error.read()
            if error.code != 503 or time.monotonic() > deadline:
                raise Refused(error.code, json.loads(text) if text else {}) from None
        except (OSError, http.client.HTTPException):  # also an answer that breaks off
            if time.monotonic() > deadline:
                raise
        time.sleep(1)


class Run:
    """An operation that this process runs. Use it in a with statement: it sends the heartbeats."""

    def __init__(self, name, description):
        self.name, self.cancelling = name, threading.Event()
        self.payload, self.attempt, self.key = description.get("payload"), description["attempt"], description["key"]
        self.lease, self.progress = description["lease"], None
        self.over = threading.Event()
        self.heart = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self):
        self.heart.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.heart.join()

    def _beat(self):
        while not self.over.wait(self.lease / 3):
            try:
                if call(self.name, "extend", {"progress": self.progress}, timeout=self.lease / 3)["cancelling"]:
                    self.cancelling.set()
            except Exception:
                self.cancelling.set()  # whatever it does now, its outcome may not be stored

    def step(self, name, do, once=True):
        """Does a step, or returns what an earlier attempt has got. Refused says that it is in doubt (409),
        or that this run has used its name before (400)."""
        found = call(self.name, "step", {"name": name, "once": once, "call": secrets.token_hex(8)})
        if found["done"]:
            return found["result"]
        return call(self.name, "step", {"name": name, "result": do()})["result"]


class Rejected(Exception):
    """No repetition will cure this: its text is the operation's outcome."""


def ship(run):
    """The handler: what it returns is the outcome."""
    order = run.payload
    if not order.get("book"):
        raise Rejected("an order for nothing")
    run.progress = {"fraction": 0.5, "message": "charging"}
    charge = run.step("charge", lambda: {"charge": f"charge for {order['book']}"})
    return {"shipped": order["book"], **charge}


HANDLERS = {"ship": ship}


def work():
    """Takes one operation and runs it."""
    name = secrets.token_hex(16)
    try:
        description = call(name, "take", {"names": list(HANDLERS), "wait": 20})
    except (ValueError, RecursionError) as error:  # a payload that Python does not read: it is some client's
        print(call(name, "return", {"error": f"what was taken cannot be read: {type(error).__name__}"}), file=sys.stderr, flush=True)
        return
    if description is None:
        return
    with Run(name, description) as run:
        try:
            what, body = "settle", {"result": HANDLERS[description["name"]](run)}
        except Rejected as error:
            what, body = "settle", {"error": str(error)}
        except Exception as error:  # an effect may have happened
            what, body = "park", {"error": repr(error)}
        answer = call(name, what, body)
    print(description["name"], run.key, answer["state"], flush=True)


def main():
    for sig in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sig, lambda *_: stopping.set())
    print("working for", URL, flush=True)
    while not stopping.is_set():
        try:
            work()
        except (Refused, OSError, http.client.HTTPException) as error:
            print("trouble:", error, file=sys.stderr, flush=True)
            stopping.wait(1)


if __name__ == "__main__":
    main()
