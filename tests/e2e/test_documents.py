"""Documents over real sockets on a real router: durable before told, also across kill -9."""

import base64
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pycrdt import Array, Doc
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.e2e.router_process import RouterProcess, run_cli, running

pytestmark = pytest.mark.timeout(120)

WAIT_SECONDS = 60.0


class SyncSocket:
    """One connection to `/sync`, in JSON or MessagePack."""

    def __init__(self, socket: ClientConnection, encoding: str, client: str) -> None:
        self._socket = socket
        self._encoding = encoding
        self.say(type="hello", client=client, version=1)
        assert self.hear()["type"] == "welcome"

    def say(self, **message: Any) -> None:
        if self._encoding == "json":
            self._socket.send(json.dumps(message))
        else:
            self._socket.send(msgspec.msgpack.encode(message))

    def hear(self, *types: str) -> dict[str, Any]:
        """The next message, or the next of these types."""
        while True:
            data = self._socket.recv(timeout=WAIT_SECONDS)
            message: dict[str, Any] = (
                json.loads(data) if isinstance(data, str) else msgspec.msgpack.decode(data)
            )
            if not types or message["type"] in types:
                return message

    def subscribe(self, document: str, **fields: Any) -> dict[str, Any]:
        self.say(type="subscribe", document=document, **fields)
        return self.hear("subscribed", "error", "unsubscribed")

    def mutate(self, document: str, clock: int, mutation: Any) -> None:
        self.say(type="mutation", document=document, epoch=1, clock=clock, mutation=mutation)


@contextmanager
def sync(router: RouterProcess, client: str, encoding: str = "json") -> Iterator[SyncSocket]:
    url = router.url.replace("http", "ws") + "/sync"
    subprotocol = Subprotocol(f"syncline.v1.{encoding}")
    with connect(url, subprotocols=[subprotocol], compression=None, max_size=None) as socket:
        assert socket.subprotocol == subprotocol
        yield SyncSocket(socket, encoding, client)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with running(tmp_path / "data") as started:
        yield started


def test_json_and_msgpack_clients_share_a_document(router: RouterProcess) -> None:
    with sync(router, "a") as one, sync(router, "b", "msgpack") as two:
        for socket in (one, two):
            assert socket.subscribe("plans/home")["kind"] == "json"
        one.mutate("plans/home", 1, {"door": {"x": 1, "y": 2}})
        assert one.hear("ack")["seq"] == 1
        assert two.hear("mutation")["mutation"] == {"door": {"x": 1, "y": 2}}
        two.mutate("plans/home", 1, {"door": {"y": None, "z": 3}})
        assert one.hear("mutation")["mutation"] == {"door": {"y": None, "z": 3}}
    with sync(router, "c") as three:
        three.subscribe("plans/home")
        assert three.hear("state")["state"] == {"door": {"x": 1, "z": 3}}


def test_yjs_documents_over_sync(router: RouterProcess) -> None:
    doc: Doc[Any] = Doc()
    doc.get("list", type=Array).append("x")
    update = doc.get_update()
    with sync(router, "a") as one, sync(router, "b", "msgpack") as two:
        one.subscribe("d", kind="yjs")
        two.subscribe("d", kind="yjs")
        one.mutate("d", 1, base64.b64encode(update).decode())
        assert two.hear("mutation")["mutation"] == update
    with sync(router, "c", "msgpack") as three:
        three.subscribe("d", kind="yjs")
        found: Doc[Any] = Doc()
        found.apply_update(three.hear("state")["state"])
        assert found.get("list", type=Array).to_py() == ["x"]


