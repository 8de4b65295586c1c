"""All runs of a store as one: entries and snapshots that left the live log.

A sequence of a stream is in at most one place that counts: a row whose position is below the birth
of its stream belongs to an earlier stream of the same id, and is dropped when runs are merged.
"""

from collections.abc import Callable, Sequence

from syncline.errors import CorruptionError
from syncline.storage.base import Damage, Entry, EntryKind, Snapshot
from syncline.storage.files import Files
from syncline.storage.log.format import CLASS_ENTRY, KIND_MASK
from syncline.storage.log.run_rows import RunMeta, RunRow
from syncline.storage.log.runs import Run
from syncline.storage.log.streams import OpenStream
from syncline.values.ids import StreamId

_Found = tuple[RunRow, Run]


class RunSet:
    """The runs that the manifest lists, oldest first."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self.folder = folder
        self._runs: dict[str, Run] = {}
        self.damage: list[Damage] = []
        # Sequences that no run has, of each stream by its id and birth: looked for once.
        self._lost: dict[tuple[bytes, int], list[range]] = {}

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
        seq, count = from_seq, count_max
        while True:
            rows, behind = self._rows(opened, seq, end_seq, min(count, end_seq - seq))
            entries, is_cut = self._read(opened.stream, rows, count_max, bytes_max)
            if entries or behind == end_seq:
                return entries, not is_cut and behind == end_seq
            # None of these can be read: an empty answer would hide what comes behind them.
            seq, count = behind, 2 * count

    def _rows(
        self, opened: OpenStream, from_seq: int, end_seq: int, wanted: int
    ) -> tuple[list[_Found], int]:
        """The first `wanted` rows, in order, and the sequence below which there are no others."""
        rows = self._search(opened, from_seq, end_seq, wanted)
        behind = rows[-1][0].seq + 1 if len(rows) == wanted else end_seq
        if self._new_gaps(opened, rows, from_seq, behind):
            rows = self._look_everywhere(opened, from_seq, end_seq, wanted)
            behind = rows[-1][0].seq + 1 if len(rows) == wanted else end_seq
            self._report_lost(opened, self._new_gaps(opened, rows, from_seq, behind))
        return rows, behind

    def _search(self, opened: OpenStream, from_seq: int, end_seq: int, wanted: int) -> list[_Found]:
        rows: list[_Found] = []
        for run in self._runs.values():
            found = [
                (row, run)
                for row in run.entries(opened.stream, from_seq, wanted)
                if row.seq < end_seq and row.position >= opened.born
            ]
            rows += found
            is_stretch = len(found) == wanted and found[-1][0].seq == from_seq + wanted - 1
            if opened.born and is_stretch:
                # Without gap, and since its birth: no other run holds any of it. Where the slot was
                # lost that is not known, and rows of an earlier stream are met as well.
                rows = found
                break
        return _lowest(rows, wanted)

    def _look_everywhere(
        self, opened: OpenStream, from_seq: int, end_seq: int, wanted: int
    ) -> list[_Found]:
        """Entries that must exist were not found: a damaged key may have led the search astray.

        Every row is looked at. That is done for each read until the run is written anew, which is
        soon: it is reported for that.
        """
        rows: list[_Found] = []
        for run in self._runs.values():
            found = run.entries_anywhere(opened.stream, from_seq, wanted, opened.born)
            rows += [(row, run) for row in found if row.seq < end_seq]
        self._report_unsound()
        return _lowest(rows, wanted)

    def _new_gaps(
        self, opened: OpenStream, rows: list[_Found], from_seq: int, behind: int
    ) -> list[range]:
        """Stretches of sequences that none of the rows has and that are not known to be lost."""
        gaps: list[range] = []
        expected = from_seq
        for seq in [*(row.seq for row, _ in rows), behind]:
            if seq > expected:
                gaps.append(range(expected, seq))
            expected = max(expected, seq + 1)
        known = self._lost.get((opened.stream, opened.born), ())
        return [
            gap
            for gap in gaps
            if not any(lost.start <= gap.start and gap.stop <= lost.stop for lost in known)
        ]

    def _report_lost(self, opened: OpenStream, gaps: list[range]) -> None:
        if not gaps:
            return
        self._lost.setdefault((opened.stream, opened.born), []).extend(gaps)
        # Of no single run: none of them would be better for being written anew.
        reason = "entries are in no run any more"
        count = sum(map(len, gaps))
        stream = StreamId(opened.stream)
        self.report(Damage(self.folder, 0, reason, stream, gaps[0].start, count))

    def _read(
        self, stream: bytes, rows: list[_Found], count_max: int, bytes_max: int
    ) -> tuple[list[Entry], bool]:
        """The entries that can be read, and whether a limit cut the list off."""
        entries: list[Entry] = []
        size = 0
        for row, run in rows:
            if entries and (len(entries) == count_max or size + row.length > bytes_max):
                return entries, True
            payload = self._payload(stream, row, run)
            if payload is not None:
                kind = EntryKind(row.kind & KIND_MASK)
                entries.append(Entry(row.seq, row.time_ms, payload, kind))
                size += row.length
        return entries, False

    def snapshot(self, opened: OpenStream) -> Snapshot | None:
        """The newest that can be read; those that cannot are reported."""
        return self._newest(opened, lambda run: [run.snapshot(opened.stream)])

    def snapshot_anywhere(self, opened: OpenStream) -> Snapshot | None:
        """The same by looking at every row: one that must exist was not found."""
        self._report_unsound()
        return self._newest(opened, lambda run: run.snapshots_anywhere(opened.stream))

    def _newest(
        self, opened: OpenStream, rows_of: Callable[[Run], Sequence[RunRow | None]]
    ) -> Snapshot | None:
        found = [
            (row, run)
            for run in self._runs.values()
            for row in rows_of(run)
            if row is not None and row.position >= opened.born
        ]
        found.sort(key=lambda each: each[0].position, reverse=True)
        for row, run in found:
            payload = self._payload(opened.stream, row, run)
            if payload is not None:
                return Snapshot(row.seq, row.time_ms, payload)
        return None

    def _report_unsound(self) -> None:
        for run in self._runs.values():
            if not run.is_index_sound():
                self.report(run.index_damage())

    def _payload(self, stream: bytes, row: RunRow, run: Run) -> bytes | None:
        try:
            return run.payload(row)
        except CorruptionError as error:
            lost = (row.seq, 1) if row.row_class == CLASS_ENTRY else (None, 0)
            place = error.file, error.offset, error.reason
            self.report(Damage(*place, StreamId(stream), *lost))
            return None

    def report(self, damage: Damage) -> None:
        """Each place once, however often it is read."""
        if damage not in self.damage:
            self.damage.append(damage)

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs.clear()


def _lowest(rows: list[_Found], count: int) -> list[_Found]:
    """The first by sequence; of equal ones that which was written last."""
    newest: dict[int, _Found] = {}
    for found in sorted(rows, key=lambda found: found[0].position):
        newest[found[0].seq] = found
    return [newest[seq] for seq in sorted(newest)[:count]]
