"""What handlers and pools may do to a transaction, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker
from stet.answer import Answer
from stet.asyncpg import Asyncpg
from stet.core import Guard, Options, Run
from stet.psycopg import AsyncPsycopg, Psycopg
from stet.sqlalchemy import SQLAlchemy
from stet.threads import call
from support import Ledger, database_url

INSERT = "INSERT INTO payments (amount) VALUES (%d)"


class Transactions(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)

    async def begin(self, database: Any, key: str) -> tuple[Guard, Run | Answer]:
        guard = Guard(database, Options())
        return guard, await guard.start("acct_1", key, "", "POST", b"/", [], b"")

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