def test_documents_of_bytes(router: RouterProcess) -> None:
    with sync(router, "a", "msgpack") as one:
        one.subscribe("d", kind="bytes")
        for clock in (1, 2):
            one.mutate("d", clock, bytes([clock]) * 3)
        while one.hear("ack")["clock"] < 2:
            pass
    with sync(router, "b") as two:
        two.subscribe("d", kind="bytes")
        assert two.hear("state")["state"] == ["AQEB", "AgIC"]


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, seed: int) -> None:
    """Also what others were sent: they may have built on it."""
    chance = random.Random(seed)
    acked, seen = 0, 0
    clock = 0
    for _ in range(4):
        with running(tmp_path / "data") as router, sync(router, "w") as writer:
            known = writer.subscribe("d")["clock"]
            assert known >= acked, "an acknowledged mutation is gone"
            with sync(router, "r") as reader:
                reader.subscribe("d")
                state = reader.hear("state")["state"]
                for kept in range(1, max(acked, seen) + 1):
                    assert state[f"k{kept}"] == kept
                last = clock + chance.randrange(20, 200)
                kill_at = chance.randrange(clock + 1, last + 1)
                # Those that nobody acknowledged are sent again: they are stored once.
                for each in range(known + 1, last + 1):
                    writer.mutate("d", each, {f"k{each}": each, "last": each})
                clock = last
                try:
                    while acked < kill_at:
                        acked = writer.hear("ack")["clock"]
                    while seen < kill_at:
                        seen = reader.hear("mutation")["clock"]
                finally:
                    router.kill()
                with suppress(ConnectionClosed):
                    # What was on its way counts as well.
                    while True:
                        acked = writer.hear("ack")["clock"]


def test_sequences_go_on_after_a_stop(tmp_path: Path) -> None:
    with running(tmp_path / "data") as router:
        with sync(router, "w") as writer:
            first = writer.subscribe("d")
            writer.mutate("d", 1, {"a": 1})
            writer.hear("ack")
        assert router.stop() == 0
    with running(tmp_path / "data") as router, sync(router, "r") as reader:
        position = {"incarnation": first["incarnation"], "seq": 0}
        again = reader.subscribe("d", **{"from": position})
        assert (again["resumed"], again["incarnation"]) == (True, first["incarnation"])
        assert reader.hear("mutation")["seq"] == 1


def test_going_away_is_said(router: RouterProcess) -> None:
    with sync(router, "a") as one:
        one.subscribe("d")
        one.hear("state")
        assert router.stop() == 0
        with pytest.raises(ConnectionClosed) as ended:
            one.hear()
    assert ended.value.rcvd is not None
    assert ended.value.rcvd.code == 1001


def test_an_operator_sees_and_deletes_a_document(router: RouterProcess) -> None:
    with sync(router, "a") as one:
        one.subscribe("plans/home")
        one.mutate("plans/home", 1, {"x": 1})
        one.hear("ack")
        listed = router.client.get("/api/documents").json()
        assert [each["name"] for each in listed["documents"]] == ["plans/home"]
        shown = router.client.get("/api/documents/plans/home").json()
        assert [each["client"] for each in shown["connections"]] == ["a"]
        state = router.client.get("/api/documents/plans/home?view=state").json()
        assert (state["seq"], state["state"]) == (1, {"x": 1})
        assert "syncline_documents_open 1.0" in router.client.get("/metrics").text
        assert router.client.delete("/api/documents/plans/home").status_code == 204
        assert one.hear("unsubscribed")["code"] == "deleted"
        again = one.subscribe("plans/home")
        assert (again["seq"], again["epoch"]) == (0, 2)
    assert router.client.delete("/api/documents/nothing").status_code == 404


def test_a_backup_holds_the_documents(tmp_path: Path) -> None:
    with running(tmp_path / "data") as router, sync(router, "a") as one:
        known = one.subscribe("d")
        one.mutate("d", 1, {"x": 1})
        one.hear("ack")
        copied = run_cli("backup", "--url", router.url, str(tmp_path / "copy"))
        assert copied.returncode == 0, copied.stderr
    restored = run_cli("restore", str(tmp_path / "copy"), str(tmp_path / "again"))
    assert restored.returncode == 0, restored.stderr
    with running(tmp_path / "again") as router, sync(router, "b") as two:
        # It has the sequences of the other one and may soon have other updates under them.
        position = {"incarnation": known["incarnation"], "seq": 1}
        assert two.subscribe("d", **{"from": position})["resumed"] is False
        assert two.hear("state")["state"] == {"x": 1}
