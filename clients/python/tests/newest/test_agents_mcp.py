"""stet.agents in a server of the official SDK, and the programs of docs/agents.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from typing import Any

from mcp import Client, StdioServerParameters
from support import HERE, Ledger, database_url

PAGES = os.path.join(HERE, "newest", "pages")
PREFIX = "io.github.stet-go/"


def ours(result: Any) -> dict[str, Any]:
    """The members of _meta that are stet's. The SDK has its own."""
    return {name.removeprefix(PREFIX): value for name, value in (result.meta or {}).items() if name.startswith(PREFIX)}


class Agents(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        self.env = {**os.environ, "DATABASE_URL": database_url("shop")}

    def client(self) -> Client:
        return Client(StdioServerParameters(command=sys.executable, args=[os.path.join(PAGES, "agent_server.py")], env=self.env))

    async def pay(self, client: Client, key: str | None, amount: int) -> Any:
        return await client.call_tool("pay", {"order": "o-1", "amount": amount}, meta={PREFIX + "idempotency-key": key} if key else None)

    async def test_a_tool_of_a_server_runs_once_for_a_key(self) -> None:
        async with self.client() as client:
            first, again = await self.pay(client, "key-1", 67001), await self.pay(client, "key-1", 67001)
            other = await self.pay(client, "key-1", 67002)
            keyless = [await self.pay(client, None, 67003) for _ in range(2)]
            invalid = await self.pay(client, "a key", 67003)
            undone = [await self.pay(client, "key-2", 13) for _ in range(2)]
        async with self.client() as client:  # a second process
            later = await self.pay(client, "key-1", 67001)
        self.assertFalse(first.is_error, first)
        for result in (again, later):
            self.assertEqual((result.structured_content, result.content, ours(result)), (first.structured_content, first.content, {"replayed": True}))
        self.assertEqual((ours(first), self.ledger.paid(67001), self.ledger.paid(67002), self.ledger.paid(67003), self.ledger.paid(13)), ({}, 1, 0, 0, 0))
        for result, problem, words in [(other, "mismatch", "Not executed: this idempotency key"), *((k, "key-missing", "Not executed: this tool needs") for k in keyless),
                                       (invalid, "key-invalid", "Not executed: the idempotency key"), *((u, "not-executed", "Error executing tool pay") for u in undone)]:
            told = ours(result)["problem"]
            self.assertEqual((result.is_error, told["type"].rpartition("#")[2], told["execution"]), (True, problem, "not executed"))
            self.assertTrue(result.content[0].text.startswith(words), result)
        self.assertIn("It is safe to call it again", undone[0].content[1].text)
        row = self.ledger.connection.execute("SELECT encode(stet.stet_id('acct_1', 'key-1'), 'hex')").fetchone()
        self.assertEqual((ours(other)["problem"]["operation"],), row)

    def test_the_loop_of_an_agent_pays_once(self) -> None:
        calls = [{"id": id_, "name": name, "input": {"amount": amount, **order}} for id_, name, amount, order in
                 [("call-1", "pay", 67011, {"order": "o-1"}), ("call-2", "pay", 67011, {"order": "o-1"}), ("call-3", "pay", 67012, {"order": "o-1"}),
                  ("call-4", "tip", 67013, {}), ("call-4", "tip", 67013, {}), ("call-5", "tip", 67013, {})]]
        said = subprocess.run([sys.executable, os.path.join(PAGES, "agent.py")], env=self.env, input="\n".join(map(json.dumps, calls)), capture_output=True, check=True, text=True).stdout.splitlines()
        self.assertEqual((said[0], said[3], len(said)), (said[1], said[4], 6))
        self.assertTrue(said[2].startswith("error: Not executed: this idempotency key was used before"), said[2])
        self.assertNotEqual(said[4], said[5])
        self.assertEqual([self.ledger.paid(amount) for amount in (67011, 67012, 67013)], [1, 0, 2])


if __name__ == "__main__":
    unittest.main()
