"""The statements of the package, over the functions and tables of docs/sql.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .record import Table

_BEGIN = ("bytea", "bytea", "bytea", "bytea", "bigint", "integer", "integer", "text", "text", "text", "double precision")
_SETTLE = ("bytea", "bytea", "bigint", "bigint", "integer", "text", "bytea", "bytea", "boolean", "boolean", "double precision", "double precision")
_SETTLE_EMITTED = ("text", "integer", "json", "text", "bytea", "boolean", "boolean", "interval", "interval", "integer")
_EMIT = ("text", "text", "bytea", "text", "json")
_ROW = "state, status, content_type, head, body"

UNSETTLED = "stet: this transaction has begun an operation and has neither settled nor released it: nothing was committed"

number = "SELECT pg_catalog.txid_current()"
"""The number of the transaction."""


class Transaction(Protocol):
    """A transaction on a connection of its own.

    Those of a blocking database never wait in an await: plain functions can call them.
    """

    handle: Any
    """The connection or session of the handler."""

    lasts: bool
    """The driver says that the transaction lasts until its commit. False if each statement is committed, or the driver does not say."""

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the only row of a statement, or () if it returns no rows. Failures are a DatabaseError."""
        ...

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        """Runs a statement and commits. After a DatabaseError nothing was committed. After any other error it is unknown."""
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
        self.constraint = constraint(error)
        original = getattr(error, "orig", None) or error
        super().__init__(f"{type(original).__name__} {self.sqlstate} {UNSETTLED if unsettled(error) else _said(original)}".strip())


class Misused(DatabaseError):
    """A handler has left the transaction in a state that cannot be committed. Nothing was committed."""

    def __init__(self, text: str) -> None:
        self.sqlstate = self.constraint = ""
        Exception.__init__(self, text)


class Autocommit(Exception):
    """Each statement of the connection is a commit of its own: what PostgreSQL says to stet_begin_raw on such a connection."""

    sqlstate, constraint_name = "23503", "stet_unsettled"


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


def constraint(error: BaseException) -> str:
    """The constraint that a driver's error names; "" for none."""
    original = getattr(error, "orig", None)
    for e in (error, original, getattr(original, "__cause__", None)):
        for of in (e, getattr(e, "diag", None)):
            name = getattr(of, "constraint_name", None)
            if isinstance(name, str):
                return name
    return ""


def unsettled(error: BaseException) -> bool:
    """Reports whether PostgreSQL has refused a COMMIT because its transaction has begun an operation and not settled it."""
    return sqlstate(error) == "23503" and constraint(error).endswith("_unsettled")


def answered(error: BaseException) -> bool:
    """Reports whether the server responded to the statement and is still connected."""
    code = sqlstate(error)
    return code != "" and code[:2] not in ("08", "57", "58", "XX") and code != "40003"


def refused(error: BaseException) -> BaseException:
    """Converts an error of a COMMIT: a DatabaseError if the server has refused it, otherwise unchanged."""
    return DatabaseError(error) if answered(error) else error


