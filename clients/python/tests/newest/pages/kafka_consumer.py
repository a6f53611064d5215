"""Payments from Kafka.

    DATABASE_URL=postgres://shop@localhost/shop python3 kafka_consumer.py
"""

import asyncio
import functools
import json
import os

import psycopg
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from stet.aiokafka import Idempotent
from stet.psycopg import AsyncPsycopg

BROKERS = os.environ.get("KAFKA", "localhost:9092")
connect = functools.partial(psycopg.AsyncConnection.connect, os.environ["DATABASE_URL"])


async def pay(op, record):
    await op.transaction.execute("INSERT INTO payments (amount) VALUES (%s)", [json.loads(record.value)["amount"]])


async def main():
    consumer = AIOKafkaConsumer("payments", bootstrap_servers=BROKERS, group_id="payments", enable_auto_commit=False, auto_offset_reset="earliest")
    async with AIOKafkaProducer(bootstrap_servers=BROKERS) as producer, consumer:
        async def dead(record, reason):
            await producer.send_and_wait("payments-dead", record.value, key=record.key, headers=[*record.headers, ("reason", reason.encode())])

        idempotent = Idempotent(AsyncPsycopg(connect), scope="payments", dead=dead)
        await idempotent.run(consumer, pay)


if __name__ == "__main__":
    asyncio.run(main())
