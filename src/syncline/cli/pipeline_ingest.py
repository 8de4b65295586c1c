"""`syncline pipeline ingest`: what routers have logged, into a table."""

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

FoldersArgument = Annotated[list[Path], typer.Argument(help="Data folders of routers, or backups.")]
TailOption = Annotated[
    str,
    typer.Option(
        "--tail", help="Of the segment still written to, read: none, durable, or stopped (all)."
    ),
]
DamageOption = Annotated[
    int | None,
    typer.Option("--damage-max", help="Load nothing if there are more damaged places than this."),
]
ConfirmOption = Annotated[
    bool,
    typer.Option(
        "--confirm/--no-confirm", help="Tell routers which segments they need not archive longer."
    ),
]


def ingested(
    jobs: Jobs, folders: list[Path], tail: str, damage_max: int | None, confirms: bool
) -> dict[str, Any]:
    from syncline.pipeline.jobs.ingest import ingest

    paths = [str(folder) for folder in folders]
    return jobs.run(
        "ingest",
        lambda: ingest(
            jobs.spark,
            jobs.tables,
            paths,
            tail=tail,
            damage_count_max=damage_max,
            confirms=confirms,
        ),
    )


def check_folders(folders: list[Path], tail: str) -> None:
    """A wrong folder is told before Spark is started, which takes a while."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.jobs.ingest import ends_of

    ends_of([str(folder) for folder in folders], tail)


def ingest(
    folders: FoldersArgument,
    tables: TablesOption = DEFAULT_TABLES,
    tail: TailOption = "none",
    damage_max: DamageOption = None,
    confirms: ConfirmOption = True,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Load what the routers have logged since the last time into the table `events`."""
    output = Output(is_json=is_json)
    check_folders(folders, tail)
    with open_jobs(tables, master, settings, output) as jobs:
        facts = ingested(jobs, folders, tail, damage_max, confirms)
    print_facts(output, "ingest", facts)
