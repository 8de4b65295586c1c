"""Where `tail` gets its messages: a store that is looked at, or a running router."""

import time
from collections.abc import Iterator, Sequence
from typing import Protocol
from urllib.parse import urlencode

import msgspec

from syncline.cli.router_client import RouterClient
from syncline.errors import RefusedError
from syncline.storage.base import Damage, Store
from syncline.storage.inspection import state_or_damage
from syncline.values import limits
from syncline.values.ids import StreamId

# One queue is waited for at the router; many are looked at in turn.
_WAIT_MS = 10_000
_PAUSE_SECONDS = 0.5
_PAGE_COUNT = 1_000
_READ_COUNT = 100


_UNREADABLE = "cannot be read and is left out"
_LOST = "has messages that cannot be read and are left out"


class LeaveOut(Protocol):
    def __call__(self, queue: str, what: str, /) -> None:
        """Is told that a queue, or some of it, is not among what is printed."""
        ...


class Printed(msgspec.Struct):
    queue: str
    seq: int
    time_ms: int
    kind: str
    body: bytes


class _Place(msgspec.Struct):
    """Where a router knows of damage."""

    queue: str | None
    first_lost_seq: int | None
    lost_count: int

    @property
    def end(self) -> int:
        return (self.first_lost_seq or 0) + self.lost_count


class _Message(msgspec.Struct):
    seq: int
    time_ms: int
    kind: str
    body: bytes


def read_folder(
    store: Store,
    wanted: Sequence[StreamId],
    from_seq: int,
    leave_out: LeaveOut,
) -> Iterator[Printed]:
    for stream in wanted or store.streams():
        state = state_or_damage(store, stream)
        if isinstance(state, Damage):
            leave_out(str(stream), _UNREADABLE)
            continue
        seq = max(from_seq, state.first)
        while found := store.read(stream, seq, _READ_COUNT, limits.read_bytes_max):
            for entry in found:
                if entry.seq != seq:
                    leave_out(str(stream), _LOST)
                kind = entry.kind.name.lower()
                yield Printed(str(stream), entry.seq, entry.time_ms, kind, entry.payload)
                seq = entry.seq + 1
        if seq < state.next:
            leave_out(str(stream), _LOST)


def read_router(
    client: RouterClient,
    wanted: Sequence[StreamId],
    from_seq: int,
    leave_out: LeaveOut,
    *,
    follow: bool,
) -> Iterator[Printed]:
    """As `read_folder`; with `follow` it never ends by itself."""
    next_seqs: dict[str, int] = {}
    queues = [str(stream) for stream in wanted]
    while True:
        has_any = False
        for queue in queues or _all_queues(client, leave_out):
            wait_ms = _WAIT_MS if follow and len(queues) == 1 else 0
            seq = next_seqs.get(queue, from_seq)
            for message in _messages(client, queue, seq, wait_ms):
                has_any = True
                next_seqs[queue] = message.seq + 1
                yield Printed(queue, message.seq, message.time_ms, message.kind, message.body)
        if not has_any and not follow:
            # Last: some damage is found by reading.
            _tell_lost(client, queues, from_seq, leave_out)
            return
        if not has_any and len(queues) != 1:
            time.sleep(_PAUSE_SECONDS)


def _tell_lost(
    client: RouterClient, queues: Sequence[str], from_seq: int, leave_out: LeaveOut
) -> None:
    damage = client.get("/api/damage")["damage"]
    for place in msgspec.convert(damage, type=list[_Place]):
        queue = place.queue
        if queue is None or (queues and queue not in queues):
            continue
        try:
            first = client.get(f"/api/queues/{queue}")["first"]
        except RefusedError:
            # It was deleted, is a document, or was left out as a whole.
            continue
        # What is not wanted any more is not missed either.
        if place.first_lost_seq is None or place.end > max(first, from_seq):
            leave_out(queue, _LOST)


def _all_queues(client: RouterClient, leave_out: LeaveOut) -> Iterator[str]:
    after: str | None = None
    while True:
        query = {"count": str(_PAGE_COUNT)} | ({"after": after} if after else {})
        page = client.get(f"/api/queues?{urlencode(query)}")
        # A router of an earlier version does not say.
        for queue in page.get("unreadable", ()):
            leave_out(queue, _UNREADABLE)
        yield from page["queues"]
        after = page["after"]
        if after is None:
            return


def _messages(client: RouterClient, queue: str, seq: int, wait_ms: int) -> list[_Message]:
    query = urlencode({"from": seq, "count": _READ_COUNT, "wait_ms": wait_ms})
    found = client.get(f"/api/queues/{queue}/messages?{query}")
    return msgspec.convert(found["messages"], type=list[_Message])
