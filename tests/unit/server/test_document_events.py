"""What is noted of documents: all that a check of their delivery needs, and nothing wrong."""

from collections.abc import AsyncIterator

import pytest

from syncline.server.events import Events, note_start
from syncline.storage.documents import stream_of
from syncline.storage.life import Life
from syncline.values.events import Event, EventKind, Face, author_number, decode_events
from tests.unit.server.documents_rig import DocumentsRig, open_memory, yjs_updates
from tests.unit.server.events_rig import Noted

STREAM = stream_of("d")


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
async def rig(noted: Noted) -> AsyncIterator[DocumentsRig]:
    rig = DocumentsRig(open_memory(), events=noted)
    yield rig
    await rig.committer.close()


async def test_who_comes_and_goes_is_noted(rig: DocumentsRig, noted: Noted) -> None:
    client = rig.subscribed("a")
    assert noted.take() == [("CONNECTED", 1, 0, 0), ("SUBSCRIBED", 1, 1, 1)]
    client.say("unsubscribe", document="d")
    assert noted.take() == [("UNSUBSCRIBED", 1, 0, 0)]
    client.subscribe()
    client.drop()
    assert noted.take() == [
        ("SUBSCRIBED", 1, 1, 1),
        ("UNSUBSCRIBED", 1, 0, 0),
        ("DISCONNECTED", 1, 0, 0),
    ]


async def test_a_row_says_what_and_who_and_when(rig: DocumentsRig, noted: Noted) -> None:
    rig.subscribed("a")
    *_, row = noted.rows
    assert list(decode_events(row)) == [
        Event(
            EventKind.SUBSCRIBED,
            rig.clock(),
            STREAM,
            1 << 4 | Face.DOCUMENTS,
            1,
            1,
            author_number("a") % 2**64,
        )
    ]


async def test_each_delivery_is_noted_for_each_reader(rig: DocumentsRig, noted: Noted) -> None:
    author, *_ = [rig.subscribed(name) for name in "abc"]
    noted.take()
    author.mutate(1, {"x": 1})
    author.mutate(2, {"x": 2})
    assert noted.take() == [], "nothing is handed over before it is durable"
    await rig.settle()
    delivered = noted.take()
    assert {each[1] for each in delivered} == {1, 2, 3}
    for session in (1, 2, 3):
        ranges = [each[2:] for each in delivered if each[1] == session]
        assert [seq for first, last in ranges for seq in range(first, last + 1)] == [1, 2]
    assert {each[0] for each in delivered} == {"DELIVERED"}


