"""The client over a real socket, against a router that does as the test says."""

import asyncio
import base64
import json
import logging
import time
from typing import Any

import msgspec
import pytest

from syncline.client import (
    Client,
    Document,
    DocumentStatus,
    LinkStatus,
    Mutated,
    Replaced,
    connect,
)
from syncline.errors import (
    ConfigError,
    InvalidMutationError,
    LimitExceededError,
    LinkClosedError,
    MalformedMessageError,
    NotAuthorizedError,
    RefusedError,
    RetriesExhaustedError,
    UnknownDocumentError,
)
from tests.unit.client.scripted_router import WAIT_S, Peer, ScriptedRouter, scripted_router


async def opened(client: Client, router: ScriptedRouter, **fields: Any) -> tuple[Document, Peer]:
    """A document that is live, and its connection. The test leaves it open."""
    document = client.document("plan")
    opening = asyncio.create_task(document.__aenter__())
    peer = await router.accepted()
    await peer.welcome()
    await peer.give(**fields)
    async with asyncio.timeout(WAIT_S):
        await opening
    return document, peer


async def met(document: Document, status: DocumentStatus) -> None:
    async with asyncio.timeout(WAIT_S):
        async for found in document.statuses():
            if found is status:
                return


async def reached(document: Document, seq: int) -> None:
    async with asyncio.timeout(WAIT_S):
        await document.reached(seq)


async def turned(client: Client, status: LinkStatus) -> None:
    async with asyncio.timeout(WAIT_S):
        async for found in client.statuses():
            if found is status:
                return


async def test_a_document_opens_with_its_state() -> None:
    async with (
        scripted_router() as router,
        connect(router.url, client="me", policy="resume", token="secret") as client,
    ):
        document = client.document("plan")
        opening = asyncio.create_task(document.__aenter__())
        peer = await router.accepted()
        assert peer.subprotocol == "syncline.v1.json"
        hello = await peer.welcome()
        assert hello == {
            "type": "hello",
            "client": "me",
            "version": 1,
            "token": "secret",
            "policy": "resume",
        }
        await peer.give(state={"a": 1}, seq=4)
        await opening
        assert (document.state, document.seq) == ({"a": 1}, 4)
        assert (document.status, client.status) == (DocumentStatus.LIVE, LinkStatus.ONLINE)


async def test_saved_means_that_the_router_said_so() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        change = document.change({"a": 1})
        assert document.state == {"a": 1}
        sent = await peer.expect("mutation")
        assert (sent["clock"], sent["mutation"]) == (1, {"a": 1})
        assert document.unsaved_count == 1
        await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=1)
        async with asyncio.timeout(WAIT_S):
            assert await change.saved == 1
            assert await change == 1  # again, and in short
        assert document.unsaved_count == 0


async def test_whoever_stops_waiting_leaves_the_change_to_the_others() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        change = document.change({"a": 1})

        async def wait() -> int:
            return await change.saved

        impatient, patient = asyncio.create_task(wait()), asyncio.create_task(wait())
        await asyncio.sleep(0)
        impatient.cancel()
        await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=1)
        async with asyncio.timeout(WAIT_S):
            assert await patient == 1
        assert impatient.cancelled()


async def test_a_refused_change_is_taken_back_and_raises() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router, state={"a": 0})
        reader = aiter(document)
        change = document.change({"a": 1})
        refusal = {"code": "invalid_mutation", "message": "not so", "retriable": False}
        await peer.send(type="error", document="plan", clock=1, **refusal)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(InvalidMutationError, match="not so"):
                await change.saved
            assert await anext(reader) == Replaced(0, {"a": 0}, "rejected")
        assert document.state == {"a": 0}


async def test_what_others_do_is_read_in_order() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        reader = aiter(document)
        for seq in (1, 2):
            fields = {"client": "you", "clock": seq, "mutation": {"n": seq}}
            await peer.send(type="mutation", document="plan", epoch=1, seq=seq, **fields)
        async with asyncio.timeout(WAIT_S):
            assert await anext(reader) == Mutated(1, "you", {"n": 1})
            assert await anext(reader) == Mutated(2, "you", {"n": 2})
        assert document.state == {"n": 2}
        await document.__aexit__(None, None, None)
        with pytest.raises(StopAsyncIteration):
            await anext(reader)


async def test_what_is_applied_is_acknowledged() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        _, peer = await opened(client, router, seq=3)
        assert json.loads(await peer.receive_raw()) == {
            "type": "ack",
            "document": "plan",
            "seq": 3,
            "epoch": 1,
        }


