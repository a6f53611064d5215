"""The run of an operation in a transaction: its outcome is settled and committed, or it is rolled back."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import answer as problems, record
from .answer import Answer
from .fingerprint import Fields
from .handle import Handle, log
from .record import Claim, Operation, Outcome
from .sql import DatabaseError, Misused, Transaction, answered, number

if TYPE_CHECKING:
    from .core import Guard

RETRY_AFTER = 1
ENDED = "stet: the handler has ended the transaction that it was given; use a savepoint instead"

_PAUSES = (0.02, 0.5)  # seconds between queries about an unacknowledged commit: the first, and the longest
_FATE = 1.0  # seconds for which a transaction can be in progress after its connection was released

_NEVER_STORED = {"date", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "content-type",
                 "idempotent-replayed", "preference-applied"}


@dataclass(frozen=True, slots=True)
class Begun:
    """What a begin has returned."""

    action: str
    fence: int
    state: str
    status: int | None
    content_type: str | None
    headers: dict[str, list[str]]
    body: bytes
    xid: int | None
    """In mode "statements": the number of the transaction that has begun, if it settles without a function."""


class Run:
    """An operation that executes now, in a transaction."""

    def __init__(self, guard: Guard, transaction: Transaction, claim: Claim, xid: int | None) -> None:
        self.guard, self.transaction, self.claim = guard, transaction, claim
        self.xid = xid
        """The number of the transaction, if no row makes PostgreSQL refuse a COMMIT without an outcome."""
        self.name = ""
        """Of the operation, for logs."""
        self.request: Fields = ()  # its header fields
        self.over = False
        """The response is complete or cancelled, and the connection is back in the pool."""
        self.used = False
        """The handler has asked for the transaction."""
        self.emitted = False
        self._handle = Handle(transaction.handle, lambda: self.over)

    def handle(self) -> Any:
        """The transaction, for the handler."""
        self.used = True
        return self._handle

    async def emits(self, transaction: Transaction) -> None:
        """Precedes the statement that emits a message."""
        self.emitted = True

    async def undo(self) -> None:
        """Rolls back: nothing was executed, and the key may be used again. If the handler has committed, stores a failure instead."""
        self.over = True
        await self.transaction.close()
        await self.committed()

    async def finish(self, answer: Answer, raised: BaseException | None = None) -> Answer:
        """Settles and commits a response, or rolls back if it says that the operation has failed or was
        not executed. It returns the response to send, nearly always the same.

        raised is the exception of which the framework made the response. It undoes the writes; a refusal is then
        stored without them."""
        self.over = True
        if not kept(answer) or isinstance(raised, self.guard.invalid):
            await self.undo()
            return answer
        if raised is not None:
            await self.undo()
            if answer.status >= 300:
                return await self.refuse(answer)
            log.error("an exception was answered with the status %d; it was rolled back, and its response was not sent", answer.status)
            return self.guard.problem(problems.RESPONSE_MISSING)
        if not self.used:
            unused = f"{self.name or 'a handler'} is protected and never asked for the transaction, so its writes are a commit of their own, and a " \
                     "crash between the two makes a retry write again: take it by Depends(idempotent.transaction), or idempotent.transaction in Flask"
            if self.guard.options.require_transaction:
                log.error("%s; it was rolled back", unused)
                await self.undo()
                return self.guard.problem(problems.MISCONFIGURED)
            self.guard.log_once(unused, logging.WARNING)
        return await self.settle(answer)

    async def settle(self, answer: Answer) -> Answer:
        """Stores a response and commits. Returns the response to send."""
        try:
            statement, arguments = await self.settlement(self.outcome(answer))
        except BaseException as error:
            if isinstance(error, DatabaseError):
                await self.transaction.close()
                return await self.unsettled(error)
            await self.undo()
            raise
        try:
            await self.transaction.commit(statement, arguments)
        except BaseException as error:
            await self.transaction.close()
            if isinstance(error, DatabaseError):
                return await self.unsettled(error)
            if not isinstance(error, Exception):
                raise
            return await self.unanswered(answer, error)
        await self.transaction.close()
        return answer

    async def unsettled(self, error: DatabaseError) -> Answer:
        """Returns the response if stet has committed nothing."""
        if await self.committed():
            return self.guard.problem(problems.NOT_SETTLED)
        if isinstance(error, Misused):
            log.error("%s: %s", error, self.name)
            raise error
        if self.xid and error.sqlstate == "22012":  # of a statement that must run in the transaction that has begun
            log.error("a handler has ended the transaction that it was given, by ROLLBACK, which is not its to end; nothing was settled, and a retry runs again: %s", self.name)
            raise RuntimeError(ENDED)
        if answered(error):
            raise error
        log.error("an outcome was not stored; nothing was executed: %s", error)
        return self.guard.problem(problems.STORE_UNAVAILABLE, retry_after=RETRY_AFTER)

    async def committed(self) -> bool:
        """Reports whether the handler has committed the transaction, which has ended now. Then it stores a failure, so that the operation does not run again."""
        if not self.xid or not self.used:
            return False
        try:
            if await self._fate(self.xid) != "committed":
                return False
            log.error("a handler has committed the transaction that it was given, which is not its to end: its writes are committed, without an outcome")
            await self._fail()
            return True
        except Exception as error:
            log.error("it could not be read whether a handler has committed its transaction: %s", type(error).__name__)
            return False

    async def _fail(self) -> None:
        """Stores a failure for an operation whose handler has committed."""
        try:
            again = await self.again()
            failure = self.guard.problem(problems.NOT_SETTLED)
            if isinstance(again, Run) and await again.settle(failure) is failure:
                log.error("a failure was stored: a retry receives it and does not run again")
                return
            why = f"the answer was {again.status}" if isinstance(again, Answer) else "it was not settled"
        except Exception as error:
            why = type(error).__name__
        log.error("no failure was stored (%s): a retry can run again", why)

    async def _fate(self, xid: int) -> str:
        """The state of a transaction whose connection was released. If it is "in progress", its server has not ended it yet, and
        it receives no COMMIT any more."""
        end, pause = time.monotonic() + _FATE, _PAUSES[0]
        transaction = await self.guard.database.begin()
        try:
            while True:
                (state,) = await transaction.row(self.guard.sql.status, (xid,))
                if state != "in progress" or time.monotonic() >= end:
                    return str(state)
                await self.guard.database.pause(pause)
                pause = min(2 * pause, _PAUSES[1])
        finally:
            await transaction.close()

    async def again(self) -> Run | Answer:
        """Begins the operation in another transaction."""
        raise NotImplementedError

    async def unanswered(self, answer: Answer, cause: Exception) -> Answer:
        """Returns the response after an unacknowledged COMMIT."""
        raise NotImplementedError

    async def refuse(self, answer: Answer) -> Answer:
        """Stores a refusal in its own transaction, after the writes were undone. Returns the response to send."""
        again = await self.again()
        if isinstance(again, Answer):
            return self.guard.suited(again, self.request)  # of a retry that came in between, or the database has failed
        again.used, again.name, again.request = True, self.name, self.request
        return await again.finish(answer)

    async def settlement(self, o: Outcome) -> tuple[str, tuple[Any, ...]]:
        """The statement that settles, and its arguments."""
        guard, options = self.guard, self.guard.options
        arguments: tuple[Any, ...]
        if self.emitted:
            sql, arguments = guard.sql.settle_emitted, (
                str(self.claim), o.status, o.head[1:].decode() if o.head else None, o.content_type, o.body, o.failed, o.gone,
                timedelta(seconds=guard.result), timedelta(seconds=guard.tombstone), options.max_result)
        else:
            sql, arguments = guard.sql.settle, (*self.claim, guard.sql.table.wait_lock(self.claim.id), *o, guard.result, guard.tombstone)
        if self.xid:
            return guard.sql.within(sql, len(arguments)), (*arguments, self.xid)
        return sql, arguments

    def outcome(self, answer: Answer) -> Outcome:
        connection = {name.strip().lower() for value in answer.values("Connection") for name in value.split(",")}
        head = record.head((name, value) for name, value in answer.headers if self._stored(name.lower(), connection))
        content_type = ", ".join(answer.values("Content-Type"))
        body = answer.body if body_allowed(answer.status) else b""
        failed = answer.status >= 500
        if len(head or b"") + len(content_type.encode()) + len(body) > self.guard.options.max_result:
            return Outcome(None, None, None, None, failed, True)
        return Outcome(answer.status, content_type, head, body, failed, False)

    def _stored(self, name: str, connection: set[str]) -> bool:
        return name not in _NEVER_STORED and name not in connection and not name.startswith("proxy-") \
            and (name != "set-cookie" or self.guard.options.store_set_cookie)


class Alone(Run):
    """A run in a transaction that has begun the operation itself."""

    def __init__(self, guard: Guard, transaction: Transaction, operation: Operation, owner: bytes, begun: Begun) -> None:
        super().__init__(guard, transaction, Claim(operation.id, owner, begun.fence), begun.xid)
        self._operation = operation

    async def emits(self, transaction: Transaction) -> None:
        await super().emits(transaction)
        if self.xid:
            await self._insert(transaction)

    async def _insert(self, transaction: Transaction) -> None:
        """Inserts the row of stet_begin_raw, which stet_emit needs, unless it is there. A savepoint may have removed it."""
        (xid,) = await transaction.row(number, ())
        action, fence, *_ = await self.guard.begin_raw(transaction, self._operation, self.claim.owner)
        if xid != self.xid or action != "run" and fence != self.claim.fence:
            raise RuntimeError(ENDED)
        self.claim = self.claim._replace(fence=fence)

    async def settlement(self, o: Outcome) -> tuple[str, tuple[Any, ...]]:
        if not self.xid:
            return await super().settlement(o)
        if self.emitted:
            await self._insert(self.transaction)
            return await super().settlement(o)
        guard, of = self.guard, self._operation
        wait = guard.sql.table.wait_lock(of.id)
        return guard.sql.insert, (of.id, of.scope, of.fingerprint, self.claim.owner, self.claim.fence, of.class_, of.name, o.status, o.content_type or None,
                                  o.head, o.body, 3 if o.failed else 2, o.gone, guard.result, guard.tombstone,
                                  guard.tombstone if o.gone else guard.result, self.xid, wait)

    async def settle(self, answer: Answer) -> Answer:
        if answer.values("Content-Encoding"):
            self.guard.log_once(f"{self.name or 'a handler'} has a Content-Encoding that is stored with its response, so a retry that does not "
                                "accept it is refused with 406: compress in front of the handler, or in front of the service", logging.WARNING)
        return await super().settle(answer)

    async def again(self) -> Run | Answer:
        return await self.guard.begin(self._operation, raw=True)

    async def unsettled(self, error: DatabaseError) -> Answer:
        if error.sqlstate == "ST002":
            log.error("a handler has ended the transaction that it was given, by COMMIT or ROLLBACK, which is not its to end; nothing was settled, "
                      "and a retry runs again: %s", self.name)
            raise RuntimeError(ENDED) from None
        if self.xid and error.sqlstate == "23505" and error.constraint == self.guard.sql.table.name + "_pkey":
            # Another transaction has settled the operation and released its lock while this one began.
            again = await self.again()
            if isinstance(again, Answer):
                return self.guard.suited(again, self.request)
            await again.undo()
            return self.guard.problem(problems.IN_FLIGHT, retry_after=RETRY_AFTER)
        return await super().unsettled(error)

    async def unanswered(self, answer: Answer, cause: Exception) -> Answer:
        """Reads the outcome of a COMMIT without a response. The transaction holds the key until it
        has ended: while it may still be committed, the key is in flight."""
        guard, end, pause = self.guard, time.monotonic() + self.guard.options.patience, _PAUSES[0]
        while True:
            begun = await self._look()
            if begun and begun.fence == self.claim.fence and begun.action in ("replay", "expired"):
                return answer  # it was done
            if begun and begun.action in ("run", "mismatch"):
                if await self.committed():
                    return guard.problem(problems.NOT_SETTLED)
                log.error("a commit was not answered; nothing was executed: %s", type(cause).__name__)
                return guard.problem(problems.STORE_UNAVAILABLE, retry_after=RETRY_AFTER)
            if begun and begun.action != "in_flight":
                return guard.suited(guard.told(begun, self.claim.id), self.request)
            if time.monotonic() >= end:
                log.error("a commit was not acknowledged, and its outcome could not be read: %s", type(cause).__name__)
                return guard.unknown(self.claim.id)
            await guard.database.pause(pause)
            pause = min(2 * pause, _PAUSES[1])

    async def _look(self) -> Begun | None:
        """The record, read on a new connection; None if it cannot be read now."""
        try:
            transaction = await self.guard.database.begin()
        except Exception:
            return None
        try:
            return await self.guard.ask(transaction, self._operation, os.urandom(16), raw=True)
        except DatabaseError:
            return None
        finally:
            await transaction.close()


def kept(answer: Answer) -> bool:
    """Reports whether a response is an outcome to store. Others are sent after a rollback: 500 and above and 408 are
    failures; 401, 403, 407, 425 and 429 come before an execution."""
    return answer.status < 500 and answer.status not in (401, 403, 407, 408, 425, 429)


def body_allowed(status: int) -> bool:
    return status not in (204, 304)
