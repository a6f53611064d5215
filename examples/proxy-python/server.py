"""A payments service that knows nothing of idempotency: it charges each request.

It stands behind stet proxy, and does two things for it. It writes down with each charge
what the proxy calls the operation (Stet-Operation), and it answers what became of one
(GET /payments/outcome) when the proxy could not hear it, because this process died.

Only the standard library: python3 server.py
"""

import json
import os
import secrets
import sqlite3
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LEDGER = os.environ.get("LEDGER", "ledger.db")
PORT = int(os.environ.get("PORT", "3000"))
CARD_SECONDS = float(os.environ.get("CARD_SECONDS", "0.05"))  # how long the card network takes
ANSWER_SECONDS = float(os.environ.get("ANSWER_SECONDS", "0"))  # from the charge to the answer

TABLES = """
CREATE TABLE IF NOT EXISTS charges (
    id INTEGER PRIMARY KEY, account TEXT, amount INTEGER, receipt TEXT, operation TEXT);
CREATE TABLE IF NOT EXISTS given_up (operation TEXT PRIMARY KEY, fence INTEGER);
"""


def ledger():
    """A connection that commits at once, unless there is a BEGIN."""
    return sqlite3.connect(LEDGER, timeout=10, isolation_level=None)


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if self.path != "/payments":
            return self.answer(404)
        print("charging", request["amount"], flush=True)
        time.sleep(CARD_SECONDS)
        charge = self.charge(self.headers.get("X-Account"), request["amount"])
        if charge is None:
            return self.answer(409)
        time.sleep(ANSWER_SECONDS)
        self.answer(201, charge, {"Location": f"/payments/{charge['id']}"})

    def charge(self, account, amount):
        operation, fence = self.headers.get("Stet-Operation"), int(self.headers.get("Stet-Fence", 0))
        receipt = secrets.token_hex(8)
        db = ledger()
        try:
            db.execute("BEGIN IMMEDIATE")
            if db.execute("SELECT 1 FROM given_up WHERE operation = ? AND fence >= ?", (operation, fence)).fetchone():
                db.execute("ROLLBACK")
                return None  # too late: outcome() has said that this one did not happen
            row = db.execute("INSERT INTO charges (account, amount, receipt, operation) VALUES (?, ?, ?, ?)",
                             (account, amount, receipt, operation))
            db.execute("COMMIT")
        finally:
            db.close()
        return {"id": row.lastrowid, "amount": amount, "receipt": receipt}

    def do_GET(self):
        if self.path == "/payments/outcome" and "Stet-Operation" in self.headers:
            return self.outcome(self.headers["Stet-Operation"], int(self.headers["Stet-Fence"]))
        if self.path == "/payments":
            db = ledger()
            rows = db.execute("SELECT id, account, amount, receipt FROM charges ORDER BY id").fetchall()
            db.close()
            return self.answer(200, [dict(zip(("id", "account", "amount", "receipt"), row)) for row in rows])
        self.answer(404)

    def outcome(self, operation, fence):
        """Did it happen? A no is a promise: an attempt that is still on its way is refused from now on."""
        db = ledger()
        try:
            db.execute("BEGIN IMMEDIATE")
            row = db.execute("SELECT id, amount, receipt FROM charges WHERE operation = ?", (operation,)).fetchone()
            if row is None:
                db.execute("INSERT INTO given_up VALUES (?, ?) ON CONFLICT (operation) DO UPDATE SET fence = max(fence, excluded.fence)",
                           (operation, fence))
            db.execute("COMMIT")
        finally:
            db.close()
        if row is None:
            return self.answer(404, None, {"Stet-Operation": operation, "Stet-Execution": "none"})
        charge = dict(zip(("id", "amount", "receipt"), row))
        self.answer(200, charge, {"Stet-Operation": operation, "Stet-Status": "201", "Location": f"/payments/{charge['id']}"})

    def answer(self, status, content=None, headers=()):
        body = b"" if content is None else json.dumps(content).encode() + b"\n"
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    db = ledger()
    db.executescript(TABLES)
    db.close()
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Payments)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
