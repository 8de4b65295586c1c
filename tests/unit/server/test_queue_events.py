"""What is noted of the operator's API: what it gave out, and what was acknowledged there."""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from syncline.core.queue import read_request
from syncline.server.committer import Committer
from syncline.server.events import Events
from syncline.server.queues import SESSION, Queues
from syncline.storage.base import Entry, StreamKind, TellsExpiry, commit
from syncline.storage.log.store import LogStore
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.testing.files import SimulatedFiles
from syncline.values.events import EventKind, Face
from syncline.values.ids import StreamId
from tests.unit.server.documents_rig import open_memory
from tests.unit.server.events_rig import Noted

NOW_MS = 1_000


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
async def queues(noted: Noted) -> AsyncIterator[Queues]:
    store = open_memory()
    committer = Committer.on_thread(store)
    events = Events(noted, lambda: NOW_MS, Face.HTTP)
    numbers = count(1)
    yield Queues(
        store,
        committer,
        lambda: NOW_MS,
        lambda size: next(numbers).to_bytes(size, "big"),
        events=events,
    )
    await committer.close()


async def test_what_a_read_gave_out_is_noted_and_what_it_did_not_is_not(
    queues: Queues, noted: Noted
) -> None:
    queue = await queues.create(None, None)
    assert await queues.read(queue, read_request(0, 10, 10_000)) == []
    assert noted.take() == []
    await queues.append_many(queue, [b"x"] * 5)
    await queues.read(queue, read_request(2, 2, 10_000))
    (delivered,) = noted.take_events()
    assert (delivered.kind, delivered.stream, delivered.time_ms) == (6, queue, NOW_MS)
    assert delivered.session == SESSION << 4 | Face.HTTP
    assert (delivered.first, delivered.last) == (2, 3)
    await queues.read(queue, read_request(4, 10, 10_000), 5.0)
    assert noted.take() == [("DELIVERED", SESSION, 4, 5)]


async def test_what_a_read_left_out_is_not_noted(
    queues: Queues, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Entry(seq, NOW_MS, b"x") for seq in (3, 4, 6, 9, 10)]
    monkeypatch.setattr(MemoryStore, "read", lambda *_: found)
    await queues.read(StreamId(b"q" * 24), read_request(0, 10, 10_000))
    assert [each[2:] for each in noted.take()] == [(3, 4), (6, 6), (9, 10)]


async def test_what_is_acknowledged_is_noted_once(queues: Queues, noted: Noted) -> None:
    queue = await queues.create(None, None)
    await queues.append_many(queue, [b"x"] * 3)
    await queues.acknowledge(queue, 2)
    await queues.acknowledge(queue, 1)
    assert noted.take() == [("ACKNOWLEDGED", SESSION, 0, 2)]


def test_a_log_says_what_it_let_go_of_by_age(noted: Noted) -> None:
    store = LogStore.open(
        "/data",
        SimulatedFiles(),
        StoreOptions(),
        now_ms=NOW_MS,
        random_bytes=lambda size: bytes(range(size)),
    )
    queue = StreamId(b"q" * 24)
    assert isinstance(store, TellsExpiry)
    store.on_expired = Events(noted, lambda: NOW_MS, Face.HTTP).expired
    store.create(queue, StreamKind.QUEUE, 10, NOW_MS)
    for age_ms in (50, 40, 10):
        store.append(queue, b"x", NOW_MS - age_ms)
    commit(store)
    assert store.expire_before(NOW_MS - 100, 10) == 0
    assert noted.take() == []
    assert store.expire_before(NOW_MS - 20, 10) == 2
    (expired,) = noted.take_events()
    assert (expired.kind, expired.stream, expired.last) == (EventKind.EXPIRED, queue, 2)
    assert (expired.session, expired.detail) == (0, 0)
    store.close()
