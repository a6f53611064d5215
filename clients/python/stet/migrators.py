"""Connections that a migration runs on. Statements have no arguments, and a script may be several statements."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol


class Migrator(Protocol):
    """A connection. Those of a blocking driver never wait in an await."""

    joined: bool
    """The connection was in a transaction already."""

    def transaction(self) -> AbstractAsyncContextManager[None]: ...

    async def script(self, sql: str) -> None: ...

    async def row(self, sql: str) -> tuple[Any, ...]: ...

    async def pause(self, seconds: float) -> None: ...


class _Base:
    def __init__(self, connection: Any, joined: bool) -> None:
        self._connection, self.joined = connection, joined

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class _Blocking(_Base):
    """psycopg's Connection, or Django's."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        if hasattr(self._connection, "transaction"):
            block = self._connection.transaction()
        else:
            from django.db import transaction

            block = transaction.atomic(self._connection.alias)
        with block:
            yield

    async def script(self, sql: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)

    async def row(self, sql: str) -> tuple[Any, ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return _values(cursor.fetchone())


class _SQLAlchemy(_Base):
    """SQLAlchemy's Connection."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self._connection.begin_nested() if self.joined else self._connection.begin():
            yield

    async def script(self, sql: str) -> None:
        self._connection.exec_driver_sql("SHOW lock_timeout")  # some drivers of asyncio begin the transaction at a statement; this one reads no data
        pool = self._connection.connection
        driver = getattr(pool, "driver_connection", None) or pool
        if inspect.iscoroutinefunction(getattr(driver, "execute", None)):
            from sqlalchemy.util import await_only

            await_only(driver.execute(sql))
            return
        with driver.cursor() as cursor:
            cursor.execute(sql)

    async def row(self, sql: str) -> tuple[Any, ...]:
        return tuple(self._connection.exec_driver_sql(sql, execution_options={"no_parameters": True}).one())  # % of a name is no parameter


class _Waiting(_Base):
    """psycopg's AsyncConnection."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            yield

    async def script(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def row(self, sql: str) -> tuple[Any, ...]:
        async with self._connection.cursor() as cursor:
            await cursor.execute(sql)
            return _values(await cursor.fetchone())

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Asyncpg(_Waiting):
    """asyncpg's Connection."""

    async def row(self, sql: str) -> tuple[Any, ...]:
        return tuple(await self._connection.fetchrow(sql))


def blocking(connection: Any) -> Migrator:
    """The migrator of a connection of psycopg, SQLAlchemy or Django."""
    if hasattr(connection, "exec_driver_sql"):
        return _SQLAlchemy(connection, connection.in_transaction())
    if hasattr(connection, "in_atomic_block"):
        return _Blocking(connection, connection.in_atomic_block)
    if hasattr(connection, "pipeline") and not inspect.iscoroutinefunction(connection.commit):
        return _Blocking(connection, _in_transaction(connection))
    raise TypeError(f"stet: migrate takes a connection of psycopg 3, SQLAlchemy or Django, and not {type(connection).__name__}; for asyncio use amigrate")


def waiting(connection: Any) -> Migrator:
    """The migrator of a connection of psycopg or asyncpg for asyncio."""
    if hasattr(connection, "fetchrow"):
        return _Asyncpg(connection, connection.is_in_transaction())
    if hasattr(connection, "pipeline") and inspect.iscoroutinefunction(connection.commit):
        return _Waiting(connection, _in_transaction(connection))
    raise TypeError(f"stet: amigrate takes a connection of psycopg 3, asyncpg or SQLAlchemy for asyncio, and not {type(connection).__name__}; otherwise use migrate")


def _in_transaction(connection: Any) -> bool:
    return bool(connection.info.transaction_status.value)


def _values(row: Any) -> tuple[Any, ...]:
    """A row of any row factory of the connection."""
    return tuple(row.values() if isinstance(row, dict) else row)
