"""The base of the consumers of messages: pika and aiokafka."""

from __future__ import annotations

from .handle import log
from .operations import OperationError, Refusal

DONE, REJECTED, AGAIN = "done", "rejected", "again"


def ending(error: Exception) -> str:
    """Returns what happens to a message after an exception of its operation."""
    if isinstance(error, Refusal):
        return REJECTED
    if not isinstance(error, OperationError):
        log.error("a message was rolled back and runs again: %s", type(error).__name__)
        return AGAIN
    if error.execution == "executed":  # its result is discarded
        return DONE
    log.error("a message was not executed: %s", error.problem)
    return AGAIN if error.retryable else REJECTED
