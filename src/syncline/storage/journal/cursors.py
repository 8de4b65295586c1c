"""The cursors of a stream: an append-only file, written anew when it is mostly history.

The state line says which file it is and how many of its bytes count. What stands behind them
belongs to a batch that was never finished, and is cut.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from syncline.storage.files import File
from syncline.storage.journal.format import (
    CURSOR_LINE_BYTES_MAX,
    Flaw,
    QueueState,
    encode_cursor,
    parse_cursor,
)
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.layout import cursor_file_id, cursor_name
from syncline.storage.journal.scan import BadLine, lines, read_around
from syncline.values.ids import StreamId

# Lines that may stand in a file beyond twice as many as it has cursors.
_HISTORY_LINE_COUNT: Final = 64

Report = Callable[[str, int, str], None]


@dataclass(slots=True)
class CursorFile:
    """What a cursor file holds; no file at all if there are no cursors."""

    file_id: str | None = None
    byte_count: int = 0
    line_count: int = 0
    positions: dict[bytes, int] = field(default_factory=dict[bytes, int])


def is_mostly_history(line_count: int, cursor_count: int) -> bool:
    return line_count > 2 * cursor_count + _HISTORY_LINE_COUNT


def encode_cursors(stream: StreamId, positions: Mapping[bytes, int | None]) -> bytes:
    return b"".join(encode_cursor(stream, name, seq) for name, seq in positions.items())


def read_cursors(
    stream: StreamId,
    folder: str,
    names: Sequence[str],
    state: QueueState,
    pool: HandlePool,
    *,
    is_certain: bool,
    report: Report,
) -> CursorFile:
    """Read the file that the state names.

    If the state is not certain and its file is gone, the line that can no longer be read named
    another one; the longest that is there is taken.
    """
    file_id = state.cursor_file
    byte_count: int | None = state.cursor_byte
    if not is_certain:
        byte_count = None
        if file_id is None or cursor_name(file_id) not in names:
            file_id = _longest(stream, folder, names, pool)
    if file_id is None:
        return CursorFile()
    name = cursor_name(file_id)
    if name not in names:
        report(name, 0, "the file is missing")
        return CursorFile()
    with pool.use(f"{folder}/{name}") as file:
        return _read(stream, file, name, file_id, byte_count, state.next, report)


def _read(
    stream: StreamId,
    file: File,
    name: str,
    file_id: str,
    byte_count: int | None,
    next_seq: int,
    report: Report,
) -> CursorFile:
    found = CursorFile(file_id)
    end = file.size()
    if byte_count is not None and end > byte_count:
        file.truncate(byte_count)
        file.sync()
        end = byte_count
    for item in lines(file, 0, CURSOR_LINE_BYTES_MAX):
        cursor = item.flaw if isinstance(item, BadLine) else parse_cursor(stream, item[1])
        offset = item.offset if isinstance(item, BadLine) else item[0]
        if isinstance(cursor, Flaw):
            if byte_count is None and cursor is Flaw.TORN:
                file.truncate(offset)
                file.sync()
                end = offset
                break
            report(name, offset, cursor.value)
            continue
        found.line_count += 1
        _apply(found.positions, *cursor, next_seq)
    if end and read_around(file, end - 1, 1) != b"\n":
        # Damage took the last newline: start anew rather than write behind half a line.
        found.line_count = 1 << 30
    elif byte_count is not None and end < byte_count:
        report(name, end, "the file ends early")
    found.byte_count = end
    return found


def _apply(positions: dict[bytes, int], name: bytes, seq: int | None, next_seq: int) -> None:
    if seq is None:
        positions.pop(name, None)
    elif seq <= next_seq:
        positions[name] = seq


def _longest(stream: StreamId, folder: str, names: Sequence[str], pool: HandlePool) -> str | None:
    sizes: list[tuple[int, str]] = []
    for name in names:
        file_id = cursor_file_id(name)
        if file_id is not None:
            with pool.use(f"{folder}/{name}") as file:
                is_ours = any(
                    not isinstance(item, BadLine)
                    and not isinstance(parse_cursor(stream, item[1]), Flaw)
                    for item in lines(file, 0, CURSOR_LINE_BYTES_MAX)
                )
                if is_ours:
                    sizes.append((file.size(), file_id))
    return max(sizes)[1] if sizes else None
