"""The transaction of a database of Django's settings."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, suppress
from typing import Any

from django.db import Error, connections, transaction

from .handle import END, ends, log
from .sql import ConnectionInTransaction, DatabaseError, Misused, refused


class Django:
    """A database of Django's settings, on PostgreSQL. The transaction is transaction.atomic(durable=True)."""

    blocking = True

    def __init__(self, using: str = "default") -> None:
        self._using = using

    def mark(self, n: int) -> str:
        return "%s"

    async def begin(self) -> _Transaction:
        connection = connections[self._using]
        if connection.in_atomic_block:
            outer = not getattr(connection.atomic_blocks[-1], "_from_testcase", False)
        else:
            outer = not connection.get_autocommit()
        if outer:
            raise ConnectionInTransaction
        atomic = transaction.atomic(self._using, durable=True)
        atomic.__enter__()
        return _Transaction(connection, atomic, connection.execute_wrapper(_checked))

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)


def _checked(execute: Any, sql: Any, *arguments: Any) -> Any:
    if ends(sql):
        raise RuntimeError(END)
    return execute(sql, *arguments)


class _Transaction:
    lasts = True

    def __init__(self, connection: Any, atomic: Any, check: AbstractContextManager[None]) -> None:
        self.handle, self._atomic, self._check, self._open = connection, atomic, check, True
        check.__enter__()

    def _exit(self) -> None:
        self._open = False
        self._check.__exit__(None, None, None)
        self._atomic.__exit__(None, None, None)

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        try:
            with self.handle.cursor() as cursor:
                cursor.execute(sql, arguments)
                return tuple(cursor.fetchone()) if cursor.description else ()
        except Exception as error:
            raise DatabaseError(error.__cause__ or error) from None

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        if self.handle.needs_rollback:  # then Django would roll back without an error
            raise Misused("stet: an error of the database, or set_rollback(True), has marked the transaction for rollback; nothing was committed: "
                          "put transaction.atomic() around a statement that may fail")
        await self.row(sql, arguments)
        try:
            self._exit()
        except Error as error:
            raise refused(error.__cause__ or error) from None
        except Exception as error:
            log.error("a function of transaction.on_commit failed after the commit: %s", type(error).__name__)

    async def close(self) -> None:
        if self._open:
            with suppress(Exception):
                self.handle.needs_rollback = True
                self._exit()
