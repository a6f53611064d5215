"""What needs no server: the bytes that other languages compute, too, and keys."""

from __future__ import annotations

import json
import os
import unittest
from datetime import timedelta

from psycopg.sql import SQL
from sqlalchemy import text
from stet import canonical_json, fingerprint, request_fingerprint
from stet import record
from stet.core import Guard, kept, label
from stet.flask import Idempotent
from stet.psycopg import Psycopg
from stet.answer import Answer
from stet.options import Options
from stet.handle import ends
from stet.key import KeyFlaw, parse_key
from stet.sql import DatabaseError, answered

VECTORS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "vectors.json")


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        with open(VECTORS, encoding="utf-8") as f:
            cls.vectors = json.load(f)

    def test_fingerprints_are_those_of_docs(self) -> None:
        for v in self.vectors["fingerprints"]:
            self.assertEqual(fingerprint(*map(bytes.fromhex, v["parts"]), version=v["version"]).hex(), v["fingerprint"])

    def test_canonical_json_is_that_of_docs(self) -> None:
        self.assertGreater(len(self.vectors["canonical"]), 30)
        for v in self.vectors["canonical"]:
            with self.subTest(v):
                self.assertEqual(canonical_json(*v["exclude"])(bytes.fromhex(v["body"])).hex(), v["form"])

    def test_fingerprints_of_requests_are_those_of_docs(self) -> None:
        self.assertGreater(len(self.vectors["requests"]), 15)
        for v in self.vectors["requests"]:
            with self.subTest(v):
                headers = [(n.encode("latin-1"), value.encode()) for n, value in v["headers"]]
                got = request_fingerprint(v["method"], v["target"].encode(), headers, bytes.fromhex(v["body"]),
                                          canonical_json() if v["canonical"] else None)
                self.assertEqual(got.hex(), v["fingerprint"])

    def test_lock_numbers_are_those_of_docs(self) -> None:
        for v in self.vectors["locks"]:
            table = record.Table(v["schema"], "stet_" if v["table"] == "records" else v["table"] + "_")
            o = table.operation(v["namespace"], v["scope"], v["key"], bytes.fromhex(v["fingerprint"]))
            self.assertEqual((o.id.hex(), o.scope.hex(), str(o.run_lock), o.print_lock, o.print, str(table.wait_lock(o.id))),
                             (v["id"], v["scope_digest"], v["run_lock"], v["print_lock"], v["print"], v["wait_lock"]))

    def test_claims_are_those_of_docs(self) -> None:
        for v in self.vectors["claims"]:
            claim = record.Claim.parse(v["claim"])
            assert claim
            self.assertEqual((claim.id.hex(), claim.owner.hex(), str(claim.fence), str(claim)), (v["id"], v["owner"], v["fence"], v["claim"]))
        for text in ("", "c1", v["claim"] + "0", v["claim"].upper(), v["claim"].replace(".7", ".8")):
            self.assertIsNone(record.Claim.parse(text))

    def test_stored_header_fields_are_those_of_docs(self) -> None:
        for v in self.vectors["heads"]:
            got = record.head((name, value) for name, value in v["fields"])
            self.assertEqual(got.hex() if got else None, v["head"])
            self.assertEqual(record.head((n, value) for n, values in (record.fields(got) or {}).items() for value in values), got)
        for name, value in (("Content-Type", "a"), ("a b", "c"), ("", "c"), ("X-A", "a\nb"), ("X-A", "\x7f"), ("X-A", "\x85")):
            with self.assertRaises(ValueError):
                record.head([(name, value)])
        with self.assertRaises(ValueError):
            record.head([("X-A", "b")] * 4096)
        record.head([("X-A", "b")] * 4095)

    def test_header_fields_that_are_not_lists_of_strings_are_left_to_sql(self) -> None:
        self.assertEqual((record.fields(b'\x03{"A": ["b"]}'), record.fields(None)), ({"A": ["b"]}, {}))
        for text in (b"", b"{", b"[]", b"null", b'{"A":"x"}', b'{"A":[1]}', b'{"A":["\xff"]}', b"[" * 100_000):
            self.assertIsNone(record.fields(b"\x03" + text))
        self.assertIsNone(record.fields(b"\x01\xff"))


class CanonicalJSON(unittest.TestCase):
    def test_deep_bodies_are_read_and_hostile_ones_returned_as_they_came(self) -> None:
        form = canonical_json("/0")
        deep = b"[" * 10_000 + b" " + b"]" * 10_000
        self.assertEqual(canonical_json("/x")(deep), deep.replace(b" ", b""))
        for hostile in (b"[" * 1_000_000, b"[" * 10_001 + b" " + b"]" * 10_001, b'{"a":' * 500_000):
            self.assertEqual(form(hostile), hostile)

    def test_malformed_pointers_are_refused(self) -> None:
        for pointer in ("", "a", "/~2", "#/a"):
            with self.assertRaises(ValueError):
                canonical_json(pointer)


