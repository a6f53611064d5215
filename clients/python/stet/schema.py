"""The tables and functions of stet, created from Python.

The steps are the files of store/postgres/migrations. Go's migrator has the same ones, takes the same lock and reads the same table of
versions, so the two may be used in turn.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

from .migrators import Migrator, blocking, waiting
from .record import number64
from .rights import grants, quoted
from .sql import sqlstate
from .threads import call

_TRIES, _PAUSE = 60, 1.0  # of a migration behind a long reader of a table: how often, and the seconds in between
_LOCK_NOT_IN_TIME = "55P03"
_LONGEST = 63
"""The bytes of a name of PostgreSQL."""
_SUFFIX = len("_fingerprint")


@dataclass(frozen=True)
class Step:
    """A step of the tables' history."""

    version: int
    name: str
    up: str
    """Its statements, for one transaction."""


class Migrations:
    """The steps for a schema and a table of records."""

    def __init__(self, schema: str = "stet", table: str = "records") -> None:
        for title, name, limit in (("schema", schema, _LONGEST), ("table", table, _LONGEST - _SUFFIX)):
            if not name or len(name.encode()) > limit or "\0" in name:
                raise ValueError(f"stet: {title} is {name!r}; it must have 1 to {limit} bytes, without NUL")
        self.schema, self.table = schema, table
        self.lock = f"SELECT pg_advisory_xact_lock({number64('migrate', schema, table)})"
        paths = sorted((path for path in files(__package__).joinpath("migrations").iterdir() if path.name.endswith(".up.sql")), key=lambda path: path.name)
        self.steps = [self._step(path.name, path.read_text("utf-8")) for path in paths]

    def _step(self, file: str, text: str) -> Step:
        version, _, name = file.removesuffix(".up.sql").partition("_")
        return Step(int(version), name, "SET LOCAL lock_timeout = '2s';\n" + self._named(text))

    def _named(self, text: str) -> str:
        """The text of a file, with the names of this schema and table, replaced in one pass."""
        schema, table = self.schema, self.table
        view = "operations" if (schema, table) == ("stet", "records") else table + "_view"
        words = {f"'\"stet\".\"{name}\"'": _literal(f"{quoted(schema)}.{quoted(real)}") for name, real in (("records_fence", table + "_fence"), ("operations", view))}
        words |= {'"stet"': quoted(schema), "'stet'": _literal(schema), "$stet$": f"$stet_{number64('body', schema, table) % 2**64:016x}$",
                  '"operations"': quoted(view), "'records'": _literal(table)}

        def replaced(found: re.Match[str]) -> str:
            if found[0] in words:
                return words[found[0]]
            if found["records"]:
                return quoted(table + found["records"].removeprefix("records"))
            name = quoted(("stet" if table == "records" else table) + "_" + (found["function"] or found["literal"]))
            return name if found["function"] else _literal(f"{quoted(schema)}.{name}")

        literal, function = r"""'"stet"\."stet_(?P<literal>[a-z_]+)"'""", '"stet_(?P<function>[a-z_]+)"'
        return re.sub("|".join([*map(re.escape, words), literal, function, '"(?P<records>records(?:_[a-z]+)?)"']), replaced, text)

    def script(self) -> str:
        """All steps, for psql."""
        title = json.dumps(f"{self.schema}.{self.table}", ensure_ascii=False)
        return "".join(f"-- {title}, step {step.version} {step.name}, up\nBEGIN;\n{self.lock};\n\n{step.up.strip()}\nCOMMIT;\n" for step in self.steps)

    async def version(self, migrator: Migrator) -> int:
        """The version of the tables that there are; 0 if there are none."""
        there = await migrator.row("SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = " + _literal(self.table + "_schema") +
                                   " AND relnamespace IN (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = " + _literal(self.schema) + "))")
        if not there[0]:
            return 0
        version = int((await migrator.row(f"SELECT coalesce(max(version), 0)::int4 FROM {self._versions}"))[0])
        if version > len(self.steps):
            raise RuntimeError(f"stet: the tables of {self.schema}.{self.table} have version {version}, and this package knows versions up to "
                               f"{len(self.steps)}: install the version of stet that migrated them, or a later one")
        return version

    @property
    def _versions(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table + '_schema')}"

    async def applied(self, migrator: Migrator) -> dict[int, datetime]:
        """When each step was applied, by its version."""
        if not await self.version(migrator):
            return {}
        (times,) = await migrator.row(f"SELECT json_object_agg(version, to_char(applied_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS'))::text FROM {self._versions}")
        return {int(version): datetime.fromisoformat(at) for version, at in json.loads(times).items()}

    async def up(self, migrator: Migrator, role: str | None, mode: str) -> int:
        """Applies the steps that are missing, and grants a role the rights of a mode, in one transaction. Returns how many steps."""
        rights = [] if role is None else grants(self.schema, self.table, quoted(role), mode)
        for attempt in range(1, _TRIES + 1):
            try:
                async with migrator.transaction():
                    if not migrator.joined:
                        await migrator.script("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # above, version would read from before the lock
                    await migrator.script(self.lock)
                    timeout = await self._transaction(migrator)
                    missing = self.steps[await self.version(migrator):]
                    for sql in [*(step.up for step in missing), *rights]:
                        await migrator.script(sql)
                    if role is not None:
                        await self._granted(migrator, role)
                    await migrator.script(f"SET LOCAL lock_timeout = {_literal(timeout)}")  # the rest of a joined transaction is the caller's
                    return len(missing)
            except Exception as error:
                if _code(error) != _LOCK_NOT_IN_TIME or migrator.joined or attempt == _TRIES:
                    raise
            await migrator.pause(_PAUSE)
        raise AssertionError

    async def _transaction(self, migrator: Migrator) -> str:
        """The lock_timeout of the transaction. Two statements of one have the same number."""
        now = "SELECT pg_catalog.txid_current()::text, pg_catalog.current_setting('lock_timeout')"
        (number, timeout), (again, _) = await migrator.row(now), await migrator.row(now)
        if number != again:
            raise RuntimeError("stet: the connection commits each statement (AUTOCOMMIT), so the steps would not be one transaction: pass a connection with another isolation level")
        return str(timeout)

    async def _granted(self, migrator: Migrator, role: str) -> None:
        """GRANT by a role without the right to grant is only a warning."""
        function = f"{quoted(self.schema)}.{quoted(('stet' if self.table == 'records' else self.table) + '_begin_raw')}"
        may = await migrator.row(f"SELECT pg_catalog.has_function_privilege({_literal(role)}, {_literal(function)}::regproc::oid, 'EXECUTE')")
        if not may[0]:
            raise RuntimeError(f"stet: the rights of {role} were not granted: migrate as the owner of {self.schema}.{self.table}")


def _code(error: BaseException) -> str:
    """The SQLSTATE of a driver's error, also below the one of Django."""
    return sqlstate(error) or (sqlstate(error.__cause__) if error.__cause__ else "")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def migrate(connection: Any, *, schema: str = "stet", table: str = "records", role: str | None = None, mode: str = "functions") -> int:
    """Creates the tables and functions of stet, or brings them up to the version of this package. Returns how many steps it applied.

    connection is one of psycopg 3, SQLAlchemy or Django. Its role can create a schema. All steps are one transaction, which this
    function commits. If the connection is in a transaction already, that transaction commits the steps. Any number of processes may call this
    at a time. role is the role of the service: it is granted the rights that the mode of its Options needs. If a long transaction
    uses the tables, this function tries again for 3 minutes. Errors are those of the driver. It raises RuntimeError if the tables are newer than
    the package, if the connection commits each statement, or if the role was not granted its rights.
    """
    migrations = Migrations(schema, table)
    return call(migrations.up(blocking(connection), role, mode))


async def amigrate(connection: Any, *, schema: str = "stet", table: str = "records", role: str | None = None, mode: str = "functions") -> int:
    """migrate for asyncio: connection is psycopg's AsyncConnection, one of asyncpg, or SQLAlchemy's AsyncConnection."""
    if hasattr(connection, "run_sync"):
        return int(await connection.run_sync(lambda plain: migrate(plain, schema=schema, table=table, role=role, mode=mode)))
    migrations = Migrations(schema, table)
    return await migrations.up(waiting(connection), role, mode)
