"""The rules of docs/formats/cable.md, as the router keeps them, without sockets."""

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pycrdt
import pytest

from syncline.errors import CorruptionError, NotAuthorizedError, StoreFullError
from syncline.server import cable_face
from syncline.server.faces import Accepted, Rejected, Upgrade
from syncline.server.open_document import DocumentOptions
from syncline.wire import awareness, yjs
from tests.unit.server.documents_rig import (
    AllowAll,
    CableClient,
    D,
    DocumentsRig,
    ReadsOnly,
    ReadsOnlyOne,
    identifier,
    open_memory,
    text_of,
    turns,
    yjs_updates,
)

KNOWS_NOTHING = b"\x00"
EMPTY = b"\x00\x00"
HERE = b'{"u":1}'


@pytest.fixture
async def rig() -> AsyncIterator[DocumentsRig]:
    rig = DocumentsRig(open_memory())
    yield rig
    await rig.committer.close()


def head(rig: DocumentsRig, name: str = "d") -> int:
    document = rig.documents.find(name)
    return -1 if document is None else document.machine.head


def ids(client: CableClient, identifier: str = D) -> list[int]:
    """The sequences of the updates that it was sent."""
    messages = client.take_messages(identifier)
    return [each["id"] for each in messages if each.get("op") == "update"]


def present(client: CableClient, identifier: str = D) -> list[tuple[int, int, bytes | None]]:
    return [
        (entry.client, entry.clock, entry.state)
        for frame in client.take_frames(yjs.AwarenessUpdate, identifier)
        for entry in awareness.decode(frame.update)
    ]


# Connecting.


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (("actioncable-v1-json", "actioncable-unsupported"), "actioncable-v1-json"),
        (("actioncable-v1-json", "actioncable-v1-ext-json"), "actioncable-v1-ext-json"),
        (("some-token", "actioncable-v1-json"), "actioncable-v1-json"),
        ((), None),
    ],
)
async def test_the_subprotocol_is_one_that_was_offered(
    rig: DocumentsRig, offered: tuple[str, ...], chosen: str | None
) -> None:
    accepted = rig.cable_face.accept(Upgrade("/cable", subprotocols=offered))
    assert isinstance(accepted, Accepted)
    assert accepted.subprotocol == chosen


async def test_other_subprotocols_are_refused(rig: DocumentsRig) -> None:
    answer = rig.cable_face.accept(Upgrade("/cable", subprotocols=("actioncable-unsupported",)))
    assert isinstance(answer, Rejected)
    assert answer.status == 400


async def test_welcome_comes_first(rig: DocumentsRig) -> None:
    assert rig.cable().take() == [{"type": "welcome"}]
    (extended,) = rig.cable(is_extended=True).take()
    assert extended["type"] == "welcome"
    assert extended["sid"]


async def test_pings_go_to_everybody_who_is_there(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cable_face, "PING_SECONDS", 0.0)
    one, two, stuck = rig.cable(), rig.cable(), rig.cable()
    for client in (one, two, stuck):
        client.take()
    two.drop()
    stuck.stop_reading()
    await turns()
    pings = one.take()
    assert len(pings) > 1, "again and again"
    assert pings[0] == {"type": "ping", "message": rig.clock() // 1_000}
    assert two.take() == []
    assert stuck.take() == []


async def test_without_a_good_token_it_is_told_to_stay_away(rig: DocumentsRig) -> None:
    def refuse(token: str | None) -> Any:
        raise NotAuthorizedError("no")

    rig.cable_face.authorize = refuse
    client = rig.cable()
    assert client.take() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
    assert client.peer.closed_with is not None
    client.subscribe()
    assert head(rig) == -1, "what it says is not listened to"
    client.drop()


async def test_a_token_that_expires_ends_the_connection(rig: DocumentsRig) -> None:
    class Expiring(AllowAll):
        expires_ms = rig.clock()

    rig.cable_face.authorize = lambda token: Expiring()
    client = rig.cable_joined()
    await turns()
    assert client.take() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]
    assert client.peer.closed_with is not None


