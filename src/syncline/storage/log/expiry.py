"""Which streams may hold entries that are too old, and how many of a queue are.

Streams are found by time, not by looking at each.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from syncline.storage.base import Entry, EntryKind
from syncline.storage.log.runset import RunSet
from syncline.values.ids import StreamId

_ROWS_AT_ONCE: Final = 65_536
_READ_TOGETHER: Final = 64
_READ_BYTES: Final = 1 << 20


def expiry_candidates(runs: RunSet, in_log: Sequence[bytes], time_ms: int) -> Iterator[bytes]:
    """Streams with rows older than `time_ms` in a run, then those with entries in the live log.

    Each once. A run whose newest row is young enough in part is walked row by row; one that is
    young as a whole is passed over.
    """
    seen: set[bytes] = set()
    for _, run in runs.runs():
        if run.lowest_time_ms >= time_ms:
            continue
        for start in range(0, run.row_count, _ROWS_AT_ONCE):
            rows = run.rows(start, min(_ROWS_AT_ONCE, run.row_count - start))
            for stream in rows["stream"][rows["time_ms"] < time_ms].tolist():
                if stream not in seen:
                    seen.add(stream)
                    yield stream
    for stream in in_log:
        if stream not in seen:
            seen.add(stream)
            yield stream


def end_of_old(
    read: Callable[[StreamId, int, int, int], list[Entry]],
    stream: StreamId,
    first: int,
    time_ms: int,
    count_max: int,
) -> int:
    """The sequence behind the messages of a queue, from `first` on, that are older than a time.

    No more than `count_max` are looked at. A quota marker is no message: it stays, and so does what
    follows it.
    """
    seq = first
    while seq - first < count_max:
        entries = read(stream, seq, min(count_max - (seq - first), _READ_TOGETHER), _READ_BYTES)
        for entry in entries:
            if entry.time_ms >= time_ms or entry.kind is not EntryKind.MESSAGE:
                return seq
            seq = entry.seq + 1
        if not entries:
            return seq
    return seq
