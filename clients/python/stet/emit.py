"""Messages that are stored with the outcome: see docs/emit.md."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from .run import Run
from .sql import Transaction
from .threads import call


class Emit(Protocol):
    """Adds a message to the outcome of the operation, and returns its ID.

    The commit of the response stores it. It is sent after that, at least once, and never without the commit. to is its
    destination: a topic, a subject, a routing key. key is the ordering key, for brokers
    that have one. header is sent too. body is bytes, text, or a value for json.dumps; if header has no content-type, it is
    text/plain or application/json for the last two. An invalid message is a DatabaseError, after which nothing is committed.
    """

    def __call__(self, to: str, body: Any = b"", *, key: str | None = None, header: Mapping[str, str] | None = None) -> str: ...


class AsyncEmit(Protocol):
    """Emit for asyncio."""

    def __call__(self, to: str, body: Any = b"", *, key: str | None = None, header: Mapping[str, str] | None = None) -> Awaitable[str]: ...


def _check(run: Run) -> None:
    if run.over:
        raise RuntimeError("stet: the response has ended, and with it the transaction; emit before that")


def _arguments(run: Run, to: str, body: Any, key: str | None, header: Mapping[str, str] | None) -> tuple[Any, ...]:
    fields, media = dict(header or {}), ""
    if isinstance(body, str):
        body, media = body.encode(), "text/plain; charset=utf-8"
    elif not isinstance(body, (bytes, bytearray, memoryview)):
        body, media = json.dumps(body, allow_nan=False).encode(), "application/json"
    if media and not any(name.lower() == "content-type" for name in fields):
        fields["content-type"] = media
    return str(run.claim), to, bytes(body), key, json.dumps(fields)


def waiting(run: Run) -> AsyncEmit:
    """Emits by a database for asyncio."""

    async def emit(to: str, body: Any = b"", *, key: str | None = None, header: Mapping[str, str] | None = None) -> str:
        _check(run)
        await run.emits(run.transaction)
        return str((await run.transaction.row(run.guard.sql.emit, _arguments(run, to, body, key, header)))[0])

    return emit


def blocking(run: Run, transaction: Transaction) -> Emit:
    """Emits by a blocking database, in the thread that it is called in."""

    def emit(to: str, body: Any = b"", *, key: str | None = None, header: Mapping[str, str] | None = None) -> str:
        _check(run)
        call(run.emits(transaction))
        return str(call(transaction.row(run.guard.sql.emit, _arguments(run, to, body, key, header)))[0])

    return emit