# Subscribing.


async def test_subscribing_is_confirmed_then_step_1_then_who_is_present(rig: DocumentsRig) -> None:
    first = rig.cable()
    first.subscribe()
    step_1 = b64encode(yjs.encode(yjs.SyncStep1(KNOWS_NOTHING))).decode()
    assert first.take() == [
        {"type": "welcome"},
        {"type": "confirm_subscription", "identifier": D},
        {"identifier": D, "message": {"update": step_1}},
    ]
    first.show(7, 1)
    second = rig.cable()
    second.subscribe()
    assert [each["update"] for each in second.take_messages()] == [
        yjs.SyncStep1(KNOWS_NOTHING),
        yjs.AwarenessUpdate(awareness.encode([awareness.Entry(7, 1, HERE)])),
    ]
    assert second.peer.was_text == {True}


async def test_the_identifier_comes_back_byte_for_byte(rig: DocumentsRig) -> None:
    spaced = '{ "path": "d",\t"channel" : "SyncChannel", "é": "\\u00e9" }'
    client = rig.cable()
    client.subscribe(spaced)
    messages = client.take()[1:]
    assert [each["identifier"] for each in messages] == [spaced, spaced]


async def test_a_second_subscribe_is_ignored(rig: DocumentsRig) -> None:
    client, author = rig.cable_joined(), rig.cable_joined()
    client.subscribe()
    assert client.take() == []
    author.update(yjs_updates("x")[0])
    await rig.settle()
    assert ids(client) == [1], "and nothing comes twice"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "{}",
        '{"channel":"C"}',
        '{"channel":"C","path":""}',
        '{"channel":"C","path":7}',
        '{"channel":"C","path":"d","client":"not an id"}',
        '{"channel":"C","path":"' + "x" * 201 + '"}',
    ],
)
async def test_an_identifier_that_names_no_document_is_rejected(
    rig: DocumentsRig, text: str
) -> None:
    client = rig.cable_joined()
    client.subscribe(text)
    assert client.take() == [{"type": "reject_subscription", "identifier": text}]
    assert client.peer.closed_with is None
    assert rig.documents.connection_count == 1


async def test_an_unknown_document_is_rejected_where_none_are_made() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(create_on_subscribe=False))
    client = rig.cable()
    client.subscribe()
    assert client.take_types() == ["welcome", "reject_subscription"]
    assert rig.documents.connection_count == 0
    await rig.committer.close()


async def test_a_document_of_another_kind_is_rejected(rig: DocumentsRig) -> None:
    rig.subscribed("a")
    client = rig.cable()
    client.subscribe()
    assert client.take_types() == ["welcome", "reject_subscription"]


async def test_a_document_that_the_token_does_not_allow_is_rejected(rig: DocumentsRig) -> None:
    rig.cable_face.authorize = lambda token: ReadsOnlyOne()
    client = rig.cable_joined()
    client.subscribe(identifier("secret"))
    assert client.take_types() == ["reject_subscription"]
    assert head(rig, "secret") == -1


async def test_subscriptions_of_one_connection_are_limited(rig: DocumentsRig) -> None:
    rig.cable_face.subscription_count_max = 2
    client = rig.cable_joined(identifier("one"), identifier("two"))
    client.subscribe(identifier("three"))
    assert client.take() == [
        {"type": "reject_subscription", "identifier": identifier("three")},
    ]
    client.command("unsubscribe", identifier("one"))
    client.subscribe(identifier("three"))
    assert client.take_types()[0] == "confirm_subscription"


# Several subscriptions on one connection.


