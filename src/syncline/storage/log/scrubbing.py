"""Re-reads what is sealed, a stretch at a time: damage is found before somebody needs it."""

from collections.abc import Callable, Iterator
from typing import Final

from syncline.storage.base import Damage
from syncline.storage.log.format import SLOT_BYTES
from syncline.storage.log.runset import RunSet
from syncline.storage.log.table import Table
from syncline.values.ids import StreamId

_STRETCH_BYTES: Final = 1 << 20


class Scrubber:
    """Walks over runs and table slots, round after round."""

    def __init__(self, runs: RunSet, table: Table, report: Callable[[Damage], None]) -> None:
        self._runs = runs
        self._table = table
        self._report = report
        self._walk: Iterator[int] | None = None

    def scrub(self, bytes_max: int) -> int:
        """Check about `bytes_max` bytes; 0 once a round is complete, then the next one begins."""
        if self._walk is None:
            self._walk = self._round()
        done = 0
        for count in self._walk:
            done += count
            if done >= bytes_max:
                return done
        self._walk = iter(()) if done else None
        return done

    def _round(self) -> Iterator[int]:
        for name in self._runs.names:
            yield from self._scrub_run(name)
        yield from self._scrub_table()

    def _scrub_run(self, name: str) -> Iterator[int]:
        start = 0
        while True:
            # It may have been merged away since the last stretch.
            run = dict(self._runs.runs()).get(name)
            if run is None or start >= run.row_count:
                return
            step = run.verify_rows(start, _STRETCH_BYTES)
            for found in step.damage:
                self._runs.report(found)
            start = step.next_row
            yield step.byte_count

    def _scrub_table(self) -> Iterator[int]:
        path = self._table.paths()[0]
        for damaged in self._table.damaged_images(_STRETCH_BYTES // SLOT_BYTES):
            for offset, image in damaged:
                reason = "a slot fails its checksum"
                self._report(Damage(path, offset, reason, StreamId(image[:24])))
            yield _STRETCH_BYTES