async def test_an_error_of_the_block_stays_what_it_is() -> None:
    async with scripted_router() as router:
        with pytest.raises(KeyError, match="mine"):
            async with connect(router.url):
                raise KeyError("mine")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("forbidden", NotAuthorizedError),
        ("unknown_document", UnknownDocumentError),
        ("kind", RefusedError),
    ],
)
async def test_a_refused_document_raises_where_it_is_opened(
    code: str, expected: type[Exception]
) -> None:
    async with scripted_router() as router, connect(router.url) as client:
        opening = asyncio.create_task(client.document("plan").__aenter__())
        peer = await router.accepted()
        await peer.welcome()
        await peer.expect("subscribe")
        fields = {"code": code, "message": "not for you", "retriable": False}
        await peer.send(type="error", document="plan", **fields)
        with pytest.raises(expected, match="not for you"):
            await opening
        # And may be opened again.
        async with client.document("plan", wait=False) as document:
            assert document.status is DocumentStatus.CONNECTING


async def test_an_ended_document_tells_everybody_who_waits() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        reader = aiter(document)
        change = document.change({"a": 1})
        fields = {"code": "deleted", "message": "gone", "retriable": False}
        await peer.send(type="unsubscribed", document="plan", epoch=1, **fields)
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(UnknownDocumentError, match="gone"):
                await anext(reader)
            with pytest.raises(UnknownDocumentError, match="gone"):
                await change.saved
        with pytest.raises(UnknownDocumentError, match="gone"):
            document.change({"a": 2})
        assert document.status is DocumentStatus.CLOSED


async def test_whoever_waits_for_a_place_is_told_of_the_end() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router, seq=2)
        await document.reached(2)
        waiting = asyncio.create_task(document.reached(3))
        await asyncio.sleep(0)
        fields = {"code": "deleted", "message": "gone", "retriable": False}
        await peer.send(type="unsubscribed", document="plan", epoch=1, **fields)
        with pytest.raises(UnknownDocumentError, match="gone"):
            await waiting


async def test_own_changes_count_for_the_place() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        waiting = asyncio.create_task(document.reached(1))
        document.change({"a": 1})
        await peer.expect("mutation")
        assert not waiting.done()
        await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=1)
        async with asyncio.timeout(WAIT_S):
            await waiting


async def test_a_token_for_reading_alone_does_not_write() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, _ = await opened(client, router, may_write=False)
        with pytest.raises(NotAuthorizedError, match="writing"):
            document.change({"a": 1})
        assert document.state == {}


@pytest.mark.parametrize("mutation", [[1], "text", {"a": float("nan")}, {"a": {1, 2}}, {1: 2}])
async def test_what_is_no_merge_patch_is_refused_at_once(mutation: Any) -> None:
    async with (
        connect("ws://127.0.0.1:9/sync") as client,
        client.document("plan", wait=False) as document,
    ):
        with pytest.raises(MalformedMessageError):
            document.change(mutation)
        assert document.unsaved_count == 0


async def test_a_change_too_large_for_a_frame_is_refused_at_once() -> None:
    async with connect("ws://127.0.0.1:9/sync") as client:
        async with client.document("plan", wait=False) as document:
            with pytest.raises(LimitExceededError, match="size of a mutation"):
                document.change({"a": "x" * (1 << 20)})
        async with client.document("bytes", "bytes", wait=False) as document:
            with pytest.raises(LimitExceededError, match="size of a mutation"):
                document.change(b"x" * (800 * 1024))


async def test_a_patch_that_is_used_again_does_not_change_what_is_sent() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        patch = {"a": {"b": 1}}
        document.change(patch)
        patch["a"]["b"] = 2
        assert (await peer.expect("mutation"))["mutation"] == {"a": {"b": 1}}
        assert document.state == {"a": {"b": 1}}


async def test_presence_goes_both_ways() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        document.show_presence({"x": 1})
        assert (await peer.expect("presence"))["state"] == {"x": 1}
        await peer.send(type="presence", document="plan", epoch=1, states={"you": {"x": 2}})
        async with asyncio.timeout(WAIT_S):
            async for others in document.presences():
                if others:
                    break
        assert document.presence == {"you": {"x": 2}}
        with pytest.raises(LimitExceededError, match="presence"):
            document.show_presence("x" * 10_000)


