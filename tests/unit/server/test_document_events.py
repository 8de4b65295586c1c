"""What is noted of documents: all that a check of their delivery needs, and nothing wrong."""

from collections.abc import AsyncIterator

import pytest

from syncline.server.events import Events, author_number
from syncline.storage.documents import stream_of
from syncline.values.events import Event, EventKind, Face, decode_events
from tests.unit.server.documents_rig import DocumentsRig, open_memory

STREAM = stream_of("d")


class Noted:
    """In place of the log."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def note_event(self, event: bytes) -> None:
        self.rows.append(event)

    def take(self) -> list[tuple[str, int, int, int]]:
        """Kind, number of the session, first and last, since the last time."""
        events, self.rows = list(decode_events(b"".join(self.rows))), []
        return [
            (EventKind(each.kind).name, each.session >> 4, each.first, each.last) for each in events
        ]


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
    assert noted.take() == [("CONNECTED", 1, 0, 0), ("SUBSCRIBED", 1, 1, 0)]
    client.say("unsubscribe", document="d")
    assert noted.take() == [("UNSUBSCRIBED", 1, 0, 0)]
    client.subscribe()
    client.drop()
    assert noted.take() == [
        ("SUBSCRIBED", 1, 1, 0),
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
            0,
            author_number("a"),
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
        ("EVICTED", 3, 0, 0),
        ("UNSUBSCRIBED", 3, 0, 0),
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
    assert ("SUBSCRIBED", 3, 2, 0) in found
    assert ("DELIVERED", 3, 2, 2) in found


async def test_nothing_is_noted_where_nobody_wants_it(rig: DocumentsRig) -> None:
    assert Events.of(rig.store, rig.clock, Face.DOCUMENTS, is_wanted=True) is None
    assert Events.of(open_memory(), rig.clock, Face.DOCUMENTS, is_wanted=False) is None
