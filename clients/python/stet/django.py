"""Django: function views, class-based views and Django REST framework."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.core.handlers.exception import response_for_exception
from django.db import Error, connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import RawPostDataException

from . import answer as problems, sidecar
from .answer import Answer
from .core import MAX_HELD
from .emit import Emit, blocking
from .handle import END, ends, log
from .run import Run
from .sql import ConnectionInTransaction, DatabaseError, Misused, refused
from .threads import call
from .views import Asked, Views, target

F = TypeVar("F", bound=Callable[..., Any])

_RUN = "_stet_run"


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


class Idempotent(Views):
    """Makes views of Django idempotent.

        idempotent = Idempotent(scope=lambda request: request.user.get_username())

        @idempotent
        def pay(request): ...

        @method_decorator(idempotent, name="dispatch")
        class Payments(APIView): ...

    Everything that the view writes to the database using, by models or a cursor, is in its transaction. scope says whose key it is, as
    authentication has established it: a function of the HttpRequest, which does not read the body. None or "" is answered with 403, an exception with 500. Options
    are those of stet.Options. ATOMIC_REQUESTS does not apply to the view. Behind the sidecar, with sidecar=True, there is no scope function.
    """

    def __init__(self, scope: Callable[[HttpRequest], str | None] | None = None, using: str = "default", **options: Any) -> None:
        super().__init__(Django(using), scope, options)
        self._scope, self._using = scope, using

    def emit(self, request: Any) -> Emit:
        """Returns the function that adds messages to the outcome of a request: idempotent.emit(request)("payments", {"paid": 42})."""
        run = getattr(getattr(request, "_request", request), _RUN, None)
        if not isinstance(run, Run) or run.guard is not self:
            raise RuntimeError("stet: this request has no transaction: the view needs the decorator idempotent, and the request a key")
        return blocking(run, run.transaction)

    def __call__(self, view: F) -> F:
        """The decorator. It is the outermost one of @api_view."""
        if inspect.iscoroutinefunction(view):
            raise TypeError("stet: Django has no transactions in async views: write the view with def")

        @functools.wraps(view)
        def protected(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            claims, keys = ([request.headers[name]] if name in request.headers else [] for name in (sidecar.HEADER, self.options.header))
            if self.unprotected(request.method, claims, keys):
                return view(request, *args, **kwargs)
            run = self.twice() if hasattr(request, _RUN) else self.enter(claims, keys, functools.partial(self._scope or str, request), functools.partial(self._ask, request))
            if isinstance(run, Answer):
                return _response(run)
            run.used = True  # models do not ask for it
            setattr(request, _RUN, run)
            try:
                return self._finish(run, request, functools.partial(view, request, *args, **kwargs))
            finally:
                delattr(request, _RUN)

        return transaction.non_atomic_requests(self._using)(protected)  # type: ignore[return-value]

    def _ask(self, request: HttpRequest) -> Asked | Answer:
        if int(request.headers.get("Content-Length") or 0) > self.options.max_body:
            return self.too_large()
        try:
            body = request.body
        except RequestDataTooBig:
            return self.too_large()
        except RawPostDataException:
            log.error("the request's body was read before the decorator, so requests cannot be compared; read request.body before request.POST; nothing was executed")
            return self.problem(problems.MISCONFIGURED)
        if len(body) > self.options.max_body:
            return self.too_large()
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        route = request.resolver_match.route if request.resolver_match else request.path
        return Asked(f"{request.method} /{route.removeprefix('/')}", request.method or "", target(request.META), headers, body)

    def _finish(self, run: Run, request: HttpRequest, view: Callable[[], Any]) -> Any:
        raised: Exception | None = None
        try:
            try:
                response = view()
            except Http404 as error:
                raised, response = error, response_for_exception(request, error)
            if getattr(response, "exception", False):  # of Django REST framework, which has made the response of an exception
                raised = Http404()
            if hasattr(response, "render"):
                response = response.render()
            if response.streaming:
                body = b"".join(response.streaming_content)
                response.streaming_content = [body]
            else:
                body = response.content
        except BaseException as error:
            self.explain(error)
            call(run.undo())
            raise
        if len(body) > MAX_HELD:
            call(run.undo())
            return _response(self.problem(problems.RESPONSE_TOO_LARGE))
        if raised and response.status_code == 400:  # the request is invalid; its key stays free
            call(run.undo())
            return response
        cookies = [("Set-Cookie", cookie.OutputString()) for cookie in response.cookies.values()]
        answer = Answer(response.status_code, [*response.items(), *cookies], body)
        sent = call(run.finish(answer, raised))
        return response if sent is answer else _response(sent)


def _response(answer: Answer) -> HttpResponse:
    response = HttpResponse(answer.body, status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = f"{response[name]}, {value}" if name in response else value
    return response
