"""One operation in one transaction, without a framework."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Coroutine
from contextlib import nullcontext
from types import TracebackType
from typing import Any, TypeVar

from . import emit as emitting
from .answer import PROBLEM_BASE, Answer
from .canonical import canonical_json
from .core import MAX_SCOPE, Guard
from .fingerprint import fingerprint
from .options import Options
from .run import Run, kept
from .sql import ConnectionInTransaction, Database, Transaction
from .threads import call

T = TypeVar("T")

_JSON = [("Content-Type", "application/json")]
_canonical = canonical_json()


class OperationError(Exception):
    """The operation did not run here, or its outcome cannot be read.

    problem is the name of a section of docs/problems.md: in-flight, mismatch, result-expired, outcome-unknown, result-unreadable,
    operation-failed, store-unavailable, misconfigured or not-settled. retryable: the same call can succeed later. execution: "not executed",
    "may have executed" or "executed".
    """

    def __init__(self, problem: str, detail: str, retryable: bool, execution: str) -> None:
        super().__init__(problem, detail, retryable, execution)
        self.problem, self.retryable, self.execution = problem, retryable, execution

    def __str__(self) -> str:
        return f"stet: {self.problem}: {self.args[1]}"


class Refusal(Exception):
    """Raise it in the block to refuse permanently: the writes are undone, and value is stored as the failure of the operation. Each repetition
    raises it again.

    value is for json.dumps. status is the status of the HTTP response: 400 to 499, except 401, 403, 407, 408, 425 and 429.
    """

    def __init__(self, value: Any, status: int = 422) -> None:
        super().__init__(value, status)
        self.value, self.status = value, status


class Operation:
    """The operation of a block."""

    def __init__(self, handle: Any, run: Run | None, body: bytes = b"", media: str = "json") -> None:
        self.transaction = handle
        """The connection or session, for the writes of the block. It does not commit, and raises RuntimeError after the block."""
        self.replayed = run is None
        """The operation has a result already. The block must not write: its writes are undone at its end."""
        self._run, self._body, self._media = run, body, media

    @property
    def result(self) -> Any:
        """The result as json.loads returns it, also before it is stored. None if there is none; bytes if another adapter stored something else."""
        if "json" not in self._media:
            return self._body
        return json.loads(self._body) if self._body else None

    @result.setter
    def result(self, value: Any) -> None:
        self._running()
        self._body = json.dumps(value, allow_nan=False).encode()

    def _running(self) -> Run:
        if self._run is None:
            raise RuntimeError("stet: the operation has a result already: write, emit and set a result only if not op.replayed")
        return self._run

    @property
    def emit(self) -> emitting.Emit:
        """Adds a message to the outcome: op.emit("payments", {"paid": 42})."""
        run = self._running()
        return emitting.blocking(run, run.transaction)

    def settled(self, answer: Answer) -> None:
        """Takes the outcome of another process, which has settled between the begin and the end of the block."""
        self._run, self.replayed, self._body, self._media = None, True, answer.body, _media(answer)


class AsyncOperation(Operation):
    """The operation of a block of asyncio."""

    @property
    def emit(self) -> emitting.AsyncEmit:  # type: ignore[override]
        """Adds a message to the outcome: await op.emit("payments", {"paid": 42})."""
        return emitting.waiting(self._running())


class _Guard(Guard):
    def __init__(self, database: Database, options: Options) -> None:
        super().__init__(database, options)
        self._left: list[Transaction] = []

    async def open(self) -> Transaction | Answer:
        try:
            return await self.database.begin()
        except ConnectionInTransaction:
            raise RuntimeError("stet: the connection is in a transaction already, which stet could not commit: end it before the block, "
                               "or give the operation a connection of its own") from None
        except Exception as error:
            return self.not_opened(error)

    async def leave(self, transaction: Transaction) -> None:
        # Open until the end of the block, so that a write of a replayed block is undone.
        self._left.append(transaction)

    async def close(self) -> Any:
        for transaction in self._left:
            await transaction.close()
        self._left.clear()

    @property
    def left(self) -> Any:
        return self._left[-1].handle


class Block:
    """The context manager of stet.operation, with and without asyncio."""

    def __init__(self, database: Database, guard: _Guard, of: tuple[str, str, bytes, str]) -> None:
        self._database, self._guard, self._of = database, guard, of
        self._run: Run | None = None
        self._op = AsyncOperation(None, None)

    @property
    def id(self) -> bytes:
        """The ID of the operation, as operators see it in hexadecimal digits."""
        return self._guard.operation(*self._of).id

    async def _enter(self, kind: type[Operation]) -> Any:
        guard = self._guard
        scope, key, print_, name = self._of
        try:
            begun = await guard.begin(guard.operation(scope, key, print_, name))
        except BaseException:
            await guard.close()
            raise
        if isinstance(begun, Answer):
            if begun.status >= 400:
                await guard.close()
                raise _error(begun)
            self._op = kind(guard.left, None, begun.body, _media(begun))  # type: ignore[assignment]
            return self._op
        begun.name, self._run = name or "an operation", begun
        self._op = kind(begun.handle(), begun)  # type: ignore[assignment]
        return self._op

    async def _exit(self, error: BaseException | None) -> bool:
        run, self._run = self._run, None
        try:
            if run is None:
                return False
            if error is None:
                body = self._op._body
                return await self._finish(run, Answer(200, _JSON, body) if body else Answer(204), None)
            if isinstance(error, Refusal):
                return await self._finish(run, await self._refused(run, error), error)
            self._guard.explain(error)
            await run.undo()
            return False
        finally:
            await self._guard.close()

    async def _refused(self, run: Run, error: Refusal) -> Answer:
        answer = Answer(error.status, _JSON)
        try:
            if not 400 <= error.status < 500 or not kept(answer):
                raise ValueError(f"stet: a refusal with the status {error.status} is not stored: use one from 400 to 499, except 401, 403, 407, 408, 425 and 429")
            return Answer(error.status, _JSON, json.dumps(error.value, allow_nan=False).encode())
        except BaseException:
            await run.undo()
            raise

    async def _finish(self, run: Run, answer: Answer, error: Refusal | None) -> bool:
        """Reports whether the exception of the block is suppressed: another process has settled, and its result counts."""
        sent = await run.finish(answer, error)
        if sent is answer:
            return False
        if sent.status >= 400:
            raise _error(sent) from error
        self._op.settled(sent)
        return True

    def __enter__(self) -> Operation:
        if not self._database.blocking:
            raise TypeError("stet: this connection is for asyncio: use async with")
        return call(self._enter(Operation))  # type: ignore[no-any-return]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return call(self._exit(error))

    async def __aenter__(self) -> AsyncOperation:
        if self._database.blocking:
            raise TypeError("stet: this connection is not for asyncio: use with, in a thread")
        return await self._enter(AsyncOperation)  # type: ignore[no-any-return]

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        return await _uncancelled(self._exit(error))


def operation(connection: Any, *, scope: str, key: str, payload: Any, name: str = "", **options: Any) -> Block:
    """Runs a block once for each scope and key, in a transaction that commits its writes together with its result.

        async with stet.operation(connection, scope="acct_1", key="k-42", payload=payment) as op:
            if not op.replayed:
                await op.transaction.execute("INSERT ...")
                op.result = {"payment": 7}
        return op.result

    connection is one of psycopg 3, asyncpg, SQLAlchemy (also a session) or Django, outside of a transaction; or a database such as
    Psycopg(pool.connection), from which stet takes connections. Use "with" if it is not for asyncio. After a lost COMMIT acknowledgement
    only a database can be asked again; a single connection raises outcome-unknown, and the same call on a new connection returns the outcome.
    scope and key have 1 to 1024 bytes. payload is compared with the one of the first call: bytes, text, or a value for json.dumps, in which the order of members
    does not count. name is for operators. Options are those of stet.Options that are not for requests: result, tombstone, namespace, previous, claim_previous, class_, mode, schema, prefix, max_result, patience.

    An exception in the block rolls back, and nothing is stored: a repetition runs again. A Refusal is stored. OperationError: the block has not run, or the commit failed.
    """
    database, renews = _database(connection)
    if isinstance(payload, (bytes, bytearray, memoryview, str)):
        print_ = fingerprint(payload.encode() if isinstance(payload, str) else bytes(payload))
    else:
        print_ = fingerprint(_canonical(json.dumps(payload, allow_nan=False).encode()), version=2)
    return Block(database, _Guard(database, Options(**(options if renews else {"patience": 0.0, **options}))), (_text("scope", scope), _text("key", key), print_, name))


def _text(title: str, text: str) -> str:
    if not isinstance(text, str) or not text or "\0" in text or len(text.encode("utf-8", "surrogatepass")) > MAX_SCOPE or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError(f"stet: the {title} must be text of 1 to {MAX_SCOPE} bytes in UTF-8, without NUL")
    return text


def _database(source: Any) -> tuple[Database, bool]:
    """The database of a connection, and whether it can connect again after the connection is lost."""
    if hasattr(source, "mark"):
        return source, True
    given = nullcontext(source)
    origins = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    if "psycopg" in origins:
        from .psycopg import AsyncPsycopg, Psycopg

        return (AsyncPsycopg(lambda: given) if inspect.iscoroutinefunction(source.commit) else Psycopg(lambda: given)), False
    if "asyncpg" in origins:
        from .asyncpg import Asyncpg

        return Asyncpg(lambda: given), False
    if "sqlalchemy" in origins:
        from .sqlalchemy import AsyncSQLAlchemy, SQLAlchemy

        def session() -> Any:
            if source.in_transaction():
                raise ConnectionInTransaction
            return given

        return (AsyncSQLAlchemy(session) if hasattr(source, "run_sync") else SQLAlchemy(session)), True
    if "django" in origins:
        from .djangodb import Django

        return Django(source.alias), True
    raise TypeError(f"stet: operation takes a connection of psycopg 3, asyncpg, SQLAlchemy or Django, or a database of this package, and not {type(source).__name__}")


def _media(answer: Answer) -> str:
    return ", ".join(answer.values("Content-Type")) or "json"


def _error(answer: Answer) -> Exception:
    """The exception of a response that is not a result."""
    value: Any = answer.body
    if "json" in _media(answer):
        value = json.loads(answer.body or b"null")
    if isinstance(value, dict) and str(value.get("type", "")).startswith(PROBLEM_BASE):
        return OperationError(value["type"].removeprefix(PROBLEM_BASE), value["detail"], value["retryable"], value["execution"])
    return Refusal(value, answer.status)


async def _uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Waits for the end of a transaction, also if the task is cancelled in the meantime."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # so that asyncio does not warn of it
        raise
