"""Pages of what a store holds, in the order of the ids.

A page looks at all streams, and lets others have their turn meanwhile: what is created or deleted
while it does may or may not be there. Where streams of the kind are rare it goes through all of
them again for the next ones, each time for more, so that it does so a bounded number of times.
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
# While the store is counting them it may have to sync the folder of each.
_LISTED_AT_ONCE_UNCOUNTED = 16
# Streams whose state is asked for in one turn: a store may have to open a file for it.
_LOOKED_AT_ONCE = 64
# Streams that one walk brings at most; a walk through all of them brings no more.
_WALK_COUNT_MAX = 65_536


@dataclass(slots=True)
class Page:
    """Streams of a kind, and those between them whose kind cannot be read."""

    streams: list[StreamId] = field(default_factory=list[StreamId])
    unreadable: list[StreamId] = field(default_factory=list[StreamId])


async def page_of(store: Store, kind: StreamKind, after: StreamId | None, count: int) -> Page:
    """The next `count` streams of a kind; less than that are the last ones."""
    page = Page()
    last = after
    walk_count = count
    while True:
        streams = await _next_streams(store, last, walk_count)
        # Asking for the state of each stream would bring all of them into memory.
        for number, stream in enumerate(streams, 1):
            _look(store, stream, kind, page)
            if len(page.streams) == count:
                return page
            if number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        if len(streams) < walk_count:
            return page
        last = streams[-1]
        walk_count = max(count, min(2 * walk_count, _WALK_COUNT_MAX))


async def _next_streams(store: Store, after: StreamId | None, count: int) -> list[StreamId]:
    nearest: set[StreamId] = set()
    # Beyond it there is no room, so most are left out by one comparison.
    bound: StreamId | None = None
    streams = store.streams()
    at_once = _LISTED_AT_ONCE if store.stats().is_counted else _LISTED_AT_ONCE_UNCOUNTED
    while some := list(islice(streams, at_once)):
        nearest.update(
            each
            for each in some
            if (after is None or each > after) and (bound is None or each < bound)
        )
        if len(nearest) >= 2 * count:
            kept = heapq.nsmallest(count, nearest)
            nearest, bound = set(kept), kept[-1]
        await asyncio.sleep(0)
    return heapq.nsmallest(count, nearest)


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
