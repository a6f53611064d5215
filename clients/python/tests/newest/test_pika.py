"""Consumers with pika over a real RabbitMQ."""

from __future__ import annotations

import json
import os
import unittest

import consumer_cases
import pika


class Pika(consumer_cases.Consumer):
    service = "pika_service"

    def broker(self) -> str:
        if not os.environ.get("STET_TEST_BROKER"):
            raise RuntimeError("STET_TEST_BROKER is not set: run these tests by: go test ./clients/python")
        return os.environ["STET_TEST_BROKER"]

    def setUp(self) -> None:
        super().setUp()
        connection = pika.BlockingConnection(pika.URLParameters(self.broker()))
        self.addCleanup(connection.close)
        self.channel = connection.channel()
        self.channel.queue_declare(f"{self.queue}-dead")
        self.channel.queue_declare(self.queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{self.queue}-dead"})

    def send(self, do: str = "", key: bool = True) -> None:
        body = json.dumps({"amount": self.amount, "do": do}).encode()
        self.channel.basic_publish("", self.queue, body, pika.BasicProperties(message_id=self.id if key else None))

    def rejected(self) -> int:
        return int(self.channel.queue_declare(f"{self.queue}-dead", passive=True).method.message_count)

    def test_a_duplicate_of_a_running_message_comes_again(self) -> None:
        self.start()
        self.ledger.hold()
        try:
            self.send("wait")
            self.ledger.until_waiting()
            self.start()
            self.send("wait")
            self.until_logged(b"in-flight")
        finally:
            self.ledger.let_go()
        self.drained()
        self.assertEqual(self.ledger.paid(self.amount), 1)


if __name__ == "__main__":
    unittest.main()
