"""The real file system behind its door: whole writes, honest errors, one holder of a lock."""

import errno
import fcntl
import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from syncline.errors import DeviceError, StoreFullError, StoreLockedError
from syncline.storage.files import DiskFiles, File

FILES = DiskFiles()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    opened = FILES.open(str(tmp_path / "file"), create=True)
    yield opened
    opened.close()


def failing(code: int) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


# Reading and writing.


def test_what_is_written_is_read_at_its_offset(file: File) -> None:
    file.write(5, [b"hello ", bytearray(b"to "), memoryview(b"you")])
    assert file.size() == 17
    assert file.read(0, 100) == b"\0" * 5 + b"hello to you"
    assert file.read(5, 5) == b"hello"
    assert file.read(14, 100) == b"you", "fewer bytes only at the end of the file"
    assert file.read(17, 1) == file.read(1_000, 1) == b""


def test_writing_over_replaces_only_what_is_covered(file: File) -> None:
    file.write(0, [b"0123456789"])
    file.write(3, [b"abc"])
    assert file.read(0, 10) == b"012abc6789"


def test_more_pieces_than_one_call_takes_are_written_in_order(file: File) -> None:
    pieces = [b"%04d" % number for number in range(3_000)]
    file.write(7, pieces)
    assert file.read(7, 12_000) == b"".join(pieces)
    assert file.size() == 12_007


def blocks(*contents: bytes) -> list[memoryview]:
    """Page-aligned memory, as it is needed to write past the page cache."""
    return [memoryview(pages(content)) for content in contents]


def pages(content: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(content))
    memory.write(content)
    return memory


WriteBlocks = Callable[[File, int, list[memoryview]], None]


@pytest.fixture(params=["write_blocks", "write_durably"])
def write(request: pytest.FixtureRequest) -> WriteBlocks:
    """Both ways to write whole blocks."""
    name: str = request.param
    return lambda file, offset, blocks: getattr(file, name)(offset, blocks)


def test_whole_blocks_are_written_like_anything_else(file: File, write: WriteBlocks) -> None:
    file.write(0, [b"a" * 12_288])
    write(file, 4_096, blocks(b"b" * 4_096, b"c" * 8_192))
    assert file.read(0, 20_000) == b"a" * 4_096 + b"b" * 4_096 + b"c" * 8_192
    # What was in the page cache is not what is read afterwards.
    file.write(4_096, [b"d" * 10])
    write(file, 8_192, blocks(b"e" * 4_096))
    assert file.read(4_090, 20) == b"a" * 6 + b"d" * 10 + b"b" * 4
    assert file.read(8_190, 4) == b"bbee"


@pytest.mark.parametrize(("offset", "length"), [(512 * 3 + 1, 4_096), (4_096, 4_097), (7, 11)])
def test_what_is_no_whole_block_is_written_all_the_same(
    file: File, write: WriteBlocks, offset: int, length: int
) -> None:
    write(file, offset, blocks(b"x" * length))
    write(file, 0, blocks(b"y" * 4_096))
    expected = bytearray(max(4_096, offset + length))
    expected[offset : offset + length] = b"x" * length
    expected[:4_096] = b"y" * 4_096
    assert file.read(0, 20_000) == expected


