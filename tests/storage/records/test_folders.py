"""Records in a data folder beside a store: both are opened, copied and restored together."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from syncline.storage.base import Store, StreamKind, commit, run_jobs
from syncline.storage.copies import check_copy, copy_folder, read_manifest, write_manifest
from syncline.storage.inspection import read_everything
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.storage.overlay import OverlayFiles
from syncline.storage.records.base import commit as commit_records
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.limits import segment_bytes_min
from tests.storage.records.under_test import FILES, SMALL, copied, drop, queue, queue_id
from tests.storage.records.workload import contents, run

BATCH_COUNT = 6
KINDS = ["log", "journal"]


def opened(kind: str, folder: Path) -> Store:
    return open_store(
        kind,
        str(folder),
        FILES,
        StoreOptions(segment_bytes=segment_bytes_min),
        now_ms=1,
        random_bytes=random.Random(1).randbytes,
    )


def filled(kind: str, folder: Path) -> Store:
    store = opened(kind, folder)
    store.create(queue_id(1), StreamKind.QUEUE, 0, 1)
    store.append(queue_id(1), b"message", 1)
    commit(store)
    return store


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_leaves_the_records_alone(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "data"
    with closing(filled(kind, folder)), closing(SqliteRecords.open(str(folder), FILES)) as records:
        run(records, range(BATCH_COUNT))
        expected = contents(records, BATCH_COUNT)
    with closing(opened(kind, folder)) as store:
        run_jobs(store)
        with closing(SqliteRecords.open(str(folder), FILES)) as records:
            assert contents(records, BATCH_COUNT) == expected
        assert [entry.payload for entry in store.read(queue_id(1), 1, 9, 99)] == [b"message"]


@pytest.mark.parametrize("kind", KINDS)
def test_tools_that_look_at_the_store_pass_by_the_records(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "data"
    with closing(filled(kind, folder)), closing(SqliteRecords.open(str(folder), FILES)) as records:
        records.create_queue(queue(1))
    before = (folder / FILE_NAME).read_bytes()
    files = OverlayFiles(FILES)
    store = open_store(
        kind, str(folder), files, StoreOptions(), now_ms=1, random_bytes=random.Random(1).randbytes
    )
    list(read_everything(store))
    assert not store.damage()
    store.close()
    files.close()
    assert (folder / FILE_NAME).read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_as_a_kill_left_it_is_copied_whole(tmp_path: Path, kind: str) -> None:
    """With the WAL, which holds what is durable and not yet in the file."""
    folder = tmp_path / "data"
    filled(kind, folder).close()
    records = SqliteRecords.open(str(folder), FILES, SMALL)
    run(records, range(BATCH_COUNT))
    expected = contents(records, BATCH_COUNT)
    left = copied(folder, tmp_path / "left")
    drop(records)
    for path in left.iterdir():
        path.rename(folder / path.name)
    assert (folder / f"{FILE_NAME}-wal").stat().st_size > 0

    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    list(copy_folder(FILES, str(folder), backup))
    list(write_manifest(FILES, backup, 1))
    list(check_copy(FILES, backup, read_manifest(FILES, backup)))
    list(copy_folder(FILES, backup, restored))
    with closing(SqliteRecords.open(restored, FILES)) as found:
        assert contents(found, BATCH_COUNT) == expected
        found.create_queue(queue(900_000))
        commit_records(found)
