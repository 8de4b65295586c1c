"""Speaks to a running router over its HTTP face, with nothing but the standard library."""

import http.client
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import typer

from syncline.errors import (
    LinkLostError,
    MalformedMessageError,
    NotAuthorizedError,
    RefusedError,
    UnknownDocumentError,
)
from syncline.server.config import check_token

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_SECONDS = 60.0
_LINE_BYTES_MAX = 1 << 16
# Of an answer that no request of its API gave.
_NO_SUCH_REQUEST = "HTTP"
_TOKEN_VARIABLE = "SYNCLINE_HTTP_TOKEN"

RouterOption = Annotated[str, typer.Option("--url", help="The running router.")]
UrlOption = Annotated[
    str | None, typer.Option("--url", help=f"A running router, as {DEFAULT_URL}.")
]


class RouterClient:
    """The token comes from `SYNCLINE_HTTP_TOKEN`, so that no command line shows it.

    `option` is where the address comes from: what to check if no router is there.
    """

    def __init__(self, url: str, option: str = "--url") -> None:
        if not _is_address(url):
            raise MalformedMessageError(f"{url!r} is no address of a router; write http://…")
        self.url = url.rstrip("/")
        self.option = option
        self._token = os.environ.get(_TOKEN_VARIABLE, "")
        if self._token:
            check_token(self._token, _TOKEN_VARIABLE)

    def get(self, path: str) -> dict[str, Any]:
        with self._answer(Request(self.url + path)) as answer:
            return self._decoded(answer.read())

    def delete(self, path: str) -> None:
        with self._answer(Request(self.url + path, method="DELETE")) as answer:
            answer.read()

    def post(self, path: str, value: object) -> dict[str, Any]:
        return next(self.post_lines(path, value))

    def post_lines(self, path: str, value: object) -> Iterator[dict[str, Any]]:
        """The lines of a streamed answer, as they come."""
        body = msgspec.json.encode(value)
        headers = {"content-type": "application/json"}
        with self._answer(Request(self.url + path, body, headers, method="POST")) as answer:
            while line := answer.readline(_LINE_BYTES_MAX):
                yield self._decoded(line)

    def misunderstood(self) -> MalformedMessageError:
        """For an answer that is none of a router's."""
        return MalformedMessageError(f"the answer is not one of a router; check {self.option}")

    @contextmanager
    def _answer(self, request: Request) -> Generator[http.client.HTTPResponse]:
        """Raises RefusedError, and LinkLostError also for an answer that breaks off."""
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            opened = urlopen(request, timeout=TIMEOUT_SECONDS)
            with cast(http.client.HTTPResponse, opened) as answer:
                yield answer
        except HTTPError as error:
            with error:
                refusal = self._refusal(error.code, error.read(_LINE_BYTES_MAX))
            raise refusal from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise LinkLostError(
                f"no router answers at {self.url} ({reason}); "
                f"start it with `syncline serve` or check {self.option}"
            ) from error

    def _decoded(self, text: bytes) -> dict[str, Any]:
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self.misunderstood() from error

    def _refusal(self, status: int, text: bytes) -> RefusedError:
        try:
            said = msgspec.json.decode(text, type=_Refused)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = _Refused()
        if status == 401:
            if self._token:
                return NotAuthorizedError(f"the token in {_TOKEN_VARIABLE} is not the router's")
            return NotAuthorizedError(f"the router wants its token; put it in {_TOKEN_VARIABLE}")
        if said.error == UnknownDocumentError.code:
            return UnknownDocumentError(f"{said.message}; check its name")
        if said.error == _NO_SUCH_REQUEST or not said.message:
            return RefusedError(f"the router answered {status}; check {self.option}")
        return RefusedError(said.message)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # Asking for the port is what checks it.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class _Refused(msgspec.Struct):
    error: str = ""
    message: str = ""
