"""The walk round all services: what it repairs, how long it takes, and how it ends."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import structlog

from syncline.errors import CorruptionError, StoreFullError
from syncline.server.logs import Log
from syncline.server.smp import walking
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.walking import MOMENT_SECONDS_MAX, SERVICE_COST, DigestWalk
from syncline.storage import set_digests
from syncline.storage.files import DiskFiles
from syncline.storage.records.base import commit
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.queue_records import ServiceRole
from tests.storage.records.under_test import (
    notifier,
    queue,
    queue_id,
    service,
    service_id,
)

ROUND_SECONDS = 86_400.0
COUNTS = {1: 40, 2: 90, 3: 0}


class Walked:
    """Records of three services, and a walk whose pauses take no time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = SqliteRecords.open(str(folder), DiskFiles())
        self.counters = SmpCounters()
        self.logged = structlog.testing.CapturingLogger()
        self.pauses: list[float] = []
        self.on_pause: Callable[[], Awaitable[None]] | None = None
        self.start = bytes(24)
        for number in COUNTS:
            role = ServiceRole.NOTIFIER if number == 2 else ServiceRole.MESSAGING
            self.records.create_service(service(number, role))
        for number in range(40):
            self.records.create_queue(queue(number, service_id=service_id(1)))
        for number in range(100, 190):
            self.records.create_queue(queue(number, notifier=notifier(number, service_id(2))))
        commit(self.records)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.on_pause is not None:
            await self.on_pause()

    def walk(self, round_seconds: float = ROUND_SECONDS) -> DigestWalk:
        log = Log(self.logged)  # type: ignore[arg-type]
        return DigestWalk(
            self.records, self.counters, round_seconds, lambda _: self.start, log, self.sleep
        )

    def damage(self, text: str) -> None:
        path = self.folder / FILE_NAME
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(text)

    def errors(self) -> list[dict[str, Any]]:
        calls = [call for call in self.logged.calls if call.method_name == "error"]
        return [{"event": call.args[0], **call.kwargs} for call in calls]


@pytest.fixture
def walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Walked]:
    # Sets of thousands take long to make: these are read in pieces as if they were that large.
    monkeypatch.setattr(set_digests, "_IDS_AT_ONCE", -1)
    made = Walked(tmp_path)
    yield made
    made.records.close()


async def test_a_round_reads_every_id_and_finds_nothing_wrong(walked: Walked) -> None:
    before = {number: walked.records.digest(service_id(number)) for number in COUNTS}
    await walked.walk().walk()
    assert walked.counters.walk_round_count == 1
    assert walked.counters.walked_id_count == sum(COUNTS.values())
    assert walked.counters.digests_repaired_count == 0
    assert walked.errors() == []
    assert {number: walked.records.digest(service_id(number)) for number in COUNTS} == before


async def test_a_wrong_digest_is_repaired_told_and_counted(walked: Walked) -> None:
    right = walked.records.digest(service_id(2))
    walked.damage("UPDATE digests SET count = count + 5 WHERE count = 90")
    walked.damage("DELETE FROM digests WHERE count = 0")
    await walked.walk().walk()
    assert walked.records.verify_digests() == []
    found = walked.records.digest(service_id(2))
    assert (found.count, found.xor_md5) == (right.count, right.xor_md5)
    assert walked.counters.digests_repaired_count == 2
    told = {(each["count_before"], each["count"], each["role"]) for each in walked.errors()}
    assert told == {(95, 90, "notifier"), (None, 0, "messaging")}
    # In the next round there is nothing to tell.
    await walked.walk().walk()
    assert walked.counters.digests_repaired_count == 2
    assert walked.counters.walk_round_count == 2


async def test_changes_meanwhile_are_no_mismatch(
    walked: Walked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walking, "PIECE_COUNT", 1)
    numbers = iter(range(1_000, 2_000))

    async def change() -> None:
        number = next(numbers)
        walked.records.create_queue(
            queue(number, service_id=service_id(1), notifier=notifier(number, service_id(2)))
        )
        if number % 2:
            # Ones that were there from the start, as long as there are any.
            known = number % 1_000
            walked.records.delete_queue(queue_id(known if known < 40 else number - 1))
        commit(walked.records)

    walked.on_pause = change
    await walked.walk().walk()
    assert len(walked.pauses) > 60
    assert walked.errors() == []
    assert walked.counters.digests_repaired_count == 0


async def test_what_is_repaired_by_others_meanwhile_is_not_repaired_again(walked: Walked) -> None:
    walked.damage("UPDATE digests SET count = 7 WHERE count = 40")
    records, counters = walked.records, walked.counters
    repair = records.repair_digest
    with mock.patch.object(records, "repair_digest", lambda each: (repair(each), repair(each))[1]):
        await walked.walk().walk()
    assert (counters.digests_repaired_count, walked.errors()) == (0, [])


@pytest.mark.parametrize("piece_count", [1, 10, 4_096])
async def test_a_round_takes_its_time_whatever_there_is_to_read(
    walked: Walked, monkeypatch: pytest.MonkeyPatch, piece_count: int
) -> None:
    monkeypatch.setattr(walking, "PIECE_COUNT", piece_count)
    await walked.walk().walk()
    assert sum(walked.pauses) == pytest.approx(ROUND_SECONDS)
    assert all(seconds >= 0.0 for seconds in walked.pauses)


