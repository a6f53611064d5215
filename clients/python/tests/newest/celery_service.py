"""Tasks of Celery for the tests: celery -A celery_service worker. The broker is STET_TEST_BROKER."""

import functools
import os

import psycopg
import stet
from celery import Celery
from service import INSERT, URL, mortal
from stet.celery import Idempotent
from stet.psycopg import Psycopg

app = Celery("payments", broker=os.environ["STET_TEST_BROKER"], backend="rpc://")
app.conf.update(worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True, task_default_queue=os.environ.get("STET_TEST_QUEUE", "celery"))
idempotent = Idempotent(mortal(Psycopg(functools.partial(psycopg.connect, URL))), countdown=0.2)


class Later(Exception):
    """An error that a retry does not meet."""


@app.task(bind=True, acks_late=True, autoretry_for=(Later,), default_retry_delay=0, max_retries=2)
@idempotent
def pay(self, amount, do=""):
    payment = idempotent.transaction.execute(INSERT.format("%s"), [amount]).fetchone()[0]
    if do == "wait":
        idempotent.transaction.execute("SELECT 1 FROM pg_advisory_xact_lock(4711)")
    if do == "raise":
        raise RuntimeError("broke off")
    if do == "later" and not self.request.retries:
        raise Later
    if do == "refuse":
        raise stet.Refusal({"reason": "no such card"})
    if do == "nothing":
        return None
    if do == "emit":
        idempotent.emit("payments", {"paid": amount})
    return {"payment": payment, "amount": amount}
