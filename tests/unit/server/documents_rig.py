"""A router without sockets: the document hub and its `/sync` face, with clients that keep what
they are sent."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec import json

from syncline.server.committer import Committer
from syncline.server.documents import Documents
from syncline.server.faces import Accepted, Upgrade
from syncline.server.open_document import DocumentOptions
from syncline.server.sessions import Sessions
from syncline.server.sync_face import SyncConnection, SyncFace, SyncSettings
from syncline.storage.base import Store
from syncline.testing.clock import ManualClock

KEEP_MS = 60_000


class AllowAll:
    subject: str | None = None
    expires_ms: int | None = None

    def may_read(self, document: str) -> bool:
        return True

    def may_write(self, document: str) -> bool:
        return True


class FakePeer:
    """A socket that can be stopped up."""

    remote = "127.0.0.1"
    waiting_bytes = 0

    def __init__(self) -> None:
        self.is_writable = True
        self.is_paused = False
        self.payloads: list[bytes] = []
        self.closed_with: tuple[int, str] | None = None

    def send(self, payload: bytes, *, is_text: bool) -> None:
        self.payloads.append(payload)

    def send_framed(self, frames: bytes) -> None:
        while frames:
            length, start = frames[1], 2
            if length == 126:
                length, start = int.from_bytes(frames[2:4], "big"), 4
            elif length == 127:
                length, start = int.from_bytes(frames[2:10], "big"), 10
            self.payloads.append(frames[start : start + length])
            frames = frames[start + length :]

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self, code: int, reason: str = "") -> None:
        self.closed_with = (code, reason)

    def abort(self) -> None:
        self.closed_with = (1006, "")


class Client:
    """The other end of one connection to `/sync`, in JSON."""

    def __init__(self, handler: SyncConnection, client: str, **hello: Any) -> None:
        self.handler = handler
        self.peer = FakePeer()
        handler.opened(self.peer)
        self.say("hello", **{"client": client, "version": 1, **hello})

    def say(self, type: str, **fields: Any) -> None:
        if "since" in fields:
            fields["from"] = fields.pop("since")
        self.handler.received(json.encode({"type": type, **fields}), is_text=True)

    def subscribe(self, document: str = "d", **fields: Any) -> None:
        self.say("subscribe", document=document, **fields)

    def mutate(self, clock: int, mutation: Any, document: str = "d", epoch: int = 1) -> None:
        self.say("mutation", document=document, epoch=epoch, clock=clock, mutation=mutation)

    def ack(self, seq: int, document: str = "d", epoch: int = 1) -> None:
        self.say("ack", document=document, epoch=epoch, seq=seq)

    def take(self, *types: str) -> list[dict[str, Any]]:
        """What it was sent since the last time, of these types or of all."""
        payloads, self.peer.payloads = self.peer.payloads, []
        messages = [json.decode(payload) for payload in payloads]
        return [each for each in messages if not types or each["type"] in types]

    def drop(self) -> None:
        self.handler.closed(1006, "")

    def stop_reading(self) -> None:
        self.peer.is_writable = False

    def read_on(self) -> None:
        self.peer.is_writable = True
        self.handler.drained()


class DocumentsRig:
    def __init__(
        self,
        store: Store,
        options: DocumentOptions | None = None,
        settings: SyncSettings | None = None,
        authorize: Callable[[str | None], Any] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.store = store
        self.committer = Committer.on_thread(store)
        numbers = count(1)

        def random_bytes(size: int) -> bytes:
            return next(numbers).to_bytes(size, "big")

        self.documents = Documents(store, self.committer, self.clock, random_bytes, options)
        self.sessions = Sessions(self.clock, KEEP_MS)
        self.face = SyncFace(
            self.documents,
            self.sessions,
            authorize or (lambda token: AllowAll()),
            lambda upgrade: None,
            random_bytes,
            self.clock,
            settings,
        )

    def connect(self, client: str, **hello: Any) -> Client:
        accepted = self.face.accept(Upgrade("/sync"))
        assert isinstance(accepted, Accepted)
        assert isinstance(accepted.handler, SyncConnection)
        return Client(accepted.handler, client, **hello)

    def subscribed(self, client: str, document: str = "d", **fields: Any) -> Client:
        """Connected, subscribed, and told so."""
        connected = self.connect(client)
        connected.subscribe(document, **fields)
        assert [each["type"] for each in connected.take()][:2] == ["welcome", "subscribed"]
        return connected

    async def settle(self) -> None:
        """Until everything staged is durable and has been told."""
        for _ in range(5):
            await self.committer.durable()
            await asyncio.sleep(0)

    async def tick(self, duration_ms: int) -> None:
        """Let time pass, and do the upkeep that is due then."""
        self.clock.advance(duration_ms)
        self.documents.tend_all()
        await self.settle()
