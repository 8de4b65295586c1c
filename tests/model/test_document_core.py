"""The core of a document, explored: every interleaving of what clients, disk and upkeep may do.

Three clients and two documents, each client over one connection that delivers in order. After every
step the three invariants of routing and the rules of the tracker are checked; a broken rule is
reported with the shortest sequence of steps that leads to it. The number of states is part of the
test: if it changes, the protocol has changed.
"""

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from syncline.core.document import Document, Joined, Subscription
from syncline.errors import UnexpectedMessageError

# Two of them walk through some twenty thousand states.
pytestmark = pytest.mark.timeout(120)

NOW_MS = 1_000

Step = tuple[str, int, int]  # what, client, document


@dataclass
class View:
    """What one client has of one document, in one epoch."""

    epoch: int
    base: int
    # Sequences in the order of arrival: (sequence, whether it came as a receipt).
    got: list[tuple[int, bool]] = field(default_factory=list[tuple[int, bool]])

    @property
    def applied(self) -> int:
        return max([self.base, *(seq for seq, _ in self.got)])


@dataclass(frozen=True)
class Bounds:
    mutations: int
    subscriptions: int
    depth: int


class World:
    """Clients, their connections, the documents and their stores."""

    def __init__(self, clients: int, documents: int, machine: type[Document] = Document) -> None:
        self.clients = clients
        self.machines = [machine(window=2) for _ in range(documents)]
        # Per document: author and clock of each stored update.
        self.stored: list[list[tuple[int, int]]] = [[] for _ in range(documents)]
        self.views: dict[tuple[int, int], View] = {}
        self.clocks = [[0] * documents for _ in range(clients)]
        self.epochs = [0] * clients
        self.mutation_count = 0
        self.subscription_count = 0
        # What was delivered to somebody who had left: must stay empty.
        self.unwanted: list[Step] = []

    def clone(self) -> "World":
        there = copy(self)
        there.machines = [_cloned(machine) for machine in self.machines]
        there.stored = [list(each) for each in self.stored]
        there.views = {
            place: replace(view, got=list(view.got)) for place, view in self.views.items()
        }
        there.clocks = [list(each) for each in self.clocks]
        there.epochs = list(self.epochs)
        there.unwanted = list(self.unwanted)
        return there

    # What may happen next.

    def steps(self, bounds: Bounds) -> Iterator[Step]:
        for document, machine in enumerate(self.machines):
            if machine.staged > machine.head:
                yield "commit", 0, document
            if machine.snapshot_seq < machine.head:
                yield "snapshot", 0, document
            if machine.floor >= machine.first:
                yield "truncate", 0, document
            for client in range(self.clients):
                yield from self._steps_of(client, document, bounds)

    def _steps_of(self, client: int, document: int, bounds: Bounds) -> Iterator[Step]:
        machine = self.machines[document]
        subscription = machine.subscriptions.get(client)
        if subscription is None:
            if self.subscription_count < bounds.subscriptions:
                yield "subscribe", client, document
                if str(client) in machine.parked:
                    yield "return", client, document
            return
        yield "unsubscribe", client, document
        yield "drop", client, document
        if self.mutation_count < bounds.mutations:
            yield "mutate", client, document
        if self.clocks[client][document]:
            yield "repeat", client, document
        if machine.pending(subscription):
            yield "deliver", client, document
        if self.views[client, document].applied > subscription.acked:
            yield "ack", client, document
        if subscription.acked < subscription.sent:
            yield "rewind", client, document

    # Doing it.

    def take(self, step: Step) -> None:
        what, client, document = step
        machine = self.machines[document]
        match what:
            case "subscribe":
                self._subscribe(client, document, None)
            case "return":
                self._subscribe(client, document, machine.parked[str(client)].acked)
            case "unsubscribe":
                machine.unsubscribe(client)
                del self.views[client, document]
            case "drop":
                machine.park(client, NOW_MS)
                del self.views[client, document]
            case "mutate":
                self.mutation_count += 1
                self.clocks[client][document] += 1
                self._store(client, document)
            case "repeat":
                self._store(client, document)
            case "commit":
                machine.commit(machine.head + 1, NOW_MS)
            case "deliver":
                self._deliver(client, document)
            case "ack":
                self._acknowledge(client, document)
            case "rewind":
                later = NOW_MS + 10_000
                machine.subscriptions[client].progress_ms = 0
                sent = machine.subscriptions[client].sent
                silent = machine.send_again(later)
                assert (machine.subscriptions[client], sent) in silent
                machine.subscriptions[client].progress_ms = NOW_MS
            case "snapshot":
                machine.snapshot_taken(machine.head)
            case "truncate":
                machine.truncated(machine.floor)
            case _:
                raise AssertionError(what)

    def _subscribe(self, client: int, document: int, have: int | None) -> None:
        self.subscription_count += 1
        self.epochs[client] += 1
        machine = self.machines[document]
        if have is None:
            # It comes without a memory of its own.
            machine.unpark(str(client))
        joined = machine.subscribe(client, str(client), self.epochs[client], NOW_MS, have=have)
        self.views[client, document] = View(self.epochs[client], joined.seq)

    def _store(self, client: int, document: int) -> None:
        machine, clock = self.machines[document], self.clocks[client][document]
        if machine.repeated(str(client), clock) is None:
            self.stored[document].append((client, clock))
            machine.stage(str(client), clock, len(self.stored[document]))

    def _deliver(self, client: int, document: int) -> None:
        machine = self.machines[document]
        subscription = machine.subscriptions[client]
        seq = machine.pending(subscription).start
        machine.handed_over(subscription, seq, NOW_MS)
        view = self.views.get((client, document))
        if view is None:
            self.unwanted.append(("deliver", client, document))
            return
        if seq == view.applied + 1:
            is_own = self.stored[document][seq - 1][0] == client
            view.got.append((seq, is_own))

    def _acknowledge(self, client: int, document: int) -> None:
        view = self.views[client, document]
        self.machines[document].acknowledge(client, view.epoch, view.applied, NOW_MS)

    # What must hold.

    def check(self) -> None:
        assert not self.unwanted, "nothing reaches who is not subscribed"
        for document, machine in enumerate(self.machines):
            self._check_document(document, machine)

    def _check_document(self, document: int, machine: Document) -> None:
        stored = self.stored[document]
        assert len(set(stored)) == len(stored), "a mutation is stored once"
        assert machine.first - 1 <= machine.snapshot_seq <= machine.head <= machine.staged
        assert set(machine.subscriptions) == {
            client for client, each in self.views if each == document
        }, "what is pending belongs to a subscriber"
        for each in [*machine.subscriptions.values(), *machine.parked.values()]:
            assert machine.first - 1 <= each.acked, "nothing is let go of that somebody owes"
            assert each.acked <= each.sent <= machine.head
        for client, subscription in machine.subscriptions.items():
            self._check_view(client, document, subscription)

    def _check_view(self, client: int, document: int, subscription: Subscription) -> None:
        view, stored = self.views[client, document], self.stored[document]
        assert subscription.epoch == view.epoch
        arrived = [seq for seq, _ in view.got]
        assert arrived == list(range(view.base + 1, view.base + 1 + len(arrived))), "in order"
        assert view.applied >= subscription.sent, "everything handed over has arrived"
        assert subscription.acked <= view.applied
        for seq, is_receipt in view.got:
            assert is_receipt == (stored[seq - 1][0] == client), "authors get receipts alone"

    def key(self) -> object:
        return (
            tuple(map(_machine_key, self.machines)),
            tuple(map(tuple, self.stored)),
            tuple(
                (place, view.base, tuple(view.got)) for place, view in sorted(self.views.items())
            ),
            tuple(map(tuple, self.clocks)),
            self.mutation_count,
            self.subscription_count,
        )


