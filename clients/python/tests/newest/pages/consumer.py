"""Payments from RabbitMQ.

    DATABASE_URL=postgres://shop@localhost/shop python3 consumer.py
"""

import functools
import json
import os

import pika
import psycopg
from stet.pika import Idempotent
from stet.psycopg import Psycopg

idempotent = Idempotent(Psycopg(functools.partial(psycopg.connect, os.environ["DATABASE_URL"])), scope="payments")


@idempotent
def pay(op, properties, body):
    op.transaction.execute("INSERT INTO payments (amount) VALUES (%s)", [json.loads(body)["amount"]])


channel = pika.BlockingConnection(pika.URLParameters(os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"))).channel()
channel.queue_declare("payments", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 20})
channel.basic_consume("payments", pay)
channel.start_consuming()
