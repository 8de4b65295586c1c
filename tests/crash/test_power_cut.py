"""Power cuts on real file systems: what was not on the device is gone, then the store is opened.

The file system stops at once, in the middle of the writer's work, and forgets its caches. Mounted
again, it recovers as it does after a real power cut.
"""

from pathlib import Path
from random import Random

import pytest

from syncline.testing.oracle import Violation
from tests.crash.mounting import Image, mounted_image, why_no_image
from tests.crash.writer import Work
from tests.crash.writer_process import Nursery, check_folder, patient_oracle

# ext4 and XFS, in the suite of every day and in the long one.
ROUND_COUNTS = {"ext4": 5, "xfs": 2}
LONG_ROUND_COUNTS = {"ext4": 200, "xfs": 50}
FLAWED_ROUND_COUNT_MAX = 10
BATCH_COUNT_MAX = 60

KINDS = ["log", "journal"]
FILE_SYSTEMS = list(ROUND_COUNTS)


class PowerCuts:
    """A data folder on an image, and writers whose power is cut."""

    def __init__(self, nursery: Nursery, image: Image, kind: str, flaw: str = "") -> None:
        self._nursery = nursery
        self._image = image
        self._kind = kind
        self._flaw = flaw
        self._random = Random(f"{image.file_system} {kind} {flaw}")
        self._oracle = patient_oracle(kind)

    @property
    def acknowledged_count(self) -> int:
        return self._oracle.acknowledged_count

    def run_round(self, number: int) -> list[Violation]:
        folder = self._image.folder / "data"
        report = self._image.path.with_name("report")
        work = Work(
            *(self._kind, str(folder), str(report)),
            seed=number,
            round_number=number,
            flaw=self._flaw,
        )
        with self._nursery.start(work) as writer:
            writer.wait_for_a_moment(self._random, BATCH_COUNT_MAX)
            # While a file system is being stopped, a sync that is under way may return as if all
            # were well: so ext4 and XFS do for any program. Nobody hears of anything after a cut.
            heard_bytes = report.stat().st_size
            self._image.cut_power()
            # Its next sync fails, and it may be gone by itself.
            writer.kill()
        assert "Traceback" not in writer.errors, writer.errors
        self._image.restart()
        return check_folder(work, self._oracle, heard_bytes)


def cut_often(folder: Path, file_system: str, kind: str, round_count: int) -> None:
    skip_unless_mountable(file_system)
    with Nursery() as nursery, mounted_image(folder, file_system) as image:
        cuts = PowerCuts(nursery, image, kind)
        for number in range(round_count):
            found = cuts.run_round(number)
            assert not found, f"round {number}:\n" + "\n".join(map(str, found[:10]))
    assert cuts.acknowledged_count > 10 * round_count


def skip_unless_mountable(file_system: str) -> None:
    reason = why_no_image(file_system)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_nothing_acknowledged_is_lost_by_a_power_cut(
    tmp_path: Path, file_system: str, kind: str
) -> None:
    cut_often(tmp_path, file_system, kind, ROUND_COUNTS[file_system])


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_nothing_acknowledged_is_lost_by_many_power_cuts(
    tmp_path: Path, file_system: str, kind: str
) -> None:
    cut_often(tmp_path, file_system, kind, LONG_ROUND_COUNTS[file_system])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_store_that_does_not_sync_is_caught(tmp_path: Path, file_system: str, kind: str) -> None:
    skip_unless_mountable(file_system)
    with Nursery() as nursery, mounted_image(tmp_path, file_system) as image:
        cuts = PowerCuts(nursery, image, kind, flaw="unsynced")
        for number in range(FLAWED_ROUND_COUNT_MAX):
            if any(found.rule in ("lost", "closed") for found in cuts.run_round(number)):
                return
    pytest.fail("nothing was synced, and nobody noticed")
