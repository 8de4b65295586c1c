"""Logs: lines for programs or for people, and ids only if asked for."""

import json
import logging
from collections.abc import Iterator

import pytest

from syncline.server import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


def test_a_line_is_json_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.set_up(is_json=True, level="info", with_ids=False)
    log.info("serving", url="http://127.0.0.1/", queue="secret-id")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"], line["url"]) == (
        "serving",
        "info",
        "http://127.0.0.1/",
    )
    assert "queue" not in line


def test_ids_are_written_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(is_json=True, level="info", with_ids=True).error("damage found", queue="an-id")
    assert json.loads(capsys.readouterr().err)["queue"] == "an-id"


def test_less_than_the_level_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.set_up(is_json=True, level="warning", with_ids=False)
    log.info("serving")
    log.warning("new messages are refused")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == [
        "new messages are refused"
    ]


def test_people_get_words(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(is_json=False, level="info", with_ids=False).info("serving", url="http://x/")
    text = capsys.readouterr().err
    assert "serving" in text
    assert "url=http://x/" in text


def test_the_http_server_logs_here_too(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("uvicorn").propagate = False
    logging.getLogger("uvicorn.error").disabled = True
    logs.set_up(is_json=True, level="info", with_ids=False)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "Invalid HTTP request received."