class Sidecars(unittest.TestCase):
    def test_options_that_the_sidecar_has_are_errors_at_once(self) -> None:
        for more in ({"strict": True}, {"max_body": 1}, {"canonical": canonical_json()}, {"namespace": "a"}, {"class_": "a"}, {"patience": 1.0}):
            with self.assertRaisesRegex(TypeError, "behind the sidecar"):
                Options(sidecar=True, **more)
        Options(sidecar=True, max_result=1, optional=True)
        for sidecar, scope in ((True, print), (False, None)):
            with self.assertRaisesRegex(TypeError, "scope function"):
                Idempotent(Psycopg(print), scope, sidecar=sidecar)


class Spans(unittest.TestCase):
    def test_times_are_positive_and_a_tombstone_is_not_shorter_than_a_result(self) -> None:
        day = timedelta(days=1)
        for result, tombstone in ((day, timedelta(seconds=1)), (timedelta(0), None), (-day, None), (day, timedelta(0)), (36526 * day, None), (day, 36526 * day)):
            with self.assertRaisesRegex(ValueError, "the option (result|tombstone) is"):
                Options(result=result, tombstone=tombstone)
        for result, tombstone in ((day, day), (36525 * day, None), (day, None)):
            Options(result=result, tombstone=tombstone)


class Statements(unittest.TestCase):
    def test_statements_that_end_a_transaction_are_known_by_their_first_word(self) -> None:
        for sql in ("COMMIT", "commit;", " ; ;end", "End Transaction", "abort", "ROLLBACK", "rollback work", "ROLLBACK AND CHAIN", "/* a /* b */ c */ commit",
                    "-- a\nCOMMIT", "prepare transaction 'x'", "PREPARE/**/TRANSACTION 'x'", b"COMMIT", SQL("COMMIT"), text("COMMIT"), "ROLLBACK/**/", "COMMIT--"):
            self.assertTrue(ends(sql), sql)
        for sql in ("", ";", "/* COMMIT", "-- COMMIT", "/*/**/ COMMIT", "SELECT 'COMMIT'", "ROLLBACK TO a", "rollback work to savepoint a", "ROLLBACK /**/ TO a", "RELEASE a", "SAVEPOINT a",
                    "BEGIN", "ENDED", "PREPARE a AS SELECT 1", None, 7, SQL("SELECT 1"), text("SELECT 1")):
            self.assertFalse(ends(sql), sql)


class Keys(unittest.TestCase):
    def test_keys_are_named_as_stethttp_has_them(self) -> None:
        for field, key in {"k": "k", ' "k" ': "k", '"a\\"b"': 'a"b', '"k";a=1;b': "k", '"k"; a="x;y"': "k", '"a,b"': "a,b", "x" * 255: "x" * 255}.items():
            self.assertEqual(parse_key(field), key)
        for field in ("", '""', '"k', '"k"x', "a,b", '"a","b"', "a b", "x" * 256, '"a b"', "k\xe9", '"k\xe9"', '"k";A=1', '"' + "x" * 5000 + '"'):
            with self.assertRaises(KeyFlaw, msg=field):
                parse_key(field)
        with self.assertRaises(KeyFlaw):
            parse_key("k", strict=True)


class Decisions(unittest.TestCase):
    def test_stored_headers(self) -> None:
        self.assertEqual([s for s in (200, 201, 204, 302, 400, 401, 403, 404, 407, 408, 409, 422, 425, 429, 500, 503) if kept(Answer(s))],
                         [200, 201, 204, 302, 400, 404, 409, 422])

    def test_labels_are_made_to_fit(self) -> None:
        self.assertEqual(label("POST /a\n\x00b"), "POST /a??b")
        self.assertEqual(label("é" * 200), "é" * 127)

    def test_a_name_that_is_none_is_refused(self) -> None:
        class Database:
            def mark(self, n: int) -> str:
                return "?"

        for options in (Options(schema='a"b'), Options(prefix="a%s"), Options(schema="")):
            with self.assertRaises(ValueError):
                Guard(Database(), options)  # type: ignore[arg-type]

    def test_a_scope_that_is_no_text_is_refused(self) -> None:
        class Database:
            def mark(self, n: int) -> str:
                return "?"

        guard = Guard(Database(), Options())  # type: ignore[arg-type]
        for scope in (7, b"acct", "a\0b", "\ud800"):
            self.assertEqual(getattr(guard.scope(scope), "status", None), 500, repr(scope))  # type: ignore[arg-type]
        self.assertEqual(guard.scope("Gr\xfc\xdfe"), "Gr\xfc\xdfe")

    def test_errors_have_no_argument_in_them(self) -> None:
        class Refused(Exception):
            sqlstate = "22P02"

        class Lost(Exception):
            pass

        class Dying(Exception):
            sqlstate = "57P01"

        for error in (Refused("LINE 1: ... 'secret'"), Lost("query argument $1: 'secret'")):
            self.assertNotIn("secret", str(DatabaseError(error)))
        self.assertTrue(answered(Refused()))
        self.assertFalse(answered(Lost()))
        self.assertFalse(answered(Dying()))


if __name__ == "__main__":
    unittest.main()
