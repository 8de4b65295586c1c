"""Pages of what a store holds, in the order of the ids.

A page looks at all streams, and lets others have their turn meanwhile: what is created or deleted
while it does may or may not be there.
"""

import asyncio
import heapq
from itertools import islice

from syncline.errors import UnknownQueueError
from syncline.storage.base import Store, StreamKind
from syncline.values.ids import StreamId

# Streams looked at in one turn of the loop.
_LISTED_AT_ONCE = 1_024


async def page_of(
    store: Store, kind: StreamKind, after: StreamId | None, count: int
) -> list[StreamId]:
    """The next `count` streams of a kind; less than that are the last ones."""
    found: list[StreamId] = []
    last = after
    while len(found) < count:
        streams = await _next_streams(store, last, count)
        if not streams:
            break
        # Asking for the state of each stream would bring all of them into memory.
        found += [each for each in streams if _is_of(store, each, kind)]
        last = streams[-1]
    return found[:count]


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


def _is_of(store: Store, stream: StreamId, kind: StreamKind) -> bool:
    try:
        return store.state(stream).kind is kind
    except UnknownQueueError:
        # Deleted since it was seen.
        return False
