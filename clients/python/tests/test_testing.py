"""stet.testing finds planted defects, and nothing in a service with stet."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import unittest
from contextlib import suppress
from pathlib import Path

import stet.testing
from support import PATIENCE, Ledger, database_url

# A service that remembers responses by hand. A payment is a line of the file. The kind is its defect.
SHOP = """
import http.server, os, subprocess, sys, threading, time
path, kind, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock, stored = threading.Lock(), {}
alive = os.open(sys.argv[4], os.O_WRONLY)
os.write(alive, b"x")
subprocess.Popen(["sleep", "600"], pass_fds=[alive])
class Shop(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body, key = self.rfile.read(int(self.headers["Content-Length"])).decode(), self.headers["Idempotency-Key"]
        known = stored.get(key)
        if kind == "races":
            time.sleep(0.1)  # the other duplicates read the key, too
        with lock:
            if kind != "races":
                known = stored.get(key)
            if known and kind != "repeats":
                return self.say(201, known[1]) if known[0] == body or kind == "confuses" else self.say(422, "another request")
            with open(path, "a") as file:
                file.write(body + "\\n")
            stored[key] = body, "paid " + body
        self.say(201, "paid " + body)
    def say(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Shop).serve_forever()
"""


def request(n: int) -> stet.testing.Request:
    return stet.testing.Request("/payments", b'{"amount": %d}' % n, headers={"Content-Type": "application/json", "X-Account": "acct_1"})


class Testing(unittest.TestCase):
    def found(self, kind: str) -> str:
        """The findings in a service by hand. Each of its processes has the FIFO open, and none is left."""
        with tempfile.TemporaryDirectory() as folder:
            payments, fifo = Path(folder, "payments"), os.path.join(folder, "alive")
            payments.touch()
            os.mkfifo(fifo)
            alive = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            try:
                stet.testing.check(lambda port: [sys.executable, "-c", SHOP, str(payments), kind, str(port), fifo], request=request,
                                   effects=lambda n: payments.read_text().count(f": {n}}}"))
                return ""
            except AssertionError as error:
                return str(error)
            finally:
                self.assertRegex(os.read(alive, 1000), b"^x{10,}$")  # one for each start
                end = time.monotonic() + PATIENCE
                with suppress(StopIteration):
                    while time.monotonic() < end:
                        with suppress(BlockingIOError):
                            self.assertEqual(os.read(alive, 1), b"")
                            raise StopIteration
                        time.sleep(0.01)
                    self.fail("a process of the service is left")
                os.close(alive)

    def test_a_service_with_stet(self) -> None:
        ledger = Ledger()
        self.addCleanup(ledger.close)
        program = ("import sys; from service import flavour; from werkzeug.serving import make_server; "
                   "make_server('127.0.0.1', int(sys.argv[1]), flavour('flask-psycopg')[0], threaded=True).serve_forever()")
        stet.testing.check(lambda port: ["env", "STET_TEST_SERVICE_URL=" + database_url("shop"), sys.executable, "-c", program, str(port)],
                           request=request, effects=ledger.paid)

    def test_a_service_that_ignores_keys(self) -> None:
        found = self.found("repeats")
        for name in ("repeated", "another request", "at the same time", "killed after the response"):
            self.assertIn(name, found)

    def test_a_service_that_reads_the_key_too_soon(self) -> None:
        self.assertIn("at the same time", self.found("races"))

    def test_a_service_that_forgets_keys_in_a_crash(self) -> None:
        found = self.found("forgets")
        self.assertIn("killed after the response", found)
        self.assertNotIn("at the same time", found)

    def test_a_service_that_does_not_compare_the_body(self) -> None:
        self.assertIn("another request", self.found("confuses"))

    def test_a_program_that_does_not_listen_is_an_error_with_its_output(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "no shop here"):
            stet.testing.check(lambda port: ["sh", "-c", "echo no shop here; exit 1"], request=lambda n: stet.testing.Request("/"), effects=lambda n: 0)
