"""`syncline pipeline report`: what the tables say, on one page."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.cli.pipeline_session import (
    DEFAULT_MASTER,
    DEFAULT_TABLES,
    Jobs,
    MasterOption,
    SettingsOption,
    TablesOption,
    open_jobs,
    print_facts,
)
from syncline.pipeline.places import check_file_place

DEFAULT_PAGE = Path("syncline-report.html")
PageOption = Annotated[Path, typer.Option("--out", help="The page to write; it is replaced.")]


def report(
    tables: TablesOption = DEFAULT_TABLES,
    out: PageOption = DEFAULT_PAGE,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Write a page on what was lost, late or duplicated, on lag, drift and storage.

    Spark is started only for tables that are too large to be read without it.
    """
    from syncline.pipeline.session import check_packages

    output = Output(is_json=is_json)
    check_packages()
    check_file_place(out, "a page")
    from syncline.pipeline.report import wants_session

    with (
        open_jobs(tables, master, settings, output, writes_tables=False)
        if wants_session(tables.absolute())
        else nullcontext()
    ) as jobs:
        facts = reported(jobs, tables.absolute(), out)
    print_facts(output, "report", facts if is_json else shown_report(facts))


def reported(jobs: Jobs | None, tables: Path, out: Path) -> dict[str, Any]:
    """Write the page, in the workers of a session if there is one."""
    from dataclasses import asdict

    from syncline.pipeline.report import write_report

    made_at_ms = time.time_ns() // 1_000_000
    if jobs is None:
        return asdict(write_report(None, tables, out, made_at_ms=made_at_ms))
    return jobs.run("report", lambda: write_report(jobs.spark, tables, out, made_at_ms=made_at_ms))


def shown_report(facts: dict[str, Any]) -> dict[str, Any]:
    """For people, the parts of the page are lines of their own."""
    flat = {name: value for name, value in facts.items() if name != "sections"}
    return flat | dict(facts["sections"])
