"""Finds many streams at once in a mapped queue table (docs/formats/log.md, "Queue table").

The owner of the table writes to the same bytes while we read. So each slot is copied once, and all
that is said about it comes from that copy. A copy that fails its checksum, or a search that passed
over such a one, is *unsure*: nothing may be concluded from it.

A slot as eight little-endian 64-bit words:
    0-2  stream
    3    born
    4    first
    5    next
    6    applied
    7    quota 16 bits, flags 8, state 8, crc 32; from the lowest bit up
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from syncline.kernels.crc32c import crc32c_rows

TABLE_HEADER_BYTES: Final = 4096
SLOT_BYTES: Final = 64
STREAM_BYTES: Final = 24
CAPACITY_MAX: Final = (1 << 40) - 1

NOT_FOUND: Final = -1
STATE_NEVER_USED: Final = 0
STATE_USED: Final = 1

_WORDS: Final = SLOT_BYTES // 8
_STREAM_WORDS: Final = STREAM_BYTES // 8
_CHECKED_BYTES: Final = 60
_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFF_FFFF)
_MIX_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_SECOND: Final = np.uint64(0x94D049BB133111EB)

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FoundSlots:
    """One row for each stream that was looked for. Words of a stream not found are zero."""

    index: npt.NDArray[np.int64]
    # The copy fails its checksum, or the search passed over a slot that does.
    is_unsure: Flags
    words: Words

    @property
    def is_found(self) -> Flags:
        is_found: Flags = self.index != NOT_FOUND
        return is_found

    @property
    def is_used(self) -> Flags:
        """Found, and not deleted."""
        is_used: Flags = self.is_found & (_state(self.words) == STATE_USED)
        return is_used

    @property
    def born(self) -> Words:
        return self.words[:, 3]

    @property
    def first(self) -> Words:
        return self.words[:, 4]

    @property
    def next(self) -> Words:
        return self.words[:, 5]

    @property
    def flags(self) -> Words:
        return (self.words[:, 7] >> np.uint64(16)) & np.uint64(0xFF)


class SlotFinder:
    """Searches the bytes of one table file. Holds on to them until `release`."""

    def __init__(self, table: npt.NDArray[np.uint8], key: Sequence[int]) -> None:
        """`key` is the store's, as `start_slots` takes it."""
        slots = (len(table) - TABLE_HEADER_BYTES) // SLOT_BYTES
        if not 1 <= slots <= CAPACITY_MAX:
            raise ValueError(f"a table of {len(table)} bytes has no slots or too many")
        self.capacity = slots
        self._key = key
        end = TABLE_HEADER_BYTES + slots * SLOT_BYTES
        self._slots = table[TABLE_HEADER_BYTES:end].view("<u8").reshape(slots, _WORDS)

    def release(self) -> None:
        """Let go of the table's bytes, so that their map can be closed."""
        self._slots = np.zeros((0, _WORDS), np.uint64)

    def find(self, streams: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The slot index of each stream of shape (count, 24), used or deleted; else NOT_FOUND."""
        return self.look_up(streams).index

    def look_up(self, streams: npt.NDArray[np.uint8]) -> FoundSlots:
        """Where each stream is, and a checked copy of its slot."""
        wanted = np.ascontiguousarray(streams).view("<u8").reshape(-1, _STREAM_WORDS)
        count = len(wanted)
        index = np.full(count, NOT_FOUND, np.int64)
        words = np.zeros((count, _WORDS), np.uint64)
        is_unsure = np.zeros(count, np.bool_)
        # The searches still under way: which stream, and the slot it looks at.
        open_ = np.arange(count)
        at = start_slots(wanted, self.capacity, self._key)
        for _ in range(self.capacity):
            if not len(open_):
                break
            seen = self._slots[at]
            is_end = _state(seen) == STATE_NEVER_USED
            is_match = ~is_end & np.all(seen[:, :_STREAM_WORDS] == wanted[open_], axis=1)
            is_damaged = ~_is_sound(seen, is_end)
            # A damaged slot passed over may have been the one we look for...
            is_unsure[open_] |= is_damaged
            hit = open_[is_match]
            index[hit] = at[is_match]
            words[hit] = seen[is_match]
            # ...unless that is found after all: then its own checksum alone decides.
            is_unsure[hit] = is_damaged[is_match]
            goes_on = ~(is_end | is_match)
            open_ = open_[goes_on]
            at = (at[goes_on] + 1) % self.capacity
        return FoundSlots(index, is_unsure, words)

    def have_entries(self, streams: npt.NDArray[np.uint8]) -> tuple[Flags, Flags]:
        """Which streams have a slot, used or deleted; and which of those say that something waits.

        For the table's owner, to whom nobody else writes. A slot that fails its checksum counts as
        one with entries: whoever reads the stream reports it. Slots that are only passed by are not
        checked, which is what takes the time in `look_up` (bench: queues).
        """
        names, ends = self._slots[:, :_STREAM_WORDS], self._slots[:, _WORDS - 1]
        wanted = np.ascontiguousarray(streams).view("<u8").reshape(-1, _STREAM_WORDS)
        count = len(wanted)
        index = np.full(count, NOT_FOUND, np.int64)
        open_ = np.arange(count)
        at = start_slots(wanted, self.capacity, self._key)
        for _ in range(self.capacity):
            if not len(open_):
                break
            name = names[at]
            is_match = np.all(name == wanted, axis=1)
            index[open_[is_match]] = at[is_match]
            goes_on = ~is_match & ((ends[at] != 0) | name.any(axis=1))
            open_, wanted = open_[goes_on], wanted[goes_on]
            at = (at[goes_on] + 1) % self.capacity
        is_found: Flags = index != NOT_FOUND
        words = self._slots[index[is_found]]
        is_full = (_state(words) == STATE_USED) & (words[:, 4] < words[:, 5])
        has_entries = np.zeros(count, np.bool_)
        has_entries[is_found] = is_full | ~_is_sound(words, np.zeros(len(words), np.bool_))
        return is_found, has_entries


def start_slots(stream_words: Words, capacity: int, key: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where the search for each stream starts, as the format says. `stream_words` are three each.

    `key` is what is added and six multipliers.
    """
    halves = np.ascontiguousarray(stream_words).view("<u4").reshape(-1, _STREAM_WORDS * 2)
    mixed = np.full(len(halves), key[0], np.uint64)
    for word, multiplier in zip(halves.T, key[1:], strict=True):
        mixed += word.astype(np.uint64) * np.uint64(multiplier)
    mixed = (mixed ^ (mixed >> _HALF)) * _MIX_FIRST
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX_SECOND
    return scaled(mixed, capacity)


def scaled(numbers: Words, capacity: int) -> npt.NDArray[np.int64]:
    """(number x capacity) >> 64, exactly.

    NumPy has no 128-bit product, so it is put together from products of 32-bit halves.
    """
    high, low = numbers >> _HALF, numbers & _LOW_HALF
    capacity_high, capacity_low = np.uint64(capacity >> 32), np.uint64(capacity & 0xFFFF_FFFF)
    low_high = low * capacity_high
    high_low = high * capacity_low
    carry = (
        ((low * capacity_low) >> _HALF) + (low_high & _LOW_HALF) + (high_low & _LOW_HALF)
    ) >> _HALF
    top: Words = high * capacity_high + (low_high >> _HALF) + (high_low >> _HALF) + carry
    return top.astype(np.int64)


def _state(words: Words) -> Words:
    return (words[:, 7] >> np.uint64(24)) & np.uint64(0xFF)


def _is_sound(words: Words, is_end: Flags) -> Flags:
    """Slots never used are all zeros; the others pass their checksum."""
    image = np.ascontiguousarray(words).view(np.uint8).reshape(-1, SLOT_BYTES)
    crc = (words[:, 7] >> _HALF).astype(np.uint32)
    is_checked = crc32c_rows(image[:, :_CHECKED_BYTES]) == crc
    return np.where(is_end, ~words.any(axis=1), is_checked)
