"""What a writer tells of its work, one line for each event, and how a test reads it back.

    opening              the store is about to be opened
    staged <record>      the record, pickled, in base64
    marker <stream> <ms> a quota marker took the place of a message
    taken <0 or 1>       a batch is taken, without or with the acknowledgements
    finished             it is durable: the acknowledgement
    finished but acks    the same, but there was no room for what was read
    first <stream> <seq> opened again after that, the store shows this
    refused              there was no room for it, and all that is staged is taken back
    closed               the store was closed in order

- A record is reported before anything can write it: whatever is found on the disk was told of.
- `finished` is reported after `finish_batch`. A line without its end does not count.
"""

import os
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from pathlib import Path

from syncline.testing.oracle import Oracle, _Versions
from syncline.values.ids import StreamId
from syncline.values.records import Record

FINISHED = b"finished\n"
FINISHED_BUT_ACKS = b"finished but acks\n"
_ACKNOWLEDGED = b"\n" + FINISHED


class Reporter:
    """A history that is written to a file, for a process that does not live to tell it."""

    def __init__(self, path: str) -> None:
        # How many streams have acknowledgements that no batch took.
        self.held_back_count: Callable[[], int] = lambda: 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def opening(self) -> None:
        self._write(b"opening\n")

    def staged(self, record: Record) -> None:
        self._write(b"staged %b\n" % b64encode(pickle.dumps(record)))

    def marker_staged(self, stream: StreamId, now_ms: int) -> None:
        self._write(b"marker %s %d\n" % (str(stream).encode("ascii"), now_ms))

    def batch_taken(self, *, acknowledgements: bool) -> None:
        self._write(b"taken %d\n" % acknowledgements)

    def batch_finished(self) -> None:
        self._write(FINISHED_BUT_ACKS if self.held_back_count() else FINISHED)

    def batch_refused(self) -> None:
        self._write(b"refused\n")

    def first_found(self, stream: StreamId, seq: int) -> None:
        self._write(b"first %s %d\n" % (str(stream).encode("ascii"), seq))

    def closed(self) -> None:
        self._write(b"closed\n")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


class EarlyReporter(Reporter):
    """Acknowledges what is staged and not yet written. Made to be caught."""

    def staged(self, record: Record) -> None:
        super().staged(record)
        self.batch_taken(acknowledgements=True)
        self.batch_finished()


class PatientOracle(Oracle):
    """One that also knows what a full disk does to a store."""

    def batch_refused(self) -> None:
        """What no finished batch held is taken back, but for what was read."""
        for stream, lives in list(self._lives.items()):
            self._lives[stream] = [life for life in lives if life.exists.durable]
            for life in self._lives[stream]:
                life.exists = type(life.exists)(True)
                life.next = type(life.next)(life.next.durable)
                life.snapshot = type(life.snapshot)(life.snapshot.durable)
                life.cursors = {
                    name: type(versions)(versions.durable)
                    for name, versions in life.cursors.items()
                }
                life.entries = {
                    seq: entry for seq, entry in life.entries.items() if seq < life.next.durable
                }
                seqs = [min(seq, life.next.durable) for seq in life.first.values]
                life.first = self._untaken(life.first, seqs)

    def acknowledgements_held_back(self) -> None:
        """The batch that was taken left them out."""
        for lives in self._lives.values():
            for life in lives:
                life.first = self._untaken(life.first, life.first.values)

    def first_found(self, stream: StreamId, seq: int) -> None:
        """The store forgot some of what was read, or it did not: go on from there."""
        life = self._life(stream)
        assert seq in life.first.values, f"{stream} starts at {seq}, not at {life.first.values}"
        life.first = type(life.first)(seq)

    @staticmethod
    def _untaken(versions: _Versions[int], seqs: list[int]) -> _Versions[int]:
        """The same values, none of them in a batch that is under way."""
        untaken = type(versions)(seqs[0])
        for seq in seqs[1:]:
            untaken.put(seq)
        return untaken


def finished_count(report: Path) -> int:
    """How many batches were acknowledged so far."""
    return report.read_bytes().count(_ACKNOWLEDGED) if report.exists() else 0


def lines_of(report: Path, heard_bytes: int | None = None) -> list[bytes]:
    """Every whole line, but no acknowledgement that ends behind `heard_bytes`."""
    if not report.exists():
        return []
    data = report.read_bytes()
    heard = len(data) if heard_bytes is None else data.rfind(b"\n", 0, heard_bytes) + 1
    later = data[heard:].split(b"\n")[:-1]
    return [
        *data[:heard].split(b"\n")[:-1],
        *(line for line in later if not line.startswith(FINISHED.strip())),
    ]


def tell(oracle: PatientOracle, lines: Iterable[bytes]) -> None:
    """Let an oracle hear what a writer reported."""
    for line in lines:
        word, _, rest = line.partition(b" ")
        match word:
            case b"staged":
                oracle.staged(pickle.loads(b64decode(rest)))
            case b"marker":
                stream, now_ms = rest.split()
                oracle.marker_staged(StreamId.parse(stream.decode("ascii")), int(now_ms))
            case b"taken":
                oracle.batch_taken(acknowledgements=rest == b"1")
            case b"finished":
                if rest:
                    oracle.acknowledgements_held_back()
                oracle.batch_finished()
            case b"first":
                stream, seq = rest.split()
                oracle.first_found(StreamId.parse(stream.decode("ascii")), int(seq))
            case b"refused":
                oracle.batch_refused()
            case b"opening" | b"closed":
                pass
            case _:
                raise ValueError(f"a report has no line {line[:40]!r}")
