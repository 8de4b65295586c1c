"""Pages of what a store holds, in the order of the ids.

A page looks at all streams, and lets others have their turn meanwhile: what is created or deleted
while it does may or may not be there.
"""

import asyncio
import heapq
from dataclasses import dataclass, field
from itertools import islice

from syncline.errors import UnknownQueueError
from syncline.storage.base import Damage, Store, StreamKind
from syncline.storage.inspection import state_or_damage
from syncline.values.ids import StreamId

# Streams looked at in one turn of the loop.
_LISTED_AT_ONCE = 1_024


@dataclass(slots=True)
class Page:
    """Streams of a kind, and those between them whose kind cannot be read."""

    streams: list[StreamId] = field(default_factory=list[StreamId])
    unreadable: list[StreamId] = field(default_factory=list[StreamId])


async def page_of(store: Store, kind: StreamKind, after: StreamId | None, count: int) -> Page:
    """The next `count` streams of a kind; less than that are the last ones."""
    page = Page()
    last = after
    while len(page.streams) < count:
        streams = await _next_streams(store, last, count)
        if not streams:
            break
        # Asking for the state of each stream would bring all of them into memory.
        for stream in streams:
            _look(store, stream, kind, page)
            if len(page.streams) == count:
                break
        last = streams[-1]
    return page


async def _next_streams(store: Store, after: StreamId | None, count: int) -> list[StreamId]:
    nearest: list[StreamId] = []
    streams = store.streams()
    while some := list(islice(streams, _LISTED_AT_ONCE)):
        # Beyond the last of those there is no room, so most are left out by one comparison.
        bound = nearest[-1] if len(nearest) == count else None
        later = {
            each
            for each in some
            if (after is None or each > after) and (bound is None or each < bound)
        }
        if later:
            nearest = heapq.nsmallest(count, later.union(nearest))
        await asyncio.sleep(0)
    return nearest


def _look(store: Store, stream: StreamId, kind: StreamKind, page: Page) -> None:
    try:
        state = state_or_damage(store, stream)
    except UnknownQueueError:
        # Deleted since it was seen.
        return
    if isinstance(state, Damage):
        page.unreadable.append(stream)
    elif state.kind is kind:
        page.streams.append(stream)
