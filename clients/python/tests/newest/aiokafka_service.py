"""A consumer with aiokafka for the tests: python3 aiokafka_service.py BROKER TOPIC."""

import asyncio
import functools
import json
import os
import sys

import psycopg
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from consumer_actions import act
from service import URL, mortal
from stet.aiokafka import Idempotent
from stet.psycopg import AsyncPsycopg


async def execute(connection, statement, arguments):
    await connection.execute(statement, arguments)


async def pay(op, record):
    await act(op, execute, **json.loads(record.value))


async def main(broker: str, topic: str) -> None:
    poll = int(os.environ.get("STET_TEST_POLL", "300000"))
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest", max_poll_interval_ms=poll,
                                rebalance_timeout_ms=5000, session_timeout_ms=3000, heartbeat_interval_ms=500)
    async with AIOKafkaProducer(bootstrap_servers=broker) as producer, consumer:
        async def dead(record, reason):
            await producer.send_and_wait(f"{topic}-dead", record.value, headers=[("reason", reason.encode())])

        database = mortal(AsyncPsycopg(functools.partial(psycopg.AsyncConnection.connect, URL)))
        await Idempotent(database, scope="payments", dead=dead, delay=0.2, tries=3).run(consumer, pay)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
