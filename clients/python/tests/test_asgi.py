"""The middleware for FastAPI and Starlette, over a fake database: its calls and their order."""

import asyncio
import json
import threading
import unittest
from typing import Any
from unittest import mock

from fastapi import BackgroundTasks, Depends, FastAPI, Response
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route

from stet import asgi, threads
from stet.asgi import Idempotent

RUN = ("run", 1, "running", None, None, None, None)


class Database:
    """It records its calls."""

    blocking = False

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self.rows = list(rows) or [RUN]
        self.done: list[str] = []
        self.begins: asyncio.Future[None] | None = None
        self.commits: asyncio.Future[None] | None = None
        self.error: Exception | None = None

    def mark(self, n: int) -> str:
        return f"${n}"

    async def begin(self) -> "Transaction":
        if self.error:
            raise self.error
        self.done.append("begin")
        return Transaction(self)

    async def pause(self, seconds: float) -> None: ...


class Transaction:
    lasts = True

    def __init__(self, database: Database) -> None:
        self.database, self.handle = database, "handle"

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.database.rows.pop(0)

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        self.database.done.append("settle")
        self.database.settled = arguments
        self.database.done.append("commit")
        if self.database.commits:
            await self.database.commits
        self.database.done.append("committed")

    async def close(self) -> None:
        self.database.done.append("close")


async def send(app: Any, path: str = "/pay", method: str = "POST", body: bytes = b"{}", key: str | None = "k", more: bool = False,
               database: Database | None = None, claim: str | None = None, origin: str = "", account: str = "", coding: str | None = None) -> list[Any]:
    """The messages of the answer."""
    headers = [(b"content-type", b"application/json")] + ([(b"idempotency-key", key.encode())] if key else []) \
        + ([(b"stet-claim", claim.encode())] if claim else []) + ([(b"origin", origin.encode())] if origin else []) \
        + ([(b"x-account", account.encode())] if account else []) + ([(b"accept-encoding", coding.encode())] if coding is not None else [])
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
             "query_string": b"", "headers": headers, "scheme": "http", "server": ("t", 80), "client": ("c", 1), "root_path": ""}
    incoming = [{"type": "http.request", "body": body, "more_body": more}, {"type": "http.disconnect"}]
    outgoing: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0) if incoming else await asyncio.Future()

    async def answer(message: Any) -> None:
        if database is not None and message["type"] == "http.response.start":
            database.done.append("answer")
        outgoing.append(message)

    await app(scope, receive, answer)
    await asyncio.sleep(0)  # a replay does not wait for the end of its transaction
    return outgoing


def problem(messages: list[Any]) -> tuple[int, str]:
    return messages[0]["status"], json.loads(messages[1]["body"])["type"].rpartition("#")[2]


def service(database: Database, **options: Any) -> tuple[FastAPI, Idempotent]:
    app = FastAPI()
    scope = {} if options.get("sidecar") else {"scope": lambda request: "acct"}
    idempotent = Idempotent(database, **{**scope, **options})
    app.add_middleware(idempotent.middleware)
    return app, idempotent


class BehindTheSidecar(unittest.IsolatedAsyncioTestCase):
    async def test_where_keys_are_optional_a_request_without_one_runs_without_a_transaction(self) -> None:
        for optional, key, want in ((True, None, (200, [])), (True, "k", (500, [])), (False, None, (500, [])), (False, "k", (500, []))):
            database = Database()
            app, idempotent = service(database, sidecar=True, optional=optional)

            @app.post("/pay")
            @idempotent
            async def pay() -> str:
                return "paid"

            messages = await send(app, key=key)
            self.assertEqual((messages[0]["status"], database.done), want, (optional, key))
            if want[0] == 500:
                self.assertEqual(problem(messages), (500, "misconfigured"))

    async def test_a_claim_is_refused_without_the_option_where_keys_are_optional_too(self) -> None:
        database = Database()
        app, idempotent = service(database, optional=True)

        @app.post("/pay")
        @idempotent
        async def pay() -> str:
            raise AssertionError

        with self.assertLogs("stet", "ERROR") as logged:
            for _ in range(2):
                self.assertEqual(problem(await send(app, key=None, claim="c1.x")), (500, "misconfigured"))
        self.assertEqual((len(logged.output), database.done), (1, []))


