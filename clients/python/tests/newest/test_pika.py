"""Consumers with pika over a real RabbitMQ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unittest
import uuid

import pika
from support import HERE, PATIENCE, Ledger, database_url


class Consumers(unittest.TestCase):
    amounts = 95_000

    def setUp(self) -> None:
        if not os.environ.get("STET_TEST_BROKER"):
            raise RuntimeError("STET_TEST_BROKER is not set: run these tests by: go test ./clients/python")
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        Consumers.amounts += 1
        self.amount, self.id = Consumers.amounts, str(uuid.uuid4())
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["STET_TEST_BROKER"]))
        self.addCleanup(connection.close)
        self.channel = connection.channel()
        self.queue, self.dead = f"pika-{self.id}", f"pika-dead-{self.id}"
        self.channel.queue_declare(self.dead)
        self.channel.queue_declare(self.queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.dead})

    def start(self, **settings: str) -> subprocess.Popen[bytes]:
        program = os.path.join(HERE, "newest", "pika_service.py")
        env = {**os.environ, "STET_TEST_SERVICE_URL": database_url("shop"), **settings}
        consumer = subprocess.Popen([sys.executable, program, os.environ["STET_TEST_BROKER"], self.queue], env=env)
        self.addCleanup(self.end, consumer)
        return consumer

    def end(self, consumer: subprocess.Popen[bytes]) -> None:
        consumer.kill()
        consumer.wait()

    def send(self, do: str = "", amount: int = 0, **properties: str) -> None:
        body = json.dumps({"amount": amount or self.amount, "do": do}).encode()
        self.channel.basic_publish("", self.queue, body, pika.BasicProperties(**(properties or {"message_id": self.id})))

    def messages(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def drained(self, dead: int) -> None:
        """Waits until a consumer has taken and ended every message, and so many were rejected."""
        marker = self.amount + 1_000_000
        self.send(amount=marker, message_id=f"{self.id}-marker")
        self.ledger.until(f"SELECT count(*)::int FROM payments WHERE amount = {marker}", 1)
        end = time.monotonic() + PATIENCE
        while self.messages(self.dead) != dead:
            self.assertLess(time.monotonic(), end, f"{self.messages(self.dead)} messages were rejected; want {dead}")
            time.sleep(0.02)

    def test_a_message_that_comes_twice_is_executed_once(self) -> None:
        self.start()
        for do in ("", "large"):
            self.id = str(uuid.uuid4())
            for _ in range(2):
                self.send(do)
            self.drained(0)
            self.assertEqual(self.ledger.paid(self.amount), 1, do)
            self.amount += 1000

    def test_a_refusal_another_body_and_a_message_without_a_key_are_rejected(self) -> None:
        self.start()
        self.send("refuse")
        self.send("refuse")
        self.drained(2)
        self.assertEqual(self.ledger.paid(self.amount), 0)
        self.send("other body")
        self.send(content_type="text/plain")
        self.send(amount=self.amount + 500, message_id="after")
        self.ledger.until(f"SELECT count(*)::int FROM payments WHERE amount = {self.amount + 500}", 1)
        self.assertEqual((self.messages(self.dead), self.ledger.paid(self.amount)), (4, 0))

    def test_an_error_undoes_the_writes_and_the_message_comes_again(self) -> None:
        self.start()
        self.send("later")
        self.ledger.until(f"SELECT count(*)::int FROM payments WHERE amount = {self.amount}", 1)
        self.drained(0)
        self.assertEqual(self.ledger.paid(self.amount), 1)

    def test_a_duplicate_of_a_running_message_comes_again(self) -> None:
        self.start()
        self.start()
        self.ledger.hold()
        try:
            self.send("wait")
            self.ledger.until_waiting()
            self.send("wait")
            time.sleep(0.5)
        finally:
            self.ledger.let_go()
        self.drained(0)
        self.assertEqual(self.ledger.paid(self.amount), 1)

    def test_a_consumer_that_is_killed_at_its_commit_leaves_one_payment(self) -> None:
        for dies in ("before", "after"):
            self.amount, self.id = self.amount + 1000, str(uuid.uuid4())
            killed = self.start(STET_TEST_DIES=dies)
            self.send()
            killed.wait(PATIENCE)
            self.assertEqual(self.ledger.paid(self.amount), 1 if dies == "after" else 0)
            again = self.start()
            self.drained(0)
            self.end(again)
            self.assertEqual(self.ledger.paid(self.amount), 1)


if __name__ == "__main__":
    unittest.main()
