"""A table `events` as routers and `ingest` would have written it, made up hour by hour.

Documents have two readers each. Every update goes to both, a few milliseconds later, and most
readers acknowledge each. Planted are duplicates, late deliveries, losses (to readers that never
acknowledge, so that nothing covers them) and ends that are not acknowledged.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from syncline.pipeline.schemas import EVENTS
from syncline.pipeline.sources.rows import fixed_binary
from syncline.pipeline.tables import Table

Integers = npt.NDArray[np.int64]

START_MS = 1_767_225_600_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STORE = bytes(range(16))
DUPLICATE_SHARE = 0.01
LATE_SHARE = 1e-5
LOST_SHARE = 1e-4
LATE_MS = 5_000
# Of eight readers one does not acknowledge.
_SILENT_EACH = 8
_ROW_GROUP_ROWS = 1 << 20


@dataclass(slots=True)
class Planted:
    event_count: int = 0
    appended: int = 0
    lost: int = 0
    duplicate: int = 0
    late: int = 0


class Maker:
    """Makes one hour after the other."""

    def __init__(self, random: np.random.Generator, document_count: int) -> None:
        self._random = random
        self._count = document_count
        self._streams = random.integers(0, 256, (document_count, 24), dtype=np.uint8)
        self._next = np.ones(document_count, np.int64)
        self._position = 4096
        self.planted = Planted()

    def _is_silent(self, session: Integers) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = ((session >> 4) % _SILENT_EACH) == 0
        return found

    def hour(self, number: int, append_count: int) -> pa.Table:
        random, planted = self._random, self.planted
        start_ms = START_MS + number * HOUR_MS
        document = random.integers(0, self._count, append_count)
        time_ms = start_ms + np.sort(random.integers(60_000, HOUR_MS - 120_000, append_count))
        seq = self._sequences(document)
        parts = [
            {
                "kind": np.full(append_count, 1),
                "document": document,
                "time_ms": time_ms,
                "seq": seq,
                "detail": document * 7 + seq % 3 + 1_000_003,
            }
        ]
        if number == 0:
            everybody = np.repeat(np.arange(self._count), 2)
            session = np.arange(1, len(everybody) + 1) << 4 | 1
            parts.insert(0, self._subscribed(everybody, session, start_ms))
        both = np.repeat(np.arange(append_count), 2)
        reader = np.tile([0, 1], append_count)
        session = (document[both] * 2 + reader + 1) << 4 | 1
        is_silent = self._is_silent(session)
        is_lost = is_silent & (random.random(len(both)) < LOST_SHARE * _SILENT_EACH)
        took_ms = 1 + random.geometric(0.2, len(both)).clip(0, 29)
        # Nor do they acknowledge: what is acknowledged has come, whenever a delivery says it did.
        is_late = is_silent & ~is_lost & (random.random(len(both)) < LATE_SHARE * _SILENT_EACH)
        took_ms[is_late] += LATE_MS + 500
        delivered_ms = time_ms[both] + took_ms
        is_twice = ~is_lost & (random.random(len(both)) < DUPLICATE_SHARE)
        given = np.flatnonzero(~is_lost)
        again = np.flatnonzero(is_twice)
        for chosen, more_ms in ((given, 0), (again, 20)):
            parts.append(
                self._event(
                    6,
                    document[both[chosen]],
                    session[chosen],
                    delivered_ms[chosen] + more_ms,
                    seq[both[chosen]],
                    seq[both[chosen]],
                )
            )
        acked = np.flatnonzero(~is_silent)
        parts.append(
            self._event(
                8,
                document[both[acked]],
                session[acked],
                delivered_ms[acked] + 30,
                None,
                seq[both[acked]],
            )
        )
        # Once an hour the log lets go of what everybody has.
        parts.append(
            {
                "kind": np.full(self._count, 5),
                "document": np.arange(self._count),
                "time_ms": np.full(self._count, start_ms + HOUR_MS - 60_000),
                "seq": self._next - 1,
            }
        )
        planted.appended += append_count
        planted.lost += int(is_lost.sum())
        planted.late += int(is_late.sum())
        planted.duplicate += int(is_twice.sum())
        return self._table(parts, starts=number == 0)

    def _sequences(self, document: Integers) -> Integers:
        order = np.argsort(document, kind="stable")
        counts = np.bincount(document, minlength=self._count)
        within = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
        seq = np.empty(len(document), np.int64)
        seq[order] = self._next[document[order]] + within
        self._next += counts
        return seq

    def _subscribed(self, document: Integers, session: Integers, ms: int) -> dict[str, Integers]:
        row = self._event(
            4,
            document,
            session,
            np.full(len(document), ms),
            np.ones(len(document), np.int64),
            (~self._is_silent(session)).astype(np.int64),
        )
        return {**row, "detail": session + 5}

    @staticmethod
    def _event(
        code: int,
        document: Integers,
        session: Integers,
        time_ms: Integers,
        first: Integers | None,
        last: Integers,
    ) -> dict[str, Integers]:
        nothing = np.zeros(len(document), np.int64)
        return {
            "kind": np.full(len(document), 10),
            "event": np.full(len(document), code),
            "document": document,
            "session": session,
            "time_ms": time_ms,
            "first": nothing if first is None else first,
            "seq": last,
        }

    def _table(self, parts: list[dict[str, Integers]], *, starts: bool) -> pa.Table:
        names = ("kind", "event", "document", "session", "time_ms", "first", "seq", "detail")
        if starts:
            zero = np.zeros(1, np.int64)
            first = {"kind": zero + 10, "event": zero + 1, "document": zero - 1, "seq": zero}
            parts.insert(0, {**first, "time_ms": zero + START_MS})
        columns = {
            name: np.concatenate(
                [part.get(name, np.zeros(len(part["kind"]), np.int64)) for part in parts]
            )
            for name in names
        }
        order = np.argsort(columns["time_ms"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        count = len(order)
        sizes = np.where(columns["kind"] == 1, 180, 112)
        position = self._position + np.cumsum(sizes) - sizes
        self._position = int(position[-1] + sizes[-1])
        self.planted.event_count += count
        columns["position"] = position
        ids = np.zeros((count, 24), np.uint8)
        has_stream = columns["document"] >= 0
        ids[has_stream] = self._streams[columns["document"][has_stream]]
        # As ingest sorts them.
        names_order = np.argsort(self._streams.view("S24").reshape(-1), kind="stable")
        rank = np.empty(self._count, np.int64)
        rank[names_order] = np.arange(self._count)
        by_stream = np.where(has_stream, rank[columns["document"]], -1)
        order = np.lexsort((position, columns["seq"], by_stream))
        return self._arrow(
            {name: column[order] for name, column in columns.items()}, ids[order], has_stream[order]
        )

    @staticmethod
    def _arrow(
        columns: dict[str, Integers], ids: npt.NDArray[np.uint8], has_stream: npt.NDArray[np.bool_]
    ) -> pa.Table:
        count = len(ids)
        kind = columns["kind"]
        is_event = kind == 10
        is_message = kind == 1

        def maybe(name: str, kind_: Any, there: npt.NDArray[np.bool_]) -> Any:
            return pa.array(columns[name].astype(kind_), mask=~there)

        stores = np.frombuffer(STORE * count, "V16")
        nothing = np.zeros(count, np.int64)
        columns = {**columns, "nothing": nothing, "flags": np.where(is_message, 0x80, 0)}
        arrays = {
            "store": fixed_binary(stores),
            "position": pa.array(columns["position"]),
            "part": pa.array(nothing.astype(np.int32)),
            "kind": pa.array(kind.astype(np.int8)),
            "is_from_run": pa.array(np.zeros(count, np.bool_)),
            "stream": fixed_binary(np.ascontiguousarray(ids).view("V24").reshape(-1), has_stream),
            "seq": pa.array(columns["seq"]),
            "time_ms": pa.array(columns["time_ms"]),
            "day": pa.array((columns["time_ms"] // DAY_MS).astype(np.int32)).cast(pa.date32()),
            "flags": maybe("flags", np.int16, ~is_event),
            "last": maybe("seq", np.int64, ~is_event),
            "unread": maybe("nothing", np.int32, ~is_event),
            "quota": maybe("nothing", np.int32, ~is_event),
            "event": maybe("event", np.int16, is_event),
            "session": maybe("session", np.int64, is_event),
            "first": maybe("first", np.int64, is_event),
            "detail": maybe("detail", np.int64, is_event | is_message),
            "length": pa.array(nothing),
            "body": pa.nulls(count, pa.binary()),
        }
        return cast(pa.Table, cast(Any, pa).table(arrays))


def write_hours(tables: Path, hours: list[pa.Table], batch: int) -> int:
    """A version of `events` more; the bytes of its files."""
    size = 0
    with Table(tables, EVENTS).begin({"bench": batch}) as load:
        for number, hour in enumerate(hours):
            rows: Any = hour
            for day in rows.column("day").unique().to_pylist():
                import pyarrow.compute as pc

                part = rows.filter(cast(Any, pc).equal(rows.column("day"), pa.scalar(day)))
                folder = load.folder / f"day={day}"
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"part-{batch}-{number}.parquet"
                cast(Any, pq).write_table(
                    part.drop_columns(["day"]),
                    path,
                    compression="zstd",
                    row_group_size=_ROW_GROUP_ROWS,
                )
                size += path.stat().st_size
        load.commit({})
    return size
