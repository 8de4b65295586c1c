"""Damaged files: whatever can be read of them is in the new one, and nothing else."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from syncline.errors import CorruptionError, DeviceError, ForeignFolderError
from syncline.storage.files import DiskFiles
from syncline.storage.records import sqlite_salvage
from syncline.storage.records.base import Records, commit
from syncline.storage.records.schema import FILE_NAME
from syncline.storage.records.sqlite import SqliteRecords
from syncline.storage.records.sqlite_reports import examine
from syncline.storage.records.sqlite_salvage import Salvage, salvage
from syncline.storage.set_digests import run_out
from syncline.values.digests import digest_of
from syncline.values.queue_records import LinkRecord, QueueRecord, ServiceRole
from tests.storage.records.under_test import (
    FILES,
    copied,
    drop,
    link_id,
    notifier,
    queue,
    queue_id,
    service,
    service_id,
)

QUEUE_COUNT = 240
DELETED_COUNT = 300
PAGE_BYTES = 4096


def has_dbstat() -> bool:
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("SELECT 1 FROM dbstat").fetchall()
        except sqlite3.OperationalError:
            return False
    return True


pytestmark = pytest.mark.skipif(not has_dbstat(), reason="this SQLite does not tell of its pages")


def made(number: int) -> QueueRecord:
    match number % 4:
        case 0:
            return queue(number, service_id=service_id(1))
        case 1:
            return queue(number, notifier=notifier(number, service_id(2)))
        case 2:
            return queue(number, link=LinkRecord(link_id(number), b"fixed", b"user" * 100))
        case _:
            return queue(number)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Records with everything in them, closed."""
    folder = tmp_path / "data"
    folder.mkdir()
    records = SqliteRecords.open(str(folder), FILES)
    records.create_service(service(1))
    records.create_service(service(2, ServiceRole.NOTIFIER))
    for number in range(QUEUE_COUNT + DELETED_COUNT):
        records.create_queue(made(number))
    commit(records)
    for number in range(QUEUE_COUNT, QUEUE_COUNT + DELETED_COUNT):
        records.delete_queue(queue_id(number))
    records.close()
    yield folder
    assert not (folder / "records.salvaged").exists()


def pages_of(folder: Path, name: str, kind: str = "leaf") -> list[int]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        rows = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = ?", (name, kind)
        ).fetchall()
    return [page for (page,) in rows]


def spoil(folder: Path, pages: list[int], filling: bytes = b"\xff" * 64) -> None:
    path = folder / FILE_NAME
    data = bytearray(path.read_bytes())
    for page in pages:
        start = (page - 1) * PAGE_BYTES
        data[start : start + len(filling)] = filling
    path.write_bytes(data)


def salvaged(folder: Path) -> Salvage:
    return run_out(salvage(str(folder), FILES))


def check_saved(folder: Path, *, without: set[int] = frozenset()) -> Records:  # type: ignore[assignment]
    """Every queue is as it was, but for these; all that is kept fits."""
    assert examine(str(folder), str(folder / FILE_NAME), FILES).is_whole
    records = SqliteRecords.open(str(folder), FILES)
    for number in range(QUEUE_COUNT):
        expected = None if number in without else made(number)
        assert records.queue(queue_id(number)) == expected, number
    return records


def test_a_whole_file_comes_out_as_it_went_in(folder: Path) -> None:
    before = SqliteRecords.open(str(folder), FILES)
    counts, digests = before.counts(), [before.digest(service_id(each)) for each in (1, 2)]
    before.close()
    result = salvaged(folder)
    assert result == Salvage(kept_counts=counts, saved_counts=counts)
    records = check_saved(folder)
    assert records.counts() == counts
    assert set(records.deleted_queues(999)) == {
        queue_id(QUEUE_COUNT + number) for number in range(DELETED_COUNT)
    }
    assert records.services() == sorted(
        [service(1), service(2, ServiceRole.NOTIFIER)], key=lambda each: each.service_id
    )
    for each, digest in zip((1, 2), digests, strict=True):
        found = records.digest(service_id(each))
        assert (found.count, found.xor_md5) == (digest.count, digest.xor_md5)
        # Nobody may take another set for one that was seen before.
        assert found.version > digest.version
    records.close()


