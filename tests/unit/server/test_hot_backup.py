"""A backup while the router serves: on a thread, beside upkeep, and tidy if nobody waits for it."""

import json
import random
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from syncline.errors import ForeignFolderError, MalformedMessageError, RefusedError, StoreFullError
from syncline.server import hot_backup
from syncline.server.hot_backup import HotBackup
from syncline.storage.base import StreamKind, commit
from syncline.storage.copies import check_copy, read_manifest
from syncline.storage.files import DiskFiles, File
from syncline.storage.journal.store import JournalStore
from syncline.storage.log.store import LogStore
from syncline.storage.options import StoreOptions
from syncline.storage.records.base import commit as commit_records
from syncline.storage.records.sqlite import SqliteRecords
from syncline.testing.files import SimulatedFiles
from syncline.values.ids import StreamId
from syncline.values.limits import segment_bytes_min
from syncline.values.queue_records import QueueMode, QueueRecord

STREAM = StreamId(bytes(range(24)))
RECORD = QueueRecord(
    StreamId(bytes(range(1, 25))), (b"key",), bytes(32), bytes(range(2, 26)), QueueMode.MESSAGING
)


class WatchedFiles(SimulatedFiles):
    """Notes on which thread files of the copy are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        if path.startswith("/copy"):
            self.threads.add(threading.get_ident())
        return super().open(path, create=create, writable=writable)


class Subject:
    def __init__(self) -> None:
        self.files = WatchedFiles()
        self.files.make_folder("/data")
        self.store = self.opened("/data")
        self.store.create(STREAM, StreamKind.QUEUE, 0, 1)
        for _ in range(200):
            self.store.append(STREAM, bytes(1_000), 1)
            commit(self.store)

    def opened(self, folder: str) -> LogStore:
        options = StoreOptions(segment_bytes=segment_bytes_min)
        chance = random.Random(5).randbytes
        return LogStore.open(folder, self.files, options, now_ms=1, random_bytes=chance)

    def backup(self) -> AsyncGenerator[bytes]:
        return HotBackup(self.store, self.files, "/data", lambda: 1).run("/copy")

    def copied_seqs(self) -> Sequence[int]:
        copy = self.opened("/copy")
        found = [entry.seq for entry in copy.read(STREAM, 1, 1_000, 1 << 20)]
        assert not copy.damage()
        copy.close()
        return found


@pytest.fixture
def subject() -> Subject:
    return Subject()


async def test_no_file_of_the_copy_is_touched_by_the_loop(subject: Subject) -> None:
    lines = [json.loads(line) async for line in subject.backup()]
    assert lines[-1]["done"]
    assert subject.files.threads
    assert threading.get_ident() not in subject.files.threads
    assert subject.copied_seqs() == list(range(1, 201))


async def test_a_backup_waits_for_the_job_under_way(subject: Subject) -> None:
    store = subject.store
    job = store.take_job()
    assert job is not None
    copied = store.backup("/copy")
    assert [next(copied), next(copied)] == [0, 0]
    store.finish_job(job, store.run_job(job))
    assert sum(copied) > 0
    assert store.take_job() is not None, "upkeep goes on"


async def test_upkeep_goes_on_if_nobody_waits_for_the_end(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_backup, "_PROGRESS_BYTES", 1)
    lines = subject.backup()
    assert "copied_bytes" in json.loads(await anext(lines))
    assert subject.store.take_job() is None, "the files are needed as they are"
    await lines.aclose()
    assert subject.store.take_job() is not None


async def test_of_two_that_were_let_in_at_once_one_runs(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_backup, "_PROGRESS_BYTES", 1)
    backup = HotBackup(subject.store, subject.files, "/data", lambda: 1)
    nobody_reads = backup.run("/never")
    first, second = backup.run("/copy"), backup.run("/other")
    assert "copied_bytes" in json.loads(await anext(first))
    assert ["error" in json.loads(line) async for line in second] == [True]
    with pytest.raises(RefusedError):
        backup.run("/other")
    assert subject.store.take_job() is None, "the files are needed as they are"
    lines = [json.loads(line) async for line in first]
    assert lines[-1]["done"]
    assert subject.copied_seqs() == list(range(1, 201))
    await nobody_reads.aclose()
    assert [json.loads(line) async for line in backup.run("/other")][-1]["done"]


async def test_records_are_copied_with_the_store(tmp_path: Path) -> None:
    files, folder, target = DiskFiles(), tmp_path / "data", tmp_path / "copy"
    options = StoreOptions(segment_bytes=segment_bytes_min)
    chance = random.Random(5).randbytes
    store = LogStore.open(str(folder), files, options, now_ms=1, random_bytes=chance)
    records = SqliteRecords.open(str(folder), files)
    records.create_queue(RECORD)
    commit_records(records)
    records.create_queue(replace(RECORD, recipient_id=STREAM, sender_id=bytes(24)))
    backup = HotBackup(store, files, str(folder), lambda: 1, records)
    lines = [json.loads(line) async for line in backup.run(str(target))]
    assert lines[-1]["done"]
    assert records.queue(STREAM) is not None
    records.close()
    store.close()

    manifest = read_manifest(files, str(target))
    assert "records.sqlite" in {file.path for file in manifest.files}
    list(check_copy(files, str(target), manifest))
    copy = SqliteRecords.open(str(target), files)
    assert copy.queue(RECORD.recipient_id) == RECORD
    assert copy.queue(STREAM) is None, "it was not durable"
    copy.close()


class FullRecords:
    """The disk is full when their turn comes."""

    def backup(self, folder: str) -> Generator[int]:
        raise StoreFullError(folder, "no space left on device")
        yield 0


async def test_half_a_copy_is_no_store(subject: Subject) -> None:
    backup = HotBackup(subject.store, subject.files, "/data", lambda: 1, FullRecords())
    lines = [json.loads(line) async for line in backup.run("/copy")]
    assert "no space left" in lines[-1]["error"]
    with pytest.raises(ForeignFolderError, match="cut short"):
        subject.opened("/copy")


def test_a_store_that_cannot_be_copied_hot_says_what_to_do(tmp_path: Path) -> None:
    files, folder, chance = DiskFiles(), str(tmp_path / "data"), random.Random(5).randbytes
    store = JournalStore.open(folder, files, StoreOptions(), now_ms=1, random_bytes=chance)
    with pytest.raises(RefusedError, match="stop it, then run `syncline backup`"):
        HotBackup(store, files, folder, lambda: 1).run(str(tmp_path / "copy"))
    store.close()


@pytest.mark.parametrize("target", ["/data/copy", "/full", "/file", "/nowhere/copy", "copy"])
def test_a_folder_that_will_not_do_is_the_callers_mistake(subject: Subject, target: str) -> None:
    subject.files.make_folder("/full")
    for path in ("/full/something", "/file"):
        subject.files.open(path, create=True).close()
    with pytest.raises(MalformedMessageError):
        HotBackup(subject.store, subject.files, "/data", lambda: 1).run(target)
