"""Large updates are looked at beside the loop, and all promises are kept meanwhile."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator

import pytest

from syncline.server import checking
from syncline.wire import yjs, yjs_updates
from tests.unit.server.documents_rig import D, DocumentsRig, open_memory, text_of
from tests.unit.server.documents_rig import yjs_updates as typed

LARGE, SMALL = "x" * checking.LARGE_BYTES, "y" * 200


class Gate:
    """Holds the thread until it is opened; says on which thread updates are looked at."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.threads: set[str] = set()

    def check_update(self, data: bytes) -> None:
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.opened.wait(15)
        yjs_updates.check_update(data)

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 15)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(checking, "check_update", made.check_update)
    yield made
    made.opened.set()


@pytest.fixture
async def rig() -> AsyncIterator[DocumentsRig]:
    made = DocumentsRig(open_memory())
    yield made
    await made.documents.checks.settled()
    await made.committer.close()


async def done(rig: DocumentsRig, gate: Gate) -> None:
    gate.opened.set()
    await rig.documents.checks.settled()
    await rig.settle()


def head(rig: DocumentsRig) -> int:
    document = rig.documents.find("d")
    return -1 if document is None else document.machine.head


async def test_others_go_on_while_a_large_update_is_looked_at(
    rig: DocumentsRig, gate: Gate
) -> None:
    slow, quick, reader = rig.yjs_joined(), rig.yjs_joined(), rig.yjs_joined()
    (large,), (small,) = typed(LARGE, client=1), typed(SMALL, client=2)
    slow.update(large)
    await gate.until_entered()
    assert slow.peer.is_paused, "its order stays as it is"
    quick.update(small)
    await rig.settle()
    assert [each.update for each in reader.take()] == [small]
    await done(rig, gate)
    assert [each.update for each in reader.take()] == [large]
    assert not slow.peer.is_paused
    assert all(name.startswith("syncline-checks") for name in gate.threads)


async def test_what_is_no_update_ends_its_connection_alone(rig: DocumentsRig, gate: Gate) -> None:
    culprit, other = rig.yjs_joined(), rig.yjs_joined()
    culprit.update(typed(LARGE)[0] + b"\x00")
    await done(rig, gate)
    assert (culprit.peer.close_code, other.peer.close_code, head(rig)) == (4400, None, 0)


async def test_a_large_update_is_stored_though_its_author_leaves_meanwhile(
    rig: DocumentsRig, gate: Gate
) -> None:
    writer, reader = rig.yjs_joined(), rig.yjs_joined()
    writer.update(typed(LARGE)[0])
    await gate.until_entered()
    writer.drop()
    await done(rig, gate)
    assert [text_of(each.update) for each in reader.take()] == [LARGE]
    assert rig.documents.connection_count == 1


async def test_of_a_document_deleted_meanwhile_nothing_comes_back(
    rig: DocumentsRig, gate: Gate
) -> None:
    writer = rig.yjs_joined()
    await rig.settle()
    writer.update(typed(LARGE)[0])
    await gate.until_entered()
    rig.documents.delete("d")
    await done(rig, gate)
    assert (writer.peer.close_code, head(rig)) == (4404, -1)


async def test_a_large_step_2_is_looked_at_there_too(rig: DocumentsRig, gate: Gate) -> None:
    writer, reader = rig.yjs_joined(), rig.yjs_joined()
    writer.say(yjs.SyncStep2(typed(LARGE)[0]))
    await gate.until_entered()
    await done(rig, gate)
    assert [text_of(each.update) for each in reader.take()] == [LARGE]


async def test_over_sync_the_next_message_waits_and_receipts_come_in_order(
    rig: DocumentsRig, gate: Gate
) -> None:
    writer = rig.subscribed("w", kind="yjs")
    first, second = typed(LARGE, "b")
    writer.mutate(1, b64encode(first).decode())
    await gate.until_entered()
    assert writer.peer.is_paused
    await done(rig, gate)
    assert not writer.peer.is_paused
    writer.mutate(2, b64encode(second).decode())
    await rig.settle()
    assert [(each["clock"], each["seq"]) for each in writer.take("ack")] == [(1, 1), (2, 2)]


async def test_over_sync_what_is_no_update_is_refused(rig: DocumentsRig, gate: Gate) -> None:
    writer = rig.subscribed("w", kind="yjs")
    writer.mutate(1, b64encode(typed(LARGE)[0] + b"\x00").decode())
    await done(rig, gate)
    failure, ended = writer.take("error", "unsubscribed")
    assert (failure["code"], failure["clock"], ended["code"]) == ("invalid_mutation", 1, "refused")


async def test_over_sync_a_subscription_that_ended_meanwhile_takes_nothing(
    rig: DocumentsRig, gate: Gate
) -> None:
    writer = rig.subscribed("w", kind="yjs")
    await rig.settle()
    writer.mutate(1, b64encode(typed(LARGE)[0]).decode())
    await gate.until_entered()
    writer.drop()
    await done(rig, gate)
    assert head(rig) == 0, "the client has no receipt and sends it again"


async def test_over_cable_it_is_the_same(rig: DocumentsRig, gate: Gate) -> None:
    writer, other = rig.cable_joined(), rig.yjs_joined()
    writer.update(typed(LARGE)[0], clock=1)
    await gate.until_entered()
    assert writer.peer.is_paused
    await done(rig, gate)
    assert [text_of(each.update) for each in other.take(yjs.SyncUpdate)] == [LARGE]
    writer.update(typed(LARGE, client=9)[0] + b"\x00")
    await rig.documents.checks.settled()
    assert "reject_subscription" in writer.take_types()
    writer.command("unsubscribe", D)


async def write_much(rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has more to do than it should, for a moment."""
    monkeypatch.setattr("syncline.server.documents.CONGESTED_BYTES", 1_000)
    rig.subscribed("other", "e", kind="bytes").mutate(1, b64encode(bytes(2_000)).decode(), "e")
    assert rig.documents.is_congested


async def test_a_disk_that_has_caught_up_is_no_reason_to_read_on(
    rig: DocumentsRig, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What came behind the large update would be stored before it, with a higher clock, and the
    # large one be taken for a repetition: acknowledged, and lost.
    writers = (rig.subscribed("w", kind="yjs"), rig.yjs_joined(), rig.cable_joined())
    over_sync, over_yjs, over_cable = writers
    await write_much(rig, monkeypatch)
    over_sync.mutate(1, b64encode(typed(LARGE, client=1)[0]).decode())
    over_yjs.update(typed(LARGE, client=2)[0])
    over_cable.update(typed(LARGE, client=3)[0], clock=1)
    await gate.until_entered()
    await rig.settle()
    assert not rig.documents.is_congested
    assert [each.peer.is_paused for each in writers] == [True] * 3
    await done(rig, gate)
    assert [each.peer.is_paused for each in writers] == [False] * 3
    assert head(rig) == 3


async def test_with_a_busy_disk_it_is_read_on_once_that_has_caught_up(
    rig: DocumentsRig, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = (rig.subscribed("w", kind="yjs"), rig.yjs_joined(), rig.cable_joined())
    over_sync, over_yjs, over_cable = writers
    over_sync.mutate(1, b64encode(typed(LARGE, client=1)[0]).decode())
    over_yjs.update(typed(LARGE, client=2)[0])
    over_cable.update(typed(LARGE, client=3)[0], clock=1)
    await gate.until_entered()
    await write_much(rig, monkeypatch)
    await done(rig, gate)
    assert [each.peer.is_paused for each in writers] == [False] * 3
