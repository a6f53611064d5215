"""Measures transactions of psycopg: bare, with idempotency tables by hand, and with stet."""

import asyncio
import hashlib
import json
import os
import re
import time
import uuid

import psycopg

URL, EACH, ROUNDS = os.environ["DATABASE_URL"], float(os.environ["EACH"]), int(os.environ["ROUNDS"])
TEXTS = json.loads(os.environ["TEXTS"])
WAYS = TEXTS["ways"]


def statement(name, way=""):
    return re.sub(r"\$\d", "%s", TEXTS["statements"][name].replace("{t}", way))


def digest(*parts):
    return hashlib.sha256(b"".join(len(p).to_bytes(4, "big") + p for p in parts)).digest()


def number(b, size):
    return int.from_bytes(b[8 - size : 8], "big", signed=True)


SCOPE, TABLE = digest(b"stet scope 1", b"", b"acct_1"), (b"stet", b"records")
WAIT = digest(b"wait", *TABLE)


def fingerprint(key):
    parts = [b"POST", b"/payments", b"application/json", b"", key.encode()]
    return b"\x01" + hashlib.sha256(b"\x01" + b"".join(len(p).to_bytes(8, "big") + p for p in parts)).digest()


def identity(key, print):
    """The ID of a key, and the numbers of its locks."""
    id = SCOPE[:8] + digest(b"stet id 2", b"", b"acct_1", key.encode())[:24]
    return id, number(digest(b"run", *TABLE, id), 8), number(digest(b"finger", *TABLE, id), 4), number(digest(print), 4)


def wait_lock(id):
    return int.from_bytes(bytes(a ^ b for a, b in zip(id[8:16], WAIT)), "big", signed=True)


async def one(connection, sql, *arguments):
    return await (await connection.execute(sql, arguments)).fetchone()


async def pay(connection, way, key):
    (n,) = await one(connection, INSERT[way], key)
    return f'{{"payment": {n}}}'.encode()


async def bare(connection, key):
    body = await pay(connection, "bare", key)
    await connection.commit()
    return body


def by_hand(way, locks):
    reserve, stored, store, locked, insert = (statement(name, way) for name in ("reserve", "stored", "store", "locked", "key"))

    async def run(connection, key):
        if locks:
            row = await one(connection, locked, key)
            if row is None:
                await connection.execute(insert, (key, fingerprint(key)))
        elif await one(connection, reserve, key, fingerprint(key)) is None:
            row = await one(connection, stored, key)
        else:
            row = None
        if row is not None:
            await connection.rollback()
            assert row[0] == fingerprint(key)
            return row[3]
        body = await pay(connection, way, key)
        await connection.execute(store, (body, key))
        await connection.commit()
        return body

    return run


async def raw(connection, key):
    print = fingerprint(key)
    id, run_lock, print_lock, printed = identity(key, print)
    owner = os.urandom(16)
    action, fence, _, body = await one(connection, BEGIN_RAW, id, SCOPE, print, owner, run_lock, print_lock, printed)
    if action == "replay":
        await connection.rollback()
        return body
    body = await pay(connection, "raw", key)
    await connection.execute(SETTLE_RAW, (id, owner, fence, wait_lock(id), body))
    await connection.commit()
    return body


async def psql(connection, key):
    action, claim, body = await one(connection, BEGIN, key, fingerprint(key))
    if action == "replay":
        await connection.rollback()
        return body
    body = await pay(connection, "psql", key)
    await connection.execute(SETTLE, (claim, body))
    await connection.commit()
    return body


async def statements(connection, key):
    print = fingerprint(key)
    id, run_lock, print_lock, printed = identity(key, print)
    row = await one(connection, ENTER, run_lock, print_lock, printed, id)
    if row[2] is not None:
        await connection.rollback()
        assert row[1] == print and row[2] == 2
        return row[8]
    body = await pay(connection, "statements", key)
    await connection.execute(FINISH, (id, SCOPE, print, os.urandom(16), row[0], body, wait_lock(id)))
    await connection.commit()
    return body


INSERT = {way: statement("insert", way) for way in WAYS}
BEGIN_RAW, SETTLE_RAW, BEGIN, SETTLE, ENTER, FINISH = (statement(name) for name in ("begin_raw", "settle_raw", "begin", "settle", "enter", "finish"))
RUN = {"bare": bare, "hand": by_hand("hand", False), "hand2": by_hand("hand2", True), "raw": raw, "psql": psql, "statements": statements}


async def measure(way, connections, keys):
    """Transactions per second. keys makes new keys, or returns known ones."""
    done, end = 0, time.monotonic() + EACH

    async def caller(connection):
        nonlocal done
        while time.monotonic() < end:
            key, want = keys()
            got = await way(connection, key)
            if want is not None and got != want:
                raise SystemExit(f"a replay is {got}, and was {want}")
            done += 1

    began = time.monotonic()
    await asyncio.gather(*(caller(c) for c in connections))
    return done / (time.monotonic() - began), done


async def main():
    total = dict.fromkeys(WAYS, 0)
    for callers in (1, 16):
        connections = [await psycopg.AsyncConnection.connect(URL) for _ in range(callers)]
        rates, known = {}, {}
        for name in WAYS[1:]:
            known[name] = []
            for _ in range(200):
                key = str(uuid.uuid4())
                known[name].append((key, await RUN[name](connections[0], key)))
            total[name] += 200
        for n in range(ROUNDS + 1):  # the first does not count
            for name in WAYS:
                rate, done = await measure(RUN[name], connections, lambda: (str(uuid.uuid4()), None))
                total[name] += done
                if n > 0:
                    rates.setdefault(name, []).append(rate)
            for name in WAYS[1:]:
                turn = iter(range(1 << 62))
                rate, _ = await measure(RUN[name], connections, lambda: known[name][next(turn) % 200])
                if n > 0:
                    rates.setdefault(name + "_replay", []).append(rate)
        for connection in connections:
            await connection.close()
        print(json.dumps({"Prefix": f"bench_sql_psycopg_{callers}_", "Rates": rates, "Done": total}), flush=True)


asyncio.run(main())
