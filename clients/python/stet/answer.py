"""Answers, and the problem documents among them (docs/problems.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

PROBLEM_BASE = "https://github.com/stet-go/stet/blob/main/docs/problems.md#"


@dataclass(frozen=True)
class Answer:
    """A response. Header fields are in Latin-1, as HTTP libraries have them."""

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""

    def values(self, name: str) -> list[str]:
        return [v for n, v in self.headers if n.lower() == name.lower()]


@dataclass(frozen=True)
class Problem:
    """A type of problem: docs/problems.md has a section for each."""

    name: str
    status: int
    title: str
    detail: str
    retryable: bool
    execution: str

    def answer(self, base: str = PROBLEM_BASE, detail: str = "", retry_after: int = 0, operation: str = "") -> Answer:
        """operation is the ID by which operators find it."""
        document = {"type": base + self.name, "title": self.title, "status": self.status, "detail": detail or self.detail,
                    "retryable": self.retryable, "execution": self.execution}
        headers = [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store")]
        if operation:
            document["operation"] = operation
            headers.append(("Stet-Operation", operation))
        if retry_after:
            headers.append(("Retry-After", str(retry_after)))
        if self is KEY_MISSING:
            headers.append(("Link", f'<{base}{self.name}>; rel="describedby"; type="text/html"'))
        return Answer(self.status, headers, json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n")


_NOT, _MAY, _DONE = "not executed", "may have executed", "executed"

KEY_MISSING = Problem("key-missing", 400, "Idempotency key missing",
                      "This operation needs an idempotency key, so that it can be retried safely.", False, _NOT)
KEY_INVALID = Problem("key-invalid", 400, "Idempotency key invalid", "A key has 1 to 255 bytes of visible ASCII.", False, _NOT)
KEY_REPEATED = Problem("key-repeated", 400, "Idempotency key repeated", "The request has more than one idempotency key.", False, _NOT)
SCOPE_MISSING = Problem("scope-missing", 403, "Caller not identified",
                        "The request does not say which account the idempotency key belongs to.", False, _NOT)
SCOPE_FAILED = Problem("scope-failed", 500, "Caller could not be identified",
                       "The server could not find out which account the idempotency key belongs to.", True, _NOT)
SCOPE_TOO_LONG = Problem("scope-too-long", 403, "Name of the caller too long",
                         "The name of the account that the idempotency key belongs to is too long.", False, _NOT)
BODY_TOO_LARGE = Problem("body-too-large", 413, "Request body too large",
                         "The request body is larger than this operation accepts.", False, _NOT)
MISMATCH = Problem("mismatch", 422, "Idempotency key reused for another request",
                   "This key was used before for a request that differs from this one.", False, _NOT)
IN_FLIGHT = Problem("in-flight", 409, "Operation in flight", "The first request with this key is still being executed.", True, _MAY)
OUTCOME_UNKNOWN = Problem("outcome-unknown", 504, "Outcome unknown",
                          "The operation may have been executed. Keep asking with the same key: a new key would risk a second execution.",
                          True, _MAY)
RESULT_EXPIRED = Problem("result-expired", 410, "Result no longer kept",
                         "The operation was executed before. Its response has expired or was too large to keep. It does not run again.",
                         False, _DONE)
FAILED_EXPIRED = Problem("result-expired", 410, "Result no longer kept",
                         "The operation failed, and may have been executed. Its stored result has expired or cannot be read. "
                         "It does not run again.", False, _MAY)
RESULT_UNREADABLE = Problem("result-unreadable", 500, "Stored result unreadable",
                            "The operation has ended, and may have been executed. Its stored result cannot be read. It does not run again.",
                            False, _MAY)
CODING_NOT_ACCEPTABLE = Problem("coding-not-acceptable", 406, "Content coding not acceptable",
                                "The operation was executed before. Its response has a content coding that Accept-Encoding excludes.", False, _DONE)
STORE_UNAVAILABLE = Problem("store-unavailable", 503, "Idempotency store unavailable",
                            "Nothing was executed, because it could not have been recorded.", True, _NOT)
OPERATION_FAILED = Problem("operation-failed", 500, "Operation failed",
                           "The operation failed. It may have had an effect before, and does not run again.", False, _MAY)
RESPONSE_MISSING = Problem("response-missing", 500, "Response missing",
                           "The operation ended without a response. It had no effect.", True, _NOT)
RESPONSE_TOO_LARGE = Problem("response-too-large", 500, "Response too large",
                             "The response is too large to hold until the commit, so the operation was rolled back.", False, _NOT)
NOT_SETTLED = Problem("not-settled", 500, "Not settled",
                      "The service has executed the operation, and has recorded no outcome of it in the same transaction. It does not run again.",
                      False, _MAY)
MISCONFIGURED = Problem("misconfigured", 500, "Idempotency misconfigured", "The server could not begin the operation.", False, _NOT)


def accepts(headers: Sequence[tuple[bytes, bytes]], codings: list[str]) -> bool:
    """Reports whether a request with these header fields accepts these content codings (RFC 9110, section 12.5.3)."""
    accept = [value.decode("latin-1") for name, value in headers if name.lower() == b"accept-encoding"]
    if not accept:
        return True
    weights: dict[str, bool] = {}
    for element in ",".join(accept).lower().split(","):
        coding, *parameters = (part.strip() for part in element.split(";"))
        weight = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            weights.setdefault(coding, float(weight) > 0)
        except ValueError:
            weights.setdefault(coding, False)
    wanted = [coding.strip() for coding in ",".join(codings).lower().split(",")]
    return all(coding in ("", "identity") or weights.get(coding, weights.get("*", False)) for coding in wanted)
