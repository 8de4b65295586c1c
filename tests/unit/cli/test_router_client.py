"""What is said of an address where no router answers: which option to check."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from syncline.cli.pipeline_documents import live_state
from syncline.cli.router_client import RouterClient
from syncline.errors import LinkLostError, MalformedMessageError, NotAuthorizedError, RefusedError


@contextmanager
def answering(status: int, *answers: bytes) -> Iterator[str]:
    """The address of something that gives these answers in turn, and then the first one again."""
    given: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers[len(given) % len(answers)]
            given.append(body)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "answers",
    [
        [b'{"status": "ok"}'],
        [b'{"incarnation": "0a"}', b'{"seq": 7}'],
        [b'{"incarnation": "0a"}', b'{"seq": "many", "state": {}}'],
        [b'{"incarnation": null}', b'{"seq": 7, "state": {}}'],
        [b"[1, 2]"],
        [b"<html>"],
    ],
)
def test_what_is_no_state_of_a_document_is_no_answer_of_a_router(answers: list[bytes]) -> None:
    with (
        answering(200, *answers) as url,
        pytest.raises(MalformedMessageError, match="not one of a router; check --check"),
    ):
        live_state(RouterClient(url, "--check"), "plan")


@pytest.mark.parametrize(("option", "words"), [("--url", []), ("--check", ["--check"])])
def test_the_option_that_named_the_address_is_the_one_to_check(
    option: str, words: list[str]
) -> None:
    with (
        answering(404, b"nothing here") as url,
        pytest.raises(RefusedError, match=f"answered 404; check {option}"),
    ):
        RouterClient(url, *words).get("/api/documents/plan")
    # The server is gone.
    with pytest.raises(LinkLostError, match=f"or check {option}"):
        RouterClient(url, *words).get("/api/documents/plan")


def test_an_address_with_a_path_too_many_is_what_to_check() -> None:
    answer = b'{"error": "HTTP", "message": "Not Found", "retriable": false}'
    with (
        answering(404, answer) as url,
        pytest.raises(RefusedError, match="answered 404; check --url"),
    ):
        RouterClient(f"{url}/console").get("/api/queues")


def test_a_wrong_token_is_told_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(401, b'{"error": "AUTH"}') as url:
        monkeypatch.delenv("SYNCLINE_HTTP_TOKEN", raising=False)
        with pytest.raises(NotAuthorizedError, match="put it in SYNCLINE_HTTP_TOKEN"):
            RouterClient(url).get("/api/queues")
        monkeypatch.setenv("SYNCLINE_HTTP_TOKEN", "of-another-router")
        with pytest.raises(NotAuthorizedError, match="is not the router's"):
            RouterClient(url).get("/api/queues")