class Middleware(unittest.IsolatedAsyncioTestCase):
    async def test_the_answer_is_sent_after_the_commit_and_background_tasks_run_after_that(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay(tasks: BackgroundTasks, tx: str = Depends(idempotent.transaction)) -> str:
            tasks.add_task(database.done.append, "task")
            database.done.append(tx.lower())
            return "paid"

        messages = await send(app, database=database)
        self.assertEqual(messages[1]["body"], b'"paid"')
        self.assertEqual(database.done, ["begin", "handle", "settle", "commit", "committed", "close", "answer", "task"])

    async def test_a_request_that_is_cancelled_in_its_commit_is_committed(self) -> None:
        database = Database()
        database.commits = asyncio.get_running_loop().create_future()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> str:
            return "paid"

        request = asyncio.ensure_future(send(app))
        while "commit" not in database.done:
            await asyncio.sleep(0)
        request.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await request
        self.assertNotIn("close", database.done)
        database.commits.set_result(None)
        while "close" not in database.done:
            await asyncio.sleep(0)
        self.assertEqual(database.done, ["begin", "settle", "commit", "committed", "close"])

    async def test_a_request_that_is_cancelled_in_its_handler_is_rolled_back(self) -> None:
        database, entered = Database(), asyncio.Event()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> None:
            entered.set()
            await asyncio.Future()

        request = asyncio.ensure_future(send(app))
        await entered.wait()
        request.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await request
        self.assertEqual(database.done, ["begin", "close"])

    async def test_a_response_that_breaks_off_is_rolled_back(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> StreamingResponse:
            async def chunks() -> Any:
                yield b"half"
                raise RuntimeError("broke off")
            return StreamingResponse(chunks())

        with self.assertRaises(RuntimeError):
            await send(app)
        self.assertEqual(database.done, ["begin", "close"])

    async def test_an_application_without_a_response_is_logged(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @idempotent
        async def pay(scope: Any, receive: Any, send: Any) -> None: ...

        router = mock.Mock(path="/pay", routes=None)
        router.matches.return_value = (asgi.Match.FULL, {"endpoint": pay})
        app.router.routes.append(router)
        router.handle = pay
        self.assertEqual(problem(await send(app)), (500, "response-missing"))
        self.assertEqual(database.done, ["begin", "close"])

    async def test_a_client_that_leaves_during_the_commit_of_a_stream_is_not_logged_as_not_executed(self) -> None:
        database = Database()
        database.commits = asyncio.get_running_loop().create_future()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> StreamingResponse:
            async def chunks() -> Any:
                yield b"paid"
            return StreamingResponse(chunks())

        with self.assertNoLogs("stet", "ERROR"):
            self.assertEqual(await send(app), [])  # its receive says that the client has left
        database.commits.set_result(None)
        while "close" not in database.done:
            await asyncio.sleep(0)
        self.assertEqual(database.done, ["begin", "settle", "commit", "committed", "close"])

    async def test_a_response_too_large_to_hold_is_rolled_back(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> Response:
            return Response(b"x" * 11)

        with mock.patch.object(asgi, "MAX_HELD", 10):
            self.assertEqual(problem(await send(app)), (500, "response-too-large"))
        self.assertEqual(database.done, ["begin", "close"])

    async def test_endpoints_are_found_where_they_are_mounted(self) -> None:
        database = Database()
        idempotent = Idempotent(database, scope=lambda request: "acct")

        @idempotent
        async def pay(request: Any) -> PlainTextResponse:
            return PlainTextResponse(await idempotent.transaction(request))

        app = Starlette(routes=[Mount("/v1", routes=[Route("/pay", pay, methods=["POST", "GET", "PUT"])])])
        app.add_middleware(idempotent.middleware)
        self.assertEqual((await send(app, "/v1/pay"))[1]["body"], b"handle")
        self.assertIn("commit", database.done)
        database.rows.append(RUN)
        self.assertEqual((await send(app, "/v1/pay", "PUT"))[1]["body"], b"handle")
        with self.assertRaisesRegex(RuntimeError, "no transaction"):
            await send(app, "/v1/pay", "GET")

    async def test_endpoints_are_found_behind_other_middleware(self) -> None:
        database = Database()
        idempotent = Idempotent(database, scope=lambda request: "acct")

        @idempotent
        async def pay(request: Any) -> PlainTextResponse:
            return PlainTextResponse("paid")

        def plain() -> Starlette:
            return Starlette(routes=[Route("/pay", pay, methods=["POST"])])

        wrapped = Starlette(routes=[Mount("/v1", CORSMiddleware(plain(), ["*"]))])
        wrapped.add_middleware(idempotent.middleware)
        inside = Starlette(routes=[Mount("/v1", idempotent.middleware(plain()))])
        for app, path in ((wrapped, "/v1/pay"), (inside, "/v1/pay"), (idempotent.middleware(plain()), "/pay"),
                          (CORSMiddleware(idempotent.middleware(plain()), ["*"]), "/pay")):
            database.rows, database.done = [RUN], []
            self.assertEqual((await send(app, path))[1]["body"], b"paid")
            self.assertEqual(database.done, ["begin", "settle", "commit", "committed", "close"])

        async def opaque(scope: Any, receive: Any, send: Any) -> None:
            self.fail("it was called")

        with self.assertRaisesRegex(RuntimeError, "no routes"):
            await send(idempotent.middleware(opaque))

    async def test_an_endpoint_without_the_decorator_is_left_alone(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        async def pay() -> str:
            return "unprotected"

        self.assertEqual((await send(app, key=None))[1]["body"], b'"unprotected"')
        self.assertEqual(database.done, [])

    async def test_protection_twice_is_refused(self) -> None:
        database = Database()
        app, idempotent = service(database)
        app.add_middleware(idempotent.middleware)

        @app.post("/pay")
        @idempotent
        async def pay() -> None:
            self.fail("it was called")

        self.assertEqual(problem(await send(app)), (500, "misconfigured"))
        self.assertEqual(database.done, ["begin", "close"])

    async def test_without_a_database_nothing_runs(self) -> None:
        database = Database()
        database.error = OSError("connection refused")
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> None:
            self.fail("it was called")

        messages = await send(app)
        self.assertEqual(problem(messages), (503, "store-unavailable"))
        self.assertIn((b"retry-after", b"1"), messages[0]["headers"])

    async def test_scope_functions_may_be_async_and_may_fail(self) -> None:
        async def failing(request: Any) -> str:
            raise ValueError("secret")

        for scope, want in ((failing, (500, "scope-failed")), (lambda request: None, (403, "scope-missing"))):
            database = Database()
            app, idempotent = service(database, scope=scope)

            @app.post("/pay")
            @idempotent
            async def pay() -> None:
                self.fail("it was called")

            self.assertEqual(problem(await send(app)), want)
            self.assertEqual(database.done, [])

    async def test_a_key_may_be_optional(self) -> None:
        database = Database()
        app, idempotent = service(database, optional=True)

        @app.post("/pay")
        @idempotent
        async def pay() -> str:
            return "unprotected"

        self.assertEqual((await send(app, key=None))[1]["body"], b'"unprotected"')
        self.assertEqual(database.done, [])

    async def test_a_client_that_left_before_its_body_has_executed_nothing(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay() -> None:
            self.fail("it was called")

        self.assertEqual(await send(app, more=True), [])
        self.assertEqual(database.done, [])

    async def test_outcomes_without_a_response_are_converted(self) -> None:
        rows = {
            ("replay", 1, "completed", None, None, None, b'{"a":1}'): (200, b"application/json", b'{"a":1}'),
            ("replay", 1, "completed", None, None, None, b"\xff"): (200, b"application/octet-stream", b"\xff"),
            ("replay", 1, "completed", None, None, None, b""): (204, None, b""),
            ("replay", 1, "failed", None, None, None, b"why"): (500, b"application/problem+json", None),
            ("unknown", 1, "unknown", None, None, None, None): (504, b"application/problem+json", None),
            ("expired", 1, "failed", None, None, None, None): (410, b"application/problem+json", None),
        }
        for row, (status, content_type, body) in rows.items():
            database = Database(row)
            app, idempotent = service(database)

            @app.post("/pay")
            @idempotent
            async def pay() -> None:
                self.fail("it was called")

            start, content = await send(app)
            headers = dict(start["headers"])
            self.assertEqual((start["status"], headers.get(b"content-type")), (status, content_type))
            self.assertEqual(headers.get(b"idempotent-replayed"), b"true" if row[0] == "replay" else None)
            operation = json.loads(content["body"])["operation"].encode() if status == 504 else None
            self.assertEqual((headers.get(b"stet-operation"), operation is None or len(operation)), (operation, operation is None or 64))
            if body is not None:
                self.assertEqual(content["body"], body)
            self.assertEqual(database.done, ["begin", "close"])


class OneConnection:
    """A blocking database with a pool of one connection."""

    blocking = lasts = True

    def __init__(self) -> None:
        self.pool, self.began = threading.Semaphore(1), threading.Event()
        self.handle = "handle"

    def mark(self, n: int) -> str:
        return f"${n}"

    async def begin(self) -> "OneConnection":
        if not self.pool.acquire(timeout=5):
            raise OSError("no connection is free")
        self.began.set()
        return self

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return RUN

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None: ...

    async def close(self) -> None:
        self.pool.release()

    async def pause(self, seconds: float) -> None: ...


class BlockingDatabases(unittest.IsolatedAsyncioTestCase):
    async def test_waiting_requests_do_not_prevent_the_release_of_a_connection(self) -> None:
        with mock.patch.object(threads, "_THREADS", 1):
            app, idempotent = service(OneConnection())  # type: ignore[arg-type]

        @app.post("/pay")
        @idempotent
        async def pay() -> str:
            return "paid"

        answers = await asyncio.wait_for(asyncio.gather(*(send(app, key=str(n)) for n in range(5))), 30)
        self.assertEqual([a[1]["body"] for a in answers], [b'"paid"'] * 5)

    async def test_a_connection_is_not_released_while_a_thread_uses_it(self) -> None:
        database = OneConnection()
        app, idempotent = service(database)  # type: ignore[arg-type]
        entered, proceed, used = threading.Event(), threading.Event(), []

        @app.post("/pay")
        @idempotent
        def pay() -> str:
            entered.set()
            proceed.wait(30)
            used.append(database.pool.acquire(blocking=False))
            return "paid"

        request = asyncio.ensure_future(send(app))
        await asyncio.to_thread(entered.wait)
        for _ in range(2):
            request.cancel()
            await asyncio.wait([request], timeout=0.1)
        proceed.set()
        with self.assertRaises(asyncio.CancelledError):
            await request
        while not used:
            await asyncio.sleep(0)
        self.assertEqual(used, [False], "another request may have got the connection while the endpoint used it")
        self.assertTrue(await asyncio.to_thread(database.pool.acquire, timeout=10), "the connection was not released")

    async def test_a_transaction_that_begins_after_its_request_was_cancelled_is_closed(self) -> None:
        database = OneConnection()
        app, idempotent = service(database)  # type: ignore[arg-type]

        @app.post("/pay")
        @idempotent
        async def pay() -> str:
            return "paid"

        database.pool.acquire()
        request = asyncio.ensure_future(send(app))
        while not idempotent.database._begins._threads:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        request.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await request
        database.pool.release()
        await asyncio.to_thread(database.began.wait)
        self.assertTrue(await asyncio.to_thread(database.pool.acquire, timeout=10), "the connection was not released")


if __name__ == "__main__":
    unittest.main()
