"""The payment of every service in Python: what a request asks for, and the ledger of executions."""

import base64
import json
import os
import signal
import sys
import threading
import time

import psycopg

URL, LEASE = os.environ["DATABASE_URL"], float(os.environ["LEASE"])


class Unlucky(Exception):
    """An error of the handler."""


def pay(key, account, body, execute=None):
    """Returns status, headers and body. execute runs the business write, by default as a commit of its own."""
    asked = json.loads(body or b"{}")
    do = asked.get("do", "")
    with psycopg.connect(URL, autocommit=True) as own:
        def commit(sql, arguments):
            return own.execute(sql, arguments).fetchone()

        commit("INSERT INTO runs (key, account) VALUES (%s, %s) RETURNING 1", [key, account])
        first = commit("SELECT count(*) FROM runs WHERE key = %s", [key])[0] == 1
        if first and do == "die before":
            os.kill(os.getpid(), signal.SIGKILL)
        if first and do == "fail before":
            raise Unlucky
        if do == "decline":
            return 402, {"Content-Type": "application/json"}, json.dumps({"declined": time.time_ns()}).encode()
        time.sleep(asked.get("seconds", 0))
        id_ = (execute or commit)("INSERT INTO effects (key, account) VALUES (%s, %s) RETURNING id", [key, account])[0]
        if first and do == "die after":
            os.kill(os.getpid(), signal.SIGKILL)
        if first and do == "fail after":
            raise Unlucky
        return answer(do, id_)


def answer(do, id_):
    if do == "nothing":
        return 204, {}, b""
    if do == "bytes":
        return 201, {"Content-Type": "application/octet-stream"}, bytes(range(256)) + str(id_).encode()
    if do == "text":
        return 201, {"Content-Type": "text/plain; charset=utf-8"}, f"bezahlt: {id_} €".encode()
    paid = {"payment": id_}
    if do == "large":
        paid["note"] = "x" * 700_000
    headers = {"Location": f"/payments/{id_}", "X-Receipt": f"r-{id_}"} if do == "headers" else {}
    return 201, {"Content-Type": "application/json", **headers}, json.dumps(paid, separators=(",", ":")).encode()  # as FastAPI writes it


def packed(result):
    """The result of a function: a value for JSON."""
    status, headers, body = result
    return {"status": status, "headers": headers, "body": base64.b64encode(body).decode()}


def unpacked(value):
    return value["status"], value["headers"], base64.b64decode(value["body"])


def listening(socket):
    """Says where the service listens. The service ends with its parent, which closes its standard input."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(f"ready 127.0.0.1:{socket.getsockname()[1]}", flush=True)
