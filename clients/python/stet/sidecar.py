"""Services behind the sidecar: "stet proxy" claims the operation, and the service settles it (settles: service)."""

from __future__ import annotations

from . import answer as problems
from .answer import Answer
from .core import Guard
from .handle import log
from .record import Claim
from .run import Run
from .sql import DatabaseError, number

HEADER = "Stet-Claim"


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
    if len(claims) > 1 or not Claim.parse(claims[0]):
        return _misconfigured(guard, "The request's Stet-Claim is not one claim.")
    return None


def _misconfigured(guard: Guard, detail: str) -> Answer:
    guard.log_once(f"{detail} Nothing was executed.")
    return guard.problem(problems.MISCONFIGURED, detail)


async def begin(guard: Guard, text: str) -> Run | Answer:
    """Begins a transaction for the handler of a claimed operation, or returns the error response."""
    claim = Claim.parse(text)
    assert claim  # of refused
    return await _begin(guard, claim)


async def _begin(guard: Guard, claim: Claim) -> Run | Answer:
    transaction = await guard.open()
    if isinstance(transaction, Answer):
        return transaction
    began = False
    try:
        row = await transaction.row(number, ())
        await guard.check_lasting(transaction, row[0])
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

    async def again(self) -> Run | Answer:
        return await _begin(self.guard, self.claim)

    async def unsettled(self, error: DatabaseError) -> Answer:
        if error.sqlstate != "ST002":
            return await super().unsettled(error)
        log.error("the claim of the sidecar has ended or was never one of this database: this attempt was rolled back")
        return self.guard.problem(problems.IN_FLIGHT, "This try was too late, and was rolled back. Another one may have been executed.", 1)

    async def unanswered(self, answer: Answer, cause: Exception) -> Answer:
        log.error("a commit was not answered; the sidecar determines its outcome: %s", type(cause).__name__)
        return self.guard.unknown(self.claim.id)
