"""A router without sockets: the document hub and its faces, with clients that keep what they are
sent."""

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable
from itertools import count
from typing import Any

import pycrdt
from msgspec import json

from syncline.server.cable_face import CableConnection, CableFace
from syncline.server.clocks import Clock
from syncline.server.committer import Committer
from syncline.server.documents import Documents
from syncline.server.events import Events
from syncline.server.faces import Accepted, Upgrade
from syncline.server.open_document import DocumentOptions
from syncline.server.sessions import Sessions
from syncline.server.sync_face import SyncConnection, SyncFace, SyncSettings
from syncline.server.yjs_face import YjsConnection, YjsFace
from syncline.server.yjs_rooms import YjsRooms
from syncline.storage.base import NotesEvents, Store
from syncline.storage.files import DiskFiles
from syncline.storage.memory import MemoryStore
from syncline.storage.options import StoreOptions
from syncline.testing.clock import ManualClock
from syncline.values.events import Face
from syncline.wire import awareness, cable, yjs

KEEP_MS = 60_000


def open_memory() -> MemoryStore:
    return MemoryStore.open(
        "unused", DiskFiles(), StoreOptions(), now_ms=0, random_bytes=lambda size: bytes(size)
    )


class AllowAll:
    subject: str | None = None
    expires_ms: int | None = None

    def may_read(self, document: str) -> bool:
        return True

    def may_write(self, document: str) -> bool:
        return True


class ReadsOnly(AllowAll):
    def may_write(self, document: str) -> bool:
        return False


class ReadsOnlyOne(AllowAll):
    """The document `d`, that is."""

    def may_read(self, document: str) -> bool:
        return document == "d"


class FakePeer:
    """A socket that can be stopped up."""

    remote = "127.0.0.1"
    waiting_bytes = 0

    def __init__(self) -> None:
        self.is_writable = True
        self.is_paused = False
        self.payloads: list[bytes] = []
        # Whether what was sent was text; both at once would be a fault.
        self.was_text: set[bool] = set()
        self.closed_with: tuple[int, str] | None = None
        self.warm_frames = b""

    def send(self, payload: bytes, *, is_text: bool) -> None:
        if self.closed_with is None:
            self.was_text.add(is_text)
            self.payloads.append(payload)

    def send_framed(self, frames: bytes) -> None:
        while frames and self.closed_with is None:
            self.was_text.add(frames[0] & 0x0F == 1)
            length, start = frames[1], 2
            if length == 126:
                length, start = int.from_bytes(frames[2:4], "big"), 4
            elif length == 127:
                length, start = int.from_bytes(frames[2:10], "big"), 10
            self.payloads.append(frames[start : start + length])
            frames = frames[start + length :]

    def offer_framed(self, frames: bytes, *, at_once: bool = False) -> bool:
        if self.is_writable:
            self.send_framed(frames)
        return self.is_writable

    def keep_warm(self, frames: bytes) -> None:
        self.warm_frames = frames

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self, code: int, reason: str = "") -> None:
        self.closed_with = self.closed_with or (code, reason)

    def abort(self) -> None:
        self.closed_with = self.closed_with or (1006, "")

    @property
    def close_code(self) -> int | None:
        return self.closed_with[0] if self.closed_with is not None else None


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


class YjsClient:
    """The other end of one connection to `/yjs/…`."""

    def __init__(self, handler: YjsConnection) -> None:
        self.handler = handler
        self.peer = FakePeer()
        handler.opened(self.peer)

    def say(self, frame: yjs.Frame) -> None:
        self.handler.received(yjs.encode(frame), is_text=False)

    def update(self, body: bytes) -> None:
        self.say(yjs.SyncUpdate(body))

    def show(self, client: int, clock: int, state: bytes | None = b'{"u":1}') -> None:
        entries = [awareness.Entry(client, clock, state)]
        self.say(yjs.AwarenessUpdate(awareness.encode(entries)))

    def take(self, *types: type[yjs.Frame]) -> list[Any]:
        """What it was sent since the last time, of these types or of all."""
        payloads, self.peer.payloads = self.peer.payloads, []
        frames = [yjs.decode(payload) for payload in payloads]
        return [each for each in frames if not types or isinstance(each, types)]

    def take_present(self) -> list[tuple[int, int, bytes | None]]:
        """All of the awareness that it was sent since the last time."""
        return [
            (entry.client, entry.clock, entry.state)
            for frame in self.take(yjs.AwarenessUpdate)
            for entry in awareness.decode(frame.update)
        ]

    def drop(self) -> None:
        self.handler.closed(1006, "")

    def stop_reading(self) -> None:
        self.peer.is_writable = False

    def read_on(self) -> None:
        self.peer.is_writable = True
        self.handler.drained()


def identifier(document: str = "d", **parameters: Any) -> str:
    return json.encode({"channel": "SyncChannel", "path": document, **parameters}).decode()


D = identifier()


