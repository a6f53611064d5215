"""A payments service for the tests: python3 service.py FLAVOUR. X-Do says what a payment is to do.

STET_TEST_SIDECAR has it settle for a sidecar, and log slowly. STET_TEST_DIES has the process die "before" its first COMMIT or "after" it.
"""

import functools
import logging
import os
import signal
import socket
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(HERE)  # and not this folder

URL = os.environ.get("STET_TEST_SERVICE_URL", "")
WAIT = 4711  # the lock that a payment waits for, if it is to wait
INSERT = "INSERT INTO payments (amount) VALUES ({}) RETURNING id"
BINARY = bytes(range(256)) * 3
OPTIONS = {"max_result": 10_000, "max_body": 1000, "patience": 5.0, "namespace": os.environ.get("STET_TEST_NAMESPACE", "")}
if previous := os.environ.get("STET_TEST_PREVIOUS"):
    OPTIONS |= {"previous": previous, "claim_previous": bool(os.environ.get("STET_TEST_CLAIM_PREVIOUS"))}
MODE = os.environ.get("STET_TEST_MODE", "functions")
SIDECAR = bool(os.environ.get("STET_TEST_SIDECAR"))
DIES = os.environ.get("STET_TEST_DIES", "")


def options(scope):
    return {"max_result": 10_000, "sidecar": True} if SIDECAR else {**OPTIONS, "mode": MODE, "scope": scope}


