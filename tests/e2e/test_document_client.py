"""The Python client against a real router: two people on one document, and the router killed."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import jwt
import pycrdt
import pytest
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from syncline.client import (
    Change,
    Document,
    DocumentStatus,
    LinkStatus,
    Mutated,
    Replaced,
    YjsBinding,
    connect,
)
from syncline.errors import (
    LinkClosedError,
    MalformedMessageError,
    NotAuthorizedError,
    RefusedError,
)
from syncline.values.json_value import Json
from tests.e2e.router_process import RouterProcess, running

pytestmark = pytest.mark.timeout(60)

WAIT_S = 30.0
Kind = Literal["json", "yjs", "bytes"]


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with running(tmp_path / "data") as router:
        yield router


async def reached(document: Document, seq: int) -> None:
    async with asyncio.timeout(WAIT_S):
        await document.reached(seq)


async def somebody_shown(document: Document) -> None:
    async with asyncio.timeout(WAIT_S):
        async for others in document.presences():
            if others:
                return


@asynccontextmanager
async def pair(
    url: str, kind: Kind = "json", **options: Any
) -> AsyncGenerator[tuple[Document, Document]]:
    """The same document, open in two clients."""
    async with (
        connect(url, **options) as one,
        connect(url, **options) as two,
        one.document("plan", kind) as first,
        two.document("plan", kind) as second,
    ):
        yield first, second


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_two_clients_see_what_the_other_does(router: RouterProcess, encoding: str) -> None:
    async with pair(router.url, encoding=encoding) as (ann, bob):
        changes = aiter(bob)
        patch: Json = {"nodes": {"n1": {"x": 1, "label": "Zoë"}}}
        assert await ann.change(patch) == 1
        async with asyncio.timeout(WAIT_S):
            change = await anext(changes)
        assert isinstance(change, Mutated)
        assert (change.seq, change.mutation) == (1, patch)
        assert bob.state == ann.state == patch
        assert await bob.change({"nodes": {"n1": {"x": None}}}) == 2
        await reached(ann, 2)
        assert ann.state == bob.state == {"nodes": {"n1": {"label": "Zoë"}}}


async def test_whoever_writes_does_not_hear_of_it(router: RouterProcess) -> None:
    async with pair(router.url) as (ann, bob):
        heard: list[Change] = []
        ann.watch(heard.append)
        await ann.change({"a": 1})
        await bob.change({"b": 1})
        await reached(ann, 2)
        assert [change.mutation for change in heard if isinstance(change, Mutated)] == [{"b": 1}]


async def test_both_write_the_same_field_at_once_and_agree(router: RouterProcess) -> None:
    async with pair(router.url) as (ann, bob):
        own = [document.change({"a": n}) for n in range(50) for document in (ann, bob)]
        seqs = [await change.saved for change in own]
        assert sorted(seqs) == list(range(1, 101))
        await reached(ann, 100)
        await reached(bob, 100)
        assert ann.state == bob.state == {"a": 49}


async def test_presence_is_seen_and_goes_with_its_client(router: RouterProcess) -> None:
    async with connect(router.url) as one, one.document("plan") as ann:
        seen: list[object] = []
        async with connect(router.url, client="bob") as two, two.document("plan") as bob:
            bob.show_presence({"cursor": [1, 2]})
            async with asyncio.timeout(WAIT_S):
                async for others in ann.presences():
                    seen.append(others)
                    if others:
                        break
        async with asyncio.timeout(WAIT_S):
            async for others in ann.presences():
                if not others:
                    break
        assert seen[-1] == {"bob": {"cursor": [1, 2]}}


async def test_presence_is_seen_behind_a_large_state(router: RouterProcess) -> None:
    async with pair(router.url) as (ann, bob):
        for number in range(6):
            await ann.change({f"k{number}": "x" * 600_000})
        bob.show_presence("here")
        await somebody_shown(ann)
        async with connect(router.url) as three, three.document("plan") as joiner:
            await somebody_shown(joiner)
            assert list(joiner.presence.values()) == ["here"]


async def test_bytes_are_kept_in_order(router: RouterProcess) -> None:
    async with pair(router.url, "bytes") as (ann, bob):
        for update in (b"\x00", b"\xff\x01", b""):
            await ann.change(update)
        await reached(bob, 3)
        assert bob.state == ann.state == (b"\x00", b"\xff\x01", b"")
    async with connect(router.url) as late, late.document("plan", "bytes") as document:
        assert document.state == (b"\x00", b"\xff\x01", b"")


def text(doc: "pycrdt.Doc[Any]") -> str:
    return str(doc.get("text", type=pycrdt.Text))


async def test_two_docs_of_pycrdt_are_bound_to_one_document(router: RouterProcess) -> None:
    one: pycrdt.Doc[Any] = pycrdt.Doc()
    two: pycrdt.Doc[Any] = pycrdt.Doc()
    one.get("text", type=pycrdt.Text).insert(0, "before ")  # written before anybody was connected
    async with pair(router.url, "yjs") as (ann, bob):
        with YjsBinding(ann, one), YjsBinding(bob, two):
            await reached(bob, 1)
            assert text(two) == "before "
            one.get("text", type=pycrdt.Text).insert(7, "ann")
            two.get("text", type=pycrdt.Text).insert(7, "bob")
            await reached(ann, 3)
            await reached(bob, 3)
            assert text(one) == text(two)
            assert sorted(text(one).removeprefix("before ").replace("bob", "b")) == list("abnn")
        two.get("text", type=pycrdt.Text).insert(0, "unbound")
        assert bob.unsaved_count == 0
    # What is stored is a Yjs document of its own right.
    three: pycrdt.Doc[Any] = pycrdt.Doc()
    async with connect(router.url) as late, late.document("plan", "yjs") as document:
        with YjsBinding(document, three):
            assert text(three) == text(one)


async def test_what_is_no_yjs_update_is_refused_and_harms_nobody(router: RouterProcess) -> None:
    async with pair(router.url, "yjs") as (ann, bob):
        with pytest.raises((RefusedError, MalformedMessageError)):
            await ann.change(b"no update")
        doc: pycrdt.Doc[Any] = pycrdt.Doc()
        doc.get("text", type=pycrdt.Text).insert(0, "x")
        assert await ann.change(doc.get_update()) == 1
        await reached(bob, 1)


async def test_a_document_of_another_kind_is_refused(router: RouterProcess) -> None:
    async with connect(router.url) as client:
        async with client.document("plan", "json") as document:
            await document.change({"a": 1})
        with pytest.raises(RefusedError, match="kind"):
            await client.document("plan", "bytes").__aenter__()


async def test_a_second_connection_with_the_same_id_displaces_the_first(
    router: RouterProcess,
) -> None:
    async with connect(router.url, client="me") as first:
        await first.online()
        async with connect(router.url, client="me") as second:
            await second.online()
            async with asyncio.timeout(WAIT_S):
                async for status in first.statuses():
                    if status is LinkStatus.CLOSED:
                        break
            with pytest.raises(LinkClosedError, match="same client id"):
                await first.online()
            assert second.status is LinkStatus.ONLINE


@pytest.mark.parametrize("policy", ["clean", "intent", "resume"])
async def test_what_was_missed_while_away_is_there_on_return(
    router: RouterProcess, policy: str
) -> None:
    async with pair(router.url, policy=policy) as (ann, bob):
        await ann.change({"a": 1})
        await reached(bob, 1)
        drop(bob)
        own = bob.change({"b": 2})
        await ann.change({"c": 3})
        assert await own.saved > 1
        await reached(ann, 3)
        await reached(bob, 3)
        assert ann.state == bob.state == {"a": 1, "b": 2, "c": 3}


async def test_offline_work_is_sent_when_online_again(router: RouterProcess) -> None:
    async with (
        connect(router.url) as one,
        connect(router.url) as two,
        one.document("plan") as ann,
        two.document("plan") as bob,
    ):
        await one.go_offline()
        own = [ann.change({"n": {str(n): n}}) for n in range(300)]
        assert ann.status is DocumentStatus.OFFLINE
        await bob.change({"bob": 1})
        one.go_online()
        for change in own:
            await change.saved
        await reached(bob, 301)
        assert bob.state == ann.state == {"bob": 1, "n": {str(n): n for n in range(300)}}


async def test_a_reader_that_falls_behind_gets_the_state(router: RouterProcess) -> None:
    async with (
        connect(router.url) as one,
        connect(router.url) as two,
        one.document("plan") as ann,
        two.document("plan", change_count_max=4) as bob,
    ):
        slow = aiter(bob)
        for n in range(20):
            await ann.change({"n": n})
        await reached(bob, 20)
        assert await anext(slow) == Replaced(20, {"n": 19}, "missed")


# ----------------------------------------------------------------------------- the router is killed


async def killed_and_back(router: RouterProcess) -> RouterProcess:
    """On the same port and folder."""
    port = router.url.rpartition(":")[2]
    await asyncio.to_thread(router.kill)
    return await asyncio.to_thread(RouterProcess, router.folder, "--port", port)


async def test_nothing_saved_is_lost_when_the_router_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "data") as first:
        async with pair(first.url, attempt_count_max=1_000) as (ann, bob):
            own = []
            for n in range(100):
                own.append(ann.change({"ann": {str(n): n}}))
                own.append(bob.change({"bob": {str(n): n}}))
                if n == 50:
                    await own[20].saved  # so that there is something to lose
            saved_before = [change for change in own if change.saved.is_stored]
            second = await killed_and_back(first)
            try:
                for change in own:
                    async with asyncio.timeout(WAIT_S):
                        await change.saved
                await reached(ann, 200)
                await reached(bob, 200)
                assert saved_before
                numbers = {str(n): n for n in range(100)}
                assert ann.state == bob.state == {"ann": numbers, "bob": numbers}
                assert (ann.seq, bob.seq) == (200, 200)  # each stored once
            finally:
                await asyncio.to_thread(second.close)


async def test_docs_of_pycrdt_converge_after_the_router_is_killed(tmp_path: Path) -> None:
    one: pycrdt.Doc[Any] = pycrdt.Doc()
    two: pycrdt.Doc[Any] = pycrdt.Doc()
    with running(tmp_path / "data") as first:
        async with pair(first.url, "yjs", attempt_count_max=1_000) as (ann, bob):
            with YjsBinding(ann, one), YjsBinding(bob, two):
                for n in range(20):
                    one.get("text", type=pycrdt.Text).insert(0, f"a{n} ")
                await reached(bob, 5)
                restart = asyncio.create_task(killed_and_back(first))
                for n in range(20):
                    two.get("text", type=pycrdt.Text).insert(0, f"b{n} ")
                    await asyncio.sleep(0)
                second = await restart
                try:
                    await reached(ann, 40)
                    await reached(bob, 40)
                    assert text(one) == text(two)
                    words = {f"{who}{n}" for who in "ab" for n in range(20)}
                    assert set(text(one).split()) == words
                finally:
                    await asyncio.to_thread(second.close)


def drop(document: Document) -> None:
    """Cut the wire, without a word to the router."""
    cut = document._engine.cut
    assert cut is not None
    cut("", "")


# ------------------------------------------------------------------------------------------- tokens

SECRET = "a secret of thirty-two characters or more"


def token(seconds: float, **access: str) -> str:
    """For documents by name; the name `any` stands for all."""
    allowed = [
        {"pattern": "**" if name == "any" else name, "access": right}
        for name, right in access.items()
    ]
    claims = {"sub": "ann", "exp": time.time() + seconds, "documents": allowed}
    return jwt.encode(claims, SECRET, algorithm="HS256")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RouterProcess]:
    with running(tmp_path / "data", SYNCLINE_DOCUMENTS_TOKEN_KEY=SECRET) as router:
        yield router


async def test_without_a_token_nothing_opens(guarded: RouterProcess) -> None:
    async with connect(guarded.url) as client:
        with pytest.raises(NotAuthorizedError):
            await client.document("plan").__aenter__()
        assert client.status is LinkStatus.CLOSED


async def test_a_token_says_what_may_be_read_and_written(guarded: RouterProcess) -> None:
    writer = connect(guarded.url, token=token(600, plan="write"))
    async with writer as client, client.document("plan") as plan:
        await plan.change({"a": 1})
    async with connect(guarded.url, token=token(600, plan="read")) as client:
        async with client.document("plan") as plan:
            assert plan.state == {"a": 1}
            with pytest.raises(NotAuthorizedError, match="writing"):
                plan.change({"a": 2})
        with pytest.raises(NotAuthorizedError):
            await client.document("other").__aenter__()


async def test_a_client_of_yjs_may_bring_its_token_as_its_only_subprotocol(
    guarded: RouterProcess,
) -> None:
    given = token(600, plan="read")
    offered = Subprotocol(f"syncline.token.{given}")
    url = guarded.url.replace("http", "ws") + "/yjs/plan"
    async with open_websocket(url, subprotocols=[offered]) as socket, asyncio.timeout(WAIT_S):
        assert socket.subprotocol == offered
        with pytest.raises(ConnectionClosed, match="4404"):  # It may read what is not there.
            await socket.recv()
    assert given not in guarded.errors.read_text()


async def test_a_token_is_renewed_before_it_expires(guarded: RouterProcess) -> None:
    given: list[str] = []

    async def fresh() -> str:
        given.append(token(4 if len(given) < 2 else 600, any="write"))
        return given[-1]

    async with connect(guarded.url, token=fresh) as client, client.document("plan") as document:
        statuses: list[DocumentStatus] = []
        while len(given) < 3:
            await asyncio.sleep(0.1)
            statuses.append(document.status)
        assert await document.change({"a": 1}) == 1
        assert set(statuses) == {DocumentStatus.LIVE}
