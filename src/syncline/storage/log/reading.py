"""Reads segments from their files, no more of them at a time than is needed.

A segment is large, and fresh memory for all of it takes longer than reading it does: whoever goes
through batches in order reads it in windows.

A block that the device cannot read costs what is in it, as any damage does: zeros stand in for it,
which no checksum takes for anything else.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from syncline.errors import DeviceError
from syncline.storage.files import File
from syncline.storage.log.format import (
    BATCH_HEADER_BYTES,
    BLOCK_BYTES,
    align,
    claimed_length,
)
from syncline.storage.log.scan import Chain, WholeBatch, batch_at, next_batch, used_bytes

_PIECE_BYTES: Final = 1 << 20
_WINDOW_BYTES: Final = 4 << 20
# Of one file. A device that cannot read more is about to fail as a whole, and each takes seconds.
UNREADABLE_BLOCKS_MAX: Final = 64


class Reads(Protocol):
    """A file, as far as it is read here."""

    def read(self, offset: int, length: int) -> bytes: ...


class Around:
    """Reads a file around the blocks that the device cannot read; `unreadable` are their offsets.

    Raises DeviceError if there are too many of them.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self.unreadable: set[int] = set()

    def read(self, offset: int, length: int) -> bytes:
        try:
            return self._file.read(offset, length)
        except DeviceError:
            return b"".join(self._pieces(offset, offset + length))

    def _pieces(self, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            block = at // BLOCK_BYTES * BLOCK_BYTES
            behind = min(block + BLOCK_BYTES, end)
            try:
                yield self._file.read(at, behind - at)
            except DeviceError:
                self.unreadable.add(block)
                if len(self.unreadable) > UNREADABLE_BLOCKS_MAX:
                    raise
                yield bytes(behind - at)
            at = behind


def read_around(file: File, offset: int, length: int) -> bytes:
    """For whoever checks each record by itself: what cannot be read fails its checksum."""
    return Around(file).read(offset, length)


class ReadBatch(NamedTuple):
    """A whole batch, and the bytes that hold it; `position` is that of the first of them."""

    batch: WholeBatch
    data: bytes
    position: int


def leading_batches(
    file: Reads, start: int, segment_bytes: int, chain: Chain, tag: int
) -> Iterator[ReadBatch]:
    """The batches from the beginning of a segment on that are whole and follow one another.

    `chain` is the batch before it, `start` the position of the segment, `tag` the store's. What
    comes behind is the end of the log, or damage: `scan.batches` tells.
    """
    offset, wanted = 0, _WINDOW_BYTES
    while True:
        room = segment_bytes - offset
        window = file.read(offset, min(wanted, room))
        position = start + offset
        at = 0
        while (batch := batch_at(window, at, position, chain, tag)) is not None:
            yield ReadBatch(batch, window, position)
            chain = batch.chain
            at = align(batch.header.end - position)
        if at:
            offset += at
            wanted = _WINDOW_BYTES
            continue
        claimed, length = claimed_length(window, 0)
        wanted = BATCH_HEADER_BYTES + length
        if claimed != position or not len(window) < wanted <= room:
            return


def first_batch(file: Reads, start: int, segment_bytes: int, tag: int) -> WholeBatch | None:
    """The first whole batch of a segment, whatever was before it; mostly it stands at its start."""
    _, length = claimed_length(file.read(0, BATCH_HEADER_BYTES), 0)
    if length < segment_bytes:
        first = file.read(0, BATCH_HEADER_BYTES + length)
        if (found := batch_at(first, 0, start, None, tag)) is not None:
            return found
    return next_batch(read_used(file, start, segment_bytes), 0, start, None, tag)


def read_used(file: Reads, start: int, segment_bytes: int, offset: int = 0) -> bytes:
    """The segment from `offset` to the end of its last batch, as far as headers tell.

    It is seldom full; what lies behind is looked at and let go of piece by piece.
    """
    pieces: list[bytes] = []
    used = offset
    has_gap = False
    for at in range(offset, segment_bytes, _PIECE_BYTES):
        piece = file.read(at, min(_PIECE_BYTES, segment_bytes - at))
        reach = used_bytes(piece, start + at)
        if reach and has_gap:
            return file.read(offset, segment_bytes - offset)
        used = max(used, at + reach if reach else 0)
        if used > at:
            pieces.append(piece)
        else:
            has_gap = True
    return b"".join(pieces)
