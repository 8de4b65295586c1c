"""queue.log: which of its lines is the state, how it is replaced, which backups stay.

- The last whole line is the state. Lines are absolute, so an unreadable one before it costs
  nothing.
- Bytes after the last whole line mean that the state is not certain: a line was torn by a crash
  (then what it said was never acknowledged) or damaged later (then it may have been).
- A fresh queue.log holds its line twice with an empty one between, so that damage to either leaves
  the other.
- It is replaced by a draft that is synced and renamed; the old lines stay in a backup with the time
  in its name. Backups beyond the newest few go once they are old, and always beyond a bound.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from syncline.storage.files import Files
from syncline.storage.journal.format import Flaw, QueueState, encode_state, parse_state
from syncline.storage.journal.layout import STATE_DRAFT_NAME, STATE_NAME, backup_time_ms
from syncline.storage.journal.scan import read_around
from syncline.storage.options import StoreOptions
from syncline.values.ids import StreamId

# A reader looks at no more than this end of a queue.log, whatever its size.
STATE_TAIL_BYTES: Final = 1024 * 1024
# A busy queue replaces its queue.log many times within the age that backups are kept.
BACKUP_COUNT_MAX: Final = 16
FRESH_LINE_COUNT: Final = 3


@dataclass(frozen=True, slots=True)
class StateLog:
    """What was found in a queue.log."""

    state: QueueState | None
    line_count: int
    # Where the line of the state ends, and where the file does.
    state_end: int
    size: int
    # Unreadable lines with a whole one behind them: damage, not a torn end.
    flawed_offsets: tuple[int, ...] = ()

    @property
    def is_certain(self) -> bool:
        return self.state is not None and self.state_end == self.size


def read_state_log(stream: StreamId, data: bytes, start: int = 0) -> StateLog:
    """Read the bytes from `start` on; unless it is 0 they may begin within a line."""
    state: QueueState | None = None
    state_end = offset = start
    flawed: list[int] = []
    flawed_since_state: list[int] = []
    lines = _lines(data)
    for number, line in enumerate(lines):
        found = parse_state(stream, line)
        if not isinstance(found, Flaw):
            state = found
            state_end = offset + len(line)
            flawed += flawed_since_state
            flawed_since_state = []
        elif line == b"\n":
            state_end += state_end == offset
        elif number or not start:
            flawed_since_state.append(offset)
        offset += len(line)
    return StateLog(state, len(lines), state_end, start + len(data), tuple(flawed))


def fresh_lines(stream: StreamId, state: QueueState) -> bytes:
    """The contents of a new queue.log."""
    line = encode_state(stream, state)
    return b"%b\n%b" % (line, line)


def expired_backups(names: Iterable[str], now_ms: int, options: StoreOptions) -> list[str]:
    """Which of the backups in a folder go now."""
    times = {name: backup_time_ms(name) for name in names}
    dated = sorted(
        ((time_ms, name) for name, time_ms in times.items() if time_ms is not None), reverse=True
    )
    return [
        name
        for rank, (time_ms, name) in enumerate(dated)
        if rank >= BACKUP_COUNT_MAX
        or (
            rank >= options.state_backup_count_min
            and time_ms < now_ms - options.state_backup_age_ms_max
        )
    ]


def draft_state_log(
    files: Files,
    folder: str,
    contents: bytes,
    backup_name: str | None,
    *,
    is_durable: bool,
) -> int:
    """Write the successor of queue.log beside it, and the lines it has to their backup.

    Nothing has changed before `swap_state_log`. Returns by how many bytes the folder will grow.
    """
    lines = _read_tail(files, f"{folder}/{STATE_NAME}")
    if backup_name is not None:
        _write_new(files, f"{folder}/{backup_name}", lines, is_durable)
    _write_new(files, f"{folder}/{STATE_DRAFT_NAME}", contents, is_durable)
    return len(contents) - (len(lines) if backup_name is None else 0)


def swap_state_log(files: Files, folder: str, *, is_durable: bool) -> None:
    files.rename(f"{folder}/{STATE_DRAFT_NAME}", f"{folder}/{STATE_NAME}")
    if is_durable:
        files.sync_folder(folder)


def _read_tail(files: Files, path: str) -> bytes:
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return b""
    try:
        size = file.size()
        return read_around(file, max(0, size - STATE_TAIL_BYTES), STATE_TAIL_BYTES)
    finally:
        file.close()


def _write_new(files: Files, path: str, data: bytes, is_durable: bool) -> None:
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, [data])
        if is_durable:
            file.sync()
    finally:
        file.close()


def _lines(data: bytes) -> list[bytes]:
    """Cut after each newline and nowhere else."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]