def test_blocks_are_written_where_nothing_goes_past_the_cache(
    file: File, write: WriteBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", failing(errno.EINVAL))
    write(file, 4_096, blocks(b"b" * 4_096))
    monkeypatch.undo()
    assert file.read(4_096, 5_000) == b"b" * 4_096


def test_a_failed_write_of_blocks_is_told(
    file: File, write: WriteBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, 0, blocks(b"a" * 4_096))
    for code, error in ((errno.EIO, DeviceError), (errno.ENOSPC, StoreFullError)):
        monkeypatch.setattr(os, "pwritev", failing(code))
        with pytest.raises(error):
            write(file, 4_096, blocks(b"b" * 4_096))


def test_blocks_of_which_only_some_were_taken_are_written_again_as_a_whole(
    file: File, write: WriteBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev
    taken: list[int] = []

    def short(descriptor: int, pieces: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        taken.append(1)
        pieces = [pieces[0][:4_096]] if len(taken) == 1 else pieces
        return pwritev(descriptor, pieces, offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    write(file, 0, blocks(b"a" * 8_192))
    assert file.read(0, 9_000) == b"a" * 8_192
    assert len(taken) == 2


def with_calls_told(monkeypatch: pytest.MonkeyPatch, refused: int = 0) -> list[str]:
    """What is called from now on; writes that are to be durable are refused with this error."""
    told: list[str] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def telling_write(
        descriptor: int, pieces: Sequence[memoryview], offset: int, flags: int = 0
    ) -> int:
        is_durable = bool(flags & os.RWF_DSYNC)
        told.append("durable write" if is_durable else "write")
        if is_durable and refused:
            raise OSError(refused, os.strerror(refused))
        return pwritev(descriptor, pieces, offset, flags)

    def telling_sync(descriptor: int) -> None:
        told.append("sync")
        fdatasync(descriptor)

    monkeypatch.setattr(os, "pwritev", telling_write)
    monkeypatch.setattr(os, "fdatasync", telling_sync)
    return told


def test_blocks_are_durable_by_one_call(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    told = with_calls_told(monkeypatch)
    file.write_durably(0, blocks(b"a" * 4_096))
    assert told == ["durable write"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_where_one_call_cannot_make_blocks_durable_two_do(
    file: File, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    told = with_calls_told(monkeypatch, refused=code)
    file.write_durably(0, blocks(b"a" * 4_096))
    file.write_durably(4_096, blocks(b"b" * 4_096))
    assert told == ["durable write", "write", "sync", "write", "sync"]
    assert file.read(0, 9_000) == b"a" * 4_096 + b"b" * 4_096


def test_blocks_of_which_only_some_were_taken_are_synced_when_written_again(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = with_calls_told(monkeypatch)
    telling_write = os.pwritev

    def short(descriptor: int, pieces: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        written = telling_write(descriptor, pieces, offset, flags)
        return min(written, 4_096) if flags else written

    monkeypatch.setattr(os, "pwritev", short)
    file.write_durably(0, blocks(b"a" * 8_192))
    assert told == ["durable write", "write", "sync"]


def test_room_is_reserved_as_zeros(file: File, tmp_path: Path) -> None:
    file.write(0, [b"abc"])
    file.reserve(100_000)
    assert file.size() == 100_000
    assert file.read(0, 200_000) == b"abc" + bytes(99_997)
    assert os.stat(file.path).st_blocks * 512 >= 100_000
    file.reserve(10)
    assert file.size() == 100_000


def test_room_that_is_not_there_is_told(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, error in ((errno.EIO, DeviceError), (errno.ENOSPC, StoreFullError)):
        monkeypatch.setattr(os, "posix_fallocate", failing(code))
        with pytest.raises(error):
            file.reserve(4_096)


def test_reads_that_are_expected_are_advice(file: File) -> None:
    file.write(0, [b"abc"])
    file.expect_reads(0, 1 << 20)
    assert file.read(0, 10) == b"abc"


def test_a_file_with_two_names_is_one_file(tmp_path: Path, file: File) -> None:
    other = str(tmp_path / "other")
    assert not FILES.is_linked(file.path)
    assert FILES.link(file.path, other)
    assert FILES.is_linked(file.path)
    assert FILES.is_linked(other)
    file.write(0, [b"same"])
    assert Path(other).read_bytes() == b"same"
    FILES.remove(file.path)
    assert not FILES.is_linked(other)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EMLINK])
def test_a_file_system_without_links_says_so(
    file: File, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code))
    assert not FILES.link(file.path, f"{file.path}.other")


def test_a_failed_link_is_told(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, error in ((errno.EIO, DeviceError), (errno.ENOSPC, StoreFullError)):
        monkeypatch.setattr(os, "link", failing(code))
        with pytest.raises(error):
            FILES.link(file.path, f"{file.path}.other")


def test_one_at_a_time_has_a_claim(file: File) -> None:
    other = FILES.open(file.path)
    assert other.claim()
    assert not file.claim()
    other.close()
    assert file.claim()


def test_a_file_that_is_closed_twice_closes_no_other(file: File, tmp_path: Path) -> None:
    file.write_blocks(0, blocks(b"a" * 4_096))
    file.close()
    others = [DiskFiles().open(str(tmp_path / name), create=True) for name in "bc"]
    file.close()
    for other in others:
        other.write(0, [b"still open"])
        other.close()
    with pytest.raises(DeviceError):
        file.read(0, 1)


def test_writing_nothing_is_fine(file: File) -> None:
    file.write(0, [])
    file.write(0, [b""])
    assert file.size() == 0


def test_a_short_write_is_continued(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_pwritev, whole_pwrite = os.pwritev, os.pwrite
    calls: list[int] = []

    def short_pwritev(descriptor: int, pieces: Sequence[bytes], offset: int) -> int:
        calls.append(offset)
        return whole_pwritev(descriptor, [b"".join(pieces)[:10]], offset)

    def short_pwrite(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        return whole_pwrite(descriptor, data[:7], offset)

    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", short_pwrite)
    expected = b"".join(b"%03d" % number for number in range(10))
    file.write(100, [b"%03d" % number for number in range(10)])
    assert file.read(100, 100) == expected
    assert calls == [100, 110, 117, 124]


def test_a_short_read_is_continued(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(0, [b"0123456789" * 3])
    whole_pread = os.pread

    def short_pread(descriptor: int, length: int, offset: int) -> bytes:
        return whole_pread(descriptor, min(length, 4), offset)

    monkeypatch.setattr(os, "pread", short_pread)
    assert file.read(5, 20) == (b"0123456789" * 3)[5:25]
    assert file.read(25, 20) == b"56789"


def test_a_full_disk_is_told_from_a_failing_one(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        monkeypatch.setattr(os, "pwritev", failing(code))
        with pytest.raises(StoreFullError) as full:
            file.write(0, [b"x"])
        assert full.value.path == file.path
        assert full.value.reason == os.strerror(code).lower()
    monkeypatch.setattr(os, "pwritev", failing(errno.EIO))
    with pytest.raises(DeviceError) as failed:
        file.write(0, [b"x"])
    assert (failed.value.path, failed.value.operation) == (file.path, "writing")
    assert failed.value.reason == os.strerror(errno.EIO).lower()


# The limit on file size gives what a nearly full disk gives: a short write, then the error.
SIZE_LIMITED = """
import resource, signal, sys
from syncline.errors import StoreFullError
from syncline.storage.files import DiskFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
file = DiskFiles().open(sys.argv[1], create=True)
try:
    file.write(4_000, [b"a" * 3_000, b"b" * 5_000])
except StoreFullError as error:
    print(type(error).__name__, file.size(), error.reason)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.write(4_000, [b"a" * 3_000, b"b" * 5_000])
print(file.size())
"""


def run_python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        capture_output=True,
        check=True,
        env=environment,
        text=True,
        timeout=15,
    ).stdout


def test_a_real_short_write_ends_in_no_room_and_goes_on_when_there_is(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    printed = run_python(SIZE_LIMITED, str(tmp_path / "file")).splitlines()
    assert printed == [f"StoreFullError 10000 {os.strerror(errno.EFBIG).lower()}", "12000"]
    assert (tmp_path / "file").read_bytes() == b"\0" * 4_000 + b"a" * 3_000 + b"b" * 5_000


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_is_fatal_whatever_the_reason(
    file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for call in ("fdatasync", "fsync"):
        monkeypatch.setattr(os, call, failing(code))
    with pytest.raises(DeviceError) as failed:
        file.sync()
    assert (failed.value.path, failed.value.operation) == (file.path, "syncing")
    with pytest.raises(DeviceError) as failed:
        FILES.sync_folder(str(tmp_path))
    assert (failed.value.path, failed.value.operation) == (str(tmp_path), "syncing")
    assert not failed.value.retriable


def test_a_failed_read_is_not_an_end_of_file(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(0, [b"x"])
    monkeypatch.setattr(os, "pread", failing(errno.EIO))
    with pytest.raises(DeviceError) as failed:
        file.read(0, 1)
    assert failed.value.operation == "reading"


def test_a_file_is_cut_and_grown(file: File) -> None:
    file.write(0, [b"0123456789"])
    file.truncate(4)
    assert file.read(0, 100) == b"0123"
    file.truncate(6)
    assert file.read(0, 100) == b"0123\0\0"
    file.sync()
    file.forget_cached(0, 6)
    assert file.read(0, 100) == b"0123\0\0"


def test_a_mapped_file_shares_its_bytes(file: File) -> None:
    file.write(0, [bytes(8192)])
    mapped = file.map(writable=True)
    assert len(mapped) == 8192
    mapped[10:14] = b"here"
    assert file.read(8, 8) == b"\0\0here\0\0"
    file.write(4096, [b"there"])
    assert mapped[4096:4101] == b"there"
    view = mapped.view()
    assert bytes(view[10:14]) == b"here"
    view.release()
    mapped.close()


def test_a_read_only_map_cannot_be_written(file: File) -> None:
    file.write(0, [bytes(4096)])
    mapped = file.map(writable=False)
    with pytest.raises(TypeError):
        mapped[0:1] = b"x"
    mapped.close()


# Names.


def test_opening_makes_a_file_only_when_asked_to(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        FILES.open(path)
    made = FILES.open(path, create=True)
    made.write(0, [b"kept"])
    made.close()
    again = FILES.open(path, create=True)
    assert again.read(0, 10) == b"kept"
    again.close()
    assert Path(path).stat().st_mode & 0o077 == 0


def test_a_file_opened_for_reading_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    opened = FILES.open(str(tmp_path / "file"), writable=False)
    with pytest.raises(DeviceError):
        opened.write(0, [b"lost"])
    assert opened.read(0, 10) == b"kept"
    opened.close()


def test_a_folder_cannot_be_opened_as_a_file(tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as failed:
        FILES.open(str(tmp_path))
    assert failed.value.operation == "opening"


def test_folders_are_made_listed_and_removed(tmp_path: Path) -> None:
    folder = str(tmp_path / "folder")
    assert not FILES.exists(folder)
    FILES.make_folder(folder)
    FILES.make_folder(folder)
    assert FILES.exists(folder)
    assert FILES.is_folder(folder)
    for name in ("b", "a", "c"):
        FILES.open(f"{folder}/{name}", create=True).close()
    assert FILES.list(folder) == ["a", "b", "c"]
    assert not FILES.is_folder(f"{folder}/a")
    FILES.sync_folder(folder)
    with pytest.raises(DeviceError):
        FILES.remove_folder(folder)
    for name in ("a", "b", "c"):
        FILES.remove(f"{folder}/{name}")
    FILES.remove_folder(folder)
    assert not FILES.exists(folder)
    with pytest.raises(FileNotFoundError):
        FILES.list(folder)


def test_renaming_replaces_the_target(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    FILES.rename(str(tmp_path / "new"), str(tmp_path / "old"))
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"


def test_what_is_missing_cannot_be_renamed_or_removed(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(DeviceError, match="renaming"):
        FILES.rename(missing, missing)
    with pytest.raises(DeviceError, match="removing"):
        FILES.remove(missing)
    with pytest.raises(DeviceError, match="removing"):
        FILES.remove_folder(missing)
    with pytest.raises(DeviceError, match="making the folder"):
        FILES.make_folder(f"{missing}/below")


def test_the_free_room_is_told(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert 0 <= FILES.free_bytes(str(tmp_path)) <= found.f_blocks * found.f_frsize


# The lock.

HOLDING = """
import sys
import time
from syncline.storage.files import DiskFiles
lock = DiskFiles().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_lock_of_another_process_names_it_and_ends_with_it(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, path],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreLockedError) as refused:
            FILES.lock(path)
        assert refused.value.folder == str(tmp_path)
        assert refused.value.holder == str(holder.pid)
    finally:
        holder.kill()
        holder.communicate(timeout=15)
    lock = FILES.lock(path)
    assert Path(path).read_text() == str(os.getpid()), "nothing is left of the killed one"
    lock.release()


def test_a_lock_is_held_once_in_a_process_too(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    Path(path).write_text("123456789012345")
    lock = FILES.lock(path)
    with pytest.raises(StoreLockedError) as refused:
        FILES.lock(path)
    assert refused.value.holder == str(os.getpid()), "nothing is left of an earlier holder"
    lock.release()
    FILES.lock(path).release()


def lock_left_by(path: str, holder: str) -> int:
    """As a process has it that its killed parent was about to start."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, holder.encode(), 0)
    return descriptor


def gone_process() -> str:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait(60)
    return str(ended.pid)


def test_a_lock_whose_holder_is_gone_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "LOCK")
    left = lock_left_by(path, gone_process())
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            os.close(left)

    monkeypatch.setattr(time, "sleep", pause)
    FILES.lock(path).release()
    assert len(pauses) == 3
    assert Path(path).read_text() == str(os.getpid())


def test_a_lock_that_nobody_lets_go_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, holder = str(tmp_path / "LOCK"), gone_process()
    left = lock_left_by(path, holder)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(StoreLockedError) as refused:
        FILES.lock(path)
    assert refused.value.holder == holder
    assert 1 <= sum(pauses) <= 5
    os.close(left)


@pytest.mark.parametrize("holder", ["", "1", "?", "99999999999999999999"])
def test_a_lock_of_somebody_who_may_live_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    path = str(tmp_path / "LOCK")
    left = lock_left_by(path, holder)
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(StoreLockedError) as refused:
        FILES.lock(path)
    assert refused.value.holder == holder
    assert pauses == []
    os.close(left)


def test_a_lock_needs_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "LOCK")
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    lock = FILES.lock(path)
    with pytest.raises(StoreLockedError) as refused:
        FILES.lock(path)
    assert refused.value.holder == ""
    lock.release()


def test_a_lock_where_no_file_can_be_made_fails_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as failed:
        FILES.lock(str(tmp_path / "missing" / "LOCK"))
    assert failed.value.operation == "locking"
