"""Records checked while the router serves: one check at a time, on a thread, told in lines."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
import structlog

from syncline.errors import RefusedError, StorageError
from syncline.server.logs import Log
from syncline.server.smp import examining
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.examining import Examination, report_facts
from syncline.storage import set_digests
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import DigestMismatch, RecordCounts, RecordsReport, commit
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.digests import EMPTY_DIGEST
from syncline.values.queue_records import ServiceRole
from tests.storage.records.under_test import queue, service, service_id

QUEUE_COUNT = 50
# What a tool reads of one line.
LINE_BYTES_MAX = 1 << 16


class Examined:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = SqliteRecords.open(str(folder), DiskFiles())
        self.counters = SmpCounters()
        self.logged = structlog.testing.CapturingLogger()
        log = Log(self.logged)  # type: ignore[arg-type]
        self.examination = Examination(self.records, self.counters, log)
        self.records.create_service(service(1))
        for number in range(QUEUE_COUNT):
            self.records.create_queue(queue(number, service_id=service_id(1)))
        commit(self.records)

    def damage(self, *texts: str) -> None:
        path = self.folder / FILE_NAME
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for text in texts:
                connection.execute(text)

    async def run(self, *, repairs: bool = False) -> list[dict[str, Any]]:
        return await gathered(self.examination.run(repairs=repairs))

    def errors(self) -> list[str]:
        return [call.args[0] for call in self.logged.calls if call.method_name == "error"]


async def gathered(lines: AsyncGenerator[bytes]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) async for line in lines]


@pytest.fixture
def examined(tmp_path: Path) -> Iterator[Examined]:
    made = Examined(tmp_path)
    yield made
    made.records.close()


async def test_nothing_is_wrong(examined: Examined) -> None:
    *_, last = await examined.run(repairs=True)
    assert last["done"]
    assert last["read_ids"] == QUEUE_COUNT
    assert (last["whole"], last["left_whole"], last["repaired"]) == (True, True, False)
    assert last["found_counts"]["queue_count"] == QUEUE_COUNT
    assert (last["mismatches"], last["damage"]) == ([], [])
    assert examined.errors() == []


async def test_what_is_wrong_is_told_and_repaired_if_asked(examined: Examined) -> None:
    examined.damage("UPDATE digests SET count = 3", "UPDATE totals SET services = 9")
    *_, last = await examined.run()
    assert (last["whole"], last["left_whole"], last["repaired"]) == (False, False, False)
    assert last["mismatch_count"] == 1
    (mismatch,) = last["mismatches"]
    assert (mismatch["kept"]["count"], mismatch["found"]["count"]) == (3, QUEUE_COUNT)
    assert (last["kept_counts"]["service_count"], last["found_counts"]["service_count"]) == (9, 1)
    assert (examined.errors(), examined.counters.digests_repaired_count) == ([], 0)

    *_, last = await examined.run(repairs=True)
    assert (last["whole"], last["left_whole"], last["repaired"]) == (False, True, True)
    assert examined.counters.digests_repaired_count == 1
    assert len(examined.errors()) == 2
    *_, last = await examined.run()
    assert last["whole"]


async def test_progress_is_told_and_the_loop_goes_on(
    examined: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(set_digests, "_IDS_AT_ONCE", -1)
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    lines = await examined.run()
    ticking.cancel()
    assert len(lines) > 200
    counts = [line["read_ids"] for line in lines]
    assert counts == sorted(counts)
    assert len(ticks) > len(lines)


async def test_there_is_one_check_at_a_time(
    examined: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "_LINE_SECONDS", 0.0)
    second = examined.examination.run(repairs=False)
    first = examined.examination.run(repairs=False)
    await anext(first)
    with pytest.raises(RefusedError, match="a check is running"):
        examined.examination.run(repairs=False)
    assert await gathered(second) == [{"error": "a check is running; wait for its end"}]
    assert (await gathered(first))[-1]["done"]
    assert (await examined.run())[-1]["done"]


async def test_it_ends_when_its_caller_goes_away(examined: Examined) -> None:
    """At once, also in the midst of a long step, and another may begin."""
    begun = threading.Event()
    ended: list[bool] = []

    def check(*, repairs: bool, is_stopped: Any) -> Any:
        begun.set()
        try:
            for _ in range(5_000):
                if is_stopped():
                    break
                threading.Event().wait(0.001)
            else:
                ended.append(False)
            yield 0
        finally:
            ended.append(True)

    with mock.patch.object(examined.records, "check", check):
        task = asyncio.create_task(examined.run())
        async with asyncio.timeout(15):
            await asyncio.to_thread(begun.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert ended == [True]
    assert (await examined.run())[-1]["done"]


async def test_an_answer_that_nobody_reads_keeps_nobody_out(examined: Examined) -> None:
    unread = examined.examination.run(repairs=False)
    assert (await examined.run())[-1]["done"]
    await unread.aclose()


async def test_a_file_that_cannot_be_read_is_an_answer_too(examined: Examined) -> None:
    with mock.patch.object(
        examined.records, "check", side_effect=StorageError("as the device has it")
    ):
        lines = await examined.run()
    assert lines == [{"error": "as the device has it"}]
    assert (await examined.run())[-1]["done"]


def test_the_last_line_is_short_whatever_was_found() -> None:
    mismatch = DigestMismatch(b"s" * 24, ServiceRole.MESSAGING, EMPTY_DIGEST, EMPTY_DIGEST)
    counts = RecordCounts(*[2**40] * 7)
    damage = tuple("row is missing from index " + "x" * 5_000 for _ in range(100))
    report = RecordsReport(counts, counts, (mismatch,) * 10_000, damage)
    facts = report_facts(report)
    assert len(msgspec.json.encode(facts)) < LINE_BYTES_MAX / 2
    assert (facts["mismatch_count"], facts["damage_count"]) == (10_000, 100)
    nothing = report_facts(RecordsReport(None, None, (), ("malformed",)))
    assert nothing["found_counts"] is None
    assert not nothing["whole"]
