"""Views of Django in this process, over a real PostgreSQL."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any

from support import Ledger, database_url

os.environ["STET_TEST_SERVICE_URL"] = database_url("shop")

import django_service  # noqa: E402
import stet  # noqa: E402
from django.db import IntegrityError, connection, transaction  # noqa: E402
from django.http import HttpResponse, StreamingHttpResponse  # noqa: E402
from django.test import RequestFactory  # noqa: E402
from stet.django import Django, Idempotent  # noqa: E402


class Views(unittest.TestCase):
    amounts = 55_000

    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        self.addCleanup(connection.close)
        Views.amounts += 1
        self.amount = Views.amounts

    def pay(self, then: Callable[[], Any] = lambda: None, before: Callable[[Any], Any] = lambda request: None, idempotent: Any = None) -> HttpResponse:
        idempotent = idempotent or Idempotent(scope=lambda request: "acct_1")

        @idempotent
        def view(request: Any) -> Any:
            django_service.write("", self.amount)
            return then() or HttpResponse(b"paid", status=201)

        request = RequestFactory().post("/pay", {"amount": self.amount}, headers={"Idempotency-Key": f"{self._testMethodName}-{self.amount}"})
        before(request)
        return view(request)  # type: ignore[no-any-return]

    def test_a_transaction_that_is_marked_for_rollback_is_not_reported_as_committed(self) -> None:
        for then in (lambda: transaction.set_rollback(True), self.swallow):
            with self.assertLogs("stet", "ERROR"), self.assertRaisesRegex(stet.DatabaseError, "marked the transaction for rollback"):
                self.pay(then)
            self.assertEqual(self.ledger.paid(self.amount), 0)
        self.assertEqual((self.pay().status_code, self.ledger.paid(self.amount)), (201, 1))

    def swallow(self) -> None:
        try:
            with transaction.atomic(savepoint=False):
                raise IntegrityError
        except IntegrityError:
            pass

    def test_functions_of_on_commit_run_once_and_after_the_commit(self) -> None:
        seen: list[int] = []
        for _ in range(2):
            self.assertEqual(self.pay(lambda: transaction.on_commit(lambda: seen.append(self.ledger.paid(self.amount)))).status_code, 201)
        self.assertEqual(seen, [1])

    def test_an_error_after_the_commit_is_logged_and_the_response_is_sent(self) -> None:
        def fails() -> None:
            raise ValueError

        with self.assertLogs("stet", "ERROR") as logs:
            self.assertEqual(self.pay(lambda: transaction.on_commit(fails)).status_code, 201)
        self.assertIn("failed after the commit: ValueError", logs.output[0])
        self.assertEqual((self.pay().content, self.ledger.paid(self.amount)), (b"paid", 1))

    def test_a_stream_is_read_in_the_transaction_and_replayed(self) -> None:
        def stream() -> Any:
            yield b"pa"
            django_service.write("", self.amount)
            yield b"id"

        for _ in range(2):
            response = self.pay(lambda: StreamingHttpResponse(stream()))
            self.assertEqual(b"".join(response), b"paid")
        self.assertEqual(self.ledger.paid(self.amount), 2)

    def test_a_stream_that_breaks_off_undoes_the_writes(self) -> None:
        def stream() -> Any:
            yield b"pa"
            raise ValueError

        with self.assertRaises(ValueError):
            self.pay(lambda: StreamingHttpResponse(stream()))
        self.assertEqual(self.ledger.paid(self.amount), 0)

    def test_a_body_that_was_read_before_is_refused(self) -> None:
        with self.assertLogs("stet", "ERROR"):
            self.assertEqual(self.pay(before=lambda request: request.POST).status_code, 500)
        self.assertEqual(self.ledger.paid(self.amount), 0)

    def test_a_view_in_a_transaction_or_protected_twice_does_not_run(self) -> None:
        idempotent = Idempotent(scope=lambda request: "acct_1")
        with transaction.atomic(), self.assertLogs("stet", "ERROR"):
            self.assertEqual(self.pay().status_code, 503)
        twice = idempotent(idempotent(lambda request: HttpResponse(b"never")))
        with self.assertLogs("stet", "ERROR"):
            self.assertEqual(twice(RequestFactory().post("/", headers={"Idempotency-Key": "twice"})).status_code, 500)
        self.assertEqual(self.ledger.paid(self.amount), 0)

    def test_an_async_view_is_refused(self) -> None:
        async def view(request: Any) -> HttpResponse:
            return HttpResponse()

        with self.assertRaisesRegex(TypeError, "no transactions in async views"):
            Idempotent(scope=lambda request: "acct_1")(view)

    def test_an_operation_runs_over_a_connection_of_django(self) -> None:
        for source in (connection, Django(), connection):
            with stet.operation(source, scope="acct_1", key="django-operation", payload=1) as op:
                if not op.replayed:
                    django_service.write("", self.amount)
                    op.result = [1]
            self.assertEqual(op.result, [1])
        self.assertEqual(self.ledger.paid(self.amount), 1)


if __name__ == "__main__":
    unittest.main()
