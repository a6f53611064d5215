"""Runs the tool calls of a model, in turn: each is {"id": ..., "name": ..., "input": {...}} on a line.

    DATABASE_URL=postgres://shop@localhost/shop python3 agent.py < calls.jsonl
"""

import json
import os
import sys

import psycopg
from stet.agents import CallRefused, Tools

connection = psycopg.connect(os.environ["DATABASE_URL"])
tools = Tools(connection, scope="acct_1")


@tools(key=lambda order, amount: order)
def pay(order: str, amount: int) -> dict[str, int]:
    """Pays an order."""
    row = tools.transaction.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [amount]).fetchone()
    return {"payment": row[0]}


@tools
def tip(amount: int) -> dict[str, int]:
    """Pays a tip. No argument says which: the key is the ID of the call."""
    row = tools.transaction.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [amount]).fetchone()
    return {"payment": row[0]}


for line in sys.stdin:
    call = json.loads(line)
    try:
        with tools.call(call["id"]):
            print(json.dumps({"pay": pay, "tip": tip}[call["name"]](**call["input"])))
    except CallRefused as refused:
        print("error:", refused)  # the model reads this
