"""Where a queue lives: its id cut into a path, and the names of the files in its folder.

Pure: text in, text out. The id as 32 base64url characters is cut into `fragment_count` fragments of
`fragment_characters` each; what is left names the folder of the queue. With two of two:

    messages/ab/cd/efghijklmnopqrstuvwxyz012345/
        queue.log                 its last whole line is the state
        queue.1700000000000.log   an earlier queue.log, by the time when it was replaced
        messages.<file id>.log    the read file, and the write file if it is another one
        snapshot.<file id>.bin
        cursors.<file id>.log

Names that start with a dot are folders on their way in or out, and never a fragment: base64url has
no dot. A fragment and the rest are told apart by their length, so two depths can share a tree while
queues move from one to the other.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from syncline.errors import ConfigError, MalformedMessageError
from syncline.storage.journal.format import FILE_ID_CHARACTERS
from syncline.values.ids import STREAM_ID_CHARACTERS, StreamId

ROOT_NAME: Final = "messages"
STATE_NAME: Final = "queue.log"
STATE_DRAFT_NAME: Final = "queue.log.new"
TRANSIENT_PREFIX: Final = "."

_ID = rf"([A-Za-z0-9_-]{{{FILE_ID_CHARACTERS}}})"
_FILE_NAME = re.compile(
    rf"(?:messages\.{_ID}\.log|snapshot\.{_ID}\.bin|cursors\.{_ID}\.log)", re.ASCII
)
_BACKUP_NAME = re.compile(r"queue\.(0|[1-9]\d{0,17})\.log", re.ASCII)
_LINE = re.compile(
    r"fragments=(\d{1,2}) characters=(\d{1,2})"
    r"(?: from_fragments=(\d{1,2}) from_characters=(\d{1,2}))?\n",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How ids are cut."""

    fragment_count: int
    fragment_characters: int

    def __post_init__(self) -> None:
        cut = self.fragment_count * self.fragment_characters
        if self.fragment_count < 0 or self.fragment_characters < 1 or cut >= STREAM_ID_CHARACTERS:
            raise ConfigError(
                f"{self.fragment_count} path fragments of {self.fragment_characters} characters "
                f"cannot be cut from an id of {STREAM_ID_CHARACTERS}; leave at least one, "
                "for example with two fragments of two"
            )

    @property
    def rest_characters(self) -> int:
        return STREAM_ID_CHARACTERS - self.fragment_count * self.fragment_characters

    def name_characters(self, level: int) -> int:
        """The length of a name that many levels below the root, counted from 0."""
        is_fragment = level < self.fragment_count
        return self.fragment_characters if is_fragment else self.rest_characters

    def path(self, stream: StreamId) -> str:
        """The folder of a queue below the root."""
        text, size = str(stream), self.fragment_characters
        cuts = [text[index * size : (index + 1) * size] for index in range(self.fragment_count)]
        return "/".join([*cuts, text[self.fragment_count * size :]])

    def stream(self, path: str) -> StreamId | None:
        """The queue whose folder this is; None if it is the folder of none."""
        names = path.split("/")
        lengths = [self.name_characters(level) for level in range(self.fragment_count + 1)]
        if [len(name) for name in names] != lengths:
            return None
        try:
            return StreamId.parse("".join(names))
        except (MalformedMessageError, UnicodeEncodeError):
            return None


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a migration: a folder and where it goes, both below the root."""

    source: str
    target: str


def migration(streams: Iterable[StreamId], source: Layout, target: Layout) -> Iterator[Move]:
    """What has to move for a tree of one depth to become one of another."""
    if source == target:
        return
    for stream in streams:
        yield Move(source.path(stream), target.path(stream))


def encode_layout(layout: Layout, source: Layout | None = None) -> bytes:
    """The LAYOUT line; `source` is the layout that queues are moving away from."""
    text = f"fragments={layout.fragment_count} characters={layout.fragment_characters}"
    if source is not None:
        text += (
            f" from_fragments={source.fragment_count} from_characters={source.fragment_characters}"
        )
    return f"{text}\n".encode("ascii")


def parse_layout(line: bytes) -> tuple[Layout, Layout | None] | None:
    """Read a LAYOUT line; None if it is not one."""
    found = _LINE.fullmatch(line.decode("ascii", "replace"))
    if found is None:
        return None
    numbers = [None if word is None else int(word) for word in found.groups()]
    try:
        layout = Layout(numbers[0] or 0, numbers[1] or 0)
        source = None if numbers[2] is None else Layout(numbers[2], numbers[3] or 0)
    except ConfigError:
        return None
    return (layout, source) if encode_layout(layout, source) == line else None


def message_name(file_id: str) -> str:
    return f"messages.{file_id}.log"


def snapshot_name(file_id: str) -> str:
    return f"snapshot.{file_id}.bin"


def cursor_name(file_id: str) -> str:
    return f"cursors.{file_id}.log"


def message_file_id(name: str) -> str | None:
    """The id of a message file; None for any other name."""
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else found[1]


def snapshot_file_id(name: str) -> str | None:
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else found[2]


def cursor_file_id(name: str) -> str | None:
    found = _FILE_NAME.fullmatch(name)
    return None if found is None else found[3]


def is_named_by_state(name: str) -> bool:
    """Is it a file that some state line must name, or else nobody wants it?"""
    return _FILE_NAME.fullmatch(name) is not None


def is_ours(name: str) -> bool:
    """Is it a file of a queue? Others are somebody else's."""
    return name == STATE_NAME or is_named_by_state(name) or backup_time_ms(name) is not None


def backup_name(time_ms: int) -> str:
    """The name that a queue.log replaced at this time is kept under."""
    return f"queue.{time_ms}.log"


def backup_time_ms(name: str) -> int | None:
    """When a backup was made; None for any other name."""
    found = _BACKUP_NAME.fullmatch(name)
    return None if found is None else int(found[1])
