"""What happened between the router and its peers, noted in the log beside what was stored.

Whoever checks later that nothing was lost, late, twice or delivered to the wrong one reads it there
(`values.events` has the rows). Noting costs a row in memory and never waits: rows are durable with
the next batch, within a second.
"""

from collections.abc import Callable, Iterable

from syncline.storage.base import NotesEvents, Store
from syncline.storage.life import Life
from syncline.values.events import (
    EVENT_ROW,
    NO_STREAM,
    EventKind,
    Face,
    Reason,
    author_number,
    encode_event,
)

_SESSION_BITS = 4
_DELIVERED = int(EventKind.DELIVERED)
_ACKNOWLEDGED = int(EventKind.ACKNOWLEDGED)
_pack = EVENT_ROW.pack


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

    def subscribed(
        self,
        stream: bytes,
        number: int,
        first: int = 0,
        author: str | None = None,
        *,
        acknowledges: bool = True,
    ) -> None:
        self._add(
            EventKind.SUBSCRIBED,
            stream,
            number,
            first,
            int(acknowledges),
            0 if author is None else author_number(author),
        )

    def unsubscribed(self, stream: bytes, number: int, last: int = 0) -> None:
        """`last`: the highest sequence that was there for it, 0 if that is not known.

        The row comes at the end of its batch, behind updates that came after it had left.
        """
        self._add(EventKind.UNSUBSCRIBED, stream, number, last=last)

    # These two run for each message, so they are spelled out (bench: queues).

    def delivered(
        self, stream: bytes, number: int, first: int, last: int, own_count: int = 0
    ) -> None:
        """`own_count` of them it wrote itself: it was told that they are stored, if anything."""
        session = number << _SESSION_BITS | self._face
        time_kind = self._clock_ms() << 8 | _DELIVERED
        self._note(_pack(time_kind, stream, session, first, last, own_count))

    def acknowledged(self, stream: bytes, number: int, last: int) -> None:
        session = number << _SESSION_BITS | self._face
        self._note(_pack(self._clock_ms() << 8 | _ACKNOWLEDGED, stream, session, 0, last, 0))

    def delivered_to_all(
        self, stream: bytes, numbers: Iterable[int], first: int, last: int
    ) -> None:
        """To those who wrote none of them.

        Spelled out: it runs once for each reader of each update (bench: documents).
        """
        note, face = self._note, self._face
        time_kind = self._clock_ms() << 8 | _DELIVERED
        for number in numbers:
            note(_pack(time_kind, stream, number << _SESSION_BITS | face, first, last, 0))

    def sent_again(self, stream: bytes, number: int, first: int, last: int) -> None:
        """Right before the delivery is noted that repeats them."""
        self._add(EventKind.RESENT, stream, number, first, last)

    def repeated(self, stream: bytes, number: int, seq: int) -> None:
        """0 for a sequence that is not known any more."""
        self._add(EventKind.REPEATED, stream, number, last=seq)

    def expired(self, stream: bytes, last: int, reason: Reason = Reason.AGE) -> None:
        self._add(EventKind.EXPIRED, stream, 0, last=last, detail=reason)

    def evicted(self, stream: bytes, number: int, head: int, last: int) -> None:
        """`head` as `last` of `unsubscribed`."""
        self._add(EventKind.EVICTED, stream, number, head, last)

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


def note_start(
    store: Store | NotesEvents, now_ms: int, life: Life | None = None, *, is_silent: bool = False
) -> None:
    """Every session that was noted before is over. `life`: that of a folder that was restored.

    `is_silent`: nothing else will be noted. Who checks later must not take that for nothing having
    happened.
    """
    if not isinstance(store, NotesEvents):
        return
    former, branch = (NO_STREAM, 0) if life is None else (life.former, life.branch)
    former = former.ljust(len(NO_STREAM), b"\0")
    store.note_event(
        encode_event(EventKind.STARTED, now_ms, former, first=branch, detail=int(is_silent))
    )
