"""The edge to Arrow, whose types are looser than ours: what comes through here has a plain type."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

# Untyped from here on, so that each of these is called by a name that is known.
_pa = cast(Any, pa)
_pq = cast(Any, pq)


def schema_of(fields: Iterable[object]) -> pa.Schema:
    return cast(pa.Schema, _pa.schema(fields))


def names_and_types(schema: pa.Schema) -> list[tuple[str, str]]:
    """In order. Whether a column may be empty is left out: that is what expectations check."""
    return [(each.name, _type_name(str(each.type))) for each in cast(Any, schema)]


def _type_name(text: str) -> str:
    # The same to Delta, which has one kind of each.
    text = text.removeprefix("large_")
    return "binary" if text.startswith("fixed_size_binary") else text


def without(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    left_out = set(names)
    return schema_of([each for each in cast(Any, schema) if each.name not in left_out])


def record_batch(columns: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    return cast(pa.RecordBatch, _pa.RecordBatch.from_arrays(columns, schema=schema))


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows of these, of which there is at least one."""
    if len(batches) == 1:
        return batches[0]
    return cast(pa.RecordBatch, _pa.concat_batches(batches))


def table_of(columns: Mapping[str, object], schema: pa.Schema) -> pa.Table:
    return cast(pa.Table, _pa.table(columns, schema=schema))


def batch_of_rows(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """A few rows, each with a value for every column."""
    columns = [
        _pa.array([row[place] for row in rows], field.type)
        for place, field in enumerate(cast(Any, schema))
    ]
    return record_batch(columns, schema)


def rows_of(table: object) -> list[dict[str, Any]]:
    """Of any Arrow table, of another library too."""
    return cast(list[dict[str, Any]], _pa.table(table).to_pylist())


def values_of(batch: pa.RecordBatch, column: str) -> list[Any]:
    return cast(list[Any], cast(Any, batch.column(column)).to_pylist())


def as_schema(found: object) -> pa.Schema:
    """A schema of another library that speaks Arrow."""
    return cast(pa.Schema, _pa.schema(found))


def footer_of(path: Path) -> pq.FileMetaData:
    return cast(pq.FileMetaData, _pq.read_metadata(path))
