"""A bookshop behind stet proxy, on PostgreSQL and RabbitMQ. An order, its answer and its message are one commit.

The sidecar takes orders (202) and sends each one here. This process may die at any point: before the commit nothing is
left of the order, and it is sent again; after it, it is done. No verification is needed. An effect
elsewhere, the charge, has a key that is the same each time.

    python3 cards.py & python3 orders_postgres.py & stet proxy --config orders_postgres.yaml & stet consume --config orders_postgres.yaml
"""

import functools
import json
import os
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import uvicorn
from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import HTMLResponse
from psycopg import Connection
from psycopg.rows import dict_row
from pydantic import BaseModel, Field

from stet.asgi import Idempotent
from stet.emit import Emit
from stet.psycopg import Psycopg

STET = os.environ.get("STET_URL", "http://127.0.0.1:8080")
CARDS = os.environ.get("CARDS_URL", "http://127.0.0.1:3001")
QUEUE = os.environ.get("SHIPMENTS", "shipments")
PACK_SECONDS = float(os.environ.get("PACK_SECONDS", "1"))  # a copy; progress is kept once a second

app = FastAPI()
connect = functools.partial(psycopg.connect, os.environ["DATABASE_URL"], row_factory=dict_row)  # the database of the sidecar's store
idempotent = Idempotent(Psycopg(connect), sidecar=True)
app.add_middleware(idempotent.middleware)


class Order(BaseModel):
    book: str
    copies: int = Field(ge=1, le=100)


class Shipment(BaseModel):
    order: int


def send(method, url, content, header):
    """Sends JSON, and returns that of the answer. Anything but a 2xx is an exception."""
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json", **header}, method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def progress(request, fraction, message):
    """Shows on the order's status page how far it is. The order continues if that fails."""
    try:
        send("PATCH", STET + request.headers["Stet-Status-Page"], {"fraction": fraction, "message": message},
             {"Stet-Progress": request.headers["Stet-Progress"]})
    except OSError:
        pass


@app.post("/orders", status_code=201)
@idempotent
def order(order: Order, request: Request, response: Response, stet_operation: str = Header(),
          tx: Connection = Depends(idempotent.transaction), emit: Emit = Depends(idempotent.emit)):
    for n in range(order.copies):
        progress(request, 0.8 * n / order.copies, f"packing copy {n + 1}")
        time.sleep(PACK_SECONDS)
    progress(request, 0.8, "charging")
    # The processor knows an attempt that comes again. An exception rolls back, and the order is sent again.
    paid = send("POST", CARDS + "/charges", {"reference": stet_operation, "book": order.book, "copies": order.copies}, {"Idempotency-Key": stet_operation})
    placed = tx.execute("INSERT INTO orders (book, copies, charge) VALUES (%s, %s, %s) RETURNING id, book, copies, charge",
                        [order.book, order.copies, paid["charge"]]).fetchone()
    emit(QUEUE, {"order": placed["id"]})
    response.headers["Location"] = f"/orders/{placed['id']}"
    return placed


@app.post("/shipments", status_code=201)
@idempotent
def ship(shipment: Shipment, idempotency_key: str = Header(), tx: Connection = Depends(idempotent.transaction)):
    """Takes a message of the queue, from "stet consume", once: its writes and the record of the message are one commit."""
    tx.execute('INSERT INTO shipments VALUES (%s, %s)', [idempotency_key, shipment.order])
    return {"shipped": shipment.order}


@app.get("/orders/{id}")
def show(id: int):
    with connect() as db:
        return db.execute("SELECT id, book, copies, charge FROM orders WHERE id = %s", [id]).fetchone() or Response(status_code=404)


@app.get("/shipments")
def shipments():
    with connect() as db:
        return db.execute('SELECT message, "order" FROM shipments').fetchall()


@app.get("/", response_class=HTMLResponse)
def page():
    return Path(__file__).with_name("orders.html").read_text()


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "3000"))))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
