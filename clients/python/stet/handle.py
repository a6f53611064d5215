"""The handler's transaction, usable until the response has ended."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stet")

_NOT_YOURS = "stet: a handler does not commit: stet commits the transaction together with the response; use a savepoint instead"
END = "stet: a handler does not end its transaction: raise an exception to have it rolled back; a savepoint ends by ROLLBACK TO or RELEASE"
_ENDED = "stet: the response has ended, and with it the transaction: write before that, or on a connection of your own"


_RUNS = {"execute", "executemany", "fetch", "fetchrow", "fetchval", "fetchmany", "prepare", "exec_driver_sql", "scalar", "scalars", "stream", "stream_scalars"}
"""Methods of the drivers whose first argument is a statement."""

_GAP = r"(?:\s|--[^\n\r]*[\n\r]|/\*(?:[^*]|\*(?!/))*\*/)+"
_CONTROL = re.compile(rf"(?:COMMIT|END|ABORT|PREPARE{_GAP}TRANSACTION|ROLLBACK(?!{_GAP}(?:(?:WORK|TRANSACTION){_GAP})?TO\b))\b", re.IGNORECASE)
_SKIPPED = re.compile(r"[\s;]+|--[^\n\r]*")
_COMMENT = re.compile(r"/\*|\*/")


def ends(statement: Any) -> bool:
    """Reports whether the first word of a statement ends a transaction: text, bytes, text() of SQLAlchemy or psycopg.sql.SQL."""
    text = getattr(statement, "text", statement)
    if hasattr(text, "as_string"):
        text = text.as_string(None)
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    return isinstance(text, str) and _CONTROL.match(text, _start(text)) is not None


def _start(text: str) -> int:
    """Where the first word of a statement is, after blanks, empty statements and comments, which nest."""
    at = 0
    while True:
        if skipped := _SKIPPED.match(text, at):
            at = skipped.end()
        elif text.startswith("/*", at):
            depth = 0
            for mark in _COMMENT.finditer(text, at):
                depth, at = depth + (1 if mark[0] == "/*" else -1), mark.end()
                if depth == 0:
                    break
            else:
                return len(text)
        else:
            return at


class Handle:
    """A connection or session that raises RuntimeError, and logs it, once its transaction has ended.

    Without it a late write would join the transaction of the next request that receives the
    connection from the pool, or begin a transaction that is never committed. A cursor or method from before is not guarded.
    It also refuses statements that end the transaction, unless they are behind another one in the same text or run by a cursor.
    """

    def __init__(self, real: Any, ended: Callable[[], bool]) -> None:
        object.__setattr__(self, "_stet", (real, ended))

    def _live(self) -> Any:
        real, ended = object.__getattribute__(self, "_stet")
        if ended():
            log.error("a handler, a background task or a dependency used the transaction after the response had ended; nothing was written")
            raise RuntimeError(_ENDED)
        return real

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_stet")[0])

    def __getattr__(self, name: str) -> Any:
        if name == "commit":
            raise RuntimeError(_NOT_YOURS)
        value = getattr(Handle._live(self), name)
        return _checked(value) if name in _RUNS and callable(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(Handle._live(self), name, value)

    def __contains__(self, item: Any) -> bool:
        return item in Handle._live(self)

    def __iter__(self) -> Any:
        return iter(Handle._live(self))


def _checked(method: Any) -> Any:
    @functools.wraps(method)
    def run(*args: Any, **named: Any) -> Any:
        statements = args[:1] or [named.get(name) for name in ("query", "command", "statement")]
        if any(map(ends, statements)):
            raise RuntimeError(END)
        return method(*args, **named)

    return run
