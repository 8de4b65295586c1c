"""What is known of whole logs before their streams are judged: starts, stretches, and the time.

Rows that tell of it are few and stand in few row groups; the footers of the files say in which.
Between runs it is kept in the commit of the carry, as plain numbers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from syncline.kernels.delivery_logs import NEVER, LogFacts
from syncline.kernels.delivery_rows import DROPPED, KIND_EVENTS, STARTED, STORE_BYTES
from syncline.pipeline.arrow import batch_of_rows, schema_of
from syncline.pipeline.auditing.groups import (
    LogGroup,
    RowGroup,
    codes,
    numbers,
    read_columns,
    worked_through,
)
from syncline.pipeline.sources.rows import Unread

_FOUND: Final = schema_of(
    [
        pa.field("what", pa.string()),
        pa.field("store", pa.binary()),
        pa.field("place", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("time_ms", pa.int64()),
        pa.field("former", pa.binary()),
    ]
)
_COLUMNS: Final = (
    "store",
    "position",
    "part",
    "kind",
    "stream",
    "time_ms",
    "event",
    "first",
    "detail",
    "length",
)


@dataclass(slots=True)
class Log:
    """Of one log. Starts and stretches have the highest time of the rows before them."""

    newest_ms: int = 0
    # At the end of the run before, -1 if there was none; and whether that judged all.
    before_ms: int = -1
    was_over: bool = False
    starts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    # From, to, time, and the kind of the row that tells of it. To NEVER: up to the next start.
    stretches: list[tuple[int, int, int, int]] = field(
        default_factory=list[tuple[int, int, int, int]]
    )
    is_branch: bool = False

    def end_stretches(self) -> None:
        """A router that notes no events does so until the next one starts."""
        self.stretches = [
            (place, min((at for at, _ in self.starts if at > place), default=end), ms, kind)
            if end == NEVER
            else (place, end, ms, kind)
            for place, end, ms, kind in self.stretches
        ]


@dataclass(slots=True)
class Facts:
    """Of all logs. `branches`: from which place on another log has taken over, by log."""

    logs: dict[bytes, Log] = field(default_factory=dict[bytes, Log])
    branches: dict[bytes, int] = field(default_factory=dict[bytes, int])
    # What this run has learned, in order.
    new_branches: list[bytes] = field(default_factory=list[bytes])
    new_stretches: list[tuple[bytes, int, int, int, int]] = field(
        default_factory=list[tuple[bytes, int, int, int, int]]
    )

    def of_log(self, store: bytes) -> Log:
        return self.logs.setdefault(store, Log())

    def for_kernel(self) -> dict[bytes, LogFacts]:
        return {store: self._for_kernel(store, log) for store, log in self.logs.items()}

    def _for_kernel(self, store: bytes, log: Log) -> LogFacts:
        starts = np.array(sorted(log.starts), np.int64).reshape(-1, 2).T
        stretches = np.array(sorted(log.stretches), np.int64).reshape(-1, 4).T
        return LogFacts(
            store,
            log.newest_ms,
            log.before_ms,
            log.was_over,
            starts[0],
            starts[1],
            stretches[0],
            np.maximum.accumulate(stretches[1]),
            np.maximum.accumulate(stretches[2]),
            log.is_branch,
            self.branches.get(store, NEVER),
        )

    # Between runs.

    def kept(self, *, is_over: bool) -> str:
        """For the next run: of starts the last one, which is all that it can meet."""
        logs = {
            store.hex(): [
                log.newest_ms,
                is_over,
                sorted(log.starts)[-1:],
                log.stretches,
                log.is_branch,
            ]
            for store, log in sorted(self.logs.items())
        }
        branches = {store.hex(): place for store, place in sorted(self.branches.items())}
        return json.dumps({"logs": logs, "branches": branches})

    @classmethod
    def read(cls, text: str) -> "Facts":
        found = cast(dict[str, Any], json.loads(text))
        facts = cls(branches={bytes.fromhex(key): at for key, at in found["branches"].items()})
        for store, (newest_ms, was_over, starts, stretches, is_branch) in found["logs"].items():
            facts.logs[bytes.fromhex(store)] = Log(
                newest_ms,
                newest_ms,
                was_over,
                [tuple(each) for each in starts],
                [tuple(each) for each in stretches],
                is_branch,
            )
        return facts


def gather(spark: SparkSession, facts: Facts, groups: Sequence[LogGroup]) -> None:
    """Add what the row groups tell. The times before starts and stretches are found with it."""
    before = {store: log.newest_ms for store, log in facts.logs.items()}
    looked_into = [each for each in groups if _tells(each)]
    for each in groups:
        store = each.has_only("store")
        if store is not None and "time_ms" in each.bounds:
            log = facts.of_log(bytes(store))
            log.newest_ms = max(log.newest_ms, int(each.bounds["time_ms"][1]))
    marks: list[tuple[bytes, int]] = []
    new_starts: list[tuple[bytes, int]] = []
    found_stretches: list[tuple[bytes, int, int, int]] = []
    for row in _collect(spark, [each.group for each in looked_into], _told):
        log = facts.of_log(row["store"])
        if row["what"] == "newest":
            log.newest_ms = max(log.newest_ms, row["time_ms"])
            continue
        marks.append((row["store"], row["place"]))
        if row["what"] == "started":
            new_starts.append((row["store"], row["place"]))
            if row["end"] > 0 and row["former"]:
                log.is_branch = True
                _note_branch(facts, row["former"], row["end"])
        else:
            kind = int(row["what"])
            found_stretches.append((row["store"], row["place"], row["end"], kind))
    times = _times_before(spark, groups, marks, before)
    for store, place in sorted(new_starts):
        facts.of_log(store).starts.append((place, times[store, place]))
    for store, place, end, kind in sorted(found_stretches):
        ms = times[store, place]
        facts.of_log(store).stretches.append((place, end, ms, kind))
        facts.new_stretches.append((store, place, end, ms, kind))
    for log in facts.logs.values():
        log.end_stretches()


def _note_branch(facts: Facts, former: bytes, place: int) -> None:
    known = facts.branches.get(former)
    if known is None or place < known:
        facts.branches[former] = place
        facts.new_branches.append(former)


def _tells(group: LogGroup) -> bool:
    """Whether a row group can have a row that is about the whole log, or has several logs."""
    return (
        group.may_have("kind", -128, -1)
        or group.may_have("event", STARTED, STARTED)
        or group.may_have("event", DROPPED, DROPPED)
        or group.has_only("store") is None
        or "time_ms" not in group.bounds
    )


def _told(group: RowGroup) -> Iterator[pa.RecordBatch]:
    """In a worker: starts, stretches, and the newest time of each log."""
    table = read_columns(group, _COLUMNS, coded=("store",))
    stores, store = codes(table, "store")
    kind, event = numbers(table, "kind"), numbers(table, "event")
    position, part = numbers(table, "position"), numbers(table, "part").astype(np.int64)
    time_ms = numbers(table, "time_ms")
    rows: list[tuple[object, ...]] = []
    for number, name in enumerate(stores):
        times = time_ms[store == number]
        if len(times):
            rows.append(("newest", name, 0, 0, int(times.max()), None))
    is_event = kind == KIND_EVENTS
    for at in np.flatnonzero(is_event & (event == STARTED)).tolist():
        former = table.column("stream")[at].as_py()
        place = int(position[at] + part[at])
        first = table.column("first")[at].as_py() or 0
        former = former[:STORE_BYTES] if former and any(former) else None
        rows.append(("started", stores[int(store[at])], place, first, int(time_ms[at]), former))
        if table.column("detail")[at].as_py():
            rows.append((str(KIND_EVENTS), stores[int(store[at])], place, NEVER, 0, None))
    is_stretch = (np.isin(kind, (Unread.DAMAGE, Unread.GAP)) & (part == 0)) | (
        is_event & (event == DROPPED)
    )
    length = numbers(table, "length")
    for at in np.flatnonzero(is_stretch).tolist():
        place = int(position[at] + part[at])
        what = str(int(kind[at]))
        rows.append((what, stores[int(store[at])], place, place + int(length[at]), 0, None))
    yield batch_of_rows(rows, _FOUND)


def _times_before(
    spark: SparkSession,
    groups: Sequence[LogGroup],
    marks: Sequence[tuple[bytes, int]],
    before: Mapping[bytes, int],
) -> dict[tuple[bytes, int], int]:
    """The highest time of the rows of a log before each of some places."""
    times = {mark: before.get(mark[0], 0) for mark in marks}
    straddling: list[RowGroup] = []
    for each in groups:
        store = each.has_only("store")
        low, high = each.bounds.get("position", (None, None))
        is_cut = False
        for mark in times:
            if store is not None and store != mark[0]:
                continue
            if low is not None and low >= mark[1]:
                continue
            if store is not None and high is not None and high < mark[1]:
                times[mark] = max(times[mark], int(each.bounds.get("time_ms", (0, 0))[1]))
            else:
                is_cut = True
        if is_cut:
            straddling.append(each.group)
    wanted = sorted(times)

    def work(group: RowGroup) -> Iterator[pa.RecordBatch]:
        table = read_columns(group, ("store", "position", "time_ms"), coded=("store",))
        stores, store = codes(table, "store")
        position, time_ms = numbers(table, "position"), numbers(table, "time_ms")
        rows: list[tuple[object, ...]] = []
        for name, place in wanted:
            if name in stores:
                there = time_ms[(store == stores.index(name)) & (position < place)]
                rows.append(("before", name, place, 0, int(there.max(initial=0)), None))
        yield batch_of_rows(rows, _FOUND)

    for row in _collect(spark, straddling, work):
        mark = (row["store"], row["place"])
        times[mark] = max(times[mark], row["time_ms"])
    return times


def _collect(spark: SparkSession, groups: Sequence[RowGroup], work: Any) -> list[dict[str, Any]]:
    if not groups:
        return []
    rows = worked_through(spark, groups, work, _FOUND).collect()
    return [
        {
            **row.asDict(),
            "store": bytes(row["store"]),
            "former": row["former"] and bytes(row["former"]),
        }
        for row in rows
    ]
