"""In workers: whole streams are settled, and what comes of them is written where it belongs.

The rows of three tables come out of one pass, so the worker writes them itself, as files in the
staging folder of each load. They get a name that counts only when the driver has heard of them:
what an attempt left that was given up is never committed.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from syncline.kernels.delivery import Outcome, Rules, settle_blocks
from syncline.kernels.delivery_logs import LogFacts
from syncline.kernels.delivery_rows import STORE_BYTES, Bytes, Flags, Integers
from syncline.kernels.delivery_tally import COUNTS, FAULTS, HOUR_MS, RULES
from syncline.kernels.latency import ENTRY
from syncline.pipeline.arrow import record_batch, schema_of, values_of, without
from syncline.pipeline.auditing.packing import PACKED
from syncline.pipeline.schemas import DELIVERY_AUDIT, DELIVERY_CARRY, DELIVERY_FINDINGS
from syncline.pipeline.sources.rows import DAY_MS, fixed_binary
from syncline.pipeline.tables import TableSpec

SETTLED: Final = schema_of([pa.field("report", pa.string())])
# Files that nobody has vouched for.
UNNAMED: Final = ".attempt"
# The last day that dates have.
_DAY_MAX: Final = 2_932_896
_NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(slots=True)
class Settled:
    """What workers report: counts that add up, and the files that they have written."""

    counts: Counter[str] = field(default_factory=Counter[str])
    findings: Counter[str] = field(default_factory=Counter[str])
    # Path and rows, by table.
    files: dict[str, list[tuple[str, int]]] = field(
        default_factory=dict[str, list[tuple[str, int]]]
    )

    def add(self, text: str) -> None:
        found = cast(dict[str, Any], json.loads(text))
        self.counts.update(found["counts"])
        self.findings.update(found["findings"])
        for table, files in found["files"].items():
            self.files.setdefault(table, []).extend((path, count) for path, count in files)

    def as_text(self) -> str:
        return json.dumps({"counts": self.counts, "findings": self.findings, "files": self.files})


@dataclass(frozen=True, slots=True)
class Settling:
    """What every worker has to know. `folders`: where the rows of each table go, by its name."""

    run: int
    facts: Mapping[bytes, LogFacts]
    rules: Rules
    folders: Mapping[str, str]

    def settle(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The buckets of a partition, one after the other."""
        buckets: dict[int, list[bytes]] = {}
        for batch in batches:
            numbers, blocks = (values_of(batch, name) for name in PACKED.names)
            for number, block in zip(numbers, blocks, strict=True):
                buckets.setdefault(number, []).append(block)
        report, writer = Settled(), _Writer(self.folders)
        for number in sorted(buckets):
            self._add(settle_blocks(buckets.pop(number), self.facts, self.rules), report, writer)
        report.files = writer.close()
        yield record_batch([pa.array([report.as_text()])], SETTLED)

    def _add(self, outcome: Outcome, report: Settled, writer: "_Writer") -> None:
        hours = outcome.hours
        report.counts.update(
            dict(zip(COUNTS, hours.counts.sum(axis=0).tolist(), strict=True)),
            pending=outcome.pending_count,
            waiting=outcome.waiting_count,
            clock_back=outcome.clock_back_count,
            broken=_broken_count(hours.counts),
        )
        report.findings.update(counted(outcome))
        writer.add(DELIVERY_AUDIT, audit_rows(outcome, self.run))
        writer.add(DELIVERY_FINDINGS, finding_rows(outcome, self.run))
        writer.add(DELIVERY_CARRY, carry_rows(outcome, self.run))


def _broken_count(counts: Integers) -> int:
    """Rows in which what was expected is not what became of it."""
    expected, *verdicts = (
        counts[:, COUNTS.index(name)]
        for name in ("expected", "delivered", "lost", "interrupted", "unknown")
    )
    return int(np.count_nonzero(expected != sum(verdicts)))


def counted(outcome: Outcome) -> dict[str, int]:
    """How many sequences the findings of each rule are about."""
    found = outcome.findings
    lengths = np.maximum(found.last_seq - found.seq + 1, 1)
    return {
        rule: int(lengths[found.rule == number].sum())
        for number, rule in enumerate(RULES)
        if (found.rule == number).any()
    }


# --------------------------------------------------------------------------------------- rows


def audit_rows(outcome: Outcome, run: int) -> pa.RecordBatch:
    hours = outcome.hours
    ends = np.append(0, hours.latency_ends) * ENTRY.itemsize
    latency = pa.Array.from_buffers(
        pa.binary(),
        len(hours.key),
        [None, pa.py_buffer(ends.astype(np.int32).data), pa.py_buffer(hours.latency.tobytes())],
    )
    columns = [
        *_names(outcome.keys, hours.key, run),
        pa.array(outcome.is_document[hours.key]),
        pa.array(hours.hour * HOUR_MS),
        _days(hours.hour * HOUR_MS),
        *(pa.array(hours.counts[:, place].copy()) for place in range(len(COUNTS))),
        latency,
        *(_numbers(np.ascontiguousarray(column)) for column in hours.percentiles.T),
    ]
    return record_batch(columns, DELIVERY_AUDIT.schema)


