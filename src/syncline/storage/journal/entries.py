"""Reading entries and snapshots of an open queue back from its files, checked once more."""

from collections.abc import Callable
from typing import Final

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, Entry, Snapshot
from syncline.storage.journal.format import Flaw, parse_message, parse_snapshot
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.index import Place
from syncline.storage.journal.layout import message_name, snapshot_name
from syncline.storage.journal.queue import OpenQueue
from syncline.storage.journal.recovery import SNAPSHOT_FILE_BYTES_MAX
from syncline.storage.journal.scan import read_around
from syncline.values import limits

# Lines lie side by side, so one read serves several of them.
_WINDOW_BYTES: Final = 64 * 1024

Report = Callable[[Damage], None]


class EntryReader:
    """Reads one queue. Damage is reported and left out."""

    def __init__(self, queue: OpenQueue, folder: str, pool: HandlePool, report: Report) -> None:
        self._queue = queue
        self._folder = folder
        self._pool = pool
        self._report = report
        self._window = b""
        self._window_file: str = ""
        self._window_start = 0

    def read(self, from_seq: int, count_max: int, bytes_max: int) -> list[Entry]:
        """Durable entries from `from_seq` and the first wanted one on; at least one if there is."""
        queue = self._queue
        count_max = min(count_max, limits.read_count_max)
        bytes_left = min(bytes_max, limits.read_bytes_max)
        entries: list[Entry] = []
        for place in queue.index.places_from(max(from_seq, queue.first)):
            if place.seq >= queue.state.next or len(entries) >= count_max:
                break
            entry = self.entry(place)
            if entry is None:
                continue
            bytes_left -= len(entry.payload)
            if entries and bytes_left < 0:
                break
            entries.append(entry)
        return entries

    def entry(self, place: Place) -> Entry | None:
        line = self._line(place)
        found = parse_message(self._queue.stream, line)
        if not isinstance(found, Flaw) and found.seq == place.seq:
            return found
        flaw = found if isinstance(found, Flaw) else Flaw.FORM
        path = f"{self._folder}/{self._name(place)}"
        self._report(Damage(path, place.offset, flaw.value, self._queue.stream, place.seq, 1))
        return None

    def check(self, place: Place) -> bool:
        """Read an entry from the device, past what the system remembers of it."""
        try:
            with self._pool.use(f"{self._folder}/{self._name(place)}") as file:
                file.forget_cached(place.offset, place.length)
        except FileNotFoundError:
            pass
        self._window = b""
        return self.entry(place) is not None

    def snapshot(self) -> Snapshot | None:
        """Raises CorruptionError: without its snapshot a document is not an empty one."""
        queue = self._queue
        if queue.state.snapshot_file is None:
            return None
        path = f"{self._folder}/{snapshot_name(queue.state.snapshot_file)}"
        try:
            with self._pool.use(path) as file:
                found = parse_snapshot(queue.stream, read_around(file, 0, SNAPSHOT_FILE_BYTES_MAX))
        except FileNotFoundError:
            found = Flaw.TORN
        if isinstance(found, Flaw):
            self._report(Damage(path, 0, f"the snapshot: {found.value}", queue.stream))
            reason = f"the snapshot of document {queue.stream} cannot be read"
            raise CorruptionError(path, 0, reason)
        return found

    def _name(self, place: Place) -> str:
        state = self._queue.state
        is_in_write_file = place.seq >= state.write_first
        return message_name(state.write_file if is_in_write_file else state.read_file)

    def _line(self, place: Place) -> bytes:
        name = self._name(place)
        start = place.offset - self._window_start
        is_inside = (
            name == self._window_file and start >= 0 and start + place.length <= len(self._window)
        )
        if not is_inside:
            try:
                with self._pool.use(f"{self._folder}/{name}") as file:
                    length = max(place.length, _WINDOW_BYTES)
                    self._window = read_around(file, place.offset, length)
            except FileNotFoundError:
                self._window = b""
            self._window_file, self._window_start = name, place.offset
            start = 0
        return self._window[start : start + place.length]
