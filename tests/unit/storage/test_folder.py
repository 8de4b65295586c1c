"""Claiming a data folder: whose it is, which format, one process at a time."""

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from syncline.errors import (
    CorruptionError,
    DeviceError,
    ForeignFolderError,
    NewerFormatError,
    StorageError,
    StoreLockedError,
)
from syncline.storage.files import DiskFiles, File, Lock
from syncline.storage.folder import STORE_ID_BYTES, FolderFormat, claim_folder, read_format

FILES = DiskFiles()
OTHER_ID = b"\x01" * STORE_ID_BYTES


def claim(folder: Path, kind: str = "log", version: int = 1) -> tuple[bytes, Lock]:
    return claim_folder(str(folder), FILES, kind, version, os.urandom)


def is_locked(folder: Path) -> bool:
    try:
        FILES.lock(str(folder / "LOCK")).release()
    except StoreLockedError:
        return True
    return False


def write_format(folder: Path, line: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "FORMAT").write_bytes(line)


def test_a_missing_folder_is_made_and_claimed(tmp_path: Path) -> None:
    store_id, lock = claim(tmp_path / "data")
    assert len(store_id) == STORE_ID_BYTES
    expected = f"syncline log 1 {store_id.hex()}\n"
    assert (tmp_path / "data" / "FORMAT").read_text() == expected
    assert sorted(os.listdir(tmp_path / "data")) == ["FORMAT", "LOCK"]
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0, "messages are nobody else's business"
    lock.release()


def test_an_empty_folder_is_claimed(tmp_path: Path) -> None:
    _, lock = claim(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


def test_a_folder_keeps_its_id(tmp_path: Path) -> None:
    first, lock = claim(tmp_path)
    lock.release()
    second, lock = claim(tmp_path)
    lock.release()
    assert first == second


def test_two_folders_have_two_ids(tmp_path: Path) -> None:
    first, first_lock = claim(tmp_path / "a")
    second, second_lock = claim(tmp_path / "b")
    assert first != second
    first_lock.release()
    second_lock.release()


@pytest.mark.parametrize("name", ["data/", "data//", "."])
def test_the_folder_may_be_written_with_slashes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, lock = claim_folder(name, FILES, "log", 1, os.urandom)
    assert Path(name, "FORMAT").exists()
    lock.release()


def test_a_start_that_was_cut_short_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_bytes(b"12345")
    (tmp_path / "FORMAT.new").write_bytes(
        b"syncline log 1 abcdef and more than a whole line would be"
    )
    store_id, lock = claim(tmp_path)
    assert read_format(str(tmp_path), FILES) == FolderFormat("log", 1, store_id)
    assert sorted(os.listdir(tmp_path)) == ["FORMAT", "LOCK"]
    lock.release()


def test_a_missing_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="make that first") as refused:
        claim(tmp_path / "no" / "data")
    assert str(tmp_path / "no") in str(refused.value)
    assert os.listdir(tmp_path) == []


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"text")
    with pytest.raises(ForeignFolderError, match="it is a file"):
        claim(tmp_path / "data")
    with pytest.raises(StorageError, match="make that first"):
        claim(tmp_path / "data" / "below")
    assert (tmp_path / "data").read_bytes() == b"text"


def test_a_folder_of_something_else_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(ForeignFolderError, match=r"photo\.jpg"):
        claim(tmp_path)
    assert os.listdir(tmp_path) == ["photo.jpg"]


def test_a_folder_of_another_kind_is_refused_and_let_go_of(tmp_path: Path) -> None:
    _, lock = claim(tmp_path, "journal")
    lock.release()
    with pytest.raises(ForeignFolderError, match="holds a journal store, not a log store"):
        claim(tmp_path, "log")
    assert not is_locked(tmp_path)
    claim(tmp_path, "journal")[1].release()


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    _, lock = claim(tmp_path, version=3)
    lock.release()
    with pytest.raises(NewerFormatError) as refused:
        claim(tmp_path, version=2)
    assert (refused.value.found, refused.value.known) == (3, 2)
    assert not is_locked(tmp_path)


def test_an_older_format_is_opened_and_keeps_its_line(tmp_path: Path) -> None:
    store_id, lock = claim(tmp_path, version=1)
    lock.release()
    found, lock = claim(tmp_path, version=2)
    lock.release()
    assert found == store_id
    assert read_format(str(tmp_path), FILES) == FolderFormat("log", 1, store_id)


def test_the_format_of_something_else_is_foreign(tmp_path: Path) -> None:
    write_format(tmp_path, b"other tool 1\n")
    with pytest.raises(ForeignFolderError, match="not written by Syncline"):
        claim(tmp_path)
    assert os.listdir(tmp_path) == ["FORMAT"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"syncline",
        b"syncline log 1\n",
        b"syncline log 1 " + b"01" * 16,
        b"syncline log 1 " + b"01" * 15 + b"\n",
        b"syncline log 1 " + b"01" * 15 + b"0\n",
        b"syncline log 1 " + b"zz" * 16 + b"\n",
        b"syncline log one " + b"01" * 16 + b"\n",
        b"syncline log 0 " + b"01" * 16 + b"\n",
        b"syncline log -1 " + b"01" * 16 + b"\n",
        b"syncline log 01 " + b"01" * 16 + b"\n",
        b"syncline log 1 " + b"01" * 16 + b" more\n",
        b"syncline log 1 " + b"01" * 16 + b"\nmore",
        b"syncline  log 1 " + b"01" * 16 + b"\n",
        b"syncline log 1 " + b"01" * 16 + b"\n" + b" " * 10_000,
    ],
)
def test_a_damaged_format_is_reported_and_left(tmp_path: Path, line: bytes) -> None:
    write_format(tmp_path, line)
    with pytest.raises(CorruptionError) as refused:
        claim(tmp_path)
    assert refused.value.file == str(tmp_path / "FORMAT")
    assert (tmp_path / "FORMAT").read_bytes() == line
    assert not is_locked(tmp_path)


