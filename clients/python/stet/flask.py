"""Flask."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, TypeVar

from flask import Response, current_app, g, request
from werkzeug.wsgi import get_input_stream

from . import answer as problems, sidecar
from .answer import Answer
from .core import MAX_HELD
from .emit import Emit, blocking
from .handle import log
from .run import Run
from .sql import Database
from .threads import call
from .views import Asked, Views, target

F = TypeVar("F", bound=Callable[..., Any])

_RUN = "_stet_run"


class Idempotent(Views):
    """Makes views of Flask idempotent.

        idempotent = Idempotent(Psycopg(connect), scope=account)

        @app.post("/payments")
        @idempotent
        def pay():
            idempotent.transaction.execute("INSERT ...")
            return {"payment": 7}, 201

    scope says whose key it is, as authentication has established it: a function without arguments, which
    reads flask.request or flask.g, and not the body. None or "" is answered with 403, an exception
    with 500. Options are those of stet.Options. The decorator is the one next to the view. Behind the
    sidecar, with sidecar=True, there is no scope function.
    """

    def __init__(self, database: Database, scope: Callable[[], str | None] | None = None, **options: Any) -> None:
        super().__init__(database, scope, options)
        self._scope = scope

    @property
    def transaction(self) -> Any:
        """The transaction of this request, which is committed after the view has returned."""
        return self._of().handle()

    @property
    def emit(self) -> Emit:
        """What adds messages to the outcome of this request: idempotent.emit("payments", {"paid": 42})."""
        run = self._of()
        run.used = True
        return blocking(run, run.transaction)

    def _of(self) -> Run:
        run = g.get(_RUN)
        if not isinstance(run, Run) or run.guard is not self:
            raise RuntimeError("stet: this request has no transaction: the view needs the decorator @idempotent, and the request a key")
        return run

    def __call__(self, view: F) -> F:
        """The decorator."""

        @functools.wraps(view)
        def protected(*args: Any, **kwargs: Any) -> Any:
            claims, keys = request.headers.getlist(sidecar.HEADER), request.headers.getlist(self.options.header)
            if self.unprotected(request.method, claims, keys):
                return current_app.ensure_sync(view)(*args, **kwargs)
            run = self.twice() if _RUN in g else self.enter(claims, keys, self._scope or str, self._ask)
            if isinstance(run, Answer):
                return _response(run)
            setattr(g, _RUN, run)
            try:
                return self._finish(run, lambda: current_app.ensure_sync(view)(*args, **kwargs))
            finally:
                g.pop(_RUN)

        return protected  # type: ignore[return-value]

    def _ask(self) -> Asked | Answer:
        body = self._body()
        if isinstance(body, Answer):
            return body
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers]
        rule = request.url_rule.rule if request.url_rule else request.path
        return Asked(f"{request.method} {rule}", request.method, target(request.environ), headers, body)

    def _body(self) -> bytes | Answer:
        limit = self.options.max_body
        if (request.content_length or 0) > limit:
            return self.too_large()
        environ = request.environ
        if "stream" in request.__dict__:  # it was read before
            cached = getattr(request, "_cached_data", None) is not None
            body = request.get_data()
            if not cached and (len(body) < (request.content_length or 0) if environ.get("CONTENT_LENGTH") else environ.get("wsgi.input_terminated")):
                log.error("the request's body was read before the decorator (request.form, or request.stream), so requests cannot "
                          "be compared; call request.get_data() before that; nothing was executed")
                return self.problem(problems.MISCONFIGURED)
            return body if len(body) <= limit else self.too_large()
        body = get_input_stream(environ).read(limit + 1)
        if len(body) > limit:
            return self.too_large()
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(body), str(len(body))  # for the view
        return body

    def _finish(self, run: Run, view: Callable[[], Any]) -> Any:
        raised = None
        try:
            try:
                returned = view()
            except Exception as error:
                raised = error
                self.explain(error)
                returned = current_app.handle_user_exception(error)  # abort(404), or the app's own error handlers
            response = current_app.make_response(returned)
            response.direct_passthrough = False
            body = response.get_data()
            "".join(name + value for name, value in response.headers).encode("latin-1")  # or the server could not send it
        except BaseException:
            call(run.undo())
            raise
        if len(body) > MAX_HELD:
            call(run.undo())
            return _response(self.problem(problems.RESPONSE_TOO_LARGE))
        answer = Answer(response.status_code, list(response.headers.items()), body)
        sent = call(run.finish(answer, raised))
        return response if sent is answer else _response(sent)


def _response(answer: Answer) -> Response:
    response = Response(answer.body, answer.status)
    response.headers.clear()
    response.headers.extend(answer.headers)
    if answer.status not in (204, 304):
        response.headers["Content-Length"] = str(len(answer.body))
    return response
