"""psycopg 3, with and without asyncio."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import timedelta
from typing import Any

from psycopg.pq import PipelineStatus, TransactionStatus

from .sql import ConnectionInTransaction, DatabaseError, refused



class _Marks:
    def mark(self, n: int) -> str:
        return "%s"


class Psycopg(_Marks):
    """Connections of psycopg.

    connect returns one, or a context manager that does: pool.connection of psycopg_pool, or
    functools.partial(psycopg.connect, URL). The handler's transaction is the Connection.
    """

    blocking = True

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    async def begin(self) -> _Blocking:
        with ExitStack() as stack:  # it receives the error, and commits nothing
            connection = stack.enter_context(self._connect())
            _check(connection)
            if connection.autocommit:  # or what a handler writes after a rollback would stay
                connection.autocommit = False
                stack.callback(setattr, connection, "autocommit", True)
            return _Blocking(connection, stack.pop_all())

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class _Blocking:
    def __init__(self, connection: Any, stack: ExitStack) -> None:
        self.handle, self._stack = connection, stack

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            with self.handle.cursor(row_factory=_as_tuple) as cursor:
                return tuple(cursor.execute(sql, arguments).fetchone())
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        in_pipeline = _in_pipeline(self.handle)
        if in_pipeline:
            await self.row(sql, arguments)
        try:
            if in_pipeline:
                self.handle.commit()
            else:
                self.handle.execute(_with_commit(sql, arguments), prepare=False)
        except Exception as error:
            raise refused(error) from None

    async def close(self) -> None:
        with suppress(Exception), self._stack:  # it receives an error of rollback, and commits nothing
            self.handle.rollback()


class AsyncPsycopg(_Marks):
    """Connections of psycopg for asyncio.

    connect returns one, an awaitable of one, or an asynchronous context manager: pool.connection of
    psycopg_pool, or functools.partial(psycopg.AsyncConnection.connect, URL). The handler's transaction is the AsyncConnection.
    """

    blocking = False

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    async def begin(self) -> _Async:
        async with AsyncExitStack() as stack:
            source = self._connect()
            connection = await stack.enter_async_context(await source if inspect.isawaitable(source) else source)
            _check(connection)
            if connection.autocommit:
                await connection.set_autocommit(False)
                stack.push_async_callback(connection.set_autocommit, True)
            return _Async(connection, stack.pop_all())

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Async:
    def __init__(self, connection: Any, stack: AsyncExitStack) -> None:
        self.handle, self._stack = connection, stack

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            async with self.handle.cursor(row_factory=_as_tuple) as cursor:
                await cursor.execute(sql, arguments)
                return tuple(await cursor.fetchone())
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        in_pipeline = _in_pipeline(self.handle)
        if in_pipeline:
            await self.row(sql, arguments)
        try:
            if in_pipeline:
                await self.handle.commit()
            else:
                await self.handle.execute(_with_commit(sql, arguments), prepare=False)
        except Exception as error:
            raise refused(error) from None

    async def close(self) -> None:
        with suppress(Exception):
            async with self._stack:  # it receives an error of rollback, and commits nothing
                await self.handle.rollback()


def _check(connection: Any) -> None:
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise ConnectionInTransaction


def _as_tuple(cursor: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Rows as tuples, for any row factory of the connection."""
    return tuple


def _in_pipeline(connection: Any) -> bool:
    """Reports whether the handler has left the connection in pipeline mode, which has no simple queries."""
    return bool(connection.info.pipeline_status != PipelineStatus.OFF)


def _with_commit(sql: str, arguments: tuple[Any, ...]) -> str:
    """A statement and COMMIT as one simple query, which is one round trip. If the statement fails, PostgreSQL does not run the COMMIT."""
    return sql % tuple(map(_literal, arguments)) + "; COMMIT"


def _literal(value: Any) -> str:
    """A value in SQL, for each client_encoding and each setting of standard_conforming_strings."""
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"pg_catalog.decode('{value.hex()}', 'hex')"
        case str():
            return f"pg_catalog.convert_from(pg_catalog.decode('{value.encode().hex()}', 'hex'), 'UTF8')"
        case timedelta():
            return f"'{value.total_seconds():f} seconds'"
        case _:
            return str(value)  # bool, int, float
