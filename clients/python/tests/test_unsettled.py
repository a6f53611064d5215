"""No commit without an outcome, however a handler ends its transaction, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import psycopg
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import sessionmaker
from stet.answer import Answer
from stet.asgi import Idempotent
from stet.asyncpg import Asyncpg
from stet.core import Guard
from stet.emit import blocking, waiting
from stet.options import Options
from stet.psycopg import AsyncPsycopg, Psycopg
from stet.run import Alone, Run
from stet.sidecar import begin
from stet.sql import UNSETTLED, DatabaseError
from stet.sqlalchemy import AsyncSQLAlchemy, SQLAlchemy
from support import Ledger, database_url
from test_asgi import send
from test_transactions import MODE

INSERT = "INSERT INTO payments (amount) VALUES (%d)"
PAID = Answer(201, [("Location", "/payments/7")], b"paid")
Do = Callable[[str], Awaitable[None]]


class Unsettled(unittest.IsolatedAsyncioTestCase):
    amount = 9000

    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        url = database_url("shop")
        plain = create_engine(url.replace("postgres://", "postgresql+psycopg2://"))
        self.addCleanup(plain.dispose)
        waiting = create_async_engine(url.replace("postgres://", "postgresql+asyncpg://").partition("?")[0])
        self.addAsyncCleanup(waiting.dispose)
        self.databases = {
            "psycopg": (Psycopg(functools.partial(psycopg.connect, url)), str),
            "psycopg-autocommit": (Psycopg(functools.partial(psycopg.connect, url, autocommit=True)), str),
            "psycopg-async": (AsyncPsycopg(functools.partial(psycopg.AsyncConnection.connect, url)), str),
            "asyncpg": (Asyncpg(functools.partial(asyncpg.connect, url)), str),
            "sqlalchemy": (SQLAlchemy(sessionmaker(plain)), text),
            "sqlalchemy-async": (AsyncSQLAlchemy(sessionmaker(waiting, class_=AsyncSession)), text),
        }

    async def check(self, name: str, body: Callable[[Run, Do, Any], Awaitable[Any]], writes: int | None = None) -> None:
        """Runs a handler by each driver. Writes are committed exactly if a retry does not run."""
        for driver, (database, statement) in self.databases.items():
            Unsettled.amount += 1
            with self.subTest(name, driver=driver):
                guard = Guard(database, Options(mode=MODE))
                start = functools.partial(guard.start, "acct_1", f"{name}-{driver}", "", "POST", b"/", [], b"")
                run = await start()
                assert isinstance(run, Run), run
                handle: Any = run.handle()

                async def do(sql: str) -> None:
                    done = run.transaction.handle.execute(statement(sql))  # around the handle, which refuses COMMIT
                    if inspect.isawaitable(done):
                        await done

                await do(INSERT % self.amount)
                try:
                    await body(run, do, handle)
                except Exception:
                    await run.undo()
                paid = self.ledger.paid(self.amount)
                again = await start()
                if isinstance(again, Run):
                    await again.undo()
                self.assertEqual(isinstance(again, Answer), paid > 0, f"{paid} payments, and a retry gets {again}")
                if writes is not None:
                    self.assertEqual(paid, writes)

    async def test_a_handler_that_commits_by_the_connection_is_refused(self) -> None:
        async def body(run: Run, do: Do, handle: Any) -> None:
            with self.assertRaisesRegex(RuntimeError, "does not commit"):
                handle.commit()
            await run.finish(PAID)

        await self.check("method", body, 1)

    async def test_a_handler_that_commits_by_sql(self) -> None:
        for sql in ("COMMIT", "SELECT 1; COMMIT", "COMMIT AND CHAIN", "COMMIT; BEGIN; SELECT 1"):
            async def returns(run: Run, do: Do, handle: Any) -> None:
                await do(sql)
                await run.finish(PAID)

            async def raises(run: Run, do: Do, handle: Any) -> None:
                await do(sql)
                raise ValueError

            async def fails(run: Run, do: Do, handle: Any) -> None:
                await do(sql)
                try:
                    await do("SELECT 1/0")
                except Exception:
                    pass
                await run.finish(PAID)

            async def refuses(run: Run, do: Do, handle: Any) -> None:
                await do(sql)
                await run.finish(Answer(404), ValueError())

            async def writes_again(run: Run, do: Do, handle: Any) -> None:
                await do(sql)
                await do(INSERT % self.amount)
                await run.finish(PAID)

            async def swallows(run: Run, do: Do, handle: Any) -> None:
                try:
                    await do(sql)
                except Exception:
                    pass
                await run.finish(PAID)

            async def emits(run: Run, do: Do, handle: Any) -> None:
                await do(sql)
                if run.guard.database.blocking:
                    blocking(run, run.transaction)("payments", b"1")
                else:
                    await waiting(run)("payments", b"1")
                await run.finish(PAID)

            for body in (returns, raises, fails, refuses, writes_again, swallows, emits):
                await self.check(f"{body.__name__} {sql}", body, 0 if MODE == "functions" else None)

    async def test_a_handler_that_rolls_back(self) -> None:
        async def body(run: Run, do: Do, handle: Any) -> None:
            await do("ROLLBACK")
            with self.assertRaisesRegex(RuntimeError, "has ended the transaction"):
                await run.finish(PAID)

        await self.check("rollback", body, 0)

    async def test_messages_and_savepoints_are_committed(self) -> None:
        async def body(run: Run, do: Do, handle: Any) -> None:
            await do("SAVEPOINT a")
            if run.guard.database.blocking:
                blocking(run, run.transaction)("payments", b"1")
            else:
                await waiting(run)("payments", b"1")
            await do("ROLLBACK TO a")
            if run.guard.database.blocking:
                blocking(run, run.transaction)("payments", b"2")
            else:
                await waiting(run)("payments", b"2")
            await run.finish(PAID)

        await self.check("emitted", body)
        for driver in self.databases:
            self.assertEqual([m["Body"] for m in self.ledger.messages(f"emitted-{driver}")], ["Mg=="])

    async def test_a_request_that_is_cancelled_or_late_after_its_commit(self) -> None:
        for n, way in enumerate(("cancelled", "late")):
            app, entered = FastAPI(), asyncio.Event()
            idempotent = Idempotent(AsyncPsycopg(functools.partial(psycopg.AsyncConnection.connect, database_url("shop"))),
                                    scope=lambda request: "acct_1", mode=MODE, timeout=1.0 if way == "late" else 30.0)
            app.add_middleware(idempotent.middleware)

            @app.post("/pay")
            @idempotent
            async def pay(tx: Any = Depends(idempotent.transaction)) -> str:
                if entered.is_set():
                    return "again"
                await tx.execute(INSERT % (9900 + n))
                try:
                    await tx.cursor().execute("COMMIT")
                except psycopg.errors.ForeignKeyViolation:
                    pass
                entered.set()
                await asyncio.Event().wait()
                return "never"

            request = asyncio.ensure_future(send(app, key=way))
            await entered.wait()
            if way == "cancelled":
                request.cancel()
            await asyncio.wait([request])
            got: list[Any] = []
            while not got or got[0]["status"] == 409:
                got = await send(app, key=way)
            self.assertEqual((got[0]["status"], self.ledger.paid(9900 + n)), (200, 0) if MODE == "functions" else (500, 1), way)

    async def test_another_outcome_committed_during_the_run_is_returned(self) -> None:
        if MODE != "statements":  # with functions the row is there from the begin
            return
        columns = "scope, fingerprint, owner, fence, claimed_at, settled_at, expires_at, forget_at, due_at, attempt, state, status, content_type, head, body"
        for driver, (database, statement) in self.databases.items():
            Unsettled.amount += 1
            guard = Guard(database, Options(mode=MODE))
            start = functools.partial(guard.start, "acct_1", name="", method="POST", target=b"/", headers=[], body=b"")
            first = await start(key="first-" + driver)
            assert isinstance(first, Run)
            await first.finish(Answer(200, [], b"the first"))
            second = await start(key="second-" + driver)
            assert isinstance(second, Run)
            done = second.handle().execute(statement(INSERT % self.amount))
            if inspect.isawaitable(done):
                await done
            self.ledger.connection.execute(f"INSERT INTO stet.records (id, {columns}) SELECT %s, {columns} FROM stet.records WHERE id = %s", (second.claim.id, first.claim.id))
            got = await second.finish(PAID)
            self.assertEqual((got.body, self.ledger.paid(self.amount)), (b"the first", 0), driver)

    async def test_a_statement_that_ends_the_transaction_is_refused_and_nothing_has_ended(self) -> None:
        for sql in ("COMMIT", ";; /* a /* b */ */ -- c\n end", "Rollback", "ABORT", "PREPARE TRANSACTION 'a'"):
            async def body(run: Run, do: Do, handle: Any) -> None:
                statement = text if "sqlalchemy" in type(run.guard.database).__module__ else str
                for name in ("execute", "executemany", "fetch", "fetchrow", "fetchval", "scalar"):
                    if hasattr(handle, name):
                        with self.assertRaisesRegex(RuntimeError, "does not end its transaction"):
                            getattr(handle, name)(statement(sql))
                await do("SAVEPOINT a")
                done = handle.execute(statement("ROLLBACK TO a"))
                if inspect.isawaitable(done):
                    await done
                await run.finish(PAID)

            await self.check(f"refused {sql}", body, 1)

    async def test_savepoints_of_the_drivers_are_allowed(self) -> None:
        async def body(run: Run, do: Do, handle: Any) -> None:
            block = handle.begin_nested() if hasattr(handle, "begin_nested") else handle.transaction()
            if hasattr(block, "__aenter__"):
                async with block:
                    await do("SELECT 1")
            else:
                with block:
                    await do("SELECT 1")
            await run.finish(PAID)

        await self.check("savepoints", body, 1)

    async def test_an_engine_that_commits_each_statement_is_refused_before_the_handler(self) -> None:
        plain = create_engine(database_url("shop").replace("postgres://", "postgresql+psycopg2://"), isolation_level="AUTOCOMMIT")
        self.addCleanup(plain.dispose)
        waiting = create_async_engine(database_url("shop").replace("postgres://", "postgresql+asyncpg://").partition("?")[0], isolation_level="AUTOCOMMIT")
        self.addAsyncCleanup(waiting.dispose)
        for n, database in enumerate((SQLAlchemy(sessionmaker(plain)), SQLAlchemy(plain.execution_options(isolation_level="AUTOCOMMIT").connect),
                                      AsyncSQLAlchemy(sessionmaker(waiting, class_=AsyncSession)), AsyncSQLAlchemy(waiting.connect))):
            with self.subTest(n), self.assertLogs("stet", "ERROR") as logs:
                got = await Guard(database, Options(mode=MODE)).start("acct_1", f"autocommit-{n}", "", "POST", b"/", [], b"")
                self.assertEqual((getattr(got, "status", None), b"misconfigured" in getattr(got, "body", b"")), (500, True))
                self.assertIn(UNSETTLED, logs.output[0])
                self.assertIn("AUTOCOMMIT", logs.output[0])
                sidecar = await begin(Guard(database, Options(sidecar=True)), "c1." + 64 * "0" + "." + 32 * "0" + "." + 16 * "1")
                self.assertEqual(getattr(sidecar, "status", None), 500, "behind the sidecar")

    async def test_a_failure_that_could_not_be_stored_is_logged_as_such(self) -> None:
        if MODE != "statements":
            return
        guard = Guard(Psycopg(functools.partial(psycopg.connect, database_url("shop"))), Options(mode=MODE))
        run = await guard.start("acct_1", "no failure", "", "POST", b"/", [], b"")
        assert isinstance(run, Run)
        run.handle()
        run.transaction.handle.execute("COMMIT")
        self.ledger.connection.execute("REVOKE EXECUTE ON FUNCTION stet.stet_settle_raw FROM shop")
        try:
            with self.assertLogs("stet", "ERROR") as logs:
                await run.undo()
        finally:
            self.ledger.connection.execute("GRANT EXECUTE ON FUNCTION stet.stet_settle_raw TO shop")
        self.assertIn("no failure was stored", logs.output[-1])
        self.assertNotIn("does not run again", "".join(logs.output))

    async def test_a_transaction_that_its_server_still_runs_is_asked_about_on_one_connection(self) -> None:
        if MODE != "statements":
            return
        connects = []

        async def connect() -> Any:
            connects.append(1)
            return await psycopg.AsyncConnection.connect(database_url("shop"))

        guard = Guard(AsyncPsycopg(connect), Options(mode=MODE))
        run = await guard.start("acct_1", "slow", "", "POST", b"/", [], b"")
        assert isinstance(run, Run)
        work = asyncio.ensure_future(run.handle().execute("SELECT pg_sleep(6)"))
        await asyncio.sleep(0.2)
        work.cancel()
        await asyncio.wait([work])
        begun = time.monotonic()
        await run.undo()
        self.assertLess(time.monotonic() - begun, 3)
        self.assertEqual(len(connects), 2)

    async def test_an_unacknowledged_commit_is_read_with_its_lock(self) -> None:
        """A read that begins before the commit, and takes the lock after it, must not say that nothing was executed."""
        if MODE != "statements":
            return
        guard = Guard(Psycopg(functools.partial(psycopg.connect, database_url("shop"))), Options(mode=MODE))
        run = await guard.start("acct_1", "race", "", "POST", b"/", [], b"")
        assert isinstance(run, Alone)
        plain = guard.sql.enter
        guard.sql.enter = "SELECT 1/0"
        look = await run._look()
        self.assertEqual(look and look.action, "in_flight")
        guard.sql.enter = plain
        await run.undo()

    async def test_a_refused_commit_is_explained(self) -> None:
        if MODE != "functions":
            return
        for driver, (database, statement) in self.databases.items():
            guard = Guard(database, Options())
            run = await guard.start("acct_1", "explained-" + driver, "", "POST", b"/", [], b"")
            assert isinstance(run, Run)
            handle: Any = run.transaction.handle
            with self.subTest(driver), self.assertLogs("stet", "ERROR") as logs:
                try:
                    done = handle.execute(statement("COMMIT"))
                    if inspect.isawaitable(done):
                        await done
                except Exception as error:
                    self.assertIn(UNSETTLED, str(DatabaseError(error)))
                    guard.explain(error)
            self.assertIn("tried to commit", logs.output[0])
            await run.undo()


if __name__ == "__main__":
    unittest.main()
