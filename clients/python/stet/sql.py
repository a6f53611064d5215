"""The functions of docs/sql.md, as drivers call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

_BEGIN = ("text", "text", "bytea", "text", "text", "text", "text")
_EMIT = ("text", "text", "bytea", "text", "json")
_SETTLE = ("text", "integer", "json", "text", "bytea", "null", "boolean", "interval", "interval", "integer")


number = "SELECT pg_catalog.txid_current()"
"""The number of the transaction."""


def status(mark: Callable[[int], str]) -> str:
    """The state of the transaction of a number: committed, aborted, or in progress."""
    return f"SELECT pg_catalog.txid_status(CAST({mark(1)} AS bigint))"


class Transaction(Protocol):
    """A transaction on a connection of its own.

    Those of a blocking database never wait in an await: plain functions can call them.
    """

    handle: Any
    """The connection or session of the handler."""

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the only row of a statement. Failures are a DatabaseError."""
        ...

    async def commit(self) -> None:
        """Commits. After an error it is unknown whether the transaction was committed."""
        ...

    async def close(self) -> None:
        """Rolls back if not committed, and releases the connection. Raises nothing."""
        ...


class Database(Protocol):
    """Where transactions come from: one of stet.psycopg, stet.asyncpg or stet.sqlalchemy."""

    blocking: bool

    def mark(self, n: int) -> str:
        """How a statement writes its nth argument, from 1."""
        ...

    async def begin(self) -> Transaction: ...

    async def pause(self, seconds: float) -> None: ...


class DatabaseError(Exception):
    """A statement of stet failed. The text has no arguments, because those are keys, claims and bodies."""

    def __init__(self, error: BaseException) -> None:
        self.sqlstate = sqlstate(error)
        original = getattr(error, "orig", None) or error
        super().__init__(f"{type(original).__name__} {self.sqlstate} {_said(original)}".strip())


class ConnectionInTransaction(Exception):
    """The connection is in a transaction already, so stet does not control its commit."""


def _said(error: BaseException) -> str:
    """Returns the server's message, without the statement and its arguments."""
    for e in (error, error.__cause__):
        diagnosis = getattr(e, "diag", None)
        for text in (getattr(diagnosis, "message_primary", None), getattr(e, "message", None) if sqlstate(error) else None):
            if isinstance(text, str):
                return text
    return ""


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE of a driver's error; "" if the server did not say one."""
    for e in (error, getattr(error, "orig", None)):
        for name in ("sqlstate", "pgcode"):
            code = getattr(e, name, None)
            if isinstance(code, str):
                return code
    return ""


def answered(error: BaseException) -> bool:
    """Reports whether the server responded to the statement and is still connected."""
    code = sqlstate(error)
    return code != "" and code[:2] not in ("08", "57", "58", "XX") and code != "40003"


def statements(mark: Callable[[int], str], schema: str, prefix: str) -> tuple[str, str]:
    """stet_begin and stet_settle, with the driver's marks for arguments."""
    return (
        "SELECT action, claim, state, status, CAST(headers AS text), content_type, body, fence FROM "
        + _call(mark, schema, prefix + "begin", _BEGIN),
        "SELECT 1 FROM " + _call(mark, schema, prefix + "settle", _SETTLE),
    )


def emit(mark: Callable[[int], str], schema: str, prefix: str) -> str:
    """stet_emit."""
    return "SELECT " + _call(mark, schema, prefix + "emit", _EMIT)


def settle_in(mark: Callable[[int], str], schema: str, prefix: str) -> str:
    """stet_settle, in the transaction whose number is the first argument; in another one it does nothing, and the row is NULL."""
    settle = _call(mark, schema, prefix + "settle", _SETTLE, 1)
    return f"SELECT CASE WHEN pg_catalog.txid_current() = CAST({mark(1)} AS bigint) THEN (SELECT 1 FROM {settle}) END"


def _call(mark: Callable[[int], str], schema: str, name: str, types: tuple[str, ...], n: int = 0) -> str:
    """A function with its arguments, which are those of the statement after the nth."""
    arguments = []
    for kind in types:
        if kind == "null":
            arguments.append("NULL")
            continue
        n += 1
        # A driver may have been told how to write jsonb; it is text to all of them.
        arguments.append(f"CAST(CAST({mark(n)} AS text) AS jsonb)" if kind == "json" else f"CAST({mark(n)} AS {kind})")
    return f"{_quoted(schema)}.{_quoted(name)}({', '.join(arguments)})"


def _quoted(name: str) -> str:
    if not name or any(c in name for c in '"%:\x00'):
        raise ValueError(f"stet: {name!r} cannot be the name of a schema or a prefix")
    return f'"{name}"'
