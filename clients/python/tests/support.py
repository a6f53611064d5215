"""What the tests share: a database, services in processes of their own, and requests."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
import unittest
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
        changing = ("date", "server", "connection", "idempotent-replayed", "cache-control", "set-cookie")
        return self.status, sorted((n.lower(), v) for n, v in self.headers if n.lower() not in changing), self.body


class Service:
    """A process of service.py."""

    def __init__(self, flavour: str, port: int | None = None, **settings: str) -> None:
        env = {**os.environ, "STET_TEST_SERVICE_URL": database_url("shop", port), "PYTHONUNBUFFERED": "1", **settings}
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "service.py"), flavour], env=env,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.logged: str | None = None
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"{flavour} does not listen: {line}{self.end()}")
        self.address = urlsplit(line.split()[-1]).netloc

    def end(self) -> str:
        """Kills it, if it is not dead yet, and returns what it has logged."""
        if self.logged is None:
            self.process.kill()
            self.logged = self.process.communicate()[1]
        return self.logged

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
        return got

    def pay(self, key: str, amount: int, do: str = "", **headers: str | list[str]) -> Got:
        return self.send(b'{"amount": %d}' % amount, key=f'"{key}"', do=do, **headers)


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
            c.execute("GRANT USAGE ON SCHEMA stet TO shop; GRANT EXECUTE ON FUNCTION stet.stet_begin, stet.stet_settle, stet.stet_release TO shop;"
                      "GRANT INSERT, SELECT ON payments TO shop; GRANT USAGE ON SEQUENCE payments_id_seq TO shop")

    def close(self) -> None:
        self.connection.close()

    def paid(self, amount: int) -> int:
        row = self.connection.execute("SELECT count(*) FROM payments WHERE amount = %s", (amount,)).fetchone()
        assert row
        return row[0]

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

    def amount(self) -> int:
        """One that no other payment has."""
        ServiceTest.amounts += 1
        return ServiceTest.amounts + 1000 * (os.getpid() % 1_000_000)

    def key(self) -> str:
        return f"{type(self).__name__}-{self._testMethodName}-{os.getpid()}"
