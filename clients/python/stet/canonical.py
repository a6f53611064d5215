"""Canonical JSON for fingerprints: the same bytes as Go's package canonical (docs/vectors.json)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

MAX_DEPTH = 10_000

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STRING = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_ESCAPE = re.compile(r'\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))')
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}
_MUST_ESCAPE = re.compile(r'["\\\x00-\x1f]')
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}

_Excluded = dict[str, "_Excluded | None"]  # by name, or by index in decimal; None is excluded itself


class _Malformed(Exception):
    pass


def canonical_json(*exclude: str) -> Callable[[bytes], bytes]:
    """A function that brings a JSON text into canonical form: members ordered as in RFC 8785, no
    white space, strings in their shortest spelling. Numbers stay as they were sent: 100 and 100.0 are different.

    exclude are JSON pointers (RFC 6901) to values that do not count, such as a send time. An
    element of an array becomes null: the others do not change places.

    A body that is not one valid JSON text (no duplicate names, valid UTF-8, nested 10,000 deep at most) is returned
    unchanged. A malformed pointer is a ValueError.
    """
    root: _Excluded = {}
    for pointer in exclude:
        if not re.fullmatch(r"(/([^~/]|~[01])*)+", pointer, re.DOTALL):
            raise ValueError(f"stet: {pointer!r} is not a JSON pointer to a part of a body; write it as \"/member/0\" (RFC 6901)")
        tokens = [t.replace("~1", "/").replace("~0", "~") for t in pointer[1:].split("/")]
        _exclude(root, tokens)

    def form(body: bytes) -> bytes:
        try:
            return "".join(_write(_Parser(body.decode("utf-8")).document(), root)).encode("utf-8")
        except (UnicodeError, _Malformed):
            return body

    return form


def _exclude(part: _Excluded, tokens: list[str]) -> None:
    for token in tokens[:-1]:
        below = part.setdefault(token, {})
        if below is None:
            return  # a part around it is excluded already
        part = below
    part[tokens[-1]] = None


class _Parser:
    """Reads a text into dicts, lists and, for other values, texts. It does not recur: a body may be nested deeply."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def space(self) -> str:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        return self.text[self.at:self.at + 1]

    def take(self, char: str) -> None:
        if self.space() != char:
            raise _Malformed
        self.at += 1

    def string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if not found:
            raise _Malformed
        self.at = found.end()
        return _ESCAPE.sub(_unescape, found[1]) if "\\" in found[1] else found[1]

    def name(self) -> str:
        self.space()
        name = self.string()
        self.take(":")
        return name

    def scalar(self) -> str:
        if self.text[self.at:self.at + 1] == '"':
            return '"' + _MUST_ESCAPE.sub(_escape, self.string()) + '"'
        found = _SCALAR.match(self.text, self.at)
        if not found:
            raise _Malformed
        self.at = found.end()
        return found[0]

    def document(self) -> object:
        root: list[object] = []
        open_: list[tuple[dict[str, object] | list[object], str]] = []  # containers, and the name in their parent
        into: dict[str, object] | list[object] = root
        name = ""
        while True:
            char = self.space()
            if char in ("{", "["):
                self.at += 1
                if len(open_) == MAX_DEPTH:
                    raise _Malformed
                new: dict[str, object] | list[object] = {} if char == "{" else []
                _put(into, name, new)
                open_.append((into, name))
                into = new
                if self.space() != ("}" if char == "{" else "]"):
                    name = self.name() if char == "{" else ""
                    continue
            else:
                _put(into, name, self.scalar())
            while open_:  # the values that end here, and the next one
                char = self.space()
                if char == ",":
                    self.at += 1
                    name = self.name() if isinstance(into, dict) else ""
                    break
                self.take("}" if isinstance(into, dict) else "]")
                into, name = open_.pop()
            else:
                if self.space():
                    raise _Malformed
                return root[0]


def _put(into: dict[str, object] | list[object], name: str, value: object) -> None:
    if isinstance(into, list):
        into.append(value)
    elif name in into:
        raise _Malformed
    else:
        into[name] = value


def _unescape(found: re.Match[str]) -> str:
    high, low, unit, char = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if char:
        return _ESCAPED[char]
    if 0xD800 <= int(unit, 16) <= 0xDFFF:
        raise _Malformed  # half of a character
    return chr(int(unit, 16))


def _escape(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"


def _write(value: object, excluded: _Excluded) -> Iterator[str]:
    """The text of a value, in pieces."""
    if isinstance(value, str):
        yield value
        return
    open_ = [_items(value, excluded)]
    closing = ["}" if isinstance(value, dict) else "]"]
    yield "{" if isinstance(value, dict) else "["
    first = True
    while open_:
        item = next(open_[-1], None)
        if item is None:
            open_.pop()
            yield closing.pop()
            first = False
            continue
        label, value, below = item
        yield ("" if first else ",") + label
        first = isinstance(value, (dict, list))
        if isinstance(value, str):
            yield value
            continue
        yield "{" if isinstance(value, dict) else "["
        open_.append(_items(value, below))
        closing.append("}" if isinstance(value, dict) else "]")


def _items(value: object, excluded: _Excluded) -> Iterator[tuple[str, object, _Excluded]]:
    """The elements, or the members in order, each with its prefix and its excluded parts."""
    if isinstance(value, list):
        for i, element in enumerate(value):
            below = excluded.get(str(i), {}) if excluded else {}
            yield ("", "null", {}) if below is None else ("", element, below)
        return
    assert isinstance(value, dict)
    for name in sorted(value, key=lambda n: n.encode("utf-16-be")):
        below = excluded.get(name, {})
        if below is not None:
            yield '"' + _MUST_ESCAPE.sub(_escape, name) + '":', value[name], below
