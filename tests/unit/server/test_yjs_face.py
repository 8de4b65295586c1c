"""The rules of docs/formats/yjs.md, as the router keeps them, without sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pycrdt
import pytest

from syncline.errors import NotAuthorizedError, StoreFullError
from syncline.server.faces import Accepted, Rejected, Upgrade
from syncline.server.frames import frame
from syncline.server.grouping import Grouping
from syncline.server.open_document import DocumentOptions
from syncline.wire import awareness, yjs
from tests.unit.server.documents_rig import (
    AllowAll,
    DocumentsRig,
    ReadsOnly,
    ReadsOnlyOne,
    YjsClient,
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


def written(client: YjsClient) -> list[bytes]:
    return [frame.update for frame in client.take(yjs.SyncUpdate)]


# Coming in.


async def test_the_router_speaks_first_with_its_state_vector_then_who_is_present(
    rig: DocumentsRig,
) -> None:
    first = rig.yjs()
    assert first.take() == [yjs.SyncStep1(KNOWS_NOTHING)]
    (update,) = yjs_updates("hello")
    first.update(update)
    first.show(7, 1)
    await rig.settle()
    second = rig.yjs()
    assert second.take() == [
        yjs.SyncStep1(pycrdt.get_state(update)),
        yjs.AwarenessUpdate(awareness.encode([awareness.Entry(7, 1, HERE)])),
    ]
    assert second.peer.was_text == {False}


@pytest.mark.parametrize("state", ["", "hello"])
async def test_step_1_is_answered_with_what_is_missing_even_if_nothing_is(
    rig: DocumentsRig, state: str
) -> None:
    writer, reader = rig.yjs_joined(), rig.yjs_joined()
    known: bytes = KNOWS_NOTHING
    if state:
        first, second = yjs_updates(state, " world")
        writer.update(first)
        writer.update(second)
        await rig.settle()
        reader.take()
        known = pycrdt.get_state(first)
        reader.say(yjs.SyncStep1(KNOWS_NOTHING))
        (all_of_it,) = reader.take()
        assert isinstance(all_of_it, yjs.SyncStep2)
        assert text_of(all_of_it.update) == "hello world"
        reader.say(yjs.SyncStep1(known))
        (rest,) = reader.take()
        assert text_of(rest.update) == "", "it has only what the state vector lacks"
        assert text_of(first, rest.update) == "hello world"
        known = pycrdt.get_state(all_of_it.update)
    reader.say(yjs.SyncStep1(known))
    assert reader.take() == [yjs.SyncStep2(EMPTY)]


async def test_what_a_client_brings_in_step_2_is_stored_and_relayed(rig: DocumentsRig) -> None:
    newcomer, reader = rig.yjs_joined(), rig.yjs_joined()
    (offline,) = yjs_updates("written offline")
    newcomer.say(yjs.SyncStep2(offline))
    await rig.settle()
    assert written(reader) == [offline]
    assert head(rig) == 1


async def test_a_step_2_without_news_stores_nothing(rig: DocumentsRig) -> None:
    writer = rig.yjs_joined()
    first, second = yjs_updates("one ", "two")
    writer.update(first)
    writer.update(second)
    await rig.settle()
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=2_000)
    doc.apply_update(first)
    doc.apply_update(second)
    del doc.get("t", type=pycrdt.Text)[0:2]
    writer.update(doc.get_update(pycrdt.get_state(pycrdt.merge_updates(first, second))))
    await rig.settle()
    assert head(rig) == 3
    again = rig.yjs_joined()
    again.say(yjs.SyncStep2(doc.get_update()))
    # What most clients send: the empty rest, and the rest with everything that was ever deleted.
    again.say(yjs.SyncStep2(EMPTY))
    again.say(yjs.SyncStep2(doc.get_update(doc.get_state())))
    await rig.settle()
    assert head(rig) == 3
    assert written(writer) == []


async def test_an_update_that_came_before_what_it_builds_on_is_kept_for_joiners(
    rig: DocumentsRig,
) -> None:
    writer = rig.yjs_joined()
    first, second = yjs_updates("one ", "two")
    writer.update(second)
    await rig.settle()
    joiner = rig.yjs_joined()
    joiner.say(yjs.SyncStep1(KNOWS_NOTHING))
    step_2, early = joiner.take()
    assert step_2 == yjs.SyncStep2(EMPTY)
    assert early == yjs.SyncUpdate(second)
    writer.update(first)
    await rig.settle()
    late = rig.yjs_joined()
    late.say(yjs.SyncStep1(KNOWS_NOTHING))
    (whole,) = late.take()
    assert text_of(whole.update) == "one two"


# Relaying.


async def test_an_update_reaches_everybody_but_its_author_once_it_is_durable(
    rig: DocumentsRig,
) -> None:
    author, one, two = (rig.yjs_joined() for _ in range(3))
    elsewhere = rig.yjs_joined("other")
    (update,) = yjs_updates("hello")
    author.update(update)
    assert one.take() == [], "nothing is said before it is durable"
    one.say(yjs.SyncStep1(KNOWS_NOTHING))
    assert one.take() == [yjs.SyncStep2(EMPTY)], "nor is it in the state"
    await rig.settle()
    assert written(one) == [update]
    assert written(two) == [update]
    assert author.take() == []
    assert elsewhere.take() == []


async def test_what_could_not_be_stored_is_told_to_nobody(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    author, reader = rig.yjs_joined(), rig.yjs_joined()
    await rig.settle()

    def full(batch: object) -> None:
        raise StoreFullError("the disk")

    with monkeypatch.context() as patched:
        patched.setattr(rig.store, "write_batch", full)
        author.update(yjs_updates("lost")[0])
        with pytest.raises(StoreFullError):
            await rig.committer.durable()
    await turns()
    assert written(reader) == []
    assert [author.peer.close_code, reader.peer.close_code] == [1013, 1013], "they come again"


async def test_what_comes_closely_together_is_one_batch_and_keeps_its_order(
    rig: DocumentsRig,
) -> None:
    writer, reader = rig.yjs_joined(), rig.yjs_joined()
    updates = yjs_updates(*"abcdefgh")
    before = rig.committer.stats.batch_count
    for update in updates:
        writer.update(update)
    await rig.settle()
    assert [each.update for each in reader.take()] == updates
    assert rig.committer.stats.batch_count == before + 1


async def test_an_update_is_stored_though_its_author_leaves_at_once(rig: DocumentsRig) -> None:
    writer, reader = rig.yjs_joined(), rig.yjs_joined()
    writer.update(yjs_updates("last words")[0])
    writer.drop()
    await rig.settle()
    assert [text_of(each.update) for each in reader.take()] == ["last words"]


async def test_an_update_comes_before_whatever_its_author_sends_next(rig: DocumentsRig) -> None:
    writer = rig.yjs_joined()
    first, second = yjs_updates("a" * 20, "b" * 200)
    writer.update(first)
    # Too long to be put off, and it builds on the first.
    writer.update(second)
    await rig.settle()
    assert head(rig) == 2
    stored = rig.documents.find("d")
    assert stored is not None
    assert text_of(stored.folding.shown()) == "a" * 20 + "b" * 200


async def test_no_more_is_put_off_than_the_limit(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncline.server.documents.ARRIVED_COUNT_MAX", 3)
    writer = rig.yjs_joined()
    document = rig.documents.find("d")
    assert document is not None
    for update in yjs_updates(*"abcd"):
        writer.update(update)
    # In the same turn of the loop: three were looked at, the last one waits.
    assert document.machine.staged == 3
    await rig.settle()
    assert head(rig) == 4


async def test_who_does_not_keep_up_reads_on_from_its_place(rig: DocumentsRig) -> None:
    author, reader = rig.yjs_joined(), rig.yjs_joined()
    updates = yjs_updates(*"abcdefgh")
    reader.stop_reading()
    for update in updates:
        author.update(update)
        await rig.settle()
    assert reader.take() == []
    reader.read_on()
    assert written(reader) == updates


async def test_who_does_not_read_for_long_has_to_come_again(rig: DocumentsRig) -> None:
    author, reader, sick = (rig.yjs_joined() for _ in range(3))
    sick.stop_reading()
    author.update(yjs_updates("x")[0])
    await rig.settle()
    await rig.tick(29_000)
    assert sick.peer.closed_with is None
    await rig.tick(2_000)
    assert sick.peer.close_code == 1013
    assert reader.peer.closed_with is None


async def test_who_left_gets_nothing_more(rig: DocumentsRig) -> None:
    author, reader = rig.yjs_joined(), rig.yjs_joined()
    author.update(yjs_updates("x")[0])
    reader.drop()
    author.show(1, 1)
    await rig.settle()
    assert reader.take() == []
    author.drop()
    assert rig.documents.connection_count == 0


async def test_an_empty_update_is_not_stored(rig: DocumentsRig) -> None:
    author = rig.yjs_joined()
    author.update(EMPTY)
    await rig.settle()
    assert head(rig) == 0


async def test_what_was_written_survives_being_let_go_of(rig: DocumentsRig) -> None:
    author = rig.yjs_joined()
    for update in yjs_updates("one ", "two"):
        author.update(update)
    await rig.settle()
    author.drop()
    for _ in range(3):
        await rig.tick(11_000)
    assert len(rig.documents) == 0
    joiner = rig.yjs_joined()
    joiner.say(yjs.SyncStep1(KNOWS_NOTHING))
    (state,) = joiner.take()
    assert text_of(state.update) == "one two"


# Awareness.


async def test_awareness_goes_to_everybody_and_its_sender(rig: DocumentsRig) -> None:
    one, two, elsewhere = rig.yjs_joined(), rig.yjs_joined(), rig.yjs_joined("other")
    one.show(7, 1)
    assert one.take_present() == [(7, 1, HERE)]
    assert two.take_present() == [(7, 1, HERE)]
    assert elsewhere.take() == []
    await rig.settle()
    assert head(rig) == 0, "it is never stored"


async def test_awareness_that_is_not_newer_is_not_relayed(rig: DocumentsRig) -> None:
    one, two = rig.yjs_joined(), rig.yjs_joined()
    one.show(7, 5)
    two.take()
    one.show(7, 5)
    one.show(7, 4)
    assert two.take() == []


async def test_who_disconnects_is_taken_away_for_the_others(rig: DocumentsRig) -> None:
    one, two = rig.yjs_joined(), rig.yjs_joined()
    one.show(7, 1)
    two.show(8, 1)
    two.take()
    one.drop()
    assert two.take_present() == [(7, 1, None)]
    three = rig.yjs()
    assert three.take_present() == [(8, 1, HERE)]


async def test_who_comes_back_with_its_old_clock_is_seen_again_at_once(rig: DocumentsRig) -> None:
    other = rig.yjs_joined()
    person = pycrdt.Awareness(pycrdt.Doc(client_id=7))
    person.set_local_state({"u": 1})

    def shown() -> yjs.AwarenessUpdate:
        return yjs.AwarenessUpdate(person.encode_awareness_update([7]))

    before = rig.yjs_joined()
    before.say(shown())
    before.drop()
    assert other.take_present()[-1][2] is None
    again = rig.yjs_joined()
    again.say(shown())
    assert other.take() == [], "to the others that clock is no news"
    # As clients do: nobody takes away their own state; told so, they raise the clock and answer.
    (answer,) = again.take(yjs.AwarenessUpdate)
    person.apply_awareness_update(answer.update, "router")
    again.say(shown())
    ((client, _, state),) = other.take_present()
    assert (client, state) == (7, HERE)


async def test_awareness_that_is_not_renewed_is_not_shown_to_newcomers(rig: DocumentsRig) -> None:
    frozen, other = rig.yjs_joined(), rig.yjs_joined()
    frozen.show(7, 1)
    rig.clock.advance(29_000)
    assert rig.yjs().take_present() == [(7, 1, HERE)]
    other.take()
    rig.clock.advance(1_000)
    assert rig.yjs().take_present() == []
    assert other.take_present() == [(7, 1, None)]


async def test_query_awareness_is_answered_with_everybody(rig: DocumentsRig) -> None:
    one, two = rig.yjs_joined(), rig.yjs_joined()
    two.say(yjs.QueryAwareness())
    assert two.take() == []
    one.show(7, 1)
    two.take()
    two.say(yjs.QueryAwareness())
    assert two.take_present() == [(7, 1, HERE)]
    assert one.take_present() == [(7, 1, HERE)], "its own echo, nothing else"


async def test_who_does_not_read_is_not_sent_awareness(rig: DocumentsRig) -> None:
    one, two = rig.yjs_joined(), rig.yjs_joined()
    two.stop_reading()
    one.show(7, 1)
    assert two.take() == []


async def test_who_catches_up_is_told_of_the_awareness_it_missed(rig: DocumentsRig) -> None:
    stays, leaves, reader = rig.yjs_joined(), rig.yjs_joined(), rig.yjs_joined()
    leaves.show(8, 1)
    assert reader.take_present() == [(8, 1, HERE)]
    reader.stop_reading()
    stays.show(7, 1)
    leaves.drop()
    assert reader.take() == []
    reader.read_on()
    assert reader.take_present() == [(8, 1, None), (7, 1, HERE)]
    reader.read_on()
    assert reader.take() == [], "it was told"


async def test_only_who_hears_no_echo_of_itself_is_kept_warm(rig: DocumentsRig) -> None:
    silent, shown, hidden = (rig.yjs_joined() for _ in range(3))
    shown.show(7, 1)
    hidden.show(8, 1)
    assert hidden.peer.warm_frames == b""
    # From now on it shows nothing again, so nothing is echoed to it.
    hidden.show(8, 2, None)
    nobody = frame(yjs.encode(yjs.AwarenessUpdate(awareness.encode([]))), is_text=False)
    assert silent.peer.warm_frames == hidden.peer.warm_frames == nobody
    assert shown.peer.warm_frames == b""


# Who may what.


async def test_of_who_may_only_read_nothing_is_taken(rig: DocumentsRig) -> None:
    writer = rig.yjs_joined()
    rig.yjs_face.authorize = lambda token: ReadsOnly()
    reader = rig.yjs_joined()
    (update,) = yjs_updates("hello")
    reader.update(update)
    reader.say(yjs.SyncStep2(update))
    await rig.settle()
    assert head(rig) == 0
    assert reader.peer.closed_with is None, "what it types stays with it, and it goes on reading"
    writer.update(update)
    await rig.settle()
    assert written(reader) == [update]


async def test_who_may_only_read_makes_no_document(rig: DocumentsRig) -> None:
    rig.yjs_face.authorize = lambda token: ReadsOnly()
    assert rig.yjs().peer.close_code == 4404


async def test_a_document_that_the_token_does_not_allow_is_denied(rig: DocumentsRig) -> None:
    rig.yjs_face.authorize = lambda token: ReadsOnlyOne()
    assert rig.yjs("d").peer.closed_with is None
    client = rig.yjs("secret")
    assert client.peer.close_code == 4401
    (denied,) = client.take()
    assert isinstance(denied, yjs.AuthDenied)


async def test_without_a_good_token_it_is_denied_and_told_why(rig: DocumentsRig) -> None:
    def refuse(token: str | None) -> Any:
        raise NotAuthorizedError("the token has expired")

    rig.yjs_face.authorize = refuse
    client = rig.yjs()
    assert client.take() == [yjs.AuthDenied("the token has expired")]
    assert client.peer.closed_with == (4401, "unauthorized: the token has expired")
    client.update(yjs_updates("x")[0])
    client.drop()
    assert head(rig) == -1, "it made nothing"


async def test_a_token_that_expires_ends_the_connection(rig: DocumentsRig) -> None:
    class Expiring(AllowAll):
        expires_ms = rig.clock()

    rig.yjs_face.authorize = lambda token: Expiring()
    client = rig.yjs_joined()
    assert client.peer.closed_with is None
    await turns()
    assert client.take() == [yjs.AuthDenied("the token has expired")]
    assert client.peer.close_code == 4401


async def test_the_token_of_the_request_is_what_is_looked_at(rig: DocumentsRig) -> None:
    seen: list[str | None] = []

    def authorize(token: str | None) -> AllowAll:
        seen.append(token)
        return AllowAll()

    rig.yjs_face.authorize = authorize
    rig.yjs_face.token_of = lambda upgrade: upgrade.query.get("token")
    accepted = rig.yjs_face.accept(Upgrade("/yjs/d", query={"token": "secret"}))
    assert not isinstance(accepted, Rejected)
    YjsClient(accepted.handler)  # type: ignore[arg-type]
    assert seen == ["secret"]


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ((), None),
        (("other",), None),
        (("syncline.token.secret",), "syncline.token.secret"),
        (("other", "syncline.token.secret"), "syncline.token.secret"),
    ],
)
async def test_the_subprotocol_that_brings_a_token_is_agreed_on(
    rig: DocumentsRig, offered: tuple[str, ...], chosen: str | None
) -> None:
    accepted = rig.yjs_face.accept(Upgrade("/yjs/d", subprotocols=offered))
    assert isinstance(accepted, Accepted)
    assert accepted.subprotocol == chosen
    assert "secret" not in repr(accepted)


# Bad input.


@pytest.mark.parametrize("path", ["/yjs/", "/yjs/" + "x" * 201, "/yjs/a\x00b"])
async def test_what_is_no_name_of_a_document_is_refused(rig: DocumentsRig, path: str) -> None:
    answer = rig.yjs_face.accept(Upgrade(path))
    assert isinstance(answer, Rejected)
    assert answer.status == 400


async def test_the_name_is_the_rest_of_the_path(rig: DocumentsRig) -> None:
    rig.yjs("notes/2024/wörter")
    assert [each.name for each in rig.documents.opened()] == ["notes/2024/wörter"]


async def test_an_unknown_document_is_refused_where_none_are_made() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(create_on_subscribe=False))
    client = rig.yjs()
    assert client.take() == []
    assert client.peer.close_code == 4404
    client.drop()
    assert rig.documents.connection_count == 0
    await rig.committer.close()


async def test_a_document_of_another_kind_is_refused(rig: DocumentsRig) -> None:
    rig.subscribed("a")
    client = rig.yjs()
    assert client.take() == []
    assert client.peer.close_code == 4409
    client.drop()
    assert rig.documents.connection_count == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x04", id="unknown type"),
        pytest.param(b"\x00\x03\x00", id="unknown step"),
        pytest.param(b"\x00\x02\x05\x00", id="length past the end"),
        pytest.param(b"\x00\x02\x02\x00\x00\x00", id="something follows"),
        pytest.param(b"\xff" * 9, id="a number without end"),
        pytest.param(b"\x00\x02\x03\xff\xff\xff", id="no update"),
        pytest.param(b"\x00\x01\x03\xff\xff\xff", id="no update in step 2"),
        pytest.param(b"\x00\x00\x03\xff\xff\xff", id="no state vector"),
        pytest.param(b"\x01\x04\x01\x07\x01\x00", id="awareness that is no JSON"),
        pytest.param(b"\x02\x00\x02no", id="auth from a client"),
    ],
)
async def test_a_malformed_frame_ends_this_connection_alone(rig: DocumentsRig, data: bytes) -> None:
    culprit, other = rig.yjs_joined(), rig.yjs_joined()
    culprit.handler.received(data, is_text=False)
    await rig.settle()
    assert culprit.peer.close_code == 4400
    assert other.take() == []
    assert other.peer.closed_with is None
    assert head(rig) == 0


async def test_a_text_frame_ends_the_connection(rig: DocumentsRig) -> None:
    client = rig.yjs_joined()
    client.handler.received(yjs.encode(yjs.QueryAwareness()), is_text=True)
    assert client.peer.close_code == 4400


async def test_what_is_too_large_ends_the_connection_for_good(rig: DocumentsRig) -> None:
    rig.yjs_face.frame_bytes_max = 100
    client, crowd = rig.yjs_joined(), rig.yjs_joined()
    client.update(yjs_updates("x" * 100)[0])
    assert client.peer.close_code == 4429
    rig.yjs_face.frame_bytes_max = 1 << 20
    for start in (0, 1_000):
        entries = [awareness.Entry(start + each, 1, HERE) for each in range(1_000)]
        crowd.say(yjs.AwarenessUpdate(awareness.encode(entries)))
    assert crowd.peer.close_code == 4429


async def test_a_document_has_a_largest_size() -> None:
    rig = DocumentsRig(open_memory(), DocumentOptions(document_bytes_max=1_000))
    client = rig.yjs_joined()
    client.update(yjs_updates("x" * 2_000)[0])
    assert client.peer.close_code == 4429
    await rig.committer.close()


async def test_deleting_a_document_ends_its_connections_for_good(rig: DocumentsRig) -> None:
    client = rig.yjs_joined()
    await rig.settle()
    rig.documents.delete("d")
    assert client.peer.close_code == 4404
    client.drop()
    assert rig.documents.connection_count == 0


async def test_while_the_disk_does_not_keep_up_nothing_more_is_read(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.yjs_joined()
    with monkeypatch.context() as patched:
        patched.setattr("syncline.server.documents.CONGESTED_BYTES", 0)
        client.update(yjs_updates("x")[0])
        await asyncio.sleep(0)
        assert client.peer.is_paused
        await rig.settle()
    assert not client.peer.is_paused


async def test_updates_that_are_put_off_are_company_for_one_another(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that comes is the newest, whether it was looked at by now or not."""
    looks: list[float] = []
    has_looked = asyncio.Event()

    class Patient(Grouping):
        def wait_seconds(self, now: float) -> float:
            return 0.001

        def more_seconds(self, newest_at: float, now: float) -> float:
            looks.append(newest_at)
            has_looked.set()
            return 0.0

    monkeypatch.setattr(rig.documents, "_grouping", Patient(20))
    began = asyncio.get_running_loop().time()
    first, second = yjs_updates("a", "b")
    writer = rig.yjs_joined()
    writer.update(first)
    writer.update(second)
    async with asyncio.timeout(10):
        await has_looked.wait()
    assert looks[0] >= began
    await rig.settle()
