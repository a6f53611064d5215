"""Payments by Celery.

    DATABASE_URL=postgres://shop@localhost/shop celery -A tasks worker
"""

import functools
import os

import psycopg
from celery import Celery
from stet.celery import Idempotent
from stet.psycopg import Psycopg

app = Celery("tasks", broker=os.environ.get("AMQP_URL", "amqp://guest:guest@localhost/"), backend="rpc://")
idempotent = Idempotent(Psycopg(functools.partial(psycopg.connect, os.environ["DATABASE_URL"])))


@app.task(acks_late=True)
@idempotent
def pay(amount):
    row = idempotent.transaction.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [amount]).fetchone()
    return {"payment": row[0], "amount": amount}
