"""FastAPI and Starlette."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

from anyio import CancelScope
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import Host, Match, Mount

from . import answer as problems, sidecar
from .answer import Answer
from .core import MAX_HELD, Guard
from .emit import AsyncEmit, Emit, blocking, waiting
from .handle import log
from .options import Options
from .run import Run
from .sql import Database, Transaction
from .threads import Threaded

try:
    from fastapi.exceptions import RequestValidationError
except ImportError:  # Starlette alone
    _INVALID: tuple[type[Exception], ...] = ()
else:
    _INVALID = (RequestValidationError,)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
F = TypeVar("F")
T = TypeVar("T")

_RUN = "stet.run"
_MARK = "__stet__"
_INSIDE = (BaseHTTPMiddleware, CORSMiddleware, GZipMiddleware)
"""Middleware that must be around. Behind the sidecar, which sends the stored response, only the first must."""
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")


class Idempotent(Guard):
    """Makes endpoints of FastAPI and Starlette idempotent.

        idempotent = Idempotent(AsyncPsycopg(connect), scope=account)
        app.add_middleware(idempotent.middleware)

        @app.post("/payments", status_code=201)
        @idempotent
        async def pay(payment: Payment, tx: AsyncConnection = Depends(idempotent.transaction)): ...

    scope says whose key it is, as authentication has established it: a function of the Request, which may
    be async and must not read the body. None or "" is answered with 403, an exception with 500. Options
    are those of stet.Options. Behind the sidecar, with sidecar=True, there is no scope function.
    """

    def __init__(self, database: Database, scope: Callable[[Request], str | None | Awaitable[str | None]] | None = None, **options: Any) -> None:
        super().__init__(Threaded(database) if database.blocking else database, Options(**options))
        self.check_scope(scope)
        self.invalid = _INVALID
        self._scope = scope
        self._ending: set[asyncio.Future[Any]] = set()

    def __call__(self, endpoint: F) -> F:
        """The decorator. It marks an endpoint, which the middleware finds."""
        setattr(endpoint, _MARK, (*getattr(endpoint, _MARK, ()), self))
        return endpoint

    async def transaction(self, request: Request) -> Any:
        """The dependency: the transaction of this request, which the middleware commits. In Starlette:
        await idempotent.transaction(request)."""
        return self._of(request).handle()

    def joins(self, dependency: Callable[[], Any]) -> Callable[..., AsyncIterator[Any]]:
        """A dependency for FastAPI that yields the transaction of a protected request, and else what dependency, which has no
        parameters, yields or returns. With it existing code joins the transaction:

            app.dependency_overrides[get_session] = idempotent.joins(get_session)
        """

        async def joined(request: Request) -> AsyncIterator[Any]:
            if _RUN in request.scope:
                yield self._of(request).handle()
            elif inspect.isasyncgenfunction(dependency):
                async with asynccontextmanager(dependency)() as found:
                    yield found
            elif inspect.isgeneratorfunction(dependency):
                with contextmanager(dependency)() as found:
                    yield found
            else:
                found = dependency()
                yield await found if inspect.isawaitable(found) else found

        return joined

    async def emit(self, request: Request) -> Emit | AsyncEmit:
        """The dependency: what adds messages to the outcome of this request, of which the package's Emit says more. It is
        awaited over a database for asyncio, and not over a blocking one. In Starlette: await idempotent.emit(request)."""
        run = self._of(request)
        run.used = True
        plain = getattr(run.transaction, "plain", None)
        return blocking(run, plain) if plain else waiting(run)

    def _of(self, request: Request) -> Run:
        run = request.scope.get(_RUN)
        if not isinstance(run, Run) or run.guard is not self:
            raise RuntimeError("stet: this request has no transaction: the endpoint needs the decorator @idempotent, "
                               "the app idempotent.middleware, and the request a key")
        return run

    def middleware(self, app: App) -> App:
        """The middleware, for add_middleware. Middleware that is added after it is around it, and must be: authentication that scope relies
        on, @app.middleware("http"), CORS, compression. RuntimeError at the start if one of the last three is inside."""
        inner: Any = app
        while inner is not None:
            if isinstance(inner, BaseHTTPMiddleware if self.options.sidecar else _INSIDE):
                raise RuntimeError(f"stet: {type(inner).__name__} is inside of stet's middleware, where background tasks would run before the commit, and retries "
                                   'would get the headers or the compression of the first caller: call app.add_middleware(idempotent.middleware) '
                                   'before it is added (of @app.middleware("http"), too)')
            inner = getattr(inner, "app", None)

        async def protected(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"].upper() in _SAFE:
                return await app(scope, receive, send)
            routes = _routes(app) or _routes(scope.get("app"))
            if routes is None:
                raise RuntimeError("stet: the middleware finds no routes: add it by app.add_middleware(idempotent.middleware)")
            endpoint, path = _route(routes, scope)
            if self not in getattr(endpoint, _MARK, ()):
                return await app(scope, receive, send)
            await self._serve(app, scope, path, receive, send)

        return protected

    async def _serve(self, app: App, scope: Scope, path: str, receive: Receive, send: Send) -> None:
        if _RUN in scope:
            log.error("an endpoint is protected twice; nothing was executed")
            return await _send(send, self.problem(problems.MISCONFIGURED))
        claims, keys = _fields(scope, sidecar.HEADER), _fields(scope, self.options.header)
        if not claims and not keys and self.options.optional:
            return await app(scope, receive, send)
        refused = sidecar.refused(self, claims)
        if refused:
            return await _send(send, refused)
        if self.options.sidecar:
            run = await sidecar.begin(self, claims[0])
            return await (_send(send, run) if isinstance(run, Answer) else self._run(run, app, scope, receive, send))
        await self._alone(app, scope, path, keys, receive, send)

    async def _alone(self, app: App, scope: Scope, path: str, keys: list[str], receive: Receive, send: Send) -> None:
        key = self.key(keys)
        if isinstance(key, Answer):
            return await _send(send, key)
        whose = await self._whose(scope)
        if isinstance(whose, Answer):
            return await _send(send, whose)
        body = await self._body(scope, receive)
        if body is None:
            return  # the client has left
        if isinstance(body, Answer):
            return await _send(send, body)
        run = await self.start(whose, key, f"{scope['method']} {path}", scope["method"], _target(scope), scope["headers"], body)
        if isinstance(run, Answer):
            return await _send(send, run)
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        await self._run(run, app, scope, replayed, send)

    async def _whose(self, scope: Scope) -> str | Answer:
        try:
            assert self._scope
            found = self._scope(Request(scope))
            return self.scope(await found if inspect.isawaitable(found) else found)
        except Exception as error:
            return self.scope_failed(error)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | Answer | None:
        limit = self.options.max_body
        for name, value in scope["headers"]:
            if name.lower() == b"content-length" and value.isdigit() and int(value) > limit:
                return self.too_large()
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunks.append(message.get("body", b""))
            size, more = size + len(chunks[-1]), message.get("more_body", False)
            if size > limit:
                return self.too_large()
        return b"".join(chunks)

    async def _run(self, run: Run, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        response, late, thread = _Response(run, send, self._to_the_end), False, None
        try:
            scope[_RUN] = run
            scope["extensions"] = {}  # a file that the server sends by itself could not be stored
            work = app(scope, receive, response.take)
            if isinstance(self.database, Threaded):
                thread = await _whole(work, response, self.options.timeout)
                late = thread is not None
            else:
                late = await _within(work, response, self.options.timeout)
        except Exception as error:
            self.explain(error)
            raise
        finally:
            missing, response.ended = not response.ended, True
            if missing:
                run.over = True  # a thread that still runs is ended by its next use of the handle
                undone = self._ends(_undo(run, thread))
                await (asyncio.sleep(0) if thread else asyncio.shield(undone))
        if late:
            log.error("%s has not answered within %g s (the option timeout); it was rolled back. If it waits for a second connection of the pool that "
                      "stet uses, let that code use the transaction: see joins", run.name, self.options.timeout)
        elif missing:
            log.error("an endpoint returned without a whole response; nothing was executed")
        if missing:
            await _send(send, self.problem(problems.RESPONSE_MISSING))

    async def leave(self, transaction: Transaction) -> None:
        self._ends(transaction.close())  # the response does not wait for ROLLBACK

    def _ends(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Ends a transaction, also if the request is cancelled in the meantime."""
        return await asyncio.shield(self._ends(work))


