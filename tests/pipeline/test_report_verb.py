"""The verb `report`: a page without Spark where tables are small, and mistakes told at once."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from syncline.cli.pipeline_report import report
from syncline.errors import ConfigError, TableError
from tests.pipeline.report_tables import healthy


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark was started for tables of a few bytes")

    monkeypatch.setattr("syncline.cli.pipeline_report.open_jobs", refuse)
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


def test_a_place_that_is_none_is_told_before_any_work(tables: Path, tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(ConfigError, match="no place for a page"):
            run("--tables", str(tables), "--out", str(wrong))
    with pytest.raises(TableError, match="no folder"):
        run("--tables", str(tmp_path / "none"), "--out", str(tmp_path / "page.html"))