async def test_a_reader_that_is_too_slow_gets_the_state() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document = client.document("plan", change_count_max=2)
        opening = asyncio.create_task(document.__aenter__())
        peer = await router.accepted()
        await peer.welcome()
        await peer.give()
        await opening
        reader = aiter(document)
        for seq in range(1, 6):
            fields = {"client": "you", "clock": seq, "mutation": {"n": seq}}
            await peer.send(type="mutation", document="plan", epoch=1, seq=seq, **fields)
        await reached(document, 5)
        async with asyncio.timeout(WAIT_S):
            assert await anext(reader) == Replaced(5, {"n": 5}, "missed")
            # From there it goes on.
            fields = {"client": "you", "clock": 6, "mutation": {"n": 6}}
            await peer.send(type="mutation", document="plan", epoch=1, seq=6, **fields)
            assert await anext(reader) == Mutated(6, "you", {"n": 6})


async def test_closing_waits_until_everything_is_saved() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        document.change({"a": 1})
        closing = asyncio.create_task(document.__aexit__(None, None, None))
        await peer.expect("mutation")
        assert not closing.done()
        await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=1)
        async with asyncio.timeout(WAIT_S):
            await closing
        assert (await peer.expect("unsubscribe"))["epoch"] == 1


async def test_closing_says_what_is_not_known_to_be_stored() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        with pytest.raises(LinkClosedError, match="1 changes of 'plan' are not known"):
            async with client.document("plan", wait=False, save_timeout_s=0.01) as document:
                change = document.change({"a": 1})
        with pytest.raises(LinkClosedError):
            await change.saved
        # Opened again, it is sent.
        async with client.document("plan", wait=False):
            peer = await router.accepted()
            await peer.welcome()
            await peer.give()
            assert (await peer.expect("mutation"))["mutation"] == {"a": 1}
            await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=1)


async def test_it_comes_back_and_sends_again_what_was_not_saved() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router, seq=2)
        change = document.change({"a": 1})
        await peer.expect("mutation")
        await peer.close()
        peer = await router.accepted()
        await peer.welcome()
        asked = await peer.give(seq=7)
        assert asked["from"] == {"incarnation": "i", "seq": 2}
        assert (await peer.expect("mutation"))["clock"] == 1
        await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=8)
        async with asyncio.timeout(WAIT_S):
            assert await change.saved == 8


async def test_after_attempts_in_vain_it_is_offline_until_asked() -> None:
    async with scripted_router() as router:
        port = router.port
    async with connect(f"http://127.0.0.1:{port}", attempt_count_max=1) as client:
        with pytest.raises(RetriesExhaustedError, match="go online again"):
            await client.document("plan").__aenter__()
        assert client.status is LinkStatus.OFFLINE
        with pytest.raises(RetriesExhaustedError):
            await client.online()
        async with client.document("plan", wait=False) as document:
            change = document.change({"a": 1})
            async with scripted_router(port) as router:
                client.go_online()
                peer = await router.accepted()
                await peer.welcome()
                await peer.give()
                await peer.expect("mutation")
                await peer.send(type="ack", document="plan", epoch=1, clock=1, seq=1)
                async with asyncio.timeout(WAIT_S):
                    assert await change.saved == 1
                assert document.status is DocumentStatus.LIVE


async def test_it_can_be_sent_offline() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        await client.go_offline()
        await peer.ended()
        assert client.status is LinkStatus.OFFLINE
        await met(document, DocumentStatus.OFFLINE)
        document.change({"a": 1})
        client.go_online()
        peer = await router.accepted()
        await peer.welcome()
        assert "from" not in await peer.give()
        assert (await peer.expect("mutation"))["mutation"] == {"a": 1}


async def test_leaving_is_no_attempt_in_vain() -> None:
    async with scripted_router() as router, connect(router.url, attempt_count_max=1) as client:
        _, peer = await opened(client, router)
        leaving = asyncio.create_task(client.go_offline())
        await asyncio.sleep(0)
        client.go_online()  # before the old connection is gone
        await leaving
        await peer.ended()
        peer = await router.accepted()
        await peer.welcome()
        await peer.give()
        await turned(client, LinkStatus.ONLINE)


@pytest.mark.parametrize(
    ("close_code", "reason", "expected"),
    [
        (4409, "displaced: another connection", LinkClosedError),
        (4401, "unauthorized: expired", NotAuthorizedError),
    ],
)
async def test_a_final_end_is_final(
    close_code: int, reason: str, expected: type[Exception]
) -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        await peer.close(close_code, reason)
        await turned(client, LinkStatus.CLOSED)
        with pytest.raises(expected, match=reason.partition(": ")[2]):
            await client.online()
        with pytest.raises(expected, match=reason.partition(": ")[2]):
            await document.live()
        assert router.peers.empty()