async def _undo(run: Run, thread: asyncio.Task[None] | None) -> None:
    """Rolls back, when a thread that uses the connection has ended."""
    if thread:
        await asyncio.wait([thread])
        thread.exception()  # so that asyncio does not warn of it
    await run.undo()


async def _within(work: Awaitable[None], response: _Response, seconds: float) -> bool:
    """Waits for an application. Cancels it and returns True if its response is not complete in time."""
    try:
        async with asyncio.timeout(seconds) as limit:
            response.whole = lambda: limit.reschedule(None)  # background tasks have no limit
            await work
    except TimeoutError:
        if not limit.expired():
            raise
        return True
    return False


async def _whole(work: Awaitable[None], response: _Response, seconds: float) -> asyncio.Task[None] | None:
    """Waits for an application, cancelled or not: a thread of it may use the connection, and is not ended by that. It returns
    the application if its response is not whole in time."""
    task, cancelled, end = asyncio.ensure_future(work), False, time.monotonic() + seconds
    with CancelScope(shield=True):
        while not task.done():
            left = None if response.ended else end - time.monotonic()
            if left is not None and left <= 0:
                return task
            try:
                await asyncio.wait([task], timeout=left if left is None else min(left, 1))
            except asyncio.CancelledError:
                cancelled = True
    if cancelled:
        task.exception()  # so that asyncio does not warn of it
        raise asyncio.CancelledError
    task.result()
    return None


