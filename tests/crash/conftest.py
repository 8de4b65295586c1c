"""The crash suite works with stores so small that everything happens within a few steps."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from syncline.storage.log import opening, residents, sealing, store, table, upkeep

SLOT_COUNT = 64
# Some segments become runs as they are, and of some the survivors are copied.
ADOPTED_SHARE = 0.3
_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 64 << 20


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that grows after some fifty streams, segments that soon become runs, merges that all
    go on beside other upkeep, and streams that soon leave memory, and come back."""
    monkeypatch.setattr(sealing, "ADOPTED_SHARE", ADOPTED_SHARE)
    monkeypatch.setattr(upkeep, "LONG_MERGE_SEGMENTS", 0)
    monkeypatch.setattr(residents, "IDLE_STREAMS_MAX", 3)
    monkeypatch.setattr(store, "SWEEP_PER_BATCH", 1)
    monkeypatch.setattr(table, "CAPACITY_MIN", SLOT_COUNT)
    monkeypatch.setattr(opening, "CAPACITY_MIN", SLOT_COUNT)


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is room: for tests that ask nothing of the disk but to be a folder."""
    if (
        os.access(_MEMORY, os.W_OK)
        and _MEMORY.is_dir()
        and shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN
    ):
        with TemporaryDirectory(prefix="syncline-", dir=_MEMORY) as folder:
            yield Path(folder)
    else:
        yield tmp_path
