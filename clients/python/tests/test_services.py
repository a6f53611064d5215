"""Services of every flavour, in processes of their own, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import functools
import json
import os
import time
import unittest
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import test_asgi
from fastapi import Depends, FastAPI
from service import BINARY, MODE
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import sessionmaker
from stet.asgi import Idempotent
from stet.asyncpg import Asyncpg
from stet.answer import Answer
from stet.core import Guard
from stet.options import Options
from stet.psycopg import AsyncPsycopg, Psycopg
from stet.run import Run
from stet.sqlalchemy import AsyncSQLAlchemy, SQLAlchemy
from support import Ledger, Service, ServiceTest, database_url
from wire import Proxy

POOL = concurrent.futures.ThreadPoolExecutor(16)


class Promises:
    """The tests; each flavour below inherits them."""

    def test_a_retry_gets_the_first_answer_and_pays_nothing(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        first = self.service.pay(key, amount)
        self.assertEqual((first.status, first.replayed), (201, False), first)
        self.assertRegex(first.values("Location")[0], r"^/payments/\d+$")
        again = self.service.pay(key, amount)
        self.assertEqual(again.same(), first.same())
        self.assertTrue(again.replayed)
        self.assertEqual(again.values("Cache-Control"), ["no-store"])
        bare = self.service.send(b'{"amount": %d}' % amount, key=key, do="")
        self.assertEqual((bare.same(), bare.replayed), (first.same(), True), "the key without quotes")
        other = self.service.pay(key, amount, account="acct_2")
        self.assertEqual((other.status, other.replayed), (201, False), "another account's")
        self.assertEqual(self.ledger.paid(amount), 2)

    def test_an_emitted_message_is_stored_with_the_outcome(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        for _ in range(2):
            self.assertEqual(self.service.pay(key, amount, "emit").status, 201)
        self.assertEqual([(m["To"], m["Key"], m["Header"], base64.b64decode(m["Body"])) for m in self.ledger.messages(key)], [
            ("payments", "acct 1", {"trace": str(amount), "content-type": "application/json"}, json.dumps({"paid": amount, "in": "\u20ac"}).encode()),
            ("mails", "", {"content-type": "text/plain; charset=utf-8"}, b"thank you"),
            ("raw", "", {"Content-Type": "application/x-raw"}, b"\0\1\xff")])
        self.assertEqual(self.service.pay(key + "bad", amount + 500, "emit, badly").status, 500)
        self.assertEqual((self.ledger.paid(amount), self.ledger.paid(amount + 500)), (1, 0))

    def test_headers_and_bytes_are_replayed_as_they_were(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        first, again = self.service.pay(key, amount, "binary"), self.service.pay(key, amount, "binary")
        self.assertEqual(first.body, BINARY)
        self.assertEqual(first.values("X-Latin"), ["Gr\xfc\xdfe"])
        self.assertEqual(first.values("Warning"), ["a", "b"])
        self.assertEqual(first.values("Set-Cookie"), ["session=secret"])
        self.assertEqual((again.same(), again.replayed), (first.same(), True))
        self.assertEqual(again.values("Set-Cookie"), [], "the session of the first caller")
        empty = [self.service.pay(key + "-empty", amount, "empty") for _ in range(2)]
        self.assertEqual([(e.status, e.body, e.replayed) for e in empty], [(204, b"", False), (204, b"", True)])
        self.assertEqual(self.ledger.paid(amount), 2)

    def test_another_request_under_the_key_is_refused(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        self.service.pay(key, amount)
        for got in (self.service.pay(key, amount + 1), self.service.pay(key, amount, Content_Type="application/json; charset=latin-1"),
                    self.service.send(b'{"amount": %d}' % amount, "/payments?x=1", key=key)):
            self.assertEqual((got.status, got.problem), (422, "mismatch"))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_request_that_names_no_operation_is_refused(self: ServiceTest) -> None:
        amount = self.amount()
        body = b'{"amount": %d}' % amount
        for headers, status, problem in (
            ({}, 400, "key-missing"), ({"key": '"k'}, 400, "key-invalid"), ({"key": "a,b"}, 400, "key-invalid"),
            ({"key": '"k"', "account": ""}, 403, "scope-missing"), ({"key": '"k"', "account": "x" * 1025}, 403, "scope-too-long"),
        ):
            got = self.service.send(body, **headers)
            self.assertEqual((got.status, got.problem, got.values("Cache-Control")), (status, problem, ["no-store"]))
        large = self.service.send(b'{"amount": %d, "x": "%s"}' % (amount, b"x" * 1000), key='"k"')
        self.assertEqual((large.status, large.problem), (413, "body-too-large"))
        self.assertEqual(self.ledger.paid(amount), 0)

    def test_a_duplicate_of_a_running_payment_gets_409(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        self.ledger.hold()
        try:
            first = POOL.submit(self.service.pay, key, amount, "wait")
            self.ledger.until_waiting()
            got = self.service.pay(key, amount, "wait")
            self.assertEqual((got.status, got.problem, got.values("Retry-After")), (409, "in-flight", ["1"]))
            self.assertEqual(self.service.pay(key, amount + 1).problem, "mismatch")
        finally:
            self.ledger.let_go()
        self.assertEqual(first.result().status, 201)
        again = self.service.pay(key, amount, "wait")
        self.assertEqual((again.same(), again.replayed), (first.result().same(), True))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_failed_request_is_rolled_back_and_runs_again(self: ServiceTest) -> None:
        for do, status in (("fail", 500), ("raise", 500), ("forbid", 403), ("swallow", 500)):
            with self.subTest(do):
                amount, key = self.amount(), self.key() + do
                got = self.service.pay(key, amount, do)
                self.assertEqual((got.status, got.replayed, self.ledger.paid(amount)), (status, False, 0), got)
                if do == "fail":
                    self.assertEqual((got.body, got.values("X-From")), (b"failed", ["handler"]))
                self.assertEqual(self.service.pay(key, amount).status, 201)
                self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_handler_that_commits_does_not_run_again_after_its_writes_were_committed(self: ServiceTest) -> None:
        service = Service(self.flavour)
        self.addCleanup(service.end)
        amount, key = self.amount(), self.key()
        first, again = service.pay(key, amount, "commit-by-connection"), service.pay(key, amount)
        if MODE == "functions":  # PostgreSQL refuses the COMMIT
            self.assertEqual((first.status, again.status, again.replayed, self.ledger.paid(amount)), (500, 201, False, 1), first)
            self.assertIn("a handler has tried to commit the transaction that it was given", service.end())
        else:
            self.assertEqual((first.status, first.problem), (500, "not-settled"))
            self.assertEqual((again.same(), again.replayed, self.ledger.paid(amount)), (first.same(), True, 1))
            said = service.end()
            self.assertIn("a handler has committed the transaction that it was given", said)
            self.assertIn("a failure was stored", said)

    def test_a_statement_that_ends_the_transaction_is_refused(self: ServiceTest) -> None:
        service = Service(self.flavour)
        self.addCleanup(service.end)
        for do in ("commit", "rollback"):
            amount, key = self.amount(), self.key() + do
            self.assertEqual((service.pay(key, amount, do).status, self.ledger.paid(amount)), (500, 0), do)
            self.assertEqual((service.pay(key, amount).status, self.ledger.paid(amount)), (201, 1), do)
        self.assertIn("a handler does not end its transaction", service.end())

    def test_a_refusal_is_stored_and_a_raised_one_has_its_writes_undone(self: ServiceTest) -> None:
        for do, status, paid in (("refuse", 402, 1), ("abort", 404, 0)):
            with self.subTest(do):
                amount, key = self.amount(), self.key() + do
                first, again = self.service.pay(key, amount, do), self.service.pay(key, amount, "refuse")
                self.assertEqual((first.status, again.replayed, again.same()), (status, True, first.same()))
                self.assertEqual(self.ledger.paid(amount), paid)

    def test_a_handler_that_rolls_back_itself_is_logged(self: ServiceTest) -> None:
        service = Service(self.flavour)
        self.addCleanup(service.end)
        amount, key = self.amount(), self.key()
        self.assertEqual((service.pay(key, amount, "rollback-by-connection").status, self.ledger.paid(amount)), (500, 0))
        self.assertIn("a handler has ended the transaction that it was given", service.end())
        self.assertEqual(self.service.pay(key, amount).status, 201)

    def test_an_answer_too_large_to_keep_is_sent_once(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        first, again = self.service.pay(key, amount, "big"), self.service.pay(key, amount, "big")
        self.assertEqual((first.status, len(first.body)), (201, 20_000))
        self.assertEqual((again.status, again.problem), (410, "result-expired"))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_an_endpoint_without_the_decorator_has_no_transaction(self: ServiceTest) -> None:
        self.assertEqual(self.service.send(path="/unmarked", key='"k"').status, 500)

    def test_duplicates_at_two_processes_pay_once(self: ServiceTest) -> None:
        other = Service(self.flavour)
        self.addCleanup(other.end)
        for round_ in range(5):
            amount, key = self.amount(), self.key() + str(round_)
            got = [f.result() for f in [POOL.submit(s.pay, key, amount) for s in (self.service, other) * 4]]
            self.assertEqual(self.ledger.paid(amount), 1)
            self.assertLessEqual({g.status for g in got}, {201, 409})
            self.assertEqual(len({g.body for g in got if g.status == 201}), 1)
            self.assertEqual(sum(g.status == 201 and not g.replayed for g in got), 1)

    def test_a_process_killed_in_its_transaction_leaves_nothing(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        dying = Service(self.flavour)
        self.addCleanup(dying.end)
        self.ledger.hold()
        try:
            lost = POOL.submit(dying.pay, key, amount, "wait")
            self.ledger.until_waiting()
            dying.end()
        finally:
            self.ledger.let_go()
        with self.assertRaises(OSError):
            lost.result()
        got = self.service.pay(key, amount)
        while got.status == 409:  # the server has not seen yet that its client is gone
            got = self.service.pay(key, amount)
        self.assertEqual((got.status, got.replayed), (201, False))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_an_unacknowledged_commit_is_read_back(self: ServiceTest) -> None:
        server = urlsplit(database_url())
        proxy = Proxy(server.hostname or "", server.port or 0)
        self.addCleanup(proxy.close)
        service = Service(self.flavour, proxy.port)
        self.addCleanup(service.end)
        amount, key = self.amount(), self.key()

        proxy.arm("reply")
        first = service.pay(key, amount)
        self.assertTrue(proxy.lost.is_set())
        self.assertEqual((first.status, first.replayed, self.ledger.paid(amount)), (201, False, 1), "it was done")
        again = self.service.pay(key, amount)
        self.assertEqual((again.same(), again.replayed), (first.same(), True))

        proxy.arm("request")
        undone = service.pay(key + "-2", amount)
        self.assertTrue(proxy.lost.is_set())
        self.assertEqual((undone.status, undone.problem, undone.values("Retry-After")), (503, "store-unavailable", ["1"]), "it was not")
        self.assertEqual(self.ledger.paid(amount), 1)
        self.assertEqual(service.pay(key + "-2", amount).status, 201)
        self.assertEqual(self.ledger.paid(amount), 2)

    def test_nothing_secret_is_logged(self: ServiceTest) -> None:
        service = Service(self.flavour)
        self.addCleanup(service.end)
        amount, key = self.amount(), "secret-key"
        for do in ("raise", "swallow", "commit-by-connection", ""):
            service.pay(key, amount, do, account="secret-account")
        settles, begins = ("EXECUTE ON FUNCTION stet.stet_settle_raw", "EXECUTE ON FUNCTION stet.stet_begin_raw") if MODE == "functions" \
            else ("INSERT ON stet.records", "SELECT ON stet.records")
        self.ledger.connection.execute(f"REVOKE {settles} FROM shop")
        try:
            self.assertEqual(service.pay(key + "-2", amount, account="secret-account").status, 500)
            self.ledger.connection.execute(f"REVOKE {begins} FROM shop")
            got = service.pay(key + "-3", amount, account="secret-account")
            self.assertEqual((got.status, got.problem), (500, "misconfigured"))
        finally:
            self.ledger.connection.execute(f"GRANT {settles} TO shop; GRANT {begins} TO shop")
        said = service.end()
        self.assertIn("permission denied", said)
        self.assertIn("GRANT EXECUTE ON FUNCTION stet.stet_begin_raw, stet.stet_settle_raw, stet.stet_settle, stet.stet_emit TO your_role", said)
        for secret in ("secret", "c1."):
            self.assertNotIn(secret, said)


def flavours(*names: str) -> None:
    for name in names:
        title = "".join(word.capitalize() for word in name.split("-"))
        globals()[title] = type(title, (Promises, ServiceTest), {"flavour": name, "__module__": __name__})


flavours("fastapi-psycopg-async", "fastapi-psycopg", "fastapi-asyncpg", "fastapi-sqlalchemy", "fastapi-sqlalchemy-async",
         "flask-psycopg", "flask-autocommit", "flask-sqlalchemy")

class Pools(unittest.IsolatedAsyncioTestCase):
    async def test_a_pool_of_asyncpg_gets_its_connection_back(self) -> None:
        self.addCleanup(Ledger().close)
        async with asyncpg.create_pool(database_url("shop"), min_size=1, max_size=1) as pool:
            database = Asyncpg(pool.acquire)
            guard = Guard(database, Options(mode=MODE))
            for _ in range(3):
                run = await asyncio.wait_for(guard.start("acct_1", "pool", "", "POST", b"/", [], b""), 30)
                self.assertIsInstance(run, Run, "the closed connection was not rolled back")
                await run.undo()

    async def test_a_pool_smaller_than_the_callers_serves_all(self) -> None:
        """A request that begins waits for the pool. The threads that settle and commit never do."""
        self.addCleanup(Ledger().close)
        engine = create_engine(database_url("shop").replace("postgres://", "postgresql+psycopg2://"), pool_size=2, max_overflow=0, pool_timeout=60)
        self.addCleanup(engine.dispose)
        app = FastAPI()
        idempotent = Idempotent(SQLAlchemy(sessionmaker(engine)), scope=lambda request: "acct_1")
        app.add_middleware(idempotent.middleware)

        @app.post("/pay")
        @idempotent
        def pay(tx: Any = Depends(idempotent.transaction)) -> str:
            tx.execute(text("INSERT INTO payments (amount) VALUES (77001)"))
            time.sleep(0.01)
            return "paid"

        answers = await asyncio.wait_for(asyncio.gather(*(test_asgi.send(app, key=f"starve-{n}") for n in range(80))), 60)
        self.assertEqual({messages[0]["status"] for messages in answers}, {200})


class BehindPgBouncer(unittest.IsolatedAsyncioTestCase):
    """Transactions of several clients over one connection of the server, in PgBouncer's transaction mode."""

    async def test_each_driver_runs_and_replays(self) -> None:
        url = os.environ.get("STET_TEST_PGBOUNCER", "")
        if not url:
            raise RuntimeError("STET_TEST_PGBOUNCER is not set: run these tests by: go test ./clients/python")
        cached = {"statement_cache_size": 0}  # what the service must set for asyncpg
        engine = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://").partition("?")[0], connect_args=cached, pool_size=2)
        plain = create_engine(url.replace("postgres://", "postgresql+psycopg2://"), pool_size=2)
        for name, make in {
            "psycopg": lambda: Psycopg(functools.partial(nullcontext, psycopg.connect(url, prepare_threshold=None))),
            "psycopg-async": lambda: AsyncPsycopg(nullcontext),
            "asyncpg": lambda: Asyncpg(functools.partial(asyncpg.connect, url, **cached)),
            "sqlalchemy": lambda: SQLAlchemy(sessionmaker(plain)),
            "sqlalchemy-async": lambda: AsyncSQLAlchemy(sessionmaker(engine, class_=AsyncSession)),
        }.items():
            with self.subTest(name):
                databases = [make(), make()]
                if name == "psycopg-async":
                    databases = [AsyncPsycopg(functools.partial(nullcontext, await psycopg.AsyncConnection.connect(url, prepare_threshold=None))) for _ in range(2)]
                for n in range(30):
                    for which, database in enumerate(databases):
                        start = functools.partial(Guard(database, Options(mode=MODE)).start, "acct_1", f"{name}-{which}-{n}", "", "POST", b"/", [], b"")
                        run = await start()
                        self.assertIsInstance(run, Run)
                        await run.finish(Answer(201, [], b"paid"))
                        self.assertEqual((await start()).body, b"paid")
        await engine.dispose()
        plain.dispose()


if __name__ == "__main__":
    unittest.main()
