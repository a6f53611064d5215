"""A bookshop behind stet proxy. It knows nothing of keys, retries and queues: it packs, charges and records each order.

The sidecar takes orders (202), sends each one here, and keeps the answer. For that the shop does three things: it says
how far an order is (Stet-Progress), it names the message that is to leave (Stet-Emit), and it finds out what became of
an order whose answer was never heard (verify), because this process died.

    python3 cards.py & python3 orders.py & stet proxy --config orders.yaml
"""

import json
import os
import socket
import sqlite3
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, Field

STET = os.environ.get("STET_URL", "http://127.0.0.1:8080")
CARDS = os.environ.get("CARDS_URL", "http://127.0.0.1:3001")
PACK_SECONDS = float(os.environ.get("PACK_SECONDS", "1"))  # a copy; progress is kept once a second
TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, operation TEXT UNIQUE, book TEXT, copies INTEGER, charge INTEGER);
CREATE TABLE IF NOT EXISTS shipments (message TEXT, "order" INTEGER);
"""

app = FastAPI()


class Order(BaseModel):
    book: str
    copies: int = Field(ge=1, le=100)


class Shipment(BaseModel):
    order: int


def shop():
    """The shop's own database, of which the sidecar knows nothing. Each statement is committed by itself."""
    db = sqlite3.connect(os.environ.get("SHOP", "shop.db"), timeout=10, isolation_level=None)
    db.row_factory = sqlite3.Row
    return closing(db)


def send(method, url, content=None, header=()):
    """Sends JSON, and returns status and JSON of the answer."""
    request = urllib.request.Request(url, json.dumps(content).encode(), {"Content-Type": "application/json", **dict(header)}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, None


def progress(request, fraction, message):
    """Shows on the order's status page how far it is. The order continues if that fails."""
    try:
        send("PATCH", STET + request.headers["Stet-Status-Page"], {"fraction": fraction, "message": message},
             {"Stet-Progress": request.headers["Stet-Progress"]})
    except OSError:
        pass


def record(operation, book, copies, charge):
    """Writes an order down that was charged, if it is not there, and returns it."""
    with shop() as db:
        db.execute("INSERT INTO orders (operation, book, copies, charge) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", (operation, book, copies, charge))
        return dict(db.execute("SELECT id, book, copies, charge FROM orders WHERE operation = ?", (operation,)).fetchone())


@app.post("/orders")
def order(order: Order, request: Request, stet_operation: str = Header(), stet_fence: str = Header()):
    for n in range(order.copies):
        progress(request, 0.8 * n / order.copies, f"packing copy {n + 1}")
        time.sleep(PACK_SECONDS)
    progress(request, 0.8, "charging")
    # Each attempt has a reference of its own, so that verify can close the reference of a killed one.
    status, paid = send("POST", CARDS + "/charges", {"reference": f"{stet_operation}.{stet_fence}", "book": order.book, "copies": order.copies})
    if status != 201:  # verify was faster, and has said that nothing happened
        return Response(status_code=503, headers={"Stet-Execution": "none"})
    placed = record(stet_operation, order.book, order.copies, paid["charge"])
    message = {"to": "shipments", "body": {"order": placed["id"]}}
    return JSONResponse(placed, 201, {"Location": f"/orders/{placed['id']}", "Stet-Emit": json.dumps(message)})


@app.get("/orders/verify")
def verify(stet_operation: str = Header(), stet_fence: str = Header()):
    """What became of an order? The sidecar asks when it has not heard the answer. A no is a promise: it never will."""
    with shop() as db:
        row = db.execute("SELECT id, book, copies, charge FROM orders WHERE operation = ?", (stet_operation,)).fetchone()
    placed = dict(row) if row else None
    if placed is None:  # it may have died between the charge and its record
        status, paid = send("DELETE", f"{CARDS}/charges/{stet_operation}.{stet_fence}")
        if status != 200:
            return Response(status_code=503)  # it is asked again
        if paid["charge"] is None:
            return Response(status_code=404, headers={"Stet-Operation": stet_operation, "Stet-Execution": "none"})
        placed = record(stet_operation, paid["book"], paid["copies"], paid["charge"])
    return JSONResponse(placed, 200, {"Location": f"/orders/{placed['id']}", "Stet-Operation": stet_operation, "Stet-Status": "201"})


@app.get("/orders/{id}")
def show(id: int):
    with shop() as db:
        row = db.execute("SELECT id, book, copies, charge FROM orders WHERE id = ?", (id,)).fetchone()
    return dict(row) if row else Response(status_code=404)


@app.post("/shipments", status_code=201)
def ship(shipment: Shipment, idempotency_key: str = Header()):
    """Takes the message. Its ID is its key, so that the sidecar hands it over once, however often it is sent."""
    with shop() as db:
        db.execute("INSERT INTO shipments VALUES (?, ?)", (idempotency_key, shipment.order))
    return {"shipped": shipment.order}


@app.get("/shipments")
def shipments():
    with shop() as db:
        return [dict(row) for row in db.execute('SELECT message, "order" FROM shipments')]


@app.get("/", response_class=HTMLResponse)
def page():
    return Path(__file__).with_name("orders.html").read_text()


if __name__ == "__main__":
    with shop() as db:
        db.executescript(TABLES)
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "3000"))))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
