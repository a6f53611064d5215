"""Fingerprints: what a request asks for, as 33 bytes. The same bytes as in Go (docs/vectors.json)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

Fields = Sequence[tuple[bytes, bytes]]
"""Header fields in the order in which they came."""

MAX_PARTS = 1024
"""A multipart body with so many parts, or more, is digested whole."""

_OVERRIDES = {name.lower(): name for name in (b"X-Http-Method-Override", b"X-Http-Method", b"X-Method-Override")}

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_MEDIA_TYPE = re.compile(rb"[ \t]*(" + _TOKEN + rb"(?:/" + _TOKEN + rb")?)[ \t]*((?:;.*)?)", re.DOTALL)
# The content type of a format that is UTF-8 also without its charset.
_UTF8_TYPE = re.compile(rb'^(application/(?:json|x-www-form-urlencoded|[^ \t;,"]+\+json))[ \t]*;[ \t]*charset="?utf-8"?[ \t]*\Z', re.IGNORECASE)
_PARAMETER = re.compile(rb"[ \t]*;[ \t]*(" + _TOKEN + rb')[ \t]*=[ \t]*(?:(' + _TOKEN + rb')|"([^"\\\r\n]*)")')


def fingerprint(*parts: bytes, version: int = 1) -> bytes:
    """The fingerprint of parts; version 2 is for parts that were brought into canonical form."""
    if version not in (1, 2):
        raise ValueError("stet: the version of a fingerprint is 1, or 2 where the body is canonical JSON")
    digest = hashlib.sha256(bytes([version]))
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return bytes([version]) + digest.digest()


def request_fingerprint(method: str, target: bytes, headers: Fields, body: bytes,
                        canonical: Callable[[bytes], bytes] | None = None) -> bytes:
    """What stethttp computes of a request: of its method, what overrides that, the target (path and
    query as sent), content type, content coding and body.

    canonical, of stet.canonical_json, brings JSON bodies into canonical form. A multipart body is
    digested part by part, so that its random boundary does not count. A boundary or a
    part's header that is out of the ordinary (a quoted pair, a continued line) makes it digested whole.
    charset=utf-8 of JSON and of forms does not count, nor does the time in the header of gzip.
    """
    headers = [(name.lower(), value) for name, value in headers]
    content_type = _UTF8_TYPE.sub(rb"\1", _joined(headers, b"content-type"))
    coding = _joined(headers, b"content-encoding")
    if coding.lower() == b"gzip" and len(body) >= 10 and body[:2] == b"\x1f\x8b":
        body = body[:4] + bytes(4) + body[8:]  # without the time of compression (RFC 1952, MTIME)
    head = [method.encode("latin-1"), _overriding(headers) + path_and_query(target)]
    multipart = content_type[:10].lower() == b"multipart/" and len(content_type) > 10
    if not body or not (canonical or multipart):
        return fingerprint(*head, content_type, coding, body)
    media_type, parameters = _parse_media_type(content_type)
    if media_type.startswith(b"multipart/"):
        parts = _split(parameters.pop(b"boundary", b""), body)
        if parts is not None:
            return fingerprint(*head, _format_media_type(media_type, parameters), coding, b"multipart", *parts)
    if not canonical:
        return fingerprint(*head, content_type, coding, body)
    if media_type == b"application/json" or media_type.endswith(b"+json"):
        body = canonical(body)
    return fingerprint(*head, content_type, coding, body, version=2)


def path_and_query(target: bytes) -> bytes:
    """The target without scheme and host, should it have been sent in absolute form."""
    if target.startswith(b"/"):
        return target
    _, found, rest = target.partition(b"://")
    if not found:
        return target
    at = [i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0]
    return rest[min(at):] if at else b"/"


def _joined(headers: Fields, name: bytes) -> bytes:
    return b", ".join(value for n, value in headers if n == name)


def _overriding(headers: Fields) -> bytes:
    return b"".join(name + b":" + value + b"\n" for lower, name in _OVERRIDES.items() for n, value in headers if n == lower)


def _parse_media_type(text: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """A media type and its parameters; an empty one if it is malformed."""
    found = _MEDIA_TYPE.fullmatch(text)
    if not found:
        return b"", {}
    parameters: dict[bytes, bytes] = {}
    rest, at = found[2], 0
    while at < len(rest):
        parameter = _PARAMETER.match(rest, at)
        if not parameter:
            if rest[at:].strip(b" \t") in (b"", b";"):
                break
            return b"", {}
        name = parameter[1].lower()
        if name in parameters or b"*" in name:
            return b"", {}
        parameters[name] = parameter[3] if parameter[2] is None else parameter[2]
        at = parameter.end()
    return found[1].lower(), parameters


def _format_media_type(media_type: bytes, parameters: dict[bytes, bytes]) -> bytes:
    text = media_type
    for name in sorted(parameters):
        value = parameters[name]
        if not re.fullmatch(_TOKEN, value):
            value = b'"' + value + b'"'
        text += b"; " + name + b"=" + value
    return text


def _split(boundary: bytes, body: bytes) -> list[bytes] | None:
    """The parts of a multipart body, each as its header and its content; None if it is not well-formed."""
    delimiter = b"--" + boundary
    if not boundary or not body.startswith(delimiter + b"\r\n"):
        return None
    pieces = (b"\r\n" + body).split(b"\r\n" + delimiter)
    if len(pieces) - 2 >= MAX_PARTS or not re.fullmatch(rb"--[ \t]*(\r\n.*)?", pieces[-1], re.DOTALL):
        return None
    parts: list[bytes] = []
    for piece in pieces[1:-1]:
        if piece.startswith(b"\r\n\r\n"):
            header, content = b"", piece[4:]
        else:
            header, blank, content = piece[2:].partition(b"\r\n\r\n")
            if not piece.startswith(b"\r\n") or not blank:
                return None
        fields: dict[bytes, list[bytes]] = {}
        for line in header.split(b"\r\n") if header else []:
            name, colon, value = line.partition(b":")
            if not colon or not re.fullmatch(_TOKEN, name) or b"\n" in value:
                return None
            name = b"-".join(word.capitalize() for word in name.split(b"-"))
            fields.setdefault(name, []).append(value.strip(b" \t"))
        parts.append(b"".join(n + b":" + v + b"\n" for n in sorted(fields) for v in fields[n]))
        parts.append(content)
    return parts
