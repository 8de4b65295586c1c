"""A log that keeps nothing but events, for tests of what is noted."""

from syncline.values.events import Event, EventKind, decode_events


class Noted:
    """In place of the log."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def note_event(self, event: bytes) -> None:
        self.rows.append(event)

    def take_events(self) -> list[Event]:
        """Since the last time."""
        rows, self.rows = self.rows, []
        return list(decode_events(b"".join(rows)))

    def take(self) -> list[tuple[str, int, int, int]]:
        """Kind, number of the session, first and last, since the last time."""
        return [
            (EventKind(each.kind).name, each.session >> 4, each.first, each.last)
            for each in self.take_events()
        ]
