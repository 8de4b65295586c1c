"""A crash at any moment: every batch that was finished is there, and no batch is there in half."""

import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest

from syncline.errors import StorageError
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from tests.crash.mounting import Image, mounted_image, why_no_image
from tests.storage.records.under_test import FILES, SMALL, RecordsUnderTest, copied, drop
from tests.storage.records.workload import Contents, contents, expected_contents, stage

ROOT = Path(__file__).parents[3]
WAL_NAME = f"{FILE_NAME}-wal"

# What a WAL begins with, and what stands before each page in it.
WAL_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
PAGE_BYTES = 4096
FRAME_BYTES = FRAME_HEADER_BYTES + PAGE_BYTES

BATCHES_PER_ROUND = 12
# About: the moment of a crash is anywhere in one.
SECONDS_PER_BATCH = 0.004
# A folder lives through so many crashes in the long suite, and then comes the next.
LONG_ROUND_COUNT = 25
# How it shows that something is gone: batches, halves of them, or a file that cannot be read.
LOST = (AssertionError, StorageError)


# --------------------------------------------------------------------------- a WAL cut short

CUT_BATCH_COUNT = 6


class Recorded:
    """A folder as some batches left it, and how long its WAL was after each of them."""

    def __init__(self, folder: Path) -> None:
        under_test = RecordsUnderTest("sqlite", folder / "data")
        under_test.sqlite._writing.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        self.expected = expected_contents(CUT_BATCH_COUNT)
        self.ends: list[int] = []
        for number in range(CUT_BATCH_COUNT):
            stage(under_test.records, number)
            under_test.commit()
            self.ends.append((under_test.folder / WAL_NAME).stat().st_size)
        self.left = copied(under_test.folder, folder / "left")
        under_test.end()
        self.wal = (self.left / WAL_NAME).read_bytes()
        self.work = folder / "work"

    def batch_count(self, wal: bytes) -> int:
        """How many batches are found with this WAL; each of them is whole."""
        self.work.mkdir(exist_ok=True)
        for path in self.work.iterdir():
            path.unlink()
        shutil.copyfile(self.left / FILE_NAME, self.work / FILE_NAME)
        (self.work / WAL_NAME).write_bytes(wal)
        records = SqliteRecords.open(str(self.work), FILES, SMALL)
        try:
            assert records.verify_digests() == []
            return self.expected.index(contents(records, CUT_BATCH_COUNT))
        finally:
            drop(records)


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def whole_batches(recorded: Recorded, length: int) -> int:
    return sum(end <= length for end in recorded.ends)


@pytest.mark.timeout(120)
def test_a_wal_that_ends_anywhere_holds_whole_batches(recorded: Recorded) -> None:
    """Before each frame, inside its header, inside its page, and a byte before its end."""
    # What the last run before left there is as long as the first batch, or longer.
    first_frame = (recorded.ends[0] - WAL_HEADER_BYTES) // FRAME_BYTES
    found: set[int] = set()
    frame_count = (len(recorded.wal) - WAL_HEADER_BYTES) // FRAME_BYTES
    for frame in range(first_frame, frame_count):
        start = WAL_HEADER_BYTES + frame * FRAME_BYTES
        for length in (
            start,
            start + 7,
            start + FRAME_HEADER_BYTES + 1_001,
            start + FRAME_BYTES - 1,
        ):
            count = recorded.batch_count(recorded.wal[:length])
            assert count == whole_batches(recorded, length), length
            found.add(count)
    assert recorded.batch_count(recorded.wal) == CUT_BATCH_COUNT
    assert found == set(range(1, CUT_BATCH_COUNT))


@pytest.mark.timeout(120)
def test_a_flipped_bit_costs_its_batch_and_those_behind_it(recorded: Recorded) -> None:
    chance = Random("flip")
    for number in range(1, CUT_BATCH_COUNT):
        for _ in range(6):
            position = chance.randrange(recorded.ends[number - 1], recorded.ends[number])
            damaged = bytearray(recorded.wal)
            damaged[position] ^= 1 << chance.randrange(8)
            assert recorded.batch_count(bytes(damaged)) == number, position


@pytest.mark.timeout(120)
def test_frames_of_which_some_never_arrived_hold_whole_batches(recorded: Recorded) -> None:
    """Without a sync, pages reach the disk in any order; the place of one may hold zeros."""
    chance = Random("holes")
    for number in range(1, CUT_BATCH_COUNT):
        for _ in range(6):
            frames = range(
                (recorded.ends[number - 1] - WAL_HEADER_BYTES) // FRAME_BYTES,
                (recorded.ends[number] - WAL_HEADER_BYTES) // FRAME_BYTES,
            )
            start = WAL_HEADER_BYTES + chance.choice(frames) * FRAME_BYTES
            damaged = bytearray(recorded.wal[: recorded.ends[number]])
            damaged[start : start + FRAME_BYTES] = bytes(FRAME_BYTES)
            assert recorded.batch_count(bytes(damaged)) == number


def test_the_pages_are_as_this_test_thinks(recorded: Recorded) -> None:
    _, _, page_bytes = struct.unpack(">III", recorded.wal[:12])
    assert page_bytes == PAGE_BYTES
    assert all((end - WAL_HEADER_BYTES) % FRAME_BYTES == 0 for end in recorded.ends)


