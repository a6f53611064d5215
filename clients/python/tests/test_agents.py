"""Tools of agents, over psycopg and asyncpg."""

from __future__ import annotations

import json
import unittest
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import stet
from stet.agents import CallRefused, Tools
from stet.psycopg import Psycopg
from stet.toolcall import KEYED, PLAIN, Call, flaw, text_of
from support import Ledger, database_url
from test_core import VECTORS
from wire import Proxy

INSERT = "INSERT INTO payments (amount) VALUES (%d)"


@contextmanager
def connect() -> Any:
    with psycopg.connect(database_url("shop")) as connection:
        yield connection


@dataclass
class Order:
    id: str


class Agents(unittest.TestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)
        self.connection = psycopg.connect(database_url("shop"))
        self.addCleanup(self.connection.close)
        self.tools = Tools(self.connection, scope="acct_1")

    def refused(self, tool: Any, *args: Any, tools: Any = None) -> CallRefused:
        with self.assertRaises(CallRefused) as raised:
            tool(*args)
        return raised.exception

    def tool(self, tools: Tools | None = None, then: Any = lambda: {"paid": True}, **options: Any) -> Any:
        used = tools or self.tools

        @used(**options)
        def pay(order: str, amount: int, note: str = "") -> Any:
            used.transaction.execute(INSERT % amount)
            return then()

        return pay

    def test_a_business_key_runs_once_in_each_tool(self) -> None:
        pay, refund = self.tool(key=lambda order, *_: order), self.tool(key=lambda order, *_: order, name="refund")
        said = [pay("o-1", 68001), pay("o-1", amount=68001, note=""), refund("o-1", 68001)]
        self.assertEqual((said, self.ledger.paid(68001)), ([{"paid": True}] * 3, 2))
        other = self.refused(pay, "o-1", 68002)
        self.assertEqual((other.problem, other.execution, self.ledger.paid(68002)), ("mismatch", "not executed", 0))
        row = self.ledger.connection.execute("SELECT encode(stet.stet_id('acct_1', 'pay o-1'), 'hex')").fetchone()
        self.assertEqual(((other.meta["operation"],), other.operation), (row, other.meta["operation"]))

    def test_equal_calls_without_a_key_are_not_one(self) -> None:
        pay = self.tool(key=lambda *_: None)
        for _ in range(2):
            refused = self.refused(pay, "o-2", 68003)
            self.assertEqual((refused.problem, refused.execution, refused.meta.get("operation")), ("key-missing", "not executed", None))
            self.assertIn("no idempotency key", str(refused))
        self.assertEqual(self.ledger.paid(68003), 0)
        for id_ in ("toolu_1", "toolu_1", "toolu_2"):
            with self.tools.call(id_):
                pay("o-2", 68003)
        self.assertEqual(self.ledger.paid(68003), 2)
        with self.tools.call("a key"):
            self.assertEqual(self.refused(pay, "o-2", 68003).problem, "key-invalid")

    def test_a_failing_key_function_refuses_the_call(self) -> None:
        for key in (lambda order, *_: {}[order], lambda *_: "", lambda *_: 7, lambda *_: "x" * 513):
            with self.assertLogs("stet", "ERROR"), self.tools.call("toolu_3"):  # which is no way out
                refused = self.refused(self.tool(key=key), "o-3", 68004)
            self.assertEqual((refused.problem, refused.execution, self.ledger.paid(68004)), ("key-invalid", "not executed", 0))

    def test_a_scope_function_that_fails_refuses(self) -> None:
        for scope, problem in ((lambda: {}["user"], "scope-failed"), (lambda: "", "scope-missing")):
            with self.assertNoLogs("stet") if problem == "scope-missing" else self.assertLogs("stet", "ERROR"):
                pay = self.tool(Tools(self.connection, scope=scope), key=lambda order, *_: order)
                self.assertEqual((self.refused(pay, "o-4", 68005).problem, self.ledger.paid(68005)), (problem, 0))

    def test_an_exception_rolls_back_and_a_refusal_is_stored(self) -> None:
        calls = iter([ValueError("later"), stet.Refusal("the card was declined"), AssertionError("a third run")])

        def then() -> Any:
            raise next(calls)

        pay = self.tool(then=then, key=lambda order, *_: order)
        with self.assertRaises(ValueError):
            pay("o-5", 68006)
        for _ in range(2):
            refused = self.refused(pay, "o-5", 68006)
            self.assertEqual((refused.problem, str(refused), refused.retryable), ("operation-failed", "the card was declined", False))
        self.assertEqual(self.ledger.paid(68006), 0)

    def test_an_unknown_outcome_is_in_words_and_the_next_call_returns_it(self) -> None:
        proxy = Proxy(self.connection.info.host, self.connection.info.port)
        self.addCleanup(proxy.close)
        lost = psycopg.connect(database_url("shop", proxy.port))
        self.addCleanup(lost.close)
        pay = self.tool(Tools(lost, scope="acct_1"), key=lambda order, *_: order)
        proxy.arm("reply")
        refused = self.refused(pay, "o-6", 68007)
        self.assertEqual((refused.problem, refused.execution, refused.retryable), ("outcome-unknown", "may have executed", True))
        self.assertTrue(str(refused).startswith("Outcome unknown: it may have been executed or not. Do not try it in another way"), refused)
        self.assertIn("Calling it again with exactly the same arguments is safe", str(refused))
        retry = self.tool(Tools(Psycopg(connect), scope="acct_1"), key=lambda order, *_: order)  # it waits until the server has seen that the connection is lost
        self.assertEqual((retry("o-6", 68007), self.ledger.paid(68007)), ({"paid": True}, 1))

    def test_a_second_call_is_still_running_for_the_model(self) -> None:
        found: list[CallRefused] = []
        second = self.tool(Tools(Psycopg(connect), scope="acct_1", patience=0.1), key=lambda order, *_: order)
        first = self.tool(then=lambda: found.append(self.refused(second, "o-7", 68008)), key=lambda order, *_: order)
        first("o-7", 68008)
        self.assertEqual(([r.problem for r in found], self.ledger.paid(68008)), (["in-flight"], 1))
        self.assertTrue(str(found[0]).startswith("Still running: "), found)

    def test_arguments_and_results_are_values_for_json(self) -> None:
        @self.tools(key=lambda order: order.id)
        def paid(order: Order) -> Any:
            self.tools.transaction.execute(INSERT % 68009)
            return order

        self.assertEqual([paid(Order("o-8")), paid(Order("o-8"))], [{"id": "o-8"}] * 2)
        with self.assertRaises(RuntimeError):
            self.tools.transaction
        with self.assertRaises(TypeError):
            self.tool(key=lambda order, *_: "k")(object(), 68010)
        self.assertEqual((self.ledger.paid(68009), self.ledger.paid(68010)), (1, 0))

    def test_keys_and_texts_are_those_of_docs(self) -> None:
        with open(VECTORS, encoding="utf-8") as file:
            vectors = json.load(file)["tools"]
        self.assertGreater(len(vectors["texts"]), 12)
        for v in vectors["texts"]:
            same = KEYED if v["keyed"] else PLAIN
            self.assertEqual(text_of(v["problem"], v["execution"], same, v.get("why", "")), v["text"])
        for v in vectors["keys"]:
            self.assertEqual(flaw(v["key"]), v["flaw"])
        self.assertEqual((Call("k", over_mcp=True).same, Call(None, over_mcp=True).same, Call("k").same), (KEYED, PLAIN, PLAIN))


class AgentsOfAsyncio(unittest.IsolatedAsyncioTestCase):
    async def test_a_tool_of_asyncio_runs_once(self) -> None:
        ledger = Ledger()
        self.addCleanup(ledger.close)
        connection = await asyncpg.connect(database_url("shop").partition("?")[0], ssl=False)
        tools = Tools(connection, scope="acct_1")

        @tools(key=lambda order: order)
        async def pay(order: str) -> dict[str, bool]:
            await tools.transaction.execute(INSERT % 68011)
            return {"paid": True}

        self.assertEqual(([await pay("o-9"), await pay("o-9")], ledger.paid(68011)), ([{"paid": True}] * 2, 1))
        await connection.close()


if __name__ == "__main__":
    unittest.main()
