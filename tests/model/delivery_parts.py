"""What the world around the machine of deliveries is made of; see `delivery_world`."""

from dataclasses import dataclass
from typing import NamedTuple

from syncline.core.deliveries import Deliveries, MessageReader
from syncline.core.subscriptions import Session

SERVICE = b"service"

# What happens, to which client, with which queue.
Step = tuple[str, int, bytes]
# What a client is told, of which queue and sequence.
Event = tuple[str, bytes, int]

NOTHING: frozenset[tuple[bytes, int]] = frozenset()


@dataclass(frozen=True)
class Setting:
    """Who takes part, what may happen, and how often."""

    # For each session whether it speaks for the service.
    services: tuple[bool, ...]
    # For each queue whether it is associated with the service at first.
    associated: tuple[bool, ...]
    messages: int
    subscriptions: int
    connections: int
    # Waiting in the queues at first, durable.
    backlog: int = 0
    # Each of these at most so often: get, lose, delete, bus, operate, expire, pause, dissolve.
    get: int = 0
    lose: int = 0
    delete: int = 0
    bus: int = 0
    operate: int = 0
    expire: int = 0
    pause: int = 0
    dissolve: int = 0
    # Whether it takes a step of its own until a message is durable.
    stages: bool = False
    # The rule that the shell has to keep: register, then look.
    looks_after_registering: bool = True


class Client(NamedTuple):
    """One client: what is on its way to it, and what it was told."""

    inbox: tuple[Event, ...] = ()
    # Taken and never to be acknowledged.
    lost: frozenset[tuple[bytes, int]] = NOTHING
    # What it believes to read: queues, or the service. And where it has used GET.
    reads: frozenset[bytes] = frozenset()
    fetched: frozenset[bytes] = frozenset()
    # Sent since it last subscribed to or lost the queue, and still in the store.
    told: frozenset[tuple[bytes, int]] = NOTHING
    # What it was told to have ended: queues, or the service.
    ended: frozenset[bytes] = frozenset()
    # Of what waited when it asked for everything, what was not sent; None: it is owed no ALLS.
    owed: frozenset[tuple[bytes, int]] | None = None
    # It speaks for the service, but never asked for what waited in these queues.
    unasked: frozenset[bytes] = frozenset()


class Row(NamedTuple):
    """A queue in the store: first <= durable + 1, durable <= staged."""

    service: bytes | None
    first: int = 1
    durable: int = 0
    staged: int = 0
    exists: bool = True
    # Sequences that may be gone: somebody took them, or they expired.
    spent: frozenset[int] = frozenset()

    @property
    def head(self) -> int | None:
        return self.first if self.exists and self.first <= self.durable else None


def reader_key(reader: MessageReader | None) -> object:
    return reader and (
        tuple(sorted(reader.queues)),
        tuple(sorted(reader.held.items())),
        tuple(reader.due),
        reader.fold is not None and reader.fold.says_alls,
        reader.fold is not None,
        reader.has_folded,
        reader.is_lapsed,
    )


def without(messages: frozenset[tuple[bytes, int]], queue: bytes) -> frozenset[tuple[bytes, int]]:
    return frozenset(each for each in messages if each[0] != queue) if messages else messages


def message_id(queue: bytes, seq: int) -> bytes:
    return b"%s%d" % (queue, seq)


def cloned(core: Deliveries) -> Deliveries:
    there = type(core)()
    memory: dict[int, MessageReader] = {}
    for number, state in core._sessions.items():
        own, service = cloned_reader(state.own, memory), cloned_reader(state.service, memory)
        there._sessions[number] = Session(own, service, state.is_paused)
    for queue, reader in core._subscribers.items():
        there._subscribers[queue] = memory.get(id(reader)) or copied(reader)
    for name, reader in core._owners.items():
        there._owners[name] = memory.get(id(reader)) or copied(reader)
    there._fetched = {number: each.copy() for number, each in core._fetched.items()}
    there._fold_count = core._fold_count
    return there


def cloned_reader(
    reader: MessageReader | None, memory: dict[int, MessageReader]
) -> MessageReader | None:
    if reader is not None:
        memory[id(reader)] = copied(reader)
    return reader and memory[id(reader)]


def copied(reader: MessageReader) -> MessageReader:
    there = type(reader)(reader.session, reader.service)
    there.queues, there.due = reader.queues.copy(), reader.due.copy()
    there.held, there.fold = reader.held.copy(), reader.fold
    there.has_folded, there.is_lapsed = reader.has_folded, reader.is_lapsed
    return there