def test_every_cut_and_flip_of_the_line_is_noticed(tmp_path: Path) -> None:
    line = FolderFormat("log", 1, OTHER_ID).line()
    for cut in range(len(line)):
        write_format(tmp_path, line[:cut])
        with pytest.raises(CorruptionError if cut == 0 or cut >= 8 else StorageError):
            read_format(str(tmp_path), FILES)
    # From the version to the newline there is no letter that may change unseen, the id excepted.
    for place in (*range(9), 12, 14, len(line) - 1):
        write_format(tmp_path, line[:place] + b"\x7f" + line[place + 1 :])
        with pytest.raises(StorageError):
            read_format(str(tmp_path), FILES)


def test_a_second_claim_is_refused_while_the_first_holds(tmp_path: Path) -> None:
    store_id, lock = claim(tmp_path)
    with pytest.raises(StoreLockedError) as refused:
        claim(tmp_path)
    assert refused.value.folder == str(tmp_path)
    assert refused.value.holder == str(os.getpid())
    lock.release()
    again, lock = claim(tmp_path)
    assert again == store_id
    lock.release()


def test_a_store_made_while_waiting_for_the_lock_is_found(tmp_path: Path) -> None:
    class OvertakenFiles(DiskFiles):
        """Another process claims the folder between the first look and the lock."""

        def lock(self, path: str) -> Lock:
            write_format(tmp_path, FolderFormat("log", 1, OTHER_ID).line())
            return super().lock(path)

    store_id, lock = claim_folder(str(tmp_path), OvertakenFiles(), "log", 1, os.urandom)
    lock.release()
    assert store_id == OTHER_ID


def test_an_unwritable_folder_is_explained(tmp_path: Path) -> None:
    for number, call in enumerate(("make_folder", "lock", "open", "list")):
        folder = tmp_path / str(number)
        if call != "make_folder":
            folder.mkdir()
        with pytest.raises(StorageError, match="right to read and write it") as refused:
            claim_folder(str(folder), files_failing_in(call, errno.EACCES), "log", 1, os.urandom)
        assert not isinstance(refused.value, DeviceError)
        assert not folder.exists() or not is_locked(folder)


@pytest.fixture
def common_user() -> Iterator[Path]:
    """A folder to work in, with the rights of somebody who is not the superuser."""
    superuser = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        if superuser:
            os.seteuid(65534)
        else:
            folder.chmod(0o555)
        try:
            yield folder
        finally:
            if superuser:
                os.seteuid(0)
            folder.chmod(0o755)


def test_a_folder_without_the_right_to_write_is_explained(common_user: Path) -> None:
    for folder in (common_user, common_user / "data"):
        with pytest.raises(StorageError, match="Permission denied; give this user the right"):
            claim(folder)
    assert os.listdir(common_user) == []


def test_a_folder_without_the_right_to_look_is_explained(common_user: Path) -> None:
    inner = common_user / "private"
    superuser = os.getuid() == 0
    if superuser:
        os.seteuid(0)
    else:
        common_user.chmod(0o755)
    inner.mkdir(mode=0o700 if superuser else 0o000)
    if superuser:
        os.seteuid(65534)
    for folder in (inner, inner / "data"):
        with pytest.raises(StorageError, match="Permission denied; give this user the right"):
            claim(folder)


def test_a_failing_device_is_not_called_a_matter_of_rights(tmp_path: Path) -> None:
    with pytest.raises(DeviceError):
        claim_folder(str(tmp_path), files_failing_in("open", errno.EIO), "log", 1, os.urandom)
    assert not is_locked(tmp_path)


def test_the_format_is_durable_before_the_claim_is_made(tmp_path: Path) -> None:
    calls: list[str] = []

    class ToldFile:
        def __init__(self, file: File) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Callable[..., object]:
            if name in {"write", "sync"}:
                calls.append(f"{name} {Path(self._file.path).name}")
            found: Callable[..., object] = getattr(self._file, name)
            return found

    class ToldFiles(DiskFiles):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
            return ToldFile(super().open(path, create=create, writable=writable))  # type: ignore[return-value]

        def rename(self, source: str, target: str) -> None:
            calls.append(f"rename {Path(source).name} {Path(target).name}")
            super().rename(source, target)

        def sync_folder(self, path: str) -> None:
            calls.append(f"sync_folder {Path(path).name}")
            super().sync_folder(path)

    parent = tmp_path / "parent"
    parent.mkdir()
    _, lock = claim_folder(str(parent / "data"), ToldFiles(), "log", 1, os.urandom)
    lock.release()
    assert calls == [
        "sync_folder parent",
        "write FORMAT.new",
        "sync FORMAT.new",
        "rename FORMAT.new FORMAT",
        "sync_folder data",
    ]


def files_failing_in(call: str, code: int) -> DiskFiles:
    """Real files of which one call is refused by the system."""

    def refuse(*_: object, **__: object) -> None:
        cause = OSError(code, os.strerror(code))
        if call in {"make_folder", "open"}:
            raise DeviceError("path", call, cause.strerror or "") from cause
        raise cause

    files = DiskFiles()
    setattr(files, call, refuse)
    return files
