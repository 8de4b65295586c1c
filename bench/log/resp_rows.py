"""Reads RESP commands in rows: those of one shape that stand behind one another, all at once.

A pipeline is mostly one command many times over, with words of the same lengths. Such a row is
matched by one expression, so that a command costs a few groups of it and no list of words. Whatever
has no shape that is known here goes to hiredis, word by word.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

import hiredis

from syncline.values.ids import STREAM_ID_BYTES

# What a row of shaped commands holds: for APPEND and ACKNOWLEDGE two words of each, for READ one.
Words = list[tuple[bytes, bytes]] | list[bytes] | list[list[bytes]]

APPEND: Final = b"XADD"
READ: Final = b"XRANGE"
ACKNOWLEDGE: Final = b"XDEL"

_TOGETHER: Final = (16, 4, 1)
_SHAPES_MAX: Final = 64
# The parser moves what it has not read yet to its beginning after each command.
_FED_BYTES: Final = 32_768

_KEY: Final = rb"\$%d\r\n(.{%d})\r\n" % (STREAM_ID_BYTES, STREAM_ID_BYTES)
_APPEND: Final = rb"\*5\r\n\$4\r\nXADD\r\n" + _KEY + rb"\$1\r\n\*\r\n\$1\r\nf\r\n"
_READ: Final = (
    rb"\*6\r\n\$6\r\nXRANGE\r\n" + _KEY + rb"\$1\r\n-\r\n\$1\r\n\+\r\n\$5\r\nCOUNT\r\n\$1\r\n1\r\n"
)
_ACKNOWLEDGE: Final = rb"\*3\r\n\$4\r\nXDEL\r\n" + _KEY

_append_head = re.compile(_APPEND + rb"\$([1-9]\d{0,6})\r\n", re.DOTALL)
_read_head = re.compile(_READ, re.DOTALL)
_acknowledge_head = re.compile(_ACKNOWLEDGE + rb"\$([3-9])\r\n[1-9]", re.DOTALL)


class Row(NamedTuple):
    """Commands of one name. `is_shaped`: only the words that differ."""

    name: bytes
    words: Words
    is_shaped: bool


class Shape:
    """A command whose words have known lengths, and how many bytes it takes."""

    def __init__(self, name: bytes, pattern: bytes, length: int) -> None:
        self.name = name
        self.length = length
        self._patterns = [
            (count, re.compile(pattern * count, re.DOTALL).match) for count in _TOGETHER
        ]
        self.match_one = re.compile(pattern, re.DOTALL).match

    def read(self, data: bytes, at: int) -> tuple[list[bytes], int]:
        """The words of all such commands from `at` on, and where they end."""
        words: list[bytes] = []
        left = (len(data) - at) // self.length
        for count, match in self._patterns:
            while left >= count and (found := match(data, at)) is not None:
                words += found.groups()
                at = found.end()
                left -= count
        return words, at


@lru_cache(_SHAPES_MAX)
def _shape_of_append(body_bytes: int) -> Shape:
    length = b"%d" % body_bytes
    pattern = _APPEND + rb"\$" + length + rb"\r\n(.{" + length + rb"})\r\n"
    head = len(b"*5\r\n$4\r\nXADD\r\n$24\r\n\r\n$1\r\n*\r\n$1\r\nf\r\n") + STREAM_ID_BYTES
    return Shape(APPEND, pattern, head + len(b"$\r\n\r\n") + len(length) + body_bytes)


@lru_cache(_SHAPES_MAX)
def _shape_of_acknowledgement(id_bytes: int) -> Shape:
    pattern = _ACKNOWLEDGE + rb"\$%d\r\n([1-9]\d{%d})-0\r\n" % (id_bytes, id_bytes - 3)
    head = len(b"*3\r\n$4\r\nXDEL\r\n$24\r\n\r\n") + STREAM_ID_BYTES
    return Shape(ACKNOWLEDGE, pattern, head + len(b"$3\r\n\r\n") + id_bytes)


_shape_of_read = Shape(
    READ,
    _READ,
    len(b"*6\r\n$6\r\nXRANGE\r\n$24\r\n\r\n$1\r\n-\r\n$1\r\n+\r\n$5\r\nCOUNT\r\n$1\r\n1\r\n")
    + STREAM_ID_BYTES,
)


def _shape_at(data: bytes, at: int) -> Shape | None:
    if (found := _append_head.match(data, at)) is not None:
        return _shape_of_append(int(found[2]))
    if _read_head.match(data, at) is not None:
        return _shape_of_read
    if (found := _acknowledge_head.match(data, at)) is not None:
        return _shape_of_acknowledgement(int(found[2]))
    return None


class RowReader:
    """Of one connection. What it is fed comes out as rows, in order."""

    def __init__(self) -> None:
        self._parser = hiredis.Reader()
        # It has the beginning of a command.
        self._is_parsing = False
        self._shape = _shape_of_read
        # The beginning of a command of `_shape`.
        self._rest = b""

    def feed(self, data: bytes) -> list[Row]:
        """Raises hiredis.ProtocolError."""
        met = self._shape
        if len(data) == met.length and not self._rest and not self._is_parsing:
            # One command, as from a peer that waits for each reply.
            found = met.match_one(data)
            if found is not None:
                groups = found.groups()
                words: Words = [groups[0]] if len(groups) == 1 else [(groups[0], groups[1])]
                return [Row(met.name, words, is_shaped=True)]
        rows: list[Row] = []
        if self._is_parsing:
            self._parse(data, rows)
            return rows
        at = 0
        if self._rest:
            at = self._shape.length - len(self._rest)
            first = self._rest + data[:at]
            if len(data) < at:
                self._rest = first
                return rows
            self._rest = b""
            if not self._read(first, 0, rows):
                self._parse(first + data[at:], rows)
                return rows
        size = len(data)
        while at < size:
            end = self._read(data, at, rows)
            if not end:
                shape = _shape_at(data, at)
                if shape is not None and size - at < shape.length:
                    self._shape = shape
                    self._rest = data[at:]
                    return rows
                if shape is None or shape is self._shape:
                    self._parse(data[at:], rows)
                    return rows
                self._shape = shape
            else:
                at = end
        return rows

    def _read(self, data: bytes, at: int, rows: list[Row]) -> int:
        """Read commands of the shape met last; where they end, or 0 if there are none."""
        shape = self._shape
        words, end = shape.read(data, at)
        if not words:
            return 0
        if shape.name == READ:
            rows.append(Row(READ, words, is_shaped=True))
        else:
            rows.append(Row(shape.name, list(zip(words[::2], words[1::2], strict=True)), True))
        return end

    def _parse(self, data: bytes, rows: list[Row]) -> None:
        feed, gets = self._parser.feed, self._parser.gets
        name = b""
        row: list[list[bytes]] = []
        for start in range(0, len(data), _FED_BYTES):
            feed(data, start, min(_FED_BYTES, len(data) - start))
            while (words := gets()) is not False:
                if words[0] != name or not row:
                    name, row = words[0], []
                    rows.append(Row(name, row, is_shaped=False))
                row.append(words)
        self._is_parsing = self._parser.has_data()
