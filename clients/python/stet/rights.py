"""The rights of a service's role."""

from __future__ import annotations

COLUMNS = "id, fingerprint, fence, state, gone, expires_at, forget_at, status, content_type, head, body"
"""The columns that the mode "statements" reads."""


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def grants(schema: str, table: str, role: str, mode: str = "functions", emit: bool = True) -> list[str]:
    """The statements that give a role the rights of a mode of Options, with emit also those for messages. Names are SQL."""
    if role in ("", '""') or mode not in ("functions", "statements"):
        raise ValueError(f"stet: role is {role!r} and mode {mode!r}; role must be a name, and mode 'functions' or 'statements'")
    prefix = "stet_" if table == "records" else table + "_"
    functions = ["begin_raw", "settle_raw", *(["settle", "emit"] if emit else [])]
    named = ", ".join(f"{_name(schema)}.{_name(prefix + name)}" for name in functions)
    statements = [f"GRANT USAGE ON SCHEMA {_name(schema)} TO {role}", f"GRANT EXECUTE ON FUNCTION {named} TO {role}"]
    if mode == "statements":
        statements += [f"GRANT INSERT, SELECT ({COLUMNS}) ON {_name(schema)}.{_name(table)} TO {role}",
                       f"GRANT USAGE ON SEQUENCE {_name(schema)}.{_name(table + '_fence')} TO {role}"]
    return statements


def _name(name: str) -> str:
    return name if name.isidentifier() and name.islower() and name.isascii() else quoted(name)
