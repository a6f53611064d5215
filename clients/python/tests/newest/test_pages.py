"""The programs of docs/python.md run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import unittest
import uuid
from typing import Any
from urllib.parse import urlsplit

import psycopg
from sqlalchemy import create_engine
from stet.schema import Migrations
from support import HERE, PATIENCE, Ledger, Process, database_url

PAGES = os.path.join(HERE, "newest", "pages")


class Pages(unittest.TestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)

    def test_pay_pays_an_order_once(self) -> None:
        env = {**os.environ, "DATABASE_URL": database_url("shop")}
        said = [subprocess.run([sys.executable, os.path.join(PAGES, "pay.py"), "order-1", "66001"], env=env, capture_output=True, check=True, text=True).stdout for _ in range(2)]
        self.assertEqual((said[0].split()[0], said[1].split()[0], said[1].split()[1:]), ("paid", "replayed", said[0].split()[1:]))
        self.assertEqual(self.ledger.paid(66001), 1)

    def test_the_shop_in_django_pays_once(self) -> None:
        parts = urlsplit(database_url("shop"))
        env = {**os.environ, "PGUSER": "shop", "PGDATABASE": parts.path[1:], "PGHOST": parts.hostname or "", "PGPORT": str(parts.port), "PORT": "0"}
        shop = Process("shop.py", [sys.executable, os.path.join(PAGES, "shop.py")], env)
        self.addCleanup(shop.end)
        first, again = shop.pay("django-page", 66002), shop.pay("django-page", 66002)
        self.assertEqual((first.status, again.same(), again.replayed, self.ledger.paid(66002)), (201, first.same(), True, 1))

    def test_the_task_of_celery_pays_once(self) -> None:
        os.environ.update(DATABASE_URL=database_url("shop"), AMQP_URL=os.environ["STET_TEST_BROKER"])
        sys.path.insert(0, PAGES)
        import tasks  # type: ignore[import-not-found]

        worker = subprocess.Popen([sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "error"], cwd=PAGES)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        id_ = str(uuid.uuid4())
        got: list[Any] = []
        for _ in range(2):
            sent = tasks.pay.apply_async((66003,), task_id=id_)
            got.append(sent.get(timeout=PATIENCE))
            sent.forget()
        self.assertEqual((got[0]["amount"], got[1], self.ledger.paid(66003)), (66003, got[0], 1))

    def test_the_consumer_of_rabbitmq_pays_once(self) -> None:
        import pika

        env = {**os.environ, "DATABASE_URL": database_url("shop"), "AMQP_URL": os.environ["STET_TEST_BROKER"]}
        consumer = subprocess.Popen([sys.executable, os.path.join(PAGES, "consumer.py")], env=env)
        self.addCleanup(consumer.wait)
        self.addCleanup(consumer.kill)
        connection = pika.BlockingConnection(pika.URLParameters(os.environ["STET_TEST_BROKER"]))
        self.addCleanup(connection.close)
        channel = connection.channel()
        channel.queue_declare("payments", durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 20})
        for amount, id_ in ((66004, "page"), (66004, "page"), (66005, "page-2")):
            channel.basic_publish("", "payments", b'{"amount": %d}' % amount, pika.BasicProperties(message_id=id_))
        self.ledger.until("SELECT count(*)::int FROM payments WHERE amount = 66005", 1)
        self.assertEqual(self.ledger.paid(66004), 1)

    def test_the_consumer_of_kafka_pays_once(self) -> None:
        from aiokafka import AIOKafkaProducer
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        broker = os.environ["STET_TEST_KAFKA"]

        async def publish() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=broker)
            await admin.start()
            await admin.create_topics([NewTopic(name, 1, 1) for name in ("payments", "payments-dead")])
            await admin.close()
            async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
                for amount, id_ in ((66006, b"kafka-1"), (66006, b"kafka-1"), (66007, b"kafka-2")):
                    await producer.send_and_wait("payments", b'{"amount": %d}' % amount, headers=[("message-id", id_)])

        asyncio.run(publish())
        env = {**os.environ, "DATABASE_URL": database_url("shop"), "KAFKA": broker}
        consumer = subprocess.Popen([sys.executable, os.path.join(PAGES, "kafka_consumer.py")], env=env)
        self.addCleanup(consumer.wait)
        self.addCleanup(consumer.kill)
        self.ledger.until("SELECT count(*)::int FROM payments WHERE amount = 66007", 1)
        self.assertEqual(self.ledger.paid(66006), 1)

    def fresh(self) -> str:
        """A database without the tables."""
        name = f"fresh_{uuid.uuid4().hex}"
        self.ledger.connection.execute(f"CREATE DATABASE {name}")
        return urlsplit(database_url())._replace(path="/" + name).geturl()

    def version(self, url: str) -> Any:
        with psycopg.connect(url) as connection:
            return (connection.execute("SELECT max(version), has_function_privilege('shop', 'stet.stet_begin_raw(bytea, bytea, bytea, bytea, bigint, integer, integer, text, text, text, double precision)', 'EXECUTE') FROM stet.records_schema").fetchone())

    def test_the_step_for_alembic_creates_the_tables(self) -> None:
        sys.path.insert(0, PAGES)
        import alembic_step  # type: ignore[import-not-found]
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        url = self.fresh()
        for driver in ("psycopg2", "psycopg"):
            engine = create_engine(url.replace("postgres://", f"postgresql+{driver}://"))
            with engine.connect() as connection:
                context = MigrationContext.configure(connection)
                with context.begin_transaction(), Operations.context(context):
                    alembic_step.upgrade()
            engine.dispose()
            self.assertEqual(self.version(url), (len(Migrations().steps), True))

    def test_the_step_for_django_creates_the_tables(self) -> None:
        url = self.fresh()
        parts = urlsplit(url)
        program = ("import django, sys; from django.conf import settings; settings.configure(DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql', "
                   f"'NAME': '{parts.path[1:]}', 'USER': 'postgres', 'HOST': '{parts.hostname}', 'PORT': '{parts.port}'}}}}); django.setup()\n"
                   "import django_step; from django.db import connection; from django.db.migrations.state import ProjectState\n"
                   "for _ in range(2):\n    with connection.schema_editor() as editor:\n        django_step.Migration('0001', 'shop').apply(ProjectState(), editor)\n")
        env = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "") + ":" + PAGES}
        subprocess.run([sys.executable, "-c", program], env=env, check=True)
        self.assertEqual(self.version(url), (len(Migrations().steps), True))


if __name__ == "__main__":
    unittest.main()