def test_what_is_in_the_wal_is_saved(folder: Path, tmp_path: Path) -> None:
    records = SqliteRecords.open(str(folder), FILES)
    records.create_queue(queue(9_000, service_id=service_id(1)))
    commit(records)
    left = copied(folder, tmp_path / "left")
    drop(records)
    assert (left / f"{FILE_NAME}-wal").stat().st_size > 0
    salvaged(left)
    assert [path.name for path in left.iterdir()] == [FILE_NAME]
    with closing(SqliteRecords.open(str(left), FILES)) as found:
        assert found.queue(queue_id(9_000)) is not None


def test_a_damaged_page_costs_its_rows_and_no_others(folder: Path) -> None:
    pages = pages_of(folder, "queues")
    spoiled = pages[len(pages) // 2]
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        numbers = dict(connection.execute("SELECT recipient_id, number FROM queues").fetchall())
    spoil(folder, [spoiled])
    result = salvaged(folder)
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        kept = {each for (each,) in connection.execute("SELECT recipient_id FROM queues")}
    lost = {number for number in range(QUEUE_COUNT) if queue_id(number) not in kept}
    # Neighbours in the table, and as many as one page holds.
    assert 3 <= len(lost) <= 40
    places = sorted(numbers[queue_id(number)] for number in lost)
    assert places == list(range(places[0], places[0] + len(places)))
    assert result.kept_counts is not None
    assert result.kept_counts.queue_count - result.saved_counts.queue_count == len(lost)
    assert not result.has_given_up
    records = check_saved(folder, without=lost)
    messaging = [number for number in range(0, QUEUE_COUNT, 4) if number not in lost]
    found = records.digest(service_id(1))
    assert found.xor_md5 == digest_of(map(queue_id, messaging)).xor_md5
    records.close()


def test_a_damaged_index_costs_nothing(folder: Path) -> None:
    for name in ("queues_service", "sqlite_autoindex_queues_1", "queues_link"):
        spoil(folder, pages_of(folder, name))
    assert examine(str(folder), str(folder / FILE_NAME), FILES).damage
    result = salvaged(folder)
    assert result.kept_counts == result.saved_counts
    check_saved(folder).close()


def test_queues_are_kept_without_links_that_cannot_be_read(folder: Path) -> None:
    spoil(folder, pages_of(folder, "links"))
    result = salvaged(folder)
    assert result.saved_counts.queue_count == QUEUE_COUNT
    assert result.lost_link_count == QUEUE_COUNT // 4
    with closing(SqliteRecords.open(str(folder), FILES)) as records:
        for number in range(2, QUEUE_COUNT, 4):
            assert records.queue(queue_id(number)) == queue(number)


def test_queues_are_kept_without_services_that_cannot_be_read(folder: Path) -> None:
    spoil(folder, pages_of(folder, "services"))
    result = salvaged(folder)
    assert (result.saved_counts.queue_count, result.saved_counts.service_count) == (QUEUE_COUNT, 0)
    assert result.lost_association_count == QUEUE_COUNT // 2
    with closing(SqliteRecords.open(str(folder), FILES)) as records:
        assert records.queue(queue_id(0)) == queue(0)
        assert records.queue(queue_id(1)) == queue(1, notifier=notifier(1))


def test_deleted_ids_that_can_be_read_stay_deleted(folder: Path) -> None:
    pages = pages_of(folder, "deleted")
    assert len(pages) > 1
    spoil(folder, pages[:1])
    result = salvaged(folder)
    # As many as a page of these holds.
    assert 50 < DELETED_COUNT - result.saved_counts.deleted_count < 150
    records = check_saved(folder)
    assert set(records.deleted_queues(999)) < {
        queue_id(QUEUE_COUNT + number) for number in range(DELETED_COUNT)
    }
    records.close()


def test_rows_that_make_no_sense_are_left(folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for trigger in ("queue_changed", "association_changed", "notifier_association_changed"):
            connection.execute(f"DROP TRIGGER {trigger}")
        for text, number in (
            ("UPDATE queues SET mode = '?' WHERE recipient_id = ?", 0),
            ("UPDATE queues SET recipient_keys = x'ffff' WHERE recipient_id = ?", 4),
            ("UPDATE queues SET sender_id = x'01' WHERE recipient_id = ?", 8),
            ("UPDATE queues SET notifier_secret = NULL WHERE recipient_id = ?", 1),
        ):
            connection.execute(text, (queue_id(number),))
    result = salvaged(folder)
    assert result.senseless_count == 3
    assert result.lost_notifier_count == 1
    with closing(SqliteRecords.open(str(folder), FILES)) as records:
        assert [number for number in range(12) if records.queue(queue_id(number)) is None] == [
            0,
            4,
            8,
        ]
        assert records.queue(queue_id(1)) == queue(1)


def test_a_table_without_its_root_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_salvage, "_RANGE_COUNT_MAX", 500)
    spoil(folder, pages_of(folder, "queues", "internal"))
    result = salvaged(folder)
    assert result.saved_counts.queue_count == 0
    assert result.saved_counts.service_count == 2
    assert examine(str(folder), str(folder / FILE_NAME), FILES).is_whole


def test_looking_for_what_is_readable_has_an_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_salvage, "_FAILURE_COUNT_MAX", 20)
    spoil(folder, pages_of(folder, "queues")[1:3])
    result = salvaged(folder)
    assert result.has_given_up
    assert 0 < result.saved_counts.queue_count < QUEUE_COUNT
    assert examine(str(folder), str(folder / FILE_NAME), FILES).is_whole


