"""Yjs clients that others wrote, unmodified, on a real router: `y-websocket`, `@y-rb/actioncable`
over `@rails/actioncable`, `@anycable/core`, and the provider of `pycrdt` over `pycrdt-websocket`.

Processes are what costs time here: tests share a router where they can, each with documents of its
own, and one pair of clients goes through several scenes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx_ws
import pycrdt
import pytest
from pycrdt.websocket.websocket import HttpxWebsocket

from tests.e2e.router_process import RouterProcess, running
from tests.interop.npm_clients import (
    CLIENTS,
    WAIT_SECONDS,
    install,
    npm_clients,
    shared_folder,
)

pytestmark = pytest.mark.timeout(180)

KINDS = ["y-websocket", "actioncable"]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    install(CLIENTS, shared_folder(tmp_path_factory))


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with running(tmp_path_factory.mktemp("router") / "data") as started:
        yield started


def address(router: RouterProcess, kind: str) -> str:
    path = "/yjs" if kind == "y-websocket" else "/cable"
    return router.url.replace("http", "ws") + path


def restarted(router: RouterProcess) -> RouterProcess:
    port = router.url.rpartition(":")[2]
    return RouterProcess(router.folder, "--port", port)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_converge_see_one_another_and_catch_up(router: RouterProcess, kind: str) -> None:
    url, name = address(router, kind), f"{kind}/1"
    with npm_clients(kind, url, name, 2) as (one, two):
        one.insert(0, "hello")
        two.wait_for_text("hello")
        two.insert(5, " wörld")
        one.wait_for_text("hello wörld")
        one.say(delete=[0, 6])
        two.wait_for_text("wörld")
        # Edits made offline arrive later, on both sides, and so does who is present.
        one.say(show={"name": "one"})
        two.wait_for(lambda: {"name": "one"} in two.present)
        one.say(disconnect=True)
        two.wait_for(lambda: {"name": "one"} not in two.present)
        one.insert(5, " offline")
        two.insert(0, "live ")
        one.say(connect=True)
        for client in (one, two):
            client.wait_for_text("live wörld offline")
        two.wait_for(lambda: {"name": "one"} in two.present)
        # A newcomer gets what was written before, and sees who was there.
        with npm_clients(kind, url, name, 1) as (three,):
            three.wait_for_text("live wörld offline")
            three.wait_for(lambda: {"name": "one"} in three.present)
            three.say(show={"name": "three"})
            one.wait_for(lambda: {"name": "three"} in one.present)
        # Its process was killed: nobody said goodbye but the router.
        one.wait_for(lambda: {"name": "three"} not in one.present)


def test_both_faces_lead_to_the_same_document(router: RouterProcess) -> None:
    with (
        npm_clients("y-websocket", address(router, "y-websocket"), "shared", 1) as (one,),
        npm_clients("actioncable", address(router, "actioncable"), "shared", 1) as (two,),
    ):
        one.insert(0, "from one ")
        two.wait_for_text("from one ")
        two.insert(9, "and two")
        one.wait_for_text("from one and two")
        one.say(show={"name": "one"})
        two.wait_for(lambda: {"name": "one"} in two.present)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_when_the_router_is_killed(tmp_path: Path, kind: str) -> None:
    router = RouterProcess(tmp_path / "data")
    try:
        with npm_clients(kind, address(router, kind), "d", 2) as (one, two):
            one.insert(0, "before ")
            two.wait_for_text("before ")
            router.kill()
            one.insert(7, "meanwhile ")
            two.insert(0, "also ")
            router.close()
            router = restarted(router)
            for client in (one, two):
                client.wait_for_text("also before meanwhile ")
        with npm_clients(kind, address(router, kind), "d", 1) as (three,):
            three.wait_for_text("also before meanwhile ")
    finally:
        router.close()


def head(router: RouterProcess, name: str) -> int:
    found: int = router.client.get(f"/api/documents/{name}").json().get("head", 0)
    return found


def test_a_large_document_is_loaded_whole(router: RouterProcess) -> None:
    url = address(router, "y-websocket")
    with npm_clients("y-websocket", url, "large", 1) as (one,):
        # What is written before that goes to the router as one update.
        one.wait_for_event("synced")
        for part in range(20):
            one.insert(0, chr(97 + part) * 40_000)
        one.wait_for(lambda: head(router, "large") >= 20)
        expected = one.text
        assert len(expected) == 800_000
        with npm_clients("y-websocket", url, "large", 1) as (two,):
            two.wait_for_text(expected)


def test_offsets_bring_what_a_client_of_the_extended_protocol_missed(
    router: RouterProcess,
) -> None:
    """This client never sends step 1: what it has came as an update or by its history."""
    with (
        npm_clients("y-websocket", address(router, "y-websocket"), "tape", 1) as (one,),
        npm_clients("anycable", address(router, "anycable"), "tape", 1) as (two,),
    ):
        two.wait_for_event("connected")
        one.insert(0, "a")
        two.wait_for_text("a")
        two.insert(1, "b")
        one.wait_for_text("ab")
        assert two.offsets == [1], "its own update is not told again"
        two.say(disconnect=True)
        two.wait_for_event("disconnected")
        one.insert(2, "c")
        one.insert(3, "d")
        one.wait_for(lambda: head(router, "tape") == 4)
        assert two.text == "ab"
        two.say(connect=True)
        two.wait_for_text("abcd")
        two.wait_for_event("history_received")
        assert two.offsets == [1, 2, 3, 4], "everything above the position that it came with"


@asynccontextmanager
async def provided(doc: "pycrdt.Doc[Any]", url: str) -> AsyncIterator[None]:
    socket: httpx_ws.AsyncWebSocketSession
    async with (
        httpx_ws.aconnect_ws(url) as socket,
        pycrdt.Provider(doc, HttpxWebsocket(socket, url)) as provider,
    ):
        async with asyncio.timeout(WAIT_SECONDS):
            await provider.synced.wait()
        yield


async def test_the_provider_of_pycrdt_converges_with_a_client_from_npm(
    router: RouterProcess,
) -> None:
    url = address(router, "y-websocket")
    with npm_clients("y-websocket", url, "python", 1) as (one,):
        one.insert(0, "hello")
        await asyncio.to_thread(one.wait_for, lambda: head(router, "python") == 1)
        doc: pycrdt.Doc[Any] = pycrdt.Doc()
        text = doc.get("t", type=pycrdt.Text)
        async with provided(doc, f"{url}/python"):
            assert str(text) == "hello"
            text += " wörld"
            await asyncio.to_thread(one.wait_for_text, "hello wörld")
            changed = asyncio.Event()
            text.observe(lambda _: changed.set())
            one.say(delete=[0, 6])
            async with asyncio.timeout(WAIT_SECONDS):
                await changed.wait()
            assert str(text) == "wörld"
        # What is written without a connection arrives with the next one.
        text += " offline"
        async with provided(doc, f"{url}/python"):
            await asyncio.to_thread(one.wait_for_text, "wörld offline")
