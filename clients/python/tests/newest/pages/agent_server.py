"""A server of tools over standard input and output.

    DATABASE_URL=postgres://shop@localhost/shop python3 agent_server.py
"""

import os
from contextlib import contextmanager

import psycopg
from mcp.server import MCPServer
from stet.agents import Tools
from stet.psycopg import Psycopg


@contextmanager
def connect():
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        yield connection


tools = Tools(Psycopg(connect), scope="acct_1")
server = MCPServer("shop", middleware=[tools.mcp])


@server.tool()
@tools
def pay(order: str, amount: int) -> dict[str, int]:
    """Pays an order."""
    row = tools.transaction.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [amount]).fetchone()
    if amount == 13:
        raise ValueError("no luck")
    return {"payment": row[0]}


if __name__ == "__main__":
    server.run()
