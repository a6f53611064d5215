"""Celery."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from celery import current_task  # type: ignore[import-untyped]

from .emit import Emit
from .operations import Operation, OperationError, operation

F = TypeVar("F", bound=Callable[..., Any])

_current: ContextVar[Operation | None] = ContextVar("stet.celery", default=None)


class Idempotent:
    """Makes tasks of Celery idempotent: the writes of a task are committed together with its result.

        idempotent = Idempotent(Psycopg(pool.connection))

        @app.task(acks_late=True)
        @idempotent
        def pay(amount):
            idempotent.transaction.execute("INSERT ...")
            return {"payment": 7}

    If a message is delivered again, the task returns the stored result and writes nothing. The key is the ID of the task, which a second delivery and a retry
    also have. A program that can publish a task twice sets task_id, or the option key. The scope is "celery" and the name of the task.

    database is one of Psycopg, SQLAlchemy or stet.django.Django. key is a function of the arguments of the task that returns its key. countdown is how many
    seconds a task waits, by a retry without a limit, while another worker runs it or the database is not available (default 1). Options are those of stet.operation.
    Arguments and result are values for json.dumps. An exception rolls back, and a retry runs again; a Refusal is stored, and each
    delivery raises it. With acks_late a task whose worker dies is delivered again.
    """

    def __init__(self, database: Any, key: Callable[..., str] | None = None, countdown: float = 1.0, **options: Any) -> None:
        self._database, self._key, self._countdown, self._options = database, key, countdown, options

    @property
    def transaction(self) -> Any:
        """The transaction of the task."""
        return self._operation().transaction

    @property
    def emit(self) -> Emit:
        """Adds a message to the result of the task: idempotent.emit("payments", {"paid": 42})."""
        return self._operation().emit

    def _operation(self) -> Operation:
        found = _current.get()
        if found is None:
            raise RuntimeError("stet: there is no transaction here: the task needs the decorator idempotent below the one of Celery")
        return found

    def __call__(self, task: F) -> F:
        """The decorator, below the one of Celery."""

        @functools.wraps(task)
        def run(*args: Any, **kwargs: Any) -> Any:
            request = current_task.request
            given = args[1:] if args and args[0] is current_task._get_current_object() else args  # bind=True
            key = self._key(*given, **kwargs) if self._key else request.id
            block = operation(self._database, scope=f"celery {current_task.name}", key=key, payload=[given, kwargs], name=current_task.name, **self._options)
            try:
                with block as op:
                    if not op.replayed:
                        token = _current.set(op)
                        try:
                            op.result = task(*args, **kwargs)
                        finally:
                            _current.reset(token)
                return op.result
            except OperationError as error:
                if not error.retryable:
                    raise
                raise current_task.retry(exc=error, countdown=self._countdown, max_retries=None) from None

        return run  # type: ignore[return-value]