def finding_rows(outcome: Outcome, run: int) -> pa.RecordBatch:
    found = outcome.findings
    keys = outcome.keys[found.key]
    session = found.session
    # What is about a session of its own has its number where others have a stream.
    of_session = found.stream.any(axis=1)
    if of_session.any():
        keys = keys.copy()
        words = np.ascontiguousarray(keys[:, STORE_BYTES:]).view("<i8").reshape(-1, 3)
        session = np.where(of_session, words[:, 1], session)
        streams = found.stream.astype("<i8").view(np.uint8).reshape(-1, 24)
        keys[of_session, STORE_BYTES:] = streams[of_session]
    rules = cast(Any, pa).DictionaryArray.from_arrays(
        pa.array(found.rule.astype(np.int8)), pa.array(RULES)
    )
    when = np.where(found.found_ms >= 0, found.found_ms, found.appended_ms)
    columns = [
        *_names(keys, np.arange(len(keys)), run),
        rules.cast(pa.string()),
        pa.array(found.rule < len(FAULTS)),
        *map(_numbers, (found.seq, found.last_seq, session, found.place)),
        *map(_numbers, (found.appended_ms, found.found_ms)),
        _days(when, when >= 0),
    ]
    return record_batch(columns, DELIVERY_FINDINGS.schema)


def carry_rows(outcome: Outcome, run: int) -> pa.RecordBatch:
    carry = outcome.carry
    names = _names(outcome.keys, carry.key, run)
    numbers = (carry.session, carry.place, carry.time_ms, carry.first, carry.last, carry.detail)
    columns = [*names, pa.array(carry.code.astype(np.int16)), *map(pa.array, numbers)]
    return record_batch(columns, DELIVERY_CARRY.schema)


def _names(keys: Bytes, key: Integers, run: int) -> list[object]:
    """The columns `run`, `store` and `stream`."""
    chosen = keys[key]
    stores, streams = chosen[:, :STORE_BYTES], chosen[:, STORE_BYTES:]
    return [
        pa.array(np.full(len(key), run)),
        fixed_binary(np.ascontiguousarray(stores).view("V16").reshape(-1)),
        fixed_binary(np.ascontiguousarray(streams).view("V24").reshape(-1)),
    ]


def _numbers(values: Integers) -> object:
    """Nothing where there is a number below zero."""
    return pa.array(values, mask=values < 0)


def _days(times_ms: Integers, is_there: Flags | None = None) -> object:
    days = np.clip(times_ms // DAY_MS, 0, _DAY_MAX).astype(np.int32)
    mask = None if is_there is None else ~is_there
    return cast(Any, pa.array(days, mask=mask)).cast(pa.date32())


# --------------------------------------------------------------------------------------- files


class _Writer:
    """Files of all tables, one for each partition of a table that has rows."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = folders
        self._batches: dict[tuple[str, str], list[pa.RecordBatch]] = {}
        self._specs: dict[str, TableSpec] = {}

    def add(self, spec: TableSpec, rows: pa.RecordBatch) -> None:
        if spec.name not in self._folders or not rows.num_rows:
            return
        self._specs[spec.name] = spec
        (column,) = spec.partition_by
        values = cast(Any, rows.column(column))
        for value in values.unique().to_pylist():
            chosen = values.is_null() if value is None else _equal(values, value)
            folder = f"{column}={_NO_DAY if value is None else value}"
            part = cast(Any, rows).filter(chosen)
            self._batches.setdefault((spec.name, folder), []).append(part)

    def close(self) -> dict[str, list[tuple[str, int]]]:
        """Write everything; what was written, by table."""
        written: dict[str, list[tuple[str, int]]] = {}
        for (name, folder), batches in sorted(self._batches.items()):
            spec = self._specs[name]
            rows: Any = cast(Any, pa).Table.from_batches(batches, spec.schema)
            rows = rows.select(without(spec.schema, spec.partition_by).names)
            place = Path(self._folders[name]) / folder
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"part-{uuid4().hex}{UNNAMED}"
            cast(Any, pq).write_table(rows, path, compression="zstd")
            written.setdefault(name, []).append((str(path), rows.num_rows))
        self._batches.clear()
        return written


def _equal(values: Any, value: object) -> Any:
    import pyarrow.compute as pc

    return cast(Any, pc).equal(values, pa.scalar(value, values.type))
