"""`syncline pipeline run`: every job, in one session of Spark."""

from pathlib import Path
from typing import Annotated, Any

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.cli.pipeline_audit import (
    DEFAULT_LATE_MS,
    DEFAULT_LOST_AFTER_MS,
    LateOption,
    LostOption,
    audited,
    check_rules,
    shown_audit,
)
from syncline.cli.pipeline_documents import compacted, planned
from syncline.cli.pipeline_ingest import (
    ConfirmOption,
    DamageOption,
    FoldersArgument,
    TailOption,
    check_folders,
    ingested,
)
from syncline.cli.pipeline_lag import lagging
from syncline.cli.pipeline_report import (
    DEFAULT_PAGE,
    PageOption,
    reported,
    shown_report,
)
from syncline.cli.pipeline_session import (
    DEFAULT_MASTER,
    DEFAULT_TABLES,
    Jobs,
    MasterOption,
    SettingsOption,
    TablesOption,
    open_jobs,
)
from syncline.cli.pipeline_sets import PlanOption, digested, reconciled, snapshot_name
from syncline.errors import ConfigError
from syncline.pipeline.places import check_file_place

# Facts that are not 0 where something is wrong, by job.
_WRONG = {
    "audit": ("fault_count",),
    "compact": ("mismatch_count",),
    "lag": ("relative_count", "absolute_count"),
    "reconcile": ("missing_count", "extra_count"),
    "digest": ("mismatch_count",),
}


def run(
    folders: FoldersArgument,
    tables: TablesOption = DEFAULT_TABLES,
    out: PageOption = DEFAULT_PAGE,
    wanted: Annotated[
        str | None, typer.Option("--wanted", help="Reconcile the first folder with these sets.")
    ] = None,
    plan: PlanOption = None,
    tail: TailOption = "none",
    damage_max: DamageOption = None,
    confirms: ConfirmOption = True,
    late_ms: LateOption = DEFAULT_LATE_MS,
    lost_after_ms: LostOption = DEFAULT_LOST_AFTER_MS,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Every job in one session, and the report; ends with code 1 if anything is wrong.

    With --tail stopped the routers are over, and what is still open is judged as it is.
    """
    output = Output(is_json=is_json)
    check_folders(folders, tail)
    check_rules(late_ms, lost_after_ms)
    check_file_place(out, "a page")
    if plan is not None:
        if wanted is None:
            raise ConfigError("--plan is for what --wanted finds; give both, or neither")
        check_file_place(plan, "a plan")
    with open_jobs(tables, master, settings, output) as jobs:
        found: dict[str, dict[str, Any]] = {
            "ingest": ingested(jobs, folders, tail, damage_max, confirms)
        }
        found |= _of_sets(jobs, folders, wanted, plan)
        found["audit"] = audited(jobs, late_ms, lost_after_ms, tail == "stopped")
        found["compact"] = compacted(jobs)
        found["lag"] = lagging(jobs, folders, tail)
        found["gc-plan"] = planned(jobs)
        found["report"] = reported(jobs, jobs.tables, out)
    if is_json:
        output.json(found)
    else:
        for name, facts in found.items():
            output.facts(name, _shown(name, facts))
    if any(facts[count] for name, facts in found.items() for count in _wrong_counts(name)):
        raise typer.Exit(1)


def _of_sets(
    jobs: Jobs, folders: list[Path], wanted: str | None, plan: Path | None
) -> dict[str, dict[str, Any]]:
    """Digests of every folder, under its path, and of the first what would mend it."""
    from syncline.storage.records.schema import FILE_NAME

    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        # Without queues there are no records.
        if (folder / FILE_NAME).is_file():
            found[f"digest {folder}"] = digested(jobs, snapshot_name(jobs, str(folder)))
    if wanted is not None:
        names = snapshot_name(jobs, str(folders[0])), snapshot_name(jobs, wanted)
        found["reconcile"] = reconciled(jobs, *names, plan)
    return found


def _wrong_counts(name: str) -> tuple[str, ...]:
    return _WRONG.get(name.split(" ")[0], ())


def _shown(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "audit":
            return shown_audit(facts)
        case "report":
            return shown_report(facts)
        case _:
            return facts
