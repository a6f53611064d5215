"""Tools of agents: a function runs once for each key, and the model reads why a call has no result."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .handle import log
from .operations import Block, Operation, OperationError, Refusal, operation
from .toolcall import KEY_NAME, Call, CallRefused, plain, refusal, text_of

__all__ = ["CallRefused", "Tools"]

_call: ContextVar[Call | None] = ContextVar("stet.agents.call", default=None)
_current: ContextVar[Operation | None] = ContextVar("stet.agents", default=None)


class Tools:
    """Makes functions that an agent calls idempotent: the writes of a function are committed together with its result.

        tools = Tools(Psycopg(pool.connection), scope="acct_1")

        @tools(key=lambda order, cents: order)
        def pay(order: str, cents: int) -> dict[str, int]:
            tools.transaction.execute("INSERT ...")
            return {"payment": 7}

    database is as of stet.operation; functions with async def need one for asyncio. scope is the owner of the keys, or a function without arguments that returns it.
    key is a function of the same arguments that returns the business key. Without one, or if it returns None, the key is that of the host: "with tools.call(id):", or _meta of a
    call over MCP. A call without a key is refused: equal arguments do not make two calls one. Options are those of stet.operation.

    Arguments and result are values for json.dumps, dataclasses or models of Pydantic; every call returns the result as json.loads does. An exception rolls back, and a later call runs
    again. A Refusal is stored. Calls without a result raise CallRefused. For a server of the package mcp: MCPServer("shop", middleware=[tools.mcp]).
    """

    def __init__(self, database: Any, scope: str | Callable[[], str], **options: Any) -> None:
        self._database, self._scope, self._options = database, scope, options

    @property
    def transaction(self) -> Any:
        """The transaction of the call."""
        found = _current.get()
        if found is None:
            raise RuntimeError("stet: there is no transaction here: the function needs the decorator of Tools")
        return found.transaction

    @contextmanager
    def call(self, key: str) -> Iterator[None]:
        """The key of the calls in the block, such as the ID that the model's API gave a tool call, if a retry of the host has the same."""
        token = _call.set(Call(key))
        try:
            yield
        finally:
            _call.reset(token)

    def __call__(self, tool: Callable[..., Any] | None = None, *, key: Callable[..., str | None] | None = None, name: str = "") -> Any:
        """The decorator. name is the tool's name, by default that of the function."""
        if tool is None:
            return functools.partial(self, key=key, name=name)
        title, bind = name or tool.__name__, inspect.signature(tool).bind

        @functools.wraps(tool)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._begin(title, key, bind(*args, **kwargs)) as (block, call):
                with block as op:
                    if not op.replayed:
                        with _within(op):
                            op.result = plain(tool(*args, **kwargs))
                call.replayed = op.replayed
                return op.result

        @functools.wraps(tool)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            with self._begin(title, key, bind(*args, **kwargs)) as (block, call):
                async with block as op:
                    if not op.replayed:
                        with _within(op):
                            op.result = plain(await tool(*args, **kwargs))
                call.replayed = op.replayed
                return op.result

        return wait if inspect.iscoroutinefunction(tool) else run

    @contextmanager
    def _begin(self, title: str, key: Callable[..., str | None] | None, bound: inspect.BoundArguments) -> Iterator[tuple[Block, Call]]:
        """The operation of a call. Its errors become texts for a model."""
        call, id_ = _call.get() or Call(None), ""
        bound.apply_defaults()
        try:
            named = call.name(title, functools.partial(key, *bound.args, **bound.kwargs) if key else None)
            block = operation(self._database, scope=self._owner(), key=named, payload={"tool": title, "arguments": plain(bound.arguments)}, name=title, **self._options)
            id_ = block.id.hex()
            yield block, call
            return
        except Refusal as error:
            refused = CallRefused("operation-failed", error.value if isinstance(error.value, str) else json.dumps(error.value), False, "not executed")
        except CallRefused as error:
            refused = error
        except OperationError as error:
            refused = CallRefused(error.problem, text_of(error.problem, error.execution, call.same), error.retryable, error.execution)
            refused.__cause__ = error
        except Exception:
            call.undone = True
            raise
        refused.operation = refused.operation or id_
        call.refused = refused
        raise refused

    def _owner(self) -> str:
        try:
            scope = self._scope() if callable(self._scope) else self._scope
        except Exception as error:
            log.error("the scope function failed; nothing was executed: %s", type(error).__name__)
            raise refusal("scope-failed", True) from error
        if not scope:
            raise refusal("scope-missing")
        return scope

    async def mcp(self, context: Any, call_next: Callable[[Any], Any]) -> Any:
        """Middleware of a server of mcp 2. The host's key is the member io.github.stet-go/idempotency-key of _meta, as in contrib/stetmcp and stet proxy."""
        if context.method != "tools/call":
            return await call_next(context)
        call = Call(((context.params or {}).get("_meta") or {}).get(KEY_NAME), over_mcp=True)
        token = _call.set(call)
        try:
            result = await call_next(context)
        finally:
            _call.reset(token)
        return call.answer(result if isinstance(result, dict) else result.model_dump(by_alias=True, mode="json", exclude_none=True))


@contextmanager
def _within(op: Operation) -> Iterator[None]:
    token = _current.set(op)
    try:
        yield
    except OperationError as error:  # of another operation: its state is not that of this call
        raise RuntimeError(str(error)) from error
    finally:
        _current.reset(token)
