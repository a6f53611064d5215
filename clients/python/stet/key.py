"""The Idempotency-Key header field."""

from __future__ import annotations

import re

MAX_KEY = 255
MAX_FIELD = 4096

_BARE = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"|[A-Za-z*][!#$%&\'*+\-.^_`|~0-9A-Za-z:/]*|-?[0-9]{1,15}(?:\.[0-9]{1,3})?|:[A-Za-z0-9+/=]*:|\?[01]'
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"(?:; *[a-z*][a-z0-9_\-.*]*(?:=(?:' + _BARE + r"))?)*")


class KeyFlaw(ValueError):
    """The field names no key; the text says why."""


def parse_key(field: str, strict: bool = False) -> str:
    """The key that a field's value names: a structured field string (RFC 9651), or, if not strict, the value unchanged."""
    key = field.strip(" \t")
    if not key:
        raise KeyFlaw("The key is empty.")
    if key.startswith('"'):
        if len(key) > MAX_FIELD:
            raise KeyFlaw("The key is longer than 255 bytes.")
        found = _QUOTED.fullmatch(key)
        if not found:
            raise KeyFlaw("The key begins with a quote but is not a structured field string (RFC 9651).")
        key = re.sub(r"\\(.)", r"\1", found[1])
    elif strict:
        raise KeyFlaw("The key must be in double quotes: a structured field string (RFC 9651).")
    elif "," in key:
        raise KeyFlaw("The key has a comma and is not in double quotes: it may be two keys that something on the way has joined.")
    if not key:
        raise KeyFlaw("The key is empty.")
    if len(key) > MAX_KEY:
        raise KeyFlaw("The key is longer than 255 bytes.")
    if not _VISIBLE.fullmatch(key):
        raise KeyFlaw("The key has a byte that is not visible ASCII.")
    return key
