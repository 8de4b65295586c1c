"""Files over files: above, as if they were the real ones; below, nothing changes."""

import errno
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import DeviceError, StoreLockedError
from syncline.storage.files import DiskFiles, File, Files, Lock
from syncline.storage.overlay import OverlayFiles
from syncline.testing.files import SimulatedFiles

NAMES = ["a", "b", "c"]
# Around the borders of the pages that the overlay keeps.
OFFSETS = st.sampled_from([0, 1, 100, 65_535, 65_536, 65_537, 131_072, 200_000])
DATA = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 140_000).map(bytes),
    st.integers(1, 70_000).map(lambda size: b"\x07" * size),
)
CHANGES = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), OFFSETS, DATA),
    st.tuples(st.just("truncate"), st.sampled_from(NAMES), OFFSETS, st.just(b"")),
    st.tuples(st.just("map"), st.sampled_from(NAMES), OFFSETS, st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.integers(0, 2), st.just(b"")),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.just(0), st.just(b"")),
)
Change = tuple[str, str, int, bytes]


def carry_out(files: Files, folder: Path, change: Change) -> None:
    what, name, number, data = change
    path = f"{folder}/{name}"
    if what in {"rename", "remove"}:
        if not files.exists(path):
            return
        if what == "rename":
            files.rename(path, f"{folder}/{NAMES[number]}")
        else:
            files.remove(path)
        return
    file = files.open(path, create=True)
    if what == "write":
        file.write(number, [data[:10], data[10:]])
    elif what == "truncate":
        file.truncate(number)
    elif file.size():
        write_mapped(file, number, data)
    file.close()


def write_mapped(file: File, offset: int, data: bytes) -> None:
    mapped = file.map(writable=True)
    part = slice(offset, offset + len(data))
    if part.stop <= len(mapped):
        mapped[part] = data
    mapped.close()


def contents(files: Files, folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in files.list(str(folder)):
        file = files.open(f"{folder}/{name}", writable=False)
        found[name] = file.read(0, file.size() + 10)
        file.close()
    return found


@given(
    st.dictionaries(st.sampled_from(NAMES), DATA),
    st.lists(CHANGES, max_size=12),
)
def test_an_overlay_behaves_as_the_disk_and_leaves_it_alone(
    start: dict[str, bytes], changes: list[Change]
) -> None:
    with tempfile.TemporaryDirectory() as base:
        real, looked_at = Path(base, "real"), Path(base, "looked at")
        for folder in (real, looked_at):
            folder.mkdir()
            for name, data in start.items():
                (folder / name).write_bytes(data)
        disk = DiskFiles()
        overlay = OverlayFiles(disk)
        for change in changes:
            carry_out(disk, real, change)
            carry_out(overlay, looked_at, change)
            assert contents(overlay, looked_at) == contents(disk, real)
        overlay.close()
        assert contents(disk, looked_at) == start


class _UnwritableFiles(SimulatedFiles):
    def lock(self, path: str) -> Lock:
        denied = OSError(errno.EROFS, "read-only file system")
        raise DeviceError(path, "locking", "read-only file system") from denied


def test_a_folder_that_may_only_be_read_can_be_looked_at() -> None:
    below = _UnwritableFiles()
    below.make_folder("/d")
    below.open("/d/LOCK", create=True).close()
    OverlayFiles(below).lock("/d/LOCK").release()


def test_a_folder_that_somebody_works_on_is_not_looked_at() -> None:
    below = SimulatedFiles()
    below.make_folder("/d")
    below.lock("/d/LOCK")
    with pytest.raises(StoreLockedError):
        OverlayFiles(below).lock("/d/LOCK")
