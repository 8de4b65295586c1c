"""Upkeep of documents when something is the matter with one of them."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from syncline.server.documents import LINGER_MS
from syncline.server.open_document import DocumentOptions, create
from syncline.storage.documents import (
    SNAPSHOT_VERSION,
    DocumentSnapshot,
    encode_snapshot,
    stream_of,
)
from syncline.testing.clock import ManualClock
from syncline.values.kinds import Kind
from syncline.wire import yjs
from tests.unit.server.documents_rig import (
    DocumentsRig,
    open_memory,
    text_of,
    turns,
    yjs_updates,
)

# Of this content the library writes what it cannot read.
WRITTEN_BADLY = bytes.fromhex("01014d0002010161010131013100")
UNREADABLE = msgspec.msgpack.encode([b"\x01\x01\x01"])


class KeptLog:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


@pytest.fixture
async def rig() -> AsyncIterator[DocumentsRig]:
    rig = DocumentsRig(open_memory())
    yield rig
    await rig.committer.close()


@pytest.fixture
def log(rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch) -> KeptLog:
    log = KeptLog()
    monkeypatch.setattr(rig.documents, "_log", log)
    return log


def break_upkeep(rig: DocumentsRig, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tend = rig.documents._tend  # pyright: ignore[reportPrivateUsage]

    def tend_or_fail(document: Any, now_ms: int) -> int | None:
        if document.name == name:
            raise ZeroDivisionError
        return tend(document, now_ms)

    monkeypatch.setattr(rig.documents, "_tend", tend_or_fail)


async def test_a_document_that_cannot_be_tended_stops_no_other(
    rig: DocumentsRig, log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broken", "whole"):
        writer = rig.yjs_joined(name)
        writer.update(yjs_updates("text")[0])
        await rig.settle()
        writer.drop()
    reader = rig.yjs_joined("broken")
    break_upkeep(rig, "broken", monkeypatch)
    for _ in range(3):
        await rig.tick(LINGER_MS + 1_000)
    assert [each.name for each in rig.documents.opened()] == []
    assert reader.peer.closed_with is not None
    assert "document 'broken' is damaged" in reader.peer.closed_with[1]
    ((event, fields),) = log.lines
    assert event == "a document is ended: it cannot be tended"
    assert fields["mistake"] == "ZeroDivisionError"
    # All that was stored of it is there for who comes next.
    again = rig.yjs_joined("broken")
    again.say(yjs.SyncStep1(b"\x00"))
    assert again.take(yjs.SyncStep2)[0].update == yjs_updates("text")[0]


async def test_the_timer_goes_on_whatever_upkeep_meets(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = rig.yjs_joined()
    writer.update(yjs_updates("text")[0])
    await rig.settle()

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rig.documents, "tend_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig.documents._tick()  # pyright: ignore[reportPrivateUsage]
    await turns()
    assert rig.documents._timer is not None  # pyright: ignore[reportPrivateUsage]


# Snapshots that could not be read.


async def test_a_snapshot_that_could_not_be_read_again_is_not_stored_and_the_updates_are_kept(
    rig: DocumentsRig, log: KeptLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server.documents.check_update", lambda body: None)
    first, second = yjs_updates("precious", " text")
    writer = rig.yjs_joined()
    for update in (first, WRITTEN_BADLY, second):
        writer.update(update)
        await rig.settle()
    writer.drop()
    for _ in range(3):
        await rig.tick(LINGER_MS + 1_000)
    assert list(rig.documents.opened()) == [], "it is let go of all the same"
    assert rig.documents.counters.unreadable_snapshot_count == 1
    ((event, fields),) = log.lines
    assert event == "a snapshot could not be read again: the updates of its document are kept"
    assert fields["update_count"] == 3
    assert rig.store.state(stream_of("d")).first == 1
    reader = rig.subscribed("ann", kind="yjs")
    document = rig.documents.find("d")
    assert document is not None
    assert text_of(document.folding.shown()) == "precious text"
    reader.drop()


async def test_a_damaged_snapshot_costs_who_opens_the_document_a_clear_word_and_no_other(
    rig: DocumentsRig,
) -> None:
    for name in ("broken", "whole"):
        create(name, Kind.YJS, bytes(8), rig.store, DocumentOptions(), 0)
    snapshot = DocumentSnapshot(SNAPSHOT_VERSION, "broken", Kind.YJS, bytes(8), [], UNREADABLE)
    rig.store.put_snapshot(stream_of("broken"), 0, encode_snapshot(snapshot), 0)
    await rig.settle()
    refused = rig.yjs("broken")
    assert refused.peer.closed_with is not None
    assert "its state cannot be folded" in refused.peer.closed_with[1]
    client = rig.connect("ann")
    client.subscribe("broken", kind="yjs")
    (_, error) = client.take()
    assert (error["type"], error["code"], error["document"]) == ("error", "damaged", "broken")
    rig.yjs_joined("whole")
    assert [each.name for each in rig.documents.opened()] == ["whole"]
    rig.documents.delete("broken")
    await rig.settle()
    assert rig.documents.find("broken") is None


# The clock of the machine is set, by hours and by years.

YEAR_MS = 366 * 24 * 60 * 60 * 1_000


async def test_nobody_is_late_because_the_clock_was_set_forward(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    away = rig.connect("c", policy="resume")
    away.subscribe()
    author.mutate(1, {"x": 1})
    await rig.settle()
    away.ack(1)
    away.drop()
    author.mutate(2, {"x": 2})
    await rig.settle()
    author.ack(2)
    rig.wall = ManualClock(rig.clock() + YEAR_MS)
    await rig.tick(1_000)
    assert rig.documents.counters.evicted_count == 0
    reader.ack(2)
    back = rig.connect("c", policy="resume")
    welcome, subscribed = back.take("welcome", "subscribed")
    assert (welcome["restored"], subscribed["resumed"]) == (["d"], True)


async def test_upkeep_goes_on_though_the_clock_was_set_back(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.ack(1)
    reader.take()
    rig.wall = ManualClock(rig.clock() - YEAR_MS)
    await rig.tick(6_000)
    assert [each["seq"] for each in reader.take("mutation")] == [1], "it is sent again"
    await rig.tick(30_000)
    assert [each["type"] for each in reader.take()][-1] == "evicted"
    author.drop()
    reader.drop()
    for _ in range(3):
        await rig.tick(LINGER_MS + 1_000)
    assert list(rig.documents.opened()) == []
    entry = next(iter(rig.store.read(stream_of("d"), 0, 1, 1_000)), None)
    assert entry is None, "it is in the snapshot, and nobody has to get it"


async def test_what_is_stored_has_the_time_of_the_clock_on_the_wall(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    rig.wall = ManualClock(rig.clock() - YEAR_MS)
    author.mutate(1, {"x": 1})
    await rig.settle()
    (entry,) = rig.store.read(stream_of("d"), 1, 1, 1_000)
    assert entry.time_ms == rig.wall()
