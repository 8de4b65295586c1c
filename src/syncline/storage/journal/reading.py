"""Reading the message files of a queue as it is opened: what is there, torn or lost."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from syncline.storage.base import Damage
from syncline.storage.files import File
from syncline.storage.journal.format import Flaw, QueueState
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.index import EntryIndex, Place
from syncline.storage.journal.layout import message_file_id, message_name
from syncline.storage.journal.scan import BadLine, messages, read_around
from syncline.values.ids import StreamId


@dataclass(slots=True)
class Findings:
    """What is wrong with a queue."""

    stream: StreamId
    folder: str
    damage: list[Damage] = field(default_factory=list[Damage])
    # Where something was cut: path and offset.
    torn_tails: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def report(self, name: str, offset: int, reason: str) -> None:
        self.damage.append(Damage(f"{self.folder}/{name}", offset, reason, self.stream))

    def lose(self, name: str, offset: int, reason: str, first: int, end: int) -> None:
        """Entries from `first` up to `end` are gone."""
        self.damage.append(
            Damage(f"{self.folder}/{name}", offset, reason, self.stream, first, end - first)
        )


class MessageReader:
    """Fills an index file by file, in the order of their sequences."""

    def __init__(
        self,
        stream: StreamId,
        folder: str,
        names: list[str],
        pool: HandlePool,
        findings: Findings,
    ) -> None:
        self.stream = stream
        self.folder = folder
        self.names = names
        self.pool = pool
        self.findings = findings
        self.index = EntryIndex()
        # The file read last ends within a line.
        self.needs_newline = False

    def has(self, file_id: str) -> bool:
        return message_name(file_id) in self.names

    def read_sealed(self, file_id: str, start: int, expected: int, known_next: int) -> None:
        """Read a file that nothing is added to: it reaches `known_next`, or has lost something."""
        self._read(file_id, start, expected, known_next, None)

    def read_open(
        self, file_id: str, start: int, expected: int, known_next: int, known_bytes: int
    ) -> tuple[int, int]:
        """Read the file that is added to; return its next sequence and where it ends.

        It is known to reach `known_next` within `known_bytes`. Beyond them, whatever is not the
        next whole message was on its way when the process died, and is cut.
        """
        return self._read(file_id, start, expected, known_next, known_bytes)

    def continuation(self, state: QueueState, is_lost: bool) -> tuple[str, int] | None:
        """A message file that no line names and that goes on where the named ones end.

        With `is_lost` the named ones are gone: then the newest two are the ones in use.
        """
        named = {state.read_file, state.write_file}
        found = sorted(
            (place.seq, file_id) for file_id, place in self._starts() if file_id not in named
        )
        later = [item for item in found if item[0] >= state.next]
        chosen = later[-2:] if is_lost else [item for item in later if item[0] == state.next]
        return (chosen[0][1], chosen[0][0]) if chosen else None

    def _starts(self) -> Iterator[tuple[str, Place]]:
        """The first message of each message file that has one."""
        for name in self.names:
            file_id = message_file_id(name)
            if file_id is None:
                continue
            with self.pool.use(f"{self.folder}/{name}") as file:
                for item in messages(file, self.stream, 0):
                    if isinstance(item, Place):
                        yield file_id, item
                        break

    def _read(
        self, file_id: str, start: int, expected: int, known_next: int, known_bytes: int | None
    ) -> tuple[int, int]:
        name = message_name(file_id)
        self.needs_newline = False
        if name not in self.names:
            if expected < known_next:
                self.findings.lose(name, 0, "the file is missing", expected, known_next)
            return max(expected, known_next), 0
        with self.pool.use(f"{self.folder}/{name}") as file:
            return self._read_lines(file, name, start, expected, known_next, known_bytes)

    def _read_lines(
        self,
        file: File,
        name: str,
        start: int,
        expected: int,
        known_next: int,
        known_bytes: int | None,
    ) -> tuple[int, int]:
        end = file.size()
        last_end = min(start, end)
        bad: BadLine | None = None
        for item in messages(file, self.stream, start):
            if isinstance(item, Place) and expected <= item.seq <= max(expected, known_next):
                if expected < item.seq:
                    self._lose(name, bad, last_end, "a line is missing", expected, item.seq)
                elif bad is not None:
                    self.findings.report(name, bad.offset, bad.flaw.value)
                self.index.append(item)
                expected, last_end, bad = item.seq + 1, item.end, None
            elif known_bytes is not None and item.offset >= known_bytes:
                self._cut(file, item.offset)
                end = item.offset
                break
            elif bad is None:
                bad = _as_bad(item)
        if expected < known_next:
            self._lose(name, bad, last_end, "the file ends early", expected, known_next)
        elif bad is not None:
            self.findings.report(name, bad.offset, bad.flaw.value)
        self.needs_newline = end > 0 and read_around(file, end - 1, 1) != b"\n"
        return max(expected, known_next), end

    def _lose(
        self, name: str, bad: BadLine | None, offset: int, reason: str, first: int, end: int
    ) -> None:
        if bad is not None:
            offset, reason = bad.offset, bad.flaw.value
        self.findings.lose(name, offset, reason, first, end)

    def _cut(self, file: File, offset: int) -> None:
        file.truncate(offset)
        # Before anything is written in its place: what was cut must not come back behind that.
        file.sync()
        self.findings.torn_tails.append((file.path, offset))


def _as_bad(item: Place | BadLine) -> BadLine:
    """A whole line whose sequence has no place here is as bad as an unreadable one."""
    if isinstance(item, BadLine):
        return item
    return BadLine(item.offset, item.length, Flaw.FORM)
