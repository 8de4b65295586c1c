"""Logs that go on from other logs: what a restored router has, up to where it was restored.

A router that was restored from a backup writes a log of its own. What it has of before stands in
the log that it branched off from, below the position of the branch. So the history of a stream
there is the rows of the former log up to the branch, then its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from syncline.pipeline.frames import read_version
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.tables import Version
from syncline.values.events import EventKind

LOG_ID_BYTES: Final = 16
_EVENT_ROWS: Final = 10


@dataclass(frozen=True, slots=True)
class Branch:
    """`log` goes on from `former`, from a position on."""

    log: bytes
    former: bytes
    position: int


# For each log those that have its rows too, and below which position.
Heirs = Mapping[bytes, list[tuple[bytes, int]]]


def branches_of(spark: SparkSession, version: Version) -> list[Branch]:
    """All that the rows tell of. Every start of a restored router does."""
    told = version.skipping("kind", _EVENT_ROWS, _EVENT_ROWS)
    if not told.files:
        return []
    rows = branch_rows(read_version(spark, EVENTS, told)).collect()
    return [
        Branch(bytes(row.store), bytes(row.stream)[:LOG_ID_BYTES], row["first"])
        for row in cast(list[Any], rows)
    ]


def branch_rows(events: DataFrame) -> DataFrame:
    started = (F.col("kind") == _EVENT_ROWS) & (F.col("event") == int(EventKind.STARTED))
    rows = events.where(started & (F.col("first") > 0) & F.col("stream").isNotNull())
    return rows.select("store", "stream", "first").distinct()


def heirs_of(branches: Iterable[Branch]) -> dict[bytes, list[tuple[bytes, int]]]:
    """By log, those that have what it holds below a position; also over several branches."""
    former_of = {each.log: each for each in branches}
    found: dict[bytes, list[tuple[bytes, int]]] = {}
    for log, branch in former_of.items():
        limit = branch.position
        passed = {log}
        at: Branch | None = branch
        # A log has one former log, and the first of all has none; whatever else it says, it ends.
        while at is not None and at.former not in passed:
            limit = min(limit, at.position)
            found.setdefault(at.former, []).append((log, limit))
            passed.add(at.former)
            at = former_of.get(at.former)
    return found
