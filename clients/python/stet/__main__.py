"""python -m stet migrate up|status|sql: creates the tables and functions of stet."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from .schema import Migrations, Step, amigrate, migrate
from .migrators import blocking, waiting
from .rights import grants, quoted
from .sql import sqlstate
from .threads import call


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m stet", description="Creates the tables and functions of stet in PostgreSQL.")
    migrations = parser.add_subparsers(dest="thing", required=True).add_parser("migrate", help="create the tables and functions, or show their state")
    commands = migrations.add_subparsers(dest="command", required=True)
    for name, text in (("up", "bring the tables up to the version of this package"), ("status", "show which steps are applied, and since when"),
                       ("sql", "print all steps for psql, without a database")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--schema", default="stet", help="schema of the tables (default stet)")
        command.add_argument("--table", default="records", help="table of records, and prefix of other names (default records)")
        if name != "sql":
            command.add_argument("--dsn", default=os.environ.get("DATABASE_URL", ""), help="database (default $DATABASE_URL); a password in it can be seen in the list of processes")
        if name != "status":
            command.add_argument("--role", help="also grant this role the rights that a service needs")
            command.add_argument("--mode", default="functions", choices=("functions", "statements"), help="of the service's Options (default functions)")
    arguments = parser.parse_args(argv)
    if arguments.command != "sql" and not arguments.dsn:
        parser.error("which database? Give --dsn, or set DATABASE_URL")
    return arguments


class _Psycopg:
    def __init__(self, dsn: str) -> None:
        import psycopg

        self._connection = psycopg.connect(dsn, connect_timeout=10)

    def up(self, of: argparse.Namespace) -> int:
        with self._connection as connection:
            return migrate(connection, schema=of.schema, table=of.table, role=of.role, mode=of.mode)

    def applied(self, migrations: Migrations) -> dict[int, Any]:
        with self._connection as connection:
            return call(migrations.applied(blocking(connection)))


class _Asyncpg:
    def __init__(self, dsn: str) -> None:
        import asyncpg  # type: ignore[import-untyped, unused-ignore]

        self._connect: Callable[[], Any] = functools.partial(asyncpg.connect, dsn, timeout=10)

    def up(self, of: argparse.Namespace) -> int:
        async def work() -> int:
            connection = await self._connect()
            try:
                return await amigrate(connection, schema=of.schema, table=of.table, role=of.role, mode=of.mode)
            finally:
                await connection.close()

        return asyncio.run(work())

    def applied(self, migrations: Migrations) -> dict[int, Any]:
        async def work() -> dict[int, Any]:
            connection = await self._connect()
            try:
                return await migrations.applied(waiting(connection))
            finally:
                await connection.close()

        return asyncio.run(work())


def _open(dsn: str) -> _Psycopg | _Asyncpg:
    for kind in (_Psycopg, _Asyncpg):
        try:
            return kind(dsn)
        except ImportError:
            pass
    raise RuntimeError("there is no driver of PostgreSQL: pip install 'psycopg[binary]', or asyncpg")


def _rows(steps: list[Step], applied: dict[int, Any]) -> str:
    rows = [("STEP", "NAME", "STATE", "SINCE")]
    for step in steps:
        at = applied.get(step.version)
        rows.append((str(step.version), step.name, "applied" if at else "pending", f"{at:%Y-%m-%dT%H:%M:%SZ}" if at else "-"))
    widths = [max(map(len, column)) + 2 for column in zip(*rows)]
    return "\n".join("".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _run(of: argparse.Namespace) -> None:
    migrations = Migrations(of.schema, of.table)
    name = f"{of.schema}.{of.table}"
    if of.command == "sql":
        rights = grants(of.schema, of.table, quoted(of.role), of.mode) if of.role is not None else []
        print(migrations.script() + "".join(f"{grant};\n" for grant in rights), end="")
    elif of.command == "status":
        applied = _open(of.dsn).applied(migrations)
        print(_rows(migrations.steps, applied))
        if len(applied) < len(migrations.steps):
            print(f"{name} lacks a step; run 'python -m stet migrate up'", file=sys.stderr)
    else:
        done = _open(of.dsn).up(of)
        print(f"{name} is at version {len(migrations.steps)}" + ("" if done else " already; no step was applied"))


_HINTS = {"25006": "the server or the session is read-only; connect to the primary: ",
          "42501": "up needs a role with CREATE on the schema, or, if there is no such schema yet, with CREATE on the database: ",
          "42704": "create the role first: ",
          "42P07": "there is a table of another kind by this name; choose with --schema and --table: "}


def main(argv: list[str] | None = None) -> int:
    try:
        _run(_arguments(argv))
    except Exception as error:
        print(f"stet: {_HINTS.get(sqlstate(error), '')}{str(error).removeprefix('stet: ')}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
