"""What happened between the router and its peers, noted in the log beside what was stored.

Whoever checks later that nothing was lost, late, twice or delivered to the wrong one reads it there
(`values.events` has the rows). Noting costs a row in memory and never waits: rows are durable with
the next batch, within a second.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b

from syncline.storage.base import NotesEvents, Store
from syncline.values.events import EVENT_ROW, NO_STREAM, EventKind, Face, encode_event

_SESSION_BITS = 4
_DELIVERED = int(EventKind.DELIVERED)
_pack = EVENT_ROW.pack


def author_number(author: str) -> int:
    """By which an author is known in events; the name itself is in the entries it wrote."""
    return int.from_bytes(blake2b(author.encode(), digest_size=8).digest(), "little")


def service_number(service_id: bytes) -> int:
    return int.from_bytes(service_id[:8], "little")


class Events:
    """Of one face: its sessions are numbered by itself."""

    def __init__(self, store: NotesEvents, clock_ms: Callable[[], int], face: Face) -> None:
        self._note = store.note_event
        self._clock_ms = clock_ms
        self._face = int(face)

    @classmethod
    def of(
        cls, store: Store, clock_ms: Callable[[], int], face: Face, *, is_wanted: bool
    ) -> "Events | None":
        """None: nobody wants them, or the store does not keep any."""
        if not is_wanted or not isinstance(store, NotesEvents):
            return None
        return cls(store, clock_ms, face)

    def connected(self, number: int, service: bytes | None = None) -> None:
        self._add(EventKind.CONNECTED, service or NO_STREAM, number, detail=self._face)

    def disconnected(self, number: int) -> None:
        self._add(EventKind.DISCONNECTED, NO_STREAM, number)

    def subscribed(self, stream: bytes, number: int, first: int = 0, author: str = "") -> None:
        self._add(
            EventKind.SUBSCRIBED,
            stream,
            number,
            first,
            detail=author_number(author) if author else 0,
        )

    def unsubscribed(self, stream: bytes, number: int) -> None:
        self._add(EventKind.UNSUBSCRIBED, stream, number)

    def delivered(self, stream: bytes, number: int, first: int, last: int) -> None:
        self._add(EventKind.DELIVERED, stream, number, first, last)

    def delivered_to_all(
        self, stream: bytes, numbers: Iterable[int], first: int, last: int
    ) -> None:
        """Spelled out: it runs once for each reader of each update (bench: documents)."""
        note, face = self._note, self._face
        time_kind = self._clock_ms() << 8 | _DELIVERED
        for number in numbers:
            note(_pack(time_kind, stream, number << _SESSION_BITS | face, first, last, 0))

    def sent_again(self, stream: bytes, number: int, first: int, last: int) -> None:
        self._add(EventKind.RESENT, stream, number, first, last)

    def acknowledged(self, stream: bytes, number: int, last: int) -> None:
        self._add(EventKind.ACKNOWLEDGED, stream, number, last=last)

    def evicted(self, stream: bytes, number: int, last: int) -> None:
        self._add(EventKind.EVICTED, stream, number, last=last)

    def moved(self, entity_id: bytes, former: bytes | None, service: bytes | None) -> None:
        """A queue, or a notifier, from one service to another, or to none."""
        if former is not None:
            self._add(EventKind.DISSOCIATED, entity_id, 0, detail=service_number(former))
        if service is not None:
            self._add(EventKind.ASSOCIATED, entity_id, 0, detail=service_number(service))

    def displaced(self, service: bytes, number: int) -> None:
        self._add(EventKind.DISPLACED, service, number)

    def _add(
        self,
        kind: EventKind,
        stream: bytes,
        number: int,
        first: int = 0,
        last: int = 0,
        detail: int = 0,
    ) -> None:
        session = number << _SESSION_BITS | self._face if number else 0
        self._note(encode_event(kind, self._clock_ms(), stream, session, first, last, detail))


def note_start(store: Store, now_ms: int) -> None:
    """Every session that was noted before is over."""
    if isinstance(store, NotesEvents):
        store.note_event(encode_event(EventKind.STARTED, now_ms))