def test_whole_pages_between_damaged_ones_are_found(folder: Path) -> None:
    """Every other page of the table."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        pages = connection.execute(
            "SELECT pageno, ncell FROM dbstat WHERE name = 'queues' AND pagetype = 'leaf' "
            "ORDER BY path"
        ).fetchall()
    assert len(pages) > 6
    spoil(folder, [page for page, _ in pages[1::2]])
    assert salvaged(folder).saved_counts.queue_count == sum(count for _, count in pages[::2])


def test_a_file_of_which_nothing_can_be_read_stays_as_it_is(folder: Path) -> None:
    path = folder / FILE_NAME
    spoil(folder, [1])
    before = path.read_bytes()
    with pytest.raises(CorruptionError):
        salvaged(folder)
    assert path.read_bytes() == before
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE music (title TEXT)")
    with pytest.raises(ForeignFolderError):
        salvaged(folder)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_spoiled_what_comes_out_is_whole(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more is lost than what lay on the pages that were spoiled."""
    monkeypatch.setattr(sqlite_salvage, "_RANGE_COUNT_MAX", 2_000)
    chance = random.Random(seed)
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        pages = connection.execute("SELECT pageno, name, pagetype, ncell FROM dbstat").fetchall()
    spoiled = chance.sample([page for page in pages if page[0] != 1], chance.choice([1, 3, 9]))
    for number, *_ in spoiled:
        spoil(folder, [number], chance.randbytes(200))
    before = (folder / FILE_NAME).read_bytes()
    try:
        result = salvaged(folder)
    except CorruptionError:
        assert "sqlite_schema" in {name for _, name, *_ in spoiled}
        assert (folder / FILE_NAME).read_bytes() == before
        return
    assert examine(str(folder), str(folder / FILE_NAME), FILES).is_whole
    lost_count = 0
    for _, name, kind, cell_count in spoiled:
        if name == "queues":
            lost_count += cell_count if kind == "leaf" else QUEUE_COUNT
    assert result.saved_counts.queue_count >= QUEUE_COUNT - lost_count


class FailingFiles(DiskFiles):
    """Fails at one of the calls that change names."""

    def __init__(self, step: int) -> None:
        self.steps_left = step

    def _step(self, path: str) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise DeviceError(path, "renaming", "as the device has it")

    def rename(self, source: str, target: str) -> None:
        self._step(source)
        super().rename(source, target)

    def sync_folder(self, path: str) -> None:
        self._step(path)
        super().sync_folder(path)


@pytest.mark.parametrize("step", range(1, 7))
def test_one_that_is_cut_short_is_begun_anew(folder: Path, step: int) -> None:
    try:
        run_out(salvage(str(folder), FailingFiles(step)))
    except DeviceError:
        assert (folder / FILE_NAME).exists()
        # Half of a new file is of no use to anybody; a whole one may be.
        assert (folder / "records.salvaged" / FILE_NAME).exists() == (step == 4)
    salvaged(folder)
    check_saved(folder).close()
