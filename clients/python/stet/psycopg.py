"""psycopg 3, with and without asyncio."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

from psycopg import AsyncCursor, Cursor, Pipeline
from psycopg.errors import PipelineAborted
from psycopg.pq import PipelineStatus, TransactionStatus

from .sql import ConnectionInTransaction, DatabaseError, Misused, refused


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
    lasts = True

    def __init__(self, connection: Any, stack: ExitStack) -> None:
        self.handle, self._stack = connection, stack

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            with Cursor(self.handle, row_factory=_as_tuple) as cursor:
                cursor.execute(sql, arguments)
                return tuple(cursor.fetchone() or ()) if cursor.description else ()
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        _check_blocks(self.handle)
        two_trips = _two_trips(self.handle)
        if two_trips:
            await self.row(sql, arguments)
        try:
            if two_trips:
                self.handle.commit()
            else:
                with self.handle.pipeline(), Cursor(self.handle, row_factory=_as_tuple) as cursor:
                    cursor.execute(sql, arguments)
                    cursor.execute("COMMIT", prepare=False)
        except Exception as error:
            raise refused(_first(error)) from None

    async def close(self) -> None:
        with suppress(Exception), self._stack:  # it receives an error of rollback, and commits nothing
            if not _nested(self.handle):
                self.handle.rollback()
                return
            try:
                self.handle.execute("ROLLBACK")
            finally:
                self.handle.close()  # or the end of the block would be in the transaction of the next request


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
    lasts = True

    def __init__(self, connection: Any, stack: AsyncExitStack) -> None:
        self.handle, self._stack = connection, stack

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            async with AsyncCursor(self.handle, row_factory=_as_tuple) as cursor:
                await cursor.execute(sql, arguments)
                return tuple(await cursor.fetchone() or ()) if cursor.description else ()
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        _check_blocks(self.handle)
        two_trips = _two_trips(self.handle)
        if two_trips:
            await self.row(sql, arguments)
        try:
            if two_trips:
                await self.handle.commit()
            else:
                async with self.handle.pipeline(), AsyncCursor(self.handle, row_factory=_as_tuple) as cursor:
                    await cursor.execute(sql, arguments)
                    await cursor.execute("COMMIT", prepare=False)
        except Exception as error:
            raise refused(_first(error)) from None

    async def close(self) -> None:
        with suppress(Exception):
            async with self._stack:  # it receives an error of rollback, and commits nothing
                if not _nested(self.handle):
                    await self.handle.rollback()
                    return
                try:
                    await self.handle.execute("ROLLBACK")
                finally:
                    await self.handle.close()  # or the end of the block would be in the transaction of the next request


def _check(connection: Any) -> None:
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise ConnectionInTransaction


def _as_tuple(cursor: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Rows as tuples, for any row factory of the connection."""
    return tuple


def _two_trips(connection: Any) -> bool:
    """Reports whether a statement and COMMIT cannot be one pipeline: the handler has left one open, or libpq is older than 14."""
    return connection.info.pipeline_status != PipelineStatus.OFF or not Pipeline.is_supported()


def _nested(connection: Any) -> bool:
    """Reports whether a block of connection.transaction() is open. Its end would release a savepoint, later, in the next transaction."""
    return bool(getattr(connection, "_num_transactions", 0))


def _check_blocks(connection: Any) -> None:
    if _nested(connection):
        raise Misused("stet: a block of transaction() was still open when the response was complete; nothing was committed: end it before that")


def _first(error: BaseException) -> BaseException:
    """The error of the statement because of which a later one of its pipeline was not run."""
    while isinstance(error, PipelineAborted) and error.__context__:
        error = error.__context__
    return error
