"""The opening handshake of a WebSocket: an HTTP request is read, checked and answered.

- A browser names the page that asks in `Origin`. Only pages that are allowed get in; programs that
  are no browsers send none and are judged by their token.
- Where no token is asked for, the `Host` must be this machine as well: a foreign page may have its
  own name pointed here, and would then look like one of ours.
- No extension is agreed on. Without compression there is nothing that unpacks to a thousand times
  its size.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha1
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import httptools

from syncline.server.faces import Rejected, Upgrade
from syncline.server.origins import (
    ANY_ORIGIN,
    SAME_ORIGIN,
    is_for_this_machine,
    is_same_host,
    normal_origin,
)

_KEY_SUFFIX = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION = "13"
_QUERY_FIELDS_MAX = 64


@dataclass(frozen=True, slots=True)
class Request:
    """The head of an HTTP request, as it came."""

    method: str
    target: bytes
    http_version: str
    headers: Iterable[tuple[bytes, bytes]]
    remote: str
    # Of the TLS connection, if we are its other end.
    session_id: bytes | None = None


def read_upgrade(request: Request) -> Upgrade | Rejected:
    """Whether it is a proper request for a WebSocket, wherever it wants to go."""
    headers = _joined(request.headers)
    if request.method != "GET" or request.http_version != "1.1":
        return Rejected(400, "a WebSocket is asked for by GET over HTTP/1.1")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return Rejected(400, "a request for a WebSocket has no body")
    if headers.get("sec-websocket-version") != _VERSION:
        return Rejected(426, f"WebSocket version {_VERSION} is spoken here")
    if not _is_key(headers.get("sec-websocket-key", "")):
        return Rejected(400, "sec-websocket-key must be 16 bytes in base64")
    if "host" not in headers:
        return Rejected(400, "the request names no host")
    try:
        parts = httptools.parse_url(request.target)
        path = unquote((parts.path or b"/").decode("ascii"), errors="strict")
        pairs = parse_qsl(
            (parts.query or b"").decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_QUERY_FIELDS_MAX,
        )
    except (httptools.HttpParserInvalidURLError, ValueError):
        return Rejected(400, "the path or the query cannot be read; encode them as UTF-8")
    return Upgrade(
        path=path,
        # The first of a name counts.
        query=dict(reversed(pairs)),
        headers=headers,
        subprotocols=_listed(headers.get("sec-websocket-protocol", "")),
        remote=request.remote,
        origin=headers.get("origin"),
        session_id=request.session_id,
    )


def refuse_origin(upgrade: Upgrade, origins: tuple[str, ...], *, is_open: bool) -> Rejected | None:
    """None if the page that asks may. `is_open`: whoever reaches the router may do everything."""
    host = upgrade.headers["host"].lower()
    if is_open and not is_for_this_machine(host):
        return Rejected(
            403, "without documents.token_key only names of this machine are answered; set one"
        )
    if upgrade.origin is None or ANY_ORIGIN in origins:
        return None
    origin = normal_origin(upgrade.origin)
    if SAME_ORIGIN in origins and is_same_host(origin, host):
        return None
    if origin in origins:
        return None
    return Rejected(403, "pages of this origin may not connect; add it to websocket.origins")


def switching_answer(upgrade: Upgrade, subprotocol: str | None) -> bytes:
    key = upgrade.headers["sec-websocket-key"].encode("ascii")
    # What the protocol demands; nothing is kept secret by it.
    accept = b64encode(sha1(key + _KEY_SUFFIX, usedforsecurity=False).digest())
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"upgrade: websocket",
        b"connection: Upgrade",
        b"sec-websocket-accept: " + accept,
    ]
    if subprotocol is not None:
        lines.append(b"sec-websocket-protocol: " + subprotocol.encode("ascii"))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def rejecting_answer(rejected: Rejected) -> bytes:
    body = rejected.sentence.encode("utf-8") + b"\n"
    phrase = HTTPStatus(rejected.status).phrase
    lines = [
        f"HTTP/1.1 {rejected.status} {phrase}",
        "content-type: text/plain; charset=utf-8",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if rejected.status == 426:
        lines.append(f"sec-websocket-version: {_VERSION}")
    if rejected.status == 401:
        lines.append("www-authenticate: Bearer")
    if rejected.status == 503:
        lines.append("retry-after: 1")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _listed(value: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in value.split(",")) if _is_sendable(name))


def _is_sendable(name: str) -> bool:
    # One of them may be sent back.
    return name.isascii() and name.isprintable() and name != ""


def _is_key(text: str) -> bool:
    try:
        return text.isascii() and len(b64decode(text, validate=True)) == 16
    except binascii.Error:
        return False