async def test_documents_on_one_connection_are_kept_apart(rig: DocumentsRig) -> None:
    one, two = identifier("one"), identifier("two")
    author, reader = rig.cable_joined(one, two), rig.cable_joined(one, two)
    author.update(yjs_updates("x")[0], one)
    await rig.settle()
    messages = reader.take()
    assert [each["identifier"] for each in messages] == [one]
    assert author.take() == []
    reader.command("unsubscribe", one)
    author.update(yjs_updates("y")[0], one)
    author.update(yjs_updates("z")[0], two)
    await rig.settle()
    assert [each["identifier"] for each in reader.take()] == [two]


async def test_two_identifiers_of_one_document_are_two_replicas(rig: DocumentsRig) -> None:
    other = '{"channel":"Another","path":"d"}'
    client = rig.cable_joined(D, other)
    client.update(yjs_updates("x")[0], D)
    await rig.settle()
    messages = client.take()
    assert [each["identifier"] for each in messages] == [other]
    client.show(7, 1, other)
    assert {each["identifier"] for each in client.take()} == {D, other}
    client.command("unsubscribe", other)
    assert present(client) == [(7, 1, None)]
    client.drop()
    assert rig.documents.connection_count == 0


# The plain dialect.


async def test_a_plain_update_reaches_everybody_but_its_author_once_it_is_durable(
    rig: DocumentsRig,
) -> None:
    author, reader, over_yjs = rig.cable_joined(), rig.cable_joined(), rig.yjs_joined()
    (update,) = yjs_updates("hello")
    author.update(update)
    assert reader.take() == [], "nothing is said before it is durable"
    reader.say(yjs.SyncStep1(KNOWS_NOTHING))
    assert reader.take_frames(yjs.SyncStep2) == [yjs.SyncStep2(EMPTY)], "nor is it in the state"
    await rig.settle()
    assert reader.take_messages() == [{"op": "update", "id": 1, "update": yjs.SyncUpdate(update)}]
    assert over_yjs.take() == [yjs.SyncUpdate(update)]
    assert author.take() == [], "a plain client would take a receipt for a frame"


async def test_what_could_not_be_stored_is_told_to_nobody(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    await rig.settle()

    def full(batch: object) -> None:
        raise StoreFullError("the disk")

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "write_batch", full)
        author.update(yjs_updates("lost")[0], action="update", clock=1)
        with pytest.raises(StoreFullError):
            await rig.committer.durable()
    await turns()
    again = [{"type": "disconnect", "reason": "server_restart", "reconnect": True}]
    assert author.take() == again
    assert reader.take() == again
    author.drop()
    reader.drop()
    assert rig.documents.connection_count == 0


async def test_step_1_is_answered_with_step_2_and_what_came_too_early(rig: DocumentsRig) -> None:
    client, writer = rig.cable_joined(), rig.cable_joined()
    first, second, third = yjs_updates("one ", "two ", "three")
    writer.update(first)
    writer.update(third)
    await rig.settle()
    client.take()
    client.say(yjs.SyncStep1(KNOWS_NOTHING))
    state, early = client.take_messages()
    assert text_of(state["update"].update) == "one "
    assert early == {"update": yjs.SyncUpdate(third)}
    writer.update(second)
    await rig.settle()
    client.take()
    client.say(yjs.SyncStep1(pycrdt.get_state(first)))
    (rest,) = client.take_frames(yjs.SyncStep2)
    assert text_of(first, rest.update) == "one two three"


async def test_a_step_2_is_stored_if_it_has_news(rig: DocumentsRig) -> None:
    client, reader = rig.cable_joined(), rig.cable_joined()
    (update,) = yjs_updates("offline")
    client.say(yjs.SyncStep2(update))
    await rig.settle()
    assert ids(reader) == [1]
    again = rig.cable_joined()
    again.say(yjs.SyncStep2(update))
    again.say(yjs.SyncStep2(EMPTY))
    again.update(EMPTY)
    await rig.settle()
    assert head(rig) == 1


