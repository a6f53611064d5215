"""Consumers of RabbitMQ with pika."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .handle import log
from .messages import DONE, REJECTED, ending
from .operations import Operation, operation


class Idempotent:
    """Makes callbacks of basic_consume idempotent: their writes are committed once, and then the message is acknowledged.

        idempotent = Idempotent(Psycopg(pool.connection), scope="payments")

        @idempotent
        def pay(op, properties, body):
            op.transaction.execute("INSERT ...")

        channel.basic_consume("payments", pay)

    database is one of Psycopg, SQLAlchemy or stet.django.Django. scope is a name for the messages of these consumers. key is a function of properties and body that returns the key; by
    default it is the property message_id. Without a key a message is rejected. Options are those of stet.operation.

    | the callback | the message |
    |---|---|
    | returns, or has run before | is acknowledged |
    | raises Refusal, now or before; or the key was used for another body | is rejected: to the dead-letter exchange, if there is one |
    | raises another exception, or runs in another consumer now, or the database is not available | is requeued after delay seconds (default 1) |

    Set a delivery limit on the queue: it bounds how often a message is requeued. The channel belongs to a BlockingConnection, without auto_ack.
    """

    def __init__(self, database: Any, scope: str, key: Callable[[Any, bytes], str | None] | None = None, delay: float = 1.0, **options: Any) -> None:
        self._database, self._scope, self._delay, self._options = database, scope, delay, options
        self._key = key or (lambda properties, body: properties.message_id)

    def __call__(self, callback: Callable[[Operation, Any, bytes], Any]) -> Callable[[Any, Any, Any, bytes], None]:
        """The decorator. The callback receives the operation, the properties and the body."""

        @functools.wraps(callback)
        def consume(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            end = REJECTED
            try:
                key = self._key(properties, body)
                if key:
                    with operation(self._database, scope=self._scope, key=key, payload=body, name=f"{method.exchange} {method.routing_key}", **self._options) as op:
                        if not op.replayed:
                            callback(op, properties, body)
                    end = DONE
                else:
                    log.error("a message without a key was rejected; publish it with message_id, or set the option key")
            except Exception as error:
                end = ending(error)
            if end == DONE:
                _end(channel, channel.basic_ack, method.delivery_tag)
            elif end == REJECTED:
                _end(channel, channel.basic_nack, method.delivery_tag, requeue=False)
            else:
                channel.connection.call_later(self._delay, functools.partial(_end, channel, channel.basic_nack, method.delivery_tag, requeue=True))

        return consume


def _end(channel: Any, end: Callable[..., Any], tag: int, **more: Any) -> None:
    if channel.is_open:  # or the broker delivers the message again
        end(tag, **more)
