"""Opening data folders: for good, or only to look."""

import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from syncline.errors import ConfigError, ForeignFolderError
from syncline.storage.base import Store
from syncline.storage.files import DiskFiles
from syncline.storage.folder import FolderFormat, read_format
from syncline.storage.opening import open_store
from syncline.storage.options import StoreOptions
from syncline.storage.overlay import OverlayFiles
from syncline.storage.unfinished import UnfinishedFiles

DEFAULT_FOLDER = Path("syncline-data")

FolderArgument = Annotated[Path, typer.Argument(help="The data folder.", show_default=True)]


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


def whole_path(folder: Path) -> str:
    """Raises UnicodeEncodeError for one that no list of files and no JSON could hold."""
    path = str(folder.absolute())
    path.encode()
    return path


def check_outside(place: Path, folder: Path, what: str) -> None:
    """Raises ConfigError for a place in a folder that is to stay as it is, by whatever links."""
    if place.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{place} lies inside {what}, {folder}; choose a place outside of it")


def format_of(folder: Path) -> FolderFormat:
    """Raises ForeignFolderError for a folder that holds no store."""
    found = read_format(whole_path(folder), DiskFiles())
    if found is None:
        reason = "it holds no store yet" if folder.exists() else "there is no such folder"
        raise ForeignFolderError(str(folder), reason, "check its name")
    return found


@contextmanager
def looked_at(folder: Path) -> Generator[Store]:
    """The store in `folder`, recovered in memory: whatever happens, the folder stays as it is."""
    with in_memory() as files, opened_over(folder, files) as store:
        yield store


@contextmanager
def in_memory() -> Generator[OverlayFiles]:
    """Files that keep what is written for as long as this lasts."""
    files = OverlayFiles(DiskFiles())
    try:
        yield files
    finally:
        files.close()


@contextmanager
def opened_over(folder: Path, files: OverlayFiles) -> Generator[Store]:
    """The store in `folder`, with what was written to `files` so far."""
    found = format_of(folder)
    store = open_store(
        found.kind,
        whole_path(folder),
        files,
        StoreOptions(),
        now_ms=clock_ms(),
        random_bytes=secrets.token_bytes,
    )
    try:
        yield store
    finally:
        store.close()


@contextmanager
def worked_on(folder: Path, kind: str = "auto") -> Generator[Store]:
    """The store in `folder`, opened for good."""
    store = open_store(
        kind,
        whole_path(folder),
        DiskFiles(),
        StoreOptions(),
        now_ms=clock_ms(),
        random_bytes=secrets.token_bytes,
    )
    try:
        yield store
    finally:
        store.close()


@contextmanager
def filled(folder: Path, kind: str) -> Generator[Store]:
    """A new store in `folder`, and none at all before it was filled to the end.

    Raises ConfigError for a folder that holds a store, ForeignFolderError for any other in use.
    """
    path = whole_path(folder)
    if read_format(path, DiskFiles()) is not None:
        raise ConfigError(f"{folder} holds a store already; import into a new data folder")
    files = UnfinishedFiles(DiskFiles(), path)
    store = open_store(
        kind, path, files, StoreOptions(), now_ms=clock_ms(), random_bytes=secrets.token_bytes
    )
    try:
        yield store
    finally:
        store.close()
    files.finish()