async def test_awareness_is_shared_by_both_faces(rig: DocumentsRig) -> None:
    over_cable, over_yjs = rig.cable_joined(), rig.yjs_joined()
    over_cable.show(7, 1)
    assert present(over_cable) == [(7, 1, HERE)], "its echo"
    assert over_yjs.take_present() == [(7, 1, HERE)]
    over_yjs.show(8, 1)
    assert present(over_cable) == [(8, 1, HERE)]
    over_cable.say(yjs.QueryAwareness())
    assert present(over_cable) == [(7, 1, HERE), (8, 1, HERE)]
    over_cable.drop()
    assert over_yjs.take_present() == [(8, 1, HERE), (7, 1, None)]


async def test_who_catches_up_is_told_of_the_awareness_it_missed(rig: DocumentsRig) -> None:
    stays, leaves, reader = rig.cable_joined(), rig.cable_joined(), rig.cable_joined()
    leaves.show(8, 1)
    assert present(reader) == [(8, 1, HERE)]
    reader.stop_reading()
    stays.show(7, 1)
    leaves.drop()
    assert reader.take() == []
    reader.read_on()
    assert present(reader) == [(8, 1, None), (7, 1, HERE)]
    reader.read_on()
    assert reader.take() == [], "it was told"


async def test_awareness_that_is_due_does_not_reach_who_left(rig: DocumentsRig) -> None:
    other = identifier("e")
    shown, reader = rig.cable_joined(D, other), rig.cable_joined(D, other)
    reader.stop_reading()
    shown.show(7, 1)
    shown.show(8, 1, other)
    reader.command("unsubscribe")
    reader.read_on()
    assert [each["identifier"] for each in reader.take()] == [other]


@pytest.mark.parametrize("key", ["update", "awareness"])
async def test_a_whisper_carries_a_plain_value(rig: DocumentsRig, key: str) -> None:
    one, two = rig.cable_joined(), rig.cable_joined()
    shown = awareness.encode([awareness.Entry(7, 1, HERE)])
    frame = b64encode(yjs.encode(yjs.AwarenessUpdate(shown))).decode()
    one.command("whisper", data={key: frame})
    assert present(two) == [(7, 1, HERE)]


async def test_who_does_not_keep_up_reads_on_from_its_place(rig: DocumentsRig) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    reader.stop_reading()
    for update in yjs_updates(*"abcdefgh"):
        author.update(update)
        await rig.settle()
    author.show(7, 1)
    assert reader.take() == []
    reader.read_on()
    assert ids(reader) == list(range(1, 9))


async def test_a_plain_client_that_does_not_read_for_long_has_to_connect_again(
    rig: DocumentsRig,
) -> None:
    author, healthy, stuck = (rig.cable_joined() for _ in range(3))
    stuck.stop_reading()
    author.update(yjs_updates("x")[0])
    await rig.settle()
    await rig.tick(31_000)
    # It knows no `resync`: without a new connection it would never ask for what it missed.
    assert stuck.take() == [{"type": "disconnect", "reason": "server_restart", "reconnect": True}]
    assert stuck.peer.closed_with is not None
    assert healthy.peer.closed_with is None
    stuck.drop()
    assert rig.documents.connection_count == 2


async def test_after_unsubscribing_nothing_more_comes(rig: DocumentsRig) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    reader.stop_reading()
    first, second, third = yjs_updates("a", "b", "c")
    author.update(first)
    await rig.settle()
    author.update(second)
    reader.command("unsubscribe")
    reader.read_on()
    author.update(third)
    author.show(7, 1)
    await rig.settle()
    assert reader.take() == [], "neither what was pending, nor what was on its way to the disk"
    reader.update(first)
    reader.ack(1)
    reader.command("unsubscribe")
    await rig.settle()
    assert head(rig) == 3, "what it says for an identifier that it left is dropped"
    assert reader.peer.closed_with is None
    reader.subscribe()
    assert reader.take_types() == ["confirm_subscription", "data", "data"]


