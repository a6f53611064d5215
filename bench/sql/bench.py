"""Measures transactions of psycopg: bare, with the functions of stet, and with an idempotency table by hand."""

import asyncio
import hashlib
import os
import statistics
import time
import uuid

import psycopg

URL, EACH, ROUNDS = os.environ["DATABASE_URL"], float(os.environ["EACH"]), int(os.environ["ROUNDS"])
INSERT = "INSERT INTO ledger_{} (key) VALUES (%s) RETURNING id"
BEGIN = "SELECT action, claim, status, headers, content_type, body FROM stet.stet_begin('acct_1', %s, %s, name => 'POST /payments')"
SETTLE = "SELECT stet.stet_settle(%s, 201, '{}', 'application/json', %s)"
RESERVE = "INSERT INTO idempotency (scope, key, fingerprint) VALUES ('acct_1', %s, %s) ON CONFLICT DO NOTHING RETURNING true"
STORED = "SELECT fingerprint, status, content_type, body FROM idempotency WHERE scope = 'acct_1' AND key = %s FOR UPDATE"
STORE = "UPDATE idempotency SET status = 201, content_type = 'application/json', body = %s WHERE scope = 'acct_1' AND key = %s"


def fingerprint(key):
    parts = [b"POST", b"/payments", b"application/json", b"", key.encode()]
    return b"\x01" + hashlib.sha256(b"\x01" + b"".join(len(p).to_bytes(8, "big") + p for p in parts)).digest()


async def one(connection, sql, *arguments):
    return await (await connection.execute(sql, arguments)).fetchone()


async def bare(connection, key):
    (number,) = await one(connection, INSERT.format("bare"), key)
    await connection.commit()
    return f'{{"payment": {number}}}'.encode()


async def stet(connection, key):
    row = await one(connection, BEGIN, key, fingerprint(key))
    if row[0] == "replay":
        await connection.rollback()
        return row[5]
    (number,) = await one(connection, INSERT.format("stet"), key)
    body = f'{{"payment": {number}}}'.encode()
    await connection.execute(SETTLE, (row[1], body))
    await connection.commit()
    return body


async def hand(connection, key):
    if await one(connection, RESERVE, key, fingerprint(key)) is None:
        row = await one(connection, STORED, key)
        await connection.rollback()
        assert row[0] == fingerprint(key)
        return row[3]
    (number,) = await one(connection, INSERT.format("hand"), key)
    body = f'{{"payment": {number}}}'.encode()
    await connection.execute(STORE, (body, key))
    await connection.commit()
    return body


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
    total = {"bare": 0, "stet": 0, "hand": 0}
    for callers in (1, 16):
        connections = [await psycopg.AsyncConnection.connect(URL) for _ in range(callers)]
        rates = {name: [] for name in (*total, "stet_replay", "hand_replay")}
        known = {}
        for way in (stet, hand):
            known[way] = []
            for _ in range(200):
                key = str(uuid.uuid4())
                known[way].append((key, await way(connections[0], key)))
                total[way.__name__] += 1
        for _ in range(ROUNDS):
            for way in (bare, stet, hand):
                rate, n = await measure(way, connections, lambda: (str(uuid.uuid4()), None))
                rates[way.__name__].append(rate)
                total[way.__name__] += n
            for way in (stet, hand):
                turn = iter(range(1 << 62))
                rate, _ = await measure(way, connections, lambda: known[way][next(turn) % 200])
                rates[way.__name__ + "_replay"].append(rate)
        for connection in connections:
            await connection.close()
        report("psycopg", callers, rates)
    with psycopg.connect(URL) as connection:
        for name, n in total.items():
            (rows,) = connection.execute(f"SELECT count(*) FROM ledger_{name}").fetchone()
            print(f"rows: {name} {rows} {n}")


def report(driver, callers, rates):
    for name, all in rates.items():
        print(f"figure: bench_sql_{driver}_{callers}_{name} = {statistics.median(all):.0f} transactions/s")
    for name, of, to in (("vs_bare", "stet", "bare"), ("hand_vs_bare", "hand", "bare"), ("vs_hand", "stet", "hand"), ("replay_vs_hand", "stet_replay", "hand_replay")):
        ratio = statistics.median(a / b for a, b in zip(rates[of], rates[to]))
        print(f"figure: bench_sql_{driver}_{callers}_{name} = {ratio:.2f} ratio", flush=True)


asyncio.run(main())
