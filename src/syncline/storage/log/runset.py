"""All runs of a store as one: entries and snapshots that left the live log.

A sequence of a stream is in at most one place that counts: a row whose position is below the birth
of its stream belongs to an earlier stream of the same id, and is dropped when runs are merged.
"""

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, Entry, EntryKind, Snapshot
from syncline.storage.files import Files
from syncline.storage.log.format import KIND_MASK
from syncline.storage.log.run_rows import RunMeta, RunRow
from syncline.storage.log.runs import Run
from syncline.storage.log.streams import OpenStream
from syncline.values.ids import StreamId


class RunSet:
    """The runs that the manifest lists, oldest first."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.folder = folder
        self._runs: dict[str, Run] = {}
        self.damage: list[Damage] = []

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def open(self, listed: list[RunMeta]) -> None:
        """Open what is listed; a run that cannot be opened is damage, the others are served."""
        for run in listed:
            try:
                self.add(run)
            except FileNotFoundError:
                self.damage.append(Damage(self.path(run.name), 0, "a listed run is missing"))
            except CorruptionError as error:
                self.damage.append(Damage(error.file, error.offset, error.reason))

    def add(self, listed: RunMeta) -> None:
        """Raises FileNotFoundError or CorruptionError."""
        run = Run.open(self._files, self.path(listed.name), listed)
        self._runs[listed.name] = run
        if run.footer_damage is not None:
            self.report(run.footer_damage)

    def drop(self, name: str) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            run.close()

    @property
    def names(self) -> list[str]:
        return list(self._runs)

    def runs(self) -> list[tuple[str, Run]]:
        return list(self._runs.items())

    @property
    def file_bytes(self) -> int:
        return sum(run.data_bytes for run in self._runs.values())

    def entries(
        self, opened: OpenStream, from_seq: int, end_seq: int, count_max: int, bytes_max: int
    ) -> tuple[list[Entry], bool]:
        """Entries from `from_seq` to below `end_seq`, in order, whatever run they are in.

        And whether that is all of them: False if a limit cut the list off.
        """
        wanted = min(count_max, end_seq - from_seq)
        rows: list[tuple[RunRow, Run]] = []
        for run in self._runs.values():
            found = [
                (row, run)
                for row in run.entries(opened.stream, from_seq, wanted)
                if row.seq < end_seq and row.position >= opened.born
            ]
            rows += found
            if len(found) == wanted and found[-1][0].seq == from_seq + wanted - 1:
                # A stretch without gap: no other run holds any of it.
                rows = found
                break
        is_all = len(rows) < wanted or wanted == end_seq - from_seq
        if len(rows) < wanted:
            rows = self._look_everywhere(opened, from_seq, end_seq, rows)
        rows.sort(key=lambda found: found[0].seq)
        entries: list[Entry] = []
        size = 0
        for row, run in rows[:wanted]:
            if entries and size + row.length > bytes_max:
                return entries, False
            payload = self._payload(opened.stream, row, run)
            if payload is not None:
                kind = EntryKind(row.kind & KIND_MASK)
                entries.append(Entry(row.seq, row.time_ms, payload, kind))
                size += row.length
        return entries, is_all

    def _look_everywhere(
        self,
        opened: OpenStream,
        from_seq: int,
        end_seq: int,
        found: list[tuple[RunRow, Run]],
    ) -> list[tuple[RunRow, Run]]:
        """Entries that must exist were not found: a damaged key may have led the search astray.

        Every row is looked at, once for each stream; what is still missing is lost.
        """
        stream = StreamId(opened.stream)
        if any(damage.stream == stream for damage in self.damage):
            return found
        rows = [
            (row, run)
            for run in self._runs.values()
            for row in run.entries_anywhere(stream, from_seq, end_seq - from_seq)
            if row.seq < end_seq and row.position >= opened.born
        ]
        have = {row.seq for row, _ in rows}
        missing = [seq for seq in range(from_seq, end_seq) if seq not in have]
        if missing:
            # Of no single run: none of them would be better for being written anew.
            reason = "entries are in no run any more"
            self.report(Damage(self.folder, 0, reason, stream, missing[0], len(missing)))
        return rows

    def snapshot(self, opened: OpenStream) -> Snapshot | None:
        """The newest that can be read; those that cannot are reported."""
        found: list[tuple[RunRow, Run]] = []
        for run in self._runs.values():
            row = run.snapshot(opened.stream)
            if row is not None and row.position >= opened.born:
                found.append((row, run))
        found.sort(key=lambda each: each[0].position, reverse=True)
        for row, run in found:
            payload = self._payload(opened.stream, row, run)
            if payload is not None:
                return Snapshot(row.seq, row.time_ms, payload)
        return None

    def _payload(self, stream: bytes, row: RunRow, run: Run) -> bytes | None:
        try:
            return run.payload(row)
        except CorruptionError as error:
            place = error.file, error.offset, error.reason
            self.report(Damage(*place, StreamId(stream), row.seq, 1))
            return None

    def report(self, damage: Damage) -> None:
        """Each place once, however often it is read."""
        if damage not in self.damage:
            self.damage.append(damage)

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs.clear()