async def test_a_document_made_anew_does_not_repeat_the_old_one(rig: DocumentsRig) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    author.update(yjs_updates("old")[0])
    await rig.settle()
    rig.documents.delete("d")
    assert reader.take_types() == ["data", "reject_subscription"]
    await rig.settle()
    author.subscribe()
    reader.subscribe()
    reader.take()
    author.update(yjs_updates("new")[0])
    await rig.settle()
    (message,) = reader.take_messages()
    assert (message["id"], text_of(message["update"].update)) == (1, "new")


# Receipts.


async def test_a_reliable_update_gets_a_receipt_once_it_is_durable(rig: DocumentsRig) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    first, second = yjs_updates("a", "b")
    author.update(first, action="update", clock=1)
    author.update(second, action="update", clock=2)
    assert author.take() == [], "not before it is durable"
    await rig.settle()
    assert author.take_messages() == [
        {"op": "ack", "clock": 1, "id": 1},
        {"op": "ack", "clock": 2, "id": 2},
    ]
    assert ids(reader) == [1, 2]


async def test_a_numbered_update_gets_a_receipt_once_it_is_durable(rig: DocumentsRig) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    author.update(yjs_updates("a")[0], id=42)
    assert author.take() == []
    await rig.settle()
    assert author.take_messages() == [{"ack": 42}]
    assert ids(reader) == [1]


@pytest.mark.parametrize(
    ("fields", "receipt"),
    [
        ({"action": "update", "clock": 3}, {"op": "ack", "clock": 3, "id": 1}),
        ({"id": 3}, {"ack": 3}),
    ],
    ids=["reliable", "numbered"],
)
async def test_an_update_sent_again_is_stored_once_and_acknowledged_again(
    rig: DocumentsRig, fields: dict[str, Any], receipt: dict[str, Any]
) -> None:
    author, reader = rig.cable_joined(), rig.cable_joined()
    (update,) = yjs_updates("a")
    author.update(update, **fields)
    author.update(update, **fields)
    assert author.take() == [], "a repetition is not called stored before the first one is"
    await rig.settle()
    assert author.take_messages() == [receipt]
    author.update(update, **fields)
    assert author.take_messages() == [receipt]
    assert ids(reader) == [1]
    assert head(rig) == 1


async def test_a_named_replica_is_known_when_it_comes_back(rig: DocumentsRig) -> None:
    named = identifier(client="tab-1")
    (update,) = yjs_updates("a")
    before = rig.cable_joined(named)
    before.update(update, named, action="update", clock=1)
    before.drop()
    await rig.settle()
    again, stranger = rig.cable_joined(named), rig.cable_joined(identifier(client="tab-2"))
    again.update(update, named, action="update", clock=1)
    assert again.take_messages(named) == [{"op": "ack", "clock": 1, "id": 1}]
    stranger.update(update, identifier(client="tab-2"), action="update", clock=1)
    await rig.settle()
    assert head(rig) == 2, "the clocks of others mean nothing"


async def test_whoever_waits_for_a_receipt_gets_one_even_without_news(rig: DocumentsRig) -> None:
    client = rig.cable_joined()
    (update,) = yjs_updates("a")
    client.update(update, id=1)
    await rig.settle()
    client.say(yjs.SyncStep2(update), id=2)
    client.update(EMPTY, id=3)
    await rig.settle()
    assert client.take_messages() == [{"ack": 1}, {"ack": 2}, {"ack": 3}]


async def test_numbers_count_from_one(rig: DocumentsRig) -> None:
    client = rig.cable_joined()
    client.update(yjs_updates("a")[0], id=0)
    assert client.take_types() == ["reject_subscription"]


# Acknowledgements of the client.


