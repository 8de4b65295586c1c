"""Which rows are still wanted, asked of the queue table for many rows at once.

The owner of the store goes on writing to the table meanwhile. That is safe in one direction only,
and it is the right one: a stream's `first` moves up and its slot may become deleted, so a row found
dead stays dead; one found alive may be dead once it is written, and goes with the next merge.

- A stream is looked for in the newest generation, then in the older one. The owner copies a slot
  before it changes it and leaves the old copy as it was, so no stream is missed in between.
- Where a slot cannot be trusted, the row is kept.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from syncline.errors import CorruptionError
from syncline.kernels.slots import (
    NOT_FOUND,
    SLOT_BYTES,
    TABLE_HEADER_BYTES,
    FoundSlots,
    SlotFinder,
)
from syncline.kernels.stream_index import unique_streams
from syncline.storage.files import File, Files, MappedFile
from syncline.storage.log.format import HAS_SNAPSHOT, SlotKey, slot_key

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Generation:
    file: File
    map: MappedFile
    view: memoryview
    finder: SlotFinder

    def close(self) -> None:
        self.finder.release()
        self.view.release()
        self.map.close()
        self.file.close()


class LiveTable:
    """All generations of a table file, newest first; a context manager."""

    def __init__(self, files: Files, paths: Sequence[str], table_key: bytes) -> None:
        key = slot_key(table_key)
        self._stack = ExitStack()
        self._generations: list[_Generation] = []
        try:
            for path in paths:
                generation = _open_generation(files, path, key)
                self._stack.callback(generation.close)
                self._generations.append(generation)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def sync(self) -> None:
        """Every change that the owner has made so far is on the device when this returns."""
        for generation in self._generations:
            generation.file.sync()

    def are_live(
        self, streams: Bytes, positions: Numbers, sequences: Numbers, is_snapshot: Flags
    ) -> Flags:
        """Whether each row is wanted. `streams` has shape (count, 24)."""
        if not len(streams):
            return np.zeros(0, np.bool_)
        unique, place = unique_streams(streams)
        slots = self._look_up(unique)
        is_wanted = np.where(
            is_snapshot,
            (slots.flags[place] & np.uint64(HAS_SNAPSHOT)) != 0,
            (slots.first[place] <= sequences) & (sequences < slots.next[place]),
        )
        is_of_this_stream = slots.is_used[place] & (positions >= slots.born[place])
        is_live: Flags = slots.is_unsure[place] | (is_of_this_stream & is_wanted)
        return is_live

    def are_known(self, streams: Bytes) -> Flags:
        """Whether each stream exists, as far as the table can tell."""
        return self._look_up(streams).is_used

    def _look_up(self, streams: Bytes) -> FoundSlots:
        count = len(streams)
        index = np.full(count, NOT_FOUND, np.int64)
        is_unsure = np.zeros(count, np.bool_)
        words = np.zeros((count, SLOT_BYTES // 8), np.uint64)
        missing = np.arange(count)
        for generation in self._generations:
            found = generation.finder.look_up(streams[missing])
            index[missing] = found.index
            words[missing] = found.words
            # Doubt stays: what an older generation says may be out of date.
            is_unsure[missing] |= found.is_unsure
            missing = missing[~found.is_found]
        return FoundSlots(index, is_unsure, words)


def _open_generation(files: Files, path: str, key: SlotKey) -> _Generation:
    with ExitStack() as stack:
        try:
            # To write is to be allowed to sync.
            file = files.open(path)
        except FileNotFoundError as error:
            raise CorruptionError(path, 0, "the queue table is missing") from error
        stack.callback(file.close)
        size = file.size()
        if size <= TABLE_HEADER_BYTES or (size - TABLE_HEADER_BYTES) % SLOT_BYTES:
            raise CorruptionError(path, 0, f"a table of {size} bytes is cut off")
        mapped = file.map(writable=False)
        stack.callback(mapped.close)
        view = mapped.view()
        finder = SlotFinder(np.frombuffer(view, np.uint8), key)
        stack.pop_all()
        return _Generation(file, mapped, view, finder)
