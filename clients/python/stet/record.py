"""What a record is made of: digests, lock numbers and stored bytes. Other languages compute the same (docs/vectors.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

MAX_FIELDS = 4096

_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_OF_THE_CONNECTION = {"Connection", "Content-Length", "Date", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}


def _part(b: bytes) -> bytes:
    return len(b).to_bytes(4, "big") + b


def _digest(*parts: bytes) -> bytes:
    return sha256(b"".join(map(_part, parts))).digest()


def _signed(b: bytes) -> int:
    return int.from_bytes(b, "big", signed=True)


def number64(*parts: str) -> int:
    """The number of a lock that belongs to names."""
    return _signed(_digest(*(part.encode() for part in parts))[:8])


class Table:
    """Computes IDs and lock numbers for one schema and prefix."""

    def __init__(self, schema: str = "stet", prefix: str = "stet_") -> None:
        self.name = "records" if prefix == "stet_" else prefix.removesuffix("_")
        names = _part(schema.encode()) + _part(self.name.encode())
        self._run, self._finger = (_part(kind) + names + b"\0\0\0\x20" for kind in (b"run", b"finger"))  # 32, the length of an ID
        self._wait = int.from_bytes(sha256(_part(b"wait") + names).digest()[:8], "big")
        self.channel = "stet_" + sha256(_part(b"channel") + names).hexdigest()[:16]

    def operation(self, namespace: str, scope: str, key: str, fingerprint: bytes, class_: str = "", name: str = "") -> Operation:
        space, whose = namespace.encode(), scope.encode()
        of = _digest(b"stet scope 1", space, whose)
        id_ = of[:8] + _digest(b"stet id 2", space, whose, key.encode())[:24]
        return Operation(id_, of, fingerprint, _signed(sha256(self._run + id_).digest()[:8]), _signed(sha256(self._finger + id_).digest()[4:8]),
                         _signed(_digest(fingerprint)[4:8]), class_, name)

    def wait_lock(self, id_: bytes) -> int:
        """The number of the lock of callers that wait for the operation."""
        n = int.from_bytes(id_[8:16], "big") ^ self._wait
        return n - (1 << 64) if n >> 63 else n


@dataclass(frozen=True, slots=True)
class Operation:
    """The arguments of a begin, except for the owner."""

    id: bytes
    scope: bytes
    fingerprint: bytes
    run_lock: int
    print_lock: int
    print: int
    class_: str
    name: str
    other: Operation | None = None
    """The operation under its second name; see Options.previous."""


class Claim(NamedTuple):
    """The right to settle an operation."""

    id: bytes
    owner: bytes
    fence: int

    @classmethod
    def parse(cls, text: str) -> Claim | None:
        found = re.fullmatch(r"c1\.([0-9a-f]{64})\.([0-9a-f]{32})\.([0-7][0-9a-f]{15})", text)
        return cls(bytes.fromhex(found[1]), bytes.fromhex(found[2]), int(found[3], 16)) if found else None

    def __str__(self) -> str:
        return f"c1.{self.id.hex()}.{self.owner.hex()}.{self.fence:016x}"


class Outcome(NamedTuple):
    """A stored response."""

    status: int | None
    content_type: str | None
    head: bytes | None
    body: bytes | None
    failed: bool
    gone: bool


_encode = json.JSONEncoder(ensure_ascii=False).encode


@lru_cache(256)
def _canonical(name: str) -> str:
    return "-".join(word[:1].upper() + word[1:].lower() for word in name.split("-"))


def head(fields: Iterable[tuple[str, str]]) -> bytes | None:
    """The stored bytes of header fields, without those of the connection; None if there are none. A ValueError for a field that cannot be stored."""
    kept: dict[str, list[str]] = {}
    n = 0
    for name, value in fields:
        name = _canonical(name)
        if name in _OF_THE_CONNECTION or name.startswith("Proxy-"):
            continue
        if name == "Content-Type" or not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise ValueError(f"stet: the header field {name[:100]!r} cannot be stored: its name must be one of HTTP, and its value have no control characters")
        values = kept.setdefault(name, [])
        n += 1 if values else 2
        values.append(value)
    if n > MAX_FIELDS:
        raise ValueError(f"stet: the response has more than {MAX_FIELDS} header fields and values")
    if not kept:
        return None
    return b"\x03" + _encode({name: kept[name] for name in sorted(kept, key=lambda name: (len(name), name))}).encode()


def fields(stored: bytes | None) -> dict[str, list[str]] | None:
    """The header fields of stored bytes; None if stet_head must read them, which returns those of Go and refuses others."""
    if not stored:
        return {}
    try:
        known = json.loads(stored[1:]) if stored[0] == 3 else None
    except (ValueError, RecursionError):
        return None
    listed = isinstance(known, dict) and all(isinstance(values, list) and all(isinstance(value, str) for value in values) for values in known.values())
    return known if listed else None