async def test_who_acknowledges_is_tracked_and_told_to_resync(rig: DocumentsRig) -> None:
    author, healthy, sick = (rig.cable_joined() for _ in range(3))
    first, second, third = yjs_updates("a", "b", "c")
    author.update(first)
    await rig.settle()
    assert ids(sick) == [1]
    sick.ack(1)
    sick.show(7, 1)
    healthy.take()
    author.update(second)
    await rig.settle()
    assert ids(sick) == [2]
    await rig.tick(6_000)
    assert ids(sick) == [2], "what is not acknowledged is sent again"
    await rig.tick(25_000)
    resync, step_1 = (each for each in sick.take_messages() if each.get("op") != "update")
    assert resync == {"op": "resync", "id": 1}
    assert isinstance(step_1["update"], yjs.SyncStep1)
    assert sick.peer.closed_with is None
    assert present(healthy) == [], "it was there all the time"
    sick.say(yjs.SyncStep1(KNOWS_NOTHING))
    (state,) = sick.take_frames(yjs.SyncStep2)
    assert text_of(state.update) == "ab"
    author.update(third)
    await rig.settle()
    assert ids(sick) == [3]
    await rig.tick(60_000)
    assert sick.take() == [], "it is not tracked before it acknowledges again"
    sick.ack(3)
    await rig.tick(60_000)
    assert sick.take() == []
    for client in (author, healthy, sick):
        client.drop()
    assert rig.documents.connection_count == 0


async def test_a_snapshot_is_taken_behind_what_is_being_sent() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(snapshot_update_count=1))
    author, reader = rig.cable_joined(), rig.cable_joined()
    (first,) = yjs_updates("a" * 100)
    author.update(first)
    counts: list[int] = []
    rig.documents.when_durable(lambda _: counts.append(rig.documents.counters.snapshot_count))
    await rig.settle()
    assert len(reader.take()) == 1
    assert (counts, rig.documents.counters.snapshot_count) == ([0], 1)
    await rig.committer.close()


async def test_the_stream_is_held_for_who_acknowledges() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(snapshot_update_count=1))
    author, reader = rig.cable_joined(), rig.cable_joined()
    first, second = yjs_updates("a" * 100, "b" * 100)
    author.update(first)
    await rig.settle()
    reader.ack(1)
    author.update(second)
    await rig.settle()
    await rig.tick(1_000)
    (document,) = rig.documents.opened()
    assert document.machine.snapshot_seq == 2
    assert document.machine.first == 2, "what it has not acknowledged is still there"
    reader.ack(2)
    await rig.tick(1_000)
    assert document.machine.first == 3
    await rig.committer.close()


async def test_an_acknowledgement_from_the_future_ends_the_subscription(
    rig: DocumentsRig,
) -> None:
    client = rig.cable_joined()
    client.ack(5)
    assert client.take_types() == ["reject_subscription"]


# The extended protocol.


def history(rig: DocumentsRig, offset: int, epoch: str | None = None) -> dict[str, Any]:
    document = rig.documents.find("d")
    assert document is not None
    epoch = epoch or document.incarnation.hex()
    return {"since": 1.5, "streams": {"d": {"epoch": epoch, "offset": offset}}}


async def test_extended_clients_are_told_offsets(rig: DocumentsRig) -> None:
    author, reader, plain = (
        rig.cable_joined(is_extended=True),
        rig.cable_joined(is_extended=True),
        rig.cable_joined(),
    )
    author.update(yjs_updates("a")[0], action="update", clock=1)
    author.show(7, 1)
    await rig.settle()
    (document,) = rig.documents.opened()
    position = {"stream_id": "d", "epoch": document.incarnation.hex(), "offset": 1}
    shown, update = reader.take()
    assert update.items() >= position.items()
    assert "offset" not in shown, "awareness has no place in the stream"
    shown, receipt = author.take()
    assert receipt.items() >= position.items(), "its own update moves its place, too"
    assert all("offset" not in each for each in plain.take())


