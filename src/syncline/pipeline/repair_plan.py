"""Writes repair plans; `syncline.storage.drift.repair_plans` says what they are, and reads them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession

from syncline.errors import TableError
from syncline.pipeline.frames import read_version
from syncline.pipeline.jobs.reconcile import MISSING, run_name
from syncline.pipeline.places import writing_to
from syncline.pipeline.schemas import DRIFT_ITEMS
from syncline.pipeline.tables import Table
from syncline.storage.drift.repair_plans import PlanHead, encode_head, encode_repair
from syncline.values.ids import StreamId
from syncline.values.queue_records import ServiceRole
from syncline.values.repairs import Action, Repair


def write_plan(spark: SparkSession, tables: Path, router: str, wanted: str, path: Path) -> int:
    """Write the plan for what `reconcile` found; how many repairs there are.

    The file appears whole or not at all. Raises TableError if the two were not reconciled,
    PipelineError if it cannot be written.
    """
    table = Table(tables, DRIFT_ITEMS)
    run = run_name(router, wanted)
    if table.progress(f"reconcile/{run}") is None:
        raise TableError(DRIFT_ITEMS.name, f"{router} and {wanted} were not reconciled yet")
    version = table.version().skipping("run", run, run)
    rows = read_version(spark, DRIFT_ITEMS, version).orderBy("service", "role", "id")
    head = PlanHead(router, wanted, version.row_count)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with writing_to(path):
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(encode_head(head))
                for repair in _repairs(cast(Iterable[Any], rows.toLocalIterator())):
                    file.write(encode_repair(repair))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return version.row_count


def _repairs(rows: Iterable[Any]) -> Iterator[Repair]:
    for row in rows:
        action = Action.ASSOCIATE if row.verdict == MISSING else Action.DISSOCIATE
        service, id_ = StreamId(bytes(row.service)), StreamId(bytes(row.id))
        yield Repair(action, service, ServiceRole(row.role), id_)
