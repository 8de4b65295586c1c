"""The document hub and its `/sync` face, driven by random clients, against a model of one line.

The model of a document is the list of mutations that the store was given, in order: its state is
what folding them one after the other gives. Clients come and go, stop reading, send again, lose
their connection under each policy; time passes and the stream is truncated. Whatever a client is
told is held against the list at once:

- Nothing is told that is not durable; what is told at a sequence is what stands there in the list.
- An author is told that its mutation is stored, and never gets it back.
- The sequences of a subscription have no gap, and what was acknowledged does not come again.
- After the end of a subscription nothing of it follows.
- Only who owes an acknowledgement for long is evicted, or finds that its place was not kept. Who
  subscribes anew gives up the place that it had.
- Who does not read is not sent mutations.
- A mutation stands in the list once, and all that were acknowledged do.
- In the end all readers have the state that the list gives.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from syncline.server import documents as hub
from syncline.server.committer import Committer
from syncline.server.open_document import DocumentOptions
from syncline.storage.base import Batch
from syncline.storage.documents import decode_entry, stream_of
from syncline.values.ids import StreamId
from tests.unit.server.documents_rig import Client, DocumentsRig, open_memory

CLIENTS = ("ann", "bob", "cy")
DOCUMENTS = ("d", "e")
POLICIES = ("clean", "intent", "resume")
# Soon again; late enough to send again; to evict; to give up places that are kept.
TICKS_MS = (500, 6_000, 31_000, 1_000_000)
RELATIVE_LAG_MS = DocumentOptions().relative_lag_ms

policies = st.sampled_from(POLICIES)
# One of those that something can happen to, however many there are.
picks = st.integers(0, 5)
values = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@dataclass(frozen=True)
class Stored:
    author: str
    clock: int
    mutation: dict[str, Any]


class Truth:
    """What the store was given, and how much of it is durable."""

    def __init__(self, store: Any, clock_ms: Callable[[], int]) -> None:
        self.stored: dict[str, list[Stored]] = {name: [] for name in DOCUMENTS}
        self.durable = dict.fromkeys(DOCUMENTS, 0)
        self.clock_ms = clock_ms
        # When each of them became durable.
        self.times_ms: dict[str, list[int]] = {name: [] for name in DOCUMENTS}
        self._taken: dict[str, int] = {}
        self._names = {stream_of(name): name for name in DOCUMENTS}
        self._append = store.append
        self._take_batch = store.take_batch
        self._finish_batch = store.finish_batch
        store.append = self.append
        store.take_batch = self.take_batch
        store.finish_batch = self.finish_batch

    def append(self, stream: StreamId, payload: bytes, now_ms: int) -> int:
        seq: int = self._append(stream, payload, now_ms)
        author, clock, body = decode_entry(payload)
        stored = self.stored[self._names[stream]]
        assert all((each.author, each.clock) != (author, clock) for each in stored), "stored once"
        stored.append(Stored(author, clock, msgspec.json.decode(body)))
        assert seq == len(stored)
        return seq

    def take_batch(self, *, acknowledgements: bool = True) -> Batch | None:
        self._taken = {name: len(stored) for name, stored in self.stored.items()}
        batch: Batch | None = self._take_batch(acknowledgements=acknowledgements)
        return batch

    def finish_batch(self, batch: Batch) -> None:
        self._finish_batch(batch)
        self.durable = self._taken
        for name, times_ms in self.times_ms.items():
            times_ms += [self.clock_ms()] * (self.durable[name] - len(times_ms))

    def at(self, document: str, seq: int) -> Stored:
        assert seq <= self.durable[document], "nothing is told before it is durable"
        return self.stored[document][seq - 1]

    def lag_ms(self, document: str, acknowledged: int) -> int:
        """How long somebody who has acknowledged that much has owed the next one, at most."""
        owed = self.times_ms[document][acknowledged : acknowledged + 1]
        return self.clock_ms() - owed[0] if owed else 0

    def state(self, document: str, seq: int) -> dict[str, Any]:
        assert seq <= self.durable[document], "no state has what is not durable"
        state: dict[str, Any] = {}
        for each in self.stored[document][:seq]:
            merge(state, each.mutation)
        return state


def merge(state: dict[str, Any], mutation: dict[str, Any]) -> None:
    """Flat merge patches are all that is used here."""
    for key, value in mutation.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


@dataclass
class Replica:
    """What one client has of one document. It outlives connections."""

    epoch: int | None = None
    incarnation: str = ""
    applied: int = 0
    acknowledged: int = 0
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    clock: int = 0
    unsent: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    is_waiting_for_state: bool = False
    # It has acknowledged its place: the router knows that the state arrived.
    is_confirmed: bool = False
    # When the last connection ended, if the place that it had is to be kept.
    dropped_ms: int | None = None


class Person:
    """One client id: its connection, if there is one, and its replicas."""

    def __init__(self, name: str, truth: Truth) -> None:
        self.name = name
        self.truth = truth
        self.connection: Client | None = None
        self.policy = ""
        self.replicas = {document: Replica() for document in DOCUMENTS}

    def connected(self, connection: Client, policy: str) -> None:
        self.disconnected()
        self.connection, self.policy = connection, policy

    def disconnected(self) -> None:
        if self.connection is None:
            return
        self.connection = None
        for replica in self.replicas.values():
            has_place = replica.epoch is not None and replica.is_confirmed
            is_kept = self.policy == "resume" and has_place
            replica.dropped_ms = self.truth.clock_ms() if is_kept else None
            replica.epoch = None

    # What it says.

    def say(self, type: str, document: str, **fields: Any) -> None:
        assert self.connection is not None
        self.connection.say(type, document=document, epoch=self.replicas[document].epoch, **fields)

    def mutate(self, document: str, value: int) -> None:
        replica = self.replicas[document]
        replica.clock += 1
        # One key that all fight for, and one that shows for ever that it was there.
        mutation = {"x": value or None, f"{self.name}-{replica.clock}": 1}
        replica.unsent[replica.clock] = mutation
        self.say("mutation", document, clock=replica.clock, mutation=mutation)

    def send_unsent(self, document: str) -> None:
        for clock, mutation in self.replicas[document].unsent.items():
            self.say("mutation", document, clock=clock, mutation=mutation)

    def acknowledge(self, document: str, seq: int) -> None:
        replica = self.replicas[document]
        if seq >= replica.acknowledged:
            replica.acknowledged = seq
            replica.is_confirmed = True
        self.say("ack", document, seq=seq)

    # What it is told.

    def hear(self) -> None:
        while self.connection is not None and (messages := self.connection.take()):
            for message in messages:
                if message["type"] != "welcome":
                    self._hear(message["type"], self.replicas[message["document"]], message)

    def _hear(self, type: str, replica: Replica, message: dict[str, Any]) -> None:
        document = message["document"]
        if type == "subscribed":
            self._subscribed(document, replica, message)
            return
        assert message.get("epoch") == replica.epoch, f"{type} after the end: {message}"
        if type == "evicted":
            assert self.truth.lag_ms(document, message["seq"]) > RELATIVE_LAG_MS, "too soon"
            replica.epoch = None
        elif type == "unsubscribed":
            replica.epoch = None
        elif type == "state":
            assert replica.is_waiting_for_state
            assert message["state"] == self.truth.state(document, message["seq"])
            replica.is_waiting_for_state = False
            replica.applied = replica.acknowledged = message["seq"]
            replica.state = message["state"]
        elif type == "mutation":
            stored = self.truth.at(document, message["seq"])
            told = Stored(message["client"], message["clock"], message["mutation"])
            assert told == stored
            assert stored.author != self.name, "nobody gets its own"
            assert self.connection is not None
            assert self.connection.peer.is_writable, "it does not read"
            assert message["seq"] > replica.acknowledged, "acknowledged, and sent again"
            self._apply(replica, message["seq"], stored.mutation)
        elif type == "ack":
            stored = self.truth.at(document, message["seq"])
            assert (stored.author, stored.clock) == (self.name, message["clock"])
            if message["seq"] > replica.applied:
                self._apply(replica, message["seq"], stored.mutation)
            self._is_stored(replica, message["clock"])
        else:
            raise AssertionError(f"unexpected: {message}")

    def _subscribed(self, document: str, replica: Replica, message: dict[str, Any]) -> None:
        assert message["seq"] <= self.truth.durable[document]
        replica.epoch = message["epoch"]
        replica.is_waiting_for_state = not message["resumed"]
        replica.is_confirmed = message["resumed"]
        if (dropped_ms := replica.dropped_ms) is not None:
            is_short = self.truth.clock_ms() - dropped_ms <= RELATIVE_LAG_MS
            if is_short and self.truth.lag_ms(document, replica.acknowledged) <= RELATIVE_LAG_MS:
                assert message["resumed"], "its place was to be kept"
            replica.dropped_ms = None
        if message["resumed"]:
            assert replica.incarnation == message["incarnation"]
        replica.incarnation = message["incarnation"]
        self._is_stored(replica, message["clock"])
        assert replica.clock >= message["clock"]
        self.send_unsent(document)

    def _apply(self, replica: Replica, seq: int, mutation: dict[str, Any]) -> None:
        assert not replica.is_waiting_for_state, "the state comes first"
        assert seq <= replica.applied + 1, "a gap"
        if seq == replica.applied + 1:
            merge(replica.state, mutation)
            replica.applied = seq

    def _is_stored(self, replica: Replica, clock: int) -> None:
        replica.unsent = {each: what for each, what in replica.unsent.items() if each > clock}


class InlineWriter:
    """The disk, in the loop: when it writes is decided by the rules below and nothing else."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def write(self, batch: Batch, written: Callable[[float, None], None]) -> None:
        self._store.write_batch(batch)
        written(0.0, None)

    def close(self) -> None:
        pass


class DocumentsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Upkeep is a rule, too.
        self.no_timer = patch.object(hub, "TICK_SECONDS", 3_600.0)
        self.no_timer.start()
        self.loop = asyncio.new_event_loop()
        self.rig = self.loop.run_until_complete(self._opened())
        self.truth = Truth(self.rig.store, self.rig.clock)
        self.people = {name: Person(name, self.truth) for name in CLIENTS}

    async def _opened(self) -> DocumentsRig:
        store = open_memory()
        loop = asyncio.get_running_loop()
        committer = Committer(store, loop, InlineWriter(store), lambda: 0.0)
        # Nothing may depend on how long a test takes.
        options = DocumentOptions(snapshot_update_count=3, group_ms=0)
        return DocumentsRig(store, options, committer=committer)

    def teardown(self) -> None:
        try:
            self._bring_everybody_back()
            self._check_the_end()
        finally:
            self.loop.run_until_complete(self.rig.committer.close())
            self.loop.close()
            self.no_timer.stop()

    # Coming and going.

    @initialize(policies=st.lists(policies, min_size=3, max_size=3))
    def everybody_is_there(self, policies: list[str]) -> None:
        for name, policy in zip(CLIENTS, policies, strict=True):
            self._connect(name, policy)
            self._subscribe(name, "d", has_position=False)

    @precondition(lambda self: self.away())
    @rule(pick=picks, policy=policies, has_position=st.booleans())
    def come_back(self, pick: int, policy: str, has_position: bool) -> None:
        """What is not brought back for it, it asks for itself."""
        away = self.away()
        name = away[pick % len(away)]
        self._connect(name, policy)
        for document, replica in self.people[name].replicas.items():
            if replica.incarnation and replica.epoch is None:
                self._subscribe(name, document, has_position=has_position)

    @precondition(lambda self: self.away())
    @rule(pick=picks, policy=policies, document=st.sampled_from(DOCUMENTS))
    def come_back_in_vain(self, pick: int, policy: str, document: str) -> None:
        """Everything that it is told is lost, and the connection with it."""
        away = self.away()
        connection = self._connection(away[pick % len(away)], policy)
        connection.subscribe(document)
        connection.drop()
        for replica in self.people[away[pick % len(away)]].replicas.values():
            replica.dropped_ms = None

    @rule(name=st.sampled_from(CLIENTS), policy=policies)
    def displace(self, name: str, policy: str) -> None:
        """A second connection with the same name."""
        self._connect(name, policy)

    @precondition(lambda self: self.here())
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        person = self.here()[pick % len(self.here())]
        assert person.connection is not None
        person.connection.drop()
        person.disconnected()

    @precondition(lambda self: self.here())
    @rule(pick=picks, document=st.sampled_from(DOCUMENTS), has_position=st.booleans())
    def subscribe(self, pick: int, document: str, has_position: bool) -> None:
        """Also if it is subscribed already: then it begins anew."""
        person = self.here()[pick % len(self.here())]
        self._subscribe(person.name, document, has_position=has_position)

    @precondition(lambda self: self.subscribed())
    @rule(pick=picks)
    def unsubscribe(self, pick: int) -> None:
        person, document = self._pick(pick)
        person.say("unsubscribe", document)

    # At work.

    @precondition(lambda self: self.subscribed())
    @rule(pick=picks, values=values, is_written=st.booleans())
    def mutate(self, pick: int, values: list[int], is_written: bool) -> None:
        person, document = self._pick(pick)
        for value in values:
            person.mutate(document, value)
        if is_written:
            self.write()

    @precondition(lambda self: self.subscribed())
    @rule(pick=picks)
    def send_again(self, pick: int) -> None:
        person, document = self._pick(pick)
        person.send_unsent(document)

    @precondition(lambda self: self.subscribed())
    @rule(pick=picks)
    def send_again_what_is_stored(self, pick: int) -> None:
        person, document = self._pick(pick)
        replica = person.replicas[document]
        if stored_clock := min(replica.unsent, default=replica.clock + 1) - 1:
            person.say("mutation", document, clock=stored_clock, mutation={"x": "of old"})

    @precondition(lambda self: self.subscribed())
    @rule(behind=st.integers(0, 2))
    def everybody_acknowledges(self, behind: int) -> None:
        """The first of them maybe not everything."""
        for person, document in self.subscribed():
            person.acknowledge(document, max(0, person.replicas[document].applied - behind))
            behind = 0

    @precondition(lambda self: self.subscribed())
    @rule(pick=picks)
    def acknowledge(self, pick: int) -> None:
        person, document = self._pick(pick)
        person.acknowledge(document, person.replicas[document].applied)

    @precondition(lambda self: self.subscribed())
    @rule(pick=picks, duration_ms=st.sampled_from((6_000, 31_000)), value=st.integers(0, 9))
    def lag(self, pick: int, duration_ms: int, value: int) -> None:
        """Time passes; everybody else acknowledges and goes on."""
        self.write()
        self.everybody_hears()
        lagging = self._pick(pick)
        for person, document in self.subscribed():
            if (person, document) != lagging:
                person.acknowledge(document, person.replicas[document].applied)
        self.tick(duration_ms)
        self.everybody_hears()
        if self.subscribed():
            self.mutate(pick, [value], is_written=True)

    @precondition(lambda self: self.here())
    @rule(pick=picks)
    def stop_reading_or_read_on(self, pick: int) -> None:
        connection = self.here()[pick % len(self.here())].connection
        assert connection is not None
        if connection.peer.is_writable:
            connection.stop_reading()
        else:
            connection.read_on()

    # The router.

    @rule()
    def write(self) -> None:
        self.loop.run_until_complete(self.rig.settle())

    @rule(duration_ms=st.sampled_from(TICKS_MS))
    def tick(self, duration_ms: int) -> None:
        self.loop.run_until_complete(self.rig.tick(duration_ms))

    @invariant()
    def everybody_hears(self) -> None:
        for person in self.people.values():
            person.hear()

    # Who there is.

    def away(self) -> list[str]:
        return [name for name, person in self.people.items() if person.connection is None]

    def here(self) -> list[Person]:
        return [person for person in self.people.values() if person.connection is not None]

    def subscribed(self) -> list[tuple[Person, str]]:
        return [
            (person, document)
            for person in self.people.values()
            for document, replica in person.replicas.items()
            if replica.epoch is not None
        ]

    def _pick(self, pick: int) -> tuple[Person, str]:
        return self.subscribed()[pick % len(self.subscribed())]

    def _connect(self, name: str, policy: str) -> None:
        person = self.people[name]
        person.connected(self._connection(name, policy), policy)
        person.hear()

    def _connection(self, name: str, policy: str) -> Client:
        async def connecting() -> Client:
            return self.rig.connect(name, policy=policy)

        return self.loop.run_until_complete(connecting())

    def _subscribe(self, name: str, document: str, *, has_position: bool) -> None:
        person = self.people[name]
        replica = person.replicas[document]
        assert person.connection is not None
        # What it had ends here, and its place with it. The answer may have to wait for the disk.
        replica.epoch = None
        if has_position and replica.incarnation:
            since = {"incarnation": replica.incarnation, "seq": replica.applied}
            replica.acknowledged = replica.applied
            person.connection.subscribe(document, since=since)
        else:
            person.connection.subscribe(document)
        person.hear()

    # The end.

    def _bring_everybody_back(self) -> None:
        for name in CLIENTS:
            self._connect(name, "clean")
            for document in DOCUMENTS:
                if self.people[name].replicas[document].epoch is None:
                    self._subscribe(name, document, has_position=True)
        for _ in range(3):
            self.everybody_hears()
            self.write()
        self.everybody_hears()

    def _check_the_end(self) -> None:
        for document in DOCUMENTS:
            stored = self.truth.stored[document]
            meant = self.truth.state(document, len(stored))
            for person in self.people.values():
                replica = person.replicas[document]
                assert not replica.unsent, "everything is acknowledged in the end"
                clocks = [each.clock for each in stored if each.author == person.name]
                assert clocks == list(range(1, replica.clock + 1)), "all of it, in order"
                assert (replica.applied, replica.state) == (len(stored), meant)


def test_readers_converge_and_nothing_acknowledged_is_lost() -> None:
    run_state_machine_as_test(
        DocumentsMachine, settings=settings(max_examples=150, stateful_step_count=40)
    )


@pytest.mark.long
@pytest.mark.timeout(1_200)
def test_readers_converge_after_many_more_turns() -> None:
    run_state_machine_as_test(
        DocumentsMachine, settings=settings(max_examples=2_000, stateful_step_count=100)
    )