async def test_with_a_position_it_gets_what_it_missed(rig: DocumentsRig) -> None:
    author = rig.cable_joined()
    for update in yjs_updates(*"abc"):
        author.update(update)
    await rig.settle()
    client = rig.cable(is_extended=True)
    client.subscribe(history=history(rig, 1))
    messages = client.take()
    assert [each.get("type") or each.get("offset") for each in messages] == [
        "welcome",
        "confirm_subscription",
        "confirm_history",
        None,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("offset", "epoch"),
    [(9, None), (1, "00ff"), (1, "no hexadecimal")],
    ids=["from the future", "another life", "foreign"],
)
async def test_a_position_that_means_nothing_is_rejected_and_the_subscription_stands(
    rig: DocumentsRig, offset: int, epoch: str | None
) -> None:
    author = rig.cable_joined()
    first, second = yjs_updates("a", "b")
    author.update(first)
    await rig.settle()
    client = rig.cable(is_extended=True)
    client.subscribe(history=history(rig, offset, epoch))
    assert client.take_types() == ["welcome", "confirm_subscription", "reject_history", "data"]
    author.update(second)
    await rig.settle()
    assert ids(client) == [2]


async def test_history_without_a_position_is_rejected(rig: DocumentsRig) -> None:
    client = rig.cable(is_extended=True)
    client.subscribe(history={"since": 1_690_000_000})
    assert client.take_types() == ["welcome", "confirm_subscription", "reject_history", "data"]


async def test_what_was_truncated_is_not_known_any_more() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(snapshot_update_count=2))
    author = rig.cable_joined()
    for update in yjs_updates("a" * 100, "b" * 100):
        author.update(update)
    await rig.settle()
    await rig.tick(1_000)
    client = rig.cable(is_extended=True)
    client.subscribe(history=history(rig, 1))
    assert "reject_history" in client.take_types()
    await rig.committer.close()


async def test_history_may_be_asked_for_within_a_subscription(rig: DocumentsRig) -> None:
    author, client = rig.cable_joined(), rig.cable_joined(is_extended=True)
    first, second, third = yjs_updates(*"abc")
    client.show(7, 1)
    author.update(first)
    author.update(second)
    await rig.settle()
    author.take()
    client.take()
    client.command("history", history=history(rig, 1))
    messages = client.take()
    assert [each.get("type") or each.get("offset") for each in messages] == [
        "confirm_history",
        None,
        2,
    ]
    assert author.take() == [], "it has not left, as far as the others see"
    author.update(third)
    await rig.settle()
    assert ids(client) == [3], "and it is subscribed once"
    client.drop()
    assert present(author) == [(7, 1, None)]
    assert rig.documents.connection_count == 1


async def test_asking_for_history_that_is_not_known_costs_nothing(rig: DocumentsRig) -> None:
    author, client = rig.cable_joined(), rig.cable_joined(is_extended=True)
    client.stop_reading()
    author.update(yjs_updates("a")[0])
    await rig.settle()
    client.command("history", history=history(rig, 9))
    client.command("history", history={"streams": {}})
    assert client.take_types() == ["reject_history", "reject_history"]
    client.read_on()
    assert ids(client) == [1], "it still gets what it would have got"
    client.command("history", identifier("unknown"), history={})
    assert client.take() == []
    assert rig.documents.connection_count == 2


async def test_the_rest_of_the_extended_protocol_is_read_and_ignored(rig: DocumentsRig) -> None:
    client = rig.cable_joined(is_extended=True)
    for command in ("join", "leave", "presence"):
        client.command(command)
    client.handler.received(b'{"command":"pong"}', is_text=True)
    assert client.take() == []
    assert client.peer.closed_with is None


# Who may what, and bad input.


