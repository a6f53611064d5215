"""The handler's transaction, usable until the response has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("stet")

_NOT_YOURS = "stet: a handler does not commit: stet commits the transaction together with the response; use a savepoint instead"
_ENDED = "stet: the response has ended, and with it the transaction: write before that, or on a connection of your own"


class Handle:
    """A connection or session that raises RuntimeError, and logs it, once its transaction has ended.

    Without it a late write would join the transaction of the next request that receives the
    connection from the pool, or begin a transaction that is never committed. A cursor or method from before is not guarded.
    """

    def __init__(self, real: Any, ended: Callable[[], bool]) -> None:
        object.__setattr__(self, "_stet", (real, ended))

    def _live(self) -> Any:
        real, ended = object.__getattribute__(self, "_stet")
        if ended():
            log.error("a handler, a background task or a dependency used the transaction after the response had ended; nothing was written")
            raise RuntimeError(_ENDED)
        return real

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_stet")[0])

    def __getattr__(self, name: str) -> Any:
        if name == "commit":
            raise RuntimeError(_NOT_YOURS)
        return getattr(Handle._live(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(Handle._live(self), name, value)

    def __contains__(self, item: Any) -> bool:
        return item in Handle._live(self)

    def __iter__(self) -> Any:
        return iter(Handle._live(self))
