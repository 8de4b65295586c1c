"""Who may use the HTTP face, and how slow a caller may be.

- With a token, everything needs it but the open paths: health, and pages that hold no secrets.
- Without one only this machine can reach us, but so can any page in its browser: a request with the
  `Origin` of another site, or for a `Host` that is not this machine, comes from such a page and is
  refused.
- A caller that does not take its answer in time is cut off.
"""

import asyncio
import hmac
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from syncline.errors import NotAuthorizedError
from syncline.server.answers import error_answer, plain_error
from syncline.server.metrics import Metrics
from syncline.server.origins import is_for_this_machine


class AccessGate:
    """Wraps the application. `token` is empty where only this machine can reach it."""

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        send_seconds_max: float,
        metrics: Metrics,
        open_paths: frozenset[str],
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._token = token.encode("ascii")
        self._send_seconds_max = send_seconds_max
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status = 0

        async def bounded_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            # Raises TimeoutError into the application, which ends the request and the connection.
            async with asyncio.timeout(self._send_seconds_max):
                await send(message)

        try:
            await self._pass(scope, receive, bounded_send)
        finally:
            self._metrics.count_request(scope["method"], _route(scope), status)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._token:
            if scope["path"] not in self._open_paths and not self._is_authorized(headers):
                error = NotAuthorizedError("send the token as `Authorization: Bearer …`")
                await error_answer(error)(scope, receive, send)
                return
        elif _is_foreign(headers, scope.get("scheme", "http")):
            answer = plain_error(
                403,
                "FOREIGN_ORIGIN",
                "without a token only programs on this machine are answered; set http.token",
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_authorized(self, headers: Headers) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        # In constant time: how much of a guess was right must not show.
        is_same = hmac.compare_digest(token.strip().encode("utf-8"), self._token)
        return is_same and kind.lower() == "bearer"


def _is_foreign(headers: Headers, scheme: str) -> bool:
    host = headers.get("host", "")
    own = f"{scheme}://{host}"
    return not is_for_this_machine(host) or headers.get("origin", own) != own


def _route(scope: MutableMapping[str, Any]) -> str:
    """The pattern, never the path: ids stay out of the metrics, and their number is bounded."""
    route = scope.get("route")
    return getattr(route, "path", "other")
