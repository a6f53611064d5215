"""A service that receives payments: WAY is fastapi_DRIVER_WAY. It prints its address."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import socket

import asyncpg
import psycopg
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import sessionmaker
from stet.asgi import Idempotent
from stet.asyncpg import Asyncpg
from stet.psycopg import AsyncPsycopg
from stet.sqlalchemy import AsyncSQLAlchemy

URL, WAY = os.environ["DATABASE_URL"], os.environ["WAY"]
_, DRIVER, KIND = WAY.split("_")
TEXTS = json.loads(os.environ["TEXTS"])
CONNECTIONS = 16


class Payment(BaseModel):
    amount: int


class Psycopg:
    """A pool of connections, as psycopg_pool has."""

    mark = "%s"

    async def open(self):
        self.free = asyncio.LifoQueue()
        for _ in range(CONNECTIONS):
            self.free.put_nowait(await psycopg.AsyncConnection.connect(URL))

    @contextlib.asynccontextmanager
    async def connection(self):
        connection = await self.free.get()
        try:
            yield connection
        finally:
            self.free.put_nowait(connection)

    @contextlib.asynccontextmanager
    async def transaction(self):
        async with self.connection() as connection:
            try:
                yield connection
            except BaseException:
                await connection.rollback()
                raise
            await connection.commit()

    async def row(self, tx, sql, *arguments):
        cursor = await tx.execute(sql, arguments)
        return await cursor.fetchone() if cursor.description else None

    def stet(self):
        return AsyncPsycopg(self.connection)


class AsyncpgPool:
    mark = "$%d"

    async def open(self):
        self.pool = await asyncpg.create_pool(URL.split("?")[0], ssl=False, min_size=CONNECTIONS, max_size=CONNECTIONS)

    @contextlib.asynccontextmanager
    async def transaction(self):
        async with self.pool.acquire() as connection, connection.transaction():
            yield connection

    async def row(self, tx, sql, *arguments):
        return await tx.fetchrow(sql, *arguments)

    def stet(self):
        return Asyncpg(lambda: self.pool.acquire())


class SQLAlchemy:
    mark = ":a%d"

    async def open(self):
        engine = create_async_engine(URL.split("?")[0].replace("postgres://", "postgresql+asyncpg://"), pool_size=CONNECTIONS, connect_args={"ssl": False})
        self.session = sessionmaker(engine, class_=AsyncSession, expire_on_commit=False)

    @contextlib.asynccontextmanager
    async def transaction(self):
        async with self.session() as session, session.begin():
            yield session

    async def row(self, tx, sql, *arguments):
        result = await tx.execute(text(sql), {f"a{n}": argument for n, argument in enumerate(arguments, 1)})
        return result.first() if result.returns_rows else None

    def stet(self):
        return AsyncSQLAlchemy(lambda: self.session())


db = {"psycopg": Psycopg, "asyncpg": AsyncpgPool, "sqlalchemy": SQLAlchemy}[DRIVER]()


def statement(name):
    return re.sub(r"\$(\d)", lambda m: db.mark % int(m[1]) if "%d" in db.mark else db.mark, TEXTS[name].replace("{t}", WAY))


INSERT, RESERVE, STORED, STORE = (statement(name) for name in ("insert", "reserve", "stored", "store"))
app = FastAPI()


async def insert(tx, payment, key):
    n = (await db.row(tx, INSERT, key))[0]
    return {"payment": n, "amount": payment.amount}


if KIND in ("bare", "library"):

    @app.post("/payments", status_code=201)
    async def pay(payment: Payment, request: Request):
        async with db.transaction() as tx:
            return await insert(tx, payment, request.headers["idempotency-key"])

elif KIND == "hand":

    @app.post("/payments")
    async def pay(payment: Payment, request: Request):
        key, digest = request.headers["idempotency-key"], hashlib.sha256()
        for part in (b"POST", request.url.path.encode(), request.headers["content-type"].encode(), await request.body()):
            digest.update(len(part).to_bytes(8, "big") + part)
        async with db.transaction() as tx:
            if await db.row(tx, RESERVE, key, digest.digest()) is None:
                row = await db.row(tx, STORED, key)
                if row[0] != digest.digest():
                    return Response(status_code=422)
                return Response(row[3], row[1], {"Idempotent-Replayed": "true"}, row[2])
            body = json.dumps(await insert(tx, payment, key)).encode()
            await db.row(tx, STORE, body, key)
        return Response(body, 201, media_type="application/json")


async def main():
    await db.open()
    if KIND in ("stet", "statements"):
        options = {"mode": "statements"} if KIND == "statements" else {}
        idempotent = Idempotent(db.stet(), scope=lambda request: request.headers.get("x-account"), **options)
        app.add_middleware(idempotent.middleware)

        @app.post("/payments", status_code=201)
        @idempotent
        async def pay(payment: Payment, request: Request, tx=Depends(idempotent.transaction)):
            return await insert(tx, payment, request.headers["idempotency-key"])

    elif KIND == "library":
        import redis.asyncio
        from idempotency_header_middleware import IdempotencyHeaderMiddleware
        from idempotency_header_middleware.backends.redis import RedisBackend

        app.add_middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis.asyncio.from_url(os.environ["REDIS_URL"])))
    # asyncio sets TCP_NODELAY only if the socket names its protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print("ready", "127.0.0.1:%d" % listener.getsockname()[1], flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).serve(sockets=[listener])


asyncio.run(main())
