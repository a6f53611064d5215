"""Finds duplicate effects of a service, with or without stet, in a test of pytest or unittest.

    def test_payments_are_made_once() -> None:
        stet.testing.check(
            lambda port: [sys.executable, "-m", "uvicorn", "shop:app", "--port", str(port)],
            request=lambda n: stet.testing.Request("/payments", b'{"amount": %d}' % n),
            effects=lambda n: count_payments(amount=n))

check starts the program, repeats requests, sends duplicates at the same time, disconnects, and kills the process group
with SIGKILL when an effect is visible, after a response, and in between. A response of 2xx promises one effect, and the same response to
every retry. Any other response promises at most one effect. Another request with a used key must receive 4xx.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["Request", "check"]

_RETRYABLE = (409, 425, 429, 500, 502, 503)
_ROUNDS = 3


@dataclass(frozen=True)
class Request:
    """A request without a key."""

    path: str
    body: bytes = b""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


@dataclass(frozen=True)
class _Answer:
    """A response, or status 0 and the error."""

    status: int
    body: bytes = b""
    content_type: str | None = None
    location: str | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        return f"{self.status or 'an error'} {self.body[:200]!r}"


def check(start: Callable[[int], Sequence[str]], *, request: Callable[[int], Request], effects: Callable[[int], int],
          header: str = "Idempotency-Key", patience: float = 120.0) -> None:
    """Raises AssertionError with each duplicate effect and each changed response.

    start returns the command of a service that listens on this port of 127.0.0.1. Its state must survive in files or a database. request
    returns the request of operation n, and effects the number of its effects. patience is the time in seconds after which an operation
    without a final response is reported; in lease mode it must be longer than the lease.
    """
    checker = _Checker(start, request, effects, header, patience)
    try:
        checker.run()
    finally:
        checker.kill()
    if checker.found:
        raise AssertionError("stet.testing: " + "\n".join(checker.found))


class _Checker:
    def __init__(self, start: Callable[[int], Sequence[str]], request: Callable[[int], Request], effects: Callable[[int], int], header: str, patience: float) -> None:
        self.start, self.request, self.effects, self.header, self.patience = start, request, effects, header, patience
        self.process: subprocess.Popen[bytes] | None = None
        self.found: list[str] = []
        self.reported: set[int] = set()
        self.keys: dict[int, str] = {}
        self.next = random.randrange(1_000_000, 900_000_000)  # a database can have the operations of earlier runs

    def launch(self) -> None:
        """Starts the program, and waits until it accepts connections."""
        said = ""
        for _ in range(3):  # another process can take the port
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]
            with tempfile.TemporaryFile() as output:
                self.process = subprocess.Popen(list(self.start(self.port)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
                end = time.monotonic() + self.patience
                while self.process.poll() is None and time.monotonic() < end:
                    with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                        return
                    time.sleep(0.02)
                self.kill()
                output.seek(0)
                said = output.read().decode(errors="replace")
        raise RuntimeError(f"stet.testing: the program does not accept connections at the port that start received; its output: {said}")

    def kill(self) -> None:
        """Kills the process group."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def begin(self) -> int:
        self.next += 1
        self.keys[self.next] = f"stet-testing-{self.next}-{uuid.uuid4()}"
        return self.next

    def send(self, n: int, key: str, leave: threading.Event | None = None) -> _Answer:
        """Sends a request. With leave, the client disconnects when it is set."""
        request = self.request(n)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=0.01 if leave else self.patience)
        try:
            connection.request(request.method, request.path, request.body, {**request.headers, self.header: key})
            if leave:
                leave.wait()
                return _Answer(0, b"the client has left")
            response = connection.getresponse()
            return _Answer(response.status, response.read(), response.getheader("Content-Type"), response.getheader("Location"))
        except (OSError, http.client.HTTPException) as error:
            return _Answer(0, repr(error).encode())
        finally:
            connection.close()

    def final(self, name: str, n: int) -> _Answer:
        """Retries until there is a response that is no reason to retry."""
        end, pause = time.monotonic() + self.patience, 0.02
        while (answer := self.send(n, self.keys[n])).status in (0, *_RETRYABLE):
            if time.monotonic() > end:
                self.report(n, f"{name}: operation {n} still received {answer} after {self.patience} s of retries; want a final response")
                break
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        return answer

    def report(self, n: int, text: str) -> None:
        if n not in self.reported:
            self.reported.add(n)
            self.found.append(text)

    def count(self, name: str, n: int, last: _Answer) -> None:
        """Compares the number of effects with the promise of the response."""
        number = self.effects(n)
        if number > 1 or last.ok and number == 0:
            self.report(n, f"{name}: operation {n} has {number} effects after {last}; want {'1' if last.ok else 'at most 1'}")

    def same(self, name: str, n: int, first: _Answer, again: _Answer) -> None:
        if first.ok and again.status and again != first:
            self.report(n, f"{name}: operation {n} received {first}, and on a retry {again}; want the same status, body, Content-Type and Location")

    @contextmanager
    def sending(self, n: int, leave: threading.Event | None = None) -> Iterator[list[_Answer]]:
        """Sends a request in a thread. The list receives its response."""
        answers: list[_Answer] = []
        thread = threading.Thread(target=lambda: answers.append(self.send(n, self.keys[n], leave)))
        thread.start()
        try:
            yield answers
        finally:
            thread.join()

    def run(self) -> None:
        self.launch()
        n, began = self.begin(), time.monotonic()
        first = self.send(n, self.keys[n])
        typical = time.monotonic() - began
        if not first.ok:
            raise RuntimeError(f"stet.testing: the first request of operation {n} received {first}: let request return a request that succeeds")
        for _ in range(_ROUNDS):
            self.same("repeated", n, first, self.final("repeated", n))
        self.count("repeated", n, first)
        other = self.begin()
        if (answer := self.send(other, self.keys[n])).ok:
            self.report(other, f"another request: operation {other} with the key of operation {n} received {answer}; want 4xx")
        for i in range(_ROUNDS):
            self.together()
            self.disconnected(typical / 2)
            self.killed("killed when the effect is visible", lambda n, _: self.effects(n) > 0)
            self.killed("killed after the response", lambda _, __: False)
            moment = typical * (i + 1) / (_ROUNDS + 1)
            self.killed("killed during the request", lambda _, seconds: seconds > moment)
        for n in self.keys:  # effects can come late
            if (number := self.effects(n)) > 1:
                self.report(n, f"operation {n} has {number} effects at the end; want 1")

    def together(self) -> None:
        """Sends duplicates of an operation at the same time."""
        name, n = "at the same time", self.begin()
        with self.sending(n) as a, self.sending(n) as b, self.sending(n) as c, self.sending(n) as d:
            pass
        last = self.final(name, n)
        for answer in (*a, *b, *c, *d):
            self.same(name, n, answer, last)
        self.count(name, n, last)

    def disconnected(self, after: float) -> None:
        name, n, leave = "the client disconnects", self.begin(), threading.Event()
        with self.sending(n, leave):
            time.sleep(after)
            leave.set()
        self.count(name, n, self.final(name, n))

    def killed(self, name: str, moment: Callable[[int, float], bool]) -> None:
        """Kills the program at a moment of a request, or after its response, starts it again, and retries.

        moment receives the operation and the seconds since the request began.
        """
        n, began = self.begin(), time.monotonic()
        with self.sending(n) as answers:
            while not answers and not moment(n, time.monotonic() - began):
                time.sleep(0.001)
            self.kill()
        self.launch()
        self.count(name, n, self.final(name, n))
