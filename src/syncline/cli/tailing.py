"""Where `tail` gets its messages: a store that is looked at, or a running router."""

import time
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlencode

import msgspec

from syncline.cli.router_client import RouterClient
from syncline.storage.base import Damage, Store
from syncline.storage.inspection import state_or_damage
from syncline.values import limits
from syncline.values.ids import StreamId

# One queue is waited for at the router; many are looked at in turn.
_WAIT_MS = 10_000
_PAUSE_SECONDS = 0.5
_PAGE_COUNT = 1_000
_READ_COUNT = 100


class Printed(msgspec.Struct):
    queue: str
    seq: int
    time_ms: int
    kind: str
    body: bytes


class _Message(msgspec.Struct):
    seq: int
    time_ms: int
    kind: str
    body: bytes


def read_folder(
    store: Store,
    wanted: Sequence[StreamId],
    from_seq: int,
    on_unreadable: Callable[[str], None],
) -> Iterator[Printed]:
    """`on_unreadable` is told of queues that are left out."""
    for stream in wanted or store.streams():
        state = state_or_damage(store, stream)
        if isinstance(state, Damage):
            on_unreadable(str(stream))
            continue
        seq = max(from_seq, state.first)
        while found := store.read(stream, seq, _READ_COUNT, limits.read_bytes_max):
            for entry in found:
                kind = entry.kind.name.lower()
                yield Printed(str(stream), entry.seq, entry.time_ms, kind, entry.payload)
            seq = found[-1].seq + 1


def read_router(
    client: RouterClient,
    wanted: Sequence[StreamId],
    from_seq: int,
    on_unreadable: Callable[[str], None],
    *,
    follow: bool,
) -> Iterator[Printed]:
    """As `read_folder`; with `follow` it never ends by itself."""
    next_seqs: dict[str, int] = {}
    queues = [str(stream) for stream in wanted]
    while True:
        has_any = False
        for queue in queues or _all_queues(client, on_unreadable):
            wait_ms = _WAIT_MS if follow and len(queues) == 1 else 0
            seq = next_seqs.get(queue, from_seq)
            for message in _messages(client, queue, seq, wait_ms):
                has_any = True
                next_seqs[queue] = message.seq + 1
                yield Printed(queue, message.seq, message.time_ms, message.kind, message.body)
        if not has_any and not follow:
            return
        if not has_any and len(queues) != 1:
            time.sleep(_PAUSE_SECONDS)


def _all_queues(client: RouterClient, on_unreadable: Callable[[str], None]) -> Iterator[str]:
    after: str | None = None
    while True:
        query = {"count": str(_PAGE_COUNT)} | ({"after": after} if after else {})
        page = client.get(f"/api/queues?{urlencode(query)}")
        # A router of an earlier version does not say.
        for queue in page.get("unreadable", ()):
            on_unreadable(queue)
        yield from page["queues"]
        after = page["after"]
        if after is None:
            return


def _messages(client: RouterClient, queue: str, seq: int, wait_ms: int) -> list[_Message]:
    query = urlencode({"from": seq, "count": _READ_COUNT, "wait_ms": wait_ms})
    found = client.get(f"/api/queues/{queue}/messages?{query}")
    return msgspec.convert(found["messages"], type=list[_Message])
