"""The programs of README.md run."""

import asyncio
import functools
import os
import re
import types
import unittest
from typing import Any

import flask
import psycopg
from fastapi import Depends, FastAPI
from stet.asgi import Idempotent
from stet.psycopg import AsyncPsycopg
from support import Ledger, database_url
from test_asgi import send

HERE = os.path.dirname(os.path.abspath(__file__))


def programs() -> list[str]:
    with open(os.path.join(os.path.dirname(HERE), "README.md"), encoding="utf-8") as page:
        return re.findall(r"^```python\n(.*?)^```", page.read(), re.MULTILINE | re.DOTALL)


class Readme(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.addCleanup(self.ledger.close)

    def run_program(self, of: str, **names: Any) -> dict[str, Any]:
        found = [program for program in programs() if of in program]
        self.assertEqual(len(found), 1, of)
        exec(compile(found[0], "README.md", "exec"), names)  # noqa: S102
        return names

    async def test_the_first_program_pays_once(self) -> None:
        os.environ["DATABASE_URL"] = database_url("shop")
        app = self.run_program("scope=lambda request", __name__="readme")["app"]
        amount = 88001
        for replayed in (False, True):
            got = await send(app, "/payments", body=b'{"amount": %d}' % amount, key="readme-1", account="acct_1")
            fields = dict(got[0]["headers"])
            self.assertEqual((got[0]["status"], b"idempotent-replayed" in fields), (201, replayed))
        self.assertEqual(self.ledger.paid(amount), 1)

    async def test_the_program_for_flask_pays_once(self) -> None:
        app = flask.Flask("readme")
        connect = functools.partial(psycopg.connect, database_url("shop"))
        self.run_program("from stet.flask", app=app, flask=flask, connect=connect)
        amount = 88002
        for replayed in (None, "true"):
            got = await asyncio.to_thread(app.test_client().post, "/payments", json={"amount": amount}, headers={"Idempotency-Key": "readme-2", "X-Account": "a"})
            self.assertEqual((got.status_code, got.headers.get("Idempotent-Replayed")), (201, replayed))
        self.assertEqual(self.ledger.paid(amount), 1)

    async def test_a_message_is_emitted_and_a_session_joins(self) -> None:
        app = FastAPI()
        connect = functools.partial(psycopg.AsyncConnection.connect, database_url("shop"))
        idempotent = Idempotent(AsyncPsycopg(connect), scope=lambda request: "acct_1")
        app.add_middleware(idempotent.middleware)

        async def get_session() -> Any:
            raise AssertionError("it has a connection of its own")

        self.run_program("idempotent.joins", app=app, idempotent=idempotent, get_session=get_session)
        pay = self.run_program("await emit(", Payment=types.SimpleNamespace, AsyncConnection=Any, AsyncEmit=Any, Depends=Depends, idempotent=idempotent)["pay"]

        @app.post("/pay")
        @idempotent
        async def endpoint(session: Any = Depends(get_session), emit: Any = Depends(idempotent.emit)) -> str:
            await pay(types.SimpleNamespace(paid=1, amount=42, account="acct 1"), session, emit)
            return "paid"

        self.assertEqual((await send(app, key="readme-3"))[0]["status"], 200)
        self.assertEqual(len(self.ledger.messages("readme-3")), 1)


if __name__ == "__main__":
    unittest.main()
