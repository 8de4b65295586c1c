"""Yjs clients from npm, unmodified, on a real router: `y-websocket`, and `@y-rb/actioncable` over
`@rails/actioncable`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.router_process import RouterProcess, running
from tests.interop.npm_clients import CLIENTS, NpmClient, install, npm_clients, shared_folder

pytestmark = pytest.mark.timeout(180)

KINDS = ["y-websocket", "actioncable"]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    install(CLIENTS, shared_folder(tmp_path_factory))


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with running(tmp_path / "data") as started:
        yield started


def address(router: RouterProcess, kind: str) -> str:
    path = "/yjs" if kind == "y-websocket" else "/cable"
    return router.url.replace("http", "ws") + path


def restarted(router: RouterProcess) -> RouterProcess:
    port = router.url.rpartition(":")[2]
    return RouterProcess(router.folder, "--port", port)


@pytest.mark.parametrize("kind", KINDS)
def test_two_clients_converge(router: RouterProcess, kind: str) -> None:
    with npm_clients(kind, address(router, kind), "notes/1", 2) as (one, two):
        one.insert(0, "hello")
        two.wait_for_text("hello")
        two.insert(5, " wörld")
        one.wait_for_text("hello wörld")
        one.say(delete=[0, 6])
        two.wait_for_text("wörld")


@pytest.mark.parametrize("kind", KINDS)
def test_a_newcomer_gets_what_was_written_before(router: RouterProcess, kind: str) -> None:
    with npm_clients(kind, address(router, kind), "d", 1) as (one,):
        one.insert(0, "a" * 1_000)
        with npm_clients(kind, address(router, kind), "d", 1) as (two,):
            two.wait_for_text("a" * 1_000)


def test_both_faces_lead_to_the_same_document(router: RouterProcess) -> None:
    with (
        npm_clients("y-websocket", address(router, "y-websocket"), "d", 1) as (one,),
        npm_clients("actioncable", address(router, "actioncable"), "d", 1) as (two,),
    ):
        one.insert(0, "from one ")
        two.wait_for_text("from one ")
        two.insert(9, "and two")
        one.wait_for_text("from one and two")
        one.say(show={"name": "one"})
        two.wait_for(lambda: {"name": "one"} in two.present)


@pytest.mark.parametrize("kind", KINDS)
def test_awareness_comes_and_goes(router: RouterProcess, kind: str) -> None:
    url = address(router, kind)
    with npm_clients(kind, url, "d", 1) as (one,):
        one.say(show={"name": "one"})
        with npm_clients(kind, url, "d", 1) as (two,):
            two.wait_for(lambda: {"name": "one"} in two.present)
            two.say(show={"name": "two"})
            one.wait_for(lambda: {"name": "two"} in one.present)
        # Its process was killed: nobody said goodbye but the router.
        one.wait_for(lambda: {"name": "two"} not in one.present)


def wait_until_stored(
    router: RouterProcess, name: str, update_count: int, client: NpmClient
) -> None:
    client.wait_for(
        lambda: router.client.get(f"/api/documents/{name}").json().get("head", 0) >= update_count
    )


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


@pytest.mark.parametrize("kind", KINDS)
def test_edits_made_offline_arrive_later(router: RouterProcess, kind: str) -> None:
    with npm_clients(kind, address(router, kind), "d", 2) as (one, two):
        one.insert(0, "x")
        two.wait_for_text("x")
        one.say(disconnect=True)
        one.insert(1, "offline")
        two.insert(0, "live ")
        one.say(connect=True)
        for client in (one, two):
            client.wait_for_text("live xoffline")


def test_a_large_document_is_loaded_whole(router: RouterProcess) -> None:
    url = address(router, "y-websocket")
    with npm_clients("y-websocket", url, "d", 1) as (one,):
        for part in range(20):
            one.insert(0, chr(97 + part) * 40_000)
        wait_until_stored(router, "d", 20, one)
        expected = one.text
        assert len(expected) == 800_000
        with npm_clients("y-websocket", url, "d", 1) as (two,):
            two.wait_for_text(expected)
