"""Workers of Celery over a real RabbitMQ."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unittest
import uuid
from typing import Any

from support import HERE, PATIENCE, Ledger, database_url


class Workers(unittest.TestCase):
    app: Any
    ledger: Ledger
    amounts = 90_000

    @classmethod
    def setUpClass(cls) -> None:
        if not os.environ.get("STET_TEST_BROKER"):
            raise RuntimeError("STET_TEST_BROKER is not set: run these tests by: go test ./clients/python")
        os.environ["STET_TEST_SERVICE_URL"] = database_url("shop")
        os.environ["STET_TEST_QUEUE"] = f"queue-{os.getpid()}"
        import celery_service

        cls.app, cls.ledger = celery_service, Ledger()
        cls.worker = cls.start("functions")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.end(cls.worker)
        cls.ledger.close()

    @classmethod
    def start(cls, name: str, **settings: str) -> subprocess.Popen[bytes]:
        """A worker of one process."""
        command = [sys.executable, "-m", "celery", "-A", "celery_service", "worker", "--pool", "solo", "--loglevel", "error", "--without-gossip", "--without-mingle", "-n", f"{name}-{uuid.uuid4()}"]
        return subprocess.Popen(command, cwd=HERE, env={**os.environ, **settings})

    @classmethod
    def end(cls, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()

    def amount(self) -> int:
        Workers.amounts += 1
        return Workers.amounts

    def send(self, amount: int, do: str = "", id_: str = "") -> Any:
        return self.app.pay.apply_async((amount, do), task_id=id_ or str(uuid.uuid4()))

    def twice(self, amount: int, do: str) -> list[Any]:
        """The results of a task that is published twice."""
        id_, results = str(uuid.uuid4()), []
        for _ in range(2):
            sent = self.send(amount, do, id_)
            results.append(sent.get(timeout=PATIENCE, propagate=False))
            sent.forget()
        return results

    def test_a_message_that_is_delivered_twice_is_executed_once(self) -> None:
        for do in ("", "nothing", "emit"):
            amount = self.amount()
            first, again = self.twice(amount, do)
            self.assertEqual((again, self.ledger.paid(amount)), (first, 1), do)
            self.assertEqual(first is None, do == "nothing")

    def test_an_error_undoes_the_writes_and_a_delivery_runs_again(self) -> None:
        amount = self.amount()
        first, again = self.twice(amount, "raise")
        self.assertEqual((str(first), str(again), self.ledger.paid(amount)), ("broke off", "broke off", 0))

    def test_a_retry_of_the_task_runs_again(self) -> None:
        amount = self.amount()
        self.assertEqual(self.send(amount, "later").get(timeout=PATIENCE)["amount"], amount)
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_refusal_is_stored(self) -> None:
        amount = self.amount()
        first, again = self.twice(amount, "refuse")
        self.assertEqual((type(first).__name__, str(first), str(again), self.ledger.paid(amount)), ("Refusal", str(again), str(first), 0))

    def test_other_arguments_under_the_id_are_refused(self) -> None:
        amount, id_ = self.amount(), str(uuid.uuid4())
        sent = self.send(amount, "", id_)
        sent.get(timeout=PATIENCE)
        sent.forget()
        error = self.send(amount, "nothing", id_).get(timeout=PATIENCE, propagate=False)
        self.assertIn("mismatch", str(error))
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_duplicate_of_a_running_task_waits_for_its_result(self) -> None:
        amount, id_ = self.amount(), str(uuid.uuid4())
        second = self.start("second")
        self.addCleanup(self.end, second)
        self.ledger.hold()
        try:
            sent = self.send(amount, "wait", id_)
            self.ledger.until_waiting()
            self.send(amount, "wait", id_)
            time.sleep(1)  # the second worker asks in the meantime
        finally:
            self.ledger.let_go()
        self.assertEqual(sent.get(timeout=PATIENCE)["amount"], amount)
        time.sleep(1)
        self.assertEqual(self.ledger.paid(amount), 1)

    def test_a_worker_that_is_killed_at_its_commit_leaves_one_payment(self) -> None:
        self.end(self.worker)
        try:
            for dies in ("before", "after"):
                amount = self.amount()
                killed = self.start(dies, STET_TEST_DIES=dies)
                self.addCleanup(self.end, killed)
                sent = self.send(amount)
                killed.wait(PATIENCE)
                self.assertEqual(self.ledger.paid(amount), 1 if dies == "after" else 0)
                again = self.start("again")
                try:
                    self.assertEqual(sent.get(timeout=PATIENCE)["amount"], amount)
                finally:
                    self.end(again)
                self.assertEqual(self.ledger.paid(amount), 1)
        finally:
            type(self).worker = self.start("functions")


if __name__ == "__main__":
    unittest.main()