async def test_a_router_that_does_not_welcome_is_left() -> None:
    async with (
        scripted_router() as router,
        connect(router.url, open_timeout_s=0.05, attempt_count_max=1) as client,
    ):
        peer = await router.accepted()
        await peer.expect("hello")
        await peer.ended()
        await turned(client, LinkStatus.OFFLINE)


@pytest.mark.parametrize("frame", ["{", '{"type":"strange"}', b"\xff", '{"type":"welcome"}'])
async def test_a_frame_that_is_no_message_ends_the_connection(frame: str | bytes) -> None:
    async with scripted_router() as router, connect(router.url, attempt_count_max=1) as client:
        peer = await router.accepted()
        await peer.welcome()
        await turned(client, LinkStatus.ONLINE)
        await peer.send_raw(frame)
        await peer.ended()
        await turned(client, LinkStatus.OFFLINE)


async def test_what_is_said_about_documents_that_are_not_open_is_ignored() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        for seq in (1, 2):
            fields = {"client": "you", "clock": 1, "mutation": "AAA="}
            await peer.send(type="mutation", document="other", epoch=1, seq=seq, **fields)
        await peer.send(type="state", document="other", epoch=1, seq=1, state=["AA=="])
        fields = {"client": "you", "clock": 1, "mutation": {"a": 1}}
        await peer.send(type="mutation", document="plan", epoch=1, seq=1, **fields)
        await reached(document, 1)
        assert document.state == {"a": 1}


async def test_messagepack_is_spoken_where_it_is_asked_for() -> None:
    async with (
        scripted_router() as router,
        connect(router.url, client="me", encoding="msgpack") as client,
        client.document("blob", "bytes", wait=False) as document,
    ):
        change = document.change(b"\x00\xff")
        peer = await router.accepted()
        assert peer.subprotocol == "syncline.v1.msgpack"

        async def received() -> dict[str, Any]:
            frame = await peer.receive_raw()
            assert isinstance(frame, bytes)
            found: dict[str, Any] = msgspec.msgpack.decode(frame)
            return found

        async def send(**message: Any) -> None:
            await peer.send_raw(msgspec.msgpack.encode(message))

        assert (await received())["type"] == "hello"
        welcome = {"session": "s", "version": 1, "limits": {}, "heartbeat_ms": 1}
        await send(type="welcome", restored=[], **welcome)
        assert (await received())["kind"] == "bytes"
        answer = {"epoch": 1, "incarnation": "i", "seq": 1, "resumed": False, "clock": 0}
        await send(type="subscribed", document="blob", kind="bytes", may_write=True, **answer)
        await send(type="state", document="blob", epoch=1, seq=1, state=[b"\x01"])
        assert (await received())["mutation"] == b"\x00\xff"
        await send(type="ack", document="blob", epoch=1, clock=1, seq=2)
        async with asyncio.timeout(WAIT_S):
            assert await change.saved == 2
        assert document.state == (b"\x01", b"\x00\xff")


async def test_a_router_that_picks_no_subprotocol_is_spoken_to_in_json() -> None:
    async with (
        scripted_router(subprotocols=()) as router,
        connect(router.url, encoding="msgpack") as client,
    ):
        document, _ = await opened(client, router, state={"a": 1})
        assert document.state == {"a": 1}


