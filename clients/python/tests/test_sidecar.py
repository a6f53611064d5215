"""Services behind stet proxy, which claims; they settle. Everything is real: the proxy, PostgreSQL, processes that are killed."""

from __future__ import annotations

import concurrent.futures
import json
import signal
import unittest
from urllib.parse import urlsplit

from service import BINARY
from support import Hook, Ledger, Service, ServiceTest, Sidecar, database_url
from wire import Proxy

POOL = concurrent.futures.ThreadPoolExecutor(16)
FORGED = "c1." + "0" * 64 + "." + "0" * 32 + "." + "0" * 16


class SidecarTest(ServiceTest):
    """A test of one flavour of the service behind a sidecar, both of which run while the tests of a class do."""

    sidecar: Sidecar

    @classmethod
    def setUpClass(cls) -> None:
        cls.ledger = Ledger()
        cls.service = cls.settling()
        cls.sidecar = Sidecar(cls.service)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.sidecar.end()
        super().tearDownClass()

    @classmethod
    def settling(cls, port: int | None = None, **settings: str) -> Service:
        return Service(cls.flavour, port, STET_TEST_SIDECAR="1", **settings)

    def another(self, service: Service, more: str = "") -> Sidecar:
        """A sidecar before another service on the same keys. Both end with the test."""
        self.addCleanup(service.end)
        sidecar = Sidecar(service, more)
        self.addCleanup(sidecar.end)
        return sidecar


