"""Django: function views, class-based views and Django REST framework."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from django.core.exceptions import RequestDataTooBig
from django.core.handlers.exception import response_for_exception
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import RawPostDataException

from . import answer as problems, sidecar
from .answer import Answer
from .core import MAX_HELD
from .djangodb import Django as Django
from .emit import Emit, blocking
from .handle import log
from .run import Run
from .threads import call
from .views import Asked, Views, target

F = TypeVar("F", bound=Callable[..., Any])

_RUN = "_stet_run"


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
