"""Payments, protected by the package stet, in a process that dies where DIE says: "point:visit"."""

import functools
import os
import signal
import socket

import psycopg

URL, PORT = os.environ["DATABASE_URL"], int(os.environ["PORT"])
FLAVOUR, _, MODE = os.environ["FLAVOUR"].partition(":")
SIDECAR, APART = bool(os.environ.get("SIDECAR")), os.environ.get("DEFECT") == "apart"
INSERT = "INSERT INTO ledger (key, by) VALUES (%s, 'python') RETURNING id"

point, _, visit = os.environ.get("DIE", "").partition(":")
left = int(visit or 0)


def at(here):
    global left
    if here == point:
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Cursor(psycopg.Cursor):
    """The package settles and commits by one query."""

    def execute(self, query, *args, **more):
        settles = str(query).endswith("; COMMIT")
        if settles:
            at("settle.before")
            at("commit.before")
        result = super().execute(query, *args, **more)
        if settles:
            at("commit.after")
            at("settle.after")
        return result


class AsyncCursor(psycopg.AsyncCursor):
    async def execute(self, query, *args, **more):
        settles = str(query).endswith("; COMMIT")
        if settles:
            at("settle.before")
            at("commit.before")
        result = await super().execute(query, *args, **more)
        if settles:
            at("commit.after")
            at("settle.after")
        return result


def options(scope):
    return {"sidecar": True} if SIDECAR else {"scope": scope, "mode": MODE or "functions"}


def apart(key):
    """The defect: a payment that is committed by itself."""
    with psycopg.connect(URL) as connection:
        return connection.execute(INSERT, [key]).fetchone()[0]


def fastapi_app():
    from fastapi import Depends, FastAPI, Request, Response
    from stet.asgi import Idempotent
    from stet.psycopg import AsyncPsycopg

    app = FastAPI()
    connect = functools.partial(psycopg.AsyncConnection.connect, URL, cursor_factory=AsyncCursor)
    idempotent = Idempotent(AsyncPsycopg(connect), **options(lambda request: request.headers.get("x-account")))
    app.add_middleware(idempotent.middleware)

    @app.post("/payments")
    @idempotent
    async def pay(request: Request, tx=Depends(idempotent.transaction)):
        at("begun")
        key = request.headers["idempotency-key"]
        number = apart(key) if APART else (await (await tx.execute(INSERT, [key])).fetchone())[0]
        at("written")
        return Response(f'{{"payment": {number}}}', 201, media_type="application/json")

    async def mortal(scope, receive, send):
        async def sending(message):
            if message["type"] == "http.response.start":
                at("answer.before")
            await send(message)
            if message["type"] == "http.response.body":
                at("answer.after")

        if scope["type"] == "http":
            at("received")
        await app(scope, receive, sending)

    import uvicorn

    listener = socket.create_server(("127.0.0.1", PORT))
    print(f"listening on http://127.0.0.1:{PORT}", flush=True)
    uvicorn.Server(uvicorn.Config(mortal, log_level="critical")).run(sockets=[listener])


def flask_app():
    import logging

    from flask import Flask, Response, request
    from stet.flask import Idempotent
    from stet.psycopg import Psycopg
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").disabled = True
    app = Flask("payments")
    connect = functools.partial(psycopg.Connection.connect, URL, cursor_factory=Cursor)
    idempotent = Idempotent(Psycopg(connect), **options(lambda: request.headers.get("X-Account")))

    @app.post("/payments")
    @idempotent
    def pay():
        at("begun")
        key = request.headers["Idempotency-Key"]
        number = apart(key) if APART else idempotent.transaction.execute(INSERT, [key]).fetchone()[0]
        at("written")
        return Response(f'{{"payment": {number}}}', 201, content_type="application/json")

    def mortal(environ, start_response):
        at("received")
        answer = app(environ, start_response)
        at("answer.before")
        yield from answer
        at("answer.after")

    server = make_server("127.0.0.1", PORT, mortal, threaded=True)
    print(f"listening on http://127.0.0.1:{PORT}", flush=True)
    server.serve_forever()


{"fastapi": fastapi_app, "flask": flask_app}[FLAVOUR]()
