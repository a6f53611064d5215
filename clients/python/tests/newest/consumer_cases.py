"""The cases of all consumers of messages."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

from support import HERE, PATIENCE, Ledger, database_url


class Consumer(unittest.TestCase):
    """The cases. A subclass says how a message is sent. Import the module, or the loader of unittest runs this class."""

    amounts = 95_000
    service = ""
    """The module of the consumer."""

    def broker(self) -> str:
        raise NotImplementedError

    def send(self, do: str = "", key: bool = True) -> None:
        """Sends a message with the id and the amount of the test."""
        raise NotImplementedError

    def rejected(self) -> int:
        """How many messages were rejected."""
        raise NotImplementedError

    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        self.queue = f"{self.service}-{uuid.uuid4()}"
        self.next()

    def next(self) -> None:
        """Another message."""
        Consumer.amounts += 10
        self.amount, self.id = Consumer.amounts, str(uuid.uuid4())

    def command(self) -> list[str]:
        return [os.path.join(HERE, "newest", f"{self.service}.py"), self.broker(), self.queue]

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        env = {**os.environ, "STET_TEST_SERVICE_URL": database_url("shop"), **settings}
        self.log = tempfile.TemporaryFile("w+b")  # of the consumer that was started last
        self.addCleanup(self.log.close)
        consumer = subprocess.Popen([sys.executable, *self.command()], cwd=HERE, env=env, stderr=self.log)
        self.addCleanup(self.end, consumer)
        return consumer

    def end(self, consumer: subprocess.Popen[bytes]) -> None:
        consumer.kill()
        consumer.wait()

    def until_logged(self, text: bytes) -> None:
        """Waits until the consumer that was started last has logged text."""
        end, said = time.monotonic() + PATIENCE, b""
        while text not in said:
            self.assertLess(time.monotonic(), end, f"{text!r} is not in the log: {said[-2000:]!r}")
            time.sleep(0.02)
            self.log.seek(0)
            said = self.log.read()

    def until_paid(self, amount: int) -> None:
        self.ledger.until(f"SELECT count(*)::int FROM payments WHERE amount = {amount}", 1)

    def drained(self, rejected: int = 0) -> None:
        """Waits until a consumer has ended every message, and so many were rejected."""
        amount, id_ = self.amount, self.id
        self.next()
        self.send()
        self.until_paid(self.amount)
        self.amount, self.id = amount, id_
        end = time.monotonic() + PATIENCE
        while self.rejected() != rejected:
            self.assertLess(time.monotonic(), end, f"{self.rejected()} messages were rejected; want {rejected}")
            time.sleep(0.02)

    def test_a_message_that_comes_twice_is_executed_once(self) -> None:
        self.start()
        for do, more in (("", 0), ("large", 0), ("late", 0), ("second", 0), ("nested", 1), ("later", 0), ("timeout", 0)):
            self.next()
            self.send(do)
            self.until_paid(self.amount)
            self.send(do)
            self.drained()
            self.assertEqual((self.ledger.paid(self.amount), self.ledger.paid(self.amount + 1)), (1, more), do)

    def test_a_refusal_another_body_and_a_message_without_a_key_are_rejected(self) -> None:
        self.start()
        self.send("refuse")
        self.send("refuse")
        self.drained(2)
        self.send("other body")
        self.send("", key=False)
        self.drained(4)
        self.assertEqual(self.ledger.paid(self.amount), 0)

    def test_a_consumer_that_is_killed_leaves_one_payment(self) -> None:
        for dies in ("before", "after", "wait"):
            self.next()
            killed = self.start(STET_TEST_DIES=dies if dies != "wait" else "")
            self.ledger.hold()
            try:
                self.send(dies if dies == "wait" else "")
                if dies == "wait":
                    self.ledger.until_waiting()
                    killed.kill()
                killed.wait(PATIENCE)
            finally:
                self.ledger.let_go()
            self.assertEqual(self.ledger.paid(self.amount), 1 if dies == "after" else 0)
            again = self.start()
            self.drained()
            self.end(again)
            self.assertEqual(self.ledger.paid(self.amount), 1)
