"""The core of a client in its event loop: carries messages and time in, sends and events out.

Everything happens in one task at a time and without waiting, so there are no locks. Documents and
the client itself call in, the connection (`syncline.client.link`) carries out.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from syncline.client import messages
from syncline.client.latest import Latest
from syncline.client.outbox import Outbox
from syncline.core.replicas import Link, Replicas, Step, is_stalled
from syncline.errors import LimitExceededError, UnexpectedMessageError
from syncline.values import limits
from syncline.values.kinds import Kind
from syncline.values.replica import Complaint, LinkStatus, LinkTurned, Stalled, ToApplication
from syncline.wire import sync, sync_messages
from syncline.wire.sync_bodies import Encoding

log = logging.getLogger("syncline.client")


def chance() -> float:
    return secrets.randbelow(1 << 16) / (1 << 16)


class Listener(Protocol):
    """An open document."""

    def hear(self, event: ToApplication) -> None: ...

    def refresh(self) -> None:
        """Its status may be another one."""
        ...

    def fail(self, error: Exception) -> None:
        """Nothing will come any more."""
        ...


class Engine:
    """See the module."""

    def __init__(self, client: str, attempt_count_max: int) -> None:
        self.machine = Replicas(client, attempt_count_max=attempt_count_max, chance=chance)
        # Of the connection that is up.
        self.encoding: Encoding = "json"
        self.outbox = Outbox()
        self.status = Latest(self.machine.status)
        self.listeners: dict[str, Listener] = {}
        # Why the client is offline or closed, or tries again.
        self.trouble: tuple[str, str] = ("", "")
        self.frame_bytes_max = limits.frame_bytes_max
        # Set while the connection is to be cut: the router does not answer.
        self.cut: Callable[[str, str], None] | None = None
        self.link_turned = asyncio.Event()
        self._due_ms: int | None = None
        self._due_changed = asyncio.Event()

    @staticmethod
    def now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # What the core wants done.

    def take(self, step: Step, *touched: str) -> None:
        """Carry a step out. `touched`: documents whose status it may have changed in silence."""
        try:
            for send in step.sends:
                self.outbox.put(send)
        except LimitExceededError as error:
            self._cut("slow", str(error))
        documents = {*touched}
        for tell in step.tells:
            if isinstance(tell.event, LinkTurned):
                self._turned(tell.event)
                documents.update(self.listeners)
            else:
                self._tell(tell.document, tell.event)
            documents.add(tell.document)
        documents.update(send.document for send in step.sends)
        for document in documents:
            if (listener := self.listeners.get(document)) is not None:
                listener.refresh()
        self.link_turned.set()
        self._note_due(self.machine.next_tick_ms_of(documents))
        if is_stalled(step):
            self._cut("stalled", "the router does not answer")

    def _turned(self, event: LinkTurned) -> None:
        if event.status is LinkStatus.ONLINE:
            self.trouble = ("", "")
        elif event.code:
            self.trouble = (event.code, event.message)
            log.warning("%s: %s (%s)", event.status, event.message, event.code)
        self.status.set(event.status)

    def _tell(self, document: str, event: ToApplication) -> None:
        if isinstance(event, Complaint):
            log.warning("the router objects: %s (%s)", event.message, event.code)
        elif isinstance(event, Stalled):
            log.warning("%s: %s", document, event.reason)
        if (listener := self.listeners.get(document)) is not None:
            listener.hear(event)

    def _cut(self, code: str, message: str) -> None:
        if self.cut is not None:
            self.cut(code, message)

    # Time.

    def _note_due(self, due_ms: int | None) -> None:
        """What falls due later than was thought costs one look too many, and no more."""
        if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
            self._due_ms = due_ms
            self._due_changed.set()

    async def keep_time(self) -> None:
        """Tell the core when something falls due. Never returns."""
        while True:
            self._due_changed.clear()
            if self._due_ms is None:
                await self._due_changed.wait()
            else:
                wait_s = max(0, self._due_ms - self.now_ms()) / 1000
                try:
                    async with asyncio.timeout(wait_s):
                        await self._due_changed.wait()
                except TimeoutError:
                    self.take(self.machine.tick(self.now_ms()))
                    self._due_ms = self.machine.next_tick_ms

    # Messages.

    def receive(self, frame: bytes) -> None:
        """Take a frame of the router. Raises ProtocolError for what is none."""
        message = sync.decode_server(frame, self.encoding)
        now_ms = self.now_ms()
        match message:
            case sync_messages.Welcome():
                if self.machine.link is not Link.GREETING:
                    raise UnexpectedMessageError("the router welcomes a second time")
                self.frame_bytes_max = message.limits.get("frame_bytes", limits.frame_bytes_max)
                self.take(self.machine.welcomed(message.restored, now_ms))
            case sync_messages.Pong():
                pass
            case _ if self.machine.link is not Link.UP:
                raise UnexpectedMessageError("the router speaks before it welcomes")
            case sync_messages.Failure(document=None):
                self.take(self.machine.complain(message.code, message.message))
            case _:
                self._receive_of_document(message, now_ms)

    def _receive_of_document(
        self, message: sync_messages.OfDocument | sync_messages.Failure, now_ms: int
    ) -> None:
        document = message.document
        assert document is not None
        kind = self.machine.kind_of(document)
        if kind is None and isinstance(message, sync_messages.State | sync_messages.Mutation):
            return  # Not open here, so its body cannot be read.
        inner = messages.from_wire(message, kind or Kind.JSON, self.encoding)
        self.take(self.machine.receive(document, inner, now_ms), document)
