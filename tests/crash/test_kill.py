"""kill -9 of a process that writes, at any moment, again and again on one data folder."""

import signal
from pathlib import Path
from random import Random

import pytest

from syncline.testing.oracle import Violation
from tests.crash.writer import Work
from tests.crash.writer_process import Nursery, check_folder, patient_oracle

ROUND_COUNT = 15
LONG_ROUND_COUNT = 1_000
# A flaw shows in about every third round.
FLAWED_ROUND_COUNT_MAX = 60
BATCH_COUNT_MAX = 150
WAYS = [("log", False), ("log", True), ("journal", False)]


class Killing:
    """A data folder, and writers that are killed while they work on it."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        kind: str,
        *,
        has_job_process: bool = False,
        flaw: str = "",
    ) -> None:
        self._nursery = nursery
        self._folder = folder
        self._kind = kind
        self._has_job_process = has_job_process
        self._flaw = flaw
        self._random = Random(f"{kind} {has_job_process} {flaw}")
        self._oracle = patient_oracle(kind)

    @property
    def acknowledged_count(self) -> int:
        return self._oracle.acknowledged_count

    def run_round(self, number: int) -> list[Violation]:
        work = Work(
            self._kind,
            str(self._folder / "data"),
            str(self._folder / "report"),
            seed=number,
            round_number=number,
            has_job_process=self._has_job_process,
            flaw=self._flaw,
        )
        with self._nursery.start(work) as writer:
            writer.wait_for_a_moment(self._random, BATCH_COUNT_MAX)
            # The job process is left: it notices that it is alone, and must do no harm until then.
            writer.kill()
        assert writer.code == -signal.SIGKILL, writer.errors
        return check_folder(work, self._oracle)


def kill_often(folder: Path, kind: str, round_count: int, *, has_job_process: bool) -> None:
    with Nursery() as nursery:
        killing = Killing(nursery, folder, kind, has_job_process=has_job_process)
        for number in range(round_count):
            found = killing.run_round(number)
            assert not found, f"round {number}:\n" + "\n".join(map(str, found[:10]))
    assert killing.acknowledged_count > 10 * round_count


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("kind", "has_job_process"), WAYS)
def test_nothing_acknowledged_is_lost_by_a_kill(
    quick_folder: Path, kind: str, has_job_process: bool
) -> None:
    # Starting a job process each time takes its time.
    round_count = ROUND_COUNT // 2 if has_job_process else ROUND_COUNT
    kill_often(quick_folder, kind, round_count, has_job_process=has_job_process)


@pytest.mark.long
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(("kind", "has_job_process"), WAYS)
def test_nothing_acknowledged_is_lost_by_a_thousand_kills(
    quick_folder: Path, kind: str, has_job_process: bool
) -> None:
    kill_often(quick_folder, kind, LONG_ROUND_COUNT, has_job_process=has_job_process)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["log", "journal"])
def test_a_writer_that_acknowledges_before_it_writes_is_caught(
    quick_folder: Path, kind: str
) -> None:
    with Nursery() as nursery:
        killing = Killing(nursery, quick_folder, kind, flaw="early")
        for number in range(FLAWED_ROUND_COUNT_MAX):
            if any(found.rule == "lost" for found in killing.run_round(number)):
                return
    pytest.fail("acknowledged before it was written, and nobody noticed")
