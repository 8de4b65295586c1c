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
        self.tell_everybody_to(document, tell)
        room.members[connection] = tell

    def tell_everybody_to(self, document: str, tell: TellAwareness) -> None:
        """Who is present, if anybody is."""
        room = self._rooms[document]
        _tell_all(room, room.awareness.drop_outdated(self._clock_ms()))
        if present := room.awareness.everybody():
            tell(encode(present))

    def tell_missed_to(self, document: str, tell: TellAwareness) -> None:
        """Who has left and who is present, for somebody who could not be told when it happened.

        What it knows already is no news to it: the clocks say so.
        """
        # The small part first: behind the large one there might be no room for it, time and again.
        if departed := self._rooms[document].awareness.departed():
            tell(encode(departed))
        self.tell_everybody_to(document, tell)

    def show(self, document: str, connection: int, entries: list[Entry]) -> None:
        """Raises LimitExceededError if too many are present."""
        room = self._rooms[document]
        now_ms = self._clock_ms()
        news = room.awareness.apply(connection, entries, now_ms)
        news += room.awareness.drop_outdated(now_ms)
        _tell_all(room, news)
        if hidden := room.awareness.hidden(entries):
            # Whoever reconnects comes with the clock that it was taken away with, which nobody
            # takes for news. Told that it is gone, a client comes back with a higher one at once.
            room.members[connection](encode(hidden))

    def leave(self, document: str, connection: int) -> None:
        room = self._rooms.get(document)
        if room is None or room.members.pop(connection, None) is None:
            return
        if not room.members:
            del self._rooms[document]
        else:
            _tell_all(room, room.awareness.disconnect(connection))


def _tell_all(room: _Room, entries: list[Entry]) -> None:
    if entries:
        update = encode(entries)
        for tell in room.members.values():
            tell(update)
