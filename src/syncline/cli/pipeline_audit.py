"""`syncline pipeline audit`: was anything lost, late, twice, or delivered to the wrong one?"""

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

LateOption = Annotated[
    int, typer.Option("--late-ms", help="A delivery that takes longer is a sign of something.")
]
LostOption = Annotated[
    int, typer.Option("--lost-after-ms", help="What takes longer than this is lost.")
]
OverOption = Annotated[
    bool,
    typer.Option("--over", help="Routers are stopped and all is ingested: judge what is open."),
]
DEFAULT_LATE_MS = 5_000
DEFAULT_LOST_AFTER_MS = 1_800_000


def audited(jobs: Jobs, late_ms: int, lost_after_ms: int, is_over: bool) -> dict[str, Any]:
    """The report of the job as facts."""
    from syncline.pipeline.jobs.audit import audit as run_audit

    return jobs.run(
        "audit",
        lambda: run_audit(
            jobs.spark,
            jobs.tables,
            late_ms=late_ms,
            lost_after_ms=lost_after_ms,
            is_over=is_over,
        ),
    )


def check_rules(late_ms: int, lost_after_ms: int) -> None:
    """What is wrong is told before Spark is started, which takes a while."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.jobs.audit import check_rules as check

    check(late_ms, lost_after_ms)


def _check_events(tables: Path) -> None:
    """Raises TableError if there is nothing to audit."""
    from syncline.pipeline.schemas import EVENTS
    from syncline.pipeline.tables import Table

    Table(tables.absolute(), EVENTS).version()


def audit(
    tables: TablesOption = DEFAULT_TABLES,
    late_ms: LateOption = DEFAULT_LATE_MS,
    lost_after_ms: LostOption = DEFAULT_LOST_AFTER_MS,
    is_over: OverOption = False,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Check what became of everything in `events`; ends with code 1 if there are faults."""
    output = Output(is_json=is_json)
    check_rules(late_ms, lost_after_ms)
    _check_events(tables)
    with open_jobs(tables, master, settings, output) as jobs:
        facts = audited(jobs, late_ms, lost_after_ms, is_over)
    print_facts(output, "audit", facts if is_json else shown_audit(facts))
    if facts["fault_count"]:
        raise typer.Exit(1)


def shown_audit(facts: dict[str, Any]) -> dict[str, Any]:
    """For people, each rule that found something is a line of its own."""
    findings: dict[str, int] = facts["findings"]
    return {name: value for name, value in facts.items() if name != "findings"} | findings
