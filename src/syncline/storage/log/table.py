"""The queue table: a memory-mapped file of 64-byte slots, found by a hash of the stream.

Invariants:
- A slot is written only after the record that justifies it is durable: the kernel may write a
  changed page at any moment, so the table may be behind the log, never ahead of it.
- Within a generation a slot never moves and never becomes unused again, so the job process may
  search the same file while the owner writes to it.
- While the table grows there are two generations. A stream is looked for in the new one first; what
  is found only in the old one is copied over before it is changed. The old file is left as it is,
  but for streams that a replayed log deleted if there is no room for their copies. So a crash in
  between loses nothing: the log since the checkpoint brings either copy up to date, and a copy of
  which only a part reached the device is made again.
- After a power cut some sectors are older than others. A slot placed since the checkpoint may be
  there while one that it was placed behind is not: a *stray*, which no search reaches. The log
  brings its stream back elsewhere. Strays are looked for a little at a time and marked as deleted,
  at the latest before the gap in front of them is filled: else an old state of the stream would
  come back.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from syncline.errors import CorruptionError
from syncline.kernels.slots import SlotFinder
from syncline.storage.files import File, Files, MappedFile
from syncline.storage.log.format import (
    CRC,
    NO_STREAM,
    SLOT_APPLIED_OFFSET,
    SLOT_BYTES,
    SLOT_DELETED,
    SLOT_STATE_OFFSET,
    SLOT_USED,
    TABLE_HEADER_BYTES,
    Slot,
    crc32c_extend,
    encode_slot,
    encode_table_header,
    parse_slot,
    parse_table_header,
    slot_index,
    slot_key,
)
from syncline.values.ids import STREAM_ID_BYTES

CAPACITY_MIN: Final = 1024
# Above this share of slots in use or deleted the table grows; above the second it cannot wait.
LOAD_MAX: Final = 0.75
LOAD_LIMIT: Final = 0.92
# A new generation starts at this load: 64 B a slot gives at most 119 B a stream.
_LOAD_AFTER: Final = 0.54
_PAGE_SLOTS: Final = 64
# All of it, not its state alone: one damaged byte must not end a search.
_UNUSED: Final = bytes(SLOT_STATE_OFFSET + 1)
_CHECKED_BYTES: Final = SLOT_BYTES - CRC.size


@dataclass(slots=True)
class _Generation:
    """One file of the table."""

    number: int
    path: str
    file: File
    map: MappedFile
    capacity: int

    def offset_of(self, index: int) -> int:
        return TABLE_HEADER_BYTES + index * SLOT_BYTES

    def close(self) -> None:
        self.map.close()
        self.file.close()


def table_bytes(capacity: int) -> int:
    return TABLE_HEADER_BYTES + capacity * SLOT_BYTES


def capacity_for(stream_count: int) -> int:
    """Slots of a new generation that is to hold this many streams."""
    wanted = max(CAPACITY_MIN, int(stream_count / _LOAD_AFTER) + 1)
    return (wanted + _PAGE_SLOTS - 1) // _PAGE_SLOTS * _PAGE_SLOTS


def _open_generation(files: Files, path: str, number: int) -> _Generation:
    file = files.open(path)
    try:
        size = file.size()
        capacity = (size - TABLE_HEADER_BYTES) // SLOT_BYTES
        if capacity < 1 or table_bytes(capacity) != size:
            raise CorruptionError(path, 0, f"a table of {size} bytes is cut off")
        return _Generation(number, path, file, file.map(writable=True), capacity)
    except BaseException:
        file.close()
        raise


class Table:
    """All generations of the table as one map from stream to slot."""

    def __init__(self, current: _Generation, older: _Generation | None, key: bytes) -> None:
        self.key = key
        self._slot_key = slot_key(key)
        self._current = current
        self._older = older
        # Between these log positions strays were written; how many slots are known to be none.
        self._stray_start = 0
        self._stray_end = 0
        self._swept_slots = 0
        self._moved_slots = 0
        self.used_count = 0
        self.deleted_count = 0
        # Log position up to which the counts are true; 0 if they are not known.
        self.applied = 0
        header = parse_table_header(current.map[0:64])
        if header is not None and header.capacity == current.capacity:
            self.used_count = header.used_count
            self.deleted_count = header.deleted_count
            self.applied = header.applied

    @classmethod
    def open(cls, files: Files, generations: list[tuple[int, str]], key: bytes) -> Self:
        """`generations` as (number, path), newest first; one, or two while the table grows.

        `key` is the store's: it decides where each stream is looked for.
        """
        opened: list[_Generation] = []
        try:
            for number, path in generations:
                opened.append(_open_generation(files, path, number))
        except BaseException:
            for generation in opened:
                generation.close()
            raise
        return cls(opened[0], opened[1] if len(opened) > 1 else None, key)

    @property
    def generation_number(self) -> int:
        return self._current.number

    @property
    def capacity(self) -> int:
        return self._current.capacity

    @property
    def is_growing(self) -> bool:
        return self._older is not None

    @property
    def load(self) -> float:
        return (self.used_count + self.deleted_count) / self._current.capacity

    @property
    def mapped_bytes(self) -> int:
        return sum(len(generation.map) for generation in self._generations())

    def paths(self) -> list[str]:
        """Newest first."""
        return [generation.path for generation in self._generations()]

    def numbers(self) -> list[int]:
        return [generation.number for generation in self._generations()]

    def find(self, stream: bytes) -> int:
        """The index of the stream's slot in the current generation, used or deleted, or -1."""
        index = self._find_in(self._current, stream)
        if self._older is not None and not self._is_whole(index):
            old_index = self._find_in(self._older, stream)
            if old_index >= 0:
                image = self._image(self._older, old_index)
                if image[SLOT_STATE_OFFSET] == SLOT_USED:
                    index = self._copied(index, image)
        return index

    def with_entries(self, streams: Sequence[bytes]) -> list[bytes]:
        """Those of the streams whose slot says that something waits, without reading it."""
        wanted = np.frombuffer(b"".join(streams), np.uint8).reshape(-1, STREAM_ID_BYTES)
        has_entries = np.zeros(len(streams), np.bool_)
        missing = np.arange(len(streams))
        for generation in self._generations():
            view = generation.map.view()
            finder = SlotFinder(np.frombuffer(view, np.uint8), self._slot_key)
            is_found, is_full = finder.have_entries(wanted[missing])
            finder.release()
            view.release()
            has_entries[missing] = is_full
            missing = missing[~is_found]
        return [streams[index] for index in np.flatnonzero(has_entries).tolist()]

    def read(self, index: int) -> Slot:
        """Raises CorruptionError if the slot fails its checksum."""
        slot = parse_slot(self._image(self._current, index))
        if slot is None:
            raise CorruptionError(*self.where(index), "a slot fails its checksum")
        return slot

    def where(self, index: int) -> tuple[str, int]:
        """File and offset of a slot; of the first of them for one that is not there."""
        return self._current.path, self._current.offset_of(max(0, index))

    def place(self, stream: bytes) -> int:
        """A slot for a stream that `find` did not find. Who creates the stream counts it."""
        return self._place(stream)

    def write(self, index: int, image: bytes) -> None:
        offset = TABLE_HEADER_BYTES + index * SLOT_BYTES
        self._current.map[offset : offset + SLOT_BYTES] = image

    def write_counts(self, applied: int) -> None:
        """State up to which log position slots and counts are true."""
        self.applied = applied
        header = encode_table_header(
            self._current.capacity,
            applied,
            max(0, self.used_count),
            # After a crash an estimate: the header may be older or newer than the slots.
            max(0, self.deleted_count),
            self._current.number,
        )
        self._current.map[0 : len(header)] = header

    def grow_into(self, files: Files, path: str, number: int) -> None:
        """Make the prepared, empty table at `path` the current generation."""
        assert self._older is None
        self.bury_strays(self._current.capacity)
        self._older = self._current
        self._current = _open_generation(files, path, number)
        self._moved_slots = 0
        # Slots are counted as they are used, so copying does not change how many streams there are.
        self.deleted_count = 0
        self.write_counts(self.applied)

    def move_some(self, page_count: int) -> bool:
        """Copy the next pages of the older generation; True once all of it is copied."""
        older = self._older
        if older is None:
            return True
        end = min(self._moved_slots + page_count * _PAGE_SLOTS, older.capacity)
        for index in range(self._moved_slots, end):
            image = self._image(older, index)
            if image[SLOT_STATE_OFFSET] != SLOT_USED:
                continue
            found = self._find_in(self._current, image[:24])
            if not self._is_whole(found) and not self._is_stray(older, index, image):
                self._copied(found, image)
        self._moved_slots = end
        return end == older.capacity

    def expect_strays(self, start: int, end: int) -> None:
        """The log was replayed from `start` to `end`: slots written in between may be strays.

        So may all that were being copied into a new generation, however old they are.
        """
        self._stray_start = start if self._older is None else -1
        self._stray_end = end

    @property
    def may_have_strays(self) -> bool:
        return self._stray_start < self._stray_end

    def bury_strays(self, slot_count: int) -> None:
        """Look at the next slots of each generation; do so to the end before a checkpoint."""
        if not self.may_have_strays:
            return
        start, end = self._swept_slots, self._swept_slots + slot_count
        for generation in self._generations():
            stop = min(end, generation.capacity)
            data = generation.map[generation.offset_of(start) : generation.offset_of(stop)]
            applied = array("Q", data)[SLOT_APPLIED_OFFSET // 8 :: SLOT_BYTES // 8]
            for index, position in enumerate(applied, start):
                if self._stray_start < position <= self._stray_end:
                    image = self._image(generation, index)
                    if self._is_stray(generation, index, image):
                        self._bury(generation, index)
        self._swept_slots = end
        if end >= max(generation.capacity for generation in self._generations()):
            self._stray_end = self._stray_start

    def delete_in_place(self, stream: bytes, applied: int) -> None:
        """The log deleted the stream, at the latest at `applied`: say so wherever it has a slot.

        Not by way of a copy in the current generation, for which there may be no room.
        """
        grave = encode_slot(stream, 0, 0, 0, applied, 0, 0, SLOT_DELETED)
        for generation in self._generations():
            index = self._find_in(generation, stream)
            if index < 0:
                continue
            slot = parse_slot(self._image(generation, index))
            if slot is None or slot.applied < applied:
                offset = generation.offset_of(index)
                generation.map[offset : offset + SLOT_BYTES] = grave

    def drop_older(self) -> str:
        """Let go of the older generation once it is copied and that is durable; its path."""
        assert self._older is not None
        path = self._older.path
        self._older.close()
        self._older = None
        return path

    def sync(self) -> None:
        for generation in self._generations():
            generation.file.sync()

    def used_images(self, chunk_slots: int) -> Iterator[bytes]:
        """Every used slot as it is, a chunk at a time; the table may change between chunks.

        One whose name is damaged is left out: nobody can ask for a stream by that.

        Oldest generation first: what is copied out of it before its turn is met in the newer one.
        """
        generation: _Generation | None = None
        while (generation := self._newer_than(generation)) is not None:
            for start in range(0, generation.capacity, chunk_slots):
                if generation not in self._generations():
                    # Dropped since the last chunk: all of it has been copied.
                    break
                end = min(start + chunk_slots, generation.capacity)
                data = generation.map[generation.offset_of(start) : generation.offset_of(end)]
                for index in _indexes(data, SLOT_USED):
                    image = data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]
                    if self._is_stray(generation, start + index, image):
                        continue
                    if not self._has_its_name(generation, start + index, image):
                        continue
                    if generation is self._current or not self._is_met_again(image[:24]):
                        yield image

    def _has_its_name(self, generation: _Generation, index: int, image: bytes) -> bool:
        (crc,) = CRC.unpack_from(image, _CHECKED_BYTES)
        is_sound = crc32c_extend(0, image[:_CHECKED_BYTES]) == crc
        return is_sound or self._find_in(generation, image[:STREAM_ID_BYTES]) == index

    def _is_met_again(self, stream: bytes) -> bool:
        """Whether a walk over the current generation meets a stream of the older one, or need not:
        it was deleted there."""
        index = self._find_in(self._current, stream)
        return index >= 0 and self._image(self._current, index)[SLOT_STATE_OFFSET] != 0

    def _newer_than(self, generation: _Generation | None) -> _Generation | None:
        number = 0 if generation is None else generation.number
        return next((each for each in self._generations()[::-1] if each.number > number), None)

    def damaged_images(self, chunk_slots: int) -> Iterator[list[tuple[int, bytes]]]:
        """Slots of the current generation that fail their check, those of each chunk in a list.

        Each with its offset in the file. The table may change between chunks.
        """
        generation = self._current
        for start in range(0, generation.capacity, chunk_slots):
            if generation not in self._generations():
                # Dropped since the last chunk: what counts is in a newer one, for the next walk.
                return
            end = min(start + chunk_slots, generation.capacity)
            offset = generation.offset_of(start)
            data = generation.map[offset : generation.offset_of(end)]
            images = ((at, data[at : at + SLOT_BYTES]) for at in range(0, len(data), SLOT_BYTES))
            yield [(offset + at, image) for at, image in images if parse_slot(image) is None]

    def holds(self, index: int, stream: bytes) -> bool:
        """Whether this slot of the current generation is of that stream."""
        return self._image(self._current, index)[:STREAM_ID_BYTES] == stream

    def is_deleted(self, index: int) -> bool:
        return self._image(self._current, index)[SLOT_STATE_OFFSET] == SLOT_DELETED

    def close(self) -> None:
        for generation in self._generations():
            generation.close()

    def _generations(self) -> list[_Generation]:
        return [self._current] if self._older is None else [self._current, self._older]

    def _find_in(self, generation: _Generation, stream: bytes) -> int:
        table = generation.map
        capacity = generation.capacity
        index = slot_index(stream, capacity, self._slot_key)
        for _ in range(capacity):
            offset = TABLE_HEADER_BYTES + index * SLOT_BYTES
            found = table[offset : offset + SLOT_STATE_OFFSET + 1]
            if found == _UNUSED:
                return -1
            if found[:24] == stream:
                return index
            index += 1
            if index == capacity:
                index = 0
        return -1

    def _is_whole(self, index: int) -> bool:
        """Whether there is such a slot in the current generation, and it passes its check."""
        return index >= 0 and parse_slot(self._image(self._current, index)) is not None

    def _copied(self, index: int, image: bytes) -> int:
        """Where in the current generation a slot of the older one is from now on.

        `index` is where its stream was found there, -1 if it was not. What stands there may be no
        more than a part of the copy: the page went to the device before all of it was there, and
        then the power went. Anything else is damage, and later than `image`.
        """
        if index < 0:
            index = self._place(image[:STREAM_ID_BYTES])
            self._write_image(index, image)
        elif _is_part_of(self._image(self._current, index), image):
            self._write_image(index, image)
        return index

    def _place(self, stream: bytes) -> int:
        """The first free slot. Deleted ones are used again only while no older copy can exist.

        That of a buried stray names no stream, so it hides no older copy: it is free at any time.
        """
        table = self._current.map
        capacity = self._current.capacity
        index = slot_index(stream, capacity, self._slot_key)
        for _ in range(capacity):
            offset = TABLE_HEADER_BYTES + index * SLOT_BYTES
            found = table[offset : offset + SLOT_STATE_OFFSET + 1]
            is_again = found[-1] == SLOT_DELETED and (
                self._older is None or found[:STREAM_ID_BYTES] == NO_STREAM
            )
            if found == _UNUSED or is_again:
                if self.may_have_strays:
                    self._bury_strays_behind(index)
                self.deleted_count -= is_again
                return index
            index += 1
            if index == capacity:
                index = 0
        raise AssertionError("the table was let grow full")

    def _is_stray(self, generation: _Generation, index: int, image: bytes) -> bool:
        """Whether a slot of an earlier opening is one that no search reaches.

        One that fails its check is none: its name may be what is damaged, and it is what keeps rows
        from being merged away that may be of its stream.
        """
        if not self.may_have_strays:
            return False
        applied = int.from_bytes(image[SLOT_APPLIED_OFFSET : SLOT_APPLIED_OFFSET + 8], "little")
        return (
            self._stray_start < applied <= self._stray_end
            and image[SLOT_STATE_OFFSET] == SLOT_USED
            and self._find_in(generation, image[:24]) != index
            and parse_slot(image) is not None
        )

    def _bury_strays_behind(self, gap: int) -> None:
        """The slot at `gap`, unused or deleted, is about to be filled: searches that ended there
        will go on behind it."""
        generation = self._current
        index = (gap + 1) % generation.capacity
        while index != gap:
            image = self._image(generation, index)
            if not any(image):
                return
            if self._is_stray(generation, index, image):
                self._bury(generation, index)
            index = (index + 1) % generation.capacity

    def _bury(self, generation: _Generation, index: int) -> None:
        offset = generation.offset_of(index)
        # Without a name: it must not be found in place of a slot in the older generation.
        grave = encode_slot(NO_STREAM, 0, 1, 1, 0, 0, 0, SLOT_DELETED)
        generation.map[offset : offset + SLOT_BYTES] = grave
        self.deleted_count += generation is self._current

    def _image(self, generation: _Generation, index: int) -> bytes:
        offset = TABLE_HEADER_BYTES + index * SLOT_BYTES
        return generation.map[offset : offset + SLOT_BYTES]

    def _write_image(self, index: int, image: bytes) -> None:
        offset = TABLE_HEADER_BYTES + index * SLOT_BYTES
        self._current.map[offset : offset + SLOT_BYTES] = image

    def count_deleted(self) -> None:
        """The header may be older than the slots: look at the state of each."""
        data = self._current.map[TABLE_HEADER_BYTES : len(self._current.map)]
        self.deleted_count = data[SLOT_STATE_OFFSET::SLOT_BYTES].count(SLOT_DELETED)

    def count_slots(self, in_log: Iterable[tuple[bytes, bool]]) -> None:
        """The header does not know how many streams there are: look at each slot.

        `in_log` are the streams of the replayed log and whether each was deleted there.
        """
        used, deleted = _streams_of(self._current)
        self.count_deleted()
        if self._older is not None:
            used |= _streams_of(self._older)[0] - deleted
        for stream, is_deleted in in_log:
            if is_deleted:
                used.discard(stream)
            else:
                used.add(stream)
        self.used_count = len(used)


def _is_part_of(found: bytes, image: bytes) -> bool:
    """Whether nothing but zeros stands where it is not the same."""
    return all(byte in (0, wanted) for byte, wanted in zip(found, image, strict=True))


def _streams_of(generation: _Generation) -> tuple[set[bytes], set[bytes]]:
    """Streams of used and of deleted slots."""
    data = generation.map[TABLE_HEADER_BYTES : len(generation.map)]
    used, deleted = (
        {data[index * SLOT_BYTES : index * SLOT_BYTES + 24] for index in _indexes(data, state)}
        for state in (SLOT_USED, SLOT_DELETED)
    )
    return used, deleted


def _indexes(slots: bytes, state: int) -> Iterator[int]:
    """Which of these slots have this state: a search in the state bytes, not a look at each."""
    states = slots[SLOT_STATE_OFFSET::SLOT_BYTES]
    index = states.find(state)
    while index != -1:
        yield index
        index = states.find(state, index + 1)
