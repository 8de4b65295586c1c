"""What the commands of a router work with, in one place."""

from collections.abc import Callable
from dataclasses import dataclass

from syncline.core.deliveries import Deliveries
from syncline.core.notifications import Notifications
from syncline.errors import StoreFullError
from syncline.server.committer import Committer
from syncline.server.events import Events
from syncline.server.logs import Log
from syncline.server.smp.book import Book
from syncline.server.smp.connections import Connections
from syncline.server.smp.counters import SmpCounters
from syncline.server.smp.options import SmpOptions
from syncline.storage.base import Store
from syncline.storage.records.base import Records


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What comes from outside."""

    store: Store
    committer: Committer
    records: Records
    records_committer: Committer
    clock_ms: Callable[[], int]
    # For how long something lasts, and by which time messages are too old: see `clocks`.
    steady_ms: Callable[[], int]
    cautious_ms: Callable[[], int]
    random_bytes: Callable[[int], bytes]
    options: SmpOptions
    log: Log
    events: Events | None = None
    # Why new messages are refused for now, if they are.
    shortage: Callable[[], StoreFullError | None] = lambda: None
    # Asks for upkeep at once: the store cannot take more without it.
    press: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Parts:
    """What comes from outside, and what the router keeps."""

    outside: Surroundings
    deliveries: Deliveries
    notifications: Notifications
    counters: SmpCounters
    connections: Connections
    book: Book

    @classmethod
    def made_for(cls, outside: Surroundings) -> "Parts":
        deliveries, notifications, counters = Deliveries(), Notifications(), SmpCounters()
        connections = Connections(
            deliveries,
            notifications,
            outside.records_committer,
            outside.records.digest,
            outside.options,
            counters,
            outside.events,
        )
        book = Book(outside.records, outside.records_committer, outside.events)
        return cls(outside, deliveries, notifications, counters, connections, book)
