"""Speaks to a running router over its HTTP face, with nothing but the standard library."""

import http.client
import os
from collections.abc import Iterator
from typing import Annotated, Any, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgspec
import typer

from syncline.errors import LinkLostError, MalformedMessageError, RefusedError

TIMEOUT_SECONDS = 60.0
_LINE_BYTES_MAX = 1 << 16

UrlOption = Annotated[
    str | None, typer.Option("--url", help="A running router, as http://127.0.0.1:8080.")
]


class RouterClient:
    """The token comes from `SYNCLINE_HTTP_TOKEN`, so that no command line shows it."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise MalformedMessageError(f"{url!r} is no address of a router; write http://…")
        self.url = url.rstrip("/")
        self._token = os.environ.get("SYNCLINE_HTTP_TOKEN", "")

    def get(self, path: str) -> dict[str, Any]:
        with self._open(Request(self.url + path)) as answer:
            return _decoded(answer.read())

    def post_lines(self, path: str, value: object) -> Iterator[dict[str, Any]]:
        """The lines of a streamed answer, as they come."""
        body = msgspec.json.encode(value)
        headers = {"content-type": "application/json"}
        with self._open(Request(self.url + path, body, headers, method="POST")) as answer:
            while line := answer.readline(_LINE_BYTES_MAX):
                yield _decoded(line)

    def _open(self, request: Request) -> http.client.HTTPResponse:
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            return cast(http.client.HTTPResponse, urlopen(request, timeout=TIMEOUT_SECONDS))
        except HTTPError as error:
            with error:
                text = error.read(_LINE_BYTES_MAX)
            raise RefusedError(_message(text) or f"the router answered {error.code}") from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise LinkLostError(
                f"no router answers at {self.url} ({reason}); "
                "start it with `syncline serve` or check --url"
            ) from error


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise MalformedMessageError("the answer is not one of a router; check --url") from error


def _message(text: bytes) -> str:
    try:
        return str(msgspec.json.decode(text, type=dict[str, Any]).get("message", ""))
    except msgspec.MsgspecError:
        return ""
