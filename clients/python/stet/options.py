"""The options of an adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta

from .answer import PROBLEM_BASE

_CENTURY = timedelta(days=36525)
_OF_THE_SIDECAR = ("strict", "max_body", "canonical", "namespace", "previous", "claim_previous", "class_", "patience", "mode")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an adapter. Every field has a default."""

    header: str = "Idempotency-Key"
    strict: bool = False
    """Accept only the quoted form of a key."""
    sidecar: bool = False
    """True behind "stet proxy", on a route with settles: service. The sidecar has claimed the operation. Scope, key and
    fingerprint are configured in stet.yaml, not here."""
    optional: bool = False
    """Pass requests without a key to the handler, unprotected. The handler then has no transaction."""
    max_body: int = 1 << 20
    """The maximum size of a request body, in bytes."""
    max_result: int = 1 << 20
    """The maximum size of a stored response, in bytes, with its header. A larger one is sent, and retries receive 410."""
    canonical: Callable[[bytes], bytes] | None = None
    """canonical_json(): the fingerprint ignores the order of members and white space in JSON bodies."""
    result: timedelta = timedelta(hours=24)
    """How long a response is replayed: positive, at most 100 years."""
    tombstone: timedelta | None = None
    """How long the key is stored and prevents a second run. None: 30 days, or result if that is longer.
    Not shorter than result, at most 100 years."""
    namespace: str = ""
    """The Namespace of Go's stet.Options, if a Go service shares the keys."""
    previous: str | None = None
    """The namespace that namespace replaces, during a rolling deployment (docs/keys.md). An operation that has a record there has its
    outcome from there. All processes must have it, with claim_previous, before the first process unsets claim_previous."""
    claim_previous: bool = False
    """Run new operations under the previous namespace, as processes without this option do."""
    class_: str = ""
    """The class that operators see."""
    store_set_cookie: bool = False
    """Store Set-Cookie, too. A retry then receives the session of the first caller."""
    timeout: float = 30.0
    """The time limit of an endpoint of FastAPI or Starlette, in seconds, until its response is complete. After it, the transaction is
    rolled back and the response is 500. A Flask view cannot be stopped: leave the default there."""
    require_transaction: bool = False
    """If a handler did not use the transaction, roll back and respond with 500. By default this is logged, once for each handler."""
    patience: float = 10.0
    """How many seconds stet queries the state of an unacknowledged COMMIT."""
    problem_base: str = PROBLEM_BASE
    """The prefix of the type of each problem."""
    mode: str = "functions"
    """How stet uses PostgreSQL. "functions": the role needs only EXECUTE on functions, and PostgreSQL refuses a COMMIT without an outcome.
    "statements": faster; the role needs INSERT and SELECT on columns of the table, so the service could forge outcomes. See README.md."""
    schema: str = "stet"
    """The schema in which stet migrate created the functions (--store-schema)."""
    prefix: str = "stet_"
    """The prefix of the functions' names (--table other: "other_")."""

    def __post_init__(self) -> None:
        if self.mode not in ("functions", "statements"):
            raise TypeError(f"stet: the option mode is {self.mode!r}: it must be \"functions\" or \"statements\"")
        for name, span in (("result", self.result), ("tombstone", self.tombstone)):
            if span is not None and not timedelta(0) < span <= _CENTURY:
                raise ValueError(f"stet: the option {name} is {span}: it must be positive and at most 100 years")
        if self.tombstone is not None and self.tombstone < self.result:
            raise ValueError(f"stet: the option tombstone is {self.tombstone}, shorter than result, {self.result}: the operation would run again while "
                             "its response is still replayed")
        if self.previous == self.namespace or self.previous is None and self.claim_previous:
            raise ValueError(f"stet: the option previous is {self.previous!r}: it must be the namespace before {self.namespace!r}")
        for field in fields(self):
            if self.sidecar and field.name in _OF_THE_SIDECAR and getattr(self, field.name) != field.default:
                raise TypeError(f"stet: behind the sidecar there is no option {field.name}: the sidecar begins the operation, and stet.yaml configures that")
