"""Who finds the store busy waits for room, in order and for a while: so with new documents."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from syncline.errors import StoreBusyError
from syncline.server import patience as module
from syncline.server.patience import Patience
from syncline.storage.base import StreamKind
from syncline.storage.memory import MemoryStore
from syncline.values.ids import StreamId
from syncline.wire import yjs
from tests.unit.server.documents_rig import DocumentsRig, open_memory, text_of, yjs_updates


class Line:
    """People in line for a store with so much room."""

    def __init__(self) -> None:
        self.room = 0
        self.pressed_count = 0
        self.served: list[str] = []
        self.sent_away: list[str] = []
        self.patience = Patience(self._press)

    def _press(self) -> None:
        self.pressed_count += 1

    def come(self, name: str) -> bool:
        def act() -> None:
            if not self.room:
                raise StoreBusyError(2, 1)
            self.room -= 1
            self.served.append(name)

        return self.patience.run(act, lambda busy: self.sent_away.append(name))


async def test_with_room_nobody_waits() -> None:
    line = Line()
    line.room = 1
    assert line.come("a")
    assert (line.served, len(line.patience), line.pressed_count) == (["a"], 0, 0)


async def test_who_waits_is_served_in_order_as_room_comes() -> None:
    line = Line()
    for name in "abc":
        assert not line.come(name)
    assert line.pressed_count == 3
    line.room = 2
    line.patience.relieve()
    assert (line.served, len(line.patience)) == (["a", "b"], 1)
    # There is not enough yet: more upkeep is asked for.
    assert line.pressed_count == 4
    line.room = 1
    line.patience.relieve()
    assert line.served == ["a", "b", "c"]
    assert line.sent_away == []


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS_MAX", 0.0)
    line = Line()
    line.come("a")
    line.come("b")
    async with asyncio.timeout(10):
        # A fact of a plain list; nothing there could set an event.
        while len(line.sent_away) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert (line.sent_away, len(line.patience)) == (["a", "b"], 0)


async def test_no_more_than_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_COUNT_MAX", 2)
    line = Line()
    for name in "abc":
        line.come(name)
    assert (line.sent_away, len(line.patience)) == (["c"], 2)


# New documents.


class BusyStore(MemoryStore):
    is_busy = True

    def create(self, stream: StreamId, kind: StreamKind, quota: int, now_ms: int) -> None:
        if self.is_busy:
            raise StoreBusyError(2, 1)
        super().create(stream, kind, quota, now_ms)


@pytest.fixture
def store() -> BusyStore:
    made = open_memory()
    made.__class__ = BusyStore
    assert isinstance(made, BusyStore)
    return made


@pytest.fixture
async def rig(store: BusyStore) -> AsyncIterator[DocumentsRig]:
    made = DocumentsRig(store)
    yield made
    await made.committer.close()


async def test_a_yjs_client_waits_for_its_new_document(rig: DocumentsRig, store: BusyStore) -> None:
    client = rig.yjs()
    assert (client.take(), client.peer.is_paused, client.peer.closed_with) == ([], True, None)
    store.is_busy = False
    rig.documents.patience.relieve()
    assert isinstance(client.take()[0], yjs.SyncStep1)
    assert not client.peer.is_paused
    client.update(yjs_updates("a")[0])
    await rig.settle()
    document = rig.documents.find("d")
    assert document is not None
    assert text_of(document.folding.shown()) == "a"


async def test_a_yjs_client_that_left_gets_no_document(rig: DocumentsRig, store: BusyStore) -> None:
    client = rig.yjs()
    client.drop()
    store.is_busy = False
    rig.documents.patience.relieve()
    assert rig.documents.find("d") is None
    assert rig.documents.connection_count == 0


async def test_a_yjs_client_is_told_to_come_again_if_it_takes_too_long(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_COUNT_MAX", 0)
    assert rig.yjs().peer.close_code == 1013


async def test_a_subscription_waits_for_its_new_document(
    rig: DocumentsRig, store: BusyStore
) -> None:
    client = rig.connect("a")
    client.take()
    client.subscribe(kind="json")
    client.subscribe("e", kind="json")
    client.say("unsubscribe", document="e", epoch=1)
    assert [each["type"] for each in client.take()] == ["error", "unsubscribed"]
    store.is_busy = False
    rig.documents.patience.relieve()
    answers: list[dict[str, Any]] = client.take()
    assert [(each["type"], each["document"]) for each in answers] == [
        ("subscribed", "d"),
        ("state", "d"),
    ]
    assert rig.documents.find("e") is None, "it was not wanted any more"


async def test_a_subscription_that_waited_in_vain_may_be_tried_again(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.connect("a")
    client.take()
    monkeypatch.setattr(module, "WAITING_COUNT_MAX", 0)
    client.subscribe(kind="json")
    (failure,) = client.take()
    assert (failure["type"], failure["code"], failure["retriable"]) == ("error", "busy", True)


async def test_a_cable_subscription_waits_for_its_new_document(
    rig: DocumentsRig, store: BusyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.cable()
    client.subscribe()
    assert client.take_types() == ["welcome"]
    store.is_busy = False
    rig.documents.patience.relieve()
    assert "confirm_subscription" in client.take_types()
    store.is_busy = True
    monkeypatch.setattr(module, "WAITING_COUNT_MAX", 0)
    other = rig.cable()
    other.subscribe('{"channel":"SyncChannel","path":"e"}')
    assert other.take_types() == ["welcome", "disconnect"]
