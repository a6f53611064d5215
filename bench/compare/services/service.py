"""A service in FastAPI, protected in the way of the variable WAY."""

import asyncio
import contextlib
import functools
import os
import socket

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from pay import LEASE, URL, listening, pay

WAY = os.environ["WAY"]
PATHS = ("/payments", "/refunds")
app = FastAPI()


def response(result):
    status, headers, body = result
    return Response(body, status, headers, media_type=None)


async def asked(request):
    return request.headers.get("idempotency-key"), request.headers.get("x-account"), await request.body()


def plain(app):
    """The handler, which a middleware protects."""
    async def handle(request: Request):
        return response(await asyncio.to_thread(pay, *await asked(request)))

    for path in PATHS:
        app.post(path)(handle)


def as_function(app, call):
    """The handler for libraries that protect functions: call(path, key, account, body)."""
    async def handle(request: Request):
        return response(await asyncio.to_thread(call, request.url.path, *await asked(request)))

    for path in PATHS:
        app.post(path)(handle)


def stet_fastapi():
    from psycopg import AsyncConnection
    from stet.asgi import Idempotent
    from stet.psycopg import AsyncPsycopg

    idempotent = Idempotent(AsyncPsycopg(functools.partial(AsyncConnection.connect, URL)), scope=lambda request: request.headers.get("x-account"))
    app.add_middleware(idempotent.middleware)

    async def handle(request: Request, tx: AsyncConnection = Depends(idempotent.transaction)):
        loop = asyncio.get_running_loop()

        async def execute(sql, arguments):
            return await (await tx.execute(sql, arguments)).fetchone()

        def wait(sql, arguments):
            return asyncio.run_coroutine_threadsafe(execute(sql, arguments), loop).result()

        return response(await asyncio.to_thread(pay, *await asked(request), wait))

    for path in PATHS:
        app.post(path)(idempotent(handle))


def asgi_idempotency_header():
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends.redis import RedisBackend
    from redis.asyncio import Redis

    app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(Redis.from_url(os.environ["REDIS_URL"])))
    plain(app)


def fastapi_idempotency():
    from fastapi_idempotency import IdempotencyMiddleware
    from fastapi_idempotency.stores.tortoise import TortoiseStore
    from tortoise import Tortoise
    from tortoise.contrib.fastapi import RegisterTortoise

    url = "asyncpg://" + URL.split("://")[1].split("?")[0]

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with RegisterTortoise(app, db_url=url, modules={"models": ["fastapi_idempotency.stores.tortoise"]}, generate_schemas=True):
            yield

    app.router.lifespan_context = lifespan
    app.add_middleware(IdempotencyMiddleware, store=TortoiseStore(), scope=lambda request: request.headers["x-account"], lease_seconds=LEASE, heartbeat_seconds=LEASE / 3)
    plain(app)


def agents():
    import tools

    as_function(app, getattr(tools, WAY)())


{"stet_fastapi": stet_fastapi, "asgi_idempotency_header": asgi_idempotency_header, "fastapi_idempotency": fastapi_idempotency, "plain": lambda: plain(app)}.get(WAY, agents)()
listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
listening(listener)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