# --------------------------------------------------------------------------------- kill -9


class Crashes:
    """A folder, and processes that write to it until something happens to them."""

    def __init__(self, folder: Path, round_count: int, flaw: str = "", number: int = 0) -> None:
        self.folder = folder
        self.batch_count_max = (round_count + 1) * (BATCHES_PER_ROUND + 2)
        self.expected = expected_once(self.batch_count_max)
        self.durable_count = 0
        self.told_count = 0
        self._flaw = flaw
        self._random = Random(f"crash {flaw} {number}")

    def run_round(self, image: Image | None = None) -> bool:
        """Let it write for a while, then end it; whether all that was said to be durable is there.

        With an image, its power is cut first.
        """
        arguments = (str(self.folder), str(self.durable_count), str(BATCHES_PER_ROUND), self._flaw)
        self.folder.mkdir(exist_ok=True)
        with started(arguments) as (process, lines):
            said = [next(lines) for _ in range(self._random.randrange(1, BATCHES_PER_ROUND))]
            _spin(self._random.choice([0, self._random.random()]) * SECONDS_PER_BATCH)
            cut_ns = time.monotonic_ns()
            if image is not None:
                image.cut_power()
            process.kill()
            # What it said until it was gone counts as well.
            said += lines
        told = [(int(number) + 1, int(said_ns)) for number, said_ns in map(str.split, said)]
        most = self.told_count = told[-1][0]
        if image is not None:
            image.restart()
            # While a file system is being stopped, a sync that is under way may return as if all
            # were well: so ext4 and XFS do for any program.
            # Nobody hears of anything after a cut.
            self.told_count = max(count for count, said_ns in told if said_ns <= cut_ns)
        return self.told_count <= self._look(most) <= most + 1

    def run_rounds(self, round_count: int, image: Image | None = None) -> None:
        """Each must leave all that was said to be durable."""
        for number in range(round_count):
            assert self.run_round(image), (
                f"round {number}: said {self.told_count}, found {self.durable_count}"
            )

    def _look(self, told: int) -> int:
        records = SqliteRecords.open(str(self.folder), FILES, SMALL)
        try:
            assert records.verify_digests() == []
            found = contents(records, self.batch_count_max)
        finally:
            records.close()
        near = self.expected[: told + 2]
        assert found in near, "half a batch"
        self.durable_count = near.index(found)
        return self.durable_count


# Folder after folder is compared with it, and it grows with the square of the batches.
@cache
def expected_once(batch_count: int) -> Sequence[Contents]:
    return expected_contents(batch_count)


@contextmanager
def started(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.storage.records.writing", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        # A writer without power says so.
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, iter(process.stdout)
        finally:
            process.kill()


def _spin(seconds: float) -> None:
    """Too short for a sleep: the moment shall be anywhere in a batch."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def kill_often(folder: Path, round_count: int, number: int = 0) -> None:
    crashes = Crashes(folder, round_count, number=number)
    crashes.run_rounds(round_count)
    assert crashes.durable_count > round_count


@pytest.mark.timeout(240)
def test_nothing_durable_is_lost_by_a_kill(tmp_path: Path) -> None:
    kill_often(tmp_path / "data", 8)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("number", range(40))
def test_nothing_durable_is_lost_by_a_thousand_kills(tmp_path: Path, number: int) -> None:
    kill_often(tmp_path / "data", LONG_ROUND_COUNT, number)


@pytest.mark.timeout(240)
def test_a_writer_that_speaks_too_early_is_caught(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "data", 20, "early")
    assert not all(crashes.run_round() for _ in range(20))


# ------------------------------------------------------------------------------- power cuts


@contextmanager
def power_cuts(
    folder: Path, file_system: str, round_count: int, flaw: str = "", number: int = 0
) -> Iterator[Callable[[int], None]]:
    """Rounds on a file system that forgets what was not synced."""
    reason = why_no_image(file_system)
    if reason is not None:
        pytest.skip(reason)
    with mounted_image(folder, file_system) as image:
        crashes = Crashes(image.folder / "data", round_count, flaw, number)
        yield partial(crashes.run_rounds, image=image)


@pytest.mark.timeout(240)
def test_nothing_durable_is_lost_by_a_power_cut(tmp_path: Path) -> None:
    with power_cuts(tmp_path, "ext4", 5) as run_rounds:
        run_rounds(5)


# 200 on ext4, 50 on XFS.
LONG_CUTS = [*(("ext4", number) for number in range(8)), ("xfs", 0), ("xfs", 1)]


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("file_system", "number"), LONG_CUTS)
def test_nothing_durable_is_lost_by_many_power_cuts(
    tmp_path: Path, file_system: str, number: int
) -> None:
    with power_cuts(tmp_path, file_system, LONG_ROUND_COUNT, number=number) as run_rounds:
        run_rounds(LONG_ROUND_COUNT)


@pytest.mark.timeout(240)
def test_a_writer_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    with power_cuts(tmp_path, "ext4", 10, "unsynced") as run_rounds, pytest.raises(LOST):
        run_rounds(10)
