"""What handlers and pools may do to a transaction, over a real PostgreSQL."""

from __future__ import annotations

import contextlib
import inspect
import os
import unittest
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker
from stet.answer import Answer
from stet.asyncpg import Asyncpg
from stet.core import Guard
from stet.options import Options
from stet.run import Run
from stet.emit import blocking
from stet.psycopg import AsyncPsycopg, Psycopg
from stet.sql import DatabaseError
from stet.sqlalchemy import SQLAlchemy
from support import Ledger, database_url
from wire import Proxy

MODE = os.environ.get("STET_TEST_MODE", "functions")
INSERT = "INSERT INTO payments (amount) VALUES (%d)"


class Transactions(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)

    async def begin(self, database: Any, key: str) -> tuple[Guard, Run | Answer]:
        guard = Guard(database, Options(mode=MODE))
        return guard, await guard.start("acct_1", key, "", "POST", b"/", [], b"")

    async def test_nothing_is_emitted_after_the_end(self) -> None:
        for n, end in enumerate(("finish", "undo")):
            _, run = await self.begin(Psycopg(lambda: psycopg.connect(database_url("shop"))), f"late{n}")
            assert isinstance(run, Run)
            emit = blocking(run, run.transaction)
            self.assertRegex(emit("payments", {"paid": 1}), "^[0-9a-f]{8}-")
            if end == "finish":
                await run.finish(Answer(201, [], b"paid"))
            else:
                await run.undo()
            with self.assertRaisesRegex(RuntimeError, "has ended"):
                emit("payments")

    async def test_a_savepoint_that_a_handler_left_open_is_committed(self) -> None:
        engine = create_engine(database_url("shop").replace("postgres://", "postgresql+psycopg2://"))
        self.addCleanup(engine.dispose)
        for n, options in enumerate(({}, {"future": True})):
            guard, run = await self.begin(SQLAlchemy(sessionmaker(engine, **options)), f"nested{n}")
            assert isinstance(run, Run)
            run.transaction.handle.begin_nested()
            run.transaction.handle.execute(text(INSERT % (8100 + n)))
            answer = Answer(201, [], b"paid")
            try:
                got = await run.finish(answer)
            except Exception as error:
                got = error
            self.assertEqual((got is answer), self.ledger.paid(8100 + n) == 1, f"{options}: it told {got} and has {self.ledger.paid(8100 + n)} payments")
            self.assertIs(got, answer)

    async def test_writes_of_a_handler_after_a_rollback_are_not_committed(self) -> None:
        plain = psycopg.connect(database_url("shop"), autocommit=True)
        waiting = await psycopg.AsyncConnection.connect(database_url("shop"), autocommit=True)
        self.addCleanup(plain.close)
        self.addAsyncCleanup(waiting.close)

        @contextlib.contextmanager
        def pool() -> Any:
            yield plain

        @contextlib.asynccontextmanager
        async def async_pool() -> Any:
            yield waiting

        async def awaited(work: Any) -> None:
            if inspect.isawaitable(work):
                await work

        for n, database in enumerate((Psycopg(pool), AsyncPsycopg(async_pool))):
            _, run = await self.begin(database, f"rolled-back{n}")
            assert isinstance(run, Run)
            await awaited(run.transaction.handle.rollback())
            await awaited(run.transaction.handle.execute(INSERT % (8200 + n)))
            with self.assertRaisesRegex(RuntimeError, "ended the transaction"):
                await run.finish(Answer(201, [], b"paid"))
            self.assertEqual(self.ledger.paid(8200 + n), 0, "it is paid, and a retry pays again")
            _, run = await self.begin(database, f"rolled-back{n}")
            assert isinstance(run, Run)
            await awaited(run.transaction.handle.execute(INSERT % (8200 + n)))
            await run.finish(Answer(201, [], b"paid"))
            self.assertEqual(self.ledger.paid(8200 + n), 1)
        self.assertTrue(plain.autocommit and waiting.autocommit, "the connection is released unchanged")

    async def test_a_connection_of_sqlalchemy_will_do(self) -> None:
        engine = create_engine(database_url("shop").replace("postgres://", "postgresql+psycopg2://"), future=True)
        self.addCleanup(engine.dispose)
        for _ in range(2):
            _, run = await self.begin(SQLAlchemy(engine.connect), "connection")
            if isinstance(run, Answer):
                break
            run.transaction.handle.execute(text(INSERT % 8300))
            await run.finish(Answer(201, [], b"paid"))
        self.assertEqual((run.status, self.ledger.paid(8300)), (201, 1))

    async def test_a_commit_that_a_deferred_constraint_refuses_is_an_error(self) -> None:
        self.ledger.connection.execute("CREATE TABLE IF NOT EXISTS once (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED); GRANT INSERT ON once TO shop")
        engine = create_engine(database_url("shop").replace("postgres://", "postgresql+psycopg2://"))
        self.addCleanup(engine.dispose)
        for n, database in enumerate((Psycopg(lambda: psycopg.connect(database_url("shop"))), SQLAlchemy(sessionmaker(engine)),
                                      Asyncpg(lambda: asyncpg.connect(database_url("shop"))))):
            _, run = await self.begin(database, f"deferred{n}")
            assert isinstance(run, Run)
            sql: Any = "INSERT INTO once VALUES (1), (1)"
            done = run.transaction.handle.execute(text(sql) if n == 1 else sql)
            if inspect.isawaitable(done):
                await done
            with self.assertRaisesRegex(Exception, "once_n_key"):
                await run.finish(Answer(201, [], b"paid"))
            _, run = await self.begin(database, f"deferred{n}")
            assert isinstance(run, Run)
            await run.undo()

    async def test_an_outcome_and_its_commit_are_one_round_trip(self) -> None:
        server = urlsplit(database_url())
        proxy = Proxy(server.hostname or "", server.port or 0)
        self.addCleanup(proxy.close)
        url = database_url("shop", proxy.port)
        plain, waiting = psycopg.connect(url), await psycopg.AsyncConnection.connect(url)
        self.addCleanup(plain.close)
        self.addAsyncCleanup(waiting.close)
        for database in (Psycopg(lambda: contextlib.nullcontext(plain)), AsyncPsycopg(lambda: contextlib.nullcontext(waiting))):
            name, seen = f"trips-{type(database).__name__}", [proxy.trips()]
            _, run = await self.begin(database, name)
            assert isinstance(run, Run), run
            seen.append(proxy.trips())
            await run.finish(Answer(201, [], b"paid"))
            seen.append(proxy.trips())
            _, replay = await self.begin(database, name)
            seen.append(proxy.trips())
            self.assertEqual(getattr(replay, "body", None), b"paid")
            self.assertEqual([b - a for a, b in zip(seen, seen[1:])], [2, 1, 3], f"{name}: BEGIN and begin, outcome with COMMIT, replay with BEGIN and ROLLBACK")

    async def test_a_settle_that_fails_is_its_error_and_its_commit_is_not_run(self) -> None:
        waiting = await psycopg.AsyncConnection.connect(database_url("shop"))
        plain = psycopg.connect(database_url("shop"))
        self.addCleanup(plain.close)
        self.addAsyncCleanup(waiting.close)
        for n, database in enumerate((Psycopg(lambda: contextlib.nullcontext(plain)), AsyncPsycopg(lambda: contextlib.nullcontext(waiting)))):
            for _ in range(12):  # also once the statements are prepared
                _, run = await self.begin(database, f"fails{n}")
                assert isinstance(run, Run), run
                done = run.transaction.handle.execute(INSERT % (8500 + n))
                if inspect.isawaitable(done):
                    await done
                with self.assertRaises(DatabaseError) as failed:
                    await run.transaction.commit("SELECT 1 / CAST(%s AS integer)", (0,))
                self.assertEqual(failed.exception.sqlstate, "22012")
                await run.transaction.close()
            self.assertEqual(self.ledger.paid(8500 + n), 0)

    async def test_the_statements_of_a_commit_have_no_values_in_their_text(self) -> None:
        """The server logs the text of a statement that fails, and shows it in pg_stat_activity."""
        self.ledger.connection.execute("CREATE TABLE IF NOT EXISTS spied (said text); GRANT INSERT ON spied TO shop; "
                                       "CREATE OR REPLACE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS "
                                       "'BEGIN INSERT INTO public.spied VALUES (current_query()); RETURN NULL; END'; "
                                       "CREATE OR REPLACE TRIGGER spy AFTER INSERT OR UPDATE ON stet.records FOR EACH ROW EXECUTE FUNCTION spy()")
        self.addCleanup(self.ledger.connection.execute, "DROP TRIGGER spy ON stet.records")
        for n, database in enumerate((Psycopg(lambda: psycopg.connect(database_url("shop"), cursor_factory=psycopg.ClientCursor)),
                                      AsyncPsycopg(lambda: psycopg.AsyncConnection.connect(database_url("shop"), cursor_factory=psycopg.AsyncClientCursor)))):
            _, run = await self.begin(database, f"secret{n}")
            assert isinstance(run, Run)
            await run.finish(Answer(201, [], b"the secret"))
            said = [row[0] for row in self.ledger.connection.execute("SELECT said FROM spied")]
            self.assertTrue(said)
            for text_ in said:
                for secret in (b"the secret".hex(), "the secret", run.claim.id.hex(), run.claim.owner.hex()):
                    self.assertNotIn(secret, text_)

    async def test_a_block_that_is_still_open_is_rolled_back_and_its_connection_closed(self) -> None:
        plain = psycopg.connect(database_url("shop"))
        waiting = await psycopg.AsyncConnection.connect(database_url("shop"))

        @contextlib.asynccontextmanager
        async def both(block: Any) -> Any:
            if hasattr(block, "__aenter__"):
                async with block:
                    yield
            else:
                with block:
                    yield

        for n, (database, connection) in enumerate(((Psycopg(lambda: contextlib.nullcontext(plain)), plain), (AsyncPsycopg(lambda: contextlib.nullcontext(waiting)), waiting))):
            for end in ("finish", "undo"):
                if end == "undo":
                    connection = psycopg.connect(database_url("shop")) if n == 0 else await psycopg.AsyncConnection.connect(database_url("shop"))
                    database = (Psycopg, AsyncPsycopg)[n](lambda: contextlib.nullcontext(connection))
                _, run = await self.begin(database, f"block{n}{end}")
                assert isinstance(run, Run), run
                handle = run.handle()
                with contextlib.suppress(psycopg.OperationalError):
                    async with both(handle.transaction()):
                        done = run.transaction.handle.execute(INSERT % (8600 + n))
                        if inspect.isawaitable(done):
                            await done
                        if end == "finish":
                            with self.assertRaisesRegex(DatabaseError, "still open"):
                                await run.finish(Answer(201, [], b"paid"))
                        else:
                            await run.undo()
                self.assertTrue(connection.closed, end)
                self.assertEqual(self.ledger.paid(8600 + n), 0)
                _, run = await self.begin(Psycopg(lambda: psycopg.connect(database_url("shop"))), f"block{n}{end}")
                self.assertIsInstance(run, Run, "rolled back, and free")
                await run.undo()

    async def test_a_pipeline_that_a_handler_has_left_open_is_committed(self) -> None:
        connection = await psycopg.AsyncConnection.connect(database_url("shop"))
        self.addAsyncCleanup(connection.close)
        database = AsyncPsycopg(lambda: contextlib.nullcontext(connection))
        _, run = await self.begin(database, "pipeline")
        assert isinstance(run, Run)
        answer = Answer(201, [], b"paid")
        async with connection.pipeline():
            await connection.execute(INSERT % 8400)
            self.assertIs(await run.finish(answer), answer)
        self.assertEqual(self.ledger.paid(8400), 1)

    async def test_a_connection_that_is_in_a_transaction_is_not_taken(self) -> None:
        connection = await asyncpg.connect(database_url("shop"))
        outer = connection.transaction()
        await outer.start()

        async def connect() -> Any:
            return connection

        _, got = await self.begin(Asyncpg(connect), "in-asyncpg")
        self.assertIsInstance(got, Answer, "asyncpg")
        for autocommit in (False, True):
            plain = psycopg.connect(database_url("shop"), autocommit=autocommit)
            plain.execute("BEGIN" if autocommit else "SELECT 1")
            _, got = await self.begin(Psycopg(lambda: plain), "in-psycopg")
            self.assertIsInstance(got, Answer, f"psycopg, autocommit {autocommit}")
            waiting = await psycopg.AsyncConnection.connect(database_url("shop"), autocommit=autocommit)
            await waiting.execute("BEGIN" if autocommit else "SELECT 1")
            _, got = await self.begin(AsyncPsycopg(lambda: waiting), "in-psycopg-async")
            self.assertIsInstance(got, Answer, f"psycopg for asyncio, autocommit {autocommit}")


if __name__ == "__main__":
    unittest.main()
