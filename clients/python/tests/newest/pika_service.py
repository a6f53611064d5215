"""A consumer with pika for the tests: python3 pika_service.py QUEUE."""

import json
import sys

import pika
from consumer_actions import act, connect
from service import mortal
from stet.pika import Idempotent
from stet.psycopg import Psycopg
from stet.threads import call

idempotent = Idempotent(mortal(Psycopg(connect)), scope="payments", delay=0.2)


async def execute(connection, statement, arguments):
    connection.execute(statement, arguments)


@idempotent
def pay(op, properties, body):
    call(act(op, execute, **json.loads(body)))


def main(broker: str, queue: str) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(broker)).channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, pay)
    channel.start_consuming()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
