"""What the tests share: a database, services in processes of their own, and requests."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections import deque
from dataclasses import dataclass
from urllib.parse import urlsplit

import psycopg

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 60.0


def database_url(user: str = "postgres", port: int | None = None) -> str:
    url = os.environ.get("STET_TEST_DATABASE")
    if not url:
        raise RuntimeError("STET_TEST_DATABASE is not set: run these tests by: go test ./clients/python")
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}@{parts.hostname}:{port or parts.port}").geturl()


@dataclass(frozen=True)
class Got:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def values(self, name: str) -> list[str]:
        return [v for n, v in self.headers if n.lower() == name.lower()]

    @property
    def replayed(self) -> bool:
        return self.values("Idempotent-Replayed") == ["true"]

    @property
    def problem(self) -> str:
        """The name of the problem that it is."""
        if self.values("Content-Type") != ["application/problem+json"]:
            return ""
        return json.loads(self.body)["type"].rpartition("#")[2]

    def same(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """What a replay has in common with the first answer."""
        changing = ("date", "server", "connection", "idempotent-replayed", "idempotency-expires", "cache-control", "set-cookie")
        return self.status, sorted((n.lower(), v) for n, v in self.headers if n.lower() not in changing), self.body


class Process:
    """A program that says where it listens."""

    got: deque[tuple[str, Got]] = deque(maxlen=4)
    """The last answers of all."""

    def __init__(self, name: str, arguments: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        listening = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(listening,), daemon=True)
        self._reader.start()
        listening.wait(PATIENCE)
        found = re.search(r"listening .*http://(127\.0\.0\.1:\d+)", "".join(self.lines))
        if not found:
            raise RuntimeError(f"{name} does not listen: {self.end()}")
        self.address = found[1]

    def _read(self, listening: threading.Event) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if "listening " in line:
                listening.set()
        listening.set()

    def says(self, text: str) -> None:
        """Waits until it has said it."""
        end = time.monotonic() + PATIENCE
        while text not in "".join(self.lines):
            if time.monotonic() > end:
                raise AssertionError(f"it did not say {text!r}, but: {self.end()}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stops it until SIGCONT, and waits until each of its threads has stopped: kill returns before that."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it has ended: {status}"

    def end(self) -> str:
        """Kills it, if it still runs, and returns its output."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stdout:
            self.process.stdout.close()
        return "".join(self.lines)

    def send(self, body: bytes = b'{"amount": 1}', path: str = "/payments", method: str = "POST", **headers: str | list[str]) -> Got:
        """A request. Header fields are arguments: key for the key, account, and do for what the handler does."""
        names = {"key": "Idempotency-Key", "account": "X-Account", "do": "X-Do"}
        headers = {"account": "acct_1", "Content_Type": "application/json", **headers}
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        connection.putrequest(method, path)
        for name, values in headers.items():
            for value in [values] if isinstance(values, str) else values:
                connection.putheader(names.get(name, name.replace("_", "-")), value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        got = Got(response.status, response.getheaders(), response.read())
        connection.close()
        self.got.append((f"{method} {path} {headers}", got))
        return got

    def pay(self, key: str, amount: int, do: str = "", **headers: str | list[str]) -> Got:
        return self.send(b'{"amount": %d}' % amount, key=f'"{key}"', do=do, **headers)


class Service(Process):
    """A process of service.py."""

    def __init__(self, flavour: str, port: int | None = None, **settings: str) -> None:
        env = {**os.environ, "STET_TEST_SERVICE_URL": database_url("shop", port), "PYTHONUNBUFFERED": "1", **settings}
        super().__init__(flavour, [sys.executable, os.path.join(HERE, "service.py"), flavour], env)


class Sidecar(Process):
    """stet proxy before a service that settles. more is what a route has besides, in YAML."""

    def __init__(self, service: Process, more: str = "", besides: str = "") -> None:
        program = os.environ.get("STET_TEST_PROGRAM")
        if not program:
            raise RuntimeError("STET_TEST_PROGRAM is not set: run these tests by: go test ./clients/python")
        routes = "".join(f"  - {{path: {path}, settles: service{more}}}\n" for path in ("/payments", "/bare"))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write(f"upstream: {{url: http://{service.address}}}\nscope: header:X-Account\nroutes:\n{routes}{besides}")
            config.flush()
            arguments = ["proxy", "--config", config.name, "--store", database_url(), "--listen", "127.0.0.1:0", "--admin-listen", "off"]
            super().__init__("stet proxy", [program, *arguments], dict(os.environ))


@dataclass(frozen=True)
class Sent:
    """A message, as a target of the relay has got it."""

    id: str
    to: str
    key: str | None
    header: dict[str, str]
    body: bytes


class Hook(http.server.ThreadingHTTPServer):
    """A target of the relay."""

    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[Sent] = []
        self.came = threading.Condition()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                header = {name.lower(): value for name, value in self.headers.items()}
                with hook.came:
                    hook.got.append(Sent(header["message-id"], header["message-to"], header.get("message-key"), header, body))
                    hook.came.notify_all()
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/"
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def wait(self, n: int) -> list[Sent]:
        """The messages, once there are so many."""
        with self.came:
            if not self.came.wait_for(lambda: len(self.got) >= n, PATIENCE):
                raise AssertionError(f"{len(self.got)} messages; want {n}")
            return list(self.got)

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class Ledger:
    """The payments, as the tests see them."""

    def __init__(self) -> None:
        self.connection = psycopg.connect(database_url(), autocommit=True)
        with self.connection.cursor() as c:
            c.execute("CREATE TABLE IF NOT EXISTS payments (id bigserial PRIMARY KEY, amount integer NOT NULL)")
            try:
                c.execute("CREATE ROLE shop LOGIN")  # which is the server's, and not the database's
            except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                pass
            c.execute("GRANT INSERT, SELECT ON payments TO shop; GRANT USAGE ON SEQUENCE payments_id_seq TO shop")
            for name in ("rights.sql", "rights_statements.sql")[:2 if os.environ.get("STET_TEST_MODE") == "statements" else 1]:  # those of README.md
                with open(os.path.join(HERE, name), encoding="utf-8") as file:
                    c.execute(file.read())

    def close(self) -> None:
        self.connection.close()

    def paid(self, amount: int) -> int:
        row = self.connection.execute("SELECT count(*) FROM payments WHERE amount = %s", (amount,)).fetchone()
        assert row
        return row[0]

    def messages(self, key: str) -> list[dict[str, str]]:
        """The messages stored with the outcome of a key of acct_1."""
        row = self.connection.execute("SELECT convert_from(substr(work, 2), 'UTF8') FROM stet.records WHERE id = stet.stet_id('acct_1', %s)", (key,)).fetchone()
        assert row
        return json.loads(row[0])["Messages"]

    def hold(self) -> None:
        """Payments that are to wait do."""
        self.connection.execute("SELECT pg_advisory_lock(4711)")

    def let_go(self) -> None:
        self.connection.execute("SELECT pg_advisory_unlock(4711)")

    def until_waiting(self) -> None:
        """Waits until a payment waits."""
        self.until("SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
                   "WHERE d.datname = current_database() AND locktype = 'advisory' AND objid = 4711 AND NOT granted", 1)

    def until(self, sql: str, want: int) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            row = self.connection.execute(sql).fetchone()
            if row and row[0] == want:
                return
            if time.monotonic() > end:
                raise AssertionError(f"{sql}: {row}; want {want}")
            time.sleep(0.005)


class ServiceTest(unittest.TestCase):
    """A test of one flavour of the service, which runs while the tests of a class do."""

    flavour = ""
    service: Service
    ledger: Ledger
    amounts = 0

    @classmethod
    def setUpClass(cls) -> None:
        cls.ledger = Ledger()
        cls.service = Service(cls.flavour)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.service.end()
        cls.ledger.close()

    def _formatMessage(self, msg: object, standardMsg: str) -> str:
        """What an assertion that fails says: with the last answers, and what the programs of the class have said."""
        said = [super()._formatMessage(msg, standardMsg), "the last answers:", *(f"{asked[:200]}: {str(got)[:1000]}" for asked, got in Process.got)]
        for program in (getattr(self, "sidecar", None), getattr(self, "service", None)):
            if program:
                said += [f"{type(program).__name__}:", *(line.rstrip()[:500] for line in program.lines[-30:])]
        return "\n".join(said)

    def amount(self) -> int:
        """A value that no other payment has."""
        ServiceTest.amounts += 1
        return ServiceTest.amounts + 1000 * (os.getpid() % 1_000_000)

    def key(self) -> str:
        return f"{type(self).__name__}-{self._testMethodName}-{os.getpid()}"
