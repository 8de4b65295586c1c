"""The simulated file system and the real one answer alike, as long as nothing crashes."""

from pathlib import Path

import pytest

from syncline.errors import DeviceError, StoreLockedError
from syncline.storage.files import DiskFiles, Files
from syncline.testing.files import SimulatedFiles


@pytest.fixture(params=["disk", "simulated"])
def files(request: pytest.FixtureRequest) -> Files:
    return DiskFiles() if request.param == "disk" else SimulatedFiles()


@pytest.fixture
def folder(files: Files, tmp_path: Path) -> str:
    if isinstance(files, SimulatedFiles):
        files.make_folder("/data")
        return "/data"
    return str(tmp_path)


def test_what_is_written_is_read(files: Files, folder: str) -> None:
    file = files.open(f"{folder}/a", create=True)
    file.write(0, [b"one", bytearray(b"two"), memoryview(b"three")])
    assert file.read(0, 100) == b"onetwothree"
    assert file.read(3, 3) == b"two"
    assert file.read(50, 3) == b""
    file.write(13, [b"!"])
    assert file.read(9, 10) == b"ee\0\0!"
    assert file.size() == 14
    file.close()


def test_a_truncated_file_grows_with_zeros(files: Files, folder: str) -> None:
    file = files.open(f"{folder}/a", create=True)
    file.write(0, [b"abcdef"])
    file.truncate(2)
    file.truncate(4)
    assert file.read(0, 10) == b"ab\0\0"
    file.sync()
    assert file.size() == 4
    file.close()


def test_names_are_made_listed_renamed_and_removed(files: Files, folder: str) -> None:
    files.make_folder(f"{folder}/inner")
    files.make_folder(f"{folder}/inner")
    files.open(f"{folder}/b", create=True).close()
    with_a = files.open(f"{folder}/a", create=True)
    with_a.write(0, [b"a"])
    assert files.list(folder) == ["a", "b", "inner"]
    assert files.exists(f"{folder}/a")
    assert files.is_folder(f"{folder}/inner")
    assert not files.is_folder(f"{folder}/a")
    files.rename(f"{folder}/a", f"{folder}/b")
    assert files.list(folder) == ["b", "inner"]
    with_b = files.open(f"{folder}/b", create=True)
    assert with_b.read(0, 9) == b"a"
    with_b.close()
    files.remove(f"{folder}/b")
    files.sync_folder(folder)
    assert with_a.read(0, 9) == b"a", "an open file outlives its name"
    with_a.close()
    files.remove_folder(f"{folder}/inner")
    assert files.list(folder) == []


def test_what_is_missing_is_said(files: Files, folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/none/a", create=True)
    with pytest.raises(FileNotFoundError):
        files.list(f"{folder}/none")
    with pytest.raises(FileNotFoundError):
        files.sync_folder(f"{folder}/none")
    with pytest.raises(DeviceError):
        files.rename(f"{folder}/a", f"{folder}/b")
    with pytest.raises(DeviceError):
        files.remove(f"{folder}/a")
    with pytest.raises(DeviceError):
        files.make_folder(f"{folder}/none/inner")
    assert not files.exists(f"{folder}/none/a")


def test_a_folder_is_no_file_and_a_full_folder_stays(files: Files, folder: str) -> None:
    files.make_folder(f"{folder}/inner")
    files.open(f"{folder}/inner/a", create=True).close()
    with pytest.raises(DeviceError):
        files.open(f"{folder}/inner")
    with pytest.raises(DeviceError):
        files.remove_folder(f"{folder}/inner")
    with pytest.raises(DeviceError):
        files.remove(f"{folder}/inner")


def test_a_file_opened_for_reading_is_not_written(files: Files, folder: str) -> None:
    files.open(f"{folder}/a", create=True).close()
    file = files.open(f"{folder}/a", writable=False)
    with pytest.raises(DeviceError):
        file.write(0, [b"x"])
    file.close()


def test_a_map_and_its_file_show_the_same_bytes(files: Files, folder: str) -> None:
    file = files.open(f"{folder}/a", create=True)
    file.write(0, [bytes(8192)])
    mapped = file.map(writable=True)
    assert len(mapped) == 8192
    mapped[4:8] = b"abcd"
    assert file.read(0, 10) == b"\0\0\0\0abcd\0\0"
    file.write(6, [b"XY"])
    assert mapped[4:8] == b"abXY"
    file.truncate(16384)
    file.write(0, [b"grown"])
    assert mapped[:5] == b"grown"
    view = mapped.view()
    view[0:1] = b"G"
    assert file.read(0, 5) == b"Grown"
    with pytest.raises(BufferError):
        mapped.close()
    view.release()
    mapped.close()
    file.close()


def test_a_map_for_reading_is_not_written(files: Files, folder: str) -> None:
    file = files.open(f"{folder}/a", create=True)
    file.write(0, [b"abc"])
    mapped = file.map(writable=False)
    with pytest.raises(TypeError):
        mapped[0:1] = b"x"
    assert mapped.view().readonly
    assert mapped[0:3] == b"abc"
    mapped.close()
    file.close()


def test_a_lock_is_held_by_one(files: Files, folder: str) -> None:
    lock = files.lock(f"{folder}/LOCK")
    with pytest.raises(StoreLockedError):
        files.lock(f"{folder}/LOCK")
    lock.release()
    files.lock(f"{folder}/LOCK").release()
    assert files.list(folder) == ["LOCK"]


def test_there_is_room(files: Files, folder: str) -> None:
    assert files.free_bytes(folder) > 0
