"""Opening a store by name, or by what the folder is."""

import random
from pathlib import Path

import pytest

from syncline.errors import ConfigError, ForeignFolderError
from syncline.storage.base import Store
from syncline.storage.files import DiskFiles
from syncline.storage.journal.store import JournalStore
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.opening import detect_kind, open_store
from syncline.storage.options import STORE_KINDS, StoreOptions
from syncline.values import limits

FILES = DiskFiles()
SMALL = StoreOptions(segment_bytes=limits.segment_bytes_min)


def open_kind(kind: str, folder: Path) -> Store:
    chance = random.Random(1)
    return open_store(kind, str(folder), FILES, SMALL, now_ms=1, random_bytes=chance.randbytes)


@pytest.mark.parametrize(
    ("kind", "expected"), [("log", LogStore), ("journal", JournalStore), ("memory", MemoryStore)]
)
def test_each_kind_has_its_store(tmp_path: Path, kind: str, expected: type[Store]) -> None:
    store = open_kind(kind, tmp_path / "data")
    assert type(store) is expected
    assert kind in STORE_KINDS
    store.close()


def test_auto_makes_a_log_where_there_is_nothing(tmp_path: Path) -> None:
    store = open_kind("auto", tmp_path / "data")
    assert type(store) is LogStore
    store.close()


@pytest.mark.parametrize(("kind", "expected"), [("log", LogStore), ("journal", JournalStore)])
def test_auto_opens_what_is_there(tmp_path: Path, kind: str, expected: type[Store]) -> None:
    open_kind(kind, tmp_path / "data").close()
    assert detect_kind(str(tmp_path / "data"), FILES) == kind
    store = open_kind("auto", tmp_path / "data")
    assert type(store) is expected
    store.close()


def test_nothing_is_detected_in_a_missing_or_empty_folder(tmp_path: Path) -> None:
    assert detect_kind(str(tmp_path / "data"), FILES) is None
    assert detect_kind(str(tmp_path), FILES) is None
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_a_folder_of_something_else_is_not_opened_by_auto(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ForeignFolderError):
        open_kind("auto", tmp_path)


def test_a_kind_that_does_not_exist_names_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'paper'.*log, journal, memory, auto"):
        open_kind("paper", tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_kind_is_unknown_names_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "FORMAT").write_bytes(b"syncline paper 1 " + b"01" * 16 + b"\n")
    with pytest.raises(ConfigError, match="'paper'"):
        open_kind("auto", tmp_path)
