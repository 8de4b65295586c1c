"""Who is present in the Yjs documents, over whichever face: `/yjs` and `/cable` share these rooms.

Awareness is relayed and never stored. A newcomer is told of everybody; whoever disconnects is taken
away for the others. What comes in goes to everybody in the room, its sender too: Yjs clients take
a server that says nothing for thirty seconds for dead, and the echo is what they hear.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from syncline.wire.awareness import Awareness, Entry, encode

# Given an awareness update, tells one connection.
TellAwareness = Callable[[bytes], None]


@dataclass(slots=True)
class _Room:
    awareness: Awareness = field(default_factory=Awareness)
    members: dict[int, TellAwareness] = field(default_factory=dict[int, TellAwareness])


class YjsRooms:
    """By the name of the document."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._rooms: dict[str, _Room] = {}

    def enter(self, document: str, connection: int, tell: TellAwareness) -> None:
        room = self._rooms.setdefault(document, _Room())
        room.members[connection] = tell
        self.tell_everybody_to(document, tell)

    def tell_everybody_to(self, document: str, tell: TellAwareness) -> None:
        """Who is present, if anybody is."""
        if present := self._rooms[document].awareness.everybody():
            tell(encode(present))

    def show(self, document: str, connection: int, entries: list[Entry]) -> None:
        """Raises LimitExceededError if too many are present."""
        room = self._rooms[document]
        now_ms = self._clock_ms()
        news = room.awareness.apply(connection, entries, now_ms)
        news += room.awareness.drop_outdated(now_ms)
        if news:
            update = encode(news)
            for tell in room.members.values():
                tell(update)

    def leave(self, document: str, connection: int) -> None:
        room = self._rooms.get(document)
        if room is None or room.members.pop(connection, None) is None:
            return
        if not room.members:
            del self._rooms[document]
        elif gone := room.awareness.disconnect(connection):
            update = encode(gone)
            for tell in room.members.values():
                tell(update)