def jwt(expires_s: float, name: str) -> str:
    claims = json.dumps({"exp": expires_s, "sub": name}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.sig"


async def test_a_token_is_asked_for_before_each_connection_and_before_it_expires() -> None:
    given: list[str] = []

    async def token() -> str:
        given.append(jwt(time.time() + (0.2 if len(given) < 2 else 3_600), str(len(given))))
        return given[-1]

    async with scripted_router() as router, connect(router.url, token=token):
        peer = await router.accepted()
        assert (await peer.welcome())["token"] == given[0]
        assert (await peer.expect("token"))["token"] == given[1]
        await peer.close()
        peer = await router.accepted()
        assert (await peer.welcome())["token"] == given[-1]


async def test_a_token_that_could_not_be_had_is_asked_for_again() -> None:
    lives_s = iter([2, None, 3_600])

    async def token() -> str:
        life_s = next(lives_s)
        if life_s is None:
            raise OSError("nobody there")
        return jwt(time.time() + life_s, str(life_s))

    async with scripted_router() as router, connect(router.url, token=token):
        peer = await router.accepted()
        first = (await peer.welcome())["token"]
        assert (await peer.expect("token"))["token"] != first


async def test_a_token_can_be_renewed_by_hand() -> None:
    async with scripted_router() as router, connect(router.url, token="old") as client:
        peer = await router.accepted()
        await peer.welcome()
        await client.online()
        await client.renew_token("new")
        assert (await peer.expect("token"))["token"] == "new"
        await peer.close()
        peer = await router.accepted()
        assert (await peer.welcome())["token"] == "new"


async def test_no_token_to_be_had_is_an_attempt_in_vain() -> None:
    async def token() -> str:
        raise RuntimeError("the login is down")

    async with (
        scripted_router() as router,
        connect(router.url, token=token, attempt_count_max=1) as client,
    ):
        await turned(client, LinkStatus.OFFLINE)
        assert router.peers.empty()


async def test_a_token_is_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_router() as router, connect(router.url, token="very-secret") as client:
        peer = await router.accepted()
        # The server side of this test writes frames to the log; here only the client counts.
        caplog.clear()
        await peer.welcome()
        await client.online()
        await client.renew_token("very-secret-too")
        await peer.expect("token")
    own = [record for record in caplog.records if record.name.startswith("syncline")]
    assert not any("very-secret" in record.getMessage() for record in own)
    assert not any(
        "very-secret" in record.getMessage()
        for record in caplog.records
        if record.name == "websockets.client"
    )


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://host/sync", "http://"])
async def test_an_address_that_is_none_says_how_to_write_one(url: str) -> None:
    with pytest.raises(ConfigError, match="write it like"):
        async with connect(url):
            pass


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"client": "white space"}, "a client has"),
        ({"policy": "other"}, "no policy"),
        ({"encoding": "xml"}, "no encoding"),
    ],
)
async def test_options_that_are_none_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        async with connect("ws://127.0.0.1:9", **options):
            pass


async def test_names_and_kinds_that_are_none_are_refused() -> None:
    async with connect("ws://127.0.0.1:9") as client:
        with pytest.raises(MalformedMessageError, match="a document has"):
            client.document("")
        with pytest.raises(ConfigError, match="no kind"):
            client.document("plan", "xml")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- cut short


async def test_who_stops_waiting_for_the_closing_has_closed_all_the_same() -> None:
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        document.change({"x": 1})
        await peer.expect("mutation")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await document.__aexit__(None, None, None)
        await peer.expect("unsubscribe")
        again = client.document("plan", wait=False)
        await again.__aenter__()
        assert again.state == {"x": 1}, "it is kept, and sent when the document is open"
        await again.__aexit__(OSError, OSError(), None)


async def test_a_client_that_is_cancelled_while_it_leaves_leaves_nothing_behind() -> None:
    peers: asyncio.Queue[Peer] = asyncio.Queue(1)

    async def leave() -> None:
        async with connect(router.url) as client:
            document, peer = await opened(client, router)
            # It does not read what is sent, so there is something to wait for.
            peer.stop_reading()
            for _ in range(9):
                document.change({"x": "x" * 900_000})
            await peers.put(peer)

    async with scripted_router() as router:
        leaving = asyncio.create_task(leave())
        peer = await peers.get()
        await asyncio.sleep(0.1)
        assert not leaving.done()
        leaving.cancel()
        await asyncio.wait([leaving])
        peer.cut()
        assert "syncline client" not in [task.get_name() for task in asyncio.all_tasks()]


async def test_what_a_watcher_raises_costs_neither_the_client_nor_other_watchers() -> None:
    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: raised.append(context["exception"])
    )
    async with scripted_router() as router, connect(router.url) as client:
        document, peer = await opened(client, router)
        seen: list[object] = []
        document.watch(lambda change: raised[99])
        document.watch(seen.append)
        for seq in (1, 2):
            mutation = {"document": "plan", "epoch": 1, "client": "you", "clock": seq}
            await peer.send(type="mutation", seq=seq, mutation={"x": seq}, **mutation)
        await reached(document, 2)
        assert (client.status, document.state) == (LinkStatus.ONLINE, {"x": 2})
    assert len(seen) == 2
    assert [type(each) for each in raised] == [IndexError, IndexError]


async def test_a_client_that_has_ended_says_so_and_lets_nobody_wait() -> None:
    async with scripted_router() as router:
        async with connect(router.url) as client:
            await opened(client, router)
        assert client.status is LinkStatus.CLOSED
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(LinkClosedError, match="the client has ended"):
                await client.online()
            with pytest.raises(LinkClosedError, match="the client has ended"):
                await client.document("other").__aenter__()
        with pytest.raises(LinkClosedError, match="the client has ended"):
            client.go_online()