def _cloned(machine: Document) -> Document:
    there = copy(machine)
    there.clocks = copy(machine.clocks)
    there.clocks._newest = dict(machine.clocks._newest)
    there.subscriptions = {key: copy(each) for key, each in machine.subscriptions.items()}
    there.parked = {key: copy(each) for key, each in machine.parked.items()}
    # Time stands still here: one mark is all that there ever is.
    return there


def _machine_key(machine: Document) -> object:
    return (
        machine.first,
        machine.head,
        machine.staged,
        machine.snapshot_seq,
        tuple(
            (each.author, each.acked, each.sent, each.is_confirmed)
            for _, each in sorted(machine.subscriptions.items())
        ),
        tuple(
            (author, each.acked, each.is_confirmed)
            for author, each in sorted(machine.parked.items())
        ),
    )


def explore(world: World, bounds: Bounds) -> int:
    """All states within the bounds; raises with the steps that lead to a broken rule."""
    seen = {world.key()}
    waiting: deque[tuple[World, tuple[Step, ...]]] = deque([(world, ())])
    while waiting:
        here, path = waiting.popleft()
        if len(path) == bounds.depth:
            continue
        for step in here.steps(bounds):
            there = here.clone()
            try:
                there.take(step)
                there.check()
            except (AssertionError, UnexpectedMessageError) as error:
                raise AssertionError(f"{error}; after {[*path, step]}") from error
            if (key := there.key()) not in seen:
                seen.add(key)
                waiting.append((there, (*path, step)))
    return len(seen)