class CableClient:
    """The other end of one connection to `/cable`. Messages of a subscription are read as far as
    the frame: `F` of docs/formats/cable.md becomes a value."""

    def __init__(self, handler: CableConnection) -> None:
        self.handler = handler
        self.peer = FakePeer()
        handler.opened(self.peer)

    def command(self, command: str, identifier: str = D, **fields: Any) -> None:
        message = {"command": command, "identifier": identifier, **fields}
        self.handler.received(json.encode(message), is_text=True)

    def subscribe(self, identifier: str = D, **fields: Any) -> None:
        self.command("subscribe", identifier, **fields)

    def perform(self, identifier: str = D, **data: Any) -> None:
        self.command("message", identifier, data=json.encode(data).decode())

    def say(self, frame: yjs.Frame, identifier: str = D, **fields: Any) -> None:
        self.perform(identifier, update=b64encode(yjs.encode(frame)).decode(), **fields)

    def update(self, body: bytes, identifier: str = D, **fields: Any) -> None:
        self.say(yjs.SyncUpdate(body), identifier, **fields)

    def ack(self, seq: int, identifier: str = D) -> None:
        self.perform(identifier, action="ack", id=seq)

    def show(self, client: int, clock: int, identifier: str = D) -> None:
        entries = [awareness.Entry(client, clock, b'{"u":1}')]
        self.say(yjs.AwarenessUpdate(awareness.encode(entries)), identifier)

    def take(self) -> list[dict[str, Any]]:
        """What it was sent since the last time."""
        payloads, self.peer.payloads = self.peer.payloads, []
        return [json.decode(payload) for payload in payloads]

    def take_types(self) -> list[str]:
        return [each.get("type", "data") for each in self.take()]

    def take_messages(self, identifier: str = D) -> list[dict[str, Any]]:
        """Of one subscription, with their frames read."""
        messages = [
            dict(each["message"])
            for each in self.take()
            if each.get("identifier") == identifier and "message" in each
        ]
        for message in messages:
            if "update" in message:
                message["update"] = yjs.decode(b64decode(message["update"]))
        return messages

    def take_frames(self, type: type[yjs.Frame], identifier: str = D) -> list[Any]:
        messages = self.take_messages(identifier)
        return [each["update"] for each in messages if isinstance(each.get("update"), type)]

    def drop(self) -> None:
        self.handler.closed(1006, "")

    def stop_reading(self) -> None:
        self.peer.is_writable = False

    def read_on(self) -> None:
        self.peer.is_writable = True
        self.handler.drained()


def yjs_updates(*texts: str, client: int = 1_000) -> list[bytes]:
    """One writer types these one after the other; each update builds on the one before."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client)
    text = doc.get("t", type=pycrdt.Text)
    updates: list[bytes] = []
    subscription = doc.observe(lambda event: updates.append(event.update))
    for piece in texts:
        text += piece
    doc.unobserve(subscription)
    return updates


def text_of(*updates: bytes) -> str:
    """What a fresh client shows after these."""
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    for update in updates:
        doc.apply_update(update)
    return str(doc.get("t", type=pycrdt.Text))


async def turns() -> None:
    """A few turns of the loop: whatever is due now has happened then."""
    for _ in range(20):
        await asyncio.sleep(0)


class DocumentsRig:
    def __init__(
        self,
        store: Store,
        options: DocumentOptions | None = None,
        settings: SyncSettings | None = None,
        authorize: Callable[[str | None], Any] | None = None,
        committer: Committer | None = None,
        events: NotesEvents | None = None,
    ) -> None:
        # Goes as time does. The machine's clock goes with it until a test sets `wall`.
        self.clock = ManualClock()
        self.wall = self.clock
        self.store = store
        self.committer = committer or Committer.on_thread(store)
        numbers = count(1)

        def random_bytes(size: int) -> bytes:
            return next(numbers).to_bytes(size, "big")

        noted = None if events is None else Events(events, self._wall_ms, Face.DOCUMENTS)
        clock = Clock(self._wall_ms, self.clock)
        self.documents = Documents(
            store, self.committer, clock, random_bytes, options, events=noted
        )
        self.sessions = Sessions(self.clock, KEEP_MS)
        self.face = SyncFace(
            self.documents,
            self.sessions,
            authorize or (lambda token: AllowAll()),
            lambda upgrade: None,
            random_bytes,
            self._wall_ms,
            settings,
        )
        self.rooms = YjsRooms(self.clock)
        self.yjs_face = YjsFace(
            self.documents,
            self.rooms,
            authorize or (lambda token: AllowAll()),
            lambda upgrade: None,
            random_bytes,
            self._wall_ms,
        )
        self.cable_face = CableFace(
            self.documents,
            self.rooms,
            authorize or (lambda token: AllowAll()),
            lambda upgrade: None,
            random_bytes,
            self._wall_ms,
        )

    def _wall_ms(self) -> int:
        return self.wall()

    def yjs(self, document: str = "d") -> YjsClient:
        accepted = self.yjs_face.accept(Upgrade(f"/yjs/{document}"))
        assert isinstance(accepted, Accepted)
        assert isinstance(accepted.handler, YjsConnection)
        return YjsClient(accepted.handler)

    def yjs_joined(self, document: str = "d") -> YjsClient:
        """Connected and greeted."""
        client = self.yjs(document)
        assert isinstance(client.take()[0], yjs.SyncStep1)
        return client

    def cable(self, *, is_extended: bool = False) -> CableClient:
        subprotocol = cable.EXTENDED if is_extended else cable.JSON
        accepted = self.cable_face.accept(Upgrade("/cable", subprotocols=(subprotocol,)))
        assert isinstance(accepted, Accepted)
        assert accepted.subprotocol == subprotocol
        assert isinstance(accepted.handler, CableConnection)
        return CableClient(accepted.handler)

    def cable_joined(
        self, *identifiers: str, is_extended: bool = False, **fields: Any
    ) -> CableClient:
        """Connected and subscribed, and told so."""
        client = self.cable(is_extended=is_extended)
        for each in identifiers or (D,):
            client.subscribe(each, **fields)
        types = client.take_types()
        assert types[0] == "welcome"
        assert types.count("confirm_subscription") == max(1, len(identifiers))
        return client

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
