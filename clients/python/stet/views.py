"""The base of the adapters for views that block: Flask and Django."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from . import answer as problems, sidecar
from .answer import Answer
from .core import Guard
from .fingerprint import Fields
from .options import Options
from .run import Run
from .sql import Database
from .threads import call

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")


class Asked(NamedTuple):
    """A request."""

    name: str
    method: str
    target: bytes
    headers: Fields
    body: bytes


class Views(Guard):
    def __init__(self, database: Database, scope: Callable[..., str | None] | None, options: dict[str, Any]) -> None:
        if not database.blocking:
            raise TypeError("stet: these views need a blocking database: Psycopg or SQLAlchemy, not those for asyncio")
        super().__init__(database, Options(**options))
        if self.options.timeout != Options.timeout:
            raise TypeError("stet: a view that blocks cannot be ended, so there is no option timeout: let the server end it")
        self.check_scope(scope)

    def enter(self, claims: list[str], keys: list[str], scope: Callable[[], str | None], ask: Callable[[], Asked | Answer]) -> Run | Answer:
        """Begins the operation of a request."""
        refused = sidecar.refused(self, claims)
        if refused:
            return refused
        if self.options.sidecar:
            return call(sidecar.begin(self, claims[0]))
        key = self.key(keys)
        if isinstance(key, Answer):
            return key
        try:
            whose = self.scope(scope())
        except Exception as error:
            return self.scope_failed(error)
        asked = whose if isinstance(whose, Answer) else ask()
        if isinstance(asked, Answer):
            return asked
        assert isinstance(whose, str)
        return call(self.start(whose, key, *asked))

    def unprotected(self, method: str | None, claims: list[str], keys: list[str]) -> bool:
        """Reports whether a request passes without a transaction."""
        return method in SAFE or not claims and not keys and self.options.optional

    def twice(self) -> Answer:
        """The response of a view that is protected twice."""
        self.log_once("a view is protected twice; nothing was executed")
        return self.problem(problems.MISCONFIGURED)


def target(environ: dict[str, Any]) -> bytes:
    """The request target as it was sent, where the server tells, else as it must have been."""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if raw:
        return str(raw).encode("latin-1")
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    sent = quote(path.encode("latin-1"), safe="/!$&'()*+,;=:@~-._")
    query = environ.get("QUERY_STRING", "")
    return (sent + "?" + query if query else sent).encode("latin-1")
