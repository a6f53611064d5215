"""Services in Django, with the tests of all frameworks."""

from __future__ import annotations

import unittest

import test_services
from service import BINARY
from support import ServiceTest


class Promises(test_services.Promises):
    """Those of test_services, with the differences of Django."""

    def test_headers_and_bytes_are_replayed_as_they_were(self: ServiceTest) -> None:
        amount, key = self.amount(), self.key()
        first, again = self.service.pay(key, amount, "binary"), self.service.pay(key, amount, "binary")
        self.assertEqual((first.body, first.values("X-Latin"), first.values("Warning")), (BINARY, ["Gr\xfc\xdfe"], ["a, b"]))
        self.assertEqual((first.values("Set-Cookie"), again.values("Set-Cookie")), (["session=secret"], []))
        self.assertEqual((again.same(), again.replayed), (first.same(), True))
        empty = [self.service.pay(key + "-empty", amount, "empty") for _ in range(2)]
        self.assertEqual([(e.status, e.body, e.replayed) for e in empty], [(204, b"", False), (204, b"", True)])
        self.assertEqual(self.ledger.paid(amount), 2)


class DjangoView(Promises, ServiceTest):
    flavour = "django-view"


class DjangoRest(Promises, ServiceTest):
    flavour = "django-rest"

    def test_a_rendered_response_is_replayed(self) -> None:
        amount, key = self.amount(), self.key()
        first, again = self.service.pay(key, amount, "rest"), self.service.pay(key, amount, "rest")
        self.assertEqual((first.status, again.same(), again.replayed, self.ledger.paid(amount)), (201, first.same(), True, 1))
        self.assertIn(b'{"payment":', first.body)

    def test_an_invalid_request_does_not_use_up_its_key(self) -> None:
        key = self.key()
        self.assertEqual(self.service.send(b"{", key=key).status, 400)
        self.assertEqual(self.service.pay(key, self.amount()).status, 201)


del Promises

if __name__ == "__main__":
    unittest.main()
