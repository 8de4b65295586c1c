"""A log read through the source, against Parquet files of the same rows that Spark reads itself.

The log is written by the store: messages of 20 to 99 bytes, events and acknowledgements. Both sides
answer one question, which looks at every body: by kind, how many rows, how many bytes, the highest
sequence, and all bodies hashed together.
"""

import random
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from bench.pipeline.setting import Setting
from bench.support.figures import Figure, at_most_ratio
from bench.support.processes import BenchError
from syncline.storage.base import StreamKind, commit
from syncline.storage.files import DiskFiles
from syncline.storage.log.format import BLOCK_BYTES, RECORD_HEADER_BYTES
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.values import limits
from syncline.values.events import EVENT_ROW_BYTES, EventKind, encode_event
from syncline.values.ids import StreamId

RATIO_MAX = 3.0
START_MS = 1_700_000_000_000
STREAM_COUNT = 1_000
BATCH_ROWS = 1_000
# Of a batch, in this order; the rest are messages.
EVENTS_EACH = 300
ACKNOWLEDGEMENTS_EACH = 20
BODY_BYTES = range(20, 100)
COLUMNS = ("kind", "seq", "length", "body")

Answer = list[tuple[object, ...]]


def measure(setting: Setting) -> list[Figure]:
    plan = setting.plan
    row_count = plan.journal_record_count
    byte_count = row_count * (RECORD_HEADER_BYTES + EVENT_ROW_BYTES)
    setting.check_space(3 * byte_count)
    folder = setting.folder / "journal"
    setting.doing(f"writing a log of {row_count:,} rows")
    write_log(folder, row_count, byte_count // plan.journal_segment_count, setting.seed)
    spark = setting.spark
    every = spark.read.format("syncline").option("tail", "stopped").load(str(folder))
    parquet = setting.folder / "journal.parquet"
    setting.doing("writing the same rows as Parquet")
    every.write.mode("overwrite").parquet(str(parquet))

    def of_source(columns: str) -> Answer:
        reader = spark.read.format("syncline").option("tail", "stopped")
        return answer(reader.option("columns", columns).load(str(folder)))

    contestants = {
        "Parquet": lambda: answer(spark.read.parquet(str(parquet))),
        "source": lambda: of_source(",".join(COLUMNS)),
        "source, every column": lambda: of_source(""),
    }
    expected = answer(spark.read.parquet(str(parquet)))
    found_count = sum(int(str(row[1])) for row in expected)
    if found_count != row_count:
        raise BenchError(f"{row_count} rows were written, and {found_count} are there")

    def check(name: str, found: Answer) -> None:
        if found != expected:
            raise BenchError(f"{name} has another answer: {found}, not {expected}")

    taken = setting.both_orders(contestants, check)
    setting.details["journal"] = {name: each.all_seconds for name, each in taken.items()}
    peer = taken["Parquet"].seconds
    note = f"{row_count:,} rows in segments of a log"
    return [
        Figure(
            "journal read, s",
            taken["source"].seconds,
            "warm Parquet",
            peer,
            taken["source"].seconds / peer,
            at_most_ratio(f"<= {RATIO_MAX:g} x", RATIO_MAX),
            f"{note}; the columns that are asked for",
        ),
        Figure(
            "journal read, every column, s",
            taken["source, every column"].seconds,
            "warm Parquet",
            peer,
            taken["source, every column"].seconds / peer,
            note=note,
        ),
    ]


def answer(rows: DataFrame) -> Answer:
    found = rows.groupBy("kind").agg(
        F.count(F.lit(1)),
        F.sum("length"),
        F.max("seq"),
        F.bit_xor(F.xxhash64("body")),
    )
    return sorted(map(tuple, cast(list[tuple[object, ...]], found.collect())))


def write_log(folder: Path, row_count: int, segment_bytes: int, seed: int) -> None:
    """By the store, which leaves all segments where they are: nothing seals them."""
    chance = random.Random(seed)
    segment_bytes = max(limits.segment_bytes_min, segment_bytes // BLOCK_BYTES * BLOCK_BYTES)
    options = StoreOptions(is_durable=False, segment_bytes=segment_bytes)
    store = LogStore.open(
        str(folder), DiskFiles(), options, now_ms=START_MS, random_bytes=chance.randbytes
    )
    try:
        streams = [StreamId(chance.randbytes(24)) for _ in range(min(STREAM_COUNT, row_count // 4))]
        for stream in streams:
            store.create(stream, StreamKind.QUEUE, 0, START_MS)
        commit(store)
        left = row_count - len(streams)
        now_ms = START_MS
        while left:
            now_ms += 50
            left -= _write_batch(store, streams, min(left, BATCH_ROWS), now_ms, chance)
    finally:
        store.close()


def _write_batch(
    store: LogStore, streams: list[StreamId], row_count: int, now_ms: int, chance: random.Random
) -> int:
    event_count = row_count * EVENTS_EACH // BATCH_ROWS
    acknowledged = chance.sample(streams, row_count * ACKNOWLEDGEMENTS_EACH // BATCH_ROWS)
    acknowledged = [each for each in acknowledged if store.state(each).unread_count]
    noise = chance.randbytes(2 * BODY_BYTES.stop)
    for _ in range(event_count):
        stream = chance.choice(streams)
        store.note_event(
            encode_event(EventKind.DELIVERED, now_ms, stream, chance.getrandbits(20), 1, 1)
        )
    for _ in range(row_count - event_count - len(acknowledged)):
        start = chance.randrange(BODY_BYTES.stop)
        body = noise[start : start + chance.choice(BODY_BYTES)]
        store.append(chance.choice(streams), body, now_ms)
    for stream in acknowledged:
        store.truncate_before(stream, store.state(stream).next)
    commit(store)
    return row_count
