"""`syncline pipeline …`: the jobs on Spark, each with a bar of its tasks."""

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
from syncline.errors import ConfigError

app = typer.Typer(help="Jobs on Spark over what routers wrote.", no_args_is_help=True)

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
SetsArgument = Annotated[str, typer.Argument(help="A snapshot, or a data folder to take one of.")]
PlanOption = Annotated[
    Path | None, typer.Option("--plan", help="Write what would mend the router to this file.")
]


def _ingested(
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


def _snapshot_name(jobs: Jobs, snapshot_or_folder: str) -> str:
    """Of a folder, one is taken."""
    from syncline.pipeline.snapshots import export_snapshot

    if not Path(snapshot_or_folder).is_dir():
        return snapshot_or_folder
    with jobs.output.count_progress("snapshot", None) as bar:
        return export_snapshot(snapshot_or_folder, jobs.tables, on_ids=bar.advance).snapshot


def _digested(jobs: Jobs, snapshot: str) -> dict[str, Any]:
    from syncline.pipeline.jobs.digest import digest

    return jobs.run("digest", lambda: digest(jobs.spark, jobs.tables, snapshot))


def _reconciled(jobs: Jobs, router: str, wanted: str, plan: Path | None) -> dict[str, Any]:
    from syncline.pipeline.jobs.reconcile import reconcile
    from syncline.pipeline.repair_plan import write_plan

    facts = jobs.run("reconcile", lambda: reconcile(jobs.spark, jobs.tables, router, wanted))
    if plan is not None:
        facts["repair_count"] = write_plan(jobs.spark, jobs.tables, router, wanted, plan)
        facts["plan"] = str(plan)
    return facts


def _check_folders(folders: list[Path], tail: str) -> None:
    """A wrong folder is told before Spark is started, which takes a while."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.jobs.ingest import ends_of

    ends_of([str(folder) for folder in folders], tail)


@app.command()
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
    _check_folders(folders, tail)
    with open_jobs(tables, master, settings, output) as jobs:
        facts = _ingested(jobs, folders, tail, damage_max, confirms)
    print_facts(output, "ingest", facts)


@app.command()
def digest(
    sets: SetsArgument,
    tables: TablesOption = DEFAULT_TABLES,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Compute the digests of the sets of ids of a router, and compare them with its claims."""
    output = Output(is_json=is_json)
    with open_jobs(tables, master, settings, output) as jobs:
        facts = _digested(jobs, _snapshot_name(jobs, sets))
    print_facts(output, "digest", facts)
    if facts["mismatch_count"]:
        raise typer.Exit(1)


@app.command()
def reconcile(
    router: SetsArgument,
    wanted: SetsArgument,
    tables: TablesOption = DEFAULT_TABLES,
    plan: PlanOption = None,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Find the ids that the router lacks of the wanted sets, and those that it has beyond them."""
    output = Output(is_json=is_json)
    with open_jobs(tables, master, settings, output) as jobs:
        names = _snapshot_name(jobs, router), _snapshot_name(jobs, wanted)
        facts = _reconciled(jobs, *names, plan)
    print_facts(output, "reconcile", facts)
    if facts["missing_count"] or facts["extra_count"]:
        raise typer.Exit(1)


@app.command()
def run(
    folders: FoldersArgument,
    tables: TablesOption = DEFAULT_TABLES,
    wanted: Annotated[
        str | None, typer.Option("--wanted", help="Reconcile the first folder with these sets.")
    ] = None,
    tail: TailOption = "none",
    damage_max: DamageOption = None,
    confirms: ConfirmOption = True,
    plan: PlanOption = None,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """All jobs in one session: ingest, a snapshot and digests of each folder, and reconcile."""
    from syncline.storage.records.schema import FILE_NAME

    output = Output(is_json=is_json)
    found: dict[str, Any] = {"digests": []}
    _check_folders(folders, tail)
    with open_jobs(tables, master, settings, output) as jobs:
        found["ingest"] = _ingested(jobs, folders, tail, damage_max, confirms)
        for folder in folders:
            # Without queues there are no records.
            if (folder / FILE_NAME).is_file():
                found["digests"].append(_digested(jobs, _snapshot_name(jobs, str(folder))))
        if wanted is not None:
            names = _snapshot_name(jobs, str(folders[0])), _snapshot_name(jobs, wanted)
            found["reconcile"] = _reconciled(jobs, *names, plan)
    if is_json:
        output.json(found)
        return
    output.facts("ingest", found["ingest"])
    for facts in found["digests"]:
        output.facts("digest", facts)
    if "reconcile" in found:
        output.facts("reconcile", found["reconcile"])


@app.command()
def lineage(
    table: Annotated[str, typer.Argument(help="A table, or one version of it: events@3.")],
    tables: TablesOption = DEFAULT_TABLES,
    is_json: JsonFlag = False,
) -> None:
    """Say where the rows of a version came from."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.schemas import table_named
    from syncline.pipeline.tables import Table

    name, is_version_given, number = table.partition("@")
    if is_version_given and not number.isdecimal():
        raise ConfigError(f"{table!r} names no version; write {name}@3")
    found = Table(tables.absolute(), table_named(name))
    version = int(number) if is_version_given else found.version().number
    print_facts(Output(is_json=is_json), f"{name}@{version}", found.lineage(version))
