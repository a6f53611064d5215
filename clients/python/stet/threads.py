"""A blocking database for a program that must not block, and plain calls of coroutines that never wait."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .sql import Database, Transaction

T = TypeVar("T")

_THREADS = 32


def call(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine of a blocking database, which never waits in an await."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("stet: a blocking database waited in an await")


class Threaded:
    """A blocking database whose calls are made in threads.

    Calls that begin a transaction may wait for a connection of a pool. They have threads of their own, and
    cannot block the calls that release connections.
    """

    blocking = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._begins = ThreadPoolExecutor(_THREADS, "stet-begin")
        self._ends = ThreadPoolExecutor(_THREADS, "stet-end")

    def mark(self, n: int) -> str:
        return self._database.mark(n)

    async def begin(self) -> Transaction:
        future = self._begins.submit(contextvars.copy_context().run, call, self._database.begin())
        try:
            return _Transaction(await asyncio.shield(asyncio.wrap_future(future)), self._ends)
        except asyncio.CancelledError:
            future.add_done_callback(self._close)
            raise

    def _close(self, begun: Future[Transaction]) -> None:
        if begun.cancelled() or begun.exception():
            return
        self._ends.submit(call, begun.result().close())

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Transaction:
    def __init__(self, transaction: Transaction, threads: ThreadPoolExecutor) -> None:
        self.handle, self.lasts, self.plain, self._threads = transaction.handle, transaction.lasts, transaction, threads

    async def _do(self, work: Coroutine[Any, Any, T]) -> T:
        # Waits for work that has begun: a connection must not be used twice at a time.
        future = asyncio.ensure_future(asyncio.wrap_future(self._threads.submit(contextvars.copy_context().run, call, work)))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return await self._do(self.plain.row(sql, arguments))

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        await self._do(self.plain.commit(sql, arguments))

    async def close(self) -> None:
        await self._do(self.plain.close())
