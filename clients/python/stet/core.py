"""Shared by the adapters: names the operation, begins it, stores its answer, and answers from the record."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from . import answer as problems
from .answer import PROBLEM_BASE, Answer, Problem, accepts
from .fingerprint import Fields, request_fingerprint
from .handle import Handle
from .key import KeyFlaw, parse_key
from .sql import Database, DatabaseError, Transaction, answered, emit, settle_in, statements

log = logging.getLogger("stet")

MAX_SCOPE = 1024
MAX_HELD = 16 << 20  # bytes of a response that is held until the commit
_RETRY_AFTER = 1
_PAUSES = (0.02, 0.5)  # seconds between queries about an unacknowledged commit: the first, and the longest

_NEVER_STORED = {"date", "connection", "keep-alive", "te", "transfer-encoding", "upgrade", "content-length", "content-type",
                 "idempotent-replayed", "preference-applied"}
_OF_THE_SIDECAR = ("strict", "max_body", "canonical", "namespace", "class_", "patience")


@dataclass(frozen=True)
class Begun:
    """The row of stet_begin."""

    action: str
    claim: str
    state: str
    status: int | None
    headers: dict[str, list[str]]
    content_type: str | None
    body: bytes
    fence: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an adapter. Every field has a default."""

    header: str = "Idempotency-Key"
    strict: bool = False
    """Accept only the quoted form of a key."""
    sidecar: bool = False
    """True behind "stet proxy", on a route with settles: service. The sidecar has claimed the operation. Scope, key and
    fingerprint are configured in stet.yaml, not here."""
    optional: bool = False
    """Pass requests without a key to the handler, unprotected. The handler then has no transaction."""
    max_body: int = 1 << 20
    """The maximum size of a request body, in bytes."""
    max_result: int = 1 << 20
    """The maximum size of a stored response, in bytes, with its header. A larger one is sent, and retries receive 410."""
    canonical: Callable[[bytes], bytes] | None = None
    """canonical_json(): the fingerprint ignores the order of members and white space in JSON bodies."""
    result: timedelta = timedelta(hours=24)
    """How long a response is replayed."""
    tombstone: timedelta | None = None
    """How long the key is stored and prevents a second run. None: 30 days, or result if that is longer."""
    namespace: str = ""
    """The Namespace of Go's stet.Options, if a Go service shares the keys."""
    class_: str = ""
    """The class that operators see."""
    store_set_cookie: bool = False
    """Store Set-Cookie, too. A retry then receives the session of the first caller."""
    timeout: float = 30.0
    """The time limit of an endpoint of FastAPI or Starlette, in seconds, until its response is complete. After it, the transaction is
    rolled back and the response is 500. A Flask view cannot be stopped: leave the default there."""
    require_transaction: bool = False
    """If a handler did not use the transaction, roll back and respond with 500. By default this is logged, once for each handler."""
    patience: float = 10.0
    """How many seconds stet queries the state of an unacknowledged COMMIT."""
    problem_base: str = PROBLEM_BASE
    """The prefix of the type of each problem."""
    schema: str = "stet"
    """The schema in which stet migrate created the functions (--store-schema)."""
    prefix: str = "stet_"
    """The prefix of the functions' names (--table other: "other_")."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if self.sidecar and field.name in _OF_THE_SIDECAR and getattr(self, field.name) != field.default:
                raise TypeError(f"stet: behind the sidecar there is no option {field.name}: stet.yaml says it")


class Guard:
    """Options over a database; the base class of the adapters."""

    def __init__(self, database: Database, options: Options) -> None:
        self.database, self.options = database, options
        self.sql_begin, self.sql_settle = statements(database.mark, options.schema, options.prefix)
        self.sql_emit = emit(database.mark, options.schema, options.prefix)
        self.sql_settle_in = settle_in(database.mark, options.schema, options.prefix)
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
        begun = await self.begin((scope, key, print_, self.options.namespace, label(self.options.class_), label(name), ""))
        if isinstance(begun, Answer):
            return self.suited(begun, headers)
        begun.name, begun.request = name, headers
        return begun

    def suited(self, answer: Answer, headers: Fields) -> Answer:
        """A stored answer, for a request with these header fields."""
        if not accepts(headers, answer.values("Content-Encoding")):
            return self.problem(problems.CODING_NOT_ACCEPTABLE)
        return _of_origin(answer, headers)

    async def begin(self, arguments: tuple[Any, ...]) -> Run | Answer:
        transaction = await self.open()
        if isinstance(transaction, Answer):
            return transaction
        keep = False
        try:
            begun = _read(await transaction.row(self.sql_begin, arguments))
            keep = begun.action == "run"
        except DatabaseError as error:
            return self.not_begun(error)
        finally:
            if not keep:
                await transaction.close()
        if keep:
            return Alone(self, transaction, arguments, begun)
        return self.told(begun)

    async def open(self) -> Transaction | Answer:
        try:
            return await self.database.begin()
        except Exception as error:
            log.error("no transaction could be begun; nothing was executed: %s", DatabaseError(error))
            return self.problem(problems.STORE_UNAVAILABLE, retry_after=_RETRY_AFTER)

    def not_begun(self, error: DatabaseError) -> Answer:
        if error.sqlstate in ("ST004", "ST005"):
            log.error("a stored outcome cannot be read: %s", error)
            return self.problem(problems.RESULT_UNREADABLE)
        log.error("an operation could not begin; nothing was executed: %s%s", error, self._advice(error))
        if answered(error) and error.sqlstate[:2] not in ("40", "53", "55"):  # not a conflict or a lack of resources
            return self.problem(problems.MISCONFIGURED)
        return self.problem(problems.STORE_UNAVAILABLE, retry_after=_RETRY_AFTER)

    def _advice(self, error: DatabaseError) -> str:
        """What to do about a database that is not prepared."""
        schema = self.options.schema
        if error.sqlstate in ("3F000", "42883"):  # no such schema, no such function
            return f". Run: stet migrate up --store-schema {schema}, as the owner of the database"
        if error.sqlstate == "42501":
            functions = ", ".join(f"{schema}.{self.options.prefix}{name}" for name in ("begin", "settle"))
            return f". Run, as the owner of the database: GRANT USAGE ON SCHEMA {schema} TO your_role; GRANT EXECUTE ON FUNCTION {functions} TO your_role"
        return ""

    def told(self, begun: Begun) -> Answer:
        """Returns the response for a row that is not "run"."""
        match begun.action:
            case "replay":
                return self._replay(begun)
            case "mismatch":
                return self.problem(problems.MISMATCH)
            case "expired":
                return self.problem(problems.FAILED_EXPIRED if begun.state == "failed" else problems.RESULT_EXPIRED)
            case "unknown":
                return self.problem(problems.OUTCOME_UNKNOWN)
            case _:
                return self.problem(problems.IN_FLIGHT, retry_after=_RETRY_AFTER)

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


class Run:
    """An operation that executes now, in a transaction."""

    def __init__(self, guard: Guard, transaction: Transaction, claim: str) -> None:
        self.guard, self.transaction, self.claim = guard, transaction, claim
        self.name = ""
        self.request: Fields = ()  # its header fields
        """Of the operation, for logs."""
        self.over = False
        """The response is complete or cancelled, and the connection is back in the pool."""
        self.used = False
        """The handler has asked for the transaction."""
        self._handle = Handle(transaction.handle, lambda: self.over)

    def handle(self) -> Any:
        """The transaction, for the handler."""
        self.used = True
        return self._handle

    async def undo(self) -> None:
        """Rolls back: nothing was executed, and the key may be used again."""
        self.over = True
        await self.transaction.close()

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
        try:
            await self.settle(answer)
        except BaseException as error:
            await self.undo()
            return self.unsettled(error)
        try:
            await self.transaction.commit()
        except BaseException as error:
            await self.transaction.close()
            if not isinstance(error, Exception):
                raise
            return await self.unanswered(answer, error)
        await self.transaction.close()
        return answer

    async def settle(self, answer: Answer) -> None:
        await self.transaction.row(self.guard.sql_settle, self.settlement(answer))

    def unsettled(self, error: BaseException) -> Answer:
        """Returns the response after a rollback because the outcome could not be stored."""
        if isinstance(error, DatabaseError) and not answered(error):
            log.error("an outcome was not stored; nothing was executed: %s", error)
            return self.guard.problem(problems.STORE_UNAVAILABLE, retry_after=_RETRY_AFTER)
        raise error

    async def unanswered(self, answer: Answer, cause: Exception) -> Answer:
        """Returns the response after an unacknowledged COMMIT."""
        raise NotImplementedError

    async def refuse(self, answer: Answer) -> Answer:
        """Stores a refusal in its own transaction, after the writes were undone. Returns the response to send."""
        raise NotImplementedError

    def settlement(self, answer: Answer) -> tuple[Any, ...]:
        options = self.guard.options
        headers = json.dumps(self._stored(answer), ensure_ascii=False)
        content_type = ", ".join(answer.values("Content-Type"))
        body = answer.body if body_allowed(answer.status) else b""
        gone = 1 + len(headers.encode()) + len(content_type) + len(body) > options.max_result
        if gone:
            return self.claim, None, None, None, None, True, options.result, options.tombstone, options.max_result
        return (self.claim, answer.status, headers, content_type, body, False, options.result, options.tombstone, options.max_result)

    def _stored(self, answer: Answer) -> dict[str, list[str]]:
        connection = {name.strip().lower() for value in answer.values("Connection") for name in value.split(",")}
        fields: dict[str, list[str]] = {}
        for name, value in answer.headers:
            lower = name.lower()
            if lower in _NEVER_STORED or lower in connection or lower.startswith("proxy-") \
                    or lower == "set-cookie" and not self.guard.options.store_set_cookie:
                continue
            fields.setdefault("-".join(word.capitalize() for word in lower.split("-")), []).append(value)
        return fields


class Alone(Run):
    """A run in a transaction that has begun the operation itself."""

    def __init__(self, guard: Guard, transaction: Transaction, arguments: tuple[Any, ...], begun: Begun) -> None:
        super().__init__(guard, transaction, begun.claim)
        self._arguments, self._fence = arguments, begun.fence

    async def settle(self, answer: Answer) -> None:
        if answer.values("Content-Encoding"):
            self.guard.log_once(f"{self.name or 'a handler'} has a Content-Encoding that is stored with its response, so a retry that does not "
                                "accept it is refused with 406: compress in front of the handler, or in front of the service", logging.WARNING)
        await super().settle(answer)

    async def refuse(self, answer: Answer) -> Answer:
        again = await self.guard.begin(self._arguments)
        if isinstance(again, Answer):
            return self.guard.suited(again, self.request)  # of a retry that came in between, or the database has failed
        again.used, again.name, again.request = True, self.name, self.request
        return await again.finish(answer)

    def unsettled(self, error: BaseException) -> Answer:
        if isinstance(error, DatabaseError) and error.sqlstate == "ST002":
            log.error("a handler has ended the transaction that it was given, by COMMIT or ROLLBACK, which is not its to end; nothing was settled, "
                      "and a retry runs again: %s", self.name)
            raise RuntimeError("stet: the handler has ended the transaction that it was given; use a savepoint instead") from None
        return super().unsettled(error)

    async def unanswered(self, answer: Answer, cause: Exception) -> Answer:
        """Finds out what became of a commit whose answer is lost. The transaction holds the key until it
        has ended: while it may still be committed, the key is in flight."""
        guard, end, pause = self.guard, time.monotonic() + self.guard.options.patience, _PAUSES[0]
        while True:
            begun = await self._look()
            if begun and begun.fence == self._fence and begun.action in ("replay", "expired"):
                return answer  # it was done
            if begun and begun.action in ("run", "mismatch"):
                if answered(cause):
                    raise cause
                log.error("a commit was not answered; nothing was executed: %s", type(cause).__name__)
                return guard.problem(problems.STORE_UNAVAILABLE, retry_after=_RETRY_AFTER)
            if begun and begun.action != "in_flight":
                return guard.suited(guard.told(begun), self.request)
            if time.monotonic() >= end:
                log.error("a commit was not acknowledged, and its outcome could not be read: %s", type(cause).__name__)
                return guard.problem(problems.OUTCOME_UNKNOWN)
            await guard.database.pause(pause)
            pause = min(2 * pause, _PAUSES[1])

    async def _look(self) -> Begun | None:
        """The record, read on a new connection; None if it cannot be read now."""
        try:
            transaction = await self.guard.database.begin()
        except Exception:
            return None
        try:
            return _read(await transaction.row(self.guard.sql_begin, self._arguments))
        except DatabaseError:
            return None
        finally:
            await transaction.close()


def _read(row: tuple[Any, ...]) -> Begun:
    action, claim, state, status, headers, content_type, body, fence = row
    return Begun(action, claim or "", state or "", status, json.loads(headers) if headers else {}, content_type, bytes(body or b""), fence)


def kept(answer: Answer) -> bool:
    """Reports whether a response is an outcome to store. Others are sent after a rollback: 500 and above and 408 are
    failures; 401, 403, 407, 425 and 429 come before an execution."""
    return answer.status < 500 and answer.status not in (401, 403, 407, 408, 425, 429)


def _of_origin(answer: Answer, headers: Fields) -> Answer:
    """A replay for a request of another origin than the stored one has no Access-Control-* fields of that."""
    allowed = answer.values("Access-Control-Allow-Origin")
    origin = [value.decode("latin-1") for name, value in headers if name.lower() == b"origin"]
    if not allowed or not origin or allowed == ["*"] or allowed == origin:
        return answer
    return Answer(answer.status, [(n, v) for n, v in answer.headers if not n.lower().startswith("access-control-")], answer.body)


def body_allowed(status: int) -> bool:
    return status not in (204, 304)


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