class _Response:
    """Holds a response back until its outcome is durable. When it is whole the transaction ends, before
    background tasks begin."""

    def __init__(self, run: Run, send: Send, to_the_end: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]) -> None:
        self._run, self._send, self._to_the_end = run, send, to_the_end
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._outer = sys.exc_info()[1]  # of code around, which is no exception of the handler's
        self._raised: BaseException | None = None
        self.ended = False  # the transaction is over
        self.whole: Callable[[], None] = lambda: None  # called when the response is

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self.ended:
            self._start = message
            raised = sys.exc_info()[1]  # the response is sent by an exception handler, from within its except
            self._raised = raised if raised is not self._outer else None
        elif message["type"] == "http.response.body" and self._start is not None and not self.ended:
            self._chunks.append(bytes(message.get("body", b"")))
            self._size += len(self._chunks[-1])
            if self._size > MAX_HELD:
                self.whole()  # an error if the time limit has passed in this moment: then it is rolled back
                self.ended = True
                await self._to_the_end(self._run.undo())
                await _send(self._send, self._run.guard.problem(problems.RESPONSE_TOO_LARGE))
            elif not message.get("more_body", False):
                self.whole()  # an error if the time limit has passed in this moment: then it is rolled back
                self.ended = True
                await self._end(self._start)

    async def _end(self, start: Message) -> None:
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start.get("headers", ())]
        answer = Answer(start["status"], headers, b"".join(self._chunks))
        sent = await self._to_the_end(self._run.finish(answer, self._raised))
        if sent is not answer:
            return await _send(self._send, sent)
        await self._send(start)
        await self._send({"type": "http.response.body", "body": answer.body})


async def _send(send: Send, answer: Answer) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    if answer.status not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _target(scope: Scope) -> bytes:
    """Returns the request target as it was sent, if the server provides it."""
    path = scope.get("raw_path") or quote(scope["path"], safe="/!$&'()*+,;=:@~-._").encode()
    path = path.partition(b"?")[0]
    query = scope.get("query_string", b"")
    return path + b"?" + query if query else path


def _fields(scope: Scope, name: str) -> list[str]:
    wanted = name.lower().encode("latin-1")
    return [value.decode("latin-1") for field, value in scope["headers"] if field.lower() == wanted]


def _routes(app: Any) -> Iterable[Any] | None:
    """Those of an application, also where middleware is around it."""
    while app is not None:
        routes = getattr(app, "routes", None)
        if routes is not None:
            found: Iterable[Any] = routes
            return found
        app = getattr(app, "app", None)
    return None


def _route(routes: Iterable[Any], scope: Scope) -> tuple[Any, str]:
    """Returns the endpoint of a request, and its path."""
    for route in routes:
        match, child = route.matches(scope)
        if match is not Match.FULL:
            continue
        below = getattr(route, "routes", None) or _routes(getattr(route, "app", None) if isinstance(route, (Mount, Host)) else None)
        if below:
            endpoint, path = _route(below, {**scope, **child})
            return endpoint, getattr(route, "path", "") + path
        return child.get("endpoint"), str(getattr(route, "path", scope["path"]))
    return None, scope["path"]
