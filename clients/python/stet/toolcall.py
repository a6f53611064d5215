"""Calls of tools: keys, and the texts that a model reads. Those of Go's contrib/stetmcp are the same (docs/vectors.json)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from .answer import PROBLEM_BASE
from .handle import log
from .operations import OperationError

_PREFIX = "io.github.stet-go/"
KEY_NAME = _PREFIX + "idempotency-key"
PLAIN, KEYED = "with exactly the same arguments", "with the same arguments and the same key in _meta"

_LOOK = ("Do not try it in another way, or with another key: that could do it twice. Find out by looking at the state itself, "
         "or tell the user that the outcome is not known.")
_UNREADABLE = "its stored result cannot be read"
_KEY = "A key is a text of 1 to 255 bytes of visible ASCII without spaces, such as a UUID."

TEXTS = {
    "key-missing": "Not executed: this tool needs an idempotency key, so that it can be retried safely. Call it again with _meta {\"" + KEY_NAME
                   + "\": \"<key>\"}: a random text (a UUID) of your own, made once for this action and sent again with every retry of it.",
    "key-invalid": "Not executed: the idempotency key in _meta \"" + KEY_NAME + "\" is not valid. {why} " + _KEY,
    "scope-missing": "Not executed: the server does not know on whose behalf this call is made. Sign in, and call it again.",
    "scope-failed": "Not executed: the server could not find out on whose behalf this call is made. Call it again later, {same}.",
    "misconfigured": "Not executed: the server is not set up rightly for this tool. Calling it again does not help; tell the user.",
    "not-executed": "Not executed: what the tool began was undone. It is safe to call it again, {same}.",
    "mismatch": "Not executed: this idempotency key was used before for another call, of another tool or with other arguments. "
                "To repeat that call, send the same arguments. For a new action, use a new key.",
    "in-flight": "Still running: the first of these calls has not ended. Do not use another key. Call it again in a while, {same}, to get its result.",
    "outcome-unknown": "Outcome unknown: it may have been executed or not. " + _LOOK + " Calling it again {same} is safe: that tells the outcome once it is known.",
    "store-unavailable": "Not executed: the server cannot record this call right now. It is safe to call it again later, {same}.",
    "result-expired executed": "Executed: this was done before. Its result was too large to keep, or is no longer kept. It does not run again; do not use another key.",
    "result-expired": "Failed: its result is no longer kept. It does not run again. It may have had an effect before it failed. " + _LOOK,
    "result-unreadable executed": "Executed: this was done before, but " + _UNREADABLE + ". It does not run again. Look at the state itself, and do not use another key.",
    "result-unreadable": "It may have been executed: " + _UNREADABLE + ", and it does not run again. " + _LOOK,
    # Those of a plain function, which has no _meta.
    "no-key": "Not executed: this call has no idempotency key. Calling it again does not help; tell the user.",
    "no-business-key": "Not executed: the server could not find the key of this action in the arguments. Calling it again with the same arguments does not help.",
}


def text_of(problem: str, execution: str, same: str = PLAIN, why: str = "") -> str:
    """The text of a problem, which begins with the state."""
    text = TEXTS.get(f"{problem} {execution}") or TEXTS.get(problem) or "It may have been executed, and does not run again. " + _LOOK
    return text.replace("{same}", same).replace("{why}", why)


class CallRefused(OperationError):
    """A call without a result. Its text tells a model whether the tool was executed, and what to do. operation is the ID of the stored operation, "" if there is none."""

    operation = ""

    def __str__(self) -> str:
        return str(self.args[1])

    @property
    def meta(self) -> dict[str, Any]:
        """The problem, for programs."""
        return {"type": PROBLEM_BASE + self.problem, "retryable": self.retryable, "execution": self.execution, **({"operation": self.operation} if self.operation else {})}


def refusal(problem: str, retryable: bool = False, text: str = "", **words: str) -> CallRefused:
    """A call that was not executed."""
    return CallRefused(problem, text_of(text or problem, "not executed", **words), retryable, "not executed")


@dataclasses.dataclass
class Call:
    """A call of a host. Its key is whatever the host has sent."""

    key: Any
    over_mcp: bool = False
    refused: CallRefused | None = None
    undone: bool = False
    replayed: bool = False

    def name(self, tool: str, business: Callable[[], Any] | None) -> str:
        """The key of the operation: of a tool and its business key, or that of the host."""
        found = None
        if business is not None:
            try:
                found = business()
                if found is not None and (not isinstance(found, str) or not found or len(found.encode()) > 512):
                    raise ValueError("a business key is text of 1 to 512 bytes")
            except Exception as error:
                log.error("the key function of a tool failed; nothing was executed: %s", type(error).__name__)
                raise refusal("key-invalid", text="no-business-key") from error
        if found is not None:
            return f"{tool} {found}"
        if self.key is None:
            raise refusal("key-missing", text="" if self.over_mcp else "no-key")
        if why := flaw(self.key):
            raise refusal("key-invalid", why=why)
        return str(self.key)

    @property
    def same(self) -> str:
        return KEYED if self.over_mcp and self.key is not None else PLAIN

    def answer(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result of a call over MCP, with stet's part."""
        meta = dict(result.get("_meta") or {})
        if result.get("isError") and self.refused:
            result = {**result, "content": [{"type": "text", "text": str(self.refused)}]}
            meta[_PREFIX + "problem"] = self.refused.meta
        elif result.get("isError") and self.undone:
            undone = refusal("not-executed", True, same=self.same)
            result = {**result, "content": [*result["content"], {"type": "text", "text": str(undone)}]}
            meta[_PREFIX + "problem"] = undone.meta
        elif self.replayed:
            meta[_PREFIX + "replayed"] = True
        return {**result, "_meta": meta} if meta else result


def flaw(key: Any) -> str:
    """Why a key of a host is invalid, or ""."""
    if not isinstance(key, str):
        return "It is not a text."
    if not key:
        return "The key is empty."
    if len(key.encode("utf-8", "surrogatepass")) > 255:
        return "The key is longer than 255 bytes."
    return "The key has a byte that is not visible ASCII." if any(not "!" <= c <= "~" for c in key) else ""


def plain(value: Any) -> Any:
    """A value as json.loads returns it."""
    def default(part: Any) -> Any:
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            return dataclasses.asdict(part)
        if hasattr(part, "model_dump"):
            return part.model_dump(mode="json")
        raise TypeError(f"stet: arguments and results of a tool are values for JSON, and not {type(part).__name__}")

    return json.loads(json.dumps(value, allow_nan=False, default=default))
