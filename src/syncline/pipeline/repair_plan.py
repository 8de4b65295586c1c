"""A repair plan: what to do to a router so that its sets are those of another snapshot.

A text file, a JSON object a line (docs/formats/tables.md, "Repair plan"). The first line says what
it is and how many lines follow; a plan that is cut short is known by that.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from pyspark.sql import SparkSession

from syncline.errors import TableError
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.reconcile import MISSING, run_name
from syncline.pipeline.schemas import DRIFT_ITEMS
from syncline.pipeline.tables import Table
from syncline.values.ids import StreamId

FORMAT: Final = "syncline repair plan"
VERSION: Final = 1
ASSOCIATE: Final = "associate"
DISSOCIATE: Final = "dissociate"


@dataclass(frozen=True, slots=True)
class Repair:
    """Make an id part of the set of a service, or take it out of it."""

    action: str
    service: bytes
    role: str
    id: bytes

    def line(self) -> str:
        facts = {
            "action": self.action,
            "service": str(StreamId(self.service)),
            "role": self.role,
            "id": str(StreamId(self.id)),
        }
        return json.dumps(facts)


def write_plan(spark: SparkSession, tables: Path, router: str, wanted: str, path: Path) -> int:
    """Write the plan for what `reconcile` found; how many repairs there are.

    The file appears whole or not at all. Raises TableError if the two were not reconciled.
    """
    table = Table(tables, DRIFT_ITEMS)
    run = run_name(router, wanted)
    if table.progress(f"reconcile/{run}") is None:
        raise TableError(DRIFT_ITEMS.name, f"{router} and {wanted} were not reconciled yet")
    version = table.version().skipping("run", run, run)
    rows = read_version(spark, DRIFT_ITEMS, version).orderBy("service", "role", "id")
    head = {
        "format": FORMAT,
        "version": VERSION,
        "router": router,
        "wanted": wanted,
        "count": version.row_count,
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps(head) + "\n")
            for repair in _repairs(cast(Iterable[Any], rows.toLocalIterator())):
                file.write(repair.line() + "\n")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return version.row_count


def _repairs(rows: Iterable[Any]) -> Iterator[Repair]:
    for row in rows:
        action = ASSOCIATE if row.verdict == MISSING else DISSOCIATE
        yield Repair(action, bytes(row.service), row.role, bytes(row.id))
