"""stet.operation, over each driver and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
import unittest
import unittest.mock
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import stet
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from stet.psycopg import Psycopg
from support import Ledger, database_url
from wire import Proxy

MODE = os.environ.get("STET_TEST_MODE", "functions")
INSERT = "INSERT INTO payments (amount) VALUES (%d)"


class Broken(Exception):
    """An error of a block."""


class Kind:
    """A kind of connection, used in one way: blocks of blocking ones run in "with"."""

    def __init__(self, name: str, connection: Any, insert: Callable[[Any, str], Any]) -> None:
        self.name, self.connection, self._insert = name, connection, insert

    async def insert(self, amount: int) -> None:
        """Writes by the connection itself."""
        done = self._insert(self.connection, INSERT % amount)
        if inspect.isawaitable(done):
            await done

    @contextlib.asynccontextmanager
    async def block(self, key: str, payload: Any = "pay", **options: Any) -> Any:
        block = stet.operation(self.connection, scope="acct_1", key=f"{self.name}-{key}", payload=payload, mode=MODE, **options)
        if block._database.blocking:
            with block as op:
                yield op
        else:
            async with block as op:
                yield op


async def kinds(test: unittest.IsolatedAsyncioTestCase) -> list[Kind]:
    url = database_url("shop")
    engine = create_engine(url.replace("postgres://", "postgresql+psycopg2://"))
    waiting = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://").partition("?")[0])
    made = [
        Kind("psycopg", psycopg.connect(url, row_factory=dict_row), lambda c, sql: c.execute(sql)),
        Kind("psycopg-autocommit", psycopg.connect(url, autocommit=True), lambda c, sql: c.execute(sql)),
        Kind("psycopg-async", await psycopg.AsyncConnection.connect(url), lambda c, sql: c.execute(sql)),
        Kind("asyncpg", await asyncpg.connect(url), lambda c, sql: c.execute(sql)),
        Kind("session", Session(engine), lambda c, sql: c.execute(text(sql))),
        Kind("session-async", AsyncSession(waiting), lambda c, sql: c.execute(text(sql))),
        Kind("sqlalchemy-async", await waiting.connect(), lambda c, sql: c.execute(text(sql))),
    ]

    async def close() -> None:
        for kind in made:
            closed = kind.connection.close()
            if inspect.isawaitable(closed):
                await closed
        engine.dispose()
        await waiting.dispose()

    test.addAsyncCleanup(close)
    return made


class Operations(unittest.IsolatedAsyncioTestCase):
    amounts = 70_000

    async def asyncSetUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        self.kinds = await kinds(self)

    def amount(self) -> int:
        Operations.amounts += 1
        return Operations.amounts

    async def pay(self, kind: Kind, key: str, amount: int, payload: Any = "pay") -> Any:
        async with kind.block(key, payload) as op:
            if not op.replayed:
                await kind.insert(amount)
                op.result = {"payment": (amount, "\u20ac")}
        return op.replayed, op.result

    async def test_a_repetition_returns_the_result_of_the_first(self) -> None:
        for kind in self.kinds:
            with self.subTest(kind.name):
                amount = self.amount()
                for replayed in (False, True, True):
                    self.assertEqual(await self.pay(kind, "twice", amount), (replayed, {"payment": [amount, "\u20ac"]}))
                self.assertEqual(self.ledger.paid(amount), 1)

    async def test_an_error_of_the_block_undoes_its_writes_and_the_next_call_runs(self) -> None:
        for kind in self.kinds:
            for error in (Broken, asyncio.CancelledError, KeyboardInterrupt):
                amount = self.amount()
                with self.subTest(f"{kind.name}: {error.__name__}"):
                    with self.assertRaises(error):
                        async with kind.block(error.__name__):
                            await kind.insert(amount)
                            raise error
                    self.assertEqual(self.ledger.paid(amount), 0)
                    self.assertEqual((await self.pay(kind, error.__name__, amount))[0], False)
                    self.assertEqual(self.ledger.paid(amount), 1)

    async def test_a_refusal_is_stored_without_the_writes(self) -> None:
        for kind in self.kinds:
            amount = self.amount()
            for runs in (True, False):
                with self.subTest(f"{kind.name}: {runs}"), self.assertRaises(stet.Refusal) as raised:
                    async with kind.block("refused") as op:
                        self.assertTrue(runs)
                        await kind.insert(amount)
                        op.result = "not this"
                        raise stet.Refusal({"reason": "no such card"}, 404)
                self.assertEqual((raised.exception.value, raised.exception.status, self.ledger.paid(amount)), ({"reason": "no such card"}, 404, 0))

    async def test_a_refusal_that_cannot_be_stored_is_an_error_and_runs_again(self) -> None:
        for value, status, want in (("later", 429, ValueError), ("fails", 500, ValueError), (object(), 422, TypeError)):
            for _ in range(2):
                with self.assertRaises(want):
                    async with self.kinds[0].block(f"not stored {status}"):
                        raise stet.Refusal(value, status)

    async def test_the_writes_of_a_replayed_block_are_undone(self) -> None:
        for kind in self.kinds:
            with self.subTest(kind.name):
                first, again = self.amount(), self.amount()
                await self.pay(kind, "unchecked", first)
                with self.assertRaisesRegex(RuntimeError, "only if not op.replayed"):
                    async with kind.block("unchecked") as op:
                        await kind.insert(again)
                        op.result = "again"
                async with kind.block("unchecked"):
                    await kind.insert(again)
                self.assertEqual((self.ledger.paid(first), self.ledger.paid(again)), (1, 0))

    async def test_another_payload_is_a_mismatch_and_another_order_of_members_is_not(self) -> None:
        for kind in self.kinds:
            with self.subTest(kind.name):
                amount = self.amount()
                await self.pay(kind, "payload", amount, {"a": 1, "b": 2})
                self.assertTrue((await self.pay(kind, "payload", amount, {"b": 2, "a": 1}))[0])
                for other in ({"a": 1}, b"{}", "text"):
                    with self.assertRaises(stet.OperationError) as raised:
                        await self.pay(kind, "payload", amount, other)
                    self.assertEqual((raised.exception.problem, raised.exception.retryable, raised.exception.execution), ("mismatch", False, "not executed"))
                self.assertEqual(self.ledger.paid(amount), 1)

    async def test_a_second_connection_is_in_flight_in_the_meantime(self) -> None:
        for kind in self.kinds:
            amount = self.amount()
            with self.subTest(kind.name), psycopg.connect(database_url("shop")) as second:
                async with kind.block("busy") as op:
                    with self.assertRaises(stet.OperationError) as raised:
                        with stet.operation(second, scope="acct_1", key=f"{kind.name}-busy", payload="pay", mode=MODE):
                            self.fail("it runs twice")
                    await kind.insert(amount)
                    op.result = 1
                self.assertEqual((raised.exception.problem, raised.exception.retryable), ("in-flight", True))
                with stet.operation(second, scope="acct_1", key=f"{kind.name}-busy", payload="pay", mode=MODE) as again:
                    self.assertEqual((again.replayed, again.result), (True, 1))

    async def test_a_connection_in_a_transaction_is_refused_also_in_a_block(self) -> None:
        for kind in self.kinds:
            amount = self.amount()
            with self.subTest(kind.name):
                async with kind.block("outer"):
                    await kind.insert(amount)
                    with self.assertRaisesRegex(RuntimeError, "in a transaction already"):
                        async with kind.block("inner"):
                            self.fail("it has begun")
                self.assertEqual(self.ledger.paid(amount), 1)

    async def test_a_begin_that_is_cancelled_leaves_the_connection_without_a_transaction(self) -> None:
        for kind in self.kinds:
            amount = self.amount()
            with self.subTest(kind.name):
                with unittest.mock.patch("stet.core.Guard.ask", side_effect=asyncio.CancelledError), self.assertRaises(asyncio.CancelledError):
                    async with kind.block("cancelled"):
                        self.fail("it has begun")
                self.assertEqual(((await self.pay(kind, "cancelled", amount))[0], self.ledger.paid(amount)), (False, 1))

    async def test_no_result_is_stored_as_none(self) -> None:
        for kind in self.kinds:
            for replayed in (False, True):
                async with kind.block("none") as op:
                    self.assertEqual(op.replayed, replayed)
                self.assertIsNone(op.result)

    async def test_the_transaction_cannot_be_used_after_the_block_or_committed_in_it(self) -> None:
        for kind in self.kinds:
            with self.subTest(kind.name):
                with self.assertRaisesRegex(RuntimeError, "does not commit"):
                    async with kind.block("late") as op:
                        await op.transaction.commit()
                async with kind.block("late") as op:
                    pass
                with self.assertLogs("stet", "ERROR"), self.assertRaisesRegex(RuntimeError, "has ended"):
                    op.transaction.execute("SELECT 1")

    async def test_a_message_is_stored_with_the_result_only(self) -> None:
        for kind in self.kinds:
            with self.subTest(kind.name):
                async with kind.block("emits") as op:
                    sent = op.emit("payments", {"paid": 1})
                    if inspect.isawaitable(sent):
                        await sent
                self.assertEqual(len(self.ledger.messages(f"{kind.name}-emits")), 1)

    async def test_a_result_that_is_too_large_is_executed_once(self) -> None:
        for kind in self.kinds:
            with self.subTest(kind.name):
                async with kind.block("large", max_result=10) as op:
                    op.result = "x" * 20
                with self.assertRaises(stet.OperationError) as raised:
                    async with kind.block("large"):
                        self.fail("it runs twice")
                self.assertEqual((raised.exception.problem, raised.exception.execution), ("result-expired", "executed"))

    async def test_keys_and_connections_that_are_not_acceptable_are_errors(self) -> None:
        connection = self.kinds[0].connection
        for scope, key in (("", "k"), ("s", ""), ("s", "k" * 1025), ("s", "a\0"), ("s", "\ud800"), (None, "k"), ("s", 7)):
            with self.assertRaisesRegex(ValueError, "1 to 1024 bytes"):
                stet.operation(connection, scope=scope, key=key, payload=b"")  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "operation takes a connection"):
            stet.operation(object(), scope="s", key="k", payload=b"")
        with self.assertRaisesRegex(TypeError, "use with"):
            async with stet.operation(connection, scope="s", key="k", payload=b""):
                pass
        with self.assertRaisesRegex(TypeError, "use async with"):
            with stet.operation(self.kinds[2].connection, scope="s", key="k", payload=b""):
                pass


class LostCommits(unittest.TestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        info = self.ledger.connection.info
        self.proxy = Proxy(info.host, info.port)
        self.addCleanup(self.proxy.close)

    def connect(self) -> Any:
        return psycopg.connect(database_url("shop", self.proxy.port))

    def pay(self, connection: Any, amount: int) -> Any:
        with stet.operation(connection, scope="acct_1", key=f"lost-{amount}", payload="pay", mode=MODE) as op:
            if not op.replayed:
                op.transaction.execute(INSERT % amount)
                op.result = amount
        return op.result

    def retried(self, amount: int) -> Any:
        while True:
            try:
                return self.pay(self.connect(), amount)
            except stet.OperationError as error:
                if error.problem != "in-flight":  # the server has not seen yet that the connection is lost
                    raise

    def test_a_connection_raises_unknown_and_the_next_call_returns_the_outcome(self) -> None:
        for n, lost in enumerate(("request", "reply")):
            amount = 70_500 + n
            self.proxy.arm(lost)
            started = time.monotonic()
            with self.assertRaises(stet.OperationError) as raised:
                self.pay(self.connect(), amount)
            self.assertLess(time.monotonic() - started, 8, "it asks a connection that is lost for as long as patience, 10 s")
            self.assertEqual((raised.exception.problem, raised.exception.execution), ("outcome-unknown", "may have executed"))
            self.assertEqual(self.retried(amount), amount)
            self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_database_reads_the_outcome(self) -> None:
        self.proxy.arm("reply")
        self.assertEqual(self.pay(Psycopg(self.connect), 70_510), 70_510)
        self.assertEqual(self.ledger.paid(70_510), 1)
        self.proxy.arm("request")
        with self.assertRaises(stet.OperationError) as raised:
            self.pay(Psycopg(self.connect), 70_511)
        self.assertEqual((raised.exception.problem, raised.exception.retryable, raised.exception.execution), ("store-unavailable", True, "not executed"))
        self.assertEqual(self.ledger.paid(70_511), 0)


if __name__ == "__main__":
    unittest.main()
