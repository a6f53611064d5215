"""Consumers with aiokafka over a real Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

import consumer_cases
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic


class Aiokafka(consumer_cases.Consumer):
    service = "aiokafka_service"

    def broker(self) -> str:
        if not os.environ.get("STET_TEST_KAFKA"):
            raise RuntimeError("STET_TEST_KAFKA is not set: run these tests by: go test ./clients/python")
        return os.environ["STET_TEST_KAFKA"]

    def using(self, kind: type[Any], use: Callable[[Any], Awaitable[Any]]) -> Any:
        """Calls use with a client."""

        async def run() -> Any:
            client = kind(bootstrap_servers=self.broker())
            await client.start()
            try:
                return await use(client)
            finally:
                await (client.close() if hasattr(client, "close") else client.stop())

        return asyncio.run(run())

    def setUp(self) -> None:
        super().setUp()
        names = (self.queue, f"{self.queue}-dead")
        self.using(AIOKafkaAdminClient, lambda admin: admin.create_topics([NewTopic(name, 1, 1) for name in names]))

    def send(self, do: str = "", key: bool = True) -> None:
        body = json.dumps({"amount": self.amount, "do": do}).encode()
        headers = [("message-id", self.id.encode())] if key else []
        self.using(AIOKafkaProducer, lambda producer: producer.send_and_wait(self.queue, body, headers=headers))

    def rejected(self) -> int:
        partition = TopicPartition(f"{self.queue}-dead", 0)
        return int(self.using(AIOKafkaConsumer, lambda consumer: consumer.end_offsets([partition]))[partition])

    def test_a_record_that_runs_longer_than_the_poll_interval_runs_once(self) -> None:
        self.start(STET_TEST_POLL="1000")
        self.ledger.hold()
        try:
            self.send("wait")
            self.ledger.until_waiting()
            self.start()
            self.until_logged(b"in-flight")  # the record is the other consumer's
        finally:
            self.ledger.let_go()
        self.drained()
        self.assertEqual(self.ledger.paid(self.amount), 1)

    def test_a_record_that_always_fails_is_a_dead_letter(self) -> None:
        self.start()
        self.send("always")
        self.drained(1)
        self.assertEqual(self.ledger.paid(self.amount), 0)


if __name__ == "__main__":
    unittest.main()