def mortal(database):
    """A database whose process dies at its first COMMIT."""
    begin = database.begin

    async def begin_mortal():
        transaction = await begin()
        commit = transaction.commit

        async def commit_and_die(sql, arguments):
            if DIES == "after":
                await commit(sql, arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        transaction.commit = commit_and_die
        return transaction

    if DIES:
        database.begin = begin_mortal
    return database


def response(do: str, payment: int, amount: int):
    """Status, header fields, body."""
    match do:
        case "fail":
            return 500, [("X-From", "handler")], b"failed"
        case "refuse":
            return 402, [("Content-Type", "text/plain")], b"refused"
        case "forbid":
            return 403, [], b"forbidden"
        case "empty":
            return 204, [], b""
        case "big":
            return 201, [("Content-Type", "text/plain")], b"x" * 20_000
        case "binary":
            return 201, [("Content-Type", "application/x-binary"), ("X-Latin", "Gr\xfc\xdfe"), ("Warning", "a"), ("Warning", "b"),
                         ("Set-Cookie", "session=secret")], BINARY
    return 201, [("Content-Type", "application/json"), ("Location", f"/payments/{payment}")], \
        f'{{"payment": {payment}, "amount": {amount}}}'.encode()


def fastapi_app(database, write):
    """write is what runs a statement in a transaction and returns a number."""
    from fastapi import Depends, FastAPI, HTTPException, Request, Response
    from stet.asgi import Idempotent

    app = FastAPI()
    idempotent = Idempotent(mortal(database), **options(lambda request: request.headers.get("x-account")))
    app.add_middleware(idempotent.middleware)

    def made(do, payment, amount):
        if do == "raise":
            raise RuntimeError("broke off")
        if do == "abort":
            raise HTTPException(404, "no such card")
        status, headers, body = response(do, payment, amount)
        made = Response(body, status)
        for name, value in headers:
            made.headers.append(name, value)
        return made

    if database.blocking:
        @app.post("/payments")
        @idempotent
        def pay(request: Request, payment: dict, tx=Depends(idempotent.transaction), emit=Depends(idempotent.emit)):
            do = request.headers.get("x-do", "")
            number = write(tx, do, payment["amount"])
            for message, more in messages(do, payment["amount"]):
                emit(*message, **more)
            return made(do, number, payment["amount"])
    else:
        @app.post("/payments")
        @idempotent
        async def pay(request: Request, payment: dict, tx=Depends(idempotent.transaction), emit=Depends(idempotent.emit)):
            do = request.headers.get("x-do", "")
            number = await write(tx, do, payment["amount"])
            for message, more in messages(do, payment["amount"]):
                await emit(*message, **more)
            return made(do, number, payment["amount"])

    @app.post("/unmarked")
    async def unmarked(tx=Depends(idempotent.transaction)):
        return "never"

    @app.post("/bare")
    async def bare():
        return "never settled"

    return app


def flask_app(database, write):
    from flask import Flask, abort, request, Response
    from stet.flask import Idempotent

    app = Flask("service")
    idempotent = Idempotent(mortal(database), **options(lambda: request.headers.get("X-Account")))

    @app.post("/payments")
    @idempotent
    def pay():
        do, amount = request.headers.get("X-Do", ""), request.get_json()["amount"]
        number = write(idempotent.transaction, do, amount)
        for message, more in messages(do, amount):
            idempotent.emit(*message, **more)
        if do == "raise":
            raise RuntimeError("broke off")
        if do == "abort":
            abort(404, "no such card")
        status, headers, body = response(do, number, amount)
        return Response(body, status, headers)

    @app.post("/unmarked")
    def unmarked():
        return str(idempotent.transaction)

    @app.post("/bare")
    def bare():
        return "never settled"

    return app


def messages(do: str, amount: int):
    """The emitted messages."""
    if do.startswith("emit"):
        yield ("payments", {"paid": amount, "in": "\u20ac"}), {"key": "acct 1", "header": {"trace": str(amount)}}
        yield ("mails", "thank you"), {}
        yield ("raw", b"\0\1\xff"), {"header": {"Content-Type": "application/x-raw"}}
    if do == "emit, badly":
        yield ("",), {}


def statements(do: str, amount: int, mark: str):
    """Each with its arguments."""
    yield INSERT.format(mark), (amount,)
    if do == "wait":
        yield f"SELECT 1 FROM pg_advisory_xact_lock({WAIT})", ()
    if do.partition("-")[0] in ("commit", "rollback"):
        yield do.partition("-")[0].upper(), ()


def bare(tx, do: str):
    """The connection that is behind the handle, for a handler that ends the transaction by it, or by a cursor."""
    return object.__getattribute__(tx, "_stet")[0] if do.endswith("-by-connection") else tx


def psycopg(connect, fetched=lambda cursor: cursor.fetchone() if cursor.description else None):
    from stet.psycopg import Psycopg

    def write(tx, do, amount):
        tx = bare(tx, do)
        if do == "swallow":
            try:
                tx.execute("SELECT 1/0")
            except Exception:
                return 0
        return [fetched(tx.execute(sql, arguments)) for sql, arguments in statements(do, amount, "%s")][0][0]

    return Psycopg(connect), write


def psycopg_async(connect):
    from stet.psycopg import AsyncPsycopg

    async def fetched(cursor):
        return await cursor.fetchone() if cursor.description else None

    async def write(tx, do, amount):
        tx = bare(tx, do)
        if do == "swallow":
            try:
                await tx.execute("SELECT 1/0")
            except Exception:
                return 0
        return [await fetched(await tx.execute(sql, arguments)) for sql, arguments in statements(do, amount, "%s")][0][0]

    return AsyncPsycopg(connect), write


def asyncpg():
    import asyncpg
    from stet.asyncpg import Asyncpg

    async def write(tx, do, amount):
        tx = bare(tx, do)
        if do == "swallow":
            try:
                await tx.execute("SELECT 1/0")
            except asyncpg.PostgresError:
                return 0
        return [await tx.fetchval(sql, *arguments) for sql, arguments in statements(do, amount, "$1")][0]

    return Asyncpg(functools.partial(asyncpg.connect, URL)), write


def scalar(result):
    return result.scalar() if result.returns_rows else None


def sqlalchemy():
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import sessionmaker
    from stet.sqlalchemy import SQLAlchemy

    def write(tx, do, amount):
        tx = bare(tx, do)
        if do == "swallow":
            try:
                tx.execute(text("SELECT 1/0"))
            except Exception:
                return 0
        return [scalar(tx.execute(text(sql), {"amount": amount} if arguments else {})) for sql, arguments in statements(do, amount, ":amount")][0]

    engine = create_engine(URL.replace("postgres://", "postgresql+psycopg2://"), pool_pre_ping=True)
    return SQLAlchemy(sessionmaker(engine)), write


def sqlalchemy_async():
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.orm import sessionmaker
    from stet.sqlalchemy import AsyncSQLAlchemy

    async def write(tx, do, amount):
        tx = bare(tx, do)
        if do == "swallow":
            try:
                await tx.execute(text("SELECT 1/0"))
            except Exception:
                return 0
        return [scalar(await tx.execute(text(sql), {"amount": amount} if arguments else {}))
                for sql, arguments in statements(do, amount, ":amount")][0]

    engine = create_async_engine(URL.replace("postgres://", "postgresql+asyncpg://").partition("?")[0], pool_pre_ping=True)
    return AsyncSQLAlchemy(sessionmaker(engine, class_=AsyncSession)), write


def flavour(name: str):
    """Its application, and whether it is one of WSGI."""
    import psycopg as driver

    framework, _, by = name.partition("-")
    if framework == "django":
        from django_service import application

        return application(by), True
    database, write = {
        "psycopg": lambda: psycopg(functools.partial(driver.connect, URL)),
        "autocommit": lambda: psycopg(functools.partial(driver.connect, URL, autocommit=True)),
        "psycopg-async": lambda: psycopg_async(functools.partial(driver.AsyncConnection.connect, URL)),
        "asyncpg": asyncpg,
        "sqlalchemy": sqlalchemy,
        "sqlalchemy-async": sqlalchemy_async,
    }[by]()
    return {"fastapi": fastapi_app, "flask": flask_app}[framework](database, write), framework == "flask"


class Slow(logging.Handler):
    """What a busy machine does to uvicorn, which after an exception has answered, logs, and closes the connection last."""

    def emit(self, record):
        time.sleep(0.05)


def main() -> None:
    app, wsgi = flavour(sys.argv[1])
    if wsgi:
        from werkzeug.serving import make_server

        server = make_server("127.0.0.1", 0, app, threaded=True)
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
        return
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="warning")
    if SIDECAR:
        logging.getLogger("uvicorn.error").addHandler(Slow())
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
