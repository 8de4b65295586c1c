"""Sessions, queues and a store around the machine of deliveries, small enough to try every order.

The store is a row of numbers for each queue, the network a list of events for each session. The
shell does here what the router does, in smaller steps: that a message became durable and that
somebody looks at its queue are two steps, and so are the pages of a fold.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from syncline.core.deliveries import Deliveries, Fold
from syncline.core.subscriptions import Deleted, Effect, Ended, ServiceEnded
from tests.model.delivery_parts import (
    SERVICE,
    Client,
    Event,
    Row,
    Setting,
    Step,
    cloned,
    message_id,
    reader_key,
    without,
)


class World:
    def __init__(self, setting: Setting, core: Deliveries) -> None:
        self.setting = setting
        self.core = core
        self.clients = [Client() for _ in setting.services]
        # The session of each client, if it is connected; and the client of each session.
        self.numbers: list[int | None] = [None for _ in setting.services]
        self.slots: dict[int, int] = {}
        self.number_count = 0
        self.rows: dict[bytes, Row] = {}
        self.left: dict[str, int] = {}
        # Queues that somebody is about to look at.
        self.looks: frozenset[bytes] = frozenset()
        # With the rule broken: who looked already and is about to register.
        self.seen: frozenset[tuple[int, bytes, int]] = frozenset()
        # Each with the queue that it has reached.
        self.folds: tuple[tuple[Fold, bytes], ...] = ()

    def clone(self) -> "World":
        there = World.__new__(World)
        there.setting = self.setting
        there.core = cloned(self.core)
        there.clients = self.clients.copy()
        there.numbers = self.numbers.copy()
        there.slots = self.slots.copy()
        there.number_count = self.number_count
        there.rows = self.rows.copy()
        there.left = self.left.copy()
        there.looks, there.seen = self.looks, self.seen
        there.folds = self.folds
        return there

    def _amend(self, slot: int, **changes: Any) -> None:
        self.clients[slot] = self.clients[slot]._replace(**changes)

    def _amend_row(self, queue: bytes, **changes: Any) -> None:
        self.rows[queue] = self.rows[queue]._replace(**changes)

    # What may happen next.

    def steps(self) -> Iterator[Step]:
        for queue, row in self.rows.items():
            if row.exists:
                yield from self._steps_of_queue(queue, row)
        for queue in sorted(self.looks):
            yield "look", 0, queue
        for slot, queue, _ in sorted(self.seen):
            yield "register", slot, queue
        for index in range(len(self.folds)):
            yield "fold", index, b""
        for slot, number in enumerate(self.numbers):
            if number is None:
                if self.left["connect"]:
                    yield "connect", slot, b""
            else:
                yield from self._steps_of_client(slot, number)
        if self.left["dissolve"]:
            yield "dissolve", 0, b""

    def _steps_of_queue(self, queue: bytes, row: Row) -> Iterator[Step]:
        if self.left["send"]:
            yield "send", 0, queue
        if row.durable < row.staged:
            yield "commit", 0, queue
        if row.head is not None and self.left["expire"]:
            yield "expire", 0, queue
        if self.left["operate"]:
            yield "operate", 0, queue

    def _steps_of_client(self, slot: int, number: int) -> Iterator[Step]:
        client = self.clients[slot]
        if self.left["connect"]:
            yield "drop", slot, b""
        if client.inbox:
            yield "take", slot, b""
            if client.inbox[0][0] == "MSG" and self.left["lose"]:
                yield "lose", slot, b""
        if self.core.is_paused(number):
            yield "resume", slot, b""
        elif self.left["pause"]:
            yield "pause", slot, b""
        if self.setting.services[slot] and self.left["sub"]:
            yield "subs", slot, b""
        for queue in (queue for queue, row in self.rows.items() if row.exists):
            if self.left["sub"]:
                yield "sub", slot, queue
            if self.left["get"]:
                yield "get", slot, queue
            if self.left["delete"]:
                yield "delete", slot, queue
            if self.left["bus"] and self.setting.services[slot] and self.rows[queue].service:
                yield "bus", slot, queue

    # Doing it.

    def take_step(self, step: Step) -> None:
        what, slot, queue = step
        if what in self.left:
            self.left[what] -= 1
        match what:
            case "send":
                self._stage(queue)
            case "commit":
                self._commit(queue)
            case "look":
                self.looks -= {queue}
                self._look(queue)
            case "expire":
                self._spend(queue, self.rows[queue].first)
            case "connect":
                self._connect(slot)
            case "drop":
                self._drop(slot)
            case "sub":
                self._subscribe(slot, queue)
            case "register":
                self._register_late(slot, queue)
            case "subs":
                self._subscribe_service(slot)
            case "fold":
                self._fold(slot)
            case "take":
                self._take(slot, acknowledges=True)
            case "lose":
                self._take(slot, acknowledges=False)
            case "get":
                self._get(slot, queue)
            case "delete":
                self._delete(slot, queue)
            case "bus":
                self._dissociate(slot, queue)
            case "operate":
                if self.rows[queue].service is None:
                    self._give(queue)
                else:
                    self._take_off(queue)
            case "dissolve":
                self._dissolve()
            case "pause":
                self.core.pause(self._number(slot))
            case "resume":
                self._resume(slot)
            case _:
                raise AssertionError(what)

    def _number(self, slot: int) -> int:
        number = self.numbers[slot]
        assert number is not None
        return number

    # The store.

    def _stage(self, queue: bytes) -> None:
        self._amend_row(queue, staged=self.rows[queue].staged + 1)
        if not self.setting.stages:
            self._commit(queue)

    def _commit(self, queue: bytes) -> None:
        self._amend_row(queue, durable=self.rows[queue].staged)
        self.looks |= {queue}
        for slot, client in enumerate(self.clients):
            if queue in client.unasked:
                self._amend(slot, unasked=client.unasked - {queue})

    def _spend(self, queue: bytes, seq: int) -> None:
        """The message may go: somebody has it, or it is too old."""
        row = self.rows[queue]
        first = max(row.first, seq + 1)
        self._amend_row(queue, spent=row.spent | {seq}, first=first)
        for slot, client in enumerate(self.clients):
            if client.told:
                gone = {each for each in client.told if each[0] == queue and each[1] < first}
                self._amend(slot, told=client.told - gone)

    # Looking, and offering what is there.

    def _look(self, queue: bytes) -> None:
        if (seq := self.rows[queue].head) is not None:
            self._offer(queue, seq)

    def _offer(self, queue: bytes, seq: int) -> None:
        service = self.rows[queue].service
        if not self.core.wants(queue, service):
            return
        session = self.core.offer(queue, service, seq, message_id(queue, seq))
        if session is not None:
            self._send(self.slots[session], ("MSG", queue, seq))

    # Sessions.

    def _connect(self, slot: int) -> None:
        self.number_count += 1
        self.numbers[slot] = self.number_count
        self.slots[self.number_count] = slot
        self.core.connect(self.number_count)

    def _drop(self, slot: int) -> None:
        number = self._number(slot)
        self.core.disconnect(number)
        del self.slots[number]
        self.folds = tuple(each for each in self.folds if each[0].session != number)
        self.seen = frozenset(each for each in self.seen if each[0] != slot)
        self.clients[slot], self.numbers[slot] = Client(), None

    def _subscribe(self, slot: int, queue: bytes) -> None:
        number = self._number(slot)
        is_prohibited = self.core.is_get_only(number, queue)
        assert is_prohibited == (queue in self.clients[slot].fetched), "SUB and GET exclude another"
        if is_prohibited:
            return
        if self.setting.looks_after_registering:
            self._register(slot, queue)
            self.looks |= {queue}
        else:
            self.seen |= {(slot, queue, self.rows[queue].head or 0)}

    def _register_late(self, slot: int, queue: bytes) -> None:
        """As it must not be done: what was seen before it registered is what it gets."""
        seen = next(each for each in self.seen if each[:2] == (slot, queue))
        self.seen -= {seen}
        if self.rows[queue].exists:
            self._register(slot, queue)
            if seen[2]:
                self._offer(queue, seen[2])

    def _register(self, slot: int, queue: bytes) -> None:
        row, number = self.rows[queue], self._number(slot)
        had_service = self.core._sessions[number].service is not None
        service = SERVICE if self.setting.services[slot] else None
        before = self.core.reader_of(queue, row.service)
        effects = self.core.subscribe(number, queue, service, former=row.service)
        if before is not None and before.session != number:
            assert before.session in {each.session for each in effects}, "who loses a queue is told"
        self._amend_row(queue, service=service)
        self._tell(effects)
        client = self.clients[slot]
        # Whoever begins to speak for the service reads all that is the service's by now.
        regained = set[bytes]()
        if service is not None and not had_service:
            regained = {each for each, row in self.rows.items() if row.service}
        self._amend(
            slot,
            told=without(client.told, queue),
            lost=without(client.lost, queue),
            ended=client.ended - {queue, SERVICE} - regained,
            reads=client.reads | {queue if service is None else service},
            unasked=(client.unasked if had_service or service is None else self._backlog())
            - {queue},
        )

    def _backlog(self) -> frozenset[bytes]:
        return frozenset(queue for queue, row in self.rows.items() if row.service and row.head)

    def _subscribe_service(self, slot: int) -> None:
        self.left["sub"] -= 1
        subscribed = self.core.subscribe_service(self._number(slot), SERVICE)
        self._tell(subscribed.effects)
        if subscribed.fold is None:
            return
        self.folds += ((subscribed.fold, b""),)
        # Where something is outstanding, what follows comes after its acknowledgement.
        owner = self.core.reader_of(b"", SERVICE)
        held = set(owner.held) if owner is not None else set[bytes]()
        waiting = {(queue, self.rows[queue].first) for queue in self._backlog() - held}
        self._amend(
            slot,
            ended=frozenset(),
            reads=self.clients[slot].reads | {SERVICE},
            unasked=frozenset(),
            owed=frozenset(waiting),
        )

    def _fold(self, index: int) -> None:
        fold, after = self.folds[index]
        rest = self.folds[:index] + self.folds[index + 1 :]
        if not self.core.fold_is_current(fold):
            self.folds = rest
            return
        page = sorted(q for q, row in self.rows.items() if row.exists and row.service and q > after)
        if page:
            self.folds = (*rest, (fold, page[0]))
            self._look(page[0])
        elif self.core.fold_ended(fold):
            self.folds = rest
            if fold.says_alls:
                self._send(self.slots[fold.session], ("ALLS", b"", 0))

    def _take(self, slot: int, *, acknowledges: bool) -> None:
        """A client takes the next event. A message it acknowledges at once, or never."""
        client = self.clients[slot]
        what, queue, seq = client.inbox[0]
        self._amend(slot, inbox=client.inbox[1:])
        if what not in ("MSG", "GOT"):
            return
        if not acknowledges:
            self._amend(slot, lost=client.lost | {(queue, seq)})
            return
        acknowledged = self.core.acknowledge(self._number(slot), queue, message_id(queue, seq))
        if acknowledged is None or not self.rows[queue].exists:
            return
        self._spend(queue, seq)
        first = max(self.rows[queue].first, acknowledged.seq + 1)
        self._amend_row(queue, first=first)
        if not acknowledged.is_get:
            self._look(queue)

    def _get(self, slot: int, queue: bytes) -> None:
        row, number = self.rows[queue], self._number(slot)
        is_subscribed = self.core.is_subscribed(number, queue, row.service)
        is_allowed = self.core.get(number, queue, row.service)
        assert is_allowed != is_subscribed, "GET is prohibited to the subscriber alone"
        if not is_allowed:
            return
        client = self.clients[slot]
        if row.head is not None:
            self.core.got(number, queue, row.head, message_id(queue, row.head))
            client = client._replace(inbox=(*client.inbox, ("GOT", queue, row.head)))
        self.clients[slot] = client._replace(fetched=client.fetched | {queue})

    def _delete(self, slot: int, queue: bytes) -> None:
        service, number = self.rows[queue].service, self._number(slot)
        reader = self.core.reader_of(queue, service)
        self._amend_row(queue, service=None, exists=False)
        self._amend(slot, reads=self.clients[slot].reads - {queue})
        self.looks -= {queue}
        effects = self.core.deleted(queue, service, by=number)
        expected = {reader.session} - {number} if reader is not None else set[int]()
        assert {each.session for each in effects} == expected, "its reader elsewhere is told"
        self._tell(effects)

    def _dissociate(self, slot: int, queue: bytes) -> None:
        """A session of the service, whether or not it speaks for it, lets go of a queue."""
        number = self._number(slot)
        reader = self.core.reader_of(queue, SERVICE)
        effects = self.core.dissociated(queue, SERVICE, by=number)
        expected = {reader.session} - {number} if reader is not None else set[int]()
        assert {each.session for each in effects} == expected, "its reader elsewhere is told"
        self._amend_row(queue, service=None)
        self._tell(effects)
        client = self.clients[slot]
        self._amend(
            slot,
            told=without(client.told, queue),
            lost=without(client.lost, queue),
            ended=client.ended | {queue},
        )
        self._owe_nothing_of(queue)

    def _owe_nothing_of(self, queue: bytes) -> None:
        """Also if it comes back: what waits there is not what waited when all was asked for."""
        for each, client in enumerate(self.clients):
            if client.owed is not None:
                self._amend(each, owed=without(client.owed, queue))

    def _give(self, queue: bytes) -> None:
        """An operator makes the service's what is nobody's, and then somebody looks."""
        reader = self.core.reader_of(queue, None)
        effects = self.core.associated(queue, SERVICE)
        expected = {reader.session} if reader is not None else set[int]()
        assert {each.session for each in effects} == expected, "its reader is told"
        self._amend_row(queue, service=SERVICE)
        self._tell(effects)
        self._owe_nothing_of(queue)
        self.looks |= {queue}
        owner = self.core.reader_of(queue, SERVICE)
        if owner is not None:
            slot = self.slots[owner.session]
            client = self.clients[slot]
            self._amend(slot, ended=client.ended - {queue}, unasked=client.unasked - {queue})

    def _take_off(self, queue: bytes) -> None:
        """An operator takes a queue from the service."""
        reader = self.core.reader_of(queue, SERVICE)
        effects = self.core.dissociated(queue, SERVICE)
        expected = {reader.session} if reader is not None else set[int]()
        assert {each.session for each in effects} == expected, "its reader is told"
        self._amend_row(queue, service=None)
        self._tell(effects)
        self._owe_nothing_of(queue)

    def _dissolve(self) -> None:
        """An operator deletes the service."""
        self._tell(self.core.service_deleted(SERVICE))
        for queue in self.rows:
            self._amend_row(queue, service=None)

    def _resume(self, slot: int) -> None:
        while True:
            resumed = self.core.resume(self._number(slot))
            if resumed.fold is not None:
                self.folds += ((resumed.fold, b""),)
            if not resumed.due:
                return
            for queue in resumed.due:
                self._look(queue)

    # What a client is told.

    def _tell(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            slot = self.slots[effect.session]
            match effect:
                case Ended(queue=queue):
                    self._send(slot, ("END", queue, 0))
                case Deleted(queue=queue):
                    self._send(slot, ("DELD", queue, 0))
                case ServiceEnded():
                    self._send(slot, ("ENDS", b"", 0))

    def _send(self, slot: int, event: Event) -> None:
        what, queue, seq = event
        client = self.clients[slot]
        client = client._replace(inbox=(*client.inbox, event))
        match what:
            case "MSG":
                assert not client.ended & {queue, SERVICE}, "quiet after END, ENDS and DELD"
                assert (queue, seq) not in client.told, "no message twice between two ends"
                owed = client.owed - {(queue, seq)} if client.owed is not None else None
                client = client._replace(
                    told=client.told | {(queue, seq)}, owed=owed, unasked=client.unasked - {queue}
                )
            case "ALLS":
                assert client.owed is not None, "one ALLS for each SUBS, and none after ENDS"
                assert not any(self._is_there(*each) for each in client.owed), (
                    "ALLS after all that waited"
                )
                client = client._replace(owed=None)
            case "ENDS":
                client = Client(
                    client.inbox,
                    reads=client.reads - {SERVICE},
                    fetched=client.fetched,
                    ended=client.ended | {SERVICE},
                )
            case _:
                client = client._replace(
                    ended=client.ended | {queue},
                    reads=client.reads - {queue},
                    told=without(client.told, queue),
                    lost=without(client.lost, queue),
                )
        self.clients[slot] = client

    def _is_there(self, queue: bytes, seq: int) -> bool:
        row = self.rows[queue]
        return row.exists and row.service is not None and row.first <= seq

    def key(self) -> object:
        return (
            tuple(self.clients),
            tuple(map(self._session_key, self.numbers)),
            tuple(self.rows.values()),
            self.looks,
            self.seen,
            tuple(sorted(self._fold_key(fold, after) for fold, after in self.folds)),
            tuple(self.left.values()),
        )

    def _fold_key(self, fold: Fold, after: bytes) -> tuple[int, bool, bytes]:
        return self.slots[fold.session], self.core.fold_is_current(fold), after

    def _session_key(self, number: int | None) -> object:
        if number is None:
            return None
        state = self.core._sessions[number]
        fetched = self.core._fetched.get(number)
        return (
            state.is_paused,
            tuple(fetched.items()) if fetched else None,
            reader_key(state.own),
            reader_key(state.service),
        )


def begin(setting: Setting, machine: type[Deliveries] = Deliveries) -> World:
    """Every client is connected."""
    made = World(setting, machine())
    for index, of_service in enumerate(setting.associated):
        service = SERVICE if of_service else None
        count = setting.backlog
        made.rows[b"pqr"[index : index + 1]] = Row(service, durable=count, staged=count)
    made.left = {
        "send": setting.messages,
        "connect": setting.connections,
        "sub": setting.subscriptions,
        "get": setting.get,
        "lose": setting.lose,
        "delete": setting.delete,
        "bus": setting.bus,
        "operate": setting.operate,
        "expire": setting.expire,
        "pause": setting.pause,
        "dissolve": setting.dissolve,
    }
    for slot in range(len(setting.services)):
        made._connect(slot)
    return made