async def test_no_moment_is_held_for_long(walked: Walked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are spread over the set, and what is left of them comes behind it."""
    monkeypatch.setattr(walking, "PIECE_COUNT", 1)
    # What a digest says is a guess of the time, and may be wrong.
    walked.damage("UPDATE digests SET count = 1 WHERE count = 90")
    held: list[float] = []
    inside = walked.records.walk_digest

    def walk_digest(each: bytes) -> Any:
        start = len(walked.pauses)
        mismatch = yield from inside(each)
        held.append(sum(walked.pauses[start:]))
        return mismatch

    with mock.patch.object(walked.records, "walk_digest", walk_digest):
        await walked.walk().walk()
    assert len(held) == 3
    assert max(held) <= MOMENT_SECONDS_MAX + 1e-6
    assert sum(each > MOMENT_SECONDS_MAX * 0.9 for each in held) == 2
    # One that is guessed right has no pause that is much longer than others.
    first = [seconds for seconds in walked.pauses if 0.0 < seconds < MOMENT_SECONDS_MAX]
    assert sum(seconds < 2 * MOMENT_SECONDS_MAX / COUNTS[1] for seconds in first) >= 20


async def test_without_services_there_is_nothing_to_do(walked: Walked) -> None:
    for number in COUNTS:
        walked.records.delete_service(service_id(number))
    commit(walked.records)
    await walked.walk().walk()
    assert walked.pauses == []
    assert walked.counters.walk_round_count == 1
    assert SERVICE_COST > 0


async def test_a_round_begins_anywhere(walked: Walked) -> None:
    order: list[bytes] = []
    inside = walked.records.walk_digest
    ids = walked.records.service_ids()

    def walk_digest(each: bytes) -> Any:
        order.append(each)
        return inside(each)

    with mock.patch.object(walked.records, "walk_digest", walk_digest):
        for start in (bytes(24), ids[1], ids[2], b"\xff" * 24):
            walked.start = start
            await walked.walk().walk()
    assert order == [*ids, ids[1], ids[2], ids[0], ids[2], ids[0], ids[1], *ids]


async def test_a_service_that_cannot_be_read_does_not_keep_it_from_the_others(
    walked: Walked,
) -> None:
    walked.damage("UPDATE digests SET count = count + 5")
    first = walked.records.service_ids()[0]
    inside, repair = walked.records.walk_digest, walked.records.repair_digest

    def walk_digest(each: bytes) -> Any:
        if each == first:
            raise CorruptionError(FILE_NAME, 0, "malformed")
        return inside(each)

    with mock.patch.object(walked.records, "walk_digest", walk_digest):
        await walked.walk().walk()
    assert walked.counters.digests_repaired_count == 2
    assert "malformed" in str(walked.errors())
    # Nor does a disk that is full.
    with mock.patch.object(walked.records, "repair_digest", side_effect=StoreFullError("disk")):
        await walked.walk().walk()
    assert repair(first) is not None
    with mock.patch.object(
        walked.records, "service_ids", side_effect=CorruptionError(FILE_NAME, 0, "worse")
    ):
        await walked.walk().walk()
    assert "worse" in str(walked.errors())
    assert walked.counters.walk_round_count == 2


@pytest.mark.parametrize("pause_number", [0, 1, 2, 3, 7])
async def test_it_ends_at_once_when_it_is_told_to(
    walked: Walked, monkeypatch: pytest.MonkeyPatch, pause_number: int
) -> None:
    """In whichever pause, and with nothing of the records held."""
    monkeypatch.setattr(walking, "PIECE_COUNT", 1)
    reached = asyncio.Event()

    async def wait() -> None:
        if len(walked.pauses) > pause_number:
            reached.set()
            await asyncio.Event().wait()

    walked.on_pause = wait
    task = asyncio.create_task(walked.walk().run())
    async with asyncio.timeout(15):
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    walked.damage("UPDATE totals SET queues = queues")
    with closing(sqlite3.connect(walked.folder / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0


async def test_it_ends_after_the_piece_that_is_being_read(walked: Walked) -> None:
    reading = asyncio.Event()
    loop = asyncio.get_running_loop()
    inside = walked.records.walk_digest
    ended: list[bool] = []

    def walk_digest(each: bytes) -> Any:
        loop.call_soon_threadsafe(reading.set)
        try:
            return (yield from inside(each))
        finally:
            ended.append(task.done())

    with mock.patch.object(walked.records, "walk_digest", walk_digest):
        task = asyncio.create_task(walked.walk().walk())
        async with asyncio.timeout(15):
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    # The walk waited for its thread, and let go of the set before it ended.
    assert ended == [False]


async def test_rounds_follow_one_another(walked: Walked) -> None:
    done = asyncio.Event()

    async def count() -> None:
        if walked.counters.walk_round_count == 3:
            done.set()
            await asyncio.Event().wait()

    walked.on_pause = count
    task = asyncio.create_task(walked.walk().run())
    async with asyncio.timeout(15):
        await done.wait()
    task.cancel()
    # First the router has its time, then there is a pause behind each round.
    assert walked.pauses[0] > 0
    assert walked.counters.walked_id_count == 3 * sum(COUNTS.values())
