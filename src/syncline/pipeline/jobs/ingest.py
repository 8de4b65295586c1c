"""`ingest`: what routers have logged since the last time goes to the table `events`.

How far it has come is in the table itself, as a position for each log, committed together with the
rows. So a record lands once, whatever happens in between, and two that run at the same time cannot
both land the same. A folder that was restored is another log from the place of its backup on: what
the table lacks of the one before is read up to there, and of the new one everything.

Rows are sorted inside each task and nothing is shuffled: a record stays in the task that read it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from syncline.errors import PipelineError
from syncline.pipeline.expectations import Expectation
from syncline.pipeline.frames import lineage_of, write_rows
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.sources.folders import LogFolder, Tail, look_at, went_back_to
from syncline.pipeline.sources.source import FORMAT, SourceOptions, available
from syncline.pipeline.tables import Table
from syncline.storage.files import DiskFiles
from syncline.storage.log.archive import FOLDER as ARCHIVE
from syncline.storage.log.archive import confirm, read_confirmed

# What could not be read lands as well, so that no later job takes it for nothing.
DAMAGE: Final = "damage"
GAPS: Final = "gaps"
TORN: Final = "torn"


@dataclass(frozen=True, slots=True)
class IngestReport:
    """`version` is None if there was nothing new. Positions are by log id in hex."""

    version: int | None
    row_count: int
    damage_count: int
    gap_count: int
    torn_count: int
    starts: dict[str, int]
    ends: dict[str, int]


def expectations(damage_count_max: int | None) -> list[Expectation]:
    return [
        Expectation("a record names its store", "length(store) <> 16"),
        Expectation("a record has a time", "kind >= 0 AND time_ms IS NULL"),
        Expectation("a stream id has 24 bytes", "stream IS NOT NULL AND length(stream) <> 24"),
        Expectation("a record has a stream", "kind >= 0 AND kind <> 10 AND stream IS NULL"),
        Expectation("a message has a sequence", "kind IN (1, 2) AND seq IS NULL"),
        Expectation("an event has a kind", "kind = 10 AND event IS NULL"),
        Expectation(DAMAGE, "kind = -1 AND part = 0", damage_count_max),
        Expectation(TORN, "kind = -2", None),
        Expectation(GAPS, "kind = -3", None),
    ]


def source_name(log: str) -> str:
    """Under which the table keeps how far it has come with a log."""
    return f"log/{log}"


def ends_of(folders: Sequence[str], tail: str = Tail.NONE) -> dict[str, int]:
    """Up to where each log can be read now. Raises what the folders are at fault of."""
    return available(SourceOptions.of(_options(folders, tail)))


def _options(folders: Sequence[str], tail: str) -> dict[str, str]:
    return {"paths": json.dumps(list(folders)), "tail": tail}


def ingest(
    spark: SparkSession,
    tables: Path,
    folders: Sequence[str],
    *,
    tail: str = Tail.NONE,
    damage_count_max: int | None = None,
    confirms: bool = True,
) -> IngestReport:
    """Raises what the folders are at fault of, and PipelineError, for whatever reason.

    With `confirms`, routers that keep an archive are told what they need not keep any longer.
    """
    events = Table(tables, EVENTS)
    options = _options(folders, tail)
    ends = ends_of(folders, tail)
    _check_history(folders, events)
    starts = {log: events.progress(source_name(log)) or 0 for log in ends}
    # A log without anything new may even look shorter than last time: it never goes back.
    ends = {log: max(end, starts[log]) for log, end in ends.items()}
    with events.begin({source_name(log): end for log, end in ends.items()}) as load:
        if load.is_done or starts == ends:
            if confirms:
                _confirm(folders, ends)
            return IngestReport(None, 0, 0, 0, 0, starts, ends)
        load.check_progress({source_name(log): start for log, start in starts.items()})
        rows = (
            spark.read.format(FORMAT)
            .options(**options, starts=json.dumps(starts), ends=json.dumps(ends))
            .load()
        )
        wanted = expectations(damage_count_max)
        found = write_rows(rows, load, wanted, sorted_by=("stream", "seq", "position", "part"))
        lineage = lineage_of("ingest", {"starts": starts, "ends": ends}, found)
        version = load.commit(lineage, row_count=found.row_count)
    if confirms:
        _confirm(folders, ends)
    counts = found.counts
    return IngestReport(
        version, found.row_count, counts[DAMAGE], counts[GAPS], counts[TORN], starts, ends
    )


def _check_history(folders: Sequence[str], events: Table) -> None:
    """Raises PipelineError for a log that ends before what the table has of it.

    Whatever is written to it from there on stands at positions that were read already, and would
    never be looked at.
    """
    files = DiskFiles()
    for path in folders:
        folder = look_at(path.rstrip("/"), files)
        reached = events.progress(source_name(folder.log_id.hex())) or 0
        end = went_back_to(folder, reached, files)
        if end is not None:
            raise PipelineError(
                f"the log in {path} ends at {end}, and the table {EVENTS.name} has it up to "
                f"{reached}: the folder was put back to an earlier state, or has lost its end. "
                "Take other tables for it, and restore backups by syncline restore"
            )


def _confirm(folders: Sequence[str], ends: Mapping[str, int]) -> None:
    """Tell routers up to which segment everything is in the table.

    Only after the commit, or once a load has begun: what they let go of must be on the disk here.
    """
    files = DiskFiles()
    for path in folders:
        archive = f"{path.rstrip('/')}/{ARCHIVE}"
        if not files.is_folder(archive):
            continue
        folder = look_at(path.rstrip("/"), files)
        number = _reached(folder, ends) // folder.segment_bytes - 1
        if number > read_confirmed(files, archive):
            confirm(files, archive, number)


def _reached(folder: LogFolder, ends: Mapping[str, int]) -> int:
    """Up to which position everything in the folder is in the table, of whatever log it is."""
    reached = 0
    for part in folder.parts:
        end = ends.get(part.log_id.hex(), 0)
        if part.end is None or end < part.end:
            return max(reached, end)
        reached = part.end
    return reached
