"""Serves pages that are held in memory: to everybody, since there is nothing secret in them.

A page may load from here and connect to here, and to nothing else; no other page may show it in a
frame. The browser asks again each time and mostly hears that nothing has changed.
"""

from collections.abc import Mapping
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "ico": "image/x-icon",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "map": "application/json",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def page_routes(pages: Mapping[str, tuple[str, bytes]]) -> list[Route]:
    """`pages`: path to file name, which tells the type, and content."""
    return [_route(path, name, content) for path, (name, content) in sorted(pages.items())]


def _route(path: str, name: str, content: bytes) -> Route:
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": _POLICY,
        "content-type": _TYPES[name.rpartition(".")[2]],
        "etag": tag,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }

    async def show(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return Route(path, show, methods=["GET"])
