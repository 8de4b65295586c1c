"""`syncline pipeline digest` and `reconcile`: the sets of ids that routers keep of services."""

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
from syncline.pipeline.places import check_file_place

SetsArgument = Annotated[str, typer.Argument(help="A snapshot, or a data folder to take one of.")]
PlanOption = Annotated[
    Path | None, typer.Option("--plan", help="Write what would mend the router to this file.")
]

HashesOption = Annotated[
    str, typer.Option("--hashes", help="both, or xxh3: without MD5, which takes most of the time.")
]
DEFAULT_HASHES = "both"
_HASHES = (DEFAULT_HASHES, "xxh3")


def snapshot_name(jobs: Jobs, snapshot_or_folder: str) -> str:
    """Of a folder, one is taken."""
    from syncline.pipeline.snapshots import export_snapshot

    if not Path(snapshot_or_folder).is_dir():
        return snapshot_or_folder
    with jobs.output.count_progress("snapshot", None) as bar:
        return export_snapshot(snapshot_or_folder, jobs.tables, on_ids=bar.advance).snapshot


def digested(jobs: Jobs, snapshot: str, hashes: str = DEFAULT_HASHES) -> dict[str, Any]:
    from syncline.pipeline.jobs.digest import Hashes, digest

    return jobs.run(
        "digest", lambda: digest(jobs.spark, jobs.tables, snapshot, hashes=Hashes(hashes))
    )


def reconciled(jobs: Jobs, router: str, wanted: str, plan: Path | None) -> dict[str, Any]:
    from syncline.pipeline.jobs.reconcile import reconcile
    from syncline.pipeline.repair_plan import write_plan

    facts = jobs.run("reconcile", lambda: reconcile(jobs.spark, jobs.tables, router, wanted))
    if plan is not None:
        facts["repair_count"] = write_plan(jobs.spark, jobs.tables, router, wanted, plan)
        facts["plan"] = str(plan)
    return facts


def digest(
    sets: SetsArgument,
    tables: TablesOption = DEFAULT_TABLES,
    hashes: HashesOption = DEFAULT_HASHES,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Compute the digests of the sets of ids of a router, and compare them with its claims."""
    output = Output(is_json=is_json)
    if hashes not in _HASHES:
        raise ConfigError(f"{hashes!r} is no choice of hashes; take {' or '.join(_HASHES)}")
    with open_jobs(tables, master, settings, output) as jobs:
        facts = digested(jobs, snapshot_name(jobs, sets), hashes)
    print_facts(output, "digest", facts)
    if facts["mismatch_count"]:
        raise typer.Exit(1)


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
    if plan is not None:
        check_file_place(plan, "a plan")
    with open_jobs(tables, master, settings, output) as jobs:
        names = snapshot_name(jobs, router), snapshot_name(jobs, wanted)
        facts = reconciled(jobs, *names, plan)
    print_facts(output, "reconcile", facts)
    if facts["missing_count"] or facts["extra_count"]:
        raise typer.Exit(1)
