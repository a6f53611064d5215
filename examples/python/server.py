"""A payments service: FastAPI and psycopg, each payment in one transaction with its answer.

    DATABASE_URL=postgres://shop@localhost/shop python3 server.py
"""

import functools
import os
import socket

import uvicorn
from fastapi import Depends, FastAPI, Response
from psycopg import AsyncConnection
from pydantic import BaseModel

from stet.asgi import Idempotent
from stet.psycopg import AsyncPsycopg

app = FastAPI()
connect = functools.partial(AsyncConnection.connect, os.environ["DATABASE_URL"])  # or pool.connection of psycopg_pool
idempotent = Idempotent(AsyncPsycopg(connect), scope=lambda request: request.headers.get("x-account"))  # as your authentication has established it
app.add_middleware(idempotent.middleware)


class Payment(BaseModel):
    amount: int


@app.post("/payments", status_code=201)
@idempotent
async def pay(payment: Payment, response: Response, tx: AsyncConnection = Depends(idempotent.transaction)):
    row = await (await tx.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [payment.amount])).fetchone()
    response.headers["Location"] = f"/payments/{row[0]}"
    return {"payment": row[0], "amount": payment.amount}


@app.get("/payments")
async def payments():
    async with await connect() as db:
        return [{"payment": row[0], "amount": row[1]} async for row in await db.execute("SELECT id, amount FROM payments ORDER BY id")]


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "8000"))))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