def test_no_step_breaks_a_rule_three_clients_two_documents() -> None:
    assert explore(World(3, 2), Bounds(mutations=2, subscriptions=3, depth=7)) == 16_067


def test_no_step_breaks_a_rule_two_clients_to_the_end() -> None:
    assert explore(World(2, 1), Bounds(mutations=2, subscriptions=3, depth=99)) == 19_790


@pytest.mark.long
def test_no_step_breaks_a_rule_further_on() -> None:
    assert explore(World(3, 2), Bounds(mutations=3, subscriptions=4, depth=8)) == 93_901


class KeepsPendingOfWhoLeft(Document):
    def unsubscribe(self, connection: int) -> Subscription | None:
        return self.subscriptions.get(connection)


class StoresEveryRepetition(Document):
    def repeated(self, author: str, clock: int) -> None:
        return None


class TruncatesAtTheSnapshot(Document):
    @property
    def floor(self) -> int:
        return self.snapshot_seq


class ForgetsPlacesThatAreKept(Document):
    @property
    def floor(self) -> int:
        lowest = [each.acked for each in self.subscriptions.values()]
        return min([self.snapshot_seq, *lowest])


class TruncatesWhatNoSnapshotCovers(Document):
    @property
    def floor(self) -> int:
        lowest = [each.acked for each in self._everybody()]
        return min(lowest, default=self.head)


class LetsJoinersBeginAtWhatIsStaged(Document):
    def subscribe(self, *args: Any, **options: Any) -> Joined:
        joined = super().subscribe(*args, **options)
        joined.subscription.sent = self.staged
        return joined


class AcknowledgesWhatWasSent(Document):
    """As if acknowledgements were not cumulative: the last one sent counts for all."""

    def handed_over(self, subscription: Subscription, up_to_seq: int, now_ms: int) -> None:
        super().handed_over(subscription, up_to_seq, now_ms)
        subscription.acked = self.head


class ShowsWhatIsNotDurable(Document):
    def pending(self, subscription: Subscription) -> range:
        return range(subscription.sent + 1, self.staged + 1)


@pytest.mark.parametrize(
    "broken",
    [
        KeepsPendingOfWhoLeft,
        StoresEveryRepetition,
        TruncatesAtTheSnapshot,
        ForgetsPlacesThatAreKept,
        TruncatesWhatNoSnapshotCovers,
        LetsJoinersBeginAtWhatIsStaged,
        AcknowledgesWhatWasSent,
        ShowsWhatIsNotDurable,
    ],
)
def test_a_broken_rule_is_found(broken: type[Document]) -> None:
    with pytest.raises(AssertionError, match="after"):
        explore(World(2, 1, broken), Bounds(mutations=2, subscriptions=3, depth=10))
