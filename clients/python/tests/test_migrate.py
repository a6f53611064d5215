"""stet.migrate over each driver."""

from __future__ import annotations

import asyncio
import inspect
import threading
import unittest
from typing import Any

import asyncpg
import psycopg
import stet
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from stet.schema import Migrations
from support import Ledger, database_url

STEPS = len(Migrations().steps)


def plain_url() -> str:
    return database_url().replace("postgres://", "postgresql+psycopg2://")


def async_url() -> str:
    return database_url().replace("postgres://", "postgresql+asyncpg://").partition("?")[0]


class Migrate(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)

    def version(self, schema: str) -> int:
        there = self.ledger.connection.execute("SELECT to_regclass(%s)", (f"{schema}.records_schema",)).fetchone()
        if not there or not there[0]:
            return 0
        row = self.ledger.connection.execute(f"SELECT max(version) FROM {schema}.records_schema").fetchone()
        return row[0] if row else 0

    async def test_each_driver_creates_the_tables_once(self) -> None:
        engine, waiting = create_engine(plain_url()), create_async_engine(async_url())
        self.addCleanup(engine.dispose)
        self.addAsyncCleanup(waiting.dispose)
        connections = [psycopg.connect(database_url()), psycopg.connect(database_url(), autocommit=True, row_factory=dict_row), engine.connect(),
                       await psycopg.AsyncConnection.connect(database_url()), await asyncpg.connect(database_url()), await waiting.connect()]
        for n, connection in enumerate(connections):
            with self.subTest(type(connection).__module__):
                for applied in (STEPS, 0):
                    self.assertEqual(await self.migrated(connection, n, schema=f"driver{n}"), applied)
                    self.assertEqual(self.version(f"driver{n}"), STEPS, "another connection does not see them: nothing was committed")
            closed: Any = connection.close()
            if inspect.isawaitable(closed):
                await closed

    async def migrated(self, connection: Any, n: int, **names: Any) -> int:
        return stet.migrate(connection, **names) if n < 3 else await stet.amigrate(connection, **names)

    async def test_a_transaction_that_has_begun_commits_the_tables(self) -> None:
        engine, waiting = create_engine(plain_url()), create_async_engine(async_url())
        self.addCleanup(engine.dispose)
        self.addAsyncCleanup(waiting.dispose)
        for commits in (False, True):
            with engine.connect() as connection:
                transaction = connection.begin()
                stet.migrate(connection, schema="joined0")
                transaction.commit() if commits else transaction.rollback()
            with psycopg.connect(database_url()) as plain:
                plain.execute("SELECT 1")
                stet.migrate(plain, schema="joined1")
                plain.commit() if commits else plain.rollback()
            async with waiting.connect() as joined:
                began = await joined.begin()
                await stet.amigrate(joined, schema="joined2")
                await (began.commit() if commits else began.rollback())
            for n in range(3):
                self.assertEqual(self.version(f"joined{n}"), STEPS if commits else 0, f"joined{n}")

    def test_processes_that_migrate_at_once_apply_each_step_once(self) -> None:
        applied: list[int] = []

        def work() -> None:
            with psycopg.connect(database_url()) as connection:
                applied.append(stet.migrate(connection, schema="together", role="shop"))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(applied), [0] * 5 + [STEPS])

    def test_the_role_gets_the_rights_of_its_mode_and_no_others(self) -> None:
        with psycopg.connect(database_url()) as connection:
            stet.migrate(connection, schema="rights", table="jobs", role="shop")
        has = "SELECT has_function_privilege('shop', p.oid, 'EXECUTE') FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = 'rights' AND proname = %s"
        reads = "SELECT has_column_privilege('shop', 'rights.jobs', 'body', 'SELECT'), has_column_privilege('shop', 'rights.jobs', 'owner', 'SELECT'), has_table_privilege('shop', 'rights.jobs', 'UPDATE')"
        for function, want in (("begin_raw", True), ("settle_raw", True), ("settle", True), ("emit", True), ("sweep", False), ("release", False), ("begin", False)):
            self.assertEqual(self.ledger.connection.execute(has, ("jobs_" + function,)).fetchone(), (want,), function)
        self.assertEqual(self.ledger.connection.execute(reads).fetchone(), (False, False, False))
        with psycopg.connect(database_url()) as connection:
            self.assertEqual(stet.migrate(connection, schema="rights", table="jobs", role="shop", mode="statements"), 0)
        self.assertEqual(self.ledger.connection.execute(reads).fetchone(), (True, False, False))

    def test_tables_of_a_newer_version_are_refused(self) -> None:
        with psycopg.connect(database_url()) as connection:
            stet.migrate(connection, schema="newer")
            connection.execute("INSERT INTO newer.records_schema (version) VALUES (%s)", (STEPS + 1,))
            connection.commit()
            with self.assertRaisesRegex(RuntimeError, f"version {STEPS + 1}, and this package knows versions up to {STEPS}"):
                stet.migrate(connection, schema="newer")

    async def test_a_connection_that_commits_each_statement_is_refused(self) -> None:
        engine, waiting = create_engine(plain_url(), isolation_level="AUTOCOMMIT"), create_async_engine(async_url(), isolation_level="AUTOCOMMIT")
        self.addCleanup(engine.dispose)
        self.addAsyncCleanup(waiting.dispose)
        with engine.connect() as connection, self.assertRaisesRegex(RuntimeError, "AUTOCOMMIT"):
            stet.migrate(connection, schema="autocommit")
        async with waiting.connect() as joined:
            with self.assertRaisesRegex(RuntimeError, "AUTOCOMMIT"):
                await stet.amigrate(joined, schema="autocommit")
        self.assertEqual(self.ledger.connection.execute("SELECT FROM pg_namespace WHERE nspname = 'autocommit'").fetchall(), [])

    def test_the_lock_timeout_of_a_joined_transaction_stays(self) -> None:
        with psycopg.connect(database_url()) as connection:
            connection.execute("SET LOCAL lock_timeout = '7s'")
            stet.migrate(connection, schema="timeout")
            self.assertEqual(connection.execute("SHOW lock_timeout").fetchone(), ("7s",))

    def test_concurrent_callers_migrate_once_at_any_default_isolation_level(self) -> None:
        applied: list[int] = []

        def work() -> None:
            engine = create_engine(plain_url(), isolation_level="SERIALIZABLE")
            with psycopg.connect(database_url(), options="-c default_transaction_isolation=serializable") as plain, engine.connect() as connection:
                applied.extend((stet.migrate(plain, schema="strict"), stet.migrate(connection, schema="strict")))
            engine.dispose()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(applied), [0] * 5 + [STEPS])

    def test_a_role_that_cannot_be_granted_its_rights_is_an_error(self) -> None:
        with psycopg.connect(database_url()) as connection:
            stet.migrate(connection, schema="clerks")
            connection.execute("""DO $$ BEGIN CREATE ROLE clerk LOGIN; CREATE ROLE stranger; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
                GRANT USAGE ON SCHEMA clerks TO clerk; GRANT SELECT ON clerks.records_schema TO clerk; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA clerks TO clerk""")
        with psycopg.connect(database_url(), user="clerk") as clerk, self.assertRaisesRegex(RuntimeError, "rights of stranger were not granted"):
            stet.migrate(clerk, schema="clerks", role="stranger")
        with psycopg.connect(database_url()) as connection:
            for wrong in ({"role": ""}, {"role": "shop", "mode": "statement"}):
                with self.assertRaises(ValueError):
                    stet.migrate(connection, schema="clerks", **wrong)

    def test_names_with_percent_signs_are_no_parameters(self) -> None:
        engine = create_engine(plain_url())
        self.addCleanup(engine.dispose)
        with engine.connect() as connection:
            self.assertEqual([stet.migrate(connection, schema="a%b", table="x%s") for _ in range(2)], [STEPS, 0])

    async def test_a_connection_of_another_kind_is_an_error(self) -> None:
        with self.assertRaisesRegex(TypeError, "for asyncio use amigrate"):
            stet.migrate(object())
        waiting = await psycopg.AsyncConnection.connect(database_url())
        self.addAsyncCleanup(waiting.close)
        with self.assertRaisesRegex(TypeError, "for asyncio use amigrate"):
            stet.migrate(waiting)
        with self.assertRaisesRegex(TypeError, "otherwise use migrate"):
            await stet.amigrate(self.ledger.connection)


if __name__ == "__main__":
    unittest.main()
