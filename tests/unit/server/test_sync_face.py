"""The rules of docs/formats/sync.md, as the router keeps them, without sockets."""

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from syncline.errors import StoreBusyError
from syncline.server.open_document import DocumentOptions
from syncline.server.sync_face import SyncSettings
from tests.unit.server.documents_rig import (
    AllowAll,
    Client,
    DocumentsRig,
    ReadsOnlyOne,
    identifier,
    open_memory,
    yjs_updates,
)


@pytest.fixture
async def rig() -> AsyncIterator[DocumentsRig]:
    rig = DocumentsRig(open_memory())
    yield rig
    await rig.committer.close()


def seqs(messages: list[dict[str, Any]]) -> list[int]:
    return [each["seq"] for each in messages]


# The ten checks of the routing design.


async def test_a_mutation_reaches_the_other_subscriber(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    (mutation,) = reader.take()
    assert mutation == {
        "type": "mutation",
        "document": "d",
        "seq": 1,
        "client": "a",
        "clock": 1,
        "mutation": {"x": 1},
        "epoch": 1,
    }


async def test_the_author_gets_a_receipt_and_not_its_own_mutation(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    assert author.take() == [], "nothing is said before it is durable"
    await rig.settle()
    assert author.take() == [{"type": "ack", "document": "d", "clock": 1, "seq": 1, "epoch": 1}]


async def test_who_is_not_subscribed_gets_nothing(rig: DocumentsRig) -> None:
    author, other = rig.subscribed("a", "one"), rig.subscribed("b", "two")
    author.mutate(1, {"x": 1}, "one")
    await rig.settle()
    assert other.take() == []


async def test_unsubscribe_clears_what_is_pending(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    reader.stop_reading()
    author.mutate(1, {"x": 1})
    await rig.settle()
    reader.say("unsubscribe", document="d")
    reader.read_on()
    await rig.settle()
    assert [each["type"] for each in reader.take()] == ["unsubscribed"]


async def test_a_mutation_on_its_way_to_the_disk_does_not_reach_who_left(
    rig: DocumentsRig,
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    reader.say("unsubscribe", document="d")
    await rig.settle()
    assert [each["type"] for each in reader.take()] == ["unsubscribed"]


async def test_who_reconnects_gets_the_state_with_what_was_pending(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    reader.stop_reading()
    author.mutate(1, {"x": 1})
    await rig.settle()
    reader.drop()
    again = rig.connect("b")
    again.subscribe()
    (state,) = again.take("state")
    assert (state["seq"], state["state"]) == (1, {"x": 1})
    await rig.settle()
    assert again.take() == []


async def test_two_documents_on_one_connection_are_kept_apart(rig: DocumentsRig) -> None:
    author = rig.subscribed("a", "one")
    author.subscribe("two")
    reader = rig.subscribed("b", "one")
    reader.subscribe("two")
    author.take()
    reader.take()
    author.mutate(1, {"x": 1}, "one")
    author.mutate(1, {"y": 2}, "two")
    await rig.settle()
    assert {(each["document"], each["seq"]) for each in reader.take()} == {("one", 1), ("two", 1)}


async def test_the_state_of_a_joiner_and_what_follows_meet_without_gap(
    rig: DocumentsRig,
) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.mutate(2, {"y": 2})
    # The second is staged and not durable: the joiner must get it, and not in the state.
    joiner = rig.connect("b")
    joiner.subscribe()
    await rig.settle()
    messages = joiner.take("state", "mutation")
    assert seqs(messages) == [1, 2]
    assert messages[0]["state"] == {"x": 1}


# Repetition, positions, epochs.


async def test_a_mutation_sent_again_is_stored_once_and_acknowledged_again(
    rig: DocumentsRig,
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.mutate(1, {"x": 1})
    await rig.settle()
    assert seqs(reader.take("mutation")) == [1]
    receipts = author.take("ack")
    assert {(each["clock"], each["seq"]) for each in receipts} == {(1, 1)}
    assert len(receipts) == 2, "one at its place in the stream, one for the repetition afterwards"


async def test_a_client_that_is_back_learns_which_clocks_are_stored(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    author.mutate(2, {"x": 2})
    await rig.settle()
    author.drop()
    again = rig.connect("a")
    again.subscribe()
    (subscribed,) = again.take("subscribed")
    assert subscribed["clock"] == 2


async def test_a_clock_on_its_way_to_the_disk_is_not_called_stored(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    author.drop()
    again = rig.connect("a")
    again.subscribe()
    assert again.take("subscribed") == []
    await rig.settle()
    subscribed, state = again.take("subscribed", "state")
    assert (subscribed["clock"], state["seq"]) == (1, 1)


async def test_who_leaves_while_it_waits_to_join_does_not_join(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    author.drop()
    again = rig.connect("a")
    again.subscribe()
    again.say("unsubscribe", document="d")
    await rig.settle()
    assert again.take("subscribed", "state") == []


@pytest.mark.parametrize("between", [[], ["unsubscribe"]])
async def test_each_subscribe_is_answered_though_the_next_came_while_it_waited(
    rig: DocumentsRig, between: list[str]
) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    author.drop()
    again = rig.connect("a")
    again.take()
    again.subscribe()
    for word in between:
        again.say(word, document="d")
    again.subscribe()
    await rig.settle()
    answers = again.take("subscribed", "error")
    assert [each.get("code") for each in answers] == ["superseded", None]
    assert answers[-1]["clock"] == 1


async def test_who_waits_to_join_does_not_join_by_a_token_that_it_has_no_more() -> None:
    rig = DocumentsRig(open_memory())
    author = rig.subscribed("a", "secret")
    author.mutate(1, {"x": 1}, "secret")
    author.drop()
    again = rig.connect("a")
    again.subscribe("secret")
    rig.face.authorize = lambda token: ReadsOnlyOne()
    again.say("token", token="less")
    await rig.settle()
    assert [each["type"] for each in again.take("subscribed", "state", "error")] == ["error"]
    await rig.committer.close()


async def test_a_client_with_a_position_gets_what_it_missed(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.connect("b")
    reader.subscribe()
    (subscribed,) = reader.take("subscribed")
    reader.drop()
    for clock in (1, 2, 3):
        author.mutate(clock, {"x": clock})
    await rig.settle()
    again = rig.connect("b")
    again.subscribe(since={"incarnation": subscribed["incarnation"], "seq": 1})
    messages = again.take("subscribed", "state", "mutation")
    assert messages[0]["resumed"] is True
    assert seqs(messages[1:]) == [2, 3]


@pytest.mark.parametrize(
    "since",
    [
        {"incarnation": "00000000000000ff", "seq": 0},
        {"incarnation": "no hexadecimal", "seq": 0},
        {"incarnation": None, "seq": 7},
    ],
    ids=["other incarnation", "foreign incarnation", "from the future"],
)
async def test_a_position_that_means_nothing_gets_the_state(
    rig: DocumentsRig, since: dict[str, Any]
) -> None:
    author, reader = rig.subscribed("a"), rig.connect("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    if since["incarnation"] is None:
        (document,) = rig.documents.opened()
        since = {**since, "incarnation": document.incarnation.hex()}
    reader.subscribe(since=since)
    messages = reader.take("subscribed", "state")
    assert messages[0]["resumed"] is False
    assert messages[1]["state"] == {"x": 1}


async def test_subscribing_again_begins_a_new_epoch_with_the_state(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    reader.take()
    reader.subscribe()
    messages = reader.take()
    assert [(each["type"], each["epoch"]) for each in messages] == [
        ("subscribed", 2),
        ("state", 2),
    ]
    reader.ack(1, epoch=1)
    reader.mutate(1, {"late": 1}, epoch=1)
    await rig.settle()
    assert author.take("mutation") == [], "what belongs to an ended subscription is dropped"


async def test_who_does_not_keep_up_reads_on_from_its_place(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    reader.stop_reading()
    for clock in range(1, 301):
        author.mutate(clock, {"x": clock})
        if clock % 50 == 0:
            await rig.settle()
    assert reader.take() == []
    reader.read_on()
    await rig.settle()
    assert seqs(reader.take("mutation")) == list(range(1, 301))


async def test_no_more_than_a_window_is_sent_unacknowledged(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    for clock in range(1, 1_201):
        author.mutate(clock, {"x": clock})
    await rig.settle()
    assert seqs(reader.take("mutation"))[-1] == 1_024
    reader.ack(600)
    await rig.settle()
    assert seqs(reader.take("mutation")) == list(range(1_025, 1_201))


async def test_what_is_not_acknowledged_is_sent_again_at_leisure(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, {"x": 1})
    await rig.settle()
    assert seqs(reader.take("mutation")) == [1]
    await rig.tick(1_000)
    assert reader.take() == []
    await rig.tick(5_000)
    assert seqs(reader.take("mutation")) == [1]
    reader.ack(1)
    await rig.tick(10_000)
    assert reader.take() == []


async def test_a_reader_far_behind_is_evicted_told_and_given_the_state(
    rig: DocumentsRig,
) -> None:
    author, healthy, sick = (rig.subscribed(name) for name in "abc")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.ack(1)
    healthy.ack(1)
    await rig.tick(29_000)
    assert sick.take("evicted") == []
    await rig.tick(2_000)
    (evicted,) = sick.take("evicted")
    assert (evicted["seq"], evicted["epoch"]) == (0, 1)
    sick.ack(1)
    author.mutate(2, {"x": 2})
    await rig.settle()
    assert sick.take() == [], "a late acknowledgement does not bring it back"
    sick.subscribe()
    (state,) = sick.take("state")
    assert (state["seq"], state["epoch"]) == (2, 2)


async def test_an_idle_document_evicts_nobody(rig: DocumentsRig) -> None:
    author, reader, third = (rig.subscribed(name) for name in "abc")
    author.mutate(1, {"x": 1})
    await rig.settle()
    for client in (author, reader, third):
        client.ack(1)
    await rig.tick(4 * 3_600_000)
    author.mutate(2, {"x": 2})
    await rig.settle()
    reader.ack(2)
    await rig.tick(1_000)
    assert third.take("evicted") == []


# Policies.


async def test_intent_brings_the_subscriptions_back_with_fresh_states(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    reader = rig.connect("b", policy="intent")
    reader.subscribe()
    reader.drop()
    author.mutate(1, {"x": 1})
    await rig.settle()
    again = rig.connect("b", policy="intent")
    welcome, subscribed, state = again.take()
    assert welcome["restored"] == ["d"]
    assert subscribed["resumed"] is False
    assert state["state"] == {"x": 1}


async def test_resume_keeps_the_place_and_holds_the_stream(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    reader = rig.connect("b", policy="resume")
    reader.subscribe()
    for clock in range(1, 301):
        author.mutate(clock, {"x": clock})
    await rig.settle()
    reader.ack(100)
    reader.drop()
    author.ack(300)
    for clock in range(301, 601):
        author.mutate(clock, {"x": clock})
    await rig.settle()
    (document,) = rig.documents.opened()
    assert document.machine.snapshot_seq > 100
    assert document.machine.first == 101, "truncation stops at the place that is kept"
    again = rig.connect("b", policy="resume")
    messages = again.take("welcome", "subscribed", "mutation")
    assert messages[1]["resumed"] is True
    assert seqs(messages[2:]) == list(range(101, 601))


async def test_a_state_that_may_not_have_arrived_is_sent_again(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    await rig.settle()
    reader = rig.connect("b", policy="resume")
    reader.subscribe()
    reader.drop()
    again = rig.connect("b", policy="resume")
    subscribed, state = again.take("subscribed", "state")
    assert (subscribed["resumed"], state["seq"]) == (False, 1)
    again.ack(1, epoch=subscribed["epoch"])
    again.drop()
    third = rig.connect("b", policy="resume")
    (subscribed,) = third.take("subscribed", "state")
    assert subscribed["resumed"] is True


@pytest.mark.parametrize("is_joined", [True, False], ids=["joined", "waits for the disk"])
async def test_who_begins_anew_gives_up_the_place_that_it_had(
    rig: DocumentsRig, is_joined: bool
) -> None:
    reader = rig.connect("b", policy="resume")
    reader.subscribe()
    reader.ack(0)
    reader.mutate(1, {"x": 1})
    reader.subscribe()
    if is_joined:
        await rig.settle()
    reader.drop()
    await rig.settle()
    again = rig.connect("b")
    again.subscribe()
    subscribed, state = again.take("subscribed", "state")[:2]
    assert (subscribed["resumed"], state["state"]) == (False, {"x": 1})


async def test_leaving_ends_a_subscription_that_its_client_has_not_heard_of(
    rig: DocumentsRig,
) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    reader.subscribe()
    reader.say("unsubscribe", document="d", epoch=1)
    reader.take()
    author.mutate(1, {"x": 1})
    await rig.settle()
    assert reader.take() == []


async def test_clean_forgets_everything(rig: DocumentsRig) -> None:
    reader = rig.subscribed("b")
    reader.drop()
    again = rig.connect("b")
    (welcome,) = again.take()
    assert welcome["restored"] == []


async def test_places_are_given_up_after_a_while(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    reader = rig.connect("b", policy="resume")
    reader.subscribe()
    reader.drop()
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.ack(1)
    await rig.tick(31_000)
    (document,) = rig.documents.opened()
    assert document.machine.parked == {}


# Truncation and closing.


async def test_the_stream_is_truncated_at_the_slowest_reader(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    for clock in range(1, 301):
        author.mutate(clock, {"x": clock})
    await rig.settle()
    (document,) = rig.documents.opened()
    assert document.machine.snapshot_seq == 300
    assert document.machine.first == 1, "nobody has acknowledged anything"
    author.ack(300)
    reader.ack(10)
    await rig.tick(1_000)
    assert rig.store.state(document.stream).first == 11


async def test_a_document_that_nobody_has_open_is_folded_and_let_go_of(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1, "y": 2})
    author.mutate(2, {"y": None})
    await rig.settle()
    (document,) = rig.documents.opened()
    author.drop()
    for _ in range(3):
        await rig.tick(11_000)
    assert len(rig.documents) == 0
    state = rig.store.state(document.stream)
    assert (state.first, state.next) == (3, 3), "the stream is empty, its place is kept"
    joiner = rig.connect("b")
    joiner.subscribe()
    (found,) = joiner.take("state")
    assert (found["seq"], found["state"]) == (2, {"x": 1})


async def test_clocks_survive_being_let_go_of(rig: DocumentsRig) -> None:
    author = rig.subscribed("a")
    author.mutate(1, {"x": 1})
    await rig.settle()
    author.drop()
    for _ in range(3):
        await rig.tick(11_000)
    again = rig.connect("a")
    again.subscribe()
    again.take()
    again.mutate(1, {"x": 1})
    await rig.settle()
    assert [(each["type"], each["seq"]) for each in again.take()] == [("ack", 1)]


# Bad input.


async def fail(client: Client) -> dict[str, Any]:
    message, *ended = client.take()
    assert message["type"] == "error"
    assert [each["code"] for each in ended] == ["refused"] * ("clock" in message)
    return message


async def test_a_mutation_that_is_no_object_is_refused_for_good(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    author.mutate(1, [1, 2])
    error = await fail(author)
    assert (error["code"], error["clock"], error["retriable"]) == ("invalid_mutation", 1, False)
    # What follows it is not stored before the client has heard of the refusal.
    author.mutate(2, {"x": 1})
    author.subscribe()
    (subscribed,) = author.take("subscribed")
    assert (subscribed["epoch"], subscribed["clock"]) == (2, 0)
    author.mutate(2, {"x": 1}, epoch=2)
    await rig.settle()
    assert seqs(reader.take("mutation")) == [1]


async def test_a_yjs_update_that_would_break_the_folding_is_refused(rig: DocumentsRig) -> None:
    author = rig.subscribed("a", kind="yjs")
    # It decodes, and may take the CRDT library down when it is folded: it refers to itself.
    poison = bytes.fromhex("010107008407010262630102010201")
    author.mutate(1, b64encode(poison).decode())
    error = await fail(author)
    assert (error["code"], error["clock"]) == ("invalid_mutation", 1)
    await rig.settle()
    (document,) = rig.documents.opened()
    assert document.machine.staged == 0


async def test_readers_of_different_epochs_are_told_the_same(rig: DocumentsRig) -> None:
    author, one, two = (rig.subscribed(name) for name in "abc")
    two.subscribe()
    two.take()
    author.mutate(1, {"x": 1})
    await rig.settle()
    (first,), (second,) = one.take(), two.take()
    assert (first.pop("epoch"), second.pop("epoch")) == (1, 2)
    assert first == second


async def test_an_acknowledgement_from_the_future_is_an_error(rig: DocumentsRig) -> None:
    reader = rig.subscribed("a")
    reader.ack(5)
    assert (await fail(reader))["code"] == "unexpected"


async def test_a_subscription_that_never_was_is_an_error_without_a_clock(
    rig: DocumentsRig,
) -> None:
    client = rig.connect("a")
    client.take()
    client.mutate(1, {})
    error = await fail(client)
    assert error["code"] == "unexpected"
    assert "clock" not in error, "the client must not drop its mutation for it"


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"type":"nonsense"}', b'{"type":"subscribe","document":7}', b"\xff"]
)
async def test_what_is_no_message_ends_this_connection_alone(
    rig: DocumentsRig, data: bytes
) -> None:
    culprit, other = rig.subscribed("a"), rig.subscribed("b")
    culprit.handler.received(data, is_text=True)
    assert culprit.peer.closed_with is not None
    assert culprit.peer.closed_with[0] == 4400
    assert other.peer.closed_with is None


async def test_binary_on_a_text_protocol_ends_the_connection(rig: DocumentsRig) -> None:
    client = rig.connect("a")
    client.handler.received(b"{}", is_text=False)
    assert client.peer.closed_with is not None
    assert client.peer.closed_with[0] == 4400


async def test_the_first_message_must_be_hello(rig: DocumentsRig) -> None:
    client = rig.connect("a")
    client.say("hello", client="a", version=1)
    assert client.peer.closed_with is not None


async def test_another_version_is_refused(rig: DocumentsRig) -> None:
    client = rig.connect("a", version=2)
    assert client.peer.closed_with is not None
    assert client.peer.closed_with[0] == 4426


async def test_a_second_connection_displaces_the_first(rig: DocumentsRig) -> None:
    first, second = rig.subscribed("a"), rig.subscribed("a")
    assert first.peer.closed_with is not None
    assert first.peer.closed_with[0] == 4409
    writer = rig.subscribed("b")
    writer.mutate(1, {"x": 1})
    await rig.settle()
    assert first.take("mutation") == []
    assert seqs(second.take("mutation")) == [1]


async def test_another_kind_is_refused(rig: DocumentsRig) -> None:
    rig.subscribed("a")
    client = rig.connect("b")
    client.take()
    client.subscribe(kind="yjs")
    assert (await fail(client))["code"] == "kind"


async def test_documents_per_connection_are_limited() -> None:
    rig = DocumentsRig(open_memory(), settings=SyncSettings(document_count_max=2))
    client = rig.connect("a")
    for name in ("one", "two", "three"):
        client.subscribe(name)
    (error,) = client.take("error")
    assert (error["code"], error["document"]) == ("limit", "three")
    await rig.committer.close()


async def test_a_document_has_a_largest_size() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(document_bytes_max=1_000))
    author = rig.subscribed("a")
    author.mutate(1, {"x": "x" * 600})
    author.mutate(2, {"y": "y" * 600})
    (error,) = author.take("error")
    assert (error["code"], error["clock"]) == ("document_full", 2)
    await rig.settle()
    # What replaces the old text does not add to it.
    author.subscribe()
    author.mutate(3, {"x": "z" * 300}, epoch=2)
    await rig.settle()
    assert [each["clock"] for each in author.take("ack")] == [3]
    await rig.committer.close()


async def test_what_the_token_does_not_allow_is_refused() -> None:
    class ReadOnly(AllowAll):
        def may_read(self, document: str) -> bool:
            return document == "d"

        def may_write(self, document: str) -> bool:
            return False

    rig = DocumentsRig(open_memory())
    writer = rig.subscribed("w")
    rig.face.authorize = lambda token: ReadOnly()
    client = rig.subscribed("a")
    client.take()
    client.mutate(1, {"x": 1})
    error = await fail(client)
    assert (error["code"], error["clock"]) == ("forbidden", 1)
    client.subscribe("secret")
    assert (await fail(client))["code"] == "forbidden"
    client.subscribe()
    writer.mutate(1, {"x": 1})
    await rig.settle()
    assert seqs(client.take("mutation")) == [1]
    await rig.committer.close()


# Presence.


async def test_presence_is_relayed_shown_to_joiners_and_removed(rig: DocumentsRig) -> None:
    one, two = rig.subscribed("a"), rig.subscribed("b")
    one.say("presence", document="d", epoch=1, state={"at": [1, 2]})
    assert two.take() == [
        {"type": "presence", "document": "d", "states": {"a": {"at": [1, 2]}}, "epoch": 1}
    ]
    assert one.take() == []
    joiner = rig.connect("c")
    joiner.subscribe()
    (shown,) = joiner.take("presence")
    assert shown["states"] == {"a": {"at": [1, 2]}}
    one.drop()
    assert two.take()[0]["states"] == {"a": None}


def show(client: Client, state: Any, document: str = "d") -> None:
    client.say("presence", document=document, epoch=1, state=state)


async def test_who_joins_behind_a_large_state_is_told_of_everybody_once_it_has_read_it(
    rig: DocumentsRig,
) -> None:
    one, two = rig.subscribed("a"), rig.subscribed("b")
    show(one, 1)
    show(two, 2)
    joiner = rig.connect("c")
    joiner.stop_reading()
    joiner.subscribe()
    assert joiner.take("presence") == []
    show(one, 3)
    two.drop()
    joiner.read_on()
    assert joiner.take() == [
        {"type": "presence", "document": "d", "states": {"a": 3}, "epoch": 1}
    ], "the newest, and nothing of whom it was never told of"


async def test_who_catches_up_is_told_who_came_and_who_left_meanwhile(rig: DocumentsRig) -> None:
    stays, leaves, reader = rig.subscribed("a"), rig.subscribed("b"), rig.subscribed("c")
    show(reader, "own")
    show(stays, 1)
    show(leaves, 1)
    reader.take()
    reader.stop_reading()
    leaves.drop()
    visitor, comes = rig.subscribed("v"), rig.subscribed("n")
    show(visitor, 1)
    show(comes, 1)
    for state in range(2, 1_000):
        show(stays, state)
    visitor.drop()
    assert reader.take() == []
    reader.read_on()
    (shown,) = reader.take()
    assert shown["states"] == {"a": 999, "n": 1, "b": None}
    reader.read_on()
    assert reader.take() == [], "it was told"
    show(stays, 0)
    assert reader.take()[0]["states"] == {"a": 0}, "from now on only what changes"


async def test_presence_that_is_due_goes_with_the_next_change_that_can_be_told(
    rig: DocumentsRig,
) -> None:
    stays, leaves, reader = rig.subscribed("a"), rig.subscribed("b"), rig.subscribed("c")
    show(leaves, 1)
    reader.take()
    reader.stop_reading()
    leaves.drop()
    # There is room again, and it was not said yet.
    reader.peer.is_writable = True
    show(stays, 1)
    reader.stop_reading()
    stays.drop()
    reader.read_on()
    assert [each["states"] for each in reader.take()] == [{"a": 1, "b": None}, {"a": None}]


async def test_updates_come_before_presence_that_is_due(rig: DocumentsRig) -> None:
    author, reader = rig.subscribed("a"), rig.subscribed("b")
    reader.stop_reading()
    show(author, 1)
    author.mutate(1, {"x": 1})
    await rig.settle()
    reader.read_on()
    assert [each["type"] for each in reader.take()] == ["mutation", "presence"]


async def test_presence_that_is_due_does_not_reach_who_left(rig: DocumentsRig) -> None:
    shown, reader = rig.subscribed("a", "one"), rig.subscribed("b", "one")
    shown.subscribe("two")
    reader.subscribe("two")
    reader.take()
    reader.stop_reading()
    show(shown, 1, "one")
    show(shown, 2, "two")
    reader.say("unsubscribe", document="one")
    reader.read_on()
    messages = reader.take("unsubscribed", "presence")
    assert [(each["type"], each["document"]) for each in messages] == [
        ("unsubscribed", "one"),
        ("presence", "two"),
    ]


async def test_who_subscribes_anew_while_presence_is_due_is_told_of_those_present_alone(
    rig: DocumentsRig,
) -> None:
    leaves, stays, reader = rig.subscribed("a"), rig.subscribed("b"), rig.subscribed("c")
    show(leaves, 1)
    show(stays, 2)
    reader.take()
    reader.stop_reading()
    leaves.drop()
    reader.subscribe()
    reader.read_on()
    (shown,) = reader.take("presence")
    assert (shown["epoch"], shown["states"]) == (2, {"b": 2})


async def test_a_patch_is_decoded_once_on_its_way(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = rig.subscribed("w", kind="json"), rig.subscribed("r", kind="json")
    # The face has decoded it; whoever would do so again is stopped here.
    monkeypatch.setattr("syncline.core.kinds.json._decode", None)
    writer.mutate(1, {"a": {"b": 1}})
    await rig.settle()
    assert reader.take("mutation")[0]["mutation"] == {"a": {"b": 1}}
    document = rig.documents.find("d")
    assert document is not None
    assert document.folding.shown() == b'{"a":{"b":1}}'


async def test_who_wrote_elsewhere_while_it_waited_for_room_joins_once_that_is_stored(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = rig.store.create
    monkeypatch.setattr(rig.store, "create", no_room)
    waiting = rig.connect("a")
    waiting.subscribe(kind="yjs")
    assert waiting.take("subscribed", "error") == []
    monkeypatch.setattr(rig.store, "create", create)
    # The same client over another face, which happens to find room first.
    same = identifier(client="a")
    other = rig.cable_joined(same)
    other.update(yjs_updates("text")[0], same, clock=1)
    rig.documents.patience.relieve()
    await rig.settle()
    (subscribed,) = waiting.take("subscribed")
    assert (subscribed["seq"], subscribed["clock"]) == (1, 1)


def no_room(*_arguments: object) -> None:
    raise StoreBusyError(1, 1)
