"""Libraries that protect functions. Each function here returns call(path, key, account, body), whose errors become the status that a service would send."""

import json
import os

from pay import LEASE, URL, packed, pay, unpacked

BUSY, MISMATCH, UNKNOWN = (409, {}, b"in flight"), (422, {}, b"another request"), (504, {}, b"unknown")


def stet_agents():
    import psycopg
    import stet.agents
    from contextlib import contextmanager
    from stet.psycopg import Psycopg

    @contextmanager
    def connect():
        with psycopg.connect(URL) as connection:
            yield connection

    tools = {path: stet.agents.Tools(Psycopg(connect), scope=lambda: "agents") for path in ("/payments", "/refunds")}

    def tool(path):
        used = tools[path]

        @used(name=path, key=lambda key, account, request: json.dumps([account, key]))
        def run(key, account, request):
            return packed(pay(key, account, request, lambda sql, arguments: used.transaction.execute(sql, arguments).fetchone()))

        return run

    runs = {path: tool(path) for path in tools}

    def call(path, key, account, body):
        try:
            return unpacked(runs[path](key, account, body.decode()))
        except stet.agents.CallRefused as error:
            return {"mismatch": MISMATCH, "in-flight": BUSY}.get(error.problem, (503 if error.retryable else 500, {}, str(error).encode()))

    return call


def powertools_python():
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency import exceptions as e
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import RedisCachePersistenceLayer
    from urllib.parse import urlsplit

    redis = urlsplit(os.environ["REDIS_URL"])
    store = RedisCachePersistenceLayer(host=redis.hostname, port=redis.port, ssl=False)
    config = IdempotencyConfig(event_key_jmespath="[path, account, key]")

    class Context:  # as Lambda's, whose time ends with the lease
        @staticmethod
        def get_remaining_time_in_millis():
            return int(LEASE * 1000)

    config.register_lambda_context(Context())

    @idempotent_function(data_keyword_argument="order", persistence_store=store, config=config)
    def run(order):
        return packed(pay(order["key"], order["account"], order["request"]))

    def call(path, key, account, body):
        try:
            return unpacked(run(order={"path": path, "key": key, "account": account, "request": body.decode()}))
        except e.IdempotencyAlreadyInProgressError:
            return BUSY
        except e.IdempotencyValidationError:
            return MISMATCH

    return call


def exactly_once():
    from exactly_once import Store, once
    from exactly_once.errors import KeyReuseError, QuarantinedError

    @once(Store.redis(os.environ["REDIS_URL"]), key=lambda path, key, account, request: json.dumps([path, account, key]), fingerprint=lambda path, key, account, request: request, lease_ttl=LEASE)
    def run(path, key, account, request):
        return packed(pay(key, account, request))

    def call(path, key, account, body):
        try:
            return unpacked(run(path, key, account, body.decode()))
        except KeyReuseError:
            return MISMATCH
        except QuarantinedError:  # in flight, or its process has died
            return UNKNOWN

    return call


def agent_once():
    from once import EffectError, EffectPending, KeyConflict, Once
    from once.postgres import PostgresStore

    once = Once(store=PostgresStore(URL), wait=0.2, stale_after=LEASE)

    def run(account, request, idempotency_key=None):
        return packed(pay(json.loads(idempotency_key)[2], account, request))

    def call(path, key, account, body):
        try:
            return unpacked(once.execute(run, key=json.dumps([path, account, key]), tool_name=path, account=account, request=body.decode()))
        except KeyConflict:
            return MISMATCH
        except EffectPending:
            return BUSY
        except EffectError:
            return UNKNOWN

    return call


def agent_outbox():
    from agent_outbox import OutboxStore, ToolExecutor

    executor = ToolExecutor(OutboxStore(os.path.join(os.environ["FILES"], "outbox.db")), wait_timeout=LEASE * 1.5, lease_seconds=LEASE)

    def run(key, account, request):
        return packed(pay(key, account, request))

    def call(path, key, account, body):
        done = executor.run(path, run, {"key": key, "account": account, "request": body.decode()}, session_id=json.dumps([account, key]))
        if done.ok:
            return unpacked(done.result)
        return BUSY if "pending" in done.error else (500, {}, done.error.encode())

    return call


def idempotent_tools():
    from idempotent_tools import idempotent
    from idempotent_tools.backends.redis_backend import RedisBackend
    from idempotent_tools.errors import DuplicateInFlightError

    @idempotent(backend=RedisBackend(os.environ["REDIS_URL"]))
    def run(key, account, request):
        return packed(pay(key, account, request))

    def call(path, key, account, body):
        try:
            return unpacked(run(key, account, body.decode(), idempotency_key=json.dumps([path, account, key])))
        except DuplicateInFlightError:
            return BUSY

    return call
