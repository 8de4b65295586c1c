"""The HTTP face, without a socket: statuses, bodies, limits and who may ask."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator

import pytest

from syncline.errors import StoreBusyError, StoreFullError
from syncline.server.api import Api
from syncline.server.health import Stage
from syncline.server.settings import Settings
from tests.unit.server.conftest import Rig

TOKEN = "a-token-that-is-long"
UNKNOWN = "A" * 32


async def test_a_message_goes_in_and_out(rig: Rig) -> None:
    client = rig.client()
    created = await client.post("/api/queues", json={})
    assert created.status_code == 201
    path = f"/api/queues/{created.json()['queue']}"
    appended = await client.post(f"{path}/messages", content=b"\x00\xffhello")
    assert (appended.status_code, appended.json()) == (201, {"seq": 1})
    found = (await client.get(f"{path}/messages")).json()["messages"]
    assert found == [
        {
            "seq": 1,
            "time_ms": rig.now_ms,
            "kind": "message",
            "body": b64encode(b"\x00\xffhello").decode(),
        }
    ]
    acknowledged = await client.post(f"{path}/acknowledge", json={"seq": 1})
    assert (acknowledged.status_code, acknowledged.json()) == (200, {"first": 2})
    assert (await client.get(f"{path}/messages")).json() == {"messages": []}
    described = (await client.get(path)).json()
    assert described == {
        "queue": created.json()["queue"],
        "kind": "queue",
        "first": 2,
        "next": 2,
        "unread": 0,
        "quota": 128,
        "is_blocked": False,
    }
    assert (await client.delete(path)).status_code == 204
    assert (await client.get(path)).status_code == 404


async def test_a_queue_may_be_named(rig: Rig) -> None:
    client = rig.client()
    wanted = {"queue": UNKNOWN, "quota": 7}
    assert (await client.post("/api/queues", json=wanted)).json() == {"queue": UNKNOWN}
    again = await client.post("/api/queues", json=wanted)
    assert (again.status_code, again.json()["error"]) == (409, "QUEUE_EXISTS")
    assert (await client.get(f"/api/queues/{UNKNOWN}")).json()["quota"] == 7


async def create(rig: Rig, quota: int = 0) -> str:
    created = await rig.client().post("/api/queues", json={"quota": quota})
    return f"/api/queues/{created.json()['queue']}"


@pytest.mark.parametrize(
    "kind", ["application/octet-stream", "application/json", "Application/JSON; charset=utf-8"]
)
async def test_a_batch_is_one_request(rig: Rig, kind: str) -> None:
    path = await create(rig)
    messages = [b"one", b"", b"three"]
    if "json" in kind.lower():
        body = b'["b25l","","dGhyZWU="]'
    else:
        body = b"".join(len(each).to_bytes(4, "big") + each for each in messages)
    client = rig.client()
    appended = await client.post(
        f"{path}/messages:batch", content=body, headers={"content-type": kind}
    )
    assert (appended.status_code, appended.json()) == (201, {"first_seq": 1, "count": 3})
    found = (await client.get(f"{path}/messages", params={"from": 2})).json()["messages"]
    assert [b64decode(each["body"]) for each in found] == [b"", b"three"]


async def test_a_batch_that_meets_the_quota_says_how_far_it_came(rig: Rig) -> None:
    path = await create(rig, quota=2)
    answer = await rig.client().post(
        f"{path}/messages:batch",
        json=["AA==", "AA==", "AA=="],
    )
    assert answer.status_code == 429
    facts = answer.json()
    assert (facts["error"], facts["retriable"]) == ("QUOTA", True)
    assert (facts["first_seq"], facts["count"]) == (1, 2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00",
        b"\x00\x00\x00\x05abc",
        b"\xff\xff\xff\xffabc",
        b"\x00\x00\x00\x01a\x00\x00\x00",
    ],
)
async def test_a_cut_batch_is_refused_as_a_whole(rig: Rig, body: bytes) -> None:
    path = await create(rig)
    client = rig.client()
    answer = await client.post(f"{path}/messages:batch", content=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "MALFORMED")
    assert (await client.get(path)).json()["next"] == 1


@pytest.mark.parametrize("body", ["{", '{"seq": 1}', '["not base64!"]', "[1]", "[]"])
async def test_a_json_batch_of_something_else_is_refused(rig: Rig, body: str) -> None:
    path = await create(rig)
    answer = await rig.client().post(
        f"{path}/messages:batch", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400


async def test_large_messages_and_bodies_are_refused(rig: Rig) -> None:
    path = await create(rig)
    client = rig.client()
    assert (await client.post(f"{path}/messages", content=bytes(2_000))).status_code == 201
    for size in (2_001, 8_001, 10_000_000):
        answer = await client.post(f"{path}/messages", content=bytes(size))
        assert (answer.status_code, answer.json()["error"]) == (413, "LIMIT")
        assert answer.headers["connection"] == "close"
    too_large = (2_001).to_bytes(4, "big") + bytes(2_001)
    assert (await client.post(f"{path}/messages:batch", content=too_large)).status_code == 413
    many = b"\x00\x00\x00\x00" * 1_025
    assert (await client.post(f"{path}/messages:batch", content=many)).status_code == 413
    assert (await client.get(path)).json()["next"] == 2


async def test_a_body_without_a_length_is_bounded_all_the_same(rig: Rig) -> None:
    path = await create(rig)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1_000
            yield bytes(1_000)

    answer = await rig.client().post(f"{path}/messages", content=endless())
    assert answer.status_code == 413
    assert sent <= 4_000


@pytest.mark.parametrize("name", ["short", "A" * 31, "A" * 33, "A" * 31 + "!", "A" * 31 + "é"])
async def test_a_queue_id_of_the_wrong_size_is_refused(rig: Rig, name: str) -> None:
    client = rig.client()
    for answer in (
        await client.get(f"/api/queues/{name}"),
        await client.post(f"/api/queues/{name}/messages", content=b"x"),
        await client.post("/api/queues", json={"queue": name}),
    ):
        assert (answer.status_code, answer.json()["error"]) == (400, "MALFORMED")
        assert "queue id" in answer.json()["message"]


async def test_a_queue_that_does_not_exist_is_404_everywhere(rig: Rig) -> None:
    client = rig.client()
    path = f"/api/queues/{UNKNOWN}"
    for answer in (
        await client.get(path),
        await client.delete(path),
        await client.post(f"{path}/messages", content=b"x"),
        await client.post(f"{path}/messages:batch", content=b"\x00\x00\x00\x01x"),
        await client.get(f"{path}/messages"),
        await client.post(f"{path}/acknowledge", json={"seq": 1}),
    ):
        assert (answer.status_code, answer.json()["error"]) == (404, "UNKNOWN_QUEUE")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/queues", '{"quota": -1}'),
        ("/api/queues", '{"quota": 65536}'),
        ("/api/queues", '{"quota": "many"}'),
        ("/api/queues", '{"quoat": 1}'),
        ("/api/queues", "[]"),
        ("/api/queues", "\udcff"),
        ("{queue}/acknowledge", "{}"),
        ("{queue}/acknowledge", '{"seq": 0}'),
        ("{queue}/acknowledge", '{"seq": "1"}'),
        ("{queue}/acknowledge", '{"seq": 1e99}'),
    ],
)
async def test_bodies_that_mean_nothing_are_refused(rig: Rig, path: str, body: str) -> None:
    path = path.replace("{queue}", await create(rig))
    answer = await rig.client().post(path, content=body.encode("utf-8", "surrogateescape"))
    assert (answer.status_code, answer.json()["error"]) == (400, "MALFORMED")


@pytest.mark.parametrize(
    "query", ["from=-1", "from=x", "from=99999999999999999999999", "count=0", "wait_ms=1.5"]
)
async def test_queries_that_mean_nothing_are_refused(rig: Rig, query: str) -> None:
    path = await create(rig)
    answer = await rig.client().get(f"{path}/messages?{query}")
    assert (answer.status_code, answer.json()["error"]) == (400, "MALFORMED")


async def test_acknowledging_the_future_is_a_conflict(rig: Rig) -> None:
    path = await create(rig)
    answer = await rig.client().post(f"{path}/acknowledge", json={"seq": 1})
    assert (answer.status_code, answer.json()["error"]) == (409, "NOT_DELIVERED")


async def test_a_reader_may_wait(rig: Rig) -> None:
    path = await create(rig)
    client = rig.client()
    waiting = asyncio.create_task(client.get(f"{path}/messages", params={"wait_ms": 15_000}))
    await asyncio.sleep(0)
    await client.post(f"{path}/messages", content=b"late")
    found = (await waiting).json()["messages"]
    assert [b64decode(each["body"]) for each in found] == [b"late"]


async def test_lists_are_paged(rig: Rig) -> None:
    client = rig.client()
    made = [(await client.post("/api/queues", json={})).json()["queue"] for _ in range(3)]
    first = (await client.get("/api/queues", params={"count": 2})).json()
    assert first == {"queues": made[:2], "unreadable": [], "after": made[1]}
    last = (await client.get("/api/queues", params={"count": 2, "after": made[1]})).json()
    assert last == {"queues": made[2:], "unreadable": [], "after": None}


async def test_a_full_disk_is_507_and_reading_goes_on(rig: Rig) -> None:
    path = await create(rig)
    client = rig.client()
    await client.post(f"{path}/messages", content=b"x")
    rig.queues.shortage = StoreFullError("data")
    answer = await client.post(f"{path}/messages", content=b"y")
    assert (answer.status_code, answer.json()["error"]) == (507, "STORE_FULL")
    assert answer.json()["retriable"] is True
    assert len((await client.get(f"{path}/messages")).json()["messages"]) == 1
    ready = await client.get("/readyz")
    assert ready.status_code == 503
    assert "free some space" in ready.json()["reasons"][0]


async def test_a_busy_store_is_503(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await create(rig)

    def refuse(*_: object) -> int:
        raise StoreBusyError(2, 1)

    monkeypatch.setattr(rig.store, "append", refuse)
    answer = await rig.client().post(f"{path}/messages", content=b"x")
    assert (answer.status_code, answer.json()["error"]) == (503, "STORE_BUSY")


async def test_a_router_that_drains_takes_no_requests(rig: Rig) -> None:
    path = await create(rig)
    client = rig.client()
    assert (await client.get("/readyz")).json()["ready"] is True
    rig.health.stage = Stage.DRAINING
    assert (await client.get("/healthz")).status_code == 200
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining"])
    answer = await client.post(f"{path}/messages", content=b"x")
    assert (answer.status_code, answer.json()["retriable"]) == (503, True)


async def test_unknown_paths_and_methods_answer_in_json(rig: Rig) -> None:
    client = rig.client()
    nowhere = await client.get("/nowhere")
    assert (nowhere.status_code, nowhere.json()["error"]) == (404, "HTTP")
    wrong = await client.put("/api/queues")
    assert (wrong.status_code, wrong.json()["error"]) == (405, "HTTP")


# Who may ask.


async def test_a_token_is_needed_for_all_but_health(rig: Rig) -> None:
    stranger = rig.client(TOKEN)
    for path in ("/api/queues", "/metrics", "/nowhere", "/api/damage"):
        answer = await stranger.get(path)
        assert (answer.status_code, answer.json()["error"]) == (401, "AUTH")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert (await stranger.get("/healthz")).status_code == 200
    assert (await stranger.get("/readyz")).status_code == 200
    for wrong in (TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ", f"Bearer {TOKEN[:-1]}"):
        answer = await rig.client(TOKEN, authorization=wrong).get("/api/queues")
        assert answer.status_code == 401
    friend = rig.client(TOKEN, authorization=f"Bearer {TOKEN}", host="router.example")
    assert (await friend.get("/api/queues")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://127.0.0.1:8081"},
        {"origin": "https://127.0.0.1:8080"},
        {"origin": "null"},
        {"host": "router.example"},
        {"host": "127.0.0.1.example:8080"},
        {"host": ""},
    ],
)
async def test_pages_of_a_browser_are_not_answered_without_a_token(
    rig: Rig, headers: dict[str, str]
) -> None:
    answer = await rig.client(**headers).post("/api/queues", json={})
    assert (answer.status_code, answer.json()["error"]) == (403, "FOREIGN_ORIGIN")
    assert list(rig.store.streams()) == []


async def test_our_own_pages_are_answered(rig: Rig) -> None:
    client = rig.client(origin="http://127.0.0.1:8080")
    assert (await client.post("/api/queues", json={})).status_code == 201


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "[::1]:8080", "127.0.0.1:1"])
async def test_this_machine_goes_by_many_names(rig: Rig, host: str) -> None:
    assert (await rig.client(host=host).get("/api/queues")).status_code == 200


# What is counted.


async def test_metrics_tell_requests_by_route_and_never_name_a_queue(rig: Rig) -> None:
    path = await create(rig)
    client = rig.client()
    await client.post(f"{path}/messages", content=b"x")
    await client.get("/nowhere/at/all")
    text = (await client.get("/metrics")).text
    wanted = 'syncline_http_requests_total{method="POST",route="/api/queues/{id}/messages"'
    assert wanted + ',status="201"} 1.0' in text
    assert 'route="other",status="404"} 1.0' in text
    assert "syncline_commit_records_total 2.0" in text
    assert "syncline_streams 1.0" in text
    assert path.rsplit("/", 1)[1] not in text


async def test_a_folder_that_cannot_be_is_refused_before_the_backup_begins(rig: Rig) -> None:
    answer = await rig.client().post("/api/backup", json={"folder": "/tmp/a\0b"})
    assert (answer.status_code, answer.json()["error"]) == (400, "MALFORMED")


async def test_nobody_is_told_to_stop_a_router_whose_store_ends_with_it(rig: Rig) -> None:
    answer = await rig.client().post("/api/backup", json={"folder": "/tmp/x"})
    assert answer.status_code == 403
    assert "is gone when the router stops" in answer.json()["message"]


@pytest.mark.parametrize(
    ("settings", "path", "setting"),
    [
        (Settings(documents_enabled=False), "/api/documents", "documents.enabled"),
        (Settings(documents_enabled=False), "/api/documents/plan", "documents.enabled"),
        (Settings(smp_enabled=False), "/api/smp", "smp.enabled"),
        (Settings(smp_enabled=False), "/api/services", "smp.enabled"),
    ],
)
async def test_what_is_switched_off_says_so_and_by_what(
    rig: Rig, settings: Settings, path: str, setting: str
) -> None:
    rig.api = Api(settings, rig.health, rig.metrics, lambda: rig.now_ms)
    refused = await rig.client().get(path)
    assert (refused.status_code, refused.json()["retriable"]) == (403, False)
    assert setting in refused.json()["message"]


async def test_what_is_switched_on_is_not_there_before_the_store_is(rig: Rig) -> None:
    rig.api = Api(Settings(), rig.health, rig.metrics, lambda: rig.now_ms)
    for path in ("/api/documents", "/api/smp", "/api/queues"):
        early = await rig.client().get(path)
        assert (early.status_code, early.json()["retriable"]) == (503, True)