class Promises:
    """The tests; each flavour below inherits them."""

    def test_a_retry_gets_the_first_answer_byte_for_byte(self: SidecarTest) -> None:
        for do, status, paid in (("", 201, 1), ("binary", 201, 1), ("empty", 204, 1), ("refuse", 402, 1), ("abort", 404, 0)):
            with self.subTest(do):
                amount, key = self.amount(), self.key() + do
                first, again = self.sidecar.pay(key, amount, do), self.sidecar.pay(key, amount, do)
                self.assertEqual((first.status, first.replayed), (status, False), first)
                self.assertEqual((again.same(), again.replayed), (first.same(), True))
                self.assertEqual(self.ledger.paid(amount), paid)
                if do == "binary":
                    self.assertEqual((first.body, first.values("Content-Type")), (BINARY, ["application/x-binary"]))
                    self.assertEqual((first.values("X-Latin"), first.values("Warning")), (["Gr\xfc\xdfe"], ["a", "b"]))
                    self.assertEqual(first.values("Set-Cookie"), [], "a stored header was returned")

    def test_an_answer_too_large_to_keep_is_sent_once(self: SidecarTest) -> None:
        amount, key = self.amount(), self.key()
        first, again = self.sidecar.pay(key, amount, "big"), self.sidecar.pay(key, amount, "big")
        self.assertEqual((first.status, len(first.body)), (201, 20_000))
        self.assertEqual((again.status, again.problem), (410, "result-expired"))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_failed_request_is_rolled_back_and_runs_again(self: SidecarTest) -> None:
        for do, status, problem in (("fail", 503, "not-executed"), ("raise", 503, "not-executed"), ("swallow", 503, "not-executed"),
                                    ("rollback-by-connection", 503, "not-executed"), ("forbid", 403, "")):
            with self.subTest(do):
                amount, key = self.amount(), self.key() + do
                got = self.sidecar.pay(key, amount, do)
                self.assertEqual((got.status, got.problem, self.ledger.paid(amount)), (status, problem, 0), got)
                self.assertEqual(self.sidecar.pay(key, amount).status, 201)
                self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_handler_that_commits_gets_no_success_out_and_does_not_run_again(self: SidecarTest) -> None:
        service = self.settling()
        sidecar = self.another(service)
        amount, key = self.amount(), self.key()
        first, again = sidecar.pay(key, amount, "commit-by-connection"), sidecar.pay(key, amount, "commit-by-connection")
        self.assertEqual((first.status, first.problem), (500, "not-settled"))
        self.assertEqual((again.status, again.body, again.values("Idempotent-Replayed")), (500, first.body, ["true"]))
        self.assertEqual(self.ledger.paid(amount), 1)
        self.assertIn("has committed the transaction that it was given", service.end())

    def test_duplicates_pay_once(self: SidecarTest) -> None:
        for round_ in range(3):
            amount, key = self.amount(), self.key() + str(round_)
            got = [f.result() for f in [POOL.submit(self.sidecar.pay, key, amount) for _ in range(8)]]
            self.assertEqual(self.ledger.paid(amount), 1)
            self.assertLessEqual({g.status for g in got}, {201, 409})
            self.assertEqual(len({g.body for g in got if g.status == 201}), 1)

    def test_a_request_that_came_by_itself_is_refused_and_logged_once(self: SidecarTest) -> None:
        service = self.settling()
        self.addCleanup(service.end)
        amount = self.amount()
        body = b'{"amount": %d}' % amount
        for headers in ({"key": '"k"'}, {"key": '"k"'}, {}, {"Stet-Claim": [FORGED, FORGED]}, {"Stet-Claim": FORGED + "0"}, {"Stet-Claim": ""},
                        {"Stet-Claim": FORGED.upper(), "key": '"k"'}):
            got = service.send(body, **headers)
            self.assertEqual((got.status, got.problem), (500, "misconfigured"), headers)
        self.assertEqual(self.ledger.paid(amount), 0)
        said = service.end()
        self.assertEqual((said.count("did not come through the sidecar"), said.count("is not one claim")), (1, 1), said)

    def test_a_claim_that_is_none_commits_nothing(self: SidecarTest) -> None:
        service = self.settling()
        self.addCleanup(service.end)
        amount = self.amount()
        got = service.send(b'{"amount": %d}' % amount, Stet_Claim=FORGED)
        self.assertEqual((got.status, got.problem, self.ledger.paid(amount)), (409, "in-flight", 0))
        said = service.end()
        self.assertIn("the claim of the sidecar has ended", said)
        self.assertNotIn("c1.", said)

    def test_a_service_killed_before_its_commit_has_paid_nothing_and_a_retry_pays_once(self: SidecarTest) -> None:
        amount, key = self.amount(), self.key()
        dying = self.another(self.settling(STET_TEST_DIES="before"))
        got = dying.pay(key, amount)
        while got.problem == "in-flight":  # PostgreSQL has not seen yet that its client is gone
            got = self.sidecar.pay(key, amount)
        if got.status != 201:
            self.assertEqual((got.status, got.problem, self.ledger.paid(amount)), (503, "not-executed", 0))
            got = self.sidecar.pay(key, amount)
        self.assertEqual((got.status, got.replayed), (201, False))
        again = self.sidecar.pay(key, amount)
        self.assertEqual((again.same(), again.replayed), (got.same(), True))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_service_killed_after_its_commit_is_answered_for(self: SidecarTest) -> None:
        amount, key = self.amount(), self.key()
        first = self.another(self.settling(STET_TEST_DIES="after")).pay(key, amount)
        self.assertEqual((first.status, first.replayed, self.ledger.paid(amount)), (201, False, 1), first)
        self.assertRegex(first.values("Location")[0], r"^/payments/\d+$")
        again = self.sidecar.pay(key, amount)
        self.assertEqual((again.same(), again.replayed, self.ledger.paid(amount)), (first.same(), True, 1))

    def test_an_unacknowledged_commit_is_read_back_by_the_sidecar(self: SidecarTest) -> None:
        server = urlsplit(database_url())
        proxy = Proxy(server.hostname or "", server.port or 0)
        self.addCleanup(proxy.close)
        sidecar = self.another(self.settling(proxy.port))
        amount, key = self.amount(), self.key()
        proxy.arm("reply")
        first = sidecar.pay(key, amount)
        self.assertTrue(proxy.lost.is_set())
        self.assertEqual((first.status, self.ledger.paid(amount)), (201, 1), "it was done")
        proxy.arm("request")
        got = sidecar.pay(key + "-2", amount)
        self.assertTrue(proxy.lost.is_set())
        self.assertEqual(got.status, 503, "it was not")
        while got.problem in ("in-flight", "not-executed"):
            got = sidecar.pay(key + "-2", amount)
        self.assertEqual((got.status, self.ledger.paid(amount)), (201, 2))

    def test_a_service_that_slept_too_long_cannot_pay_any_more(self: SidecarTest) -> None:
        amount, key = self.amount(), self.key()
        sleeping = self.settling()
        sidecar = self.another(sleeping, ", lease: 1s, timeout: 1s")
        self.ledger.hold()
        try:
            late = POOL.submit(sidecar.pay, key, amount, "wait")
            self.ledger.until_waiting()
            sleeping.stop()
        finally:
            self.ledger.let_go()
        got = late.result()
        self.assertEqual((got.status, got.problem), (503, "not-executed"), got)
        first = self.sidecar.pay(key, amount)
        self.assertEqual((first.status, first.replayed), (201, False))
        sleeping.process.send_signal(signal.SIGCONT)
        sleeping.says("the claim of the sidecar has ended")
        self.assertEqual(self.ledger.paid(amount), 1)
        again = self.sidecar.pay(key, amount)
        self.assertEqual((again.same(), again.replayed), (first.same(), True))

    def test_an_emitted_message_is_sent_once_with_the_outcome(self: SidecarTest) -> None:
        with Hook() as hook:
            sidecar = Sidecar(self.service, besides=f"relay: {{retry: 1s, targets: [{{by: {hook.url}, format: plain}}]}}\n")
            self.addCleanup(sidecar.end)
            amount, key = self.amount(), self.key()
            for _ in range(2):
                self.assertEqual(sidecar.pay(key, amount, "emit").status, 201)
            self.assertEqual(sidecar.pay(key + "bad", amount + 500, "emit, badly").status, 503)
            got = hook.wait(3)
            self.assertEqual([(m.to, m.key, m.header["content-type"], m.body) for m in sorted(got, key=lambda m: m.to)], [
                ("mails", None, "text/plain; charset=utf-8", b"thank you"),
                ("payments", "acct%201", "application/json", json.dumps({"paid": amount, "in": "\u20ac"}).encode()),
                ("raw", None, "application/x-raw", b"\0\1\xff")])
            self.assertEqual(len({m.id for m in got}), 3)
            sidecar.end()
            self.assertEqual((len(hook.got), self.ledger.paid(amount), self.ledger.paid(amount + 500)), (3, 1, 0))

    def test_an_answer_of_an_endpoint_that_settles_nothing_is_no_success(self: SidecarTest) -> None:
        for _ in range(2):
            got = self.sidecar.send(path="/bare", key=self.key())
            self.assertEqual((got.status, got.problem), (500, "not-settled"), got)

    def test_a_service_without_the_option_does_not_run_a_claim_of_a_sidecar(self: SidecarTest) -> None:
        alone = Service(self.flavour)
        sidecar = self.another(alone)
        amount, key = self.amount(), self.key()
        got = sidecar.pay(key, amount)
        self.assertEqual((got.status, got.problem), (503, "not-executed"))
        self.assertEqual(alone.pay(key, amount, Stet_Claim=FORGED).problem, "misconfigured")
        self.assertEqual(self.ledger.paid(amount), 0)
        self.assertEqual(alone.end().count("does not settle for a sidecar"), 1)


def flavours(*names: str) -> None:
    for name in names:
        title = "Behind" + "".join(word.capitalize() for word in name.split("-"))
        globals()[title] = type(title, (Promises, SidecarTest), {"flavour": name, "__module__": __name__})


flavours("fastapi-psycopg-async", "fastapi-psycopg", "fastapi-asyncpg", "fastapi-sqlalchemy", "fastapi-sqlalchemy-async",
         "flask-psycopg", "flask-autocommit", "flask-sqlalchemy")


if __name__ == "__main__":
    unittest.main()
