"""A card processor, for trying things: it forgets everything when it ends.

Each POST /charges is a charge, unless it has an Idempotency-Key that was there before. DELETE /charges/REFERENCE says
the charges under a reference, and refuses later ones. Only the standard library: python3 cards.py
"""

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECONDS = float(os.environ.get("CARD_SECONDS", "1"))  # how long a charge takes

lock = threading.Lock()
charges, keys, closed = [], {}, set()


class Cards(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        charge = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(SECONDS)
        key = self.headers.get("Idempotency-Key")
        with lock:
            if charge["reference"] in closed:
                return self.answer(409, {"closed": charge["reference"]})
            if key is None or key not in keys:
                charges.append({"charge": len(charges) + 1, **charge})
                keys[key] = charges[-1]
            self.answer(201, charges[-1] if key is None else keys[key])

    def do_DELETE(self):
        reference = self.path.removeprefix("/charges/")
        with lock:
            closed.add(reference)
            self.answer(200, next((c for c in charges if c["reference"] == reference), {"charge": None}))

    def do_GET(self):
        with lock:
            self.answer(200, charges)

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3001"))), Cards)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
