"""Which streams may hold entries that are too old: found by time, not by looking at each."""

from collections.abc import Iterator, Sequence
from typing import Final

from syncline.storage.log.runset import RunSet

_ROWS_AT_ONCE: Final = 65_536


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
