"""Shared by the adapters: names the operation, begins it, and answers from the record."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from . import answer as problems, record
from .answer import Answer, Problem, accepts
from .fingerprint import Fields, request_fingerprint
from .handle import log
from .key import KeyFlaw, parse_key
from .options import Options
from .record import Operation
from .rights import grants
from .run import RETRY_AFTER, Alone, Begun, Run, body_allowed, kept
from .sql import UNSETTLED, Autocommit, Database, DatabaseError, Statements, Transaction, answered, number, unsettled

MAX_SCOPE = 1024
MAX_HELD = 16 << 20  # bytes of a response that is held until the commit

_MONTH = timedelta(days=30)
_DEFINITE = ("replay", "expired", "mismatch")


class Guard:
    """Options over a database; the base class of the adapters."""

    def __init__(self, database: Database, options: Options) -> None:
        self.database, self.options = database, options
        self.sql = Statements(database.mark, options.schema, options.prefix)
        self.class_ = label(options.class_)
        self.result = options.result.total_seconds()
        self.tombstone = (options.tombstone or max(options.result, _MONTH)).total_seconds()
        self.invalid: tuple[type[Exception], ...] = ()
        """Exceptions of a framework that refuses a request before its handler runs."""
        self._logged: set[str] = set()

    def log_once(self, message: str, level: int = logging.ERROR) -> None:
        """Logs a message once, because any request can cause it."""
        if message not in self._logged:
            self._logged.add(message)
            log.log(level, message)

    def check_scope(self, scope: Any) -> None:
        if self.options.sidecar and scope is not None:
            raise TypeError("stet: behind the sidecar there is no scope function: stet.yaml says whose key it is")
        if not self.options.sidecar and scope is None:
            raise TypeError("stet: a scope function is needed, which says whose key it is; behind the sidecar, sidecar=True")

    def problem(self, problem: Problem, detail: str = "", retry_after: int = 0) -> Answer:
        return problem.answer(self.options.problem_base, detail, retry_after)

    def unknown(self, id: bytes) -> Answer:
        return problems.OUTCOME_UNKNOWN.answer(self.options.problem_base, operation=id.hex())

    def key(self, fields: list[str]) -> str | Answer:
        """Returns the key of the header's fields, or the error response."""
        if not fields:
            return self.problem(problems.KEY_MISSING, f"Send the header {self.options.header} with a key that is new for each operation "
                                                      "and the same for each retry of it.")
        if len(fields) > 1:
            return self.problem(problems.KEY_REPEATED)
        try:
            return parse_key(fields[0], self.options.strict)
        except KeyFlaw as flaw:
            return self.problem(problems.KEY_INVALID, str(flaw))

    def scope(self, scope: str | None) -> str | Answer:
        """Returns the scope, or the error response."""
        if not scope:
            return self.problem(problems.SCOPE_MISSING)
        if not isinstance(scope, str) or any(c == "\0" or "\ud800" <= c <= "\udfff" for c in scope):
            log.error("the scope function returned a value that is not text, or has a NUL or half a character; nothing was executed")
            return self.problem(problems.SCOPE_FAILED)
        if len(scope.encode()) > MAX_SCOPE:
            return self.problem(problems.SCOPE_TOO_LONG)
        return scope

    def scope_failed(self, error: Exception) -> Answer:
        log.error("the scope function failed; nothing was executed: %s", type(error).__name__)
        return self.problem(problems.SCOPE_FAILED)

    def too_large(self) -> Answer:
        return self.problem(problems.BODY_TOO_LARGE, f"The request body is larger than {self.options.max_body} bytes.")

    async def start(self, scope: str, key: str, name: str, method: str, target: bytes, headers: Fields, body: bytes) -> Run | Answer:
        """Begins the operation. Returns a Run to execute, or the response if there is none."""
        print_ = request_fingerprint(method, target, headers, body, self.options.canonical)
        begun = await self.begin(self.operation(scope, key, print_, name))
        if isinstance(begun, Answer):
            return self.suited(begun, headers)
        begun.name, begun.request = name, headers
        return begun

    def operation(self, scope: str, key: str, print_: bytes, name: str) -> Operation:
        """An operation under the name that a new one runs under."""
        o = self.options
        first, second = (o.previous, o.namespace) if o.previous is not None and o.claim_previous else (o.namespace, o.previous)
        named = [self.sql.table.operation(space, scope, key, print_, self.class_, label(name)) for space in (first, second) if space is not None]
        return named[0] if len(named) == 1 else replace(named[0], other=named[1])

    def suited(self, answer: Answer, headers: Fields) -> Answer:
        """A stored answer, for a request with these header fields."""
        if not accepts(headers, answer.values("Content-Encoding")):
            return self.problem(problems.CODING_NOT_ACCEPTABLE)
        return _of_origin(answer, headers)

    async def begin(self, operation: Operation, raw: bool = False) -> Run | Answer:
        """Begins the operation in a transaction of its own: by stet_begin_raw if raw, otherwise as the mode says."""
        transaction = await self.open()
        if isinstance(transaction, Answer):
            return transaction
        keep, owner, found = False, os.urandom(16), operation
        try:
            first = begun = await self.ask(transaction, operation, owner, raw)
            if operation.other:
                begun = await self.ask_other(transaction, operation.other, first)
                found = operation if begun is first else operation.other
            keep = begun.action == "run"
        except DatabaseError as error:
            return self.not_begun(error)
        finally:
            if not keep:
                await self.leave(transaction)
        if keep:
            return Alone(self, transaction, operation, owner, begun)
        return self.told(begun, found.id)

    async def leave(self, transaction: Transaction) -> None:
        """Ends a transaction that has begun nothing."""
        await transaction.close()

    async def ask(self, transaction: Transaction, operation: Operation, owner: bytes, raw: bool = False) -> Begun:
        """Begins the operation, or reads its record. Only by stet_begin_raw, if raw, does "run" prove that no other transaction has
        committed an outcome: the plain statement reads before it has the lock."""
        o, row = operation, None
        if self.options.mode == "statements" and not raw:
            row = await transaction.row(self.sql.enter, (o.fingerprint, o.run_lock, o.print_lock, o.print, o.id))
            if row[0] == "run":
                await self.check_lasting(transaction, row[-1])
        if row is None or row[0] is None:
            row = await self.begin_raw(transaction, o, owner)
        action, fence, state, status, content_type, head, body, xid = row
        headers: dict[str, list[str]] = {}
        if action == "replay" and head:
            head = bytes(head)
            known = record.fields(head)
            if known is None:  # of an engine in Go
                text, media = await transaction.row(self.sql.head, (head,))
                known, content_type = json.loads(text or "{}"), content_type or media
            headers = known
        return Begun(action, fence or 0, state or "", status, content_type, headers, bytes(body or b""), xid)

    async def ask_other(self, transaction: Transaction, other: Operation, begun: Begun) -> Begun:
        """The answer for an operation with two names. begun is the answer for the first one. It runs only if the second name has no
        record, and no transaction holds its lock. Each transaction locks its own name before it tries the other one. Therefore of two
        transactions with different names at most one runs."""
        if begun.action in _DEFINITE:
            return begun
        await transaction.row("SAVEPOINT stet_names", ())
        there = await self.ask(transaction, other, os.urandom(16), raw=True)
        await transaction.row("ROLLBACK TO SAVEPOINT stet_names", ())  # the row and the lock of a free name
        await transaction.row("RELEASE SAVEPOINT stet_names", ())
        if there.action == "run":
            return begun
        return there if begun.action == "run" or there.action in _DEFINITE else begun

    async def check_lasting(self, transaction: Transaction, xid: int) -> None:
        """Raises a DatabaseError if the transaction with this number has ended with its statement."""
        if not transaction.lasts and await transaction.row(number, ()) != (xid,):
            raise DatabaseError(Autocommit())

    async def begin_raw(self, transaction: Transaction, o: Operation, owner: bytes) -> tuple[Any, ...]:
        return *await transaction.row(self.sql.begin, (o.id, o.scope, o.fingerprint, owner, o.run_lock, o.print_lock, o.print,
                                                       o.class_, o.name, "", self.result)), None

    async def open(self) -> Transaction | Answer:
        try:
            return await self.database.begin()
        except Exception as error:
            return self.not_opened(error)

    def not_opened(self, error: Exception) -> Answer:
        log.error("no transaction could be begun; nothing was executed: %s", DatabaseError(error))
        return self.problem(problems.STORE_UNAVAILABLE, retry_after=RETRY_AFTER)

    def not_begun(self, error: DatabaseError) -> Answer:
        if error.sqlstate in ("ST004", "ST005"):
            log.error("a stored outcome cannot be read: %s", error)
            return self.problem(problems.RESULT_UNREADABLE)
        log.error("an operation could not begin; nothing was executed: %s%s", error, self._advice(error))
        if answered(error) and error.sqlstate[:2] not in ("40", "53", "55"):  # not a conflict or a lack of resources
            return self.problem(problems.MISCONFIGURED)
        return self.problem(problems.STORE_UNAVAILABLE, retry_after=RETRY_AFTER)

    def _advice(self, error: DatabaseError) -> str:
        """Returns the commands that prepare a database."""
        schema = self.options.schema
        if error.sqlstate in ("3F000", "42883"):  # no such schema, no such function
            return f". Run, as the owner of the database: python -m stet migrate up --schema {schema} (or stet migrate up --store-schema {schema})"
        if error.sqlstate == "23503" and error.constraint.endswith("_unsettled"):
            return ". The connection commits each statement (autocommit, such as isolation_level=\"AUTOCOMMIT\" of SQLAlchemy): give stet a connection with transactions"
        if error.sqlstate == "42501":
            return ". Run, as the owner of the database: " + "; ".join(grants(schema, self.sql.table.name, "your_role", self.options.mode))
        return ""

    def explain(self, error: BaseException) -> None:
        """Logs the cause of an exception of a handler, if it is a COMMIT that PostgreSQL has refused."""
        if any(unsettled(e) for e in (error, error.__cause__, error.__context__) if e):
            log.error("a handler has tried to commit the transaction that it was given, which is not its to end: %s", UNSETTLED)

    def told(self, begun: Begun, id: bytes) -> Answer:
        """Returns the response for a row that is not "run"."""
        match begun.action:
            case "replay":
                return self._replay(begun)
            case "mismatch":
                return self.problem(problems.MISMATCH)
            case "expired":
                return self.problem(problems.FAILED_EXPIRED if begun.state == "failed" else problems.RESULT_EXPIRED)
            case "unknown":
                return self.unknown(id)
            case _:
                return self.problem(problems.IN_FLIGHT, retry_after=RETRY_AFTER)

    def _replay(self, begun: Begun) -> Answer:
        headers = [(name, value) for name, values in begun.headers.items() for value in values
                   if name.lower() != "content-length"]
        status, content_type = begun.status, begun.content_type
        if status is None:  # the outcome of a worker or a function, not a response
            if begun.state == "failed":
                failed = self.problem(problems.OPERATION_FAILED)
                return Answer(failed.status, failed.headers + [("Idempotent-Replayed", "true")], failed.body)
            status = 200 if begun.body else 204
            content_type = (content_type or _guessed(begun.body)) if begun.body else None
        if content_type:
            headers.append(("Content-Type", content_type))
        headers.append(("Idempotent-Replayed", "true"))
        if not any(name.lower() == "cache-control" for name, _ in headers):
            headers.append(("Cache-Control", "no-store"))
        return Answer(status, headers, begun.body if body_allowed(status) else b"")


def _of_origin(answer: Answer, headers: Fields) -> Answer:
    """A replay for a request of another origin than the stored one has no Access-Control-* fields of that."""
    allowed = answer.values("Access-Control-Allow-Origin")
    origin = [value.decode("latin-1") for name, value in headers if name.lower() == b"origin"]
    if not allowed or not origin or allowed == ["*"] or allowed == origin:
        return answer
    return Answer(answer.status, [(n, v) for n, v in answer.headers if not n.lower().startswith("access-control-")], answer.body)


@lru_cache(256)
def label(text: str) -> str:
    """Returns the text for operators: without control characters, at most 255 bytes."""
    text = "".join(c if c.isprintable() or c == " " else "?" for c in text)
    return text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")


def _guessed(body: bytes) -> str:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return "application/octet-stream"
    return "application/json"
