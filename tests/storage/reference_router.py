"""Writes message folders as the reference router does: text files, a journal per queue.

Independent of the importer: made from the description of the layout alone.
"""

from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path

QUOTA = 128
JOURNAL_MESSAGE_COUNT_MAX = 256


def text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode("ascii")


@dataclass
class _Journal:
    journal_id: str
    message_position: int = 0
    message_count: int = 0
    byte_position: int = 0
    byte_count: int = 0

    def __str__(self) -> str:
        return (
            f"{self.journal_id},{self.message_position},{self.message_count},"
            f"{self.byte_position},{self.byte_count}"
        )


@dataclass
class ReferenceQueue:
    """One queue of the reference router, with its two positions."""

    root: Path
    recipient_id: bytes
    quota: int = QUOTA
    journal_message_count_max: int = JOURNAL_MESSAGE_COUNT_MAX
    can_write: bool = True
    size: int = 0
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        name = text(self.recipient_id)
        parts = [name[:2], name[2:4], name[4:6], name[6:8], name[8:]]
        self.folder = self.root.joinpath(*parts)
        self.folder.mkdir(parents=True)
        self.state_path = self.folder / f"queue_state.{name}.log"
        self.journal_number = 0
        self.write = self.new_journal()
        self.read = self.write

    def new_journal(self) -> _Journal:
        self.journal_number += 1
        journal_id = text(bytes(11) + bytes([self.journal_number]))
        journal = _Journal(journal_id)
        self.journal_path(journal).touch()
        return journal

    def journal_path(self, journal: _Journal) -> Path:
        return self.folder / f"messages.{journal.journal_id}.log"

    def send(self, message_id: bytes, time: str, body: bytes, flags: str = "T") -> bool:
        """Append a message, or a quota marker once; was it taken?"""
        if not self.can_write and self.size > 0:
            return False
        self.can_write = self.size < self.quota
        if self.can_write:
            line = f"{text(message_id)} {time} flags={flags} {text(body)}\n"
        else:
            line = f"{text(message_id)} {time} quota\n"
        if self.write is self.read and self.write.message_count >= self.journal_message_count_max:
            self.write = self.new_journal()
        with self.journal_path(self.write).open("a", encoding="ascii") as file:
            file.write(line)
        for position in ("message_position", "message_count"):
            if self.write is not self.read or position == "message_count":
                setattr(self.write, position, getattr(self.write, position) + 1)
        for position in ("byte_position", "byte_count"):
            if self.write is not self.read or position == "byte_count":
                setattr(self.write, position, getattr(self.write, position) + len(line))
        self.size += 1
        self.lengths.append(len(line))
        self.log_state()
        return self.can_write

    def acknowledge(self) -> None:
        """The head is read: positions move, a used up journal is left."""
        self.read.message_position += 1
        self.read.byte_position += self.lengths.pop(0)
        self.size -= 1
        is_used_up = self.read.message_position >= self.read.message_count
        if is_used_up and self.read is not self.write:
            self.journal_path(self.read).unlink()
            self.read = _Journal(
                self.write.journal_id, 0, self.write.message_count, 0, self.write.byte_count
            )
            self.write = self.read
        self.log_state()

    def state_line(self) -> str:
        written = _Journal(
            self.write.journal_id,
            self.write.message_count,
            self.write.message_count,
            self.write.byte_count,
            self.write.byte_count,
        )
        can_write = "T" if self.can_write else "F"
        return f"write={written} read={self.read} canWrite={can_write} size={self.size}\n"

    def log_state(self) -> None:
        with self.state_path.open("a", encoding="ascii") as file:
            file.write(self.state_line())
