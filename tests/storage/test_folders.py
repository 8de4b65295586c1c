"""Whose a data folder is: the same answer from every backend that keeps one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncline.errors import (
    ForeignFolderError,
    NewerFormatError,
    StorageError,
    StoreLockedError,
)
from syncline.storage.options import STORE_KINDS
from tests.storage.under_test import StoreUnderTest

KINDS_ON_DISK = [kind for kind in STORE_KINDS if kind != "memory"]


@pytest.fixture(params=KINDS_ON_DISK)
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreUnderTest]:
    opened = StoreUnderTest(request.param, tmp_path / "data")
    yield opened
    opened.end()


def test_a_folder_says_what_it_is(on_disk: StoreUnderTest) -> None:
    words = Path(on_disk.folder, "FORMAT").read_text().split()
    assert words[:2] == ["syncline", on_disk.kind]
    before = words[3]
    on_disk.reopen()
    assert Path(on_disk.folder, "FORMAT").read_text().split()[3] == before


def test_a_second_store_on_the_folder_is_refused_while_the_first_works(
    on_disk: StoreUnderTest,
) -> None:
    queue = on_disk.create_queue()
    with pytest.raises(StoreLockedError):
        on_disk.open()
    on_disk.append(queue, b"a")
    on_disk.commit()
    on_disk.reopen()
    assert on_disk.payloads(queue) == [b"a"]


def test_a_folder_of_another_kind_is_refused_and_left_alone(on_disk: StoreUnderTest) -> None:
    queue = on_disk.create_queue()
    on_disk.append(queue, b"a")
    on_disk.store.close()
    names = on_disk.files.list(on_disk.folder)
    own_kind = str(on_disk.kind)
    for other_kind in KINDS_ON_DISK:
        if other_kind != own_kind:
            on_disk.kind = other_kind
            with pytest.raises(ForeignFolderError, match=own_kind):
                on_disk.open()
    assert on_disk.files.open_count == 0
    assert on_disk.files.list(on_disk.folder) == names
    on_disk.kind = own_kind
    on_disk.store = on_disk.open()
    assert on_disk.payloads(queue) == [b"a"]


def test_a_newer_format_is_refused_and_left_alone(on_disk: StoreUnderTest) -> None:
    queue = on_disk.create_queue()
    on_disk.append(queue, b"a")
    on_disk.store.close()
    path = Path(on_disk.folder, "FORMAT")
    line = path.read_text()
    words = line.split()
    path.write_text(f"syncline {on_disk.kind} 999 {words[3]}\n")
    with pytest.raises(NewerFormatError) as refused:
        on_disk.open()
    assert (refused.value.found, refused.value.known) == (999, int(words[2]))
    assert on_disk.files.open_count == 0

    path.write_text(line)
    on_disk.store = on_disk.open()
    assert on_disk.payloads(queue) == [b"a"]


@pytest.mark.parametrize("kind", KINDS_ON_DISK)
def test_a_folder_of_something_else_is_refused_and_left_alone(kind: str, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ForeignFolderError):
        StoreUnderTest(kind, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("kind", KINDS_ON_DISK)
def test_a_folder_without_a_parent_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="make that first"):
        StoreUnderTest(kind, tmp_path / "no" / "data")


def test_what_a_store_of_memory_had_open_is_cut_off_by_the_next(tmp_path: Path) -> None:
    under_test = StoreUnderTest("memory", tmp_path / "data")
    queue = under_test.create_queue()
    under_test.append(queue, b"a")
    under_test.commit()
    older, under_test.store = under_test.store, under_test.open()
    assert under_test.payloads(queue) == [b"a"]

    older.append(queue, b"never seen", 1)
    batch = older.take_batch()
    assert batch is not None
    with pytest.raises(StoreLockedError):
        older.write_batch(batch)
    older.close()
    under_test.reopen()
    assert under_test.payloads(queue) == [b"a"]
    assert list(tmp_path.iterdir()) == [], "it touches no file"
