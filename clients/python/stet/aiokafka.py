"""Consumers of Kafka with aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.errors import KafkaError  # type: ignore[import-untyped]

from .handle import log
from .messages import AGAIN, DONE, REJECTED, ending
from .operations import AsyncOperation, operation

Callback = Callable[[AsyncOperation, Any], Awaitable[Any]]
Dead = Callable[[Any, str], Awaitable[Any]]


class Idempotent:
    """Makes consumers of Kafka idempotent: their writes are committed once, and then the offset is committed.

        idempotent = Idempotent(AsyncPsycopg(connect), scope="payments", dead=dead)

        async def pay(op, record):
            await op.transaction.execute("INSERT ...")

        await idempotent.run(consumer, pay)

    database is one of AsyncPsycopg, Asyncpg or AsyncSQLAlchemy. scope is a name for the records of these consumers. dead is an async function of a record and a
    reason, which stores a record that never runs again, in a topic for dead letters; the offset is committed after it. key is a function of the record that
    returns its key; by default it is the header message-id. Options are those of stet.operation.

    | the callback | the record |
    |---|---|
    | returns, or has run before | is done |
    | raises Refusal, now or before; or the key was used for another value; or there is no key | is passed to dead |
    | has raised another exception tries times in this process (default 20) | is passed to dead |
    | raises another exception, or runs in another consumer now, or the database is not available | is received again after delay seconds (default 1) |

    A record that waits delays the records behind it in its partition, and no other partition. max_poll_interval_ms of the consumer bounds the run of a batch
    (default 20 records). After that another consumer receives its records, and waits for their outcomes.
    """

    def __init__(self, database: Any, scope: str, dead: Dead, key: Callable[[Any], str | None] | None = None, **options: Any) -> None:
        if database.blocking:
            raise TypeError("stet: aiokafka needs a database for asyncio: AsyncPsycopg, Asyncpg or AsyncSQLAlchemy")
        self._database, self._scope, self._dead, self._key = database, scope, dead, key or _message_id
        self._delay, self._tries, self._batch = (options.pop(name, default) for name, default in (("delay", 1.0), ("tries", 20), ("batch", 20)))
        self._options = options
        self._failed: dict[Any, tuple[int, int]] = {}

    async def run(self, consumer: Any, callback: Callback) -> None:
        """Receives records until the task is cancelled. The consumer is an AIOKafkaConsumer with a group_id and enable_auto_commit=False."""
        if getattr(consumer, "_enable_auto_commit", False):
            raise ValueError("stet: the consumer would commit offsets of records that have not run: make it with enable_auto_commit=False")
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=1000, max_records=self._batch)).items():
                await self._records(consumer, callback, partition, records)

    async def _records(self, consumer: Any, callback: Callback, partition: Any, records: list[Any]) -> None:
        done: int | None = None
        try:
            for record in records:
                if await self._record(callback, partition, record) == AGAIN:
                    consumer.seek(partition, record.offset)
                    consumer.pause(partition)
                    asyncio.get_running_loop().call_later(self._delay, _resume, consumer, partition)
                    break
                done = record.offset + 1
            if done is not None:
                await consumer.commit({partition: done})
        except KafkaError as error:  # such as a partition that another consumer has now
            log.error("offsets were not committed, and records will be received again: %s", type(error).__name__)

    async def _record(self, callback: Callback, partition: Any, record: Any) -> str:
        reason, end = "a record without a key", REJECTED
        try:
            if key := self._key(record):
                async with operation(self._database, scope=self._scope, key=key, payload=record.value or b"", name=record.topic, **self._options) as op:
                    if not op.replayed:
                        await callback(op, record)
                return DONE
        except Exception as error:
            reason, end = str(error), ending(error)
            if end == AGAIN and not hasattr(error, "retryable") and self._failures(partition, record.offset) >= self._tries:
                end = REJECTED
        if end == REJECTED:
            log.error("a record of %s becomes a dead letter", record.topic)
            try:
                await self._dead(record, reason)
            except Exception as error:
                log.error("a dead letter was not stored, and is tried again: %s", type(error).__name__)
                return AGAIN
        return end

    def _failures(self, partition: Any, offset: int) -> int:
        """Counts an exception of a record."""
        last, n = self._failed.get(partition, (offset, 0))
        self._failed[partition] = (offset, n + 1 if last == offset else 1)
        return self._failed[partition][1]


def _message_id(record: Any) -> str | None:
    return next((value.decode() for name, value in record.headers if name == "message-id" and value), None)


def _resume(consumer: Any, partition: Any) -> None:
    if partition in consumer.assignment():
        consumer.resume(partition)
