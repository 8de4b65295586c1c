"""Data folders of the journal store, as a source and as a target."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from syncline.errors import ConfigError, CorruptionError, ForeignFolderError, NewerFormatError
from syncline.storage.base import Damage, Entry, EntryKind, Snapshot, Store
from syncline.storage.exchange.read_only import ReadOnlyFiles
from syncline.storage.exchange.report import ExchangeReport, Progress, no_progress
from syncline.storage.exchange.transfer import StoreSource, StreamHead, copy_all
from syncline.storage.files import Files
from syncline.storage.folder import LOCK_NAME, read_format
from syncline.storage.journal.entries import EntryReader
from syncline.storage.journal.folders import walk
from syncline.storage.journal.format import FORMAT_VERSION
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.layout import ROOT_NAME, Layout
from syncline.storage.journal.queue import OpenQueue
from syncline.storage.journal.recovery import recover_queue
from syncline.storage.journal.start import read_layouts
from syncline.storage.journal.store import STORE_KIND, JournalStore
from syncline.storage.options import StoreOptions
from syncline.storage.unfinished import UnfinishedFiles
from syncline.values.ids import StreamId

_OPEN_FILE_COUNT_MAX: Final = 16
_NO_FILE: Final = "-" * 16


def import_journal_layout(
    source_folder: str,
    target: Store,
    files: Files,
    *,
    now_ms: int,
    progress: Progress = no_progress,
) -> ExchangeReport:
    """Bring every stream of a journal's data folder into an empty store.

    The folder is locked meanwhile and not changed. Raises ForeignFolderError or NewerFormatError
    for another folder, StoreLockedError while a router has it, ConfigError for a target in use.
    """
    found = read_format(source_folder, files)
    if found is None or found.kind != STORE_KIND:
        kind = "nothing" if found is None else f"a {found.kind} store"
        raise ForeignFolderError(source_folder, f"it holds {kind}, not a {STORE_KIND} store")
    if found.version > FORMAT_VERSION:
        raise NewerFormatError(source_folder, found.version, FORMAT_VERSION)
    report = ExchangeReport()
    lock = files.lock(f"{source_folder}/{LOCK_NAME}")
    try:
        source = JournalSource(source_folder, files, report)
        try:
            copy_all(source, target, report, now_ms, progress)
        finally:
            source.close()
    finally:
        lock.release()
    return report


def export_journal_layout(
    store: Store,
    target_folder: str,
    files: Files,
    options: StoreOptions,
    *,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
    progress: Progress = no_progress,
) -> ExchangeReport:
    """Write all that is durable in a store to a new data folder of the journal store.

    It is one when this returns: what was cut short before that is refused by whoever opens it.
    Raises ConfigError if something is there already.
    """
    if files.exists(target_folder) and (
        not files.is_folder(target_folder) or files.list(target_folder)
    ):
        raise ConfigError(f"{target_folder} is not empty; export to a new folder")
    report = ExchangeReport()
    unfinished = UnfinishedFiles(files, target_folder)
    target = JournalStore.open(
        target_folder, unfinished, replace(options, is_durable=True), now_ms=now_ms,
        random_bytes=random_bytes,
    )  # fmt: skip
    try:
        copy_all(StoreSource(store, report), target, report, now_ms, progress)
    finally:
        target.close()
    unfinished.finish()
    return report


class JournalSource:
    """A journal's data folder, read queue by queue as a recovery would find it."""

    def __init__(self, folder: str, files: Files, report: ExchangeReport) -> None:
        self._files = ReadOnlyFiles(files)
        self._root = f"{folder}/{ROOT_NAME}"
        self._layouts = read_layouts(folder, self._files)
        self._pool = HandlePool(self._files, _OPEN_FILE_COUNT_MAX)
        self._report = report
        self._queue: OpenQueue | None = None
        self._reader: EntryReader | None = None
        self._damage: list[Damage] = []

    def close(self) -> None:
        self._pool.close()

    def heads(self) -> Iterator[StreamHead]:
        for layout in self._layouts:
            for stream in walk(self._files, self._root, layout):
                head = self._open(stream, layout)
                if head is not None:
                    yield head

    def _open(self, stream: StreamId, layout: Layout) -> StreamHead | None:
        folder = f"{self._root}/{layout.path(stream)}"
        self._pool.close()
        found = recover_queue(
            stream, folder, self._files, self._pool, lambda: _NO_FILE, is_suspect=False
        )
        if found is None:
            return None
        queue = OpenQueue.recovered(stream, found)
        self._queue = queue
        self._damage = list(found.damage)
        self._reader = EntryReader(queue, folder, self._pool, self._damage.append)
        self._report.lost_entry_count += sum(damage.lost_count for damage in found.damage)
        state = queue.state
        message_count = sum(place.kind is EntryKind.MESSAGE for place in queue.index)
        return StreamHead(
            stream, state.kind, state.quota, state.first, state.is_blocked, message_count
        )

    def entries(self, stream: StreamId) -> Iterator[Entry]:
        queue, reader = self._current(stream)
        for place in queue.index.places_from(queue.first):
            entry = reader.entry(place)
            if entry is not None:
                yield entry

    def snapshot(self, stream: StreamId) -> Snapshot | None:
        try:
            return self._current(stream)[1].snapshot()
        except CorruptionError:
            # It is among the flaws of the stream.
            return None

    def cursors(self, stream: StreamId) -> Mapping[bytes, int]:
        return self._current(stream)[0].cursors

    def flaws(self, stream: StreamId) -> list[str]:
        return [f"{damage.file} at {damage.offset}: {damage.reason}" for damage in self._damage]

    def file_flaws(self) -> Mapping[str, list[str]]:
        # Every file belongs to a queue.
        return {}

    def _current(self, stream: StreamId) -> tuple[OpenQueue, EntryReader]:
        queue, reader = self._queue, self._reader
        assert queue is not None, "a stream is read after its head"
        assert reader is not None, "a stream is read after its head"
        assert queue.stream == stream, "streams are read one after the other"
        return queue, reader
