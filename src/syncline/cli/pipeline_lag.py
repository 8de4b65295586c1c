"""`syncline pipeline lag`: which readers of documents would be given up."""

import math
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from syncline.cli.output import JsonFlag, Output
from syncline.cli.pipeline_ingest import FoldersArgument, TailOption
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
from syncline.core.tracker import LagRules
from syncline.errors import ConfigError
from syncline.pipeline.places import check_folder_place

if TYPE_CHECKING:
    from syncline.pipeline.jobs.lag import BatchFacts

_RULES = LagRules()

CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Where it keeps how far it is; else beside the tables."),
]
FollowFlag = Annotated[bool, typer.Option("--follow", help="Go on with what is written meanwhile.")]
FollowSecondsOption = Annotated[
    float | None, typer.Option("--follow-seconds", help="Follow for so long.", min=0.0)
]
RelativeOption = Annotated[
    int, typer.Option("--relative-ms", help="Too long behind another reader.", min=0)
]
AbsoluteOption = Annotated[int, typer.Option("--absolute-ms", help="Too long behind.", min=0)]


def lag(
    folders: FoldersArgument,
    tables: TablesOption = DEFAULT_TABLES,
    tail: TailOption = "none",
    checkpoint: CheckpointOption = None,
    follow: FollowFlag = False,
    follow_seconds: FollowSecondsOption = None,
    relative_ms: RelativeOption = _RULES.relative_ms,
    absolute_ms: AbsoluteOption = _RULES.absolute_ms,
    master: MasterOption = DEFAULT_MASTER,
    settings: SettingsOption = None,
    is_json: JsonFlag = False,
) -> None:
    """Tell how far readers of documents are behind, by the router's own rules.

    Ends with code 1 if any would be given up.
    """
    output = Output(is_json=is_json)
    if follow and tail == "stopped":
        raise ConfigError("a log that is followed is not stopped; take --tail none or durable")
    seconds = math.inf if follow and follow_seconds is None else follow_seconds
    check_lag_folders(folders, tail)
    if checkpoint is not None:
        check_folder_place(checkpoint, "a checkpoint")
    with open_jobs(tables, master, settings, output) as jobs:
        facts = lagging(
            jobs,
            folders,
            tail,
            checkpoint=checkpoint,
            follow_seconds=seconds,
            rules=LagRules(relative_ms, absolute_ms),
        )
    print_facts(output, "lag", facts)
    if facts["relative_count"] or facts["absolute_count"]:
        raise typer.Exit(1)


def check_lag_folders(folders: list[Path], tail: str) -> None:
    """A wrong folder is told before Spark is started, which takes a while."""
    from syncline.pipeline.session import check_packages

    check_packages()
    from syncline.pipeline.jobs.lag import check_folders

    check_folders([str(folder) for folder in folders], tail)


def lagging(
    jobs: Jobs,
    folders: list[Path],
    tail: str,
    *,
    checkpoint: Path | None = None,
    follow_seconds: float | None = None,
    rules: LagRules = _RULES,
) -> dict[str, Any]:
    """The job in a session that there is; while it follows, a line for each batch."""
    from syncline.pipeline.jobs.lag import lag as lag_job

    def say(facts: "BatchFacts") -> None:
        if follow_seconds is not None:
            jobs.output.note(_line(facts))

    with until_signalled(is_wanted=follow_seconds is not None) as is_over:
        return jobs.run(
            "lag",
            lambda: lag_job(
                jobs.spark,
                jobs.tables,
                [str(folder) for folder in folders],
                tail=tail,
                checkpoint=None if checkpoint is None else checkpoint.absolute(),
                follow_seconds=follow_seconds,
                rules=rules,
                is_over=is_over,
                on_batch=say,
            ),
        )


def _line(facts: "BatchFacts") -> str:
    counts = facts.counts
    return (
        f"batch {facts.batch}: {facts.row_count} rows; {counts.consumer_count} readers, "
        f"{counts.relative_count} relative, {counts.absolute_count} absolute, "
        f"{counts.unknown_count} unknown"
    )


@contextmanager
def until_signalled(*, is_wanted: bool) -> Generator[Event]:
    """While the block runs, an interrupt asks it to end, instead of ending it."""
    is_over = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        is_over.set()

    before: dict[int, Any] = {}
    if is_wanted:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield is_over
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
