"""asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

from .sql import ConnectionInTransaction, DatabaseError, refused


class Asyncpg:
    """Connections of asyncpg.

    connect returns an awaitable of one: pool.acquire, or functools.partial(asyncpg.connect, URL).
    The handler's transaction is the Connection.
    """

    blocking = False

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect

    def mark(self, n: int) -> str:
        return f"${n}"

    async def begin(self) -> _Transaction:
        stack = AsyncExitStack()
        source = self._connect()
        if hasattr(source, "__aenter__"):  # of a pool, which takes it back
            connection = await stack.enter_async_context(source)
        else:
            connection = await source
            stack.push_async_callback(connection.close)
        try:
            if connection.is_in_transaction():
                raise ConnectionInTransaction  # of which ours would be a savepoint only
            transaction = connection.transaction()
            await transaction.start()
        except BaseException:
            await stack.aclose()
            raise
        return _Transaction(connection, transaction, stack)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Transaction:
    lasts = True

    def __init__(self, connection: Any, transaction: Any, stack: AsyncExitStack) -> None:
        self.handle, self._transaction, self._stack = connection, transaction, stack
        self._committed = False

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            return tuple(await self.handle.fetchrow(sql, *arguments) or ())
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        await self.row(sql, arguments)
        try:
            await self._transaction.commit()
        except Exception as error:
            raise refused(error) from None
        self._committed = True

    async def close(self) -> None:
        with suppress(Exception):
            async with self._stack:
                if not self._committed:
                    try:
                        await self._transaction.rollback()
                    except BaseException:
                        self.handle.terminate()
                        raise