async def test_who_may_only_read_loses_the_subscription_in_which_it_writes(
    rig: DocumentsRig,
) -> None:
    writer = rig.cable_joined()
    rig.cable_face.authorize = lambda token: ReadsOnly()
    reader = rig.cable_joined()
    (update,) = yjs_updates("a")
    reader.say(yjs.SyncStep2(update))
    writer.update(update)
    await rig.settle()
    assert ids(reader) == [1], "the answer of a handshake is let pass"
    reader.update(update)
    assert reader.take() == [{"type": "reject_subscription", "identifier": D}]
    await rig.settle()
    assert head(rig) == 1
    assert reader.peer.closed_with is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("no JSON", id="no JSON"),
        pytest.param("[]", id="no object"),
        pytest.param("{}", id="nothing in it"),
        pytest.param('{"update":"?"}', id="no base64"),
        pytest.param('{"update":"BA=="}', id="no frame"),
        pytest.param('{"update":"AAID////"}', id="no Yjs update"),
        pytest.param('{"update":"AgACbm8="}', id="auth from a client"),
        pytest.param('{"action":"dance","update":"AAEAAAA="}', id="unknown action"),
        pytest.param('{"action":"update","clock":0,"update":"AAICAAA="}', id="clock 0"),
        pytest.param('{"action":"ack"}', id="ack of nothing"),
    ],
)
async def test_a_message_that_cannot_be_read_ends_the_subscription_alone(
    rig: DocumentsRig, data: str
) -> None:
    other = identifier("other")
    culprit, bystander = rig.cable_joined(D, other), rig.cable_joined()
    culprit.command("message", data=data)
    assert culprit.take() == [{"type": "reject_subscription", "identifier": D}]
    bystander.update(yjs_updates("x")[0])
    await rig.settle()
    assert culprit.take() == []
    culprit.say(yjs.SyncStep1(KNOWS_NOTHING), other)
    assert culprit.take_frames(yjs.SyncStep2, other) == [yjs.SyncStep2(EMPTY)]


@pytest.mark.parametrize(
    ("data", "is_text"),
    [
        (b"no JSON", True),
        (b"[]", True),
        (b"{}", True),
        (b'{"command":"dance"}', True),
        (b'{"command":"subscribe"}', True),
        (b'{"command":"subscribe","identifier":7}', True),
        (b'{"command":"subscribe","identifier":"' + b"x" * 2_049 + b'"}', True),
        (b'{"command":"pong"}', False),
    ],
)
async def test_what_is_no_command_ends_this_connection_alone(
    rig: DocumentsRig, data: bytes, is_text: bool
) -> None:
    culprit, bystander = rig.cable_joined(), rig.cable_joined()
    culprit.handler.received(data, is_text)
    assert culprit.take() == [
        {"type": "disconnect", "reason": "invalid_request", "reconnect": False}
    ]
    assert culprit.peer.closed_with is not None
    assert bystander.peer.closed_with is None
    culprit.update(yjs_updates("x")[0])
    culprit.drop()
    await rig.settle()
    assert head(rig) == 0, "what it says afterwards is not listened to"
    assert rig.documents.connection_count == 1


async def test_what_is_too_large_ends_the_connection(rig: DocumentsRig) -> None:
    client = rig.cable_joined()
    rig.cable_face.frame_bytes_max = 300
    client.update(yjs_updates("x" * 400)[0])
    assert client.take_types() == ["disconnect"]


async def test_a_document_that_is_full_ends_the_subscription() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(document_bytes_max=1_000))
    client = rig.cable_joined()
    client.update(yjs_updates("x" * 2_000)[0])
    assert client.take_types() == ["reject_subscription"]
    await rig.committer.close()


async def test_a_document_that_cannot_be_read_lets_the_client_come_again(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(stream: object) -> Any:
        raise CorruptionError("a segment", 7, "its checksum is wrong")

    client = rig.cable()
    monkeypatch.setattr(rig.store, "state", damaged)
    client.subscribe()
    assert client.take()[1:] == [
        {"type": "disconnect", "reason": "server_restart", "reconnect": True}
    ]
    client.drop()
    assert rig.documents.connection_count == 0


async def test_while_the_disk_does_not_keep_up_nothing_more_is_read(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.cable_joined()
    with monkeypatch.context() as patched:
        patched.setattr("syncline.server.documents.CONGESTED_BYTES", 0)
        client.update(yjs_updates("x")[0])
        assert client.peer.is_paused
        await rig.settle()
    assert not client.peer.is_paused
