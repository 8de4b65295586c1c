"""`syncline document` against real routers, and on folders that routers left behind."""

import asyncio
import io
import json
import secrets
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jwt
import msgspec
import pycrdt
import pytest

from syncline.cli import looking
from syncline.client import connect
from syncline.server.open_document import DocumentOptions, create
from syncline.storage.base import commit
from syncline.storage.documents import encode_entry, stream_of
from syncline.storage.files import DiskFiles
from syncline.storage.folder import LOCK_NAME
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.values.kinds import Kind
from tests.e2e.command_line import Cli
from tests.e2e.router_process import COMMAND, STOP_SECONDS, RouterProcess, environment, running
from tests.e2e.test_cli import damage_payload

pytestmark = pytest.mark.timeout(90)

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(monkeypatch, capfd)


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    """One for all: each test has documents of its own."""
    with running(tmp_path_factory.mktemp("documents") / "data") as started:
        yield started


class Watch:
    """`document watch` in a process of its own; it follows once this is made."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "document", "watch", *arguments],
            env=environment(COLUMNS="200"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.start = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate(timeout=STOP_SECONDS)[1])
        return line

    def end(self) -> tuple[int, str]:
        """Wait for it to end by itself: its exit code, and what it said about that."""
        error = self.process.communicate(timeout=STOP_SECONDS)[1]
        return self.process.returncode, " ".join(error.split())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=STOP_SECONDS)


@contextmanager
def watching(*arguments: str) -> Iterator[Watch]:
    watch = Watch(*arguments)
    try:
        yield watch
    finally:
        watch.close()


def write(url: str, name: str, kind: Literal["json", "yjs", "bytes"], *mutations: Any) -> None:
    async def run() -> None:
        async with connect(url) as client, client.document(name, kind) as document:
            for mutation in mutations:
                await document.change(mutation)

    asyncio.run(run())


# A running router.


def test_a_document_is_made_listed_and_shown(cli: Cli, router: RouterProcess) -> None:
    url = ["--url", router.url]
    made = cli("document", "patch", "team/plan", '{"title":"Plan","old":1}', "--create", *url)
    assert (made.code, made.out) == (0, "stored at 1\n")
    changed = cli("document", "patch", "team/plan", '{"old":null,"n":[2.5]}', *url, "--json")
    assert changed.json == {"name": "team/plan", "seq": 2}
    # Somebody has it open, so that it has a reader.
    with watching("team/plan", *url, "--json"):
        listed = {
            each["name"]: each for each in cli("document", "list", *url, "--json").json["documents"]
        }
        plan = listed["team/plan"]
        assert (plan["kind"], plan["head"], plan["readers"]) == ("json", 2, 1)
        opened = cli("document", "list", "--open", *url, "--json").json
        assert [(each["name"], each["readers"]) for each in opened["documents"]] == [
            ("team/plan", 1)
        ]
        assert opened["open"] == opened["connections"] == 1
        [row] = [line for line in cli("document", "list", *url).out.splitlines() if "plan" in line]
        assert [cell.strip() for cell in row.split("│")[1:4]] == ["team/plan", "json", "2"]
        facts = cli("document", "show", "team/plan", *url, "--json").json
        [connection] = facts["connections"]
        assert (facts["head"], connection["sent"], connection["is_away"]) == (2, 2, False)
        shown = cli("document", "show", "team/plan", *url).out
        assert connection["client"] in shown
        assert "connections: 1" in shown
    state = cli("document", "state", "team/plan", *url)
    assert state.out == '{\n  "title": "Plan",\n  "n": [\n    2.5\n  ]\n}\n'
    assert cli("document", "state", "team/plan", *url, "--json").json == {
        "name": "team/plan",
        "kind": "json",
        "seq": 2,
        "state": {"title": "Plan", "n": [2.5]},
    }


def test_a_patch_may_come_from_standard_input(
    cli: Cli, router: RouterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO('{"a":"Zoë"}'.encode())))
    made = cli("document", "patch", "piped", "-", "--create", "--url", router.url)
    assert (made.code, made.out) == (0, "stored at 1\n")
    assert cli("document", "state", "piped", "--url", router.url).out == '{\n  "a": "Zoë"\n}\n'


def test_states_of_other_kinds_are_base64(cli: Cli, router: RouterProcess) -> None:
    write(router.url, "tape", "bytes", b"\x00", b"\xff")
    tape = cli("document", "state", "tape", "--url", router.url).out
    assert tape == b64encode(msgspec.msgpack.encode([b"\x00", b"\xff"])).decode() + "\n"
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    doc.get("text", type=pycrdt.Text).insert(0, "hello")
    write(router.url, "notes", "yjs", doc.get_update())
    facts = cli("document", "state", "notes", "--url", router.url, "--json").json
    assert (facts["kind"], facts["state"]) == ("yjs", b64encode(doc.get_update()).decode())


def test_names_of_any_kind_reach_the_router(cli: Cli, router: RouterProcess) -> None:
    for name in ("a b/ü?x=1#c", "100%2F", "//", ".."):
        made = cli("document", "patch", name, '{"a":1}', "--create", "--url", router.url)
        assert (made.code, made.sentence) == (0, "")
        facts = cli("document", "show", name, "--url", router.url, "--json").json
        assert (facts["name"], facts["head"]) == (name, 1)


def test_watch_prints_each_change_until_it_is_stopped(cli: Cli, router: RouterProcess) -> None:
    url = ["--url", router.url]
    cli("document", "patch", "watched", '{"a":1}', "--create", *url)
    with watching("watched", *url, "--json") as watch, watching("watched", *url) as shown:
        start = json.loads(watch.start)
        assert start == {"event": "following", "name": "watched", "kind": "json", "seq": 1}
        for value in (2, 3):
            cli("document", "patch", "watched", f'{{"a":{value}}}', *url)
            change = json.loads(watch.line())
            assert (change["event"], change["seq"]) == ("mutated", value)
            assert change["mutation"] == {"a": value}
            seq, client, body = shown.line().split()[2:]
            assert (seq, client) == (str(value), change["client"])
            assert json.loads(body) == {"a": value}
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == (130, "")


def test_watch_of_bytes_ends_after_so_many(cli: Cli, router: RouterProcess) -> None:
    write(router.url, "watched tape", "bytes", b"before")
    with watching("watched tape", "--url", router.url, "-n", "2", "--json") as watch:
        write(router.url, "watched tape", "bytes", b"one", b"two", b"three")
        found = [json.loads(watch.line())["mutation"] for _ in range(2)]
        assert found == [b64encode(body).decode() for body in (b"one", b"two")]
        assert watch.end() == (0, "")


def test_watch_ends_when_nobody_reads_it(cli: Cli, router: RouterProcess) -> None:
    cli("document", "patch", "piped on", "{}", "--create", "--url", router.url)
    with watching("piped on", "--url", router.url, "--json") as watch:
        assert watch.process.stdout is not None
        watch.process.stdout.close()
        cli("document", "patch", "piped on", '{"a":1}', "--url", router.url)
        assert watch.end() == (0, "")


def test_a_document_is_deleted_only_after_a_yes(
    cli: Cli, router: RouterProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ["--url", router.url]
    cli("document", "patch", "unwanted", '{"a":1}', "--create", *url)
    nobody = cli("document", "delete", "unwanted", *url)
    assert nobody.code == 2
    assert "say so with --yes" in nobody.sentence
    answer_with(monkeypatch, "n\n")
    declined = cli("document", "delete", "unwanted", *url)
    assert declined.code == 2
    assert "Delete 'unwanted', a document of kind json with 1 changes" in declined.sentence
    assert "'unwanted' was not deleted" in declined.sentence
    with watching("unwanted", *url) as watch:
        answer_with(monkeypatch, "y\n")
        deleted = cli("document", "delete", "unwanted", *url)
        assert (deleted.code, deleted.out) == (0, "deleted unwanted\n")
        code, sentence = watch.end()
        assert (code, sentence) == (2, "error: document 'unwanted' was deleted")
    assert cli("document", "state", "unwanted", *url).code == 2
    cli("document", "patch", "unwanted", '{"a":1}', "--create", *url)
    sure = cli("document", "delete", "unwanted", *url, "--yes", "--json")
    assert (sure.code, sure.json) == (0, {"deleted": "unwanted"})


def answer_with(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(text))


def test_what_cannot_be_done_is_one_sentence(cli: Cli, router: RouterProcess) -> None:
    url = ["--url", router.url]
    write(router.url, "opaque", "bytes", b"x")
    verbs = (["show"], ["state"], ["delete", "--yes"], ["delete"], ["watch"])
    for verb in (*verbs, ["patch", '{"a":1}']):
        missing = cli("document", verb[0], "nope", *verb[1:], *url)
        assert (missing.code, missing.out) == (2, "")
        assert missing.sentence == "error: there is no document 'nope'; check its name"
        gone = cli("document", verb[0], "nope", *verb[1:], "--url", NOWHERE)
        assert gone.code == 2
        assert f"no router answers at {NOWHERE}" in gone.sentence
    for arguments, sentence in (
        (["patch", "opaque", '{"a":1}'], "error: the document is of kind bytes, not json"),
        (["patch", "opaque", '{"a":1}', "--create"], "the document is of kind bytes, not json"),
        (["patch", "opaque", "{a:1}"], "the patch is not JSON"),
        (["patch", "opaque", '{"a":"\udcff"}'], "is not UTF-8"),
        (["patch", "opaque", "[1]"], "the patch must be an object"),
        (["show", "a\tb"], "without control characters"),
        (["patch", "n" * 201, "{}", "--create"], "a name of 1 to 200 bytes"),
        (["watch", "opaque", "--token-file", "none"], "the token file none cannot be read"),
    ):
        result = cli("document", *arguments, *url)
        assert (result.code, result.out) == (2, "")
        assert sentence in result.sentence
        assert "Traceback" not in result.error
    facts = json.loads(cli("document", "show", "nope", *url, "--json").error)
    assert (facts["error"], facts["retriable"]) == ("UnknownDocumentError", False)
    both = cli("document", "list", *url, "--data", "somewhere")
    assert both.code == 2
    assert "give --url or --data, not both" in both.sentence


@pytest.mark.parametrize("verb", ["list", "show", "state", "delete", "watch", "patch"])
def test_help_has_an_example(cli: Cli, verb: str) -> None:
    shown = cli("document", verb, "--help")
    assert shown.code == 0
    assert f"Example: syncline document {verb}" in shown.out
    assert "--json" in shown.out


def test_tokens_come_from_the_environment_and_a_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "k" * 32
    for access in ("read", "write"):
        claims = {
            "exp": int(time.time()) + 3_600,
            "documents": [{"pattern": "**", "access": access}],
        }
        (tmp_path / access).write_text(jwt.encode(claims, key, "HS256") + "\n")
    patch = ["document", "patch", "plan", '{"a":1}', "--create"]
    settings = {"SYNCLINE_HTTP_TOKEN": "operator-token-1234", "SYNCLINE_DOCUMENTS_TOKEN_KEY": key}
    with running(tmp_path / "data", **settings) as router:
        url = ["--url", router.url]
        unknown = cli("document", "list", *url)
        assert unknown.code == 2
        assert "put it in SYNCLINE_HTTP_TOKEN" in unknown.sentence
        monkeypatch.setenv("SYNCLINE_HTTP_TOKEN", "operator-token-1234")
        assert cli("document", "list", *url, "--json").json == {"documents": []}
        refused = cli(*patch, *url)
        assert refused.code == 2
        assert "put one into a file and name that with --token-file" in refused.sentence
        assert cli(*patch, *url, "--token-file", "write").out == "stored at 1\n"
        reader = cli(*patch, *url, "--token-file", "read")
        assert reader.code == 2
        assert "does not allow writing" in reader.sentence
        assert "a" in cli("document", "state", "plan", *url, "--json").json["state"]


# A folder.


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK_NAME
    }


def test_documents_of_a_folder_are_read_without_a_router(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with running(data) as router:
        router.create()
        for value in (1, 2, 3):
            patch = ["document", "patch", "plan", f'{{"a":{value}}}', "--create"]
            assert cli(*patch, "--url", router.url).out == f"stored at {value}\n"
        write(router.url, "tape", "bytes", b"\x00")
        for verb in (["list"], ["state", "plan"]):
            used = cli("document", *verb, "--data", data)
            assert used.code == 2
            assert f"process {router.process.pid}" in used.sentence
            assert "with --url in place of --data" in used.sentence
        router.kill()
    before = contents(data)
    plan, tape = cli("document", "list", "--data", data, "--json").json["documents"]
    assert (plan["name"], plan["kind"], plan["head"]) == ("plan", "json", 3)
    assert (tape["name"], tape["kind"], tape["head"]) == ("tape", "bytes", 1)
    assert plan["snapshot_bytes"] > 0
    shown = cli("document", "list", "--data", data)
    assert shown.code == 0
    assert [line.split()[1] for line in shown.out.splitlines() if "│" in line] == ["plan", "tape"]
    assert cli("document", "state", "plan", "--data", data).out == '{\n  "a": 3\n}\n'
    state = cli("document", "state", "tape", "--data", data, "--json").json
    assert (state["seq"], state["state"]) == (1, b64encode(b"\x91\xc4\x01\x00").decode())
    missing = cli("document", "state", "nope", "--data", data)
    assert missing.sentence == "error: there is no document 'nope'; check its name"
    assert "there is no such folder" in cli("document", "list", "-d", tmp_path / "none").sentence

    facts = cli("inspect", data, "--queues", "9", "--documents", "--json").json
    assert facts["counts"] == {"queue_count": 1, "document_count": 2, "unreadable_count": 0}
    assert len(facts["queues"]) == 1
    assert facts["documents"] == [plan, tape]
    inspected = cli("inspect", data)
    assert {"queues": "1", "documents": "2"}.items() <= first_words(inspected.out).items()
    assert "documents" not in cli("inspect", data, "--json").json
    monkeypatch.setattr(looking, "_COUNTED_UNASKED_MAX", 2)
    assert "3 (--documents counts them apart)" in cli("inspect", data).out
    assert cli("inspect", data, "--json").json["counts"] is None
    assert contents(data) == before


def test_what_is_damaged_is_left_out_and_said(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    options = StoreOptions(segment_bytes=65_536)
    store = open_store(
        "log", str(folder), DiskFiles(), options, now_ms=1, random_bytes=secrets.token_bytes
    )
    create("plan", Kind.JSON, bytes(8), store, DocumentOptions(), 1)
    for clock in (1, 2, 3):
        body = b'{"a%d":"message %d"}' % (clock, clock)
        store.append(stream_of("plan"), encode_entry("ann", clock, body), 1)
        commit(store)
    # What is damaged must not be the end of the log: that would be taken for a torn write.
    for name in ("message 2", "last"):
        create(name, Kind.JSON, bytes(8), store, DocumentOptions(), 1)
        commit(store)
    store.close()
    assert cli("document", "state", "plan", "--data", folder).code == 0
    # The name in the last snapshot, then the update before it.
    damage_payload(folder)
    result = cli("document", "list", "--data", folder)
    assert result.code == 1
    assert f"unknown ({stream_of('message 2')})" in result.out
    assert "`syncline verify` says where" in result.sentence
    unnamed = cli("document", "list", "--data", folder, "--json").json["documents"][-1]
    assert (unnamed["name"], unnamed["stream"]) == (None, str(stream_of("message 2")))
    damage_payload(folder)
    state = cli("document", "state", "plan", "--data", folder)
    assert state.code == 1
    assert json.loads(state.out) == {"a1": "message 1", "a3": "message 3"}
    assert "some updates cannot be read" in state.sentence


def first_words(text: str) -> dict[str, str]:
    pairs = [line.split()[:2] for line in text.splitlines()]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def test_doctor_says_what_documents_and_tests_need(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("node", "chromium-browser"):
        (programs / name).touch(0o755)
    monkeypatch.setenv("PATH", str(programs))
    result = cli("doctor", "--json")
    assert result.code == 0
    assert all(result.json["packages"][name] for name in ("pycrdt", "pyjwt", "websockets"))
    assert result.json["test_programs"] == {
        "node": str(programs / "node"),
        "npm": None,
        "chromium": str(programs / "chromium-browser"),
    }
    assert not any("npm" in sentence for sentence in result.json["advice"])
    shown = cli("doctor").out
    assert "programs that only tests need" in shown
    assert "tokens for documents" in shown
