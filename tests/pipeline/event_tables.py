"""A table `events` with rows that a test spells out, without a router and without Spark."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from syncline.pipeline.arrow import without
from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.tables import Table
from tests.pipeline.document_histories import MESSAGE, STORE, LogRow

DAY = "2024-05-01"
_BLANK: dict[str, Any] = {
    "store": STORE,
    "part": 0,
    "is_from_run": False,
    "time_ms": 1_714_521_600_000,
    "length": 0,
}


def document_row(row: LogRow, store: bytes = STORE) -> dict[str, Any]:
    """As the source gives it."""
    is_deletion = row.kind == 4
    return {
        "store": store,
        "position": row.position,
        "kind": row.kind,
        "stream": row.stream,
        "seq": None if row.kind in (3, 4) else row.seq,
        "flags": 0 if is_deletion else 0xA0,
        "last": row.seq if row.kind == MESSAGE else 0,
        "unread": 0,
        "length": len(row.body),
        "body": row.body,
    }


def add_events(tables: Path, rows: Iterable[Mapping[str, Any]], file_count: int = 1) -> int:
    """Commit them, spread over some files; the version."""
    schema = without(EVENTS.schema, ["day"])
    listed = [{**_BLANK, **row} for row in rows]
    table = Table(tables, EVENTS)
    with table.begin({}) as load:
        folder = load.folder / f"day={DAY}"
        folder.mkdir()
        for number in range(file_count):
            part = pa.Table.from_pylist(listed[number::file_count], schema=schema)
            pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=50)
        return load.commit({"job": "test"})
