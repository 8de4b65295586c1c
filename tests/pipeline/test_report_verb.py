"""The verb `report`: without Spark where tables are small, in its workers where they are large."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from syncline.cli.pipeline_report import report
from syncline.errors import ConfigError, TableError
from syncline.pipeline import session
from syncline.pipeline.report import folding
from syncline.pipeline.report.facts import READ
from syncline.pipeline.schemas import DELIVERY_AUDIT
from tests.pipeline.report_tables import (
    audit_row,
    healthy,
    restored,
    something_of_everything,
    write,
)


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def made(tables: Path, out: Path) -> tuple[dict[str, Any], str]:
    """What the verb says, and the page, without what differs from run to run."""
    facts = json.loads(run("--tables", str(tables), "--out", str(out), "--json"))
    assert facts.pop("path") == str(out)
    return facts, re.sub(r" Made at [-:0-9 ]+ UTC\.", "", out.read_text(encoding="utf-8"))


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark was started for tables of a few bytes")

    monkeypatch.setattr("syncline.cli.pipeline_report.open_jobs", refuse)


@pytest.fixture
def tables(tmp_path: Path, without_spark: None) -> Path:
    healthy(tmp_path / "tables")
    return tmp_path / "tables"


def test_small_tables_become_a_page_without_spark(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    facts = json.loads(run("--tables", str(tables), "--out", str(out), "--json"))
    assert facts["state"] == "proved"
    assert facts["path"] == str(out)
    assert facts["sections"]["findings"] == "No faults, no signs."
    assert "Made at 20" in out.read_text(encoding="utf-8")
    assert "Nothing was lost" in run("--tables", str(tables), "--out", str(out))


def test_large_tables_are_read_by_workers_and_become_the_same_page(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is large is a matter of one number; here, everything is."""
    tables = tmp_path / "tables"
    something_of_everything(tables)
    restored(tables)
    # More pieces than there are tasks.
    hours = [audit_row(at % 3, at, [at + 1, 40 * at]) for at in range(40)]
    write(tables, DELIVERY_AUDIT, hours, row_group_size=1)
    small = made(tables, tmp_path / "small.html")
    opened: list[str] = []

    @contextmanager
    def the_session_that_is_there(
        _: Path, *, master: str, settings: dict[str, str]
    ) -> Iterator[SparkSession]:
        opened.append(master)
        yield spark

    read: set[str] = set()
    by_workers = folding._folded_by_workers

    def noted(session: SparkSession, spec: Any, *others: Any) -> Any:
        read.add(spec.name)
        return by_workers(session, spec, *others)

    monkeypatch.setattr(session, "open_session", the_session_that_is_there)
    monkeypatch.setattr(folding, "_folded_by_workers", noted)
    monkeypatch.setattr(folding, "IN_PROCESS_BYTES_MAX", 0)
    large = made(tables, tmp_path / "large.html")
    assert opened == ["local[*]"]
    assert read == READ
    assert large == small


def test_a_place_that_is_none_is_told_before_any_work(tables: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(ConfigError, match="no place for a page"):
            run("--tables", str(tables), "--out", str(wrong))
    with pytest.raises(TableError, match="no folder"):
        run("--tables", str(tmp_path / "none"), "--out", str(tmp_path / "page.html"))
