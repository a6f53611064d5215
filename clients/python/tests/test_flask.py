"""The decorator for Flask, over a database that is none."""

import unittest
from typing import Any

from flask import Flask, request
from stet.flask import Idempotent

RUN = ("run", 1, "running", None, None, None, None)
FORM = "application/x-www-form-urlencoded"


class Database:
    blocking = lasts = True

    def __init__(self) -> None:
        self.done: list[str] = []
        self.fingerprints: list[bytes] = []
        self.handle = "handle"

    def mark(self, n: int) -> str:
        return f"${n}"

    async def begin(self) -> "Database":
        return self

    async def row(self, sql: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        self.fingerprints.append(arguments[2])
        return RUN

    async def commit(self, sql: str, arguments: tuple[Any, ...]) -> None:
        self.done.append("commit")

    async def close(self) -> None:
        self.done.append("close")

    async def pause(self, seconds: float) -> None: ...


class BehindTheSidecar(unittest.TestCase):
    def test_where_keys_are_optional_a_request_without_one_runs_without_a_transaction(self) -> None:
        for optional, key, want in ((True, None, 200), (True, "k", 500), (False, None, 500), (False, "k", 500)):
            database, app, ran = Database(), Flask("service"), []
            idempotent = Idempotent(database, sidecar=True, optional=optional)  # type: ignore[arg-type]

            @app.post("/pay")
            @idempotent
            def pay() -> str:
                ran.append(key)
                return "paid"

            got = app.test_client().post("/pay", headers={"Idempotency-Key": key} if key else {})
            self.assertEqual((got.status_code, database.done, len(ran)), (want, [], int(want == 200)), (optional, key))
            if want == 500:
                self.assertIn("did not come through the sidecar", got.get_data(as_text=True))


class Decorator(unittest.TestCase):
    def service(self, before: Any = None, header: str = "") -> tuple[Database, Any]:
        database, app = Database(), Flask("service")
        idempotent = Idempotent(database, scope=lambda: "acct")  # type: ignore[arg-type]
        if before:
            app.before_request(before)

        @app.post("/pay")
        @idempotent
        def pay() -> Any:
            return request.form.get("amount", ""), 201, {"X-Header": header}

        return database, app.test_client()

    def test_a_body_that_was_read_before_is_not_taken_for_an_empty_one(self) -> None:
        for before in (lambda: (request.form, None)[1], lambda: (request.stream.read(3), None)[1]):
            database, client = self.service(before)
            got = client.post("/pay", data=b"amount=42", content_type=FORM, headers={"Idempotency-Key": "k"})
            self.assertEqual((got.status_code, got.json and got.json["type"].rpartition("#")[2], database.done), (500, "misconfigured", []))
            chunked = client.post("/pay", data=b"amount=42", content_type=FORM, headers={"Idempotency-Key": "k"},
                                  environ_overrides={"CONTENT_LENGTH": "", "wsgi.input_terminated": True})
            self.assertEqual((chunked.status_code, database.done), (500, []))

    def test_a_body_that_flask_has_kept_is_taken(self) -> None:
        plain, client = self.service()
        for database, client in ((plain, client), self.service(lambda: (request.get_data(), None)[1]), self.service(lambda: (request.json, None)[1])):
            got = client.post("/pay", data=b'{"a": 1}', content_type="application/json", headers={"Idempotency-Key": "k"})
            self.assertEqual((got.status_code, database.done), (201, ["commit", "close"]))
            self.assertEqual(database.fingerprints, plain.fingerprints)
        for empty in ({}, {"data": b""}):
            database, client = self.service(lambda: (request.form, None)[1])
            self.assertEqual(client.post("/pay", headers={"Idempotency-Key": "k"}, **empty).status_code, 201)

    def test_a_response_that_cannot_be_sent_is_rolled_back(self) -> None:
        database, client = self.service(header="\u20ac")
        got = client.post("/pay", headers={"Idempotency-Key": "k"})
        self.assertEqual((got.status_code, database.done), (500, ["close"]))

    def test_a_commit_that_is_broken_off_gives_its_connection_back(self) -> None:
        database, client = self.service()

        async def broken_off(sql: str, arguments: tuple[Any, ...]) -> None:
            raise SystemExit  # as a server does that ends a worker

        database.commit = broken_off  # type: ignore[method-assign]
        with self.assertRaises(SystemExit):
            client.post("/pay", headers={"Idempotency-Key": "k"})
        self.assertEqual(database.done, ["close"])


if __name__ == "__main__":
    unittest.main()
