"""SQLAlchemy 1.4 and 2, with and without asyncio, over any driver of PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from .sql import DatabaseError, refused


class _Marks:
    def mark(self, n: int) -> str:
        return f":a{n}"


_text = lru_cache(64)(text)
"""Each statement is parsed once."""


def _named(arguments: tuple[Any, ...]) -> dict[str, Any]:
    return {f"a{n}": argument for n, argument in enumerate(arguments, 1)}


def _lasts(connection: Any) -> bool:
    """Reports whether the driver of a Connection says that it does not commit each statement."""
    return getattr(connection.connection, "autocommit", None) is False


class SQLAlchemy(_Marks):
    """Sessions, or connections: sessionmaker(engine), or engine.connect (in 1.4 of an engine with future=True).

    The handler's transaction is the Session. The handler does not commit it.
    """

    blocking = True

    def __init__(self, session: Callable[[], Any]) -> None:
        self._session = session

    async def begin(self) -> _Blocking:
        with ExitStack() as stack:
            session = stack.enter_context(self._session())
            # A Session would wait for its pool later, in the thread that ends transactions.
            lasts = _lasts(session.connection() if isinstance(session, Session) else session)
            return _Blocking(session, stack.pop_all(), lasts)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class _Blocking:
    def __init__(self, session: Any, stack: ExitStack, lasts: bool) -> None:
        self.handle, self._stack, self.lasts = session, stack, lasts

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            result = self.handle.execute(_text(sql), _named(arguments))
            return tuple(result.one()) if result.returns_rows else ()
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        await self.row(sql, arguments)
        try:
            self.handle.get_transaction().commit()  # the outermost: a Session of 1.4 commits the innermost savepoint alone
        except Exception as error:
            raise refused(error) from None

    async def close(self) -> None:
        with suppress(Exception), self._stack:
            self.handle.rollback()


class AsyncSQLAlchemy(_Marks):
    """AsyncSessions, or AsyncConnections: sessionmaker(engine, class_=AsyncSession), async_sessionmaker(engine), or engine.connect.

    The handler's transaction is the AsyncSession. The handler does not commit it.
    """

    blocking = False

    def __init__(self, session: Callable[[], Any]) -> None:
        self._session = session

    async def begin(self) -> _Async:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._session())
            connection = await session.connection() if isinstance(session, AsyncSession) else session
            return _Async(session, stack.pop_all(), _lasts(connection.sync_connection))

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Async:
    def __init__(self, session: Any, stack: AsyncExitStack, lasts: bool) -> None:
        self.handle, self._stack, self.lasts = session, stack, lasts

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            result = await self.handle.execute(_text(sql), _named(arguments))
            return tuple(result.one()) if result.returns_rows else ()
        except Exception as error:
            raise DatabaseError(error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        await self.row(sql, arguments)
        try:
            await self.handle.commit()
        except Exception as error:
            raise refused(error) from None

    async def close(self) -> None:
        with suppress(Exception):
            async with self._stack:
                await self.handle.rollback()
