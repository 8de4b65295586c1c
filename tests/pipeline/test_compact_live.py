"""`syncline pipeline compact --check URL`: what was folded from a log, beside a running router."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pycrdt
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from syncline.cli.main import app
from syncline.client import connect
from syncline.pipeline import session
from syncline.pipeline.live_states import LiveReport, LiveState, StoredState, compare_live
from tests.e2e.router_process import RouterProcess, running

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def verbs(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The verbs, on the session that is there."""

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "open_session", opened)
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner()


def pipeline(verbs: CliRunner, *words: str | Path) -> Result:
    return verbs.invoke(app, ["pipeline", *map(str, words)], catch_exceptions=False)


async def write(
    router: RouterProcess, name: str, kind: Literal["json", "bytes"], *said: Any
) -> None:
    async with connect(router.url) as link, link.document(name, kind) as document:
        for each in said:
            await document.change(each)


async def write_text(router: RouterProcess, name: str, *said: str) -> None:
    doc = pycrdt.Doc[Any]()
    text = doc.get("text", type=pycrdt.Text)
    async with connect(router.url) as link, link.document(name, "yjs") as document:
        for each in said:
            before = doc.get_state()
            text += each
            await document.change(doc.get_update(before))


async def test_states_that_agree_with_the_router_are_counted_and_all_is_well(
    verbs: CliRunner, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    with running(tmp_path / "data") as router:
        await write(router, "a plan/€", "json", {"a": 1, "b": {"c": 2}}, {"b": None}, {"d": 1.5})
        await write(router, "blobs", "bytes", b"one", b"two")
        await write_text(router, "text", "hello", " 🦀")
        await write(router, "moves on", "json", {"a": 1})
        await write(router, "goes", "json", {"a": 1})
        # The last batch of all is not read yet.
        router.append(router.create(), b"last")
        read = pipeline(verbs, "ingest", router.folder, "--tables", tables, "--tail", "durable")
        assert read.exit_code == 0
        await write(router, "moves on", "json", {"a": 2})
        assert router.client.delete("/api/documents/goes").status_code == 204
        words = ("compact", "--tables", tables, "--check", router.url)
        ran = pipeline(verbs, *words, "--json")
        assert ran.exit_code == 0, ran.output
        facts = json.loads(ran.stdout)
        assert (facts["document_count"], facts["problem_count"]) == (5, 0)
        assert facts["live"] == {
            "equal_count": 3,
            "mismatch_count": 0,
            "moved_on_count": 1,
            "other_count": 1,
            "mismatches": [],
        }


async def test_a_document_that_the_router_has_otherwise_is_named_and_is_exit_code_1(
    verbs: CliRunner, tmp_path: Path
) -> None:
    """A folder is copied, and both go on: what is read is the copy, who is asked is the other."""
    tables = tmp_path / "tables"
    with running(tmp_path / "data") as router:
        await write(router, "shopping list", "json", {"who": "both"})
        await write(router, "notes", "json", {"same": True})
        await write_text(router, "text", "both")
        assert router.stop() == 0
    shutil.copytree(tmp_path / "data", tmp_path / "twin")
    for folder, who in (("twin", "the copy"), ("data", "the one that was copied")):
        with running(tmp_path / folder) as router:
            await write(router, "shopping list", "json", {"who": who})
            await write(router, "notes", "json", {"more": 1})
            if folder == "twin":
                assert router.stop() == 0
                pipeline(verbs, "ingest", router.folder, "--tables", tables, "--tail", "stopped")
                continue
            words = ("compact", "--tables", tables, "--check", router.url)
            ran = pipeline(verbs, *words, "--json")
            assert ran.exit_code == 1
            facts = json.loads(ran.stdout)
            # Nothing is wrong in the log itself.
            assert (facts["mismatch_count"], facts["problem_count"]) == (0, 0)
            live = facts["live"]
            assert (live["equal_count"], live["mismatch_count"]) == (2, 1)
            assert live["mismatches"] == ["shopping list"]
            # Nor does it pass because nothing is new; and people are told as well.
            again = pipeline(verbs, *words)
            assert again.exit_code == 1
            assert "shopping list" in again.stdout


def test_a_document_of_two_logs_is_what_one_of_them_says() -> None:
    """One was restored, the other is what it branched off from; the router has either."""

    def state(seq: int, text: bytes, incarnation: bytes = b"one") -> StoredState:
        return StoredState("plan", "json", incarnation, seq, text)

    def said(*states: StoredState) -> LiveReport:
        live = LiveState(b"one".hex(), 4, {"a": 1})
        return compare_live(iter(states), lambda _: live)

    same, differs, behind = state(4, b'{"a":1}'), state(4, b'{"a":2}'), state(3, b"{}")
    other = state(4, b'{"a":1}', b"two")
    for pair, report in {
        (same, differs): LiveReport(1, 0, 0, 0, []),
        (same, behind): LiveReport(1, 0, 0, 0, []),
        # The one that the router has may be the one that is behind.
        (differs, behind): LiveReport(0, 0, 1, 0, []),
        (differs, differs): LiveReport(0, 1, 0, 0, ["plan"]),
        (differs, other): LiveReport(0, 1, 0, 1, ["plan"]),
    }.items():
        assert said(*pair) == said(*pair[::-1]) == report
