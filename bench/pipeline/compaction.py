"""Folding the updates of Yjs documents: `compact` against a plain loop in Python.

Both read the same Parquet files of `events`, fold each document with the same library and write the
states as Parquet. The loop has one process and all rows in memory; it takes each document's updates
in order and does nothing else: no gaps, no checks, no commit.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pycrdt

from bench.pipeline.setting import Setting
from bench.support.figures import Figure, as_text, at_most_ratio, values_table
from bench.support.processes import BenchError
from syncline.pipeline.arrow import without
from syncline.pipeline.document_folds import is_same_state
from syncline.pipeline.jobs.compact import compact
from syncline.pipeline.schemas import DOCUMENT_STATES, EVENTS
from syncline.pipeline.tables import Table
from syncline.storage.documents import (
    SNAPSHOT_VERSION,
    DocumentSnapshot,
    decode_entry,
    encode_entry,
    encode_snapshot,
    stream_of,
)
from syncline.values.kinds import Kind

_SPARK = "compact"
_LOOP = "plain loop"
_FILE_COUNT = 8
_STORE = b"bench-store-----"
_DAY = "2024-05-01"
_TIME_MS = 1_714_521_600_000
_MESSAGE, _CREATE, _SNAPSHOT = 1, 3, 6
# Different texts; each document has one of them, under a client of its own.
_TEXT_COUNT = 50

States = dict[bytes, bytes]


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    count = plan.compaction_document_count * plan.compaction_updates_each
    setting.doing(f"writing {count:,} updates")
    source = setting.folder / "compaction"
    _write_events(setting, source)
    # The session, and code that is compiled on the way, off the clock.
    _by_spark(setting, source)
    expected = _by_loop(setting, source)
    contestants: dict[str, Callable[[], States]] = {
        _SPARK: lambda: _by_spark(setting, source),
        _LOOP: lambda: _by_loop(setting, source),
    }
    timed = setting.both_orders(contestants, lambda name, found: _check(name, found, expected))
    shutil.rmtree(source)
    rows = [
        [name, as_text(each.seconds), as_text(count / each.seconds)] for name, each in timed.items()
    ]
    header = ["what", "seconds", "updates a second"]
    title = f"{count:,} updates of {plan.compaction_document_count:,} Yjs documents"
    setting.console.print(values_table(title, header, rows))
    setting.details["compaction"] = {name: each.all_seconds for name, each in timed.items()}
    ours, theirs = timed[_SPARK].seconds, timed[_LOOP].seconds
    return [
        Figure(
            f"compaction of {count:,} updates, seconds",
            ours,
            _LOOP,
            theirs,
            ours / theirs,
            at_most_ratio("<= 1.0 x plain Python loop", 1.0),
        )
    ]


def _check(name: str, found: States, expected: States) -> None:
    is_same = found.keys() == expected.keys() and all(
        is_same_state(Kind.YJS, state, found[stream]) for stream, state in expected.items()
    )
    if not is_same:
        raise BenchError(f"{name} came to other states than the loop")


# --------------------------------------------------------------------------------- the contestants


def _by_spark(setting: Setting, source: Path) -> States:
    target = source / DOCUMENT_STATES.name
    if target.exists():
        shutil.rmtree(target)
    report = compact(setting.spark, source)
    if report.problem_count:
        raise BenchError(f"{report.problem_count} documents have a problem")
    found: States = {}
    for each in Table(source, DOCUMENT_STATES).version().files:
        rows: Any = cast(Any, pq).ParquetFile(each.path).read(columns=["stream", "state"])
        found.update(zip(rows["stream"].to_pylist(), rows["state"].to_pylist(), strict=True))
    return found


def _by_loop(setting: Setting, source: Path) -> States:
    files = sorted((source / EVENTS.name).rglob("*.parquet"))
    columns = ["stream", "seq", "kind", "body"]
    parts: list[Any] = [cast(Any, pq).ParquetFile(path).read(columns=columns) for path in files]
    table: Any = cast(Any, pa).concat_tables(parts)
    rows = zip(*(table.column(name).to_pylist() for name in columns), strict=True)
    updates: dict[bytes, list[tuple[int, bytes]]] = {}
    for stream, seq, kind, body in rows:
        if kind == _MESSAGE:
            updates.setdefault(stream, []).append((seq, body))
    states: States = {}
    for stream, each in updates.items():
        each.sort()
        doc = pycrdt.Doc[Any]()
        for _, entry in each:
            doc.apply_update(decode_entry(entry)[2])
        states[stream] = msgspec.msgpack.encode([doc.get_update()])
    written = cast(Any, pa).table({"stream": list(states), "state": list(states.values())})
    cast(Any, pq).write_table(written, setting.folder / "loop.parquet", compression="zstd")
    return states


# --------------------------------------------------------------------------------------- the data


def _write_events(setting: Setting, source: Path) -> None:
    """As `ingest` leaves them: files of a stretch of the log each, sorted by stream."""
    plan = setting.plan
    chance = setting.random(4)
    each = plan.compaction_updates_each
    texts = [_typed(chance, number, each) for number in range(_TEXT_COUNT)]
    names = [f"bench {number}" for number in range(plan.compaction_document_count)]
    table = Table(source, EVENTS)
    with table.begin({}) as load:
        folder = load.folder / f"day={_DAY}"
        folder.mkdir()
        bounds = np.linspace(0, each, _FILE_COUNT + 1).astype(int)
        for number in range(_FILE_COUNT):
            rows: list[tuple[object, ...]] = []
            for place, name in enumerate(names):
                seqs = range(int(bounds[number]) + 1, int(bounds[number + 1]) + 1)
                rows += _rows(place, name, texts[place % _TEXT_COUNT], seqs, len(names))
            rows.sort(key=lambda row: (row[1], row[2], row[0]))
            _write(folder / f"part-{number}.parquet", rows)
        load.commit({"job": "bench"})


def _rows(
    place: int, name: str, text: list[bytes], seqs: range, document_count: int
) -> list[tuple[object, ...]]:
    """Position, stream, sequence, kind, body. The log has all documents in turn."""
    stream = bytes(stream_of(name))
    rows: list[tuple[object, ...]] = []
    if seqs and seqs[0] == 1:
        snapshot = DocumentSnapshot(
            SNAPSHOT_VERSION, name, Kind.YJS, b"12345678", [], msgspec.msgpack.encode([b"\0\0"])
        )
        rows.append((place * 2 + 1, stream, 0, _CREATE, b""))
        rows.append((place * 2 + 2, stream, 0, _SNAPSHOT, encode_snapshot(snapshot)))
    for seq in seqs:
        position = (seq * document_count + place) * 100
        rows.append((position, stream, seq, _MESSAGE, encode_entry("writer", seq, text[seq - 1])))
    return rows


def _write(path: Path, rows: list[tuple[object, ...]]) -> None:
    schema = without(EVENTS.schema, ["day"])
    positions, streams, seqs, kinds, bodies = zip(*rows, strict=True)
    count = len(rows)
    known: dict[str, list[Any]] = {
        "store": [_STORE] * count,
        "position": list(positions),
        "part": [0] * count,
        "kind": list(kinds),
        "is_from_run": [False] * count,
        "stream": list(streams),
        "seq": list(seqs),
        "time_ms": [_TIME_MS] * count,
        "flags": [0xA0] * count,
        "last": list(seqs),
        "unread": [0] * count,
        "length": [len(cast(bytes, body)) for body in bodies],
        "body": list(bodies),
    }
    columns = {name: known.get(name, [None] * count) for name in schema.names}
    table = cast(Any, pa).table(columns, schema=schema)
    cast(Any, pq).write_table(table, path, compression="zstd")


def _typed(chance: np.random.Generator, number: int, count: int) -> list[bytes]:
    """Somebody types at different places, and takes something back now and then."""
    doc = pycrdt.Doc[Any](client_id=number + 1)
    text = doc.get("text", type=pycrdt.Text)
    updates: list[bytes] = []
    subscription = doc.observe(lambda event: updates.append(event.update))
    while len(updates) < count:
        at = int(chance.integers(0, len(text) + 1))
        if chance.random() < 0.1 and at < len(text):
            del text[at]
        else:
            text.insert(at, "some"[: int(chance.integers(1, 5))])
    doc.unobserve(subscription)
    return updates
