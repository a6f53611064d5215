"""Services behind the sidecar: "stet proxy" claims the operation, and the service settles it (settles: service)."""

from __future__ import annotations

import re

from . import answer as problems
from .answer import Answer
from .core import Guard, Run, log
from .sql import DatabaseError, Transaction, answered, number, status

HEADER = "Stet-Claim"

_CLAIM = re.compile(r"c1\.[0-9a-f]{64}\.[0-9a-f]{32}\.[0-7][0-9a-f]{15}")


def refused(guard: Guard, claims: list[str]) -> Answer | None:
    """Returns the error response to a request with these Stet-Claim fields, if it must not run."""
    if not guard.options.sidecar:
        if not claims:
            return None
        # If the claim were ignored, the request would run under a second record, which the sidecar does not know. If a
        # client has sent the field, it would run under none. A client that sends it harms only itself.
        return _misconfigured(guard, "The request has a Stet-Claim, and this service does not settle for a sidecar (sidecar=True).")
    if not claims:
        return _misconfigured(guard, "The request did not come through the sidecar: it has no Stet-Claim.")
    if len(claims) > 1 or not _CLAIM.fullmatch(claims[0]):
        return _misconfigured(guard, "The request's Stet-Claim is not one claim.")
    return None


def _misconfigured(guard: Guard, detail: str) -> Answer:
    guard.log_once(f"{detail} Nothing was executed.")
    return guard.problem(problems.MISCONFIGURED, detail)


async def begin(guard: Guard, claim: str) -> Run | Answer:
    """Begins a transaction for the handler of a claimed operation, or returns the error response."""
    transaction = await guard.open()
    if isinstance(transaction, Answer):
        return transaction
    began = False
    try:
        row = await transaction.row(number, ())
        began = True
    except DatabaseError as error:
        return guard.not_begun(error)
    finally:
        if not began:
            await transaction.close()
    return Claimed(guard, transaction, claim, row[0])


class Claimed(Run):
    """An operation that the sidecar has claimed. When this service has answered, the sidecar answers the client from the
    record: it returns the outcome if the operation is settled, and fences the claim if not."""

    def __init__(self, guard: Guard, transaction: Transaction, claim: str, xid: int) -> None:
        super().__init__(guard, transaction, claim)
        self._xid = xid

    async def settle(self, answer: Answer) -> None:
        row = await self.transaction.row(self.guard.sql_settle_in, (self._xid, *self.settlement(answer)))
        if row[0] is not None:
            return
        # Here there is no row of stet_begin that would make PostgreSQL refuse the commit.
        ended = await self.transaction.row(status(self.guard.database.mark), (self._xid,))
        if ended[0] != "committed":
            log.error("a handler has rolled back the transaction that it was given; nothing was settled, and a retry runs again")
            raise RuntimeError("stet: the handler has rolled back; that is not its to do")
        log.error("a handler has committed the transaction that it was given: its writes are committed, and a retry receives a failure so that it does not run again")
        await self.transaction.row(self.guard.sql_settle, self.settlement(self.guard.problem(problems.NOT_SETTLED)))

    def unsettled(self, error: BaseException) -> Answer:
        if not isinstance(error, DatabaseError) or error.sqlstate != "ST002":
            return super().unsettled(error)
        log.error("the claim of the sidecar has ended or was never one of this database: this attempt was rolled back")
        return self.guard.problem(problems.IN_FLIGHT, "This try was too late, and was rolled back. Another one may have been executed.", 1)

    async def refuse(self, answer: Answer) -> Answer:
        again = await begin(self.guard, self.claim)
        if isinstance(again, Answer):
            return again
        again.used = True
        return await again.finish(answer)

    async def unanswered(self, answer: Answer, cause: Exception) -> Answer:
        if answered(cause):
            raise cause
        log.error("a commit was not answered; the sidecar determines its outcome: %s", type(cause).__name__)
        return self.guard.problem(problems.OUTCOME_UNKNOWN)
