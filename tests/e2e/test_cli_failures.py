"""What goes wrong around a verb: one sentence, or the object for programs, and no traceback."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from syncline.cli import doctoring
from tests.e2e.command_line import Cli, Result
from tests.e2e.router_process import COMMAND, STOP_SECONDS, environment

pytestmark = pytest.mark.timeout(90)

LONG_NAME = "n" * 300
NOT_UTF8 = os.fsdecode(b"bad\xff")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(monkeypatch, capfd)


def run_into(output: int, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(),
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=STOP_SECONDS,
        check=False,
    )


def refusal(found: Result) -> str:
    """The sentence of the object that programs read."""
    assert (found.code, found.out) == (2, "")
    facts = json.loads(found.error)
    assert facts.keys() == {"error", "message", "retriable"}
    sentence: str = facts["message"]
    return sentence


@pytest.mark.parametrize("verb", ["doctor", "inspect", "verify", "repair", "tail"])
def test_a_name_that_is_too_long_is_said_so(cli: Cli, verb: str) -> None:
    assert "file name too long" in refusal(cli(verb, LONG_NAME, "--json"))
    found = cli(verb, LONG_NAME)
    assert found.code == 2
    assert found.error.startswith("error: ")
    assert found.error.count("\n") == 1


def test_output_that_cannot_be_written_is_said_so() -> None:
    with open("/dev/full", "w") as full:
        found = run_into(full.fileno(), *COMMAND, "config")
    sentence = "error: no space left on device; free some space, then try again\n"
    assert (found.returncode, found.stderr) == (2, sentence)


def test_closed_output_is_said_so_before_anything_is_done(tmp_path: Path) -> None:
    words = [*COMMAND, "serve", "--data", str(tmp_path / "new"), "--port", "0"]
    found = run_into(subprocess.DEVNULL, "sh", "-c", 'exec "$@" >&-', "sh", *words)
    assert (found.returncode, found.stderr.count("\n")) == (2, 1)
    assert "standard output is closed" in found.stderr
    assert not (tmp_path / "new").exists()


def test_whoever_has_read_enough_hears_no_more() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as output:
        found = run_into(output.fileno(), *COMMAND, "config", "--json")
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", NOT_UTF8),
        ("doctor", NOT_UTF8),
        ("config", "--set", f"store.folder={NOT_UTF8}"),
        ("serve", "--data", NOT_UTF8, "--port", "0"),
    ],
)
def test_a_name_that_is_not_utf8_is_refused_before_anything_is_done(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    sentence = refusal(cli(*words, "--json"))
    assert sentence.endswith("bad\\udcff is not UTF-8; use a name that is")
    assert not any(tmp_path.iterdir())


def test_a_folder_within_one_that_is_not_utf8_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NOT_UTF8).mkdir()
    monkeypatch.chdir(tmp_path / NOT_UTF8)
    for verb in ("doctor", "inspect"):
        assert "is not UTF-8" in refusal(cli(verb, "--json"))


def test_a_variable_that_is_not_utf8_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNCLINE_STORE_FOLDER", NOT_UTF8)
    sentence = refusal(cli("config", "--json"))
    assert sentence.startswith("store.folder (environment SYNCLINE_STORE_FOLDER) is not UTF-8")


def test_a_token_that_cannot_be_sent_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNCLINE_HTTP_TOKEN", "a-token-of\nseveral-lines")
    sentence = refusal(cli("tail", "--url", "http://127.0.0.1:1", "--json"))
    assert sentence.startswith("SYNCLINE_HTTP_TOKEN needs")


def test_doctor_says_that_the_disk_is_full(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(_place: Path) -> tuple[float, float]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctoring, "_sync_ms", fill)
    facts = cli("doctor", tmp_path, "--json").json
    assert facts["disk"]["write_error"] == "no space left on device"
    sentence = f"nothing can be written to {tmp_path}: no space left on device"
    assert sentence in facts["advice"]


def test_output_that_cannot_be_shown_is_said_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    found = cli("config", "--set", "store.folder=Ж")
    assert (found.code, found.error.count("\n")) == (2, 1)
    assert "set PYTHONIOENCODING=utf-8" in found.error


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("inspect", "--nothing"), "no such option: --nothing"),
        (("backup",), "missing argument 'target'"),
        (("inspect", "--queues", "x"), "invalid value for '--queues'"),
        (("tail", "--follow"), "--follow needs --url"),
        (("inspekt",), "no such command 'inspekt'"),
        (("document", "state"), "missing argument 'name'"),
    ],
)
def test_words_that_are_wrong_are_told_to_programs(
    cli: Cli, words: tuple[str, ...], reason: str
) -> None:
    found = cli(*words, "--json")
    assert reason in refusal(found).lower()
    assert json.loads(found.error)["error"] == "UsageError"


def test_help_is_help_for_programs_too(cli: Cli) -> None:
    found = cli("inspect", "--json", "--help")
    assert (found.code, found.error) == (0, "")
    assert "--queues" in found.out


@pytest.mark.parametrize("service", ["", "abc", "a b", "é", "../queues"])
@pytest.mark.parametrize("verb", [["show"], ["delete", "--yes"]])
def test_what_is_no_id_of_a_service_is_told_as_such(
    cli: Cli, service: str, verb: list[str]
) -> None:
    result = cli("service", *verb, service, "--url", "http://127.0.0.1:1")
    assert result.code == 2
    assert f"{service!r} is no id of a service" in result.sentence
