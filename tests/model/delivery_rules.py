"""What must hold of deliveries after each step, and the search through all orders of steps."""

from collections import deque

from syncline.core.deliveries import Deliveries, MessageReader
from tests.model.delivery_parts import Client, Row, Setting, Step
from tests.model.delivery_world import World, begin


def check(world: World) -> None:
    readers = [each for state in world.core._sessions.values() for each in state.readers()]
    for queue, row in world.rows.items():
        reader = world.core.reader_of(queue, row.service) if row.exists else None
        for other in readers:
            if other is not reader:
                assert queue not in other.held, "a message is with the queue's reader alone"
                assert queue not in other.due, "nothing is due to who does not read"
        assert row.spent.issuperset(range(1, row.first)), "nothing is lost"
        if reader is not None:
            assert reader.session in world.slots, "who is gone reads nothing"
            _check_reader(world, queue, row, reader)
        _check_belief(world, queue, row, reader)
    for slot, number in enumerate(world.numbers):
        if number is not None:
            _check_promise(world, world.clients[slot], number)


def _check_belief(world: World, queue: bytes, row: Row, reader: MessageReader | None) -> None:
    for slot, client in enumerate(world.clients):
        believes = row.exists and (row.service or queue) in client.reads
        is_true = reader is not None and reader.session == world.numbers[slot]
        assert believes == is_true, "who reads a queue knows, and who does not was told"


def _check_reader(world: World, queue: bytes, row: Row, reader: MessageReader) -> None:
    client = world.clients[world.slots[reader.session]]
    if (held := reader.held.get(queue)) is not None:
        is_sent = ("MSG", queue, held.seq) in client.inbox or (queue, held.seq) in client.lost
        assert is_sent, "what is outstanding can be acknowledged"
    elif row.head is not None and queue not in client.unasked:
        is_coming = (
            queue in reader.due
            or reader.is_lapsed
            or queue in world.looks
            or any(fold is reader.fold and queue > after for fold, after in world.folds)
        )
        assert is_coming, "nothing is stuck"


def _check_promise(world: World, client: Client, number: int) -> None:
    service = world.core._sessions[number].service
    fold = service.fold if service is not None else None
    owes_alls = fold is not None and fold.says_alls
    assert owes_alls == (client.owed is not None), "ALLS in every case"
    if fold is not None:
        assert any(each is fold for each, _ in world.folds), "a fold that is begun goes on"
    if service is not None and service.is_lapsed:
        assert world.core.is_paused(number), "who can take more has not lapsed"


def explore(setting: Setting, machine: type[Deliveries] = Deliveries) -> int:
    """All states within the setting; raises with the steps that lead to a broken rule."""
    first = begin(setting, machine)
    seen = {first.key()}
    waiting: deque[tuple[World, tuple[Step, ...]]] = deque([(first, ())])
    while waiting:
        here, path = waiting.popleft()
        for step in here.steps():
            there = here.clone()
            try:
                there.take_step(step)
                check(there)
            except AssertionError as error:
                raise AssertionError(f"{error}; after {[*path, step]}") from error
            if (key := there.key()) not in seen:
                seen.add(key)
                waiting.append((there, (*path, step)))
    return len(seen)
