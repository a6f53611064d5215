"""What the callbacks of the tested consumers do."""

import functools
import os
from typing import Any

import psycopg
import stet
from service import INSERT, URL

connect = functools.partial(psycopg.connect, URL)
failed: set[int] = set()
finished: list[Any] = []


def once(amount: int) -> bool:
    """Whether a callback runs for the first time in this process."""
    first = amount not in failed
    failed.add(amount)
    return first


async def act(op: Any, execute: Any, amount: int, do: str) -> None:
    """Pays amount with the transaction of op. execute is an async function of a transaction, a statement and its arguments."""
    if do == "late":  # a write in the transaction of the operation before
        try:
            await execute(finished[-1].transaction, INSERT.format("%s"), [amount + 1])
        except RuntimeError:
            pass
    if do == "nested":
        with stet.operation(connect(), scope="nested", key=str(amount), payload=b"") as inner:
            if not inner.replayed:
                inner.transaction.execute(INSERT.format("%s"), [amount + 1])
    await execute(op.transaction, INSERT.format("%s"), [amount])
    finished.append(op)
    if do == "second":  # a connection of its own does not see the write
        with connect() as other:
            if other.execute("SELECT 1 FROM payments WHERE amount = %s", [amount]).fetchone():
                os.abort()
    if do == "wait":
        await execute(op.transaction, "SELECT 1 FROM pg_advisory_xact_lock(4711)", [])
    if do == "refuse":
        raise stet.Refusal("no such card")
    if do == "always" or do in ("later", "nested") and once(amount):
        raise RuntimeError("broke off")
    if do == "timeout" and once(amount):
        await execute(op.transaction, "SELECT set_config('statement_timeout', '50', true), pg_sleep(0)", [])
        await execute(op.transaction, "SELECT pg_sleep(60)", [])
    if do == "large":
        op.result = "x" * (1 << 21)
