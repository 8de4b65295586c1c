"""Reading a file of lines from the disk, whatever is in it, in bounded memory.

A block that the device cannot read costs the lines in it, not those around it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from syncline.errors import DeviceError
from syncline.storage.files import File
from syncline.storage.journal.format import MESSAGE_LINE_BYTES_MAX, Flaw, parse_message
from syncline.storage.journal.index import Place
from syncline.values.ids import StreamId

_CHUNK_BYTES: Final = 256 * 1024
_BLOCK_BYTES: Final = 4 * 1024


@dataclass(frozen=True, slots=True)
class BadLine:
    """Bytes that are no line of the file."""

    offset: int
    length: int
    flaw: Flaw

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def has_end(self) -> bool:
        return self.flaw is not Flaw.TORN


def read_around(file: File, offset: int, length: int) -> bytes:
    """As `File.read`; a block that cannot be read comes as zeros, which no line has."""
    try:
        return file.read(offset, length)
    except DeviceError:
        end = min(offset + length, file.size())
    pieces: list[bytes] = []
    while offset < end:
        size = min(_BLOCK_BYTES - offset % _BLOCK_BYTES, end - offset)
        try:
            pieces.append(file.read(offset, size))
        except DeviceError:
            pieces.append(bytes(size))
        offset += size
    return b"".join(pieces)


def lines(file: File, start: int, line_bytes_max: int) -> Iterator[tuple[int, bytes] | BadLine]:
    """Each line with its offset and newline; one that is too long to be ours is a bad one."""
    offset = start
    waiting = b""
    skipped_bytes = 0
    while chunk := read_around(file, offset + skipped_bytes + len(waiting), _CHUNK_BYTES):
        waiting += chunk
        *whole, waiting = waiting.split(b"\n")
        for line in whole:
            length = skipped_bytes + len(line) + 1
            if length > line_bytes_max:
                yield BadLine(offset, length, Flaw.FORM)
            else:
                yield offset, line + b"\n"
            offset += length
            skipped_bytes = 0
        if len(waiting) > line_bytes_max:
            skipped_bytes += len(waiting)
            waiting = b""
    if skipped_bytes or waiting:
        yield BadLine(offset, skipped_bytes + len(waiting), Flaw.TORN)


def messages(file: File, stream: StreamId, start: int) -> Iterator[Place | BadLine]:
    """What a message file holds from `start` on, in the order of the file."""
    for item in lines(file, start, MESSAGE_LINE_BYTES_MAX):
        if isinstance(item, BadLine):
            yield item
            continue
        offset, line = item
        found = parse_message(stream, line)
        if isinstance(found, Flaw):
            yield BadLine(offset, len(line), found)
        else:
            yield Place(found.seq, offset, len(line), found.time_ms, found.kind)