async def test_who_does_not_keep_up_is_noted_when_it_gets_something(
    rig: DocumentsRig, noted: Noted
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    reader.stop_reading()
    noted.take()
    for clock in range(1, 101):
        author.mutate(clock, {"x": clock})
        await rig.settle()
    assert {each[1] for each in noted.take()} == {1}
    reader.read_on()
    await rig.settle()
    ranges = [each[2:] for each in noted.take() if each[1] == 2]
    assert [seq for first, last in ranges for seq in range(first, last + 1)] == [*range(1, 101)]


async def test_acknowledgements_and_what_is_sent_again_are_noted(
    rig: DocumentsRig, noted: Noted
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.ack(1)
    noted.take()
    await rig.tick(6_000)
    assert noted.take() == [("RESENT", 2, 1, 1), ("DELIVERED", 2, 1, 1)]
    reader.ack(1)
    reader.ack(1)
    assert noted.take() == [("ACKNOWLEDGED", 2, 0, 1)]


async def test_what_is_sent_again_is_noted_with_the_delivery_that_repeats_it(
    rig: DocumentsRig, noted: Noted
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.ack(1)
    reader.stop_reading()
    await rig.tick(6_000)
    author.mutate(2, {"x": 2})
    await rig.settle()
    author.ack(2)
    noted.take()
    # It can take more: the first it was handed before, the second it was not.
    reader.read_on()
    assert noted.take() == [("RESENT", 2, 1, 1), ("DELIVERED", 2, 1, 2)]
    reader.ack(2)
    noted.take()
    author.mutate(3, {"x": 3})
    await rig.settle()
    assert ("DELIVERED", 2, 3, 3) in noted.take()


async def test_a_delivery_says_how_much_of_it_its_reader_wrote_itself(
    rig: DocumentsRig, noted: Noted
) -> None:
    first, second, third = [rig.subscribed(name) for name in "abc"]
    third.stop_reading()
    noted.take()
    first.mutate(1, {"x": 1})
    second.mutate(1, {"x": 2})
    first.mutate(2, {"x": 3})
    await rig.settle()
    third.mutate(1, {"y": 1})
    await rig.settle()
    third.read_on()
    delivered = [(each.session >> 4, each.last, each.detail) for each in noted.take_events()]
    assert sorted(delivered) == [(1, 3, 2), (1, 4, 0), (2, 3, 1), (2, 4, 0), (3, 4, 1)]


async def test_a_reader_without_acknowledgements_is_noted_as_such(
    rig: DocumentsRig, noted: Noted
) -> None:
    client = rig.yjs_joined()
    assert noted.take() == [("CONNECTED", 1, 0, 0), ("SUBSCRIBED", 1, 1, 0)]
    client.update(*yjs_updates("a"))
    await rig.settle()
    # It is told nothing at all, and the update is its own all the same.
    (delivered,) = noted.take_events()
    assert (delivered.kind, delivered.last, delivered.detail) == (EventKind.DELIVERED, 1, 1)


async def test_a_mutation_that_comes_again_is_noted_with_its_sequence_if_that_is_known(
    rig: DocumentsRig, noted: Noted
) -> None:
    author = rig.subscribed("a")
    for clock in (1, 2):
        author.mutate(clock, {"x": clock})
    await rig.settle()
    noted.take()
    author.mutate(2, {"x": 2})
    author.mutate(1, {"x": 1})
    assert noted.take() == [("REPEATED", 1, 0, 2), ("REPEATED", 1, 0, 0)]


async def test_a_document_that_is_deleted_is_left_by_its_readers(
    rig: DocumentsRig, noted: Noted
) -> None:
    author = rig.subscribed("a")
    rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    noted.take()
    rig.documents.delete("d")
    assert noted.take() == [("UNSUBSCRIBED", 1, 0, 1), ("UNSUBSCRIBED", 2, 0, 1)]


async def test_who_leaves_is_noted_with_what_was_there_for_it(
    rig: DocumentsRig, noted: Noted
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.mutate(2, {"x": 2})
    noted.take()
    reader.say("unsubscribe", document="d")
    assert noted.take() == [("UNSUBSCRIBED", 2, 0, 1)], "the second was not durable yet"


def test_a_start_says_where_the_log_branched_off(noted: Noted) -> None:
    note_start(noted, 7)
    note_start(noted, 8, Life(b"s" * 16, 4_096, b"f" * 16))
    note_start(noted, 9, is_silent=True)
    never, restored, silent = noted.take_events()
    assert (never.detail, restored.detail, silent.detail) == (0, 0, 1)
    assert (never.kind, never.time_ms, never.first, never.stream) == (1, 7, 0, bytes(24))
    assert (restored.first, restored.stream) == (4_096, b"f" * 16 + bytes(8))


async def test_an_eviction_is_noted_with_what_was_acknowledged(
    rig: DocumentsRig, noted: Noted
) -> None:
    author, healthy, _ = [rig.subscribed(name) for name in "abc"]
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.ack(1)
    healthy.ack(1)
    noted.take()
    await rig.tick(31_000)
    assert [each for each in noted.take() if each[0] not in ("RESENT", "DELIVERED")] == [
        ("EVICTED", 3, 1, 0),
        ("UNSUBSCRIBED", 3, 0, 1),
    ]


async def test_a_client_that_resumes_is_noted_from_its_place_on(
    rig: DocumentsRig, noted: Noted
) -> None:
    author, reader = rig.subscribed("a"), rig.connect("b", policy="resume")
    reader.subscribe()
    author.mutate(1, {"x": 1})
    await rig.settle()
    reader.ack(1)
    reader.drop()
    author.mutate(2, {"x": 2})
    await rig.settle()
    noted.take()
    again = rig.connect("b", policy="resume")
    again.subscribe()
    await rig.settle()
    found = [each for each in noted.take() if each[1] == 3]
    assert ("SUBSCRIBED", 3, 2, 1) in found
    assert ("DELIVERED", 3, 2, 2) in found


async def test_nothing_is_noted_where_nobody_wants_it(rig: DocumentsRig) -> None:
    assert Events.of(rig.store, rig.clock, Face.DOCUMENTS, is_wanted=True) is None
    assert Events.of(open_memory(), rig.clock, Face.DOCUMENTS, is_wanted=False) is None