class Statements:
    """The statements for one driver, schema and prefix."""

    def __init__(self, mark: Callable[[int], str], schema: str, prefix: str) -> None:
        self.table = Table(schema, prefix)
        self._mark = mark
        self._schema, self._prefix = _quoted(schema), prefix
        self._records, fence = f"{self._schema}.{_quoted(self.table.name)}", f"{self._schema}.{_quoted(self.table.name + '_fence')}"
        self.begin = f"SELECT action, fence, {_ROW} FROM {self._call('begin_raw', _BEGIN)}"
        self.settle = f"SELECT 1 FROM {self._call('settle_raw', _SETTLE)}"
        self.settle_emitted = f"SELECT 1 FROM {self._call('settle', _SETTLE_EMITTED)}"
        self.emit = f"SELECT {self._call('emit', _EMIT)}"
        self.head = f"SELECT CAST(headers AS text), content_type FROM {self._call('head', ('bytea',))}"
        self.status = f"SELECT pg_catalog.txid_status(CAST({mark(1)} AS bigint))"
        self.enter, self.insert = self._enter(fence), self._insert()

    def within(self, sql: str, n: int) -> str:
        """The statement of n arguments, which fails by a division by zero unless the transaction has the number that is one more argument."""
        return f"{sql} WHERE {self._same(n + 1)}"

    def _same(self, n: int) -> str:
        return f"1 / CASE WHEN pg_catalog.txid_current() = CAST({self._mark(n)} AS bigint) THEN 1 ELSE 0 END = 1"

    def _enter(self, fence: str) -> str:
        """Begins an operation without a function: reads the record, or takes the locks of the key and draws a fence. The action is NULL if
        stet_begin_raw must decide. As some drivers do not number arguments, they come in the order of the text."""
        print_, run, lock, number_, id_ = (self._cast(n, kind) for n, kind in enumerate(("bytea", "bigint", "integer", "integer", "bytea"), 1))
        now = "pg_catalog.statement_timestamp()"
        return (f"SELECT b.action, CASE WHEN b.action = 'run' THEN pg_catalog.nextval('{fence}') ELSE b.fence END, {_ROW},"
                f" CASE WHEN b.action = 'run' THEN pg_catalog.txid_current() END FROM (SELECT CASE"
                f" WHEN r.state IN (2, 3) AND (r.forget_at IS NULL OR r.forget_at > {now}) THEN"
                f" CASE WHEN r.fingerprint <> {print_} THEN 'mismatch' WHEN r.gone OR r.expires_at <= {now} THEN 'expired' ELSE 'replay' END"
                f" WHEN r.id IS NULL THEN CASE WHEN pg_catalog.pg_try_advisory_xact_lock({run}) THEN"
                f" CASE WHEN pg_catalog.pg_try_advisory_xact_lock({lock}, {number_}) THEN 'run' ELSE 'run' END END END AS action,"
                " r.fence, CASE r.state WHEN 3 THEN 'failed' ELSE 'completed' END AS state, r.status, r.content_type, r.head, r.body"
                f" FROM (SELECT 1) one LEFT JOIN {self._records} r ON r.id = {id_}) b")

    def _insert(self) -> str:
        """Settles an operation that enter has begun, in the same transaction, without a function."""
        columns = (("id", "bytea"), ("scope", "bytea"), ("fingerprint", "bytea"), ("owner", "bytea"), ("fence", "bigint"), ("class", "text"), ("name", "text"),
                   ("status", "smallint"), ("content_type", "text"), ("head", "bytea"), ("body", "bytea"), ("state", "smallint"), ("gone", "boolean"))
        n = len(columns)
        now = "pg_catalog.statement_timestamp()"
        result, tombstone, due = (f"{now} + pg_catalog.make_interval(secs => {self._cast(n + i, 'double precision')})" for i in (1, 2, 3))
        values = ", ".join(self._cast(i, kind) for i, (_, kind) in enumerate(columns, 1))
        return (f"INSERT INTO {self._records} AS r ({', '.join(name for name, _ in columns)}, attempt, claimed_at, settled_at, expires_at, forget_at, due_at)"
                f" SELECT {values}, 1, pg_catalog.now(), {now}, {result}, {tombstone}, {due} WHERE {self._same(n + 4)}"
                f" RETURNING CASE WHEN NOT pg_catalog.pg_try_advisory_xact_lock({self._cast(n + 5, 'bigint')})"
                f" THEN pg_catalog.pg_notify('{self.table.channel}', pg_catalog.encode(r.id, 'hex')) END IS NULL")

    def _call(self, name: str, types: tuple[str, ...]) -> str:
        return f"{self._schema}.{_quoted(self._prefix + name)}({', '.join(self._cast(n, kind) for n, kind in enumerate(types, 1))})"

    def _cast(self, n: int, kind: str) -> str:
        # A driver may have been told how to write jsonb; it is text to all of them.
        return f"CAST(CAST({self._mark(n)} AS text) AS jsonb)" if kind == "json" else f"CAST({self._mark(n)} AS {kind})"


def _quoted(name: str) -> str:
    if not name or any(c in name for c in "\"%:'\x00\\"):
        raise ValueError(f"stet: {name!r} cannot be the name of a schema or a prefix")
    return f'"{name}"'
