"""The namespace changes while processes with the old and the new name run. See docs/keys.md."""

from __future__ import annotations

import concurrent.futures
import time
import unittest
from typing import Any

import stet
from support import Ledger, Service, database_url
from test_operations import kinds

STEPS: list[dict[str, Any]] = [
    {"namespace": "v1"},
    {"namespace": "v2", "previous": "v1", "claim_previous": True},
    {"namespace": "v2", "previous": "v1"},
    {"namespace": "v2"},
]
NEIGHBOURS = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]


class Names(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)

    async def test_outcome_is_valid_in_each_neighbouring_step(self) -> None:
        amount = 7000
        for kind in await kinds(self):
            for first, second in [*NEIGHBOURS, (0, 2)]:
                amount += 1
                key = f"step {first} then {second}"
                with self.subTest(f"{kind.name}, {key}"):
                    async with kind.block(key, **STEPS[first]) as op:
                        await kind.insert(amount)
                        op.result = {"payment": amount}
                    async with kind.block(key, **STEPS[second]) as op:
                        self.assertEqual((op.replayed, op.result), (True, {"payment": amount}))
                    with self.assertRaises(stet.OperationError) as raised:
                        async with kind.block(key, payload="another", **STEPS[second]):
                            self.fail("another request ran")
                    self.assertEqual(raised.exception.problem, "mismatch")
                    self.assertEqual(self.ledger.paid(amount), 1)

    async def test_transaction_with_one_name_excludes_the_other_name(self) -> None:
        one, other = [kind for kind in await kinds(self) if kind.name in ("psycopg", "psycopg-async")]
        other.name = one.name  # the same keys
        for first, second in NEIGHBOURS:
            key = f"while step {first} runs, step {second}"
            async with one.block(key, **STEPS[first]) as op:
                with self.assertRaises(stet.OperationError) as raised:
                    async with other.block(key, **STEPS[second]):
                        self.fail(f"{key} ran")
                self.assertEqual(raised.exception.problem, "in-flight", key)
                op.result = "first"
            async with other.block(key, **STEPS[second]) as op:
                self.assertTrue(op.replayed, key)

    async def test_rolled_back_operation_runs_under_the_other_name(self) -> None:
        (kind,) = [kind for kind in await kinds(self) if kind.name == "psycopg"]
        for first, second in NEIGHBOURS:
            with self.assertRaises(ZeroDivisionError):
                async with kind.block(f"rollback {first} {second}", **STEPS[first]):
                    raise ZeroDivisionError
            async with kind.block(f"rollback {first} {second}", **STEPS[second]) as op:
                self.assertFalse(op.replayed)

    async def test_wrong_previous_names_are_refused(self) -> None:
        for options in ({"namespace": "v2", "previous": "v2"}, {"previous": ""}, {"namespace": "v2", "claim_previous": True}):
            with self.assertRaisesRegex(ValueError, "the option previous"):
                stet.Options(**options)


class Deployments(unittest.TestCase):
    """Two services, of which one has the old name."""

    def test_concurrent_requests_to_both_pay_once(self) -> None:
        ledger = Ledger()
        self.addCleanup(ledger.close)
        for n, settings in enumerate(({"STET_TEST_NAMESPACE": "v1"}, {"STET_TEST_NAMESPACE": "v2", "STET_TEST_PREVIOUS": "v1"})):
            new = {"STET_TEST_NAMESPACE": "v2", "STET_TEST_PREVIOUS": "v1", "STET_TEST_CLAIM_PREVIOUS": "yes"}
            services = [Service("fastapi-psycopg", **settings), Service("fastapi-asyncpg", **new)]
            for service in services:
                self.addCleanup(service.end)

            def pay(i: int) -> Any:
                key, amount = f"deployment-{n}-{i // 8}", 8000 + 100 * n + i // 8
                while (got := services[i % 2].pay(key, amount)).status == 409:
                    time.sleep(0.01)
                self.assertEqual(got.status, 201, got)
                return i // 8, got.same()

            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(pay, range(32)))
            self.assertEqual(len({repr(answer) for answer in answers}), 4, "each retry has the first answer")
            self.assertEqual([ledger.paid(8000 + 100 * n + i) for i in range(4)], [1] * 4)


if __name__ == "__main__":
    unittest.main()
