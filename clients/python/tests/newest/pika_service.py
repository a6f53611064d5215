"""A consumer with pika for the tests: python3 pika_service.py QUEUE."""

import functools
import json
import sys

import pika
import psycopg
import stet
from service import INSERT, URL, mortal
from stet.pika import Idempotent
from stet.psycopg import Psycopg

idempotent = Idempotent(mortal(Psycopg(functools.partial(psycopg.connect, URL))), scope="payments", delay=0.2)
failed = set()


@idempotent
def pay(op, properties, body):
    order = json.loads(body)
    op.transaction.execute(INSERT.format("%s"), [order["amount"]])
    if order["do"] == "wait":
        op.transaction.execute("SELECT 1 FROM pg_advisory_xact_lock(4711)")
    if order["do"] == "refuse":
        raise stet.Refusal("no such card")
    if order["do"] == "later" and order["amount"] not in failed:
        failed.add(order["amount"])
        raise RuntimeError("broke off")
    if order["do"] == "large":
        op.result = "x" * (1 << 21)


def main(broker: str, queue: str) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(broker)).channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, pay)
    channel.start_consuming()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
