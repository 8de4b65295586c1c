"""The jobs on a standalone cluster that loses an executor find what they find on one machine."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from syncline.pipeline.schemas import table_named
from syncline.pipeline.tables import Table
from syncline.storage.base import StreamKind, commit
from syncline.storage.documents import (
    SNAPSHOT_VERSION,
    DocumentSnapshot,
    encode_entry,
    encode_snapshot,
    stream_of,
)
from syncline.storage.files import DiskFiles
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.storage.records.base import commit as commit_records
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.events import EventKind, Face, encode_event
from syncline.values.limits import MIB
from tests.pipeline import spark_cluster
from tests.pipeline.record_folders import RecordsFolder
from tests.pipeline.routers import START_MS, stream_id
from tests.storage.records.under_test import queue, service, service_id

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

QUEUE = stream_id(1)
QUEUE_READER = 7 << 4 | Face.SMP
DOCUMENT = "paper"
PAPER = stream_of(DOCUMENT)
READER = 8 << 4 | Face.DOCUMENTS
AUTHOR = "ann"
BATCH_COUNT = 90
BATCH_MESSAGE_COUNT = 400
BODY_BYTES = 5_000
BATCH_UPDATE_COUNT = 5
# Its updates were never delivered.
LOST_BATCH = 41


def router(folder: Path) -> None:
    """A log of several tasks, with a reader who has missed one batch; and a set of ids."""
    source = random.Random(1)
    store = LogStore.open(
        str(folder),
        DiskFiles(),
        StoreOptions(segment_bytes=64 * MIB),
        now_ms=START_MS,
        random_bytes=source.randbytes,
    )
    store.create(QUEUE, StreamKind.QUEUE, 0, START_MS)
    store.create(PAPER, StreamKind.DOCUMENT, 0, START_MS)
    empty = DocumentSnapshot(SNAPSHOT_VERSION, DOCUMENT, "json", bytes(8), [], b"{}")
    store.put_snapshot(PAPER, 0, encode_snapshot(empty), START_MS)
    store.note_event(encode_event(EventKind.STARTED, START_MS))
    for stream, session in ((QUEUE, QUEUE_READER), (PAPER, READER)):
        store.note_event(encode_event(EventKind.SUBSCRIBED, START_MS, stream, session, 1, 1))
    message = update = 0
    for number in range(BATCH_COUNT):
        now_ms = START_MS + number * 1_000
        for _ in range(BATCH_MESSAGE_COUNT):
            store.append(QUEUE, source.randbytes(BODY_BYTES), now_ms)
        for at in range(BATCH_UPDATE_COUNT):
            body = f'{{"n{number}": {at}}}'.encode()
            store.append(PAPER, encode_entry(AUTHOR, update + at + 1, body), now_ms)
        commit(store)
        for _ in range(BATCH_MESSAGE_COUNT):
            message += 1
            about = (now_ms + 5, QUEUE, QUEUE_READER)
            store.note_event(encode_event(EventKind.DELIVERED, *about, message, message))
            store.note_event(encode_event(EventKind.ACKNOWLEDGED, *about, 0, message))
        first, update = update + 1, update + BATCH_UPDATE_COUNT
        if number != LOST_BATCH:
            about = (now_ms + 5, PAPER, READER)
            store.note_event(encode_event(EventKind.DELIVERED, *about, first, update))
    commit(store)
    store.close()
    records = SqliteRecords.open(str(folder), DiskFiles())
    records.create_service(service(1))
    for number in range(3_000):
        records.create_queue(queue(number, service_id=service_id(1)))
    commit_records(records)
    records.close()


def words_of_run(folders: Path, tables: Path, *at: str) -> list[str]:
    run = ["pipeline", "run", str(folders / "router"), "--wanted", str(folders / "wanted")]
    run += ["--tail", "stopped", "--tables", str(tables), "--json", *at]
    run += ["--out", str(tables.with_suffix(".html"))]
    return [sys.executable, "-m", "syncline", *run]


def rows_of(tables: Path, name: str) -> list[str]:
    """All rows of a table as texts, in an order of their own."""
    found = Table(tables, table_named(name)).version().files
    rows = [pq.ParquetFile(each.path).read() for each in found]
    listed: list[dict[str, Any]] = pa.concat_tables(rows).to_pylist() if rows else []
    return sorted(repr(sorted(row.items())) for row in listed)


TABLES = (
    "events",
    "associations",
    "service_digests",
    "drift_items",
    "delivery_audit",
    "delivery_findings",
)


def test_a_cluster_that_loses_an_executor_finds_the_same(tmp_path: Path) -> None:
    router(tmp_path / "router")
    wanted = RecordsFolder(tmp_path / "wanted", 2)
    wanted.add(*range(10, 3_010))
    wanted.stop()
    here = subprocess.run(
        words_of_run(tmp_path, tmp_path / "here"), capture_output=True, text=True, check=False
    )
    # Something was lost, and sets differ.
    assert here.returncode == 1, here.stderr
    assert here.stdout, here.stderr
    with spark_cluster.running(tmp_path / "cluster") as cluster:
        at = ["--master", cluster.url]
        for setting in (
            "spark.executor.memory=900m",
            "spark.executor.cores=1",
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.ui.enabled=false",
            "spark.sql.shuffle.partitions=4",
        ):
            at += ["--set", setting]
        running = subprocess.Popen(
            words_of_run(tmp_path, tmp_path / "there", *at),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            killed = cluster.killed_one(running)
            said, errors = running.communicate()
        finally:
            running.kill()
        assert running.returncode == 1, errors
        assert said, errors
        assert killed is not None, errors
        # Two at the start, and one in place of the one that was killed.
        assert cluster.said("Launching executor") >= 3
    found = json.loads(said)
    assert found["audit"]["lost_count"] == BATCH_UPDATE_COUNT
    assert found["reconcile"]["missing_count"] > 0
    for name in TABLES:
        there = rows_of(tmp_path / "there", name)
        assert there == rows_of(tmp_path / "here", name), name
        assert there, name
