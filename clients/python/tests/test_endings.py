"""How a run ends in FastAPI, over a fake database: errors, time limits, late writes and wrong wiring."""

import asyncio
import unittest
import unittest.mock
from collections.abc import Iterator
from typing import Any

from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from test_asgi import RUN, Database, problem, send, service

REFUSED = ["begin", "close", "begin", "settle", "commit", "committed", "close"]  # rolled back, and stored then
UNDONE = ["begin", "close"]
COMMITTED = ["begin", "settle", "commit", "committed", "close"]


class Domain(Exception): ...


class RaisedErrors(unittest.IsolatedAsyncioTestCase):
    async def test_an_error_undoes_the_writes_and_a_refusal_is_stored_then(self) -> None:
        for error, status, done in ((HTTPException(409), 409, REFUSED), (HTTPException(303), 303, REFUSED), (Domain(), 422, REFUSED),
                                    (HTTPException(401), 401, UNDONE), (HTTPException(408), 408, UNDONE), (HTTPException(429), 429, UNDONE),
                                    (HTTPException(503), 503, UNDONE), (HTTPException(200), 500, UNDONE)):
            for inside in ("endpoint", "dependency"):
                with self.subTest(f"{error!r} of the {inside}"):
                    database = Database(RUN, RUN)
                    app, idempotent = service(database)

                    @app.exception_handler(Domain)
                    async def domain(request: Request, error: Domain) -> JSONResponse:
                        return JSONResponse({}, 422)

                    async def fails(tx: Any = Depends(idempotent.transaction)) -> None:
                        if inside == "dependency":
                            raise error

                    @app.post("/pay")
                    @idempotent
                    async def pay(_: None = Depends(fails)) -> str:
                        raise error

                    messages = await send(app)
                    self.assertEqual((messages[0]["status"], database.done), (status, done))

    async def test_a_response_that_the_endpoint_wrote_commits(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay(tx: Any = Depends(idempotent.transaction)) -> JSONResponse:
            try:
                raise Domain
            except Domain:
                return JSONResponse({}, 409)

        async def around(scope: Any, receive: Any, send: Any) -> None:
            try:
                raise Domain
            except Domain:  # it is no error of the endpoint's
                await app(scope, receive, send)

        self.assertEqual(((await send(around))[0]["status"], database.done), (409, COMMITTED))

    async def test_a_request_that_the_framework_refuses_does_not_use_up_its_key(self) -> None:
        database = Database()
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay(amount: int, tx: Any = Depends(idempotent.transaction)) -> str:
            return "never"

        self.assertEqual(((await send(app))[0]["status"], database.done), (422, UNDONE))

    async def test_a_refusal_is_not_stored_over_the_outcome_of_a_retry_in_between(self) -> None:
        replay = ("replay", 1, "completed", 201, "text/plain", None, b"paid")
        database = Database(RUN, replay)
        app, idempotent = service(database)

        @app.post("/pay")
        @idempotent
        async def pay(tx: Any = Depends(idempotent.transaction)) -> str:
            raise HTTPException(409)

        messages = await send(app)
        self.assertEqual((messages[0]["status"], messages[1]["body"], database.done), (201, b"paid", ["begin", "close", "begin", "close"]))


class LateWrites(unittest.IsolatedAsyncioTestCase):
    async def test_the_transaction_cannot_be_used_after_the_response(self) -> None:
        database, late = Database(), []
        app, idempotent = service(database)

        def write(tx: Any) -> None:
            try:
                tx.upper()
            except RuntimeError as error:
                late.append(str(error))

        @app.post("/pay")
        @idempotent
        async def pay(tasks: BackgroundTasks, tx: Any = Depends(idempotent.transaction)) -> str:
            tasks.add_task(write, tx)
            self.assertEqual((tx.upper(), isinstance(tx, str)), ("HANDLE", True))
            return "paid"

        with self.assertLogs("stet", "ERROR"):
            self.assertEqual((await send(app))[0]["status"], 200)
        self.assertEqual((len(late), "the response has ended" in late[0]), (1, True))


class TimeLimits(unittest.IsolatedAsyncioTestCase):
    async def test_an_endpoint_that_takes_too_long_is_rolled_back(self) -> None:
        database, cancelled = Database(), asyncio.Event()
        app, idempotent = service(database, timeout=0.05)

        @app.post("/pay")
        @idempotent
        async def pay(tx: Any = Depends(idempotent.transaction)) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return "never"

        with self.assertLogs("stet", "ERROR") as logs:
            self.assertEqual(problem(await send(app)), (500, "response-missing"))
        self.assertEqual((database.done, cancelled.is_set()), (UNDONE, True))
        self.assertIn("second connection of the pool", logs.output[0])

    async def test_background_tasks_have_no_limit(self) -> None:
        database = Database()
        app, idempotent = service(database, timeout=0.05)

        async def slow() -> None:
            await asyncio.sleep(0.2)
            database.done.append("task")

        @app.post("/pay")
        @idempotent
        async def pay(tasks: BackgroundTasks, tx: Any = Depends(idempotent.transaction)) -> str:
            tasks.add_task(slow)
            return "paid"

        await send(app)
        self.assertEqual(database.done, [*COMMITTED, "task"])

    async def test_a_time_limit_of_the_endpoints_own_is_its_error(self) -> None:
        app, idempotent = service(Database())

        @app.post("/pay")
        @idempotent
        async def pay(tx: Any = Depends(idempotent.transaction)) -> str:
            raise TimeoutError

        with self.assertRaises(TimeoutError):
            await send(app)


class Wiring(unittest.IsolatedAsyncioTestCase):
    async def test_middleware_that_must_be_around_is_refused_inside(self) -> None:
        for middleware, options in ((CORSMiddleware, {"allow_origins": ["*"]}), (GZipMiddleware, {}), (None, {})):
            for inside in (True, False):
                app, idempotent = FastAPI(), service(Database())[1]
                if not inside:
                    app.add_middleware(idempotent.middleware)
                if middleware:
                    app.add_middleware(middleware, **options)
                else:
                    @app.middleware("http")
                    async def timing(request: Request, call_next: Any) -> Any:
                        return await call_next(request)
                if inside:
                    app.add_middleware(idempotent.middleware)
                with self.subTest(f"{middleware}, inside: {inside}"):
                    if inside:
                        with self.assertRaisesRegex(RuntimeError, "is inside of stet's middleware"):
                            await send(app)
                    else:
                        self.assertEqual((await send(app))[0]["status"], 404)

    async def test_a_handler_that_never_asks_for_the_transaction_is_logged_once_or_refused(self) -> None:
        for required, want in ((False, (200, COMMITTED)), (True, (500, UNDONE))):
            database = Database(RUN, RUN)
            app, idempotent = service(database, require_transaction=required)

            @app.post("/pay")
            @idempotent
            async def pay() -> str:
                return "paid"

            with self.assertLogs("stet", "WARNING") as logs:
                self.assertEqual(((await send(app))[0]["status"], database.done), want)
                await send(app)
            self.assertEqual(len(logs.output), 2 if required else 1)
            self.assertIn("POST /pay is protected and never asked for the transaction", logs.output[0])

    async def test_a_session_dependency_joins_the_transaction_where_there_is_one(self) -> None:
        async def get_async() -> Any:
            yield "own"

        def get_plain() -> Iterator[str]:
            yield "own"

        def get_value() -> str:
            return "own"

        for dependency in (get_async, get_plain, get_value):
            app, idempotent = service(Database())
            app.dependency_overrides[dependency] = idempotent.joins(dependency)

            @app.post("/pay")
            @idempotent
            async def pay(session: Any = Depends(dependency)) -> str:
                return session.lower()

            @app.post("/open")
            async def unprotected(session: Any = Depends(dependency)) -> str:
                return session

            with self.subTest(dependency.__name__), self.assertNoLogs("stet", "WARNING"):
                self.assertEqual((await send(app))[1]["body"], b'"handle"')
                self.assertEqual((await send(app, "/open"))[1]["body"], b'"own"')

    async def test_a_database_without_the_functions_is_logged_with_the_command(self) -> None:
        class Missing(Exception):
            def __init__(self, sqlstate: str) -> None:
                self.sqlstate = sqlstate

        from stet.sql import DatabaseError
        for code, want in (("3F000", "stet migrate up"), ("42883", "stet migrate up"), ("42501", "GRANT EXECUTE ON FUNCTION stet.stet_begin")):
            app, idempotent = service(Database())

            @app.post("/pay")
            @idempotent
            async def pay() -> str:
                return "never"

            with unittest.mock.patch("test_asgi.Transaction.row", side_effect=DatabaseError(Missing(code))), self.assertLogs("stet", "ERROR") as logs:
                self.assertEqual(problem(await send(app)), (500, "misconfigured"))
            self.assertIn(want, logs.output[0])


class Replays(unittest.IsolatedAsyncioTestCase):
    async def test_a_replay_has_the_stored_cache_control_and_cors_fields_for_their_origin_only(self) -> None:
        stored = b'\x03{"Cache-Control": ["max-age=60"], "Access-Control-Allow-Origin": ["https://a.example"]}'
        for headers, want in ((stored, "max-age=60"), (None, "no-store")):
            database = Database(("replay", 1, "completed", 201, "text/plain", headers, b"paid"))
            app, idempotent = service(database)

            @app.post("/pay")
            @idempotent
            async def pay() -> str:
                return "never"

            fields = dict((await send(app, origin="https://b.example"))[0]["headers"])
            self.assertEqual(fields[b"cache-control"].decode(), want)
            self.assertNotIn(b"access-control-allow-origin", fields)

    async def test_a_stored_content_coding_is_replayed_to_requests_that_accept_it_only(self) -> None:
        for coding, status in ((None, 201), ("gzip", 201), ("br, *", 201), ("GZIP;q=0.5", 201), ("br", 406), ("gzip;q=0", 406), ("", 406), ("*;q=0, identity", 406)):
            database = Database(("replay", 1, "completed", 201, "text/plain", b'\x03{"Content-Encoding": ["gzip"]}', b"paid"))
            app, idempotent = service(database)

            @app.post("/pay")
            @idempotent
            async def pay() -> str:
                return "never"

            messages = await send(app, coding=coding)
            self.assertEqual(messages[0]["status"], status, coding)
            if status == 406:
                self.assertEqual(problem(messages), (406, "coding-not-acceptable"))

    async def test_a_retry_that_came_in_between_is_replayed_to_a_request_that_accepts_its_coding_only(self) -> None:
        for coding, status in (("gzip", 201), ("br", 406)):
            between = ("replay", 2, "completed", 201, "text/plain", b'\x03{"Content-Encoding": ["gzip"]}', b"paid")
            app, idempotent = service(Database(RUN, between))

            @app.post("/pay")
            @idempotent
            async def pay() -> str:
                raise HTTPException(409)

            self.assertEqual((await send(app, coding=coding))[0]["status"], status)

    async def test_a_stored_content_coding_is_logged_once(self) -> None:
        app, idempotent = service(Database(RUN, RUN))

        @app.post("/pay")
        @idempotent
        async def pay() -> Response:
            return Response(b"packed", headers={"Content-Encoding": "gzip"})

        with self.assertLogs("stet", "WARNING") as logs:
            for key in ("a", "b"):
                await send(app, key=key)
        self.assertEqual(sum("Content-Encoding" in line for line in logs.output), 1)


if __name__ == "__main__":
    unittest.main()
