"""All documents of a store, page by page; and how many connections there are."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from syncline.errors import CorruptionError, MalformedMessageError
from syncline.server.document_api import DocumentApi
from syncline.storage.base import StreamKind, StreamState
from syncline.storage.documents import stream_of
from syncline.values.ids import StreamId
from tests.unit.server.documents_rig import DocumentsRig, identifier, open_memory

NAMES = [f"plans/{number}" for number in range(7)]


@pytest.fixture
async def rig() -> AsyncIterator[DocumentsRig]:
    made = DocumentsRig(open_memory())
    yield made
    await made.committer.close()


async def pages(rig: DocumentsRig, count: int) -> list[list[dict[str, Any]]]:
    api = DocumentApi(rig.clock, RuntimeError)
    api.attach(rig.documents, rig.committer)
    transport = httpx.ASGITransport(app=Starlette(routes=list(api.routes())))
    found: list[list[dict[str, Any]]] = []
    after: str | None = ""
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        while after is not None:
            query: dict[str, str | int] = {"view": "stored", "count": count}
            if after:
                query["after"] = after
            answer = (await client.get("/api/documents", params=query)).json()
            found.append(answer["documents"])
            after = answer["after"]
    return found


async def test_a_view_that_does_not_exist_is_refused_and_not_taken_for_another(
    rig: DocumentsRig,
) -> None:
    api = DocumentApi(rig.clock, RuntimeError)
    api.attach(rig.documents, rig.committer)
    rig.subscribed("a", NAMES[0], kind="json")
    transport = httpx.ASGITransport(app=Starlette(routes=list(api.routes())))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        for path in ("/api/documents?view=store", f"/api/documents/{NAMES[0]}?view=stored"):
            with pytest.raises(MalformedMessageError, match="or is left out"):
                await client.get(path)


async def test_every_document_is_listed_once_whether_or_not_it_is_open(rig: DocumentsRig) -> None:
    for name in NAMES:
        client = rig.subscribed("a", name, kind="json")
        client.mutate(1, {"n": 1}, name)
        await rig.settle()
        client.drop()
    await rig.tick(60_000)
    await rig.tick(1_000)
    assert len(rig.documents) == 0
    rig.subscribed("b", NAMES[0])
    rig.store.create(StreamId(b"q" * 24), StreamKind.QUEUE, 5, 1)
    await rig.settle()
    found = await pages(rig, 3)
    assert [len(page) for page in found] == [3, 3, 1]
    lines = [line for page in found for line in page]
    assert [line["stream"] for line in lines] == sorted(
        (str(stream_of(name)) for name in NAMES), key=lambda text: bytes(StreamId.parse(text))
    )
    by_name = {line["name"]: line for line in lines}
    assert sorted(by_name) == NAMES
    first = by_name[NAMES[0]]
    assert (first["is_open"], first["readers"], first["kind"], first["head"]) == (
        True,
        1,
        "json",
        1,
    )
    assert not any(by_name[name]["is_open"] for name in NAMES[1:])


async def test_a_document_of_which_nothing_is_durable_is_listed_by_its_name(
    rig: DocumentsRig,
) -> None:
    rig.subscribed("a", "new", kind="json")
    assert [line["name"] for line in (await pages(rig, 10))[0]] == ["new"]


async def test_a_stream_that_cannot_be_read_does_not_hide_the_others(
    rig: DocumentsRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES[:3]:
        rig.subscribed("a", name, kind="json")
    await rig.settle()
    state = rig.store.state

    def damaged(stream: StreamId) -> StreamState:
        if stream == stream_of(NAMES[1]):
            raise CorruptionError("table", 0, "a slot fails its checksum")
        return state(stream)

    monkeypatch.setattr(rig.store, "state", damaged)
    page, unreadable = await rig.documents.page(None, 10)
    assert {document.name for document, _ in page} == {NAMES[0], NAMES[2]}
    assert unreadable == [stream_of(NAMES[1])]
    assert [len(each) for each in await pages(rig, 10)] == [2]


async def test_connections_are_counted_not_their_subscriptions(rig: DocumentsRig) -> None:
    cable = rig.cable_joined(identifier("a"), identifier("b"))
    sync = rig.connect("s")
    for name in "ab":
        sync.subscribe(name)
    yjs = rig.yjs_joined("a")
    assert rig.documents.connection_count == 3
    cable.command("unsubscribe", identifier("a"))
    assert rig.documents.connection_count == 3
    for client in (cable, sync, yjs):
        client.drop()
    assert rig.documents.connection_count == 0
